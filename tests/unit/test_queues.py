"""How much a worker claims: free slots, a buffer for fast handlers, and who decides that a claim is worth it."""

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from duetime.clock import SECOND
from duetime.model.limit import Limit
from duetime.model.retry import RetryPolicy
from duetime.store.values import ClaimedTask
from duetime.targets.host import TargetHost
from duetime.targets.payload import OpenPayloads
from duetime.targets.python.function import PythonFunction
from duetime.targets.spec import HandlerSpec
from duetime.worker.held_limit import HeldLimit
from duetime.worker.queues import BUFFERED_TIME, LARGEST_BUFFER, LARGEST_CLAIM, STALE_AFTER, HandlerQueue, HandlerQueues, shares

FAST, SLOW = 10.0, 200_000.0


def queue(name: str, concurrency: int = 50, *, duration: float | None = None, waits: bool = False) -> HandlerQueue:
    spec = HandlerSpec(
        name=name,
        target=PythonFunction(function=lambda: None, takes_context=False, is_async=True),
        payloads=OpenPayloads(name),
        retry=RetryPolicy(),
        concurrency=concurrency,
    )
    made = HandlerQueue(spec, spec.target.open(spec, TargetHost()))
    if duration is not None:
        made.measure(duration, 1, waited=waits)
    return made


def queues_of(*own: HandlerQueue, slots: int | None = None, aliases: dict[str, HandlerQueue] | None = None) -> HandlerQueues:
    return HandlerQueues(own, {each.spec.name: each for each in own} | (aliases or {}), slots)


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
            extras=None,
            key=None,
            collection=None,
            priority=5,
            schedule=None,
            planned_at=None,
        )
        for number in range(count)
    ]


def test_a_handler_that_has_never_run_gets_its_slots_and_nothing_ahead() -> None:
    assert queues_of(queue("new")).wants() == ({"new": 50}, 50)


def test_a_fast_handler_gets_a_whole_claim_at_the_default_concurrency() -> None:
    wants, total = queues_of(queue("fast", duration=FAST)).wants()
    assert (wants, total) == ({"fast": 50 + LARGEST_BUFFER}, LARGEST_CLAIM)


def test_a_slow_handler_has_nothing_waiting() -> None:
    slow = queue("slow", duration=SLOW, waits=True)
    assert queues_of(slow).wants() == ({"slow": 50}, 50)


def test_a_handler_that_keeps_the_event_loop_has_no_more_buffer_for_having_more_slots() -> None:
    assert queue("busy", 50, duration=1_000.0).buffer() == queue("busy", 5, duration=1_000.0).buffer() == 50
    assert queue("waiting", 50, duration=40_000.0, waits=True).buffer() == 62


@given(st.floats(0, 1e7), st.integers(1, 1_000), st.booleans())
def test_a_buffer_never_holds_more_than_its_time(duration: float, concurrency: int, waits: bool) -> None:
    measured = queue("any", concurrency, duration=duration, waits=waits)
    pace = duration / concurrency if waits else duration
    assert measured.buffer() * pace <= BUFFERED_TIME
    assert measured.buffer() <= LARGEST_BUFFER


def test_many_attempts_at_once_teach_as_much_as_one_after_the_other() -> None:
    together, apart = queue("a", duration=1_000.0), queue("b", duration=1_000.0)
    together.measure(10.0, 30, waited=False)
    for _ in range(30):
        apart.measure(10.0, 1, waited=False)
    assert together.duration is not None
    assert apart.duration is not None
    assert abs(together.duration - apart.duration) < 1e-6


def test_nothing_is_claimed_before_half_of_the_buffer_is_used_up() -> None:
    fast = queue("fast", duration=FAST)
    queues = queues_of(fast)
    queues.wants()
    queues.put(tasks("fast", fast.low + 1), 0)
    assert queues.wants() == ({}, 0)
    fast.tasks.popleft()
    assert queues.wants()[1] == LARGEST_CLAIM


