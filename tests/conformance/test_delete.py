"""Deleting tasks: nothing of them is left, and nothing that runs is deleted."""

from __future__ import annotations

import pytest

from duetime.ids import new_id
from duetime.model.outcome import SettleVerdict
from duetime.model.query import Query
from duetime.model.task import State
from duetime.store import Store
from duetime.store.output import OutputChunk, OutputPosition
from duetime.store.values import AddVerdict, DeleteVerdict
from tests.conformance.build import Worker, add, needs, put, state_of, task_in

DELETABLE = sorted(set(State) - {State.RUNNING})
BEGINNING = OutputPosition(0, 0)


@pytest.mark.parametrize("state", DELETABLE)
async def test_a_task_that_does_not_run_is_gone_with_its_key(store: Store, worker: Worker, state: State) -> None:
    record = await task_in(store, worker, state, key="k")
    assert await store.delete([record.id]) == [DeleteVerdict.DELETED]
    assert await store.get([record.id]) == [None]
    assert await store.find("work", "k") is None
    assert record.id not in [each.id for each in (await store.page(Query())).items]
    assert record.handler not in [final.handler for final in (await store.counts()).finals]
    assert await worker.take() == []
    assert (await put(store, key="k")).verdict is AddVerdict.ADDED
    assert await store.inspect(repair=False) == []


async def test_attempts_and_output_go_with_the_task(store: Store, worker: Worker) -> None:
    record, other = await add(store), await add(store, "other")
    for state in (State.PENDING, State.FAILED):
        await worker.run(state)
    await worker.run(State.FAILED, "other")
    await store.keep_output([OutputChunk(task=each.id, attempt=1, start=0, text="said", last=True) for each in (record, other)])
    assert len(await store.attempts(record.id)) == 2
    assert await store.delete([record.id]) == [DeleteVerdict.DELETED]
    assert await store.attempts(record.id) == []
    assert await store.output(record.id, None, BEGINNING, 10) == []
    assert len(await store.attempts(other.id)) == len(await store.output(other.id, None, BEGINNING, 10)) == 1
    assert await store.inspect(repair=False) == []


async def test_a_task_that_waits_for_its_next_try_is_deleted(store: Store, worker: Worker) -> None:
    record = await add(store)
    await worker.run(State.PENDING)
    assert await store.delete([record.id]) == [DeleteVerdict.DELETED]
    assert await worker.take() == []
    assert await store.attempts(record.id) == []


async def test_a_running_task_is_left_alone(store: Store, worker: Worker) -> None:
    record = await add(store)
    claimed = await worker.take_one()
    assert await store.delete([record.id]) == [DeleteVerdict.RUNNING]
    assert await state_of(store, record) is State.RUNNING
    assert [each.cancelling for each in await store.attempts_of(worker.id)] == [False]
    assert await worker.end(claimed, State.SUCCEEDED) is SettleVerdict.ACCEPTED
    assert await store.delete([record.id]) == [DeleteVerdict.DELETED]


async def test_verdicts_are_in_the_order_of_the_ids(store: Store, worker: Worker) -> None:
    running = await task_in(store, worker, State.RUNNING, "running")
    waiting, finished, kept = await add(store), await task_in(store, worker, State.FAILED, "failing"), await add(store)
    asked = [finished.id, new_id(), running.id, waiting.id, finished.id, "no id"]
    deleted, unknown = DeleteVerdict.DELETED, DeleteVerdict.UNKNOWN
    assert await store.delete(asked) == [deleted, unknown, DeleteVerdict.RUNNING, deleted, unknown, unknown]
    assert await state_of(store, kept) is State.PENDING
    assert await store.delete([]) == []


async def test_children_of_a_deleted_task_fare_as_if_it_was_cancelled(store: Store, worker: Worker) -> None:
    parent = await add(store)
    needing = await add(store, "needing", edges=(needs(parent),))
    grandchild = await add(store, "needing", edges=(needs(needing),))
    following = await add(store, "following", edges=(needs(parent, end=True),))
    assert await store.delete([parent.id]) == [DeleteVerdict.DELETED]
    assert [await state_of(store, each) for each in (needing, grandchild)] == [State.CANCELLED] * 2
    assert [task.id for task in await worker.take("following")] == [following.id]
    assert await store.inspect(repair=False) == []


async def test_the_parents_of_a_deleted_task_go_on(store: Store, worker: Worker) -> None:
    parent = await add(store)
    child = await add(store, "child", edges=(needs(parent),))
    assert await store.delete([child.id]) == [DeleteVerdict.DELETED]
    await worker.run(State.SUCCEEDED)
    assert await worker.take("child") == []
    assert await store.inspect(repair=False) == []
