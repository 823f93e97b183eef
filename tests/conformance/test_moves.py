"""The table of legal moves, tried on a store: every verb that leads to a state, from every state."""

from __future__ import annotations

import pytest

from duetime.clock import SECOND, ManualClock
from duetime.model.gate import Gate, GateAction
from duetime.model.lifecycle import MOVES
from duetime.model.outcome import Outcome, Settlement
from duetime.model.steps import NewStep, StepKind, Suspension
from duetime.model.task import State, TaskRecord
from duetime.store import Store
from tests.conformance.build import PLENTY, USUAL_OUTCOME, Worker, get, task_in


async def push(store: Store, worker: Worker, clock: ManualClock, record: TaskRecord, target: State) -> None:
    """Try every verb that could move a task to `target`. Whether any does is for the store to decide."""
    match target:
        case State.BLOCKED:
            await suspend(store, worker, record)
        case State.RUNNING:
            await worker.take()
        case State.DROPPED:
            await store.put_gate(Gate(handler="work", action=GateAction.DROP))
            await store.drop(PLENTY)
        case State.EXPIRED:
            clock.advance(7200)
            await store.expire(PLENTY)
        case State.PENDING:
            await settle(store, worker, record, target)
            await worker.take("parent")
            await finish_parents(store, worker)
            await store.retry([record.id])
        case State.CANCELLED:
            await settle(store, worker, record, target)
            await store.cancel([record.id])
        case State.SUCCEEDED | State.FAILED:
            await settle(store, worker, record, target)


async def settle(store: Store, worker: Worker, record: TaskRecord, target: State) -> None:
    now = store.now()
    due_at = now if target is State.PENDING else None
    for attempt in (record.attempt, record.attempt + 1):
        settlement = Settlement(record.id, attempt, USUAL_OUTCOME[target], target, record.tries, 0, now, now, due_at)
        await store.settle(worker.id, [settlement])


async def suspend(store: Store, worker: Worker, record: TaskRecord) -> None:
    """Let the attempt wait for a signal, if there is one."""
    for held in await store.attempts_of(worker.id):
        if held.id == record.id:
            now = store.now()
            wait = NewStep(task=held.id, attempt=held.attempt, name="wait", kind=StepKind.SIGNAL, done=False, signal="go")
            await store.save_steps(worker.id, [wait])
            settlement = Settlement(
                held.id, held.attempt, Outcome.SUSPENDED, State.BLOCKED, record.tries, 0, now, now, suspension=Suspension("wait")
            )
            await store.settle(worker.id, [settlement])


async def finish_parents(store: Store, worker: Worker) -> None:
    now = store.now()
    for held in await store.attempts_of(worker.id):
        [record] = await store.get([held.id])
        if record is not None and record.handler == "parent":
            settlement = Settlement(held.id, held.attempt, USUAL_OUTCOME[State.SUCCEEDED], State.SUCCEEDED, 0, 0, now, now)
            await store.settle(worker.id, [settlement])


@pytest.mark.parametrize("target", State)
@pytest.mark.parametrize("source", State)
async def test_a_task_moves_only_as_the_table_says(store: Store, worker: Worker, clock: ManualClock, source: State, target: State) -> None:
    record = await task_in(store, worker, source, expires_at=clock.now() + 3600 * SECOND)
    await push(store, worker, clock, record, target)
    after = await get(store, record)
    if target in MOVES[source]:
        assert after.state is target
    else:
        assert after.state is source
