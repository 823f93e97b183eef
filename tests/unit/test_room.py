"""How much a worker claims: free slots, a buffer for fast handlers, and who decides that a claim is worth it."""

from hypothesis import given
from hypothesis import strategies as st

from duetime.clock import SECOND
from duetime.model.retry import RetryPolicy
from duetime.store.protocol import ClaimedTask
from duetime.targets.payload import OpenPayloads
from duetime.targets.spec import HandlerSpec
from duetime.worker.room import BUFFERED_TIME, LARGEST_BUFFER, LARGEST_CLAIM, STALE_AFTER, Room, Rooms, shares

FAST, SLOW = 10.0, 200_000.0


def room(name: str, concurrency: int = 50, *, duration: float | None = None, waits: bool = False) -> Room:
    spec = HandlerSpec(
        name=name,
        function=lambda: None,
        payloads=OpenPayloads(name),
        takes_context=False,
        is_async=True,
        retry=RetryPolicy(),
        concurrency=concurrency,
    )
    made = Room(spec, concurrency)
    if duration is not None:
        made.measure(duration, 1, waited=waits)
    return made


def rooms(*own: Room, slots: int | None = None, aliases: dict[str, Room] | None = None) -> Rooms:
    return Rooms(own, {each.spec.name: each for each in own} | (aliases or {}), slots)


def tasks(handler: str, count: int) -> list[ClaimedTask]:
    return [
        ClaimedTask(
            id=f"{handler}-{number}",
            handler=handler,
            payload="{}",
            attempt=1,
            tries=0,
            crashes=0,
            due_at=0,
            since_at=0,
            submitted_at=0,
            submitted_by="",
            expires_at=None,
            timeout=None,
            retry=None,
            meta=None,
            key=None,
            collection=None,
            priority=5,
            schedule=None,
            planned_at=None,
        )
        for number in range(count)
    ]


def test_a_handler_that_has_never_run_gets_its_slots_and_nothing_ahead() -> None:
    assert rooms(room("new")).wants() == ({"new": 50}, 50)


def test_a_fast_handler_gets_a_whole_claim_at_the_default_concurrency() -> None:
    wants, total = rooms(room("fast", duration=FAST)).wants()
    assert (wants, total) == ({"fast": 50 + LARGEST_BUFFER}, LARGEST_CLAIM)


def test_a_slow_handler_has_nothing_waiting() -> None:
    slow = room("slow", duration=SLOW, waits=True)
    assert rooms(slow).wants() == ({"slow": 50}, 50)


def test_a_handler_that_keeps_the_event_loop_has_no_more_buffer_for_having_more_slots() -> None:
    assert room("busy", 50, duration=1_000.0).buffer() == room("busy", 5, duration=1_000.0).buffer() == 50
    assert room("waiting", 50, duration=40_000.0, waits=True).buffer() == 62


@given(st.floats(0, 1e7), st.integers(1, 1_000), st.booleans())
def test_a_buffer_never_holds_more_than_its_time(duration: float, concurrency: int, waits: bool) -> None:
    measured = room("any", concurrency, duration=duration, waits=waits)
    pace = duration / concurrency if waits else duration
    assert measured.buffer() * pace <= BUFFERED_TIME
    assert measured.buffer() <= LARGEST_BUFFER


def test_many_attempts_at_once_teach_as_much_as_one_after_the_other() -> None:
    together, apart = room("a", duration=1_000.0), room("b", duration=1_000.0)
    together.measure(10.0, 30, waited=False)
    for _ in range(30):
        apart.measure(10.0, 1, waited=False)
    assert together.duration is not None
    assert apart.duration is not None
    assert abs(together.duration - apart.duration) < 1e-6


def test_nothing_is_claimed_before_half_of_the_buffer_is_used_up() -> None:
    fast = room("fast", duration=FAST)
    all_rooms = rooms(fast)
    all_rooms.wants()
    all_rooms.put(tasks("fast", fast.low + 1), 0)
    assert all_rooms.wants() == ({}, 0)
    fast.queue.popleft()
    assert all_rooms.wants()[1] == LARGEST_CLAIM


