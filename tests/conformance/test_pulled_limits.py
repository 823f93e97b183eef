"""Pull workers under limits of the whole fleet: their claims take what is left, and what they run counts until it has ended."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from duetime.ids import new_id
from duetime.model.limit import Ask
from duetime.model.task import State
from duetime.store import Store
from duetime.store.pull_workers import PullWorker
from duetime.store.values import ClaimedTask
from tests.conformance.build import PLENTY, Worker, ended, new_task
from tests.conformance.conftest import Another


async def enlist(store: Store) -> str:
    puller = PullWorker(id=new_id(), name="resizer", slots={"work": 10, "other": 10}, lease=30.0)
    await store.register_pull_worker(puller)
    return puller.id


async def pull(store: Store, puller: str, number: int, **wants: int) -> list[ClaimedTask]:
    return (await store.claim_for(puller, number, wants or {"work": PLENTY}, PLENTY)).tasks


async def allot(worker: Worker, number: int, want: int, *, held: int = 0, **uses: int) -> int:
    asked = Ask(limit="erp", declared=4, uses=uses or {"work": 1}, held=held, want=want)
    return (await worker.store.allot(worker.id, number, [asked]))[0].permits


async def test_a_pull_worker_gets_what_permits_have_left(store: Store, worker: Worker) -> None:
    await store.add([new_task() for _ in range(10)])
    assert await allot(worker, 1, 1) == 1
    puller = await enlist(store)
    tasks = await pull(store, puller, 1)
    assert len(tasks) == 3
    assert await pull(store, puller, 2) == []
    assert await allot(worker, 2, 4, held=1) == 1  # what it runs counts for those who ask for permits
    [limit] = await store.limits()
    assert (limit.out, limit.accepted) == (4, 3)
    await store.settle(puller, [ended(tasks[0], State.SUCCEEDED, at=store.now())])
    assert len(await pull(store, puller, 3)) == 1
    await store.settle(puller, [ended(tasks[1], State.PENDING, at=store.now())])
    assert await allot(worker, 3, 4, held=1) == 2
    assert await pull(store, puller, 4) == []


async def test_an_attempt_takes_what_its_handler_takes(store: Store, worker: Worker) -> None:
    await store.add([new_task(handler) for handler in ("work", "other", "free") for _ in range(5)])
    await allot(worker, 1, 0, work=3, other=2)
    puller = await enlist(store)
    claimed = Counter(task.handler for task in await pull(store, puller, 1, work=9, other=9, free=9))
    assert claimed in ({"work": 1, "free": 5}, {"other": 2, "free": 5})
    assert await pull(store, puller, 2, work=9, other=9) == []


async def test_a_pull_worker_gets_nothing_while_a_worker_is_waited_for(store: Store, worker: Worker) -> None:
    await store.add([new_task() for _ in range(10)])
    asked = Ask(limit="erp", declared=4, uses={"work": 1, "large": 4}, held=0, want=4, least=4, waited=1_000_000)
    puller = await enlist(store)
    await allot(worker, 1, 0, work=1, large=4)
    [one, *_] = await pull(store, puller, 1, work=1)
    assert (await worker.store.allot(worker.id, 2, [asked]))[0].permits == 0
    assert await pull(store, puller, 2) == []
    await store.settle(puller, [ended(one, State.SUCCEEDED, at=store.now())])
    assert await pull(store, puller, 3) == []
    assert (await worker.store.allot(worker.id, 3, [asked]))[0].permits == 4


async def test_a_handler_without_tasks_keeps_no_other_from_a_limit(store: Store, worker: Worker) -> None:
    await allot(worker, 1, 0, work=1, other=1)
    puller = await enlist(store)
    for number, handler in enumerate(["work", "other", "work"]):
        await store.add([new_task(handler)])
        assert [task.handler for task in await pull(store, puller, number, work=9, other=9)] == [handler]


async def test_what_a_pull_worker_ran_is_free_when_it_is_gone(store: Store, worker: Worker) -> None:
    await store.add([new_task() for _ in range(10)])
    await allot(worker, 1, 0)
    puller = await enlist(store)
    assert len(await pull(store, puller, 1)) == 4
    assert await allot(worker, 2, 4) == 0
    await store.unregister(puller)
    assert await allot(worker, 3, 4) == 4


@pytest.mark.parametrize("order", [1, -1])
async def test_claims_at_once_take_no_more_than_there_is(store: Store, another: Another, worker: Worker, order: int) -> None:
    await store.add([new_task() for _ in range(40)])
    await allot(worker, 1, 0)
    stores = [store, await another(), await another()]
    pullers = [await enlist(store) for _ in range(6)]

    async def pulled(index: int) -> int:
        return len(await pull(stores[index % 3], pullers[index], 1, work=3))

    counts = await asyncio.gather(*(pulled(index) for index in range(6)[::order]), allot(worker, 2, 2))
    assert sum(counts) == 4
