"""Settling: who may say how an attempt ended, and what follows."""

from __future__ import annotations

from typing import Any

import pytest

from duetime.clock import SECOND, ManualClock
from duetime.ids import new_id
from duetime.model.lifecycle import MOVES
from duetime.model.outcome import Outcome, Settlement, SettleVerdict
from duetime.model.task import FINAL, State
from duetime.store import Store
from duetime.store.values import AddVerdict, CancelVerdict
from tests.conformance.build import USUAL_OUTCOME, Worker, add, ended, error, get, new_task, put, state_of, task_in
from tests.conformance.conftest import Hire

AFTER_RUNNING = sorted(MOVES[State.RUNNING] - {State.BLOCKED})  # what a suspended step settles with: test_steps.py


@pytest.mark.parametrize("state", AFTER_RUNNING)
async def test_the_holder_of_an_attempt_moves_its_task(store: Store, worker: Worker, clock: ManualClock, state: State) -> None:
    record = await add(store)
    clock.advance(1)
    task = await worker.take_one()
    clock.advance(1)
    assert await worker.end(task, state) is SettleVerdict.ACCEPTED
    after = await get(store, record)
    assert after.state is state
    assert after.finished_at == (None if state is State.PENDING else clock.now())
    assert (after.attempt, after.cancelling) == (1, False)
    assert await store.attempts_of(worker.id) == []


async def test_what_the_settlement_says_is_kept(store: Store, worker: Worker, clock: ManualClock) -> None:
    record = await add(store, payload=b'{"n": 1}', meta={"trace": "x"}, key="k", collection="eu")
    task = await worker.take_one()
    started_at = clock.now() + 10
    clock.advance(2)
    await worker.end(task, State.SUCCEEDED, result=b'{"answer": 42}', started_at=started_at)
    after = await get(store, record)
    assert (after.result, after.error, after.started_at, after.finished_at) == (b'{"answer": 42}', None, started_at, clock.now())
    kept = ["payload", "meta", "key", "collection", "handler", "priority", "submitted_at", "due_at"]
    assert [getattr(after, name) for name in kept] == [getattr(record, name) for name in kept]
    assert (after.worker, after.attempt) == (worker.id, 1)


async def test_a_failure_keeps_its_error_and_counts(store: Store, worker: Worker) -> None:
    record = await add(store)
    await worker.run(State.FAILED, outcome=Outcome.FAILED, error=error(), tries=4, crashes=2)
    after = await get(store, record)
    assert (after.state, after.error, after.tries, after.crashes, after.result) == (State.FAILED, error(), 4, 2, None)


async def test_a_retry_keeps_its_due_time_and_counts(store: Store, worker: Worker, clock: ManualClock) -> None:
    record = await add(store)
    due_at = clock.now() + 9 * SECOND
    await worker.run(State.PENDING, due_at=due_at, error=error(), crashes=1)
    after = await get(store, record)
    assert (after.state, after.due_at, after.tries, after.crashes) == (State.PENDING, due_at, 1, 1)
    assert (after.worker, after.finished_at, after.result) == (None, None, None)
    clock.set(due_at)
    task = await worker.take_one()
    assert (task.attempt, task.tries, task.crashes) == (2, 1, 1)


@pytest.mark.parametrize("other", AFTER_RUNNING)
@pytest.mark.parametrize("state", AFTER_RUNNING)
async def test_a_repeated_settlement_is_already_known_and_changes_nothing(
    store: Store, worker: Worker, clock: ManualClock, state: State, other: State
) -> None:
    """Also when the second says something else: the first word holds."""
    record = await add(store)
    task = await worker.take_one()
    assert await worker.end(task, state, error=error()) is SettleVerdict.ACCEPTED
    before, history = await get(store, record), await store.attempts(record.id)
    clock.advance(1)
    assert await worker.end(task, other, result=b"1", tries=7) is SettleVerdict.ALREADY
    assert await get(store, record) == before
    assert await store.attempts(record.id) == history


async def test_a_settlement_twice_in_one_call_is_accepted_once(store: Store, worker: Worker, clock: ManualClock) -> None:
    await add(store)
    settlement = ended(await worker.take_one(), State.SUCCEEDED, at=clock.now())
    assert await store.settle(worker.id, [settlement, settlement]) == [SettleVerdict.ACCEPTED, SettleVerdict.ALREADY]


