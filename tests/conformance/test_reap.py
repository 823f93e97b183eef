"""Reaping: what becomes of the attempts of a worker that died."""

from __future__ import annotations

import pytest

from duetime.client.gates import barrier
from duetime.clock import ManualClock
from duetime.model.gate import Gate, GateAction
from duetime.model.lifecycle import QUARANTINE_CRASHES
from duetime.model.outcome import Outcome, Settlement, SettleVerdict
from duetime.model.task import State
from duetime.store import Store
from tests.conformance.build import Worker, add, get, needs, new_task, state_of, task_in
from tests.conformance.conftest import Dead, Hire


async def beat_of(store: Store, worker: str) -> int:
    [beat] = [record.beat for record in await store.workers() if record.id == worker]
    return beat


async def reap(store: Store, worker: str) -> int | None:
    return await store.reap(worker, await beat_of(store, worker))


async def test_an_unknown_worker_is_not_reaped(store: Store) -> None:
    assert await store.reap("nobody", 0) is None
    assert await store.reap("nobody", 1) is None


async def test_a_worker_that_the_store_knows_to_be_alive_is_not_reaped(store: Store, worker: Worker) -> None:
    record = await task_in(store, worker, State.RUNNING)
    if store.traits.liveness == "lock":
        assert await reap(store, worker.id) is None
        assert await get(store, record) == record
        assert [listed.id for listed in await store.workers()] == [worker.id]
    else:
        assert await store.reap(worker.id, await beat_of(store, worker.id) - 1) is None
        assert await get(store, record) == record


async def test_a_dead_worker_stays_listed_until_it_is_reaped(store: Store, dead_worker: Dead) -> None:
    record = await add(store)
    dead = await dead_worker(holding=1)
    [listed] = await store.workers()
    assert (listed.id, listed.running) == (dead, 1)
    assert listed.alive is (False if store.traits.liveness == "lock" else None)
    running = await get(store, record)
    assert (running.state, running.worker) == (State.RUNNING, dead)
    assert await reap(store, dead) == 1
    assert await store.workers() == []
    assert await store.reap(dead, listed.beat) is None


async def test_the_attempts_of_a_dead_worker_are_lost_and_its_tasks_go_back(
    store: Store, dead_worker: Dead, worker: Worker, clock: ManualClock
) -> None:
    answers = await store.add([new_task() for _ in range(4)])
    dead = await dead_worker(holding=4)
    clock.advance(5)
    assert await reap(store, dead) == 4
    for added in answers:
        record = await get(store, added.record)
        assert (record.state, record.crashes, record.tries, record.attempt, record.worker) == (State.PENDING, 1, 0, 1, None)
        [attempt] = await store.attempts(record.id)
        assert (attempt.outcome, attempt.worker, attempt.finished_at) == (Outcome.LOST, dead, clock.now())
    again = await worker.take()
    assert {(task.id, task.attempt, task.crashes) for task in again} == {(added.record.id, 2, 1) for added in answers}


async def test_a_worker_whose_beat_has_changed_is_not_reaped(store: Store, dead_worker: Dead) -> None:
    record = await add(store)
    dead = await dead_worker(holding=1)
    beat = await beat_of(store, dead)
    assert await store.reap(dead, beat + 1) is None
    assert await store.reap(dead, beat - 1) is None
    assert await state_of(store, record) is State.RUNNING
    assert await store.reap(dead, beat) == 1


async def test_reaping_leaves_the_attempts_of_others_alone(store: Store, dead_worker: Dead, worker: Worker) -> None:
    mine = await task_in(store, worker, State.RUNNING)
    await add(store)
    assert await reap(store, await dead_worker(holding=1)) == 1
    assert await get(store, mine) == mine


async def test_a_dead_worker_without_attempts_is_forgotten(store: Store, dead_worker: Dead) -> None:
    assert await reap(store, await dead_worker(holding=0)) == 0
    assert await store.workers() == []


async def test_a_task_that_was_alone_is_quarantined_when_its_crashes_reach_the_limit(store: Store, dead_worker: Dead) -> None:
    record = await add(store, key="k")
    child = await add(store, "child", edges=(needs(record),))
    for crash in range(1, QUARANTINE_CRASHES):
        assert await reap(store, await dead_worker(holding=1)) == 1
        after = await get(store, record)
        assert (after.state, after.crashes, after.attempt) == (State.PENDING, crash, crash)
    await reap(store, await dead_worker(holding=1))
    after = await get(store, record)
    assert (after.state, after.crashes, after.tries) == (State.FAILED, QUARANTINE_CRASHES, 0)
    assert after.error is not None
    assert after.error.type == "Quarantined"
    assert after.finished_at == store.now()
    assert await state_of(store, child) is State.CANCELLED
    assert [attempt.outcome for attempt in await store.attempts(record.id)] == [Outcome.LOST] * QUARANTINE_CRASHES
    await add(store, key="k")


async def test_a_task_that_was_not_alone_is_not_quarantined(store: Store, dead_worker: Dead) -> None:
    records = [await add(store), await add(store)]
    for crash in range(1, QUARANTINE_CRASHES + 2):
        await reap(store, await dead_worker(holding=2))
        after = [await get(store, record) for record in records]
        assert [(record.state, record.crashes) for record in after] == [(State.PENDING, crash)] * 2
    await reap(store, await dead_worker(holding=1, limit=1))
    assert sorted([await state_of(store, record) for record in records]) == [State.FAILED, State.PENDING]


async def test_a_lost_task_with_a_cancel_mark_ends_cancelled(store: Store, dead_worker: Dead) -> None:
    record = await add(store)
    other = await add(store)
    dead = await dead_worker(holding=2)
    await store.cancel([record.id])
    assert await reap(store, dead) == 2
    assert [await state_of(store, task) for task in (record, other)] == [State.CANCELLED, State.PENDING]
    assert [attempt.outcome for attempt in await store.attempts(record.id)] == [Outcome.LOST]


async def test_the_word_of_a_reaped_worker_comes_too_late(store: Store, dead_worker: Dead, hire: Hire) -> None:
    record = await add(store)
    dead = await dead_worker(holding=1)
    await reap(store, dead)
    worker = await hire()
    task = await worker.take_one()
    late = Settlement(record.id, 1, Outcome.SUCCEEDED, State.SUCCEEDED, 0, 0, None, store.now())
    [verdict] = await store.settle(dead, [late])
    assert verdict is not SettleVerdict.ACCEPTED
    assert await state_of(store, record) is State.RUNNING
    assert (await store.claim(dead, 99, {"work": 1}, 1)).tasks == []
    assert await worker.end(task, State.SUCCEEDED) is SettleVerdict.ACCEPTED


async def test_dead_workers_do_not_hold_a_gate_back(store: Store, dead_worker: Dead, worker: Worker) -> None:
    dead = await dead_worker(holding=0)
    version = await store.put_gate(Gate(handler="work", action=GateAction.PAUSE))
    await store.confirm_gates(worker.id, version)
    if store.traits.liveness == "lease":
        await reap(store, dead)
    reached = await barrier(store, version)
    assert (reached.confirmed, reached.waiting) == ([worker.id], [])


@pytest.mark.parametrize("size", [1, 200])
async def test_a_reaped_batch_is_whole(store: Store, dead_worker: Dead, worker: Worker, size: int) -> None:
    await store.add([new_task() for _ in range(size)])
    dead = await dead_worker(holding=size)
    assert await reap(store, dead) == size
    assert len(await worker.take()) == size
