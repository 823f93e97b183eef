"""Cancelling in every state."""

from __future__ import annotations

import pytest

from duetime.clock import SECOND, ManualClock
from duetime.ids import new_id
from duetime.model.outcome import SettleVerdict
from duetime.model.task import FINAL, State
from duetime.store import Store
from duetime.store.values import AddVerdict, CancelVerdict
from tests.conformance.build import Worker, add, get, new_task, put, task_in


@pytest.mark.parametrize("state", [State.BLOCKED, State.PENDING])
async def test_a_waiting_task_ends_cancelled_and_never_starts(store: Store, worker: Worker, clock: ManualClock, state: State) -> None:
    record = await task_in(store, worker, state, key="k")
    clock.advance(1)
    assert await store.cancel([record.id]) == [CancelVerdict.CANCELLED]
    after = await get(store, record)
    assert (after.state, after.finished_at, after.attempt) == (State.CANCELLED, clock.now(), 0)
    clock.advance(3600)
    await worker.run(State.SUCCEEDED, "parent") if state is State.BLOCKED else None
    assert await worker.take() == []
    assert (await put(store, key="k")).verdict is AddVerdict.ADDED


async def test_a_task_of_the_far_future_can_be_cancelled(store: Store, worker: Worker, clock: ManualClock) -> None:
    record = await add(store, delay=30 * 86_400 * SECOND)
    assert await store.cancel([record.id]) == [CancelVerdict.CANCELLED]
    clock.advance(31 * 86_400)
    claim = await worker.claim()
    assert (claim.tasks, claim.next_at) == ([], None)


async def test_a_task_that_waits_for_a_retry_can_be_cancelled(store: Store, worker: Worker, clock: ManualClock) -> None:
    record = await add(store)
    await worker.run(State.PENDING, due_at=clock.now() + SECOND)
    assert await store.cancel([record.id]) == [CancelVerdict.CANCELLED]
    clock.advance(2)
    assert await worker.take() == []
    after = await get(store, record)
    assert (after.state, after.attempt, after.tries) == (State.CANCELLED, 1, 1)
    assert len(await store.attempts(record.id)) == 1


async def test_a_running_task_is_marked_and_goes_on(store: Store, worker: Worker) -> None:
    record = await task_in(store, worker, State.RUNNING, key="k")
    assert await store.cancel([record.id]) == [CancelVerdict.CANCELLING]
    after = await get(store, record)
    assert (after.state, after.cancelling, after.worker, after.finished_at) == (State.RUNNING, True, worker.id, None)
    assert await store.cancel([record.id]) == [CancelVerdict.CANCELLING]
    [held] = await store.attempts_of(worker.id)
    assert held.cancelling is True
    assert (await put(store, key="k")).verdict is AddVerdict.DUPLICATE


async def test_only_the_cancelled_one_of_a_batch_is_marked(store: Store, worker: Worker) -> None:
    await store.add([new_task() for _ in range(5)])
    claimed = await worker.take()
    await store.cancel([claimed[2].id])
    marks = {held.id: held.cancelling for held in await store.attempts_of(worker.id)}
    assert marks == {task.id: task is claimed[2] for task in claimed}
    for task in claimed:
        assert await worker.end(task, State.PENDING) is SettleVerdict.ACCEPTED
    states = [(await get(store, task)).state for task in claimed]
    assert states == [State.PENDING, State.PENDING, State.CANCELLED, State.PENDING, State.PENDING]


@pytest.mark.parametrize("state", sorted(FINAL))
async def test_a_finished_task_is_too_late_to_cancel(store: Store, worker: Worker, clock: ManualClock, state: State) -> None:
    record = await task_in(store, worker, state)
    clock.advance(1)
    assert await store.cancel([record.id]) == [CancelVerdict.FINISHED]
    assert await get(store, record) == record


async def test_an_unknown_task_is_unknown(store: Store) -> None:
    assert await store.cancel([new_id()]) == [CancelVerdict.UNKNOWN]


async def test_answers_come_in_the_order_of_the_ids(store: Store, worker: Worker) -> None:
    finished = await task_in(store, worker, State.SUCCEEDED)
    running = await task_in(store, worker, State.RUNNING)
    pending = await task_in(store, worker, State.PENDING)
    ids = [pending.id, new_id(), running.id, finished.id]
    assert await store.cancel(ids) == [CancelVerdict.CANCELLED, CancelVerdict.UNKNOWN, CancelVerdict.CANCELLING, CancelVerdict.FINISHED]
