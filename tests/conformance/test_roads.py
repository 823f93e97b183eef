"""Many collections of a handler: claims keep their order and their gates, however they find what is due among them."""

from __future__ import annotations

from duetime.clock import SECOND, ManualClock
from duetime.model.gate import Gate, GateAction
from duetime.model.task import State
from duetime.store import Store
from duetime.store.values import Edit
from tests.conformance.build import Worker, add, new_task

COLLECTIONS = 40


def pause(collection: str) -> Gate:
    return Gate(handler="work", collection=collection, action=GateAction.PAUSE)


async def fill(store: Store, clock: ManualClock) -> list[str]:
    """Add a task in each collection, each a second after the one before; return their ids in the order of claims."""
    tasks = []
    for number in range(COLLECTIONS):
        tasks.append(new_task(collection=f"c{number * 7 % COLLECTIONS}", priority=9 if number % 4 == 3 else 5))
        await store.add([tasks[-1]])
        clock.advance(SECOND)
    return [task.id for task in sorted(tasks, key=lambda task: -task.priority)]


async def test_priority_and_age_count_across_collections(store: Store, worker: Worker, clock: ManualClock) -> None:
    ids = await fill(store, clock)
    plain = await add(store, priority=5)
    claimed = [task.id for _ in range(COLLECTIONS // 4) for task in await worker.take(wants={"work": 4}, total=4)]
    # one in sixteen is the oldest of all, so the exact order is that of the rule; nothing is left out, and high priorities come first
    assert sorted(claimed) == sorted(ids)
    assert set(claimed[:10]) == set(ids[:10])
    assert [task.id for task in await worker.take()] == [plain.id]


async def test_tasks_come_with_their_own_collection(store: Store, worker: Worker, clock: ManualClock) -> None:
    ids = await fill(store, clock)
    records = {task.id: task.collection for task in await worker.take()}
    stored = {record.id: record.collection for record in await store.get(ids) if record is not None}
    assert records == stored
    assert len(set(records.values())) == COLLECTIONS


async def test_a_gate_holds_one_of_many_collections_until_it_opens(store: Store, worker: Worker, clock: ManualClock) -> None:
    await fill(store, clock)
    await store.put_gate(pause("c3"))
    await store.add([new_task(collection="c3"), new_task(collection="later", due_at=clock.now() + 60 * SECOND)])
    claim = await worker.claim()
    assert len(claim.tasks) == COLLECTIONS - 1
    assert "c3" not in {task.collection for task in claim.tasks}
    assert claim.next_at == clock.now() + 60 * SECOND  # although what the gate holds has been due for long
    await store.remove_gate("work", "c3")
    assert [task.collection for task in await worker.take()] == ["c3", "c3"]
    clock.advance(60 * SECOND)
    assert [task.collection for task in await worker.take()] == ["later"]


async def test_a_task_that_gets_another_collection_is_found_there(store: Store, worker: Worker) -> None:
    task = await add(store, collection="one")
    await store.put_gate(pause("one"))
    assert await worker.take() == []
    await store.edit([Edit(id=task.id, collection="two")])
    assert [each.collection for each in await worker.take()] == ["two"]


async def test_what_goes_back_is_claimed_again_and_what_is_later_is_announced(store: Store, worker: Worker, clock: ManualClock) -> None:
    await fill(store, clock)
    tasks = await worker.take()
    for task in tasks[:3]:
        await worker.end(task, State.PENDING, due_at=clock.now() + SECOND)
    claim = await worker.claim()
    assert (claim.tasks, claim.next_at) == ([], clock.now() + SECOND)
    clock.advance(SECOND)
    assert sorted(task.id for task in await worker.take()) == sorted(task.id for task in tasks[:3])


async def test_two_handlers_with_the_same_collections_keep_apart(store: Store, worker: Worker) -> None:
    for number in range(10):
        await store.add([new_task(handler, collection=f"c{number}") for handler in ("work", "other")])
    assert {task.handler for task in await worker.take("other")} == {"other"}
    assert len(await worker.take("work", "other")) == 10


async def test_nothing_impossible_is_found_after_all_that(store: Store, worker: Worker, clock: ManualClock) -> None:
    await fill(store, clock)
    await worker.take(wants={"work": 7}, total=7)
    assert [finding for finding in await store.inspect(repair=False) if finding.kind == "late lane"] == []
