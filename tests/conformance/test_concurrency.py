"""Several store objects on one store, all at work at once: no task is ever handed to two."""

from __future__ import annotations

import asyncio
from collections import Counter

from duetime.client.gates import barrier
from duetime.clock import SECOND, ManualClock
from duetime.model.gate import Gate, GateAction
from duetime.model.outcome import SettleVerdict
from duetime.model.task import State
from duetime.store import Store
from duetime.store.values import AddVerdict, CancelVerdict, ChangeVerdict
from tests.conformance.build import Worker, add, ended, new_task, put, state_of
from tests.conformance.conftest import Another, Hire
from tests.servers.waiting import PATIENCE


async def test_claimers_on_several_store_objects_never_share_a_task(store: Store, another: Another, hire: Hire) -> None:
    stores = [store, await another(), await another(), await another()]
    workers = [await hire(stores[index % 4]) for index in range(8)]
    answers = await store.add([new_task(f"h{number % 3}", priority=number % 10) for number in range(800)])
    given: Counter[tuple[str, int]] = Counter()

    async def work(worker: Worker) -> None:
        idle = 0
        while idle < 3:
            tasks = await worker.take("h0", "h1", "h2", total=7)
            idle = 0 if tasks else idle + 1
            given.update((task.id, task.attempt) for task in tasks)
            settlements = [ended(task, State.PENDING if task.attempt == 1 else State.SUCCEEDED, at=worker.store.now()) for task in tasks]
            assert set(await worker.store.settle(worker.id, settlements)) <= {SettleVerdict.ACCEPTED}

    await asyncio.gather(*(work(worker) for worker in workers))
    everything = {added.record.id for added in answers}
    assert given == Counter({(id, attempt): 1 for id in everything for attempt in (1, 2)})
    records = await store.get(list(everything))
    assert {record.state for record in records if record} == {State.SUCCEEDED}


async def test_adding_and_claiming_at_once_loses_nothing(store: Store, another: Another, hire: Hire, clock: ManualClock) -> None:
    """Past due times, bursts and a moving clock: wherever a task is inserted, some claim finds it."""
    other = await another()
    workers = [await hire(store), await hire(other)]
    added: list[str] = []
    claimed: list[str] = []
    adding = 2

    async def submit(at: Store, seed: int) -> None:
        nonlocal adding
        for number in range(60):
            shift = (number * 7919 + seed) % 4000 - 3000
            answers = await at.add([new_task(due_at=clock.now() + shift, priority=(number + each) % 10) for each in range(5)])
            added.extend(answer.record.id for answer in answers)
            clock.advance(0.0005)
        adding -= 1

    async def work(worker: Worker) -> None:
        while adding or len(claimed) < len(added):
            claimed.extend(task.id for task in await worker.take(wants={"work": 9}))
            if not adding:
                clock.advance(0.01)

    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(submit(store, 1), submit(other, 2), *(work(worker) for worker in workers))
    assert len(claimed) == 600
    assert sorted(claimed) == sorted(added)


async def test_everybody_who_replaces_a_waiting_task_replaces_it(store: Store, another: Another) -> None:
    stores = [store, await another(), await another(), await another()]
    held = await add(store, key="k", delay=SECOND)

    async def replace(at: Store, priority: int) -> list[AddVerdict]:
        return [(await put(at, key="k", delay=SECOND, if_exists="replace", priority=priority)).verdict for _ in range(10)]

    verdicts = await asyncio.gather(*(replace(stores[number % 4], number) for number in range(8)))
    assert {verdict for each in verdicts for verdict in each} == {AddVerdict.REPLACED}
    assert await state_of(store, held) is State.PENDING


async def test_a_key_has_one_holder_whoever_submits(store: Store, another: Another) -> None:
    stores = [store, await another(), await another()]
    answers = await asyncio.gather(*(put(stores[number % 3], key="k", if_exists="keep") for number in range(30)))
    assert Counter(added.verdict for added in answers) == {AddVerdict.ADDED: 1, AddVerdict.KEPT: 29}
    assert len({added.record.id for added in answers}) == 1


async def test_of_many_repeats_one_is_added(store: Store, another: Another) -> None:
    stores = [store, await another(), await another()]
    new_tasks = [new_task() for _ in range(10)]
    answers = await asyncio.gather(*(stores[number % 3].add(new_tasks) for number in range(12)))
    for index in range(10):
        verdicts = Counter(batch[index].verdict for batch in answers)
        assert verdicts == {AddVerdict.ADDED: 1, AddVerdict.REPEATED: 11}


async def test_a_task_that_is_cancelled_and_claimed_at_once_has_one_fate(store: Store, another: Another, worker: Worker) -> None:
    other = await another()
    for _ in range(20):
        record = await add(store)
        tasks, [verdict] = await asyncio.gather(worker.take(), other.cancel([record.id]))
        if verdict is CancelVerdict.CANCELLED:
            assert tasks == []
            assert await state_of(store, record) is State.CANCELLED
        else:
            assert verdict is CancelVerdict.CANCELLING
            [task] = tasks
            assert await worker.end(task, State.PENDING) is SettleVerdict.ACCEPTED
            assert await state_of(store, record) is State.CANCELLED


async def test_of_many_retries_one_changes_the_task(store: Store, another: Another, worker: Worker) -> None:
    stores = [store, await another()]
    record = await add(store)
    await worker.run(State.FAILED)
    verdicts = await asyncio.gather(*(stores[number % 2].retry([record.id]) for number in range(10)))
    assert Counter(verdict for [verdict] in verdicts) == {ChangeVerdict.CHANGED: 1, ChangeVerdict.REFUSED: 9}


async def test_of_many_settlements_one_is_accepted(store: Store, another: Another, worker: Worker, clock: ManualClock) -> None:
    stores = [store, await another()]
    await add(store)
    settlement = ended(await worker.take_one(), State.SUCCEEDED, at=clock.now())
    verdicts = await asyncio.gather(*(stores[number % 2].settle(worker.id, [settlement]) for number in range(10)))
    assert Counter(verdict for [verdict] in verdicts) == {SettleVerdict.ACCEPTED: 1, SettleVerdict.ALREADY: 9}


async def test_gates_and_cancels_of_one_store_object_hold_on_another(store: Store, another: Another, hire: Hire) -> None:
    other = await another()
    worker = await hire(other)
    await add(store)
    await worker.take("nothing")
    version = await store.put_gate(Gate(handler="work", action=GateAction.PAUSE))
    assert await worker.take() == []
    await other.confirm_gates(worker.id, version)
    assert (await barrier(store, version)).confirmed == [worker.id]
    await store.remove_gate("work", None)
    assert len(await worker.take()) == 1


async def test_the_tasks_of_one_call_are_seen_together(store: Store, another: Another) -> None:
    """Where a call is atomic; elsewhere those of each shard are."""
    other = await another()
    tasks = [new_task(key=f"k{number}") for number in range(300)]
    adding = asyncio.create_task(store.add(tasks))
    seen = {0}
    while not adding.done():
        seen.add(sum(found is not None for found in await other.get([task.id for task in tasks])))
    await adding
    if store.traits.atomic == "call":
        assert seen <= {0, len(tasks)}
    assert None not in await other.get([task.id for task in tasks])
