"""History of attempts, counts, progress and declarations."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest

from duetime.clock import SECOND, ManualClock
from duetime.ids import new_id
from duetime.model.gate import Gate, GateAction
from duetime.model.outcome import AttemptRecord, Outcome
from duetime.model.task import ErrorInfo, State
from duetime.store import Store
from duetime.store.values import Declaration, FinalCount, LaneCount, NewWorker, Progress
from tests.conformance.build import Worker, add, ended, error, get, needs, new_task, task_in
from tests.conformance.conftest import Hire


async def test_a_task_that_never_ran_has_no_attempts(store: Store) -> None:
    record = await add(store)
    assert await store.attempts(record.id) == []
    assert await store.attempts(new_id()) == []


async def test_every_attempt_is_kept_with_start_end_outcome_error_and_worker(store: Store, hire: Hire, clock: ManualClock) -> None:
    record = await add(store)
    ways = [
        (Outcome.FAILED, State.PENDING, error("ValueError", "first")),
        (Outcome.RETRY_LATER, State.PENDING, None),
        (Outcome.TIMED_OUT, State.PENDING, error("TimeoutError", "third")),
        (Outcome.RELEASED, State.PENDING, None),
        (Outcome.LOST, State.PENDING, None),
        (Outcome.FATAL, State.FAILED, error("Fatal", "sixth")),
    ]
    expected = []
    for number, (outcome, state, why) in enumerate(ways, 1):
        worker = await hire()
        clock.advance(1)
        task = await worker.take_one()
        started_at = clock.now() + 5
        clock.advance(1)
        await worker.end(task, state, outcome=outcome, error=why, started_at=started_at)
        expected.append(AttemptRecord(number, outcome, worker.id, started_at, clock.now(), why))
        assert await store.attempts(record.id) == expected
    await store.retry([record.id])
    assert await store.attempts(record.id) == expected
    worker = await hire()
    task = await worker.take_one()
    *ended, running = await store.attempts(record.id)
    assert ended == expected
    assert (running.attempt, running.outcome, running.worker, running.finished_at) == (7, None, worker.id, None)
    clock.advance(1)
    await worker.end(task, State.SUCCEEDED)
    assert [attempt.outcome for attempt in await store.attempts(record.id)] == [*(way[0] for way in ways), Outcome.SUCCEEDED]


@pytest.mark.parametrize("state", [State.SUCCEEDED, State.FAILED, State.CANCELLED])
async def test_the_detail_of_every_attempt_is_kept_as_it_was_given(store: Store, worker: Worker, state: State) -> None:
    """Also of an attempt that is no longer the last, because an operator retried the task."""
    record = await add(store)
    details = [b'{"status":503,"text":"a \\"word\\", {braces}, \\\\, NULL and \xc3\xbc"}', b'{"status":200}', None]
    await worker.run(State.PENDING, detail=details[0], error=error())
    await worker.run(state, detail=details[1])
    assert [attempt.detail for attempt in await store.attempts(record.id)] == details[:2]
    if state is not State.SUCCEEDED:
        await store.retry([record.id])
        assert [attempt.detail for attempt in await store.attempts(record.id)] == details[:2]
        await worker.run(State.SUCCEEDED)
        assert [attempt.detail for attempt in await store.attempts(record.id)] == details


async def test_only_those_of_many_attempts_that_have_a_detail_are_shown_with_one(store: Store, worker: Worker) -> None:
    records = [await add(store) for _ in range(4)]
    tasks = await worker.take()
    at = store.now()
    details = {task.id: b'{"number":%d}' % number if number % 2 else None for number, task in enumerate(tasks)}
    await store.settle(worker.id, [ended(task, State.SUCCEEDED, at=at, detail=details[task.id]) for task in tasks])
    for record in records:
        [attempt] = await store.attempts(record.id)
        assert (attempt.outcome, attempt.detail) == (Outcome.SUCCEEDED, details[record.id])


async def test_a_cancel_that_was_requested_keeps_the_detail_of_an_attempt_that_would_be_tried_again(store: Store, worker: Worker) -> None:
    record = await add(store)
    task = await worker.take_one()
    await store.cancel([record.id])
    await worker.end(task, State.PENDING, detail=b'{"status":503}')
    [attempt] = await store.attempts(record.id)
    assert attempt.detail == b'{"status":503}'


async def test_the_only_attempt_of_a_success_is_kept(store: Store, worker: Worker, clock: ManualClock) -> None:
    record = await add(store)
    clock.advance(1)
    task = await worker.take_one()
    started_at = clock.now()
    clock.advance(1)
    await worker.end(task, State.SUCCEEDED, started_at=started_at)
    assert await store.attempts(record.id) == [AttemptRecord(1, Outcome.SUCCEEDED, worker.id, started_at, clock.now())]


async def test_an_attempt_that_was_claimed_and_never_started_has_no_start(store: Store, worker: Worker) -> None:
    record = await add(store)
    task = await worker.take_one()
    await worker.end(task, State.PENDING, outcome=Outcome.RELEASED, started_at=None, tries=0)
    [attempt] = await store.attempts(record.id)
    assert (attempt.outcome, attempt.started_at) == (Outcome.RELEASED, None)


async def test_attempts_of_tasks_are_not_mixed_up(store: Store, worker: Worker) -> None:
    await store.add([new_task() for _ in range(5)])
    for index, task in enumerate(await worker.take()):
        await worker.end(task, State.FAILED, error=error("E", str(index)))
        [attempt] = await store.attempts(task.id)
        assert attempt.error == error("E", str(index))


def lanes_with_tasks(lanes: list[LaneCount]) -> dict[tuple[str, str | None, int], tuple[int, int, int, int]]:
    return {
        (lane.handler, lane.collection, lane.priority): (lane.due, lane.later, lane.blocked, lane.running)
        for lane in lanes
        if lane.due + lane.later + lane.blocked + lane.running
    }


async def test_an_empty_store_counts_nothing(store: Store, clock: ManualClock) -> None:
    counts = await store.counts()
    assert (counts.now, lanes_with_tasks(counts.lanes), [final for final in counts.finals if final.count]) == (clock.now(), {}, [])


async def test_tasks_are_counted_by_lane_and_by_what_they_wait_for(store: Store, worker: Worker, clock: ManualClock) -> None:
    parent = await add(store, "a", delay=60 * SECOND)
    await store.add([new_task("a", priority=9) for _ in range(3)])
    await store.add([new_task("a", collection="eu") for _ in range(2)])
    await store.add([new_task("a", collection="eu", delay=SECOND)])
    await store.add([new_task("b", edges=(needs(parent),)) for _ in range(4)])
    await store.add([new_task("b"), new_task("b")])
    await worker.take(wants={"b": 1})
    counts = await store.counts()
    assert lanes_with_tasks(counts.lanes) == {
        ("a", None, 5): (0, 1, 0, 0),
        ("a", None, 9): (3, 0, 0, 0),
        ("a", "eu", 5): (2, 1, 0, 0),
        ("b", None, 5): (1, 0, 4, 1),
    }
    clock.advance(1)
    counts = await store.counts()
    assert lanes_with_tasks(counts.lanes)["a", "eu", 5] == (3, 0, 0, 0)


async def test_the_oldest_due_time_is_of_those_that_are_due(store: Store, clock: ManualClock) -> None:
    await add(store, "later", delay=SECOND)
    await add(store, "due", delay=2 * SECOND)
    start = clock.now()
    clock.advance(2)
    await add(store, "due")
    await add(store, "due", delay=60 * SECOND)
    oldest = {lane.handler: lane.oldest_due_at for lane in (await store.counts()).lanes}
    assert oldest == {"later": start + SECOND, "due": start + 2 * SECOND}
    await add(store, "future", delay=60 * SECOND)
    [future] = [lane for lane in (await store.counts()).lanes if lane.handler == "future"]
    assert future.oldest_due_at is None


async def test_gated_tasks_are_counted_as_due(store: Store) -> None:
    await store.add([new_task(), new_task(delay=SECOND)])
    await store.put_gate(Gate(handler="work", action=GateAction.PAUSE))
    assert lanes_with_tasks((await store.counts()).lanes) == {("work", None, 5): (1, 1, 0, 0)}


async def test_finished_tasks_are_counted_by_handler_and_state(store: Store, worker: Worker, clock: ManualClock) -> None:
    for state in (State.SUCCEEDED, State.SUCCEEDED, State.FAILED, State.CANCELLED, State.DROPPED, State.EXPIRED):
        await task_in(store, worker, state, handler="a")
    failed = await task_in(store, worker, State.FAILED, handler="b")
    expected = {
        FinalCount("a", State.SUCCEEDED, 2),
        FinalCount("a", State.FAILED, 1),
        FinalCount("a", State.CANCELLED, 1),
        FinalCount("a", State.DROPPED, 1),
        FinalCount("a", State.EXPIRED, 1),
        FinalCount("b", State.FAILED, 1),
    }
    counts = await store.counts()
    assert {final for final in counts.finals if final.count} == expected
    assert lanes_with_tasks(counts.lanes) == {}
    await store.prune(State.SUCCEEDED, clock.now() + 1, 1)
    await store.retry([failed.id])
    expected -= {FinalCount("a", State.SUCCEEDED, 2), FinalCount("b", State.FAILED, 1)}
    expected |= {FinalCount("a", State.SUCCEEDED, 1)}
    counts = await store.counts()
    assert {final for final in counts.finals if final.count} == expected
    assert lanes_with_tasks(counts.lanes) == {("b", None, 5): (1, 0, 0, 0)}


async def test_progress_of_a_running_attempt_is_noted(store: Store, worker: Worker) -> None:
    record = await task_in(store, worker, State.RUNNING)
    assert (record.progress, record.progress_text) == (None, "")
    await store.progress(worker.id, [Progress(record.id, 1, 0.25, "stock restored")])
    after = await get(store, record)
    assert (after.progress, after.progress_text) == (0.25, "stock restored")
    await store.progress(worker.id, [Progress(record.id, 1, 0.5, "half"), Progress(record.id, 1, 0.75, "")])
    after = await get(store, record)
    assert (after.progress, after.progress_text, after.state) == (0.75, "", State.RUNNING)


async def test_progress_of_attempts_that_the_worker_does_not_hold_is_ignored(store: Store, worker: Worker, hire: Hire) -> None:
    record = await task_in(store, worker, State.RUNNING)
    other = await hire()
    await store.progress(other.id, [Progress(record.id, 1, 0.9, "not mine")])
    await store.progress("nobody", [Progress(record.id, 1, 0.9, "not mine")])
    await store.progress(worker.id, [Progress(record.id, 2, 0.9, "too new"), Progress(record.id, 0, 0.9, "too old")])
    await store.progress(worker.id, [Progress(new_id(), 1, 0.9, "unknown")])
    assert await get(store, record) == record
    finished = await task_in(store, worker, State.SUCCEEDED, handler="done")
    await store.progress(worker.id, [Progress(finished.id, 1, 0.1, "too late"), Progress(record.id, 1, 0.5, "mine")])
    assert await get(store, finished) == finished
    assert (await get(store, record)).progress_text == "mine"


async def test_declarations_are_listed_by_name(store: Store) -> None:
    assert await store.declarations() == []
    await store.declare([Declaration(name=name) for name in ("b", "c", "a")])
    assert [declaration.name for declaration in await store.declarations()] == ["a", "b", "c"]


async def test_a_declaration_replaces_an_earlier_one_of_the_same_name(store: Store) -> None:
    await store.declare([Declaration(name="a", doc="old"), Declaration(name="b", doc="same")])
    new = Declaration(
        name="a",
        schema=b'{"type": "object"}',
        doc="new",
        timeout=7.5,
        priority=9,
        concurrency=3,
        isolation="process",
        retry=b'{"tries": 2}',
    )
    await store.declare([new])
    first, second = await store.declarations()
    for name in ["name", "schema", "doc", "timeout", "priority", "concurrency", "isolation", "retry"]:
        assert getattr(first, name) == getattr(new, name), name
    assert (second.name, second.doc) == ("b", "same")


# ---- declarations of several versions of a program ----


def _declared(declarations: Sequence[Declaration]) -> list[str]:
    return [declaration.doc for declaration in declarations]


async def test_the_declaration_that_was_first_made_last_is_the_present_one_whoever_declares_again(store: Store) -> None:
    for doc in ("old", "new", "old"):
        await store.declare([Declaration(name="a", doc=doc)])
    assert _declared(await store.declarations()) == ["new"]


async def test_a_declaration_that_was_forgotten_is_new_again_so_a_program_can_be_taken_back(store: Store) -> None:
    for doc in ("old", "new", "newer", "old"):
        await store.declare([Declaration(name="a", doc=doc)])
    assert _declared(await store.declarations()) == ["old"]


async def test_earlier_declarations_are_listed_as_long_as_a_worker_holds_them(store: Store) -> None:
    versions = [Declaration(name="a", doc=doc) for doc in ("1", "2", "3", "4")]
    await store.declare(versions[:1])
    lease = await store.register(NewWorker(id="w", host="here", pid=os.getpid(), slots={"a": 1}, declared={"a": versions[0].digest}))
    for version in versions[1:]:
        await store.declare([version])
    assert _declared(await store.declarations(former=True)) == ["1", "4"]
    assert _declared(await store.declarations()) == ["4"]
    lease.close()
    await store.unregister("w")
    assert _declared(await store.declarations(former=True)) == ["4"]


async def test_attempts_with_large_errors_come_in_parts(store: Store, worker: Worker) -> None:
    record = await add(store)
    info = ErrorInfo("Large", "x" * 100_000, "y" * 900_000)
    for _ in range(12):
        await worker.run(State.PENDING, error=info)
    found: list[AttemptRecord] = []
    sizes = []
    while some := await store.attempts(record.id, after=found[-1].attempt if found else 0):
        found += some
        sizes.append(len(some))
    assert [attempt.attempt for attempt in found] == list(range(1, 13))
    assert sizes == [8, 4]
    assert [attempt.attempt for attempt in await store.attempts(record.id, after=10)] == [11, 12]
