"""Slots that a handler keeps for high priorities: what a claim hands out of the lower ones."""

from __future__ import annotations

from collections import Counter

import pytest

from duetime.model.task import State
from duetime.store import Store
from duetime.store.values import ClaimedTask
from tests.conformance.build import PLENTY, Worker, new_task


async def take(worker: Worker, number: int, want: int, below: dict[int, int], total: int = PLENTY) -> Counter[int]:
    claim = await worker.store.claim(worker.id, 1_000 + number, {"work": want, "other": 5}, total, below={"work": below})
    return Counter(task.priority for task in claim.tasks if task.handler == "work")


@pytest.mark.parametrize("collections", [[None], ["eu", "us"]])
async def test_no_more_of_the_lower_priorities_are_handed_out(store: Store, worker: Worker, collections: list[str | None]) -> None:
    await store.add([new_task(priority=priority, collection=collection) for collection in collections for priority in [1, 5, 9] * 10])
    each = 10 * len(collections)
    first = await take(worker, 1, 3 + each, {9: 3})
    assert (first[9], first[5] + first[1]) == (each, 3)  # one in sixteen is the oldest of those that may be handed out
    assert await take(worker, 2, 8, {9: 0}) == {}
    second = await take(worker, 3, 8, {9: 5, 5: 2})
    assert (second.total(), second[1] <= 2) == (5, True)
    assert (await take(worker, 4, PLENTY, {9: PLENTY, 5: 0})) == {5: each - first[5] - second[5]}
    assert (await take(worker, 5, PLENTY, {5: 1})) == {1: 1}


async def test_one_lane_alone_keeps_to_it_too(store: Store, worker: Worker) -> None:
    await store.add([new_task(priority=3) for _ in range(10)])
    assert await take(worker, 1, 8, {9: 3}) == {3: 3}
    assert await take(worker, 2, 8, {9: 0}) == {}
    assert await take(worker, 3, 8, {3: 0}) == {3: 7}


async def test_other_handlers_are_served_meanwhile(store: Store, worker: Worker) -> None:
    await store.add([new_task(name, priority=1) for name in ("work", "other") for _ in range(4)])
    tasks: list[ClaimedTask] = (await store.claim(worker.id, 1, {"work": 4, "other": 4}, PLENTY, below={"work": {9: 1}})).tasks
    assert Counter(task.handler for task in tasks) == {"work": 1, "other": 4}


async def test_what_was_left_is_found_afterwards(store: Store, worker: Worker) -> None:
    await store.add([new_task(priority=1) for _ in range(3)] + [new_task(priority=9)])
    assert await take(worker, 1, 4, {9: 1}) == {9: 1, 1: 1}
    assert await take(worker, 2, 4, {9: 0}) == {}
    assert len(await worker.take()) == 2
    assert await worker.take() == []
    assert (await store.claim(worker.id, 2_000, {"work": 1}, 1)).next_at is None
    await store.add([new_task(priority=1)])
    assert (await worker.run(State.SUCCEEDED)).priority == 1
