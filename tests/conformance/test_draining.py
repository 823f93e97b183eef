"""Draining: a worker that is given nothing more, keeps what it runs, and stays registered until that is undone."""

from __future__ import annotations

import asyncio

import pytest

from duetime.clock import SECOND, ManualClock
from duetime.ids import new_id
from duetime.model.disabling import DisableAfter, Observed
from duetime.model.outcome import Outcome, SettleVerdict
from duetime.model.task import ErrorInfo, State
from duetime.store import Store
from duetime.store.pull_workers import PullWorker
from duetime.store.values import NewWorker
from tests.conformance.build import PLENTY, add, ended, state_of
from tests.conformance.conftest import Hire


async def draining(store: Store) -> dict[str, bool]:
    return {worker.id: worker.draining for worker in await store.workers()}


async def test_a_draining_worker_claims_nothing_and_ends_what_it_runs(store: Store, hire: Hire) -> None:
    worker, other = await hire(), await hire()
    task = (await add(store)).id
    mine = await worker.take_one()
    assert await store.drain(worker.id, True)
    assert await draining(store) == {worker.id: True, other.id: False}
    waits = (await add(store)).id
    assert await worker.take() == []
    assert await worker.end(mine, State.SUCCEEDED) is SettleVerdict.ACCEPTED
    assert await state_of(store, task) is State.SUCCEEDED
    assert [claimed.id for claimed in await other.take()] == [waits]


async def test_a_renewal_tells_a_worker_that_it_drains_and_that_it_may_claim_again(store: Store, hire: Hire) -> None:
    worker = await hire()
    task = (await add(store)).id
    assert (await asyncio.to_thread(worker.lease.renew)).draining is False
    await store.drain(worker.id, True)
    assert (await asyncio.to_thread(worker.lease.renew)).draining is True
    assert await store.drain(worker.id, False)
    assert (await asyncio.to_thread(worker.lease.renew)).draining is False
    assert [claimed.id for claimed in await worker.take()] == [task]


async def test_a_draining_worker_claims_no_parked_task(store: Store, hire: Hire) -> None:
    worker, other = await hire(), await hire()
    await add(store)
    refused = await other.take_one()
    await other.end(refused, State.PENDING, outcome=Outcome.PARKED, refused_by="old", error=ErrorInfo("InvalidPayload", "no"))
    await store.drain(worker.id, True)
    assert await worker.take_parked("new") == []
    await store.drain(worker.id, False)
    assert [claimed.id for claimed in await worker.take_parked("new")] == [refused.id]


async def test_a_draining_worker_sends_nothing_through_a_gate(store: Store, clock: ManualClock, hire: Hire) -> None:
    worker = await hire()
    rule, version = DisableAfter(1, lasting=0, probe_every=60), (await store.gates()).version
    observed = Observed(handler="work", failures=1, since_at=store.now(), last="503", rule=rule, seen_gates=version)
    await store.observe(worker.id, [observed])
    task = (await add(store)).id
    clock.advance(61 * SECOND)
    gate = (await store.take_probe(["work"])).gate
    assert gate is not None
    await store.drain(worker.id, True)
    assert await worker.take_through(gate) == []
    await store.drain(worker.id, False)
    assert [claimed.id for claimed in await worker.take_through(gate)] == [task]


async def test_draining_is_kept_by_a_change_of_slots_and_by_a_worker_that_registers_again_as_draining(store: Store, hire: Hire) -> None:
    worker = await hire()
    await store.drain(worker.id, True)
    await store.change_slots(NewWorker(id=worker.id, host="here", pid=1, slots={"work": 7}))
    assert await draining(store) == {worker.id: True}
    await store.unregister(worker.id)
    lease = await store.register(NewWorker(id=worker.id, host="here", pid=1, slots={"work": 1}, draining=True))
    assert await draining(store) == {worker.id: True}
    lease.close()


async def test_a_worker_that_is_not_registered_cannot_be_drained(store: Store, hire: Hire) -> None:
    await hire()
    assert await store.drain("nobody", True) is False
    assert await store.drain("'; drop table x; --", False) is False


async def test_a_pull_worker_drains_too(store: Store, clock: ManualClock) -> None:
    puller = PullWorker(id=new_id(), name="resizer", slots={"work": 10}, lease=30.0)
    await store.register_pull_worker(puller)
    await add(store)
    [mine] = (await store.claim_for(puller.id, 1, {"work": PLENTY}, PLENTY)).tasks
    assert await store.drain(puller.id, True)
    await store.register_pull_worker(puller)  # again
    found = await store.pull_worker(puller.id)
    assert found is not None
    assert found.draining
    waits = (await add(store)).id
    assert (await store.claim_for(puller.id, 2, {"work": PLENTY}, PLENTY)).tasks == []
    assert await store.settle(puller.id, [ended(mine, State.SUCCEEDED, at=clock.now())]) == [SettleVerdict.ACCEPTED]
    await store.drain(puller.id, False)
    assert [task.id for task in (await store.claim_for(puller.id, 3, {"work": PLENTY}, PLENTY)).tasks] == [waits]


@pytest.mark.parametrize(("version", "python"), [("1.2.3", "3.13.1"), (None, None)])
async def test_a_worker_is_listed_with_its_versions(store: Store, version: str | None, python: str | None) -> None:
    lease = await store.register(NewWorker(id="w-1", host="here", pid=4711, slots={"a": 3}, version=version, python=python))
    [record] = await store.workers()
    assert (record.version, record.python) == (version, python)
    lease.close()
    await store.unregister("w-1")
