"""An attempt whose work somebody outside has accepted belongs to no worker but to a deadline, and ends once."""

from __future__ import annotations

import asyncio
from itertools import chain
from typing import Any

import pytest

from duetime.clock import SECOND, ManualClock
from duetime.ids import new_id
from duetime.model.outcome import Acceptance, Outcome, Settlement, SettleVerdict
from duetime.model.task import NewTask, State
from duetime.store import Store
from duetime.store.accepting import Heard, Report, Withdrawal
from duetime.store.values import CancelVerdict, ClaimedTask
from tests.conformance.build import Worker, add, ended, error, get, needs, new_task, state_of

ACCEPTED, ALREADY, STALE = SettleVerdict.ACCEPTED, SettleVerdict.ALREADY, SettleVerdict.STALE


@pytest.fixture(params=["plain", "keyed"])
def task(request: pytest.FixtureRequest) -> NewTask[object]:
    """One that needs no row of its own, and one that does."""
    return new_task() if request.param == "plain" else new_task(key="k")


async def accepted(store: Store, worker: Worker, task: NewTask[object], **bounds: Any) -> ClaimedTask:
    await store.add([task])
    claimed = await worker.take_one()
    assert await worker.hand_over(claimed, **bounds) is ACCEPTED
    return claimed


def end(store: Store, task: ClaimedTask, state: State = State.SUCCEEDED, **facts: Any) -> Settlement:
    return ended(task, state, at=store.now(), **facts)


# ---- handing over ----


async def test_it_runs_on_without_a_worker(store: Store, worker: Worker, clock: ManualClock, task: NewTask[object]) -> None:
    claimed = await accepted(store, worker, task, within=60)
    record = await get(store, task)
    assert (record.state, record.worker, record.attempt) == (State.RUNNING, None, 1)
    assert record.deadline_at == store.now() + 60 * SECOND
    assert await store.attempts_of(worker.id) == []
    assert await store.running_counts() == []
    assert [each.running for each in await store.workers()] == [0]
    [attempt] = await store.attempts(claimed.id)
    assert (attempt.outcome, attempt.worker) == (None, worker.id)
    assert [lane.running for lane in (await store.counts()).lanes] == [1]


async def test_its_worker_may_leave_or_die(store: Store, worker: Worker, task: NewTask[object]) -> None:
    claimed = await accepted(store, worker, task)
    await store.unregister(worker.id)
    assert await store.inspect(repair=True) == []
    assert await state_of(store, task) is State.RUNNING
    assert await store.complete([end(store, claimed, result=b"7")]) == [ACCEPTED]
    record = await get(store, task)
    assert (record.state, record.result, record.worker) == (State.SUCCEEDED, b"7", worker.id)
    assert await store.inspect(repair=False) == []


async def test_only_the_worker_that_runs_it_hands_it_over_and_once(store: Store, worker: Worker, task: NewTask[object]) -> None:
    await store.add([task])
    claimed = await worker.take_one()
    deadline_at = store.now() + SECOND
    unknown = Acceptance(new_id(), 1, deadline_at)
    others = [Acceptance(claimed.id, 2, deadline_at), unknown, Acceptance("no id", 1, deadline_at)]
    assert await store.accept(worker.id, others) == [STALE] * 3
    assert await store.accept("somebody", [Acceptance(claimed.id, 1, deadline_at)]) == [STALE]
    mine = Acceptance(claimed.id, 1, deadline_at)
    assert await store.accept(worker.id, [mine, unknown, mine]) == [ACCEPTED, STALE, ALREADY]
    assert await store.accept(worker.id, [mine]) == [ALREADY]
    assert await store.accept("somebody", [mine]) == [STALE]
    assert await store.accept(worker.id, []) == []


async def test_its_worker_cannot_settle_it_any_more(store: Store, worker: Worker, task: NewTask[object]) -> None:
    claimed = await accepted(store, worker, task)
    assert await worker.end(claimed, State.SUCCEEDED) is STALE
    assert await state_of(store, task) is State.RUNNING


