"""Writing schedules: compare-and-set on the version, with tasks and skips in the same transaction; and those whose time has come."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from duetime.clock import SECOND, ManualClock
from duetime.errors import InvalidValue, StoreUnavailable, TaskNotFound
from duetime.ids import new_id
from duetime.model.rules import AfterEnd, At, Calendar, Cron, Every, Rule, Window
from duetime.model.schedule import LastRun, Pause, Run, ScheduleRecord, ScheduleSpec, ScheduleState
from duetime.model.task import Edge, ErrorInfo, State
from duetime.store import Store
from duetime.store.schedules import ScheduleWrite
from tests.conformance.build import Worker, add, get, new_task, state_of
from tests.conformance.conftest import Another
from tests.conformance.schedules import again, bringing, due_names, new, occurrence, put, removal, schedule, skip, stored
from tests.conformance.stores import StoreKind

MINUTE = 60 * SECOND


def full_record(now: int) -> ScheduleRecord:
    """Make a record in which every part says something."""
    error = ErrorInfo("ValueError", 'no such "order" \\ ☂', "Traceback …")
    last = LastRun("t1", State.FAILED, now - 60, now - 50, now - 55, msgspec.Raw(b'{"n":[1,2]}'), error)
    spec = ScheduleSpec(
        handler="work",
        rule=Cron("30 9 * * MON-FRI", tz="Europe/Berlin") | Every(90) | AfterEnd(5) | Window(600, "08:00", "18:00") | At(now, now + 1),
        payload=msgspec.Raw('{"text":"a \\"b\\" \\\\ \\u0000 ä☂"}'.encode()),
        calendars=("holidays", "hours"),
        start_at=now,
        end_at=now + 1_000,
        count=7,
        jitter=1.5,
        missed="all within 6h",
        overlap="queue all",
        grace=3.5,
        pause_after=4,
        collection="eu",
        priority=8,
        timeout=12.5,
        retry=msgspec.Raw(b'{"tries":3}'),
        expires_in=5 * SECOND,
        meta={"tenant": "ä{},\\"},
        note='for "ann"',
    )
    state = ScheduleState(
        cursor=now - 1,
        paused=Pause(now, "bob", "stock taking", True),
        fired=12,
        missed=3,
        failures=2,
        ended_at=now - 50,
        runs=(Run("t2", now - 30), Run("t3", now - 20, "backfill")),
        last=last,
        cancel=("t4",),
        fired_at=now - 30,
        planned_at=now - 31,
    )
    return ScheduleRecord(
        name='sweep "the" {floor}, \\ ä☂',
        id="an id",
        version=1,
        revision=5,
        spec=spec,
        state=state,
        next_at=now + 30,
        declared=4,
        created_at=now - 100,
        changed_at=now - 90,
        changed_by="cy",
    )


# ---- the version ----


async def test_a_new_schedule_stands_at_version_one_as_it_was_written(store: Store, clock: ManualClock) -> None:
    record = full_record(clock.now())
    assert await store.write_schedules([ScheduleWrite(name=record.name, expected=0, record=record)]) == [True]
    assert await store.schedules([record.name]) == [record]


async def test_each_write_counts_the_version_up_whatever_the_record_says(store: Store, clock: ManualClock) -> None:
    await put(store, new("a"))
    for version in range(1, 5):
        record = await stored(store, "a")
        assert record.version == version
        await put(store, again(record, version=77, next_at=clock.now() + version, changed_by=f"writer {version}"))
        assert (await stored(store, "a")).changed_by == f"writer {version}"


async def test_a_write_replaces_all_parts_of_a_record(store: Store, clock: ManualClock) -> None:
    await put(store, new("a"))
    other = msgspec.structs.replace(full_record(clock.now()), name="a", version=2)
    await put(store, ScheduleWrite(name="a", expected=1, record=other))
    assert await stored(store, "a") == other
    bare = schedule("a", version=3)
    await put(store, ScheduleWrite(name="a", expected=2, record=bare))
    assert await stored(store, "a") == bare


@pytest.mark.parametrize("expected", [0, 1, 3, 10])
async def test_a_write_that_expects_another_version_does_nothing(store: Store, clock: ManualClock, expected: int) -> None:
    await put(store, new("a"))
    await put(store, again(await stored(store, "a")))
    before = await stored(store, "a")
    late = ScheduleWrite(name="a", expected=expected, record=schedule("a", clock.now()))
    task = occurrence("a", clock.now())
    assert await store.write_schedules([bringing(late, task, skips=(skip("a", 5),))]) == [False]
    assert await stored(store, "a") == before
    assert await store.get([task.id]) == [None]
    assert await store.skips("a", 10) == []


@pytest.mark.parametrize("expected", [1, 2])
async def test_a_write_of_a_schedule_that_is_not_there_any_more_does_nothing(store: Store, expected: int) -> None:
    assert await store.write_schedules([ScheduleWrite(name="a", expected=expected, record=schedule("a"))]) == [False]
    assert await store.schedules(["a"]) == [None]


async def test_each_write_of_a_call_is_answered_for_itself_and_in_order(store: Store, clock: ManualClock) -> None:
    await put(store, new("b"), new("d"))
    tasks = {name: occurrence(name, clock.now()) for name in "abcde"}
    writes = [
        bringing(new("e"), tasks["e"]),
        bringing(new("b"), tasks["b"]),
        bringing(again(await stored(store, "d")), tasks["d"]),
        bringing(ScheduleWrite(name="c", expected=4, record=schedule("c")), tasks["c"]),
        bringing(new("a"), tasks["a"]),
    ]
    assert await store.write_schedules(writes) == [True, False, True, False, True]
    assert [record and record.version for record in await store.schedules(list("abcde"))] == [1, 1, None, 2, 1]
    assert [record is not None for record in await store.get([tasks[name].id for name in "abcde"])] == [True, False, False, True, True]


async def test_an_empty_call_is_answered_with_an_empty_list(store: Store) -> None:
    assert await store.write_schedules([]) == []
    assert await store.write_schedules([], together=True) == []
    assert await store.schedules([]) == []
    await store.wake_schedules([])


async def test_the_same_name_twice_in_a_call_is_refused(store: Store) -> None:
    with pytest.raises(InvalidValue, match="'a' comes twice"):
        await store.write_schedules([new("a"), new("b"), new("a")])
    assert await store.schedules(["a", "b"]) == [None, None]


async def test_a_store_that_is_not_open_says_so(kind: StoreKind, clock: ManualClock, tmp_path: Any) -> None:
    store = kind.store(tmp_path, clock)
    for verb in (store.write_schedules([new("a")]), store.due_schedules(1), store.wake_schedules(["a"]), store.duties()):
        with pytest.raises(StoreUnavailable, match="open"):
            await verb


# ---- together ----


async def test_writes_that_belong_together_happen_all_or_not_at_all(store: Store, clock: ManualClock) -> None:
    await put(store, new("b"))
    task = occurrence("a", clock.now())
    writes = [bringing(new("a"), task, skips=(skip("a", 5),)), new("b"), removal(schedule("c", version=3))]
    assert await store.write_schedules(writes, together=True) == [False, False, False]
    assert [record and record.version for record in await store.schedules(["a", "b", "c"])] == [None, 1, None]
    assert await store.get([task.id]) == [None]
    assert await store.skips("a", 10) == []
    fitting = [writes[0], again(await stored(store, "b"))]
    assert await store.write_schedules(fitting, together=True) == [True, True]
    assert [record and record.version for record in await store.schedules(["a", "b"])] == [1, 2]
    assert await state_of(store, task) is State.PENDING


# ---- removing ----


async def test_a_schedule_is_removed_at_its_version_only(store: Store) -> None:
    await put(store, new("a"))
    before = await stored(store, "a")
    await put(store, again(before))
    assert await store.write_schedules([removal(before)]) == [False]
    await put(store, removal(await stored(store, "a")))
    assert await store.schedules(["a"]) == [None]
    assert await store.write_schedules([removal(before)]) == [False]


async def test_a_schedule_made_again_under_its_name_begins_at_version_one(store: Store) -> None:
    await put(store, new("a"))
    await put(store, again(await stored(store, "a")))
    await put(store, removal(await stored(store, "a")))
    await put(store, new("a", id="another id"))
    assert ((await stored(store, "a")).version, (await stored(store, "a")).id) == (1, "another id")


async def test_removing_what_must_not_be_there_is_accepted_if_it_is_not(store: Store) -> None:
    await put(store, new("a"))
    writes = [ScheduleWrite(name=name, expected=0, record=None) for name in "ab"]
    assert await store.write_schedules(writes) == [False, True]
    assert (await stored(store, "a")).version == 1


async def test_tasks_outlive_their_schedule(store: Store, clock: ManualClock) -> None:
    task = occurrence("a", clock.now())
    await put(store, bringing(new("a"), task))
    await put(store, removal(await stored(store, "a")))
    assert await state_of(store, task) is State.PENDING


# ---- tasks that come with a write ----


async def test_tasks_come_with_their_schedule_as_if_they_were_added(store: Store, worker: Worker, clock: ManualClock) -> None:
    at = clock.now()
    options: dict[str, Any] = {
        "collection": "eu",
        "priority": 7,
        "timeout": 5.0,
        "retry": b'{"tries":2}',
        "expires_in": SECOND,
        "meta": {"a": "b"},
    }
    task = occurrence("a", at, payload=b'{"n":1}', submitted_by="schedule a", **options)
    later = occurrence("a", at + MINUTE)
    await put(store, bringing(new("a"), task, later))
    record = await get(store, task)
    expected = (State.PENDING, "a", at, at, at, "eu", 7, at + SECOND, {"a": "b"}, "schedule a")
    assert (
        *(record.state, record.schedule, record.planned_at, record.due_at, record.submitted_at),
        *(record.collection, record.priority, record.expires_at, record.meta, record.submitted_by),
    ) == expected
    [claimed] = await worker.take()
    assert (claimed.id, claimed.schedule, claimed.planned_at, claimed.payload) == (task.id, "a", at, '{"n":1}')
    clock.advance(60)
    assert [other.id for other in await worker.take()] == [later.id]


@pytest.mark.parametrize("state", sorted(set(State) - {State.BLOCKED, State.DROPPED, State.EXPIRED}))
async def test_a_task_whose_id_is_stored_already_stays_as_it_is(store: Store, worker: Worker, clock: ManualClock, state: State) -> None:
    task = occurrence("a", clock.now(), payload=b'{"first":true}')
    await store.add([task])
    match state:
        case State.RUNNING:
            await worker.take_one()
        case State.SUCCEEDED | State.FAILED:
            await worker.run(state)
        case State.CANCELLED:
            await store.cancel([task.id])
        case _:
            pass
    before = await get(store, task)
    clock.advance(1)
    other = occurrence("b", clock.now())
    await put(store, bringing(new("a"), occurrence("a", clock.now() - SECOND, payload=b'{"second":true}')), bringing(new("b"), other))
    assert await get(store, task) == before
    assert await state_of(store, other) is State.PENDING
    assert (await stored(store, "a")).version == 1


async def test_a_task_that_two_writes_bring_is_added_once(store: Store, worker: Worker, clock: ManualClock) -> None:
    task = occurrence("a", clock.now())
    await put(store, bringing(new("a"), task), bringing(new("b"), task))
    assert [claimed.id for claimed in await worker.take()] == [task.id]


async def test_tasks_wait_for_earlier_ones_of_the_same_write_and_for_stored_ones(store: Store, worker: Worker, clock: ManualClock) -> None:
    await add(store)
    running = await worker.take_one()
    at = clock.now()
    first, second, third = (occurrence("a", at + number) for number in range(3))
    chain = [
        first,
        msgspec.structs.replace(second, edges=(Edge(first.id, "end"),)),
        msgspec.structs.replace(third, edges=(Edge(second.id, "end"), Edge(running.id, "end"))),
    ]
    await put(store, bringing(new("a"), *chain), new("b"))
    assert [await state_of(store, task) for task in chain] == [State.PENDING, State.BLOCKED, State.BLOCKED]
    clock.advance(1)
    await worker.run(State.FAILED)
    await worker.run(State.CANCELLED)
    assert await state_of(store, third) is State.BLOCKED
    await worker.end(running, State.SUCCEEDED)
    assert await state_of(store, third) is State.PENDING


async def test_tasks_with_keys_meet_those_that_hold_them(store: Store, worker: Worker, clock: ManualClock) -> None:
    holder = await add(store, key="k")
    at = clock.now()
    refused, kept, free = (occurrence("a", at + number, key=key) for number, key in enumerate(("k", "k", "free")))
    kept = msgspec.structs.replace(kept, if_exists="keep")
    await put(store, bringing(new("a"), refused, kept, free, occurrence("a", at + 5)))
    assert await store.get([refused.id, kept.id]) == [None, None]
    clock.advance(1)
    assert len(await worker.take()) == 3
    assert (await get(store, holder)).attempt == 1


async def test_a_task_that_cannot_be_added_leaves_nothing_of_the_call(store: Store, clock: ManualClock) -> None:
    await put(store, new("b"))
    lost = new_task(edges=(Edge(new_id(), "end"),))
    fine = occurrence("a", clock.now())
    with pytest.raises(TaskNotFound):
        await store.write_schedules(
            [bringing(new("a"), fine, skips=(skip("a", 5),)), bringing(again(await stored(store, "b")), lost), new("c")]
        )
    assert [record and record.version for record in await store.schedules(["a", "b", "c"])] == [None, 1, None]
    assert await store.get([fine.id, lost.id]) == [None, None]
    assert await store.skips("a", 10) == []


async def test_hundreds_of_schedules_are_written_in_one_call(store: Store, worker: Worker, clock: ManualClock) -> None:
    names = [f"s{number:03d}" for number in range(500)]
    await put(store, *[bringing(new(name, clock.now(), handler="work"), occurrence(name, clock.now())) for name in names])
    records = (await store.due_schedules(1_000)).records
    assert [record.name for record in records] == names
    clock.advance(60)
    await put(store, *[bringing(again(record, next_at=None), occurrence(record.name, clock.now())) for record in reversed(records)])
    assert {record and record.version for record in await store.schedules(names)} == {2}
    assert len(await worker.take()) == 1_000


# ---- many at once ----


async def test_of_many_that_write_the_same_schedule_at_once_exactly_one_succeeds(
    store: Store, another: Another, worker: Worker, clock: ManualClock
) -> None:
    stores = [store, *[await another() for _ in range(19)]]
    await put(store, new("a", clock.now()), new("b", clock.now()))
    for number in range(1, 9):
        read = await asyncio.gather(*(each.schedules(["a", "b"]) for each in stores))
        assert {tuple(record and record.version for record in records) for records in read} == {(number, number)}

        async def fire(index: int, each: Store, at: int = number) -> bool:
            writes = [
                bringing(
                    ScheduleWrite(name=name, expected=at, record=schedule(name, clock.now(), changed_by=f"{index}")),
                    occurrence(name, clock.now() + at),
                    skips=(skip(name, at, note=f"{index}"),),
                )
                for name in ("ab" if index % 2 else "ba")
            ]
            answers = await each.write_schedules(writes)
            assert answers[0] == answers[1]  # whoever writes both has both
            return answers[0]

        answers = await asyncio.gather(*(fire(index, each) for index, each in enumerate(stores)))
        assert answers.count(True) == 1
        winner = str(answers.index(True))
        assert [record and record.changed_by for record in await store.schedules(["a", "b"])] == [winner, winner]
        assert (await store.skips("a", 1))[0].note == winner
    clock.advance(1)
    assert len(await worker.take()) == 16
    assert len(await store.skips("a", 100)) == 8


async def test_of_many_that_make_the_same_schedules_at_once_exactly_one_succeeds(store: Store, another: Another) -> None:
    stores = [store, *[await another() for _ in range(19)]]
    names = [f"s{number}" for number in range(20)]
    answers = await asyncio.gather(
        *(each.write_schedules([new(name, changed_by=f"{index}") for name in names], together=True) for index, each in enumerate(stores))
    )
    assert sorted(set(map(tuple, answers))) == [(False,) * 20, (True,) * 20]
    [winner] = [index for index, answer in enumerate(answers) if all(answer)]
    assert {record and record.changed_by for record in await store.schedules(names)} == {str(winner)}


async def test_writers_of_overlapping_sets_in_any_order_all_get_through(store: Store, another: Another) -> None:
    stores = [store, *[await another() for _ in range(5)]]
    names = [f"s{number}" for number in range(30)]
    await put(store, *[new(name) for name in names])

    async def write_all(index: int, each: Store) -> int:
        written = 0
        for step in range(5):
            mine = names[step * index % 7 :][:: 1 if (step + index) % 2 else -1]
            records = [record for record in await each.schedules(mine) if record is not None]
            written += sum(await each.write_schedules([again(record) for record in records]))
        return written

    written = await asyncio.gather(*(write_all(index, each) for index, each in enumerate(stores)))
    assert sum(record.version - 1 for record in await store.schedules(names) if record is not None) == sum(written)


# ---- those whose time has come ----


async def test_schedules_are_due_when_their_time_has_come_and_not_before(store: Store, clock: ManualClock) -> None:
    at = clock.now()
    await put(store, new("later", at + 1), new("now", at), new("earlier", at - 5), new("never"), new("much later", at + MINUTE))
    due = await store.due_schedules(10)
    assert ([record.name for record in due.records], due.now, due.next_at) == (["earlier", "now"], at, at + 1)
    assert due.records == await store.schedules(["earlier", "now"])
    clock.advance(1)
    due = await store.due_schedules(10)
    assert ([record.name for record in due.records], due.now, due.next_at) == (["earlier", "now", "later"], clock.now(), at + MINUTE)
    clock.advance(60)
    due = await store.due_schedules(10)
    assert (len(due.records), due.next_at) == (4, None)


async def test_the_longest_waiting_come_first_and_a_page_tells_when_to_go_on(store: Store, clock: ManualClock) -> None:
    at = clock.now()
    await put(store, *[new(f"s{number}", at - number % 5) for number in range(10)], new("later", at + MINUTE))
    seen: list[str] = []
    cursor = None
    while page := (await store.due_schedules(4, after=cursor)).records:
        seen += [record.name for record in page]
        cursor = (page[-1].next_at or 0, page[-1].name)
    assert seen == [record.name for record in (await store.due_schedules(1_000)).records]
    due = await store.due_schedules(4)
    assert ([record.name for record in due.records], due.next_at) == (["s4", "s9", "s3", "s8"], at - 2)
    due = await store.due_schedules(10)
    assert ([record.next_at for record in due.records], due.next_at) == (sorted([at - n % 5 for n in range(10)]), at + MINUTE)
    assert len((await store.due_schedules(9)).records) == 9


async def test_an_empty_store_has_nothing_due_and_nothing_in_sight(store: Store, clock: ManualClock) -> None:
    due = await store.due_schedules(10)
    assert (due.records, due.now, due.next_at) == ([], clock.now(), None)


async def test_a_schedule_that_moved_on_is_due_at_its_new_time_only(store: Store, clock: ManualClock) -> None:
    await put(store, new("a", clock.now()))
    await put(store, again(await stored(store, "a"), next_at=clock.now() + MINUTE))
    assert await due_names(store) == []
    clock.advance(60)
    assert await due_names(store) == ["a"]
    await put(store, again(await stored(store, "a"), next_at=None))
    assert (await store.due_schedules(10)).next_at is None
    await put(store, again(await stored(store, "a"), next_at=clock.now()))
    await put(store, removal(await stored(store, "a")))
    assert await due_names(store) == []


async def test_schedules_of_closed_handlers_and_collections_are_left_out(store: Store, clock: ManualClock) -> None:
    at = clock.now()
    await put(
        store,
        new("plain", at),
        new("eu", at, collection="eu"),
        new("us", at, collection="us"),
        new("other plain", at, handler="other"),
        new("other eu", at, handler="other", collection="eu"),
        new("wor", at, handler="wor", collection="keu"),
    )
    everything = {"plain", "eu", "us", "other plain", "other eu", "wor"}
    assert set(await due_names(store)) == everything
    assert set(await due_names(store, ("work", None))) == everything - {"plain", "eu", "us"}
    assert set(await due_names(store, ("work", "eu"))) == everything - {"eu"}
    assert set(await due_names(store, ("work", "eu"), ("work", "us"), ("other", None))) == {"plain", "wor"}
    assert set(await due_names(store, ("work", "eu"), ("other", "eu"), ("nobody", None), ("work", "nowhere"))) == everything - {
        "eu",
        "other eu",
    }
    assert await due_names(store, ("work", None), ("other", None), ("wor", None)) == []


async def test_closed_pairs_are_left_out_of_when_to_look_again(store: Store, clock: ManualClock) -> None:
    at = clock.now()
    await put(store, *[new(f"shut {number}", at - number) for number in range(5)])
    await put(store, new("shut later", at + 1), new("eu", at + 2, handler="other", collection="eu"), new("open", at + 3, handler="other"))
    closed = [("work", None), ("other", "eu")]
    due = await store.due_schedules(1, closed)
    assert (due.records, due.next_at) == ([], at + 3)
    assert (await store.due_schedules(1, [("work", None)])).next_at == at + 2
    assert (await store.due_schedules(1, [("other", None)])).next_at == at - 3
    assert (await store.due_schedules(10, [("other", None), ("work", None)])).next_at is None


# ---- waking those that wait for the end of a run ----


@pytest.mark.parametrize("rule", [AfterEnd(60), Cron("0 9 * * *") | AfterEnd(60), AfterEnd(60) | Every(90) | At(1)])
@pytest.mark.parametrize("ahead", [None, 1, MINUTE])
async def test_a_schedule_that_waits_for_the_end_of_a_run_is_woken(store: Store, clock: ManualClock, rule: Rule, ahead: int | None) -> None:
    await put(store, new("a", None if ahead is None else clock.now() + ahead, rule=rule))
    before = await stored(store, "a")
    await store.wake_schedules(["nobody", "a"])
    assert await stored(store, "a") == msgspec.structs.replace(before, next_at=clock.now())
    assert await due_names(store) == ["a"]


@pytest.mark.parametrize("rule", [Cron("0 9 * * *"), Every(90) | At(1), Calendar(), Window(600)])
async def test_a_schedule_that_waits_for_no_run_is_left_alone(store: Store, clock: ManualClock, rule: Rule) -> None:
    await put(store, new("a", clock.now() + MINUTE, rule=rule), new("b", None, rule=rule))
    before = await store.schedules(["a", "b"])
    await store.wake_schedules(["a", "b"])
    assert await store.schedules(["a", "b"]) == before


@pytest.mark.parametrize("ago", [0, 1, MINUTE])
async def test_a_schedule_whose_time_has_come_anyway_keeps_its_time(store: Store, clock: ManualClock, ago: int) -> None:
    await put(store, new("a", clock.now() - ago, rule=AfterEnd(60)))
    before = await stored(store, "a")
    await store.wake_schedules(["a"])
    assert await stored(store, "a") == before


async def test_a_schedule_is_woken_by_the_rule_that_it_has_now(store: Store, clock: ManualClock) -> None:
    await put(store, new("a", None, rule=AfterEnd(60)))
    await put(store, ScheduleWrite(name="a", expected=1, record=schedule("a", None, rule=Every(60))))
    await store.wake_schedules(["a"])
    assert await due_names(store) == []
    await put(store, ScheduleWrite(name="a", expected=2, record=schedule("a", None, rule=AfterEnd(60))))
    await store.wake_schedules(["a"])
    assert await due_names(store) == ["a"]


async def test_waking_does_not_stand_in_the_way_of_a_write(store: Store, clock: ManualClock) -> None:
    await put(store, new("a", None, rule=AfterEnd(60)))
    before = await stored(store, "a")
    await store.wake_schedules(["a"])
    await put(store, again(before, next_at=None))
    assert (await stored(store, "a")).version == 2


async def test_what_was_written_is_there_after_closing_and_opening_again(store: Store, another: Another, clock: ManualClock) -> None:
    first = await another()
    record = full_record(clock.now())
    await put(first, ScheduleWrite(name=record.name, expected=0, record=record))
    await first.close()
    assert await (await another()).schedules([record.name]) == [record]
