"""Settling many neighbouring attempts of a claim at once, which a store may do by a shorter way: what follows is the same."""

from __future__ import annotations

import asyncio

from duetime.clock import SECOND, ManualClock
from duetime.model.outcome import SettleVerdict
from duetime.model.task import State
from duetime.store import Store
from duetime.store.values import Progress
from tests.conformance.build import Worker, ended, get, needs, new_task
from tests.conformance.conftest import Another, Hire

MANY = 60


async def test_every_task_of_a_claim_keeps_its_own_facts(store: Store, worker: Worker, clock: ManualClock) -> None:
    await store.add([new_task(key=f"k{number}") for number in range(MANY)])
    tasks = await worker.take(total=MANY)
    assert len(tasks) == MANY
    starts = {task.id: clock.now() + number * 1_000 for number, task in enumerate(tasks)}
    clock.advance(1)
    settlements = [ended(task, State.SUCCEEDED, at=starts[task.id] + 500, started_at=starts[task.id]) for task in tasks]
    assert await store.settle(worker.id, settlements) == [SettleVerdict.ACCEPTED] * MANY
    for task in tasks:
        record = await get(store, task)
        assert (record.state, record.attempt, record.started_at) == (State.SUCCEEDED, 1, starts[task.id])
        assert (record.finished_at, record.worker, record.key) == (starts[task.id] + 500, worker.id, task.key)
    assert await store.attempts_of(worker.id) == []
    counts = await store.counts()
    assert sum(lane.due + lane.later + lane.running for lane in counts.lanes) == 0
    assert await store.settle(worker.id, settlements) == [SettleVerdict.ALREADY] * MANY
    assert await store.inspect(repair=False) == []


async def test_children_of_a_whole_claim_are_freed_and_its_progress_is_forgotten(store: Store, worker: Worker, clock: ManualClock) -> None:
    parents = [new_task() for _ in range(MANY)]
    child = new_task("later", edges=(needs(parents[0]), needs(parents[-1])))
    await store.add([*parents, child])
    tasks = await worker.take(total=MANY)
    await store.progress(worker.id, [Progress(tasks[0].id, 1, 0.5, "half")])
    await store.settle(worker.id, [ended(task, State.SUCCEEDED, at=clock.now()) for task in tasks])
    assert (await get(store, child)).state is State.PENDING
    assert (await get(store, tasks[0])).progress is None
    assert await store.inspect(repair=False) == []


async def test_what_somebody_else_said_of_one_attempt_is_not_said_again(
    store: Store, another: Another, worker: Worker, clock: ManualClock
) -> None:
    """The object that claimed them does not know that one has ended; the store does."""
    other = await another()
    await store.add([new_task() for _ in range(MANY)])
    tasks = await worker.take(total=MANY)
    failed = ended(tasks[3], State.FAILED, at=clock.now())
    assert await other.settle(worker.id, [failed]) == [SettleVerdict.ACCEPTED]
    verdicts = await store.settle(worker.id, [ended(task, State.SUCCEEDED, at=clock.now() + SECOND) for task in tasks])
    assert verdicts == [SettleVerdict.ALREADY if task is tasks[3] else SettleVerdict.ACCEPTED for task in tasks]
    assert (await get(store, tasks[3])).state is State.FAILED
    assert await store.inspect(repair=False) == []


async def test_a_whole_claim_of_another_worker_stays_as_it_is(store: Store, worker: Worker, hire: Hire, clock: ManualClock) -> None:
    thief = await hire(store)
    await store.add([new_task() for _ in range(MANY)])
    tasks = await worker.take(total=MANY)
    settlements = [ended(task, State.SUCCEEDED, at=clock.now()) for task in tasks]
    assert await store.settle(thief.id, settlements) == [SettleVerdict.STALE] * MANY
    assert len(await store.attempts_of(worker.id)) == MANY


async def test_a_claim_can_end_in_slices_one_after_another_or_at_once(store: Store, worker: Worker, clock: ManualClock) -> None:
    await store.add([new_task() for _ in range(4 * MANY)])
    tasks = await worker.take(total=4 * MANY)
    settlements = [ended(task, State.SUCCEEDED, at=clock.now() + number) for number, task in enumerate(tasks)]
    slices = [settlements[start : start + MANY] for start in range(0, 4 * MANY, MANY)]
    assert await store.settle(worker.id, slices[1]) == [SettleVerdict.ACCEPTED] * MANY
    assert {held.id for held in await store.attempts_of(worker.id)} == {s.id for s in settlements} - {s.id for s in slices[1]}
    assert [lane.running for lane in (await store.counts()).lanes] == [3 * MANY]
    assert await store.inspect(repair=False) == []
    rest = await asyncio.gather(*(store.settle(worker.id, some) for some in (slices[0], slices[2], slices[3])))
    assert rest == [[SettleVerdict.ACCEPTED] * MANY] * 3
    assert await store.attempts_of(worker.id) == []
    assert [(await get(store, said.id)).finished_at for said in settlements] == [said.finished_at for said in settlements]
    assert await store.settle(worker.id, settlements) == [SettleVerdict.ALREADY] * 4 * MANY
    assert await store.inspect(repair=False) == []


