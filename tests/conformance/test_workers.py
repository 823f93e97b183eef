"""Workers: registered, renewed, let go, and what becomes of their attempts."""

from __future__ import annotations

import asyncio

from duetime.clock import ManualClock
from duetime.model.gate import Gate, GateAction
from duetime.model.outcome import Outcome
from duetime.model.task import State
from duetime.store import Store
from duetime.store.values import NewWorker, RunningAttempt
from tests.conformance.build import Worker, add, get, new_task, state_of
from tests.conformance.conftest import Hire


async def test_a_registered_worker_is_listed(store: Store, clock: ManualClock) -> None:
    lease = await store.register(NewWorker(id="w-1", host="here", pid=4711, slots={"a": 3, "b": 5}))
    [record] = await store.workers()
    assert (record.id, record.host, record.pid, dict(record.slots)) == ("w-1", "here", 4711, {"a": 3, "b": 5})
    assert (record.started_at, record.running) == (clock.now(), 0)
    assert record.alive is (True if store.traits.liveness == "lock" else None)
    lease.close()
    await store.unregister("w-1")
    assert await store.workers() == []


async def test_a_worker_is_listed_with_the_number_of_its_attempts(store: Store, hire: Hire) -> None:
    first, second = await hire(), await hire()
    await store.add([new_task() for _ in range(5)])
    task, *_ = await first.take(wants={"work": 3})
    await second.take(wants={"work": 1})
    assert {record.id: record.running for record in await store.workers()} == {first.id: 3, second.id: 1}
    await first.end(task, State.SUCCEEDED)
    assert {record.id: record.running for record in await store.workers()} == {first.id: 2, second.id: 1}


async def test_a_worker_is_listed_with_its_slots_over_all_handlers(store: Store) -> None:
    for concurrency in (4, None, 2):  # the same worker registers again
        lease = await store.register(NewWorker(id="w-1", host="here", pid=4711, slots={"a": 3, "b": 5}, concurrency=concurrency))
        [record] = await store.workers()
        assert record.concurrency == concurrency
    assert (record.slots_of("a"), record.slots_of("b"), record.slots_of("c")) == (2, 2, 0)
    lease.close()
    await store.unregister("w-1")


async def test_attempts_are_counted_by_worker_and_handler(store: Store, hire: Hire) -> None:
    first, second, _idle = await hire(), await hire(), await hire()
    await store.add([new_task("a", collection=collection, priority=priority) for collection in ("eu", None) for priority in (1, 9)])
    await store.add([new_task("b") for _ in range(3)])
    assert await store.running_counts() == []
    tasks = await first.take(wants={"a": 3, "b": 1})
    await second.take(wants={"b": 1})
    assert await counts(store) == {(first.id, "a"): 3, (first.id, "b"): 1, (second.id, "b"): 1}
    for task in tasks:
        if task.handler == "b":
            await first.end(task, State.SUCCEEDED)
    assert await counts(store) == {(first.id, "a"): 3, (second.id, "b"): 1}


async def counts(store: Store) -> dict[tuple[str, str], int]:
    return {(each.worker, each.handler): each.count for each in await store.running_counts()}


async def test_the_attempts_of_a_worker_are_listed_with_their_claim_numbers(store: Store, hire: Hire) -> None:
    worker, other = await hire(), await hire()
    await store.add([new_task() for _ in range(4)])
    first = (await store.claim(worker.id, 101, {"work": 2}, 2)).tasks
    second = (await store.claim(worker.id, 205, {"work": 1}, 1)).tasks
    await other.take()
    await store.cancel([second[0].id])
    held = await store.attempts_of(worker.id)
    expected = [RunningAttempt(task.id, 1, 101, False) for task in first] + [RunningAttempt(second[0].id, 1, 205, True)]
    assert sorted(held, key=lambda attempt: attempt.id) == sorted(expected, key=lambda attempt: attempt.id)
    assert await store.attempts_of("nobody") == []


