"""Editing waiting tasks in every state."""

from __future__ import annotations

import asyncio
from collections import Counter

import msgspec
import pytest

from duetime.clock import SECOND, ManualClock
from duetime.ids import new_id
from duetime.model.gate import Gate, GateAction
from duetime.model.task import State
from duetime.store import Store
from duetime.store.values import ChangeVerdict, Edit
from tests.conformance.build import Worker, add, get, put, task_in


@pytest.mark.parametrize("state", [State.BLOCKED, State.PENDING])
async def test_a_waiting_task_can_be_edited(store: Store, worker: Worker, clock: ManualClock, state: State) -> None:
    record = await task_in(store, worker, state, payload=b'{"n": 1}', key="k", collection="us", meta={"trace": "x"})
    due_at = clock.now() + 60 * SECOND
    assert await store.edit([Edit(id=record.id, due_at=due_at, priority=9, collection="eu")]) == [ChangeVerdict.CHANGED]
    after = await get(store, record)
    assert (after.state, after.due_at, after.priority, after.collection) == (state, due_at, 9, "eu")
    for name in ["payload", "key", "meta", "submitted_at", "handler", "attempt", "tries"]:
        assert getattr(after, name) == getattr(record, name)


@pytest.mark.parametrize("state", sorted(set(State) - {State.BLOCKED, State.PENDING}))
async def test_running_and_finished_tasks_refuse_an_edit(store: Store, worker: Worker, state: State) -> None:
    record = await task_in(store, worker, state)
    assert await store.edit([Edit(id=record.id, due_at=5, priority=9, collection="eu")]) == [ChangeVerdict.REFUSED]
    assert await get(store, record) == record


async def test_none_leaves_a_part_as_it_is(store: Store, clock: ManualClock) -> None:
    record = await add(store, delay=SECOND, priority=3, collection="us")
    await store.edit([Edit(id=record.id, priority=7)])
    after = await get(store, record)
    assert (after.due_at, after.priority, after.collection) == (record.due_at, 7, "us")
    await store.edit([Edit(id=record.id, collection="eu")])
    after = await get(store, record)
    assert (after.due_at, after.priority, after.collection) == (record.due_at, 7, "eu")
    await store.edit([Edit(id=record.id, due_at=clock.now() + 5)])
    after = await get(store, record)
    assert (after.due_at, after.priority, after.collection) == (clock.now() + 5, 7, "eu")
    assert await store.edit([Edit(id=record.id)]) == [ChangeVerdict.CHANGED]
    assert await get(store, record) == after


async def test_a_task_runs_at_its_new_time_and_not_at_the_old_one(store: Store, worker: Worker, clock: ManualClock) -> None:
    later = await add(store, delay=10 * SECOND)
    sooner = await add(store, delay=3600 * SECOND)
    await store.edit([Edit(id=later.id, due_at=clock.now() + 20 * SECOND), Edit(id=sooner.id, due_at=clock.now())])
    claim = await worker.claim()
    assert ([task.id for task in claim.tasks], claim.next_at) == ([sooner.id], clock.now() + 20 * SECOND)
    clock.advance(10)
    assert await worker.take() == []
    clock.advance(10)
    [task] = await worker.take()
    assert (task.id, task.since_at, task.due_at) == (later.id, clock.now(), clock.now())


async def test_a_new_priority_moves_a_task_forward(store: Store, worker: Worker, clock: ManualClock) -> None:
    records = []
    for _ in range(5):
        records.append(await add(store, priority=5))
        clock.advance(0.01)
    await store.edit([Edit(id=records[3].id, priority=9)])
    await worker.take_one()
    second = await worker.take_one()
    states = [(await get(store, record)).state for record in records]
    assert states[3] is State.RUNNING, "at most one of the first two starts may go to the longest waiting"
    assert second.priority in (5, 9)


async def test_a_new_collection_moves_a_task_out_of_a_gate(store: Store, worker: Worker) -> None:
    record = await add(store, collection="eu")
    await store.put_gate(Gate(handler="work", collection="eu", action=GateAction.PAUSE))
    assert await worker.take() == []
    await store.edit([Edit(id=record.id, collection="us")])
    [task] = await worker.take()
    assert (task.id, task.collection) == (record.id, "us")


async def test_a_task_that_waits_for_a_retry_can_be_edited(store: Store, worker: Worker, clock: ManualClock) -> None:
    record = await add(store)
    await worker.run(State.PENDING, due_at=clock.now() + 3600 * SECOND)
    assert await store.edit([Edit(id=record.id, due_at=clock.now())]) == [ChangeVerdict.CHANGED]
    task = await worker.take_one()
    assert (task.attempt, task.tries) == (2, 1)