async def test_some_of_a_claim_are_handed_over_and_the_others_end_as_ever(store: Store, worker: Worker) -> None:
    await store.add([new_task() for _ in range(100)])
    claimed = await worker.take()
    deadline_at = store.now() + SECOND
    half = claimed[::2]
    assert await store.accept(worker.id, [Acceptance(each.id, 1, deadline_at) for each in half]) == [ACCEPTED] * 50
    assert await store.settle(worker.id, [end(store, each) for each in claimed[1::2]]) == [ACCEPTED] * 50
    assert await store.inspect(repair=False) == []
    assert await store.complete([end(store, each) for each in half]) == [ACCEPTED] * 50
    assert await store.inspect(repair=False) == []
    assert [lane.running for lane in (await store.counts()).lanes] in ([], [0])


# ---- ends ----


@pytest.mark.parametrize("state", [State.SUCCEEDED, State.FAILED, State.PENDING, State.CANCELLED])
async def test_its_end_counts_once(store: Store, worker: Worker, task: NewTask[object], state: State) -> None:
    claimed = await accepted(store, worker, task)
    said = end(store, claimed, state, error=None if state is State.SUCCEEDED else error(), detail=b'{"status":202}')
    assert await store.complete([said, said]) == [ACCEPTED, ALREADY]
    assert await store.complete([said]) == [ALREADY]
    assert await store.accept(worker.id, [Acceptance(claimed.id, 1, store.now() + SECOND)]) == [ALREADY]
    record = await get(store, task)
    assert (record.state, record.deadline_at) == (state, None)
    [attempt] = await store.attempts(claimed.id)
    assert (attempt.outcome, attempt.worker, attempt.detail) == (said.outcome, worker.id, b'{"status":202}')
    assert await store.inspect(repair=False) == []


async def test_an_end_that_overtakes_the_handing_over_counts_once(store: Store, worker: Worker, task: NewTask[object]) -> None:
    await store.add([task])
    claimed = await worker.take_one()
    assert await store.complete([end(store, claimed, result=b"1")]) == [ACCEPTED]
    assert await worker.hand_over(claimed) is ALREADY
    record = await get(store, task)
    assert (record.state, record.result, record.worker) == (State.SUCCEEDED, b"1", worker.id)
    assert await store.attempts_of(worker.id) == []
    assert await store.inspect(repair=False) == []


async def test_an_older_attempt_says_nothing(store: Store, worker: Worker, task: NewTask[object]) -> None:
    first = await accepted(store, worker, task)
    assert await store.complete([end(store, first, State.PENDING)]) == [ACCEPTED]
    second = await worker.take_one()
    assert await worker.hand_over(second) is ACCEPTED
    late = end(store, first, result=b'"old"')
    assert await store.complete([late]) == [ALREADY]  # it has said how it ended
    assert await store.hear([Report(first.id, 1)]) == [Heard(STALE)]
    assert (await get(store, task)).attempt == 2
    await worker.store.complete([end(store, second, result=b'"new"')])
    assert (await get(store, task)).result == b'"new"'


async def test_an_attempt_that_was_lost_before_it_was_handed_over_is_stale(store: Store, worker: Worker, task: NewTask[object]) -> None:
    await store.add([task])
    claimed = await worker.take_one()
    await worker.end(claimed, State.PENDING, outcome=Outcome.LOST)
    assert await store.complete([end(store, claimed)]) == [STALE]
    assert await worker.hand_over(claimed) is STALE
    assert await state_of(store, task) is State.PENDING


async def test_ends_of_unknown_tasks_are_stale(store: Store) -> None:
    settlements = [
        Settlement(id=id, attempt=1, outcome=Outcome.SUCCEEDED, state=State.SUCCEEDED, tries=0, crashes=0, started_at=1, finished_at=1)
        for id in (new_id(), "no id", "")
    ]
    assert await store.complete(settlements) == [STALE] * 3
    assert await store.complete([]) == []
    assert await store.hear([Report(new_id(), 1), Report("no id", 1)]) == [Heard(STALE)] * 2
    assert await store.open_attempts([new_id(), "no id"]) == []


async def test_its_end_frees_its_key_and_its_children(store: Store, worker: Worker) -> None:
    task = new_task(key="k")
    claimed = await accepted(store, worker, task)
    child = await add(store, "child", edges=(needs(task),))
    assert await store.complete([end(store, claimed)]) == [ACCEPTED]
    assert await state_of(store, child) is State.PENDING
    assert (await add(store, key="k")).id != task.id


async def test_of_many_who_say_it_at_once_one_is_heard(store: Store, worker: Worker, task: NewTask[object]) -> None:
    claimed = await accepted(store, worker, task)
    verdicts = await asyncio.gather(*(store.complete([end(store, claimed, result=b"%d" % n)]) for n in range(8)))
    assert sorted(verdict for [verdict] in verdicts) == sorted([ACCEPTED] + [ALREADY] * 7)
    assert await store.inspect(repair=False) == []