async def test_a_huge_batch_may_hold_every_settlement_twice(store: Store, worker: Worker, clock: ManualClock) -> None:
    await store.add([new_task() for _ in range(5_000)])
    settlements = [ended(task, State.SUCCEEDED, at=clock.now()) for task in await worker.take()]
    verdicts = await store.settle(worker.id, settlements + settlements)
    assert verdicts == [SettleVerdict.ACCEPTED] * 5_000 + [SettleVerdict.ALREADY] * 5_000


async def test_another_worker_may_not_settle(store: Store, worker: Worker, hire: Hire) -> None:
    record = await add(store)
    task = await worker.take_one()
    before = await get(store, record)
    for state in AFTER_RUNNING:
        assert await (await hire()).end(task, state) is SettleVerdict.STALE
        assert (await store.settle("nobody", [ended(task, state, at=store.now())])) == [SettleVerdict.STALE]
    assert await get(store, record) == before
    assert await worker.end(task, State.SUCCEEDED) is SettleVerdict.ACCEPTED


@pytest.mark.parametrize("attempt", [0, 1, 3, 4])
async def test_another_attempt_may_not_be_settled(store: Store, worker: Worker, hire: Hire, clock: ManualClock, attempt: int) -> None:
    record = await add(store)
    await (await hire()).run(State.PENDING)
    task = await worker.take_one()
    before = await get(store, record)
    wrong = Settlement(record.id, attempt, Outcome.SUCCEEDED, State.SUCCEEDED, 0, 0, None, clock.now())
    assert await store.settle(worker.id, [wrong]) == [SettleVerdict.STALE]
    assert await get(store, record) == before
    assert await worker.end(task, State.SUCCEEDED) is SettleVerdict.ACCEPTED


async def test_a_late_word_on_an_earlier_attempt_does_not_touch_the_running_one(store: Store, worker: Worker, hire: Hire) -> None:
    record = await add(store)
    first = await worker.take_one()
    await worker.end(first, State.PENDING)
    second_worker = await hire()
    second = await second_worker.take_one()
    before = await get(store, record)
    assert await worker.end(first, State.SUCCEEDED) is SettleVerdict.ALREADY
    assert await get(store, record) == before
    assert await second_worker.end(second, State.FAILED) is SettleVerdict.ACCEPTED
    assert await worker.end(first, State.SUCCEEDED) is SettleVerdict.ALREADY
    assert await state_of(store, record) is State.FAILED


@pytest.mark.parametrize("target", AFTER_RUNNING)
@pytest.mark.parametrize("state", sorted(set(State) - {State.RUNNING}))
async def test_a_task_that_does_not_run_cannot_be_settled(store: Store, worker: Worker, hire: Hire, state: State, target: State) -> None:
    record = await task_in(store, worker, state)
    stranger = await hire()
    for attempt in (0, 1, 2):
        wrong = Settlement(record.id, attempt, USUAL_OUTCOME[target], target, 1, 0, None, store.now(), store.now())
        assert await store.settle(stranger.id, [wrong]) == [SettleVerdict.STALE]
    assert await get(store, record) == record


async def test_an_unknown_task_is_stale(store: Store, worker: Worker) -> None:
    unknown = Settlement(new_id(), 1, Outcome.SUCCEEDED, State.SUCCEEDED, 0, 0, None, store.now())
    assert await store.settle(worker.id, [unknown]) == [SettleVerdict.STALE]
    assert await store.get([unknown.id]) == [None]


async def test_a_released_attempt_cannot_be_settled_any_more(store: Store, worker: Worker, hire: Hire) -> None:
    record = await add(store)
    gone = await hire()
    task = await gone.take_one()
    await store.unregister(gone.id)
    before = await get(store, record)
    assert await gone.end(task, State.SUCCEEDED) is not SettleVerdict.ACCEPTED
    assert await get(store, record) == before
    assert (await worker.take_one()).attempt == 2


