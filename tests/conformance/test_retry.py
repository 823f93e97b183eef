"""An operator's retry in every state."""

from __future__ import annotations

import pytest

from duetime.clock import DAY, SECOND, ManualClock
from duetime.ids import new_id
from duetime.model.lifecycle import MOVES
from duetime.model.outcome import SettleVerdict
from duetime.model.task import State
from duetime.store import Store
from duetime.store.values import ChangeVerdict
from tests.conformance.build import Worker, add, error, get, task_in
from tests.conformance.conftest import Hire

RETRIABLE = sorted(state for state in State if State.PENDING in MOVES[state] and state not in (State.BLOCKED, State.RUNNING))


@pytest.mark.parametrize("state", RETRIABLE)
async def test_a_finished_task_goes_back_to_pending_due_now(store: Store, worker: Worker, clock: ManualClock, state: State) -> None:
    record = await task_in(store, worker, state)
    clock.advance(60)
    assert await store.retry([record.id]) == [ChangeVerdict.CHANGED]
    after = await get(store, record)
    assert (after.id, after.state, after.due_at, after.attempt) == (record.id, State.PENDING, clock.now(), record.attempt)
    assert (after.tries, after.crashes, after.finished_at, after.cancelling) == (0, 0, None, False)
    assert (after.submitted_at, after.payload) == (record.submitted_at, record.payload)
    task = await worker.take_one()
    assert (task.id, task.attempt, task.tries) == (record.id, record.attempt + 1, 0)


@pytest.mark.parametrize("state", sorted(set(State) - set(RETRIABLE)))
async def test_other_states_refuse_a_retry(store: Store, worker: Worker, state: State) -> None:
    record = await task_in(store, worker, state)
    assert await store.retry([record.id]) == [ChangeVerdict.REFUSED]
    assert await get(store, record) == record


async def test_an_expired_task_that_is_retried_does_not_expire_again_at_once(store: Store, worker: Worker, clock: ManualClock) -> None:
    record = await add(store, expires_in=SECOND)
    clock.advance(60)
    assert await store.expire(10) == 1
    await store.retry([record.id])
    assert await store.expire(10) == 0
    assert [task.id for task in await worker.take()] == [record.id]


async def test_tries_and_crashes_start_again_and_attempt_numbers_go_on(store: Store, worker: Worker) -> None:
    record = await add(store)
    await worker.run(State.PENDING)
    await worker.run(State.FAILED, tries=2, crashes=2, error=error())
    await store.retry([record.id])
    task = await worker.take_one()
    assert (task.attempt, task.tries, task.crashes) == (3, 0, 0)
    assert await worker.end(task, State.SUCCEEDED) is SettleVerdict.ACCEPTED
    after = await get(store, record)
    assert (after.state, after.error, after.attempt) == (State.SUCCEEDED, None, 3)
    assert [attempt.attempt for attempt in await store.attempts(record.id)] == [1, 2, 3]


async def test_a_retried_task_is_as_old_as_its_retry(store: Store, worker: Worker, clock: ManualClock) -> None:
    """Bounds that count from the due time would otherwise end it at its first RetryLater."""
    record = await add(store)
    await worker.run(State.FAILED)
    clock.advance(30 * DAY / SECOND)
    await store.retry([record.id])
    assert (await worker.take_one()).since_at == clock.now()


async def test_a_retried_task_takes_its_key_again(store: Store, worker: Worker) -> None:
    record = await task_in(store, worker, State.FAILED, key="k")
    await store.retry([record.id])
    found = await store.find("work", "k")
    assert found is not None
    assert (found.id, found.state) == (record.id, State.PENDING)


@pytest.mark.parametrize("state", [State.PENDING, State.RUNNING, State.BLOCKED])
async def test_a_retry_is_a_duplicate_if_a_live_task_holds_the_key_by_now(store: Store, worker: Worker, state: State) -> None:
    record = await task_in(store, worker, State.FAILED, key="k")
    holder = await task_in(store, worker, state, key="k")
    assert await store.retry([record.id]) == [ChangeVerdict.DUPLICATE]
    assert await get(store, record) == record
    assert await get(store, holder) == holder


async def test_of_two_finished_tasks_with_one_key_only_one_can_come_back(store: Store, worker: Worker) -> None:
    first = await task_in(store, worker, State.FAILED, key="k")
    second = await task_in(store, worker, State.CANCELLED, key="k")
    assert await store.retry([first.id, second.id]) == [ChangeVerdict.CHANGED, ChangeVerdict.DUPLICATE]


async def test_a_task_can_be_retried_again_and_again(store: Store, worker: Worker) -> None:
    record = await add(store)
    for attempt in range(1, 6):
        assert (await worker.run(State.FAILED)).attempt == attempt
        assert await store.retry([record.id]) == [ChangeVerdict.CHANGED]
        assert await store.retry([record.id]) == [ChangeVerdict.REFUSED]


async def test_a_settlement_from_before_the_retry_stays_settled(store: Store, worker: Worker, hire: Hire) -> None:
    record = await add(store)
    task = await worker.run(State.FAILED)
    await store.retry([record.id])
    assert await worker.end(task, State.SUCCEEDED) is SettleVerdict.ALREADY
    await (await hire()).take_one()
    assert await worker.end(task, State.SUCCEEDED) is SettleVerdict.ALREADY
    assert (await get(store, record)).state is State.RUNNING


async def test_unknown_tasks_are_answered_one_by_one(store: Store, worker: Worker) -> None:
    failed = await task_in(store, worker, State.FAILED)
    done = await task_in(store, worker, State.SUCCEEDED)
    verdicts = await store.retry([new_id(), failed.id, done.id])
    assert verdicts == [ChangeVerdict.UNKNOWN, ChangeVerdict.CHANGED, ChangeVerdict.REFUSED]