async def test_an_end_and_the_handing_over_may_come_at_once(store: Store, worker: Worker) -> None:
    for _ in range(10):
        await store.add([new_task()])
        claimed = await worker.take_one()
        over, [done] = await asyncio.gather(worker.hand_over(claimed), store.complete([end(store, claimed)]))
        assert done is ACCEPTED
        assert over in (ACCEPTED, ALREADY)
        assert await state_of(store, claimed) is State.SUCCEEDED
    assert await store.inspect(repair=False) == []


# ---- deadlines ----


async def test_it_times_out_at_its_deadline_and_not_before(store: Store, worker: Worker, clock: ManualClock, task: NewTask[object]) -> None:
    claimed = await accepted(store, worker, task, within=60)
    said = end(store, claimed, State.PENDING, outcome=Outcome.TIMED_OUT)
    clock.advance(59)
    assert await store.overdue(10) == []
    assert await store.complete([said], overdue=True) == [STALE]
    clock.advance(1)
    [late] = await store.overdue(10)
    assert (late.task.id, late.task.attempt, late.worker, late.task.handler) == (claimed.id, 1, None, "work")
    assert await store.complete([said], overdue=True) == [ACCEPTED]
    assert await store.complete([said], overdue=True) == [STALE]
    assert await store.overdue(10) == []
    record = await get(store, task)
    assert (record.state, record.tries) == (State.PENDING, 1)
    assert (await worker.take_one()).attempt == 2


async def test_silence_ends_it_and_each_report_begins_it_anew(
    store: Store, worker: Worker, clock: ManualClock, task: NewTask[object]
) -> None:
    claimed = await accepted(store, worker, task, within=100, silence=30)
    clock.advance(29)
    assert await store.hear([Report(claimed.id, 1, 0.5, "half")]) == [Heard(ACCEPTED, False, store.now() + 30 * SECOND)]
    record = await get(store, task)
    assert (record.progress, record.progress_text, record.deadline_at) == (0.5, "half", store.now() + 30 * SECOND)
    clock.advance(29)
    assert await store.overdue(10) == []
    assert await store.hear([Report(claimed.id, 1)]) == [Heard(ACCEPTED, False, store.now() + 30 * SECOND)]
    assert (await get(store, task)).progress == 0.5
    clock.advance(30)
    assert [each.task.id for each in await store.overdue(10)] == [claimed.id]


async def test_nothing_extends_it_beyond_its_deadline(store: Store, worker: Worker, clock: ManualClock, task: NewTask[object]) -> None:
    claimed = await accepted(store, worker, task, within=100, silence=30)
    deadline_at = store.now() + 100 * SECOND
    assert await store.hear([Report(claimed.id, 1, extend=60)]) == [Heard(ACCEPTED, False, store.now() + 60 * SECOND)]
    assert await store.hear([Report(claimed.id, 1, extend=1e9)]) == [Heard(ACCEPTED, False, deadline_at)]
    clock.advance(100)
    assert [each.task.id for each in await store.overdue(10)] == [claimed.id]


async def test_an_overdue_one_that_was_heard_of_meanwhile_goes_on(store: Store, worker: Worker, clock: ManualClock) -> None:
    claimed = await accepted(store, worker, new_task(), within=100, silence=30)
    clock.advance(31)
    [late] = await store.overdue(10)
    await store.hear([Report(claimed.id, 1)])
    assert await store.complete([end(store, late.task, State.PENDING, outcome=Outcome.TIMED_OUT)], overdue=True) == [STALE]
    assert await state_of(store, claimed) is State.RUNNING


async def test_overdue_ones_come_in_batches_earliest_first(store: Store, worker: Worker, clock: ManualClock) -> None:
    claimed = [await accepted(store, worker, new_task(), within=within) for within in (30, 10, 20)]
    clock.advance(40)
    assert [each.task.id for each in await store.overdue(2)] == [claimed[1].id, claimed[2].id]
    assert [each.task.id for each in await store.overdue(10)] == [claimed[index].id for index in (1, 2, 0)]