async def test_verdicts_come_in_the_order_of_the_settlements(store: Store, worker: Worker, hire: Hire, clock: ManualClock) -> None:
    stranger = await hire()
    await store.add([new_task() for _ in range(4)])
    first, second, third, foreign = [*await worker.take(wants={"work": 3}), *await stranger.take()]
    await worker.end(second, State.FAILED)
    settlements = [ended(task, State.SUCCEEDED, at=clock.now()) for task in (third, foreign, second, first)]
    verdicts = await store.settle(worker.id, settlements)
    assert verdicts == [SettleVerdict.ACCEPTED, SettleVerdict.STALE, SettleVerdict.ALREADY, SettleVerdict.ACCEPTED]
    assert await state_of(store, foreign) is State.RUNNING
    assert await state_of(store, second) is State.FAILED


async def test_a_batch_may_end_in_all_ways_at_once(store: Store, worker: Worker, clock: ManualClock) -> None:
    await store.add([new_task() for _ in range(40)])
    claimed = await worker.take()
    endings = [ended(task, AFTER_RUNNING[index % 4], at=clock.now()) for index, task in enumerate(claimed)]
    assert set(await store.settle(worker.id, endings)) == {SettleVerdict.ACCEPTED}
    records = await store.get([task.id for task in claimed])
    assert [record.state for record in records if record] == [AFTER_RUNNING[index % 4] for index in range(40)]


async def test_a_claimed_batch_may_be_settled_piece_by_piece_and_out_of_order(store: Store, worker: Worker) -> None:
    await store.add([new_task() for _ in range(20)])
    claimed = await worker.take()
    for index in (*range(19, 0, -2), *range(0, 20, 2)):
        assert await worker.end(claimed[index], State.SUCCEEDED) is SettleVerdict.ACCEPTED
    assert await store.attempts_of(worker.id) == []


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.TIMED_OUT, Outcome.RETRY_LATER, Outcome.RELEASED, Outcome.LOST])
async def test_with_a_cancel_asked_for_meanwhile_a_task_that_goes_back_is_cancelled(
    store: Store, worker: Worker, clock: ManualClock, outcome: Outcome
) -> None:
    record = await add(store, key="k")
    task = await worker.take_one()
    assert await store.cancel([record.id]) == [CancelVerdict.CANCELLING]
    clock.advance(1)
    assert await worker.end(task, State.PENDING, outcome=outcome, error=error()) is SettleVerdict.ACCEPTED
    after = await get(store, record)
    assert (after.state, after.finished_at, after.error) == (State.CANCELLED, clock.now(), error())
    assert [attempt.outcome for attempt in await store.attempts(record.id)] == [outcome]
    assert await worker.take() == []
    assert (await put(store, key="k")).verdict is AddVerdict.ADDED


@pytest.mark.parametrize("state", sorted(MOVES[State.RUNNING] & FINAL))
async def test_a_cancel_does_not_change_an_attempt_that_finished_first(store: Store, worker: Worker, state: State) -> None:
    record = await add(store)
    task = await worker.take_one()
    await store.cancel([record.id])
    assert await worker.end(task, state, result=b"1") is SettleVerdict.ACCEPTED
    assert await state_of(store, record) is state


async def test_a_cancel_mark_does_not_outlive_its_task(store: Store, worker: Worker) -> None:
    record = await add(store)
    task = await worker.take_one()
    await store.cancel([record.id])
    await worker.end(task, State.PENDING)
    await store.retry([record.id])
    assert (await get(store, record)).cancelling is False
    task = await worker.take_one()
    assert (await get(store, record)).cancelling is False
    await worker.end(task, State.PENDING)
    assert await state_of(store, record) is State.PENDING


@pytest.mark.parametrize("state", sorted(MOVES[State.RUNNING] & FINAL))
async def test_a_final_state_frees_the_key(store: Store, worker: Worker, state: State) -> None:
    await add(store, key="k")
    await worker.run(state)
    assert (await put(store, key="k")).verdict is AddVerdict.ADDED


@pytest.mark.parametrize("how", ["past", "now", "later"])
async def test_going_back_takes_the_later_of_due_time_and_now(store: Store, worker: Worker, clock: ManualClock, how: str) -> None:
    shift: dict[str, Any] = {"past": -60 * SECOND, "now": 0, "later": SECOND}
    record = await add(store)
    task = await worker.take_one()
    clock.advance(1)
    await worker.end(task, State.PENDING, due_at=clock.now() + shift[how])
    assert (await get(store, record)).due_at == clock.now() + shift[how]
    claimed = await worker.take()
    assert len(claimed) == (how != "later")
    clock.advance(1)
    assert len(claimed + await worker.take()) == 1
