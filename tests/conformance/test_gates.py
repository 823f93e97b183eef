"""Gates: what they hold, how their versions grow, who has confirmed them, and that timed ones open by themselves."""

from __future__ import annotations

import msgspec
import pytest

from duetime.client.gates import barrier
from duetime.clock import SECOND, ManualClock
from duetime.model.gate import Gate, GateAction
from duetime.model.task import State
from duetime.store import Store
from tests.conformance.build import PLENTY, Worker, add, get, new_task, put, state_of
from tests.conformance.conftest import Hire


def pause(handler: str = "work", collection: str | None = None, **options: object) -> Gate:
    return msgspec.structs.replace(Gate(handler=handler, collection=collection, action=GateAction.PAUSE), **options)


def drop(handler: str = "work", collection: str | None = None, **options: object) -> Gate:
    return msgspec.structs.replace(pause(handler, collection, **options), action=GateAction.DROP)


@pytest.mark.parametrize("gate", [pause(), drop()])
async def test_a_gate_on_a_handler_holds_all_its_tasks_and_no_others(store: Store, worker: Worker, gate: Gate) -> None:
    held = [await add(store), await add(store, collection="eu")]
    free = await add(store, "other", collection="eu")
    await store.put_gate(gate)
    assert [task.id for task in await worker.take("work", "other")] == [free.id]
    assert [(await get(store, task)).attempt for task in held] == [0, 0]
    assert [await state_of(store, task) for task in held] == [State.PENDING, State.PENDING]


@pytest.mark.parametrize("gate", [pause("work", "eu"), drop("work", "eu")])
async def test_a_gate_on_a_collection_holds_only_that_collection_of_the_handler(store: Store, worker: Worker, gate: Gate) -> None:
    held = await add(store, collection="eu")
    free = [await add(store), await add(store, collection="us"), await add(store, "other", collection="eu")]
    await store.put_gate(gate)
    assert {task.id for task in await worker.take("work", "other")} == {task.id for task in free}
    assert await state_of(store, held) is State.PENDING


async def test_a_gate_holds_tasks_added_after_it_and_retries(store: Store, worker: Worker) -> None:
    record = await add(store)
    task = await worker.take_one()
    await store.put_gate(pause())
    await worker.end(task, State.PENDING)
    await add(store)
    assert await worker.take() == []
    assert await state_of(store, record) is State.PENDING


async def test_a_gate_lets_a_running_attempt_end(store: Store, worker: Worker) -> None:
    record = await add(store)
    task = await worker.take_one()
    await store.put_gate(pause())
    await worker.end(task, State.SUCCEEDED)
    assert await state_of(store, record) is State.SUCCEEDED


async def test_paused_tasks_run_in_order_when_the_gate_is_opened(store: Store, worker: Worker, clock: ManualClock) -> None:
    await store.put_gate(pause())
    records = []
    for _ in range(5):
        records.append(await add(store))
        clock.advance(1)
        assert await worker.take() == []
    assert await store.remove_gate("work", None) is not None
    assert [task.id for task in await worker.take()] == [record.id for record in records]


async def test_opening_the_handlers_gate_leaves_its_collections_gate_closed(store: Store, worker: Worker) -> None:
    inside, outside = await add(store, collection="eu"), await add(store)
    await store.put_gate(pause())
    await store.put_gate(pause(collection="eu"))
    await store.remove_gate("work", None)
    assert [task.id for task in await worker.take()] == [outside.id]
    await store.remove_gate("work", "eu")
    assert [task.id for task in await worker.take()] == [inside.id]


async def test_a_flood_of_gated_tasks_does_not_keep_others_from_being_claimed(store: Store, worker: Worker) -> None:
    """The number of held tasks is small here; bench/ has the large one."""
    await store.put_gate(pause("flood"))
    await store.add([new_task("flood", priority=9) for _ in range(3000)])
    free = await add(store, "calm", priority=0)
    assert [task.id for task in await worker.take(wants={"flood": 10, "calm": 10}, total=5)] == [free.id]


async def test_the_lanes_of_a_gated_collection_use_up_nothing_of_a_claim(store: Store, worker: Worker) -> None:
    await store.put_gate(pause(collection="held"))
    await store.add([new_task(collection="held", priority=9) for _ in range(100)])
    free = [await add(store, priority=1, collection=name) for name in (None, "a", "b")]
    assert {task.id for task in await worker.take(wants={"work": 3}, total=3)} == {task.id for task in free}


async def test_versions_grow_with_every_change(store: Store) -> None:
    versions = [(await store.gates()).version]
    versions.append(await store.put_gate(pause("a")))
    versions.append(await store.put_gate(drop("a")))
    versions.append(await store.put_gate(pause("a", "eu")))
    removed = await store.remove_gate("a", "eu")
    assert removed is not None
    versions.append(removed)
    assert versions == sorted(set(versions))
    assert (await store.gates()).version == versions[-1]


async def test_opening_a_gate_that_is_not_there_says_none_and_changes_nothing(store: Store) -> None:
    version = await store.put_gate(pause("a", "eu"))
    assert await store.remove_gate("a", None) is None
    assert await store.remove_gate("a", "us") is None
    assert await store.remove_gate("b", "eu") is None
    gates = await store.gates()
    assert (gates.version, len(list(gates))) == (version, 1)