async def test_what_a_worker_runs_is_never_overdue(store: Store, worker: Worker, clock: ManualClock) -> None:
    record = await add(store)
    claimed = await worker.take_one()
    clock.advance(10_000)
    assert await store.overdue(10) == []
    assert await store.complete([end(store, claimed)], overdue=True) == [STALE]
    assert await state_of(store, record) is State.RUNNING
    [attempt] = await store.open_attempts([record.id])
    assert (attempt.worker, attempt.deadline_at) == (worker.id, None)


# ---- cancels ----


async def test_a_cancel_leaves_it_thirty_seconds_and_ends_it(
    store: Store, worker: Worker, clock: ManualClock, task: NewTask[object]
) -> None:
    claimed = await accepted(store, worker, task, within=3_600, silence=300)
    assert await store.cancel([claimed.id]) == [CancelVerdict.CANCELLING]
    deadline_at = store.now() + 30 * SECOND
    assert (await get(store, task)).deadline_at == deadline_at
    assert await store.hear([Report(claimed.id, 1, extend=300)]) == [Heard(ACCEPTED, True, deadline_at)]
    clock.advance(30)
    [late] = await store.overdue(10)
    assert late.task.cancelling
    assert await store.complete([end(store, late.task, State.PENDING, outcome=Outcome.TIMED_OUT)], overdue=True) == [ACCEPTED]
    assert await state_of(store, task) is State.CANCELLED


async def test_its_end_may_come_before_a_cancel_takes_effect(store: Store, worker: Worker, task: NewTask[object]) -> None:
    claimed = await accepted(store, worker, task)
    await store.cancel([claimed.id])
    assert await store.complete([end(store, claimed)]) == [ACCEPTED]
    assert await state_of(store, task) is State.SUCCEEDED


async def test_a_cancel_that_came_before_it_was_handed_over_holds(store: Store, worker: Worker, task: NewTask[object]) -> None:
    await store.add([task])
    claimed = await worker.take_one()
    await store.cancel([claimed.id])
    assert await worker.hand_over(claimed, within=3_600) is ACCEPTED
    record = await get(store, task)
    assert (record.cancelling, record.deadline_at) == (True, store.now() + 30 * SECOND)
    assert await store.complete([end(store, claimed, State.PENDING)]) == [ACCEPTED]
    assert await state_of(store, task) is State.CANCELLED


# ---- withdrawing ----

LOCATION = "https://billing.example/jobs/7"


async def test_one_that_was_cancelled_is_withdrawn_once(store: Store, worker: Worker, task: NewTask[object]) -> None:
    claimed = await accepted(store, worker, task, location=LOCATION)
    assert await store.take_withdrawals(["work"], 10) == []
    await store.cancel([claimed.id])
    assert await store.take_withdrawals(["other"], 10) == []
    assert await store.take_withdrawals([], 10) == []
    assert await store.take_withdrawals(["other", "work"], 10) == [Withdrawal(claimed.id, claimed.attempt, LOCATION)]
    await store.cancel([claimed.id])
    assert await store.take_withdrawals(["work"], 10) == []


async def test_one_that_was_cancelled_before_it_was_handed_over_is_withdrawn(store: Store, worker: Worker, task: NewTask[object]) -> None:
    await store.add([task])
    claimed = await worker.take_one()
    await store.cancel([claimed.id])
    await worker.hand_over(claimed, location=LOCATION)
    assert await store.take_withdrawals(["work"], 10) == [Withdrawal(claimed.id, claimed.attempt, LOCATION)]


async def test_one_without_a_location_or_that_has_ended_is_not_withdrawn(store: Store, worker: Worker) -> None:
    without, ended = new_task(), new_task()
    await store.cancel([(await accepted(store, worker, without)).id])
    claimed = await accepted(store, worker, ended, location=LOCATION)
    await store.cancel([claimed.id])
    assert await store.complete([end(store, claimed)]) == [ACCEPTED]
    assert await store.take_withdrawals(["work"], 10) == []


async def test_many_are_withdrawn_in_batches_and_each_by_one_caller(store: Store, worker: Worker) -> None:
    tasks = [await accepted(store, worker, new_task(), location=f"{LOCATION}/{number}") for number in range(7)]
    await store.cancel([each.id for each in tasks])
    taken = await asyncio.gather(*(store.take_withdrawals(["work"], 3) for _ in range(4)))
    rest = await store.take_withdrawals(["work"], 10)
    assert max(map(len, taken)) <= 3
    assert sorted(each.id for each in [*chain.from_iterable(taken), *rest]) == sorted(each.id for each in tasks)