async def test_attempts_that_overlap_a_settled_slice_are_settled_once(store: Store, worker: Worker, clock: ManualClock) -> None:
    await store.add([new_task() for _ in range(2 * MANY)])
    tasks = await worker.take(total=2 * MANY)
    said = [ended(task, State.SUCCEEDED, at=clock.now()) for task in tasks]
    assert await store.settle(worker.id, said[:MANY]) == [SettleVerdict.ACCEPTED] * MANY
    verdicts = await store.settle(worker.id, said[MANY // 2 : MANY + MANY // 2])
    assert verdicts == [SettleVerdict.ALREADY] * (MANY // 2) + [SettleVerdict.ACCEPTED] * (MANY // 2)
    assert await store.settle(worker.id, said[MANY + MANY // 2 :]) == [SettleVerdict.ACCEPTED] * (MANY // 2)
    assert await store.attempts_of(worker.id) == []
    assert await store.inspect(repair=False) == []


async def test_attempts_of_one_claim_that_differ_keep_their_differences(store: Store, worker: Worker, clock: ManualClock) -> None:
    """Lanes, attempts, tries and expiries of a claim may be the same for all places or not."""
    expires_at = clock.now() + 3_600 * SECOND
    await store.add([new_task(expires_at=expires_at) for _ in range(MANY)])
    for task in (await worker.take(total=MANY))[::2]:
        await worker.end(task, State.PENDING, crashes=1)
    for task in await worker.take(total=MANY // 2):
        await worker.end(task, State.PENDING)
    for held in await store.attempts_of(worker.id):
        assert (held.attempt, held.tries, held.crashes) == (1, 0, 0)
    await store.add([new_task(priority=7, expires_at=expires_at if number % 3 else None) for number in range(MANY)])
    tasks = await worker.take(total=2 * MANY)
    assert sorted({(task.priority, task.attempt, task.tries, task.crashes) for task in tasks}) == [(5, 3, 2, 1), (7, 1, 0, 0)]
    assert {(lane.priority, lane.running) for lane in (await store.counts()).lanes} == {(5, MANY), (7, MANY)}
    assert [(held.attempt, held.tries) for held in await store.attempts_of(worker.id)].count((3, 2)) == MANY // 2
    for task in tasks:
        record = await get(store, task)
        assert (record.state, record.attempt, record.tries, record.crashes) == (State.RUNNING, task.attempt, task.tries, task.crashes)
    # those that go back keep their expiry; the others end by the short way
    low, high = ([task for task in tasks if task.priority == priority] for priority in (5, 7))
    back, rest = high[:3], high[3:]
    for task in back:
        await worker.end(task, State.PENDING, due_at=expires_at + SECOND)
    for some in (low, rest):
        settlements = [ended(task, State.SUCCEEDED, at=clock.now()) for task in some]
        assert set(await store.settle(worker.id, settlements)) == {SettleVerdict.ACCEPTED}
    for task in (*low, *rest):
        record = await get(store, task)
        assert (record.state, record.priority, record.attempt, record.crashes) == (
            State.SUCCEEDED,
            task.priority,
            task.attempt,
            task.crashes,
        )
    assert {task.expires_at for task in back} == {None, expires_at}
    clock.advance(3_601)
    assert [task.id for task in await worker.take()] == [task.id for task in back if task.expires_at is None]
    assert [(await get(store, task)).state for task in back] == [State.EXPIRED if task.expires_at else State.RUNNING for task in back]
    assert await store.inspect(repair=False) == []


async def test_a_grouping_makes_progress_whatever_has_ended(store: Store, worker: Worker, clock: ManualClock) -> None:
    await store.add([new_task() for _ in range(100)])
    tasks = await worker.take("work")
    grouping = store.grouping(worker.id)
    for ended_so_far in (1, 31, 99, 100):
        waiting = [ended(task, State.SUCCEEDED, at=clock.now()) for task in tasks[:ended_so_far]]
        for at_most in (1, 50, 2_000):
            if grouping.wait(waiting, at_most):
                assert grouping.wait(waiting, at_most) == 0.0, "it waits once for the same"
            assert 1 <= grouping.size(waiting, at_most) <= min(at_most, ended_so_far)