async def test_renewing_tells_gates_and_attempts(store: Store, worker: Worker) -> None:
    await store.add([new_task(), new_task()])
    claimed = await worker.take()
    await store.cancel([claimed[0].id])
    version = await store.put_gate(Gate(handler="other", action=GateAction.PAUSE))
    renewal = await asyncio.to_thread(worker.lease.renew)
    assert (renewal.known, renewal.gates_version) == (True, version)
    assert {held.id: (held.attempt, held.cancelling) for held in renewal.attempts} == {
        claimed[0].id: (1, True),
        claimed[1].id: (1, False),
    }
    assert sorted(renewal.attempts, key=lambda held: held.id) == sorted(await store.attempts_of(worker.id), key=lambda held: held.id)


async def test_renewing_after_settling_tells_of_no_attempts(store: Store, worker: Worker) -> None:
    await add(store)
    await worker.run(State.SUCCEEDED)
    assert (await asyncio.to_thread(worker.lease.renew)).attempts == []


async def test_a_worker_that_the_store_forgot_is_told_so(store: Store, hire: Hire) -> None:
    worker = await hire()
    assert (await asyncio.to_thread(worker.lease.renew)).known is True
    await store.unregister(worker.id)
    renewal = await asyncio.to_thread(worker.lease.renew)
    assert (renewal.known, renewal.attempts) == (False, [])


async def test_a_lease_can_be_renewed_many_times_from_its_own_thread(store: Store, worker: Worker) -> None:
    def keep() -> list[bool]:
        return [worker.lease.renew().known for _ in range(20)]

    assert await asyncio.to_thread(keep) == [True] * 20
    assert all(isinstance(descriptor, int) for descriptor in worker.lease.inheritable())


async def test_closing_a_lease_leaves_the_worker_registered(store: Store, worker: Worker) -> None:
    await add(store)
    worker.lease.close()
    worker.lease.close()
    assert [record.id for record in await store.workers()] == [worker.id]
    assert len(await worker.take()) == 1


async def test_unregistering_releases_attempts_without_a_try(store: Store, hire: Hire, clock: ManualClock) -> None:
    gone, other = await hire(), await hire()
    await store.add([new_task(), new_task(), new_task()])
    claimed = await gone.take()
    await gone.end(claimed[2], State.SUCCEEDED)
    clock.advance(1)
    await store.unregister(gone.id)
    assert [record.id for record in await store.workers()] == [other.id]
    for task in claimed[:2]:
        record = await get(store, task)
        assert (record.state, record.tries, record.crashes, record.attempt, record.worker) == (State.PENDING, 0, 0, 1, None)
        [attempt] = await store.attempts(task.id)
        assert (attempt.outcome, attempt.worker, attempt.finished_at) == (Outcome.RELEASED, gone.id, clock.now())
    assert await state_of(store, claimed[2]) is State.SUCCEEDED
    again = await other.take()
    assert {(task.id, task.attempt, task.tries) for task in again} == {(task.id, 2, 0) for task in claimed[:2]}


async def test_unregistering_keeps_the_tries_that_were_used(store: Store, hire: Hire) -> None:
    record = await add(store)
    gone = await hire()
    await gone.run(State.PENDING)
    await gone.take_one()
    await store.unregister(gone.id)
    assert ((await get(store, record)).tries, (await get(store, record)).attempt) == (1, 2)


async def test_unregistering_ends_a_task_with_a_cancel_mark(store: Store, hire: Hire) -> None:
    record = await add(store)
    gone = await hire()
    await gone.take_one()
    await store.cancel([record.id])
    await store.unregister(gone.id)
    assert await state_of(store, record) is State.CANCELLED


async def test_registering_again_is_harmless(store: Store) -> None:
    """A caller whose first try got no answer must be able to repeat it."""
    worker = NewWorker(id="w-1", host="here", pid=4711, slots={"work": 3})
    leases = [await store.register(worker), await store.register(worker)]
    assert [record.id for record in await store.workers()] == ["w-1"]
    await add(store)
    assert len((await store.claim("w-1", 1, {"work": 1}, 1)).tasks) == 1
    for lease in leases:
        lease.close()
    await store.unregister("w-1")


async def test_unregistering_an_unknown_worker_is_harmless(store: Store, worker: Worker) -> None:
    await store.unregister("nobody")
    await store.unregister("nobody")
    assert [record.id for record in await store.workers()] == [worker.id]