def test_idle_handlers_do_not_make_the_claims_of_a_busy_one_small() -> None:
    busy, idle = queue("busy", duration=FAST), queue("idle", duration=FAST)
    queues = queues_of(busy, idle)
    wants, total = queues.wants()
    claimed = tasks("busy", total)
    queues.put(claimed, 0)
    queues.note_claimed(wants, claimed, full=True)
    busy.tasks.extend(tasks("busy", 100))
    assert queues.wants() == ({}, 0), "the idle one has nothing, and the busy one has enough"
    queues.expect_more()
    assert queues.wants()[0].keys() == {"busy", "idle"}


def test_a_handler_that_was_not_asked_for_may_have_more() -> None:
    full, other = queue("full", 2, duration=SLOW), queue("other", 2, duration=SLOW)
    queues = queues_of(full, other)
    queues.take_slot(full)
    queues.take_slot(full)
    wants, _ = queues.wants()
    assert wants == {"other": 2}
    queues.note_claimed(wants, [], full=False)
    assert queues.wants() == ({}, 0)
    queues.free_slot(full)
    assert queues.wants() == ({"full": 1, "other": 2}, 3)


def test_the_slots_of_the_process_bound_those_of_its_handlers() -> None:
    first, second = queue("first"), queue("second")
    queues = queues_of(first, second, slots=10)
    assert queues.wants()[1] == 10
    queues.put(tasks("first", 10), 0)
    assert queues.wants() == ({}, 0)


def test_a_handler_left_out_while_the_process_had_no_slot_is_asked_for_when_it_has_one() -> None:
    quick, idle = queue("quick", 1, duration=FAST), queue("idle", 1)
    queues = queues_of(quick, idle, slots=1)
    queues.note_claimed(queues.wants()[0], [], full=False)
    assert queues.wants() == ({}, 0), "nothing is expected"
    queues.take_slot(quick)
    queues.expect_more()
    wants, _ = queues.wants()
    assert wants.keys() == {"quick"}, "one without a buffer could not start any"
    queues.note_claimed(wants, [], full=False)
    assert queues.wants() == ({}, 0)
    queues.free_slot(quick)
    assert queues.wants()[0].keys() == {"quick", "idle"}


def test_buffers_of_several_handlers_do_not_add_up_without_end() -> None:
    fast = [queue(f"fast-{number}", duration=FAST) for number in range(8)]
    queues = queues_of(*fast)
    for each in fast:
        queues.put(tasks(each.spec.name, LARGEST_BUFFER // 8), 0)
    wants, total = queues.wants()
    assert len(wants) == 8
    assert total == 8 * 50, "the buffer is full, but free slots may always be filled"


def test_a_queue_with_several_names_is_counted_once() -> None:
    renamed = queue("new", 10)
    queues = queues_of(renamed, aliases={"old": renamed, "older": renamed})
    wants, total = queues.wants()
    assert total == 10
    assert sum(wants.values()) == 10
    assert wants == {"new": 8, "old": 1, "older": 1}, "one is enough to learn whether there are any"
    queues.note_claimed(wants, tasks("new", 8) + tasks("old", 1), full=False)
    assert queues.wants()[0] == {"new": 4, "old": 4, "older": 1}


@given(st.dictionaries(st.text(max_size=3), st.booleans(), min_size=1, max_size=5), st.integers(1, 3_000))
def test_shares_never_exceed_what_is_wanted_but_by_one_of_each_name(names: dict[str, bool], want: int) -> None:
    found = shares(names, want)
    assert found.keys() == names.keys()
    assert all(share >= 1 for share in found.values())
    assert sum(found.values()) <= max(want, len(names))


def wants_of_all(own: list[HandlerQueue], more: Mapping[str, bool], free: int) -> tuple[dict[str, int], int]:
    """Work out the wants of every queue anew: what looking at the active ones alone must come to."""
    queued = sum(len(each.tasks) for each in own)
    asked = [each for each in own if each.free + each.buffer() > len(each.tasks) and (each.buffer() or free > queued)]
    worth_it = any(
        more[each.spec.name] and (len(each.tasks) <= each.buffer() // 2 if each.buffer() else each.free > len(each.tasks)) for each in asked
    )
    wants = {each.spec.name: each.free + each.buffer() - len(each.tasks) for each in asked}
    total = min(LARGEST_CLAIM, free + max((each.buffer() for each in asked), default=0) - queued)
    return (wants, total) if worth_it and total > 0 else ({}, 0)


STEPS = ("claim", "run", "wait", "end", "slow", "hint")


@given(st.none() | st.integers(1, 8), st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 2)), min_size=10, max_size=40))
def test_idle_queues_want_what_they_wanted_however_the_others_change(slots: int | None, steps: list[tuple[str, int]]) -> None:
    quick = 20_000.0
    own = [queue(f"handler-{number}", 2, duration=duration, waits=True) for number, duration in enumerate((None, quick, SLOW))]
    queues = queues_of(*own, slots=slots)
    more = {each.spec.name: True for each in own}
    running = dict.fromkeys(own, 0)
    for step, number in steps:
        wants, total = queues.wants()
        expected = wants_of_all(own, more, queues.free)
        # whether idle queues may have more is known of all together only, so there may be one claim too many, but never one too few
        needless = expected == ({}, 0) and (wants, total) == wants_of_all(own, dict.fromkeys(more, True), queues.free)
        assert (wants, total) == expected or needless
        each = own[number]
        if step == "claim" and wants:
            claimed = tasks(each.spec.name, min(wants.get(each.spec.name, 0), total, 3))
            queues.put(claimed, 0)
            queues.note_claimed(wants, claimed, full=len(claimed) >= total)
            for name in more:
                taken = len(claimed) if name == each.spec.name else 0
                more[name] = taken >= wants.get(name, 0) or (len(claimed) >= total and taken > 0)
        elif step == "hint":
            queues.expect_more()
            more = dict.fromkeys(more, True)
        elif step in ("run", "wait") and each.tasks and min(each.free, queues.free) > 0:
            each.tasks.popleft()
            each.measure(quick, 50, waited=True)
            if step == "wait":
                queues.take_slot(each)
                running[each] += 1
        elif step in ("end", "slow") and running[each]:
            queues.free_slot(each)
            running[each] -= 1
            each.measure(SLOW if step == "slow" else quick, 50, waited=True)
    queues.expect_more()
    assert queues.wants() == wants_of_all(own, dict.fromkeys(more, True), queues.free)


