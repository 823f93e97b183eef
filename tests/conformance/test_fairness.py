"""Collections that share a handler's starts: by their weights, above priority, however many there are and whatever waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest

from duetime.clock import SECOND, ManualClock
from duetime.model.gate import Gate, GateAction
from duetime.model.task import State
from duetime.store import Store
from duetime.store.values import ClaimedTask, Declaration
from tests.conformance.build import PLENTY, Worker, new_task
from tests.conformance.conftest import Another, Hire


async def make_fair(store: Store, handler: str = "work", **weights: float) -> None:
    await store.declare([Declaration(name=handler, fair=True)])
    if weights:
        await store.put_weights(handler, weights, note="", set_by="ops")


async def fill(store: Store, collections: Iterable[str | None], each: int, priority: int = 5) -> None:
    await store.add([new_task(collection=collection, priority=priority) for collection in collections for _ in range(each)])


async def take(worker: Worker, want: int, handler: str = "work") -> list[ClaimedTask]:
    return await worker.take(wants={handler: want}, total=want)


def shares(tasks: Iterable[ClaimedTask]) -> Counter[str | None]:
    return Counter(task.collection for task in tasks)


async def test_collections_have_the_starts_that_their_weights_say(store: Store, worker: Worker) -> None:
    await make_fair(store, gold=4, trial=0.5)
    for collection in ("gold", "silver", "trial"):  # one after another: by age alone the first would have all
        await fill(store, [collection], 200)
    taken: Counter[str | None] = Counter()
    for _ in range(10):
        taken += shares(await take(worker, 22))
    assert taken == {"gold": 160, "silver": 40, "trial": 20}
    assert shares(await worker.take()) == {"gold": 40, "silver": 160, "trial": 180}


async def test_one_task_beside_a_flood_of_a_higher_priority_starts_with_the_next_claim(store: Store, worker: Worker) -> None:
    await make_fair(store)
    await fill(store, ["flood"], 300, priority=9)
    assert shares(await take(worker, 10)) == {"flood": 10}
    await fill(store, ["small", None], 1, priority=0)
    assert shares(await take(worker, 4)) == {"flood": 2, "small": 1, None: 1}
    assert shares(await take(worker, 4)) == {"flood": 4}


async def test_who_was_idle_has_saved_nothing_up(store: Store, worker: Worker) -> None:
    await make_fair(store)
    await fill(store, ["a"], 300)
    assert shares(await take(worker, 100)) == {"a": 100}
    await fill(store, ["b"], 100)
    assert shares(await take(worker, 50)) == {"a": 25, "b": 25}


async def test_inside_of_a_collection_priority_decides(store: Store, worker: Worker) -> None:
    await make_fair(store)
    for priority in (1, 5, 9):
        await fill(store, ["a", "b"], 10, priority=priority)
    tasks = await take(worker, 14)
    assert shares(tasks) == {"a": 7, "b": 7}
    assert Counter(task.priority for task in tasks) == {9: 14}


async def test_without_it_the_first_come_first(store: Store, worker: Worker) -> None:
    await fill(store, ["flood"], 30)
    await fill(store, ["small"], 3)
    assert shares(await take(worker, 20)) == {"flood": 20}


async def test_weights_make_a_handler_fair_and_without_them_its_code_decides(store: Store, worker: Worker) -> None:
    await store.declare([Declaration(name="work")])
    await fill(store, ["flood"], 60)
    await fill(store, ["small"], 60)
    await store.put_weights("work", {"small": 3}, note="flood", set_by="ops")
    [record] = await store.weights()
    assert (record.handler, record.declared, record.weights, record.note, record.set_by) == ("work", False, {"small": 3.0}, "flood", "ops")
    assert record.set_at == store.now()
    assert shares(await take(worker, 8)) == {"flood": 2, "small": 6}
    await store.put_weights("work", {}, note="", set_by="ops")
    assert shares(await take(worker, 8)) == {"flood": 8}
    await make_fair(store)
    assert shares(await take(worker, 8)) == {"flood": 4, "small": 4}
    await store.declare([Declaration(name="work", doc="no longer")])
    assert shares(await take(worker, 8)) == {"flood": 8}


async def test_other_processes_go_by_new_weights_too(store: Store, hire: Hire, another: Another) -> None:
    await make_fair(store)
    await fill(store, ["a", "b"], 200)
    first, second = await hire(), await hire(await another())
    assert [shares(await take(each, 20)) for each in (first, second)] == [{"a": 10, "b": 10}] * 2
    await store.put_weights("work", {"b": 4}, note="", set_by="ops")
    assert [shares(await take(each, 20)) for each in (first, second)] == [{"a": 4, "b": 16}] * 2


async def test_a_renamed_handler_keeps_its_weights(store: Store, worker: Worker) -> None:
    await make_fair(store, "old", b=3)
    await store.declare([Declaration(name="new", aliases=("old",), fair=True)])
    await store.add([new_task(name, collection=each) for name in ("old", "new") for each in ("a", "b") for _ in range(20)])
    assert shares(await take(worker, 8, "new")) == {"a": 2, "b": 6}
    assert shares(await take(worker, 8, "old")) == {"a": 2, "b": 6}
    await store.put_weights("old", {"a": 3}, note="", set_by="")
    assert [(each.handler, each.weights) for each in await store.weights()] == [("new", {"a": 3.0})]


async def test_what_a_gate_holds_has_no_share(store: Store, worker: Worker, clock: ManualClock) -> None:
    await make_fair(store)
    await fill(store, ["a", "b", "c"], 30)
    await store.put_gate(Gate(handler="work", collection="b", action=GateAction.PAUSE, until_at=store.now() + 60 * SECOND))
    assert shares(await take(worker, 10)) == {"a": 5, "c": 5}
    await store.remove_gate("work", "b")
    assert shares(await take(worker, 12)) == {"a": 4, "b": 4, "c": 4}


async def test_handlers_are_served_round_robin_as_ever(store: Store, worker: Worker) -> None:
    await make_fair(store)
    await fill(store, ["flood"], 40)
    await fill(store, ["small"], 40)
    await store.add([new_task("other") for _ in range(40)])
    tasks = await worker.take(wants={"work": 40, "other": 40}, total=8)
    assert Counter(task.handler for task in tasks) == {"work": 4, "other": 4}
    assert shares(task for task in tasks if task.handler == "work") == {"flood": 2, "small": 2}


async def test_slots_that_are_kept_are_kept_from_all_collections(store: Store, worker: Worker) -> None:
    await make_fair(store)
    for priority in (1, 9):
        await fill(store, ["a", "b"], 20, priority=priority)
    claim = await worker.store.claim(worker.id, 10_000, {"work": 60}, 60, below={"work": {9: 4}})
    assert Counter(task.priority for task in claim.tasks) == {9: 40, 1: 4}


@pytest.mark.parametrize("want", [7, 90])
async def test_of_many_collections_each_is_served_and_nothing_is_left_out(
    store: Store, worker: Worker, clock: ManualClock, want: int
) -> None:
    await make_fair(store)
    many = [f"c{number}" for number in range(150)]
    await fill(store, ["flood"], 200)
    await fill(store, many, 2)
    await store.add([new_task(collection=f"later{number}", due_at=store.now() + 3_600 * SECOND) for number in range(100)])
    first = [task for _ in range(190 // want) for task in await take(worker, want)]
    assert max(shares(first).values()) <= 1 + 190 // 64  # a claim visits 64 collections at first, and takes of each its share
    clock.advance(1)
    await fill(store, ["new"], 1)  # found among what has become due since, although not all lanes are looked into
    round_ = [task for _ in range(152 // min(want, 64) + 1) for task in await take(worker, want)]
    assert "new" in shares(round_)
    first += round_
    while tasks := await take(worker, want):
        first += tasks
    counted = shares(first)
    assert sum(counted.values()) == 501
    assert all(counted[each] <= 2 for each in many)
    clock.advance(3_600)
    assert len(await worker.take()) == 100


async def test_an_attempt_that_goes_back_is_found_again(store: Store, worker: Worker) -> None:
    await make_fair(store)
    await fill(store, ["a"], 100)
    await fill(store, ["b"], 1)
    [task] = [task for task in await take(worker, 4) if task.collection == "b"]
    await worker.end(task, State.PENDING)
    assert shares(await take(worker, 4))["b"] == 1
    assert len(await worker.take(total=PLENTY)) == 94
