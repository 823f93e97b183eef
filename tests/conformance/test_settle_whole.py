"""Settling all attempts of a large claim at once, which a store may do by a shorter way: what follows is the same."""

from __future__ import annotations

from duetime.clock import SECOND, ManualClock
from duetime.model.outcome import Verdict
from duetime.model.task import State
from duetime.store.protocol import Progress, Store
from tests.conformance.build import Worker, ended, get, needs, wish
from tests.conformance.conftest import Another, Hire

MANY = 60


async def test_every_task_of_a_claim_keeps_its_own_facts(store: Store, worker: Worker, clock: ManualClock) -> None:
    await store.add([wish(key=f"k{number}") for number in range(MANY)])
    tasks = await worker.take(total=MANY)
    assert len(tasks) == MANY
    starts = {task.id: clock.now() + number * 1_000 for number, task in enumerate(tasks)}
    clock.advance(1)
    settlements = [ended(task, State.SUCCEEDED, at=starts[task.id] + 500, started_at=starts[task.id]) for task in tasks]
    assert await store.settle(worker.id, settlements) == [Verdict.ACCEPTED] * MANY
    for task in tasks:
        record = await get(store, task)
        assert (record.state, record.attempt, record.started_at) == (State.SUCCEEDED, 1, starts[task.id])
        assert (record.finished_at, record.worker, record.key) == (starts[task.id] + 500, worker.id, task.key)
    assert await store.attempts_of(worker.id) == []
    counts = await store.counts()
    assert sum(lane.due + lane.later + lane.running for lane in counts.lanes) == 0
    assert await store.settle(worker.id, settlements) == [Verdict.ALREADY] * MANY
    assert await store.inspect(repair=False) == []


async def test_children_of_a_whole_claim_are_freed_and_its_progress_is_forgotten(store: Store, worker: Worker, clock: ManualClock) -> None:
    parents = [wish() for _ in range(MANY)]
    child = wish("later", edges=(needs(parents[0]), needs(parents[-1])))
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
    await store.add([wish() for _ in range(MANY)])
    tasks = await worker.take(total=MANY)
    failed = ended(tasks[3], State.FAILED, at=clock.now())
    assert await other.settle(worker.id, [failed]) == [Verdict.ACCEPTED]
    verdicts = await store.settle(worker.id, [ended(task, State.SUCCEEDED, at=clock.now() + SECOND) for task in tasks])
    assert verdicts == [Verdict.ALREADY if task is tasks[3] else Verdict.ACCEPTED for task in tasks]
    assert (await get(store, tasks[3])).state is State.FAILED
    assert await store.inspect(repair=False) == []


async def test_a_whole_claim_of_another_worker_stays_as_it_is(store: Store, worker: Worker, hire: Hire, clock: ManualClock) -> None:
    thief = await hire(store)
    await store.add([wish() for _ in range(MANY)])
    tasks = await worker.take(total=MANY)
    settlements = [ended(task, State.SUCCEEDED, at=clock.now()) for task in tasks]
    assert await store.settle(thief.id, settlements) == [Verdict.STALE] * MANY
    assert len(await store.attempts_of(worker.id)) == MANY