def test_idle_handlers_do_not_make_the_claims_of_a_busy_one_small() -> None:
    busy, idle = room("busy", duration=FAST), room("idle", duration=FAST)
    all_rooms = rooms(busy, idle)
    wants, total = all_rooms.wants()
    claimed = tasks("busy", total)
    all_rooms.put(claimed, 0)
    all_rooms.note_claimed(wants, claimed, full=True)
    busy.queue.extend(tasks("busy", 100))
    assert all_rooms.wants() == ({}, 0), "the idle one has nothing, and the busy one has enough"
    all_rooms.expect_more()
    assert all_rooms.wants()[0].keys() == {"busy", "idle"}


def test_a_handler_that_was_not_asked_for_may_have_more() -> None:
    full, other = room("full", 2, duration=SLOW), room("other", 2, duration=SLOW)
    all_rooms = rooms(full, other)
    all_rooms.take(full)
    all_rooms.take(full)
    wants, _ = all_rooms.wants()
    assert wants == {"other": 2}
    all_rooms.note_claimed(wants, [], full=False)
    assert all_rooms.wants() == ({}, 0)
    all_rooms.give(full)
    assert all_rooms.wants() == ({"full": 1, "other": 2}, 3)


def test_the_slots_of_the_process_bound_those_of_its_handlers() -> None:
    first, second = room("first"), room("second")
    all_rooms = rooms(first, second, slots=10)
    assert all_rooms.wants()[1] == 10
    all_rooms.put(tasks("first", 10), 0)
    assert all_rooms.wants() == ({}, 0)


def test_buffers_of_several_handlers_do_not_add_up_without_end() -> None:
    fast = [room(f"fast-{number}", duration=FAST) for number in range(8)]
    all_rooms = rooms(*fast)
    for each in fast:
        each.queue.extend(tasks(each.spec.name, LARGEST_BUFFER // 8))
    wants, total = all_rooms.wants()
    assert len(wants) == 8
    assert total == 8 * 50, "the buffer is full, but free slots may always be filled"


def test_a_room_with_several_names_is_counted_once() -> None:
    renamed = room("new", 10)
    all_rooms = rooms(renamed, aliases={"old": renamed, "older": renamed})
    wants, total = all_rooms.wants()
    assert total == 10
    assert sum(wants.values()) == 10
    assert wants == {"new": 8, "old": 1, "older": 1}, "one is enough to learn whether there are any"
    all_rooms.note_claimed(wants, tasks("new", 8) + tasks("old", 1), full=False)
    assert all_rooms.wants()[0] == {"new": 4, "old": 4, "older": 1}


@given(st.dictionaries(st.text(max_size=3), st.booleans(), min_size=1, max_size=5), st.integers(1, 3_000))
def test_shares_never_exceed_what_is_wanted_but_by_one_of_each_name(names: dict[str, bool], want: int) -> None:
    found = shares(names, want)
    assert found.keys() == names.keys()
    assert all(share >= 1 for share in found.values())
    assert sum(found.values()) <= max(want, len(names))


def test_handlers_take_turns() -> None:
    first, second = room("first"), room("second")
    all_rooms = rooms(first, second)
    all_rooms.put(tasks("first", 3) + tasks("second", 3), 0)
    assert [all_rooms.next() for _ in range(4)] == [first, second, first, second]
    first.queue.clear()
    assert [all_rooms.next() for _ in range(2)] == [second, second]


def test_a_handler_without_a_free_slot_is_passed_over() -> None:
    taken, free = room("taken", 1), room("free", 1)
    all_rooms = rooms(taken, free)
    all_rooms.put(tasks("taken", 2) + tasks("free", 2), 0)
    all_rooms.take(taken)
    assert [all_rooms.next() for _ in range(3)] == [free] * 3
    all_rooms.take(free)
    assert all_rooms.next() is None
    assert not all_rooms.startable
    all_rooms.give(taken)
    assert all_rooms.next() is taken


def test_what_waits_for_slots_that_do_not_become_free_is_found_and_no_more_is_claimed_ahead() -> None:
    stuck = room("stuck", 2, duration=1_000.0, waits=True)
    all_rooms = rooms(stuck)
    all_rooms.put(tasks("stuck", 20), 0)
    for _ in range(2):
        stuck.queue.popleft()
        all_rooms.take(stuck)
    assert all_rooms.outwaited(STALE_AFTER) == []
    assert all_rooms.outwaited(STALE_AFTER + 1) == [stuck]
    stuck.queue.clear()
    assert all_rooms.wants() == ({}, 0)
    all_rooms.give(stuck)
    assert all_rooms.wants() == ({"stuck": 1}, 1)
    assert all_rooms.outwaited(10 * SECOND) == []