def test_handlers_are_served_round_robin() -> None:
    first, second = queue("first"), queue("second")
    queues = queues_of(first, second)
    queues.put(tasks("first", 3) + tasks("second", 3), 0)
    assert [queues.next() for _ in range(4)] == [first, second, first, second]
    first.tasks.clear()
    assert [queues.next() for _ in range(2)] == [second, second]


def test_a_handler_without_a_free_slot_is_passed_over() -> None:
    taken, free = queue("taken", 1), queue("free", 1)
    queues = queues_of(taken, free)
    queues.put(tasks("taken", 2) + tasks("free", 2), 0)
    queues.take_slot(taken)
    assert [queues.next() for _ in range(3)] == [free] * 3
    queues.take_slot(free)
    assert queues.next() is None
    assert not queues.startable
    queues.free_slot(taken)
    assert queues.next() is taken


def test_what_waits_for_slots_that_do_not_become_free_is_found_and_no_more_is_claimed_ahead() -> None:
    stuck = queue("stuck", 2, duration=1_000.0, waits=True)
    queues = queues_of(stuck)
    queues.put(tasks("stuck", 20), 0)
    for _ in range(2):
        stuck.tasks.popleft()
        queues.take_slot(stuck)
    assert queues.stalled(STALE_AFTER) == []
    assert queues.stalled(STALE_AFTER + 1) == [stuck]
    stuck.tasks.clear()
    assert queues.wants() == ({}, 0)
    queues.free_slot(stuck)
    assert queues.wants() == ({"stuck": 1}, 1)
    assert queues.stalled(10 * SECOND) == []


def test_what_becomes_free_of_a_lowered_limit_starts_nothing() -> None:
    """An attempt that ends leaves a permit here, which goes back: more is out in the fleet than may be."""
    mine, limit = queue("work"), HeldLimit(Limit("erp", running=6))
    mine.limits = ((limit, 1),)
    limit.held, limit.used = 6, 5
    assert mine.startable == 1
    limit.over = True
    assert mine.startable == 0
