"""Claiming with a ahead: a worker may have tasks a little before they are due, and nothing that is due before them is overlooked."""

from __future__ import annotations

import pytest

from duetime.clock import MILLISECOND, SECOND, ManualClock
from duetime.model.outcome import Outcome
from duetime.model.task import State
from duetime.store import Store
from duetime.store.values import CancelVerdict
from tests.conformance.build import PLENTY, Worker, add, get
from tests.conformance.conftest import Hire

AHEAD = 20 * MILLISECOND


async def taken(store: Store, worker: Worker, number: int, total: int = PLENTY, *, ahead: int = AHEAD) -> list[str]:
    return [task.id for task in (await store.claim(worker.id, number, {"work": PLENTY, "other": PLENTY}, total, ahead=ahead)).tasks]


async def test_what_is_due_within_the_lead_is_handed_out_and_nothing_later(store: Store, worker: Worker) -> None:
    now = await add(store)
    soon = await add(store, delay=AHEAD)
    later = await add(store, delay=AHEAD + 1)
    assert await taken(store, worker, 100) == [now.id, soon.id]
    assert (await get(store, later)).state is State.PENDING


@pytest.mark.parametrize("handlers", [("work", "work"), ("work", "other")], ids=["one lane", "two lanes"])
async def test_a_task_that_comes_later_but_is_due_before_is_found(
    store: Store, worker: Worker, clock: ManualClock, handlers: tuple[str, str]
) -> None:
    early = await add(store, handlers[0], delay=AHEAD)
    await add(store, handlers[1], delay=AHEAD + 1)
    assert await taken(store, worker, 100, 1) == [early.id]
    due_before = await add(store, handlers[0], delay=AHEAD // 2)
    due_now = await add(store, handlers[0])
    clock.set(clock.now() + AHEAD // 2)
    assert await taken(store, worker, 101, 2, ahead=0) == [due_now.id, due_before.id]


async def test_a_claim_in_full_flow_begins_at_what_is_due_and_not_where_an_early_one_ended(store: Store, worker: Worker) -> None:
    ahead = 2 * SECOND
    early = await add(store, delay=ahead - 100 * MILLISECOND)
    await add(store, delay=ahead - 50 * MILLISECOND)
    assert [task.id for task in (await store.claim(worker.id, 100, {"work": 1}, 1, ahead=ahead)).tasks] == [early.id]
    due_now = await add(store)
    assert [task.id for task in (await store.claim(worker.id, 101, {"work": 1}, 1, ahead=ahead)).tasks] == [due_now.id]


async def test_the_next_look_is_one_lead_before_the_next_task_comes_due(store: Store, worker: Worker, clock: ManualClock) -> None:
    later = await add(store, delay=SECOND)
    claim = await store.claim(worker.id, 100, {"work": 1}, 1, ahead=AHEAD)
    assert (claim.tasks, claim.next_at) == ([], later.due_at - AHEAD)
    clock.set(later.due_at - AHEAD)
    assert await taken(store, worker, 101) == [later.id]


async def test_a_task_that_was_claimed_early_can_be_cancelled_by_its_worker_only(store: Store, worker: Worker) -> None:
    record = await add(store, delay=AHEAD)
    [task] = (await store.claim(worker.id, 100, {"work": 1}, 1, ahead=AHEAD)).tasks
    assert await store.cancel([record.id]) == [CancelVerdict.CANCELLING]
    await worker.end(task, State.CANCELLED, outcome=Outcome.CANCELLED)
    assert (await get(store, record)).state is State.CANCELLED


@pytest.mark.parametrize("how", ["it is released", "its worker stops"])
async def test_a_task_that_was_claimed_early_goes_back_to_its_due_time(
    store: Store, worker: Worker, hire: Hire, clock: ManualClock, how: str
) -> None:
    record, other = await add(store, delay=AHEAD), await hire()
    [task] = (await store.claim(other.id, 100, {"work": 1}, 1, ahead=AHEAD)).tasks
    if how == "it is released":
        await other.end(task, State.PENDING, outcome=Outcome.RELEASED, due_at=clock.now())
    else:
        await store.unregister(other.id)
    assert (await get(store, record)).due_at == record.due_at
    assert await taken(store, worker, 101, ahead=0) == []
    clock.set(record.due_at)
    assert await taken(store, worker, 102, ahead=0) == [record.id]


async def test_a_clock_that_is_set_back_does_not_keep_a_retry_waiting(store: Store, worker: Worker, clock: ManualClock) -> None:
    record = await add(store)
    [task] = await worker.take()
    clock.set(clock.now() - 3_600 * SECOND)
    await worker.end(task, State.PENDING, outcome=Outcome.FAILED, due_at=clock.now() + SECOND)
    assert (await get(store, record)).due_at == clock.now() + SECOND


async def test_the_attempt_of_a_worker_that_died_with_it_did_not_begin_before_it_was_due(
    store: Store, worker: Worker, clock: ManualClock
) -> None:
    record = await add(store, delay=AHEAD)
    await store.claim(worker.id, 100, {"work": 1}, 1, ahead=AHEAD)
    [attempt] = await store.attempts(record.id)
    assert attempt.started_at is not None
    assert attempt.started_at >= record.due_at
