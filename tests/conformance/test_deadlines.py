"""The duty that ends accepted attempts whose time is over: exactly once, by the task's own policy, however many perform it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from duetime.clock import ManualClock
from duetime.duties.deadlines import BATCH, Deadlines
from duetime.errors import StoreUnavailable
from duetime.model.figures import ATTEMPTS, RETRIES, TASKS_FAILED, FigureKey
from duetime.model.outcome import Acceptance, Outcome, SettleVerdict
from duetime.model.retry import RetryPolicy
from duetime.model.task import State
from duetime.runtime.service import Alarms
from duetime.store import Store
from duetime.store.accepting import Report
from duetime.store.values import Declaration
from tests.conformance.build import Worker, get, new_task, state_of


@pytest.fixture
async def alarms() -> AsyncIterator[Alarms]:
    alarms = Alarms()
    yield alarms
    alarms.close()


async def hand_over(store: Store, worker: Worker, count: int = 1, within: float = 60.0, **options: Any) -> list[str]:
    await store.add([new_task(**options) for _ in range(count)])
    claimed = await worker.take()
    deadline_at = store.now() + round(within * 1_000_000)
    verdicts = await store.accept(worker.id, [Acceptance(each.id, each.attempt, deadline_at) for each in claimed])
    assert verdicts == [SettleVerdict.ACCEPTED] * count
    return [each.id for each in claimed]


async def test_more_than_a_batch_times_out_and_each_once_although_three_look_at_once(
    store: Store, worker: Worker, clock: ManualClock, alarms: Alarms
) -> None:
    ids = await hand_over(store, worker, BATCH + 100)
    clock.advance(61)
    duties = [Deadlines(store, alarms) for _ in range(3)]
    while sum(await asyncio.gather(*(duty.sweep() for duty in duties))):
        pass
    for record in await store.get(ids):
        assert record is not None
        assert (record.state, record.tries, record.attempt) == (State.PENDING, 1, 1)
    key = FigureKey(ATTEMPTS, "work", Outcome.TIMED_OUT.value)
    assert sum(duty.totals().get(key, 0) for duty in duties) == len(ids)
    assert await store.inspect(repair=False) == []


async def test_the_tasks_policy_comes_before_that_of_its_handler(store: Store, worker: Worker, clock: ManualClock, alarms: Alarms) -> None:
    duty = Deadlines(store, alarms)
    await store.declare([Declaration(name="work", retry=RetryPolicy(tries=1).numbers())])
    [by_handler] = await hand_over(store, worker)
    [by_task] = await hand_over(store, worker, retry=RetryPolicy(tries=2).numbers())
    clock.advance(61)
    assert await duty.sweep() == 2
    assert await state_of(store, by_handler) is State.FAILED
    assert await state_of(store, by_task) is State.PENDING
    assert (duty.totals()[FigureKey(TASKS_FAILED, "work")], duty.totals()[FigureKey(RETRIES, "work")]) == (1, 1)


async def test_a_cancelled_one_ends_cancelled_and_not_as_a_failure(
    store: Store, worker: Worker, clock: ManualClock, alarms: Alarms
) -> None:
    await store.declare([Declaration(name="work", retry=RetryPolicy(tries=1).numbers())])
    [task] = await hand_over(store, worker, within=3_600)
    await store.cancel([task])
    clock.advance(29)
    assert await Deadlines(store, alarms).sweep() == 0
    clock.advance(1)
    await Deadlines(store, alarms).sweep()
    record = await get(store, task)
    assert (record.state, record.tries) == (State.CANCELLED, 0)
    [attempt] = await store.attempts(task)
    assert attempt.outcome is Outcome.CANCELLED


async def test_a_clock_that_is_set_back_and_forth_times_it_out_once(
    store: Store, worker: Worker, clock: ManualClock, alarms: Alarms
) -> None:
    duty = Deadlines(store, alarms)
    [task] = await hand_over(store, worker, within=7_200)
    clock.set(clock.now() - 3_600_000_000)
    assert await duty.sweep() == 0
    clock.advance(3_600 + 7_200)
    assert await duty.sweep() == 1
    clock.set(clock.now() - 3_600_000_000)
    assert await duty.sweep() == 0
    clock.advance(7_200)
    assert await duty.sweep() == 0
    assert [each.outcome for each in await store.attempts(task)] == [Outcome.TIMED_OUT]


async def test_a_store_that_is_away_at_the_deadline_times_it_out_when_it_is_back(
    store: Store, worker: Worker, clock: ManualClock, alarms: Alarms, monkeypatch: pytest.MonkeyPatch
) -> None:
    duty = Deadlines(store, alarms)
    [task] = await hand_over(store, worker)
    clock.advance(61)
    complete = store.complete

    async def lose_the_reply(*arguments: object, **options: object) -> object:
        await complete(*arguments, **options)  # type: ignore[arg-type]
        raise StoreUnavailable("the reply was lost")

    with monkeypatch.context() as patch:
        patch.setattr(store, "complete", lose_the_reply)
        with pytest.raises(StoreUnavailable):
            await duty.sweep()
    assert await duty.sweep() == 0
    assert [each.outcome for each in await store.attempts(task)] == [Outcome.TIMED_OUT]


async def test_reports_and_the_duty_at_once_leave_one_end_or_none(store: Store, worker: Worker, clock: ManualClock, alarms: Alarms) -> None:
    duty = Deadlines(store, alarms)
    for number in range(5):
        await store.add([new_task(f"work-{number}")])
        [claimed] = await worker.take(f"work-{number}")
        await store.accept(worker.id, [Acceptance(claimed.id, 1, store.now() + 3_600_000_000, 10.0)])
        clock.advance(10)
        [heard], _ = await asyncio.gather(store.hear([Report(claimed.id, 1)]), duty.sweep())
        record = await get(store, claimed)
        if heard.verdict is SettleVerdict.ACCEPTED and record.state is State.RUNNING:
            assert record.deadline_at == store.now() + 10_000_000
        else:
            assert [each.outcome for each in await store.attempts(claimed.id)] == [Outcome.TIMED_OUT]
    assert await store.inspect(repair=False) == []
