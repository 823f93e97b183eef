"""Tasks that were cancelled because a parent did not succeed wait again when that parent is retried."""

from __future__ import annotations

import asyncio

import pytest

from duetime.clock import SECOND, ManualClock
from duetime.model.task import FINAL, Edge, State, TaskRecord
from duetime.store import Store
from duetime.store.values import ChangeVerdict
from tests.conformance.build import PLENTY, Worker, add, get, needs, new_task, put, state_of, task_in

LONG = 10**9 * SECOND


async def states(store: Store, *tasks: TaskRecord) -> list[State]:
    return [await state_of(store, task) for task in tasks]


async def retry(store: Store, *tasks: TaskRecord) -> None:
    assert await store.retry([task.id for task in tasks]) == [ChangeVerdict.CHANGED] * len(tasks)


async def fail(worker: Worker) -> None:
    await worker.run(State.FAILED)


async def test_all_generations_that_were_cancelled_wait_again_and_run_in_the_end(store: Store, worker: Worker) -> None:
    parent = await add(store)
    child = await add(store, "child", key="k", edges=(needs(parent),))
    grandchild = await add(store, "grandchild", edges=(needs(child),))
    await fail(worker)
    assert await states(store, parent, child, grandchild) == [State.FAILED, State.CANCELLED, State.CANCELLED]
    await retry(store, parent)
    assert await states(store, parent, child, grandchild) == [State.PENDING, State.BLOCKED, State.BLOCKED]
    assert (await get(store, child)).error is None
    assert await store.unmet_edges(grandchild.id) == [Edge(child.id)]
    await worker.run(State.SUCCEEDED)
    await worker.run(State.SUCCEEDED, "child")
    await worker.run(State.SUCCEEDED, "grandchild")
    assert await states(store, parent, child, grandchild) == [State.SUCCEEDED] * 3
    assert await store.inspect(repair=False) == []


async def test_it_can_be_in_vain_again_and_again(store: Store, worker: Worker) -> None:
    parent = await add(store)
    child = await add(store, "child", edges=(needs(parent),))
    for _ in range(3):
        await fail(worker)
        assert await state_of(store, child) is State.CANCELLED
        await retry(store, parent)
        assert await state_of(store, child) is State.BLOCKED


@pytest.mark.parametrize("state", sorted(FINAL - {State.SUCCEEDED}))
async def test_one_that_was_cancelled_as_soon_as_it_was_submitted_waits_too(store: Store, worker: Worker, state: State) -> None:
    parent, other = await task_in(store, worker, state), await add(store, "other", delay=60 * SECOND)
    child = await add(store, "child", edges=(needs(parent), needs(other, end=True)))
    assert child.state is State.CANCELLED
    await retry(store, parent)
    assert sorted(await store.unmet_edges(child.id), key=lambda edge: edge.needs) == [Edge(other.id, "end"), Edge(parent.id)]


async def test_it_stays_cancelled_while_another_parent_has_failed(store: Store, worker: Worker) -> None:
    first, second = await add(store), await add(store)
    child = await add(store, "child", edges=(needs(first), needs(second)))
    await fail(worker)
    await fail(worker)
    assert await states(store, first, second) == [State.FAILED, State.FAILED]
    await retry(store, first)
    assert await state_of(store, child) is State.CANCELLED
    await retry(store, second)
    assert await state_of(store, child) is State.BLOCKED
    assert len(await store.unmet_edges(child.id)) == 2


async def test_two_parents_that_are_retried_at_once_free_it(store: Store, worker: Worker) -> None:
    for _ in range(5):
        first, second = await add(store), await add(store)
        child = await add(store, "child", edges=(needs(first), needs(second)))
        await fail(worker)
        await fail(worker)
        await asyncio.gather(store.retry([first.id]), store.retry([second.id]))
        assert await state_of(store, child) is State.BLOCKED
        await store.cancel([first.id, second.id])


async def test_a_parent_that_succeeded_meanwhile_is_not_waited_for(store: Store, worker: Worker) -> None:
    first, second = await add(store), await add(store, "second")
    child = await add(store, "child", edges=(needs(first), needs(second)))
    await fail(worker)
    await worker.run(State.SUCCEEDED, "second")
    await retry(store, first)
    assert await store.unmet_edges(child.id) == [Edge(first.id)]


async def test_what_a_person_cancelled_stays_cancelled(store: Store, worker: Worker) -> None:
    parent = await add(store)
    child = await add(store, "child", edges=(needs(parent),))
    await store.cancel([child.id])
    await fail(worker)
    await retry(store, parent)
    assert await state_of(store, child) is State.CANCELLED


async def test_one_that_was_retried_itself_does_not_wait(store: Store, worker: Worker) -> None:
    parent = await add(store)
    child = await add(store, "child", edges=(needs(parent),))
    await fail(worker)
    await retry(store, child)
    assert await state_of(store, child) is State.PENDING
    await worker.run(State.FAILED, "child")
    await retry(store, parent)
    assert await state_of(store, child) is State.FAILED


async def test_it_stays_cancelled_if_a_live_task_has_its_key_by_now(store: Store, worker: Worker) -> None:
    parent = await add(store)
    child = await add(store, "child", key="k", edges=(needs(parent),))
    await fail(worker)
    other = (await put(store, "child", key="k")).record
    await retry(store, parent)
    assert await states(store, child, other) == [State.CANCELLED, State.PENDING]


async def test_what_is_pruned_is_forgotten(store: Store, worker: Worker, clock: ManualClock) -> None:
    """Numbers of pruned tasks may be used again on SQLite, so nothing may refer to them."""
    parent, other = await add(store), await add(store, "other")
    child = await add(store, "child", edges=(needs(parent), needs(other)))
    kept = await add(store, "child", edges=(needs(other), needs(parent, end=True)))
    await fail(worker)
    await worker.run(State.FAILED, "other")
    await store.prune(State.FAILED, LONG, PLENTY, only=["work"])
    await store.tidy()
    await store.add([new_task() for _ in range(5)])
    await retry(store, other)
    assert await states(store, child, kept) == [State.CANCELLED, State.BLOCKED]
    await store.cancel([other.id])
    await store.prune(State.CANCELLED, LONG, PLENTY)
    await store.tidy()
    assert await store.inspect(repair=False) == []