async def test_a_new_priority_does_not_make_a_retrying_task_younger(store: Store, worker: Worker, clock: ManualClock) -> None:
    """Bounds that count from the due time, such as `within`, would otherwise begin again."""
    record = await add(store)
    await worker.run(State.PENDING, due_at=clock.now() + 60 * SECOND)
    await store.edit([Edit(id=record.id, priority=9)])
    assert (await get(store, record)).due_at == clock.now() + 60 * SECOND
    clock.advance(60)
    assert (await worker.take_one()).since_at == record.due_at


async def test_an_edited_blocked_task_is_freed_as_before(store: Store, worker: Worker, clock: ManualClock) -> None:
    record = await task_in(store, worker, State.BLOCKED)
    await store.edit([Edit(id=record.id, due_at=clock.now() + SECOND, priority=8)])
    await worker.run(State.SUCCEEDED, "parent")
    assert await worker.take() == []
    clock.advance(1)
    [task] = await worker.take()
    assert (task.id, task.priority) == (record.id, 8)


async def test_unknown_tasks_are_answered_one_by_one(store: Store, worker: Worker) -> None:
    running = await task_in(store, worker, State.RUNNING)
    pending = await task_in(store, worker, State.PENDING)
    edits = [Edit(id=id, priority=1) for id in (running.id, new_id(), pending.id)]
    assert await store.edit(edits) == [ChangeVerdict.REFUSED, ChangeVerdict.UNKNOWN, ChangeVerdict.CHANGED]


@pytest.mark.parametrize("state", [State.BLOCKED, State.PENDING])
async def test_a_task_that_is_as_it_was_seen_is_edited(store: Store, worker: Worker, clock: ManualClock, state: State) -> None:
    seen = await task_in(store, worker, state, payload=b'{"n": 1}', key="k", meta={"trace": "x"}, timeout=5.0)
    assert await store.edit([Edit(id=seen.id, priority=9, seen=seen)]) == [ChangeVerdict.CHANGED]
    after = await get(store, seen)
    assert after.priority == 9
    assert await store.edit([Edit(id=seen.id, priority=1, seen=seen)]) == [ChangeVerdict.OUTDATED]
    assert await get(store, seen) == after
    assert await store.edit([Edit(id=seen.id, priority=1, seen=after)]) == [ChangeVerdict.CHANGED]


async def test_a_task_that_was_replaced_or_has_run_is_not_as_it_was_seen(store: Store, worker: Worker, clock: ManualClock) -> None:
    replaced = await add(store, key="k", delay=SECOND)
    await put(store, key="k", delay=SECOND, payload=b'{"n": 2}', if_exists="replace")
    tried = await add(store)
    await worker.run(State.PENDING, due_at=tried.due_at)
    for seen in (replaced, tried):
        after = await get(store, seen)
        assert await store.edit([Edit(id=seen.id, priority=1, seen=seen)]) == [ChangeVerdict.OUTDATED]
        assert await get(store, seen) == after


@pytest.mark.parametrize("state", sorted(set(State) - {State.BLOCKED, State.PENDING}))
async def test_being_outdated_is_told_before_being_refused(store: Store, worker: Worker, state: State) -> None:
    record = await task_in(store, worker, state)
    seen = msgspec.structs.replace(record, state=State.PENDING)
    assert await store.edit([Edit(id=record.id, priority=9, seen=seen)]) == [ChangeVerdict.OUTDATED]
    assert await store.edit([Edit(id=record.id, priority=9, seen=record)]) == [ChangeVerdict.REFUSED]
    assert await get(store, record) == record


async def test_edits_of_one_batch_see_each_other(store: Store) -> None:
    seen, other = await add(store, delay=SECOND), await add(store, delay=SECOND)
    unknown = msgspec.structs.replace(seen, id=new_id())
    edits = [Edit(id=each.id, priority=number, seen=each) for number, each in enumerate((seen, unknown, seen, other))]
    assert await store.edit(edits) == [ChangeVerdict.CHANGED, ChangeVerdict.UNKNOWN, ChangeVerdict.OUTDATED, ChangeVerdict.CHANGED]
    assert ((await get(store, seen)).priority, (await get(store, other)).priority) == (0, 3)


async def test_of_many_edits_with_the_same_sight_exactly_one_succeeds(store: Store) -> None:
    seen = await add(store, delay=3600 * SECOND)
    edits = [Edit(id=seen.id, due_at=seen.due_at + number, seen=seen) for number in range(1, 11)]
    verdicts = await asyncio.gather(*(store.edit([edit]) for edit in edits))
    assert Counter(verdict for [verdict] in verdicts) == {ChangeVerdict.CHANGED: 1, ChangeVerdict.OUTDATED: 9}
    assert (await get(store, seen)).due_at == seen.due_at + verdicts.index([ChangeVerdict.CHANGED]) + 1