async def test_a_gate_is_kept_as_it_was_set(store: Store, clock: ManualClock) -> None:
    gate = drop("work", "eu", until_at=clock.now() + 60 * SECOND, note="stock service down", set_by="ops", set_at=clock.now())
    await store.put_gate(gate)
    assert list(await store.gates()) == [gate]


async def test_a_gate_replaces_an_earlier_one(store: Store) -> None:
    await store.put_gate(pause(note="first"))
    await store.put_gate(pause(collection="eu", note="eu"))
    await store.put_gate(drop(note="second"))
    gates = {(gate.handler, gate.collection): (gate.action, gate.note) for gate in await store.gates()}
    assert gates == {("work", None): (GateAction.DROP, "second"), ("work", "eu"): (GateAction.PAUSE, "eu")}


async def test_the_next_look_is_when_a_task_comes_due_that_a_gate_drops(store: Store, worker: Worker, clock: ManualClock) -> None:
    """Whoever steps from instant to instant must not step over it: at the gate's end it would run."""
    dropped = await add(store, delay=10 * SECOND, collection="eu")
    await store.put_gate(drop(collection="eu", until_at=clock.now() + 60 * SECOND))
    assert (await worker.claim()).next_at == dropped.due_at
    await add(store, delay=20 * SECOND)
    assert (await worker.claim()).next_at == dropped.due_at
    clock.advance(10)
    assert await store.drop(PLENTY) == 1
    assert (await worker.claim()).next_at == dropped.due_at + 10 * SECOND


async def test_a_timed_gate_opens_by_itself_at_its_instant(store: Store, worker: Worker, clock: ManualClock) -> None:
    record = await add(store)
    until_at = clock.now() + 10 * SECOND
    await store.put_gate(pause(until_at=until_at))
    assert (await worker.claim()).next_at == until_at
    clock.set(until_at - 1)
    assert await worker.take() == []
    assert len(list(await store.gates())) == 1
    clock.set(until_at)
    assert list(await store.gates()) == []
    assert [task.id for task in await worker.take()] == [record.id]


async def test_a_timed_gate_on_a_collection_gives_way_to_the_handlers_gate(store: Store, worker: Worker, clock: ManualClock) -> None:
    await add(store, collection="eu")
    await store.put_gate(pause(collection="eu", until_at=clock.now() + SECOND))
    await store.put_gate(pause())
    clock.advance(2)
    assert await worker.take() == []
    await store.remove_gate("work", None)
    assert len(await worker.take()) == 1


async def test_a_timed_gate_can_be_prolonged(store: Store, worker: Worker, clock: ManualClock) -> None:
    await add(store)
    await store.put_gate(pause(until_at=clock.now() + SECOND))
    await store.put_gate(pause(until_at=clock.now() + 10 * SECOND))
    clock.advance(2)
    assert await worker.take() == []
    clock.advance(8)
    assert len(await worker.take()) == 1


async def test_a_gate_waits_for_every_worker_to_confirm(store: Store, hire: Hire) -> None:
    first, second = await hire(), await hire()
    version = await store.put_gate(pause())
    reached = await barrier(store, version)
    assert (reached.confirmed, sorted(reached.waiting)) == ([], sorted([first.id, second.id]))
    await store.confirm_gates(first.id, version)
    reached = await barrier(store, version)
    assert (reached.confirmed, reached.waiting) == ([first.id], [second.id])
    await store.confirm_gates(second.id, version)
    reached = await barrier(store, version)
    assert (sorted(reached.confirmed), reached.waiting) == (sorted([first.id, second.id]), [])
    assert {record.seen_gates for record in await store.workers()} == {version}


async def test_confirming_a_version_confirms_all_before_it_and_none_after(store: Store, worker: Worker) -> None:
    first = await store.put_gate(pause("a"))
    second = await store.put_gate(pause("b"))
    third = await store.put_gate(pause("c"))
    await store.confirm_gates(worker.id, second)
    assert (await barrier(store, first)).waiting == []
    assert (await barrier(store, second)).confirmed == [worker.id]
    assert (await barrier(store, third)).waiting == [worker.id]


async def test_a_late_confirmation_of_an_earlier_version_takes_nothing_back(store: Store, worker: Worker) -> None:
    first = await store.put_gate(pause("a"))
    second = await store.put_gate(pause("b"))
    await store.confirm_gates(worker.id, second)
    await store.confirm_gates(worker.id, first)
    assert (await barrier(store, second)).confirmed == [worker.id]


async def test_without_workers_a_barrier_is_empty(store: Store, hire: Hire) -> None:
    gone = await hire()
    await store.unregister(gone.id)
    reached = await barrier(store, await store.put_gate(pause()))
    assert (reached.confirmed, reached.waiting) == ([], [])


async def test_an_unknown_worker_may_confirm_without_effect(store: Store) -> None:
    version = await store.put_gate(pause())
    await store.confirm_gates("nobody", version)
    assert await store.workers() == []


async def test_a_task_under_a_gate_can_be_replaced_and_cancelled(store: Store, worker: Worker) -> None:
    record = await add(store, key="k")
    await store.put_gate(pause())
    await put(store, key="k", if_exists="replace", payload=b'{"new": 1}')
    await store.cancel([record.id])
    await store.remove_gate("work", None)
    assert await worker.take() == []
