"""Transactions of callers whose view is older than what others have committed (REPEATABLE READ, SERIALIZABLE), on PostgreSQL.

They may add a task again that runs or has ended, and cannot know it. Whoever meets such a task takes it for what it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from duetime.clock import SECOND
from duetime.model.gate import Gate, GateAction
from duetime.model.outcome import SettleVerdict
from duetime.model.task import NewTask, State
from duetime.store.postgres.store import PostgresStore
from duetime.store.postgres.submit import Submission
from duetime.store.values import AddVerdict, CancelVerdict, ChangeVerdict, ClaimedTask, Edit
from tests.chaos.stepping import HalfWay, half_way, hire, opened
from tests.conformance.build import Worker, add, get, needs, new_task, state_of

LEVELS = pytest.mark.parametrize("level", ["repeatable read", "serializable"])
FAR = 10_000 * SECOND


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    async with opened(postgres_url) as store:
        await add(store, delay=FAR)  # the lane is there before anybody takes a view
        yield store
        assert await store.inspect(repair=False) == []


@pytest.fixture
async def worker(store: PostgresStore) -> Worker:
    return await hire(store, lease=60.0)


@asynccontextmanager
async def old_view(url: str, level: str = "repeatable read") -> AsyncIterator[HalfWay]:
    """A caller's transaction that sees nothing of what others do from now on; it commits at the end."""
    async with half_way(url, begun=False) as caller:
        await caller.rows(f"begin isolation level {level}")
        await caller.rows('select from "%s".due')
        yield caller
        await caller.rows("commit")


async def running_twice(store: PostgresStore, worker: Worker, url: str) -> tuple[NewTask[object], ClaimedTask]:
    """Return a running task that a caller's old view has added again meanwhile, and its claim."""
    task = new_task()
    async with old_view(url) as caller:
        await store.add([task])
        claimed = await worker.take_one()
        [added] = await store.add_on(caller._connection, [task])
        assert added.verdict is AddVerdict.ADDED
    return task, claimed


@LEVELS
@pytest.mark.parametrize("how", ["tried again", "retried by an operator"])
async def test_what_went_back_stays_when_it_is_claimed_beside_what_an_old_view_added(
    store: PostgresStore, worker: Worker, postgres_url: str, level: str, how: str
) -> None:
    """Its former claim still lists it, as ended."""
    task, other = await add(store), await add(store)
    claimed = {each.id: each for each in await worker.take()}
    if how == "tried again":
        await worker.end(claimed[task.id], State.PENDING)
    else:
        await worker.end(claimed[task.id], State.FAILED)
        assert await store.retry([task.id]) == [ChangeVerdict.CHANGED]
    async with old_view(postgres_url, level) as caller:
        [beside] = await store.add_on(caller._connection, [new_task()])
    assert {each.id for each in await worker.take()} == {task.id, beside.record.id}
    assert await state_of(store, other) is State.RUNNING


async def test_no_number_is_used_twice_although_the_task_was_added_again(store: PostgresStore, worker: Worker, postgres_url: str) -> None:
    task, first = await running_twice(store, worker, postgres_url)
    assert await worker.end(first, State.PENDING) is SettleVerdict.ACCEPTED
    second = await worker.take_one()
    assert (second.id, second.attempt, second.tries) == (task.id, 2, 1)
    assert await worker.end(first, State.SUCCEEDED) is not SettleVerdict.ACCEPTED
    assert await worker.end(second, State.SUCCEEDED) is SettleVerdict.ACCEPTED
    assert [attempt.attempt for attempt in await store.attempts(task.id)] == [1, 2]


async def test_a_cancel_meets_the_running_task_and_not_its_repeat(store: PostgresStore, worker: Worker, postgres_url: str) -> None:
    task, claimed = await running_twice(store, worker, postgres_url)
    assert await store.cancel([task.id]) == [CancelVerdict.CANCELLING]
    assert await worker.end(claimed, State.SUCCEEDED) is SettleVerdict.ACCEPTED
    assert await state_of(store, task) is State.SUCCEEDED


async def test_an_edit_meets_the_running_task_and_not_its_repeat(store: PostgresStore, worker: Worker, postgres_url: str) -> None:
    task, claimed = await running_twice(store, worker, postgres_url)
    assert await store.edit([Edit(id=task.id, priority=9)]) == [ChangeVerdict.REFUSED]
    assert await worker.end(claimed, State.SUCCEEDED) is SettleVerdict.ACCEPTED


async def test_a_drop_gate_leaves_the_running_task_alone(store: PostgresStore, worker: Worker, postgres_url: str) -> None:
    task, claimed = await running_twice(store, worker, postgres_url)
    await store.put_gate(Gate(handler="work", action=GateAction.DROP))
    assert await store.drop(10) == 0
    assert await worker.end(claimed, State.SUCCEEDED) is SettleVerdict.ACCEPTED
    assert await state_of(store, task) is State.SUCCEEDED


async def test_a_task_that_only_an_old_view_added_is_cancelled_like_any_other(store: PostgresStore, postgres_url: str) -> None:
    async with old_view(postgres_url) as caller:
        [added] = await store.add_on(caller._connection, [new_task()])
    assert await store.cancel([added.record.id]) == [CancelVerdict.CANCELLED]


@LEVELS
async def test_a_task_of_a_lane_that_was_just_made_is_told_although_the_view_does_not_show_it(
    store: PostgresStore, worker: Worker, postgres_url: str, level: str
) -> None:
    parent, held = await add(store, "parent"), await add(store, key="k", delay=FAR)
    await worker.end(await worker.take_one("parent"), State.FAILED)
    async with old_view(postgres_url, level) as caller:
        [replaced] = await store.add_on(caller._connection, [new_task(key="k", if_exists="replace", collection="new", delay=2 * FAR)])
        [child] = await store.add_on(caller._connection, [new_task(collection="newer", edges=(needs(parent),))])
    assert (replaced.verdict, replaced.record.id, replaced.record.collection) == (AddVerdict.REPLACED, held.id, "new")
    assert (child.verdict, child.record.state) == (AddVerdict.ADDED, State.CANCELLED)
    for told in (replaced.record, child.record):
        stored = await get(store, told)
        assert (stored.state, stored.collection, stored.due_at) == (told.state, told.collection, told.due_at)


class Overtaken:
    """Runs statements. When the first one touches the row of the waiting task that is to be replaced, an edit is under way."""

    def __init__(self, store: PostgresStore, own: HalfWay, editor: HalfWay, edit: Callable[[], Awaitable[None]]) -> None:
        self._touching = {store._sql.lock_waiting, store._sql.replace_waiting}
        self._own = own
        self._editor = editor
        self._edit: Callable[[], Awaitable[None]] | None = edit

    async def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[Sequence[Any]]:
        if sql not in self._touching or self._edit is None:
            return await self._own.rows(sql, *parameters)
        await self._edit()
        self._edit = None
        waiting = asyncio.create_task(self._own.rows(sql, *parameters))
        await self._editor.someone_waits()
        await self._editor.commit()
        return await waiting


@pytest.mark.parametrize("blocked", [False, True], ids=["waits for its time", "waits for another"])
async def test_a_replace_that_waits_for_an_edit_counts_the_lane_that_the_edit_chose(
    store: PostgresStore, postgres_url: str, blocked: bool
) -> None:
    edges = (needs(await add(store, "parent", delay=FAR)),) if blocked else ()
    task = await add(store, key="k", delay=FAR, edges=edges)
    for priority in (6, 7):
        await add(store, delay=FAR, priority=priority)
    former, lane = (store._lanes["work", "", priority].id for priority in (5, 6))
    async with half_way(postgres_url) as replacer, half_way(postgres_url) as editor:

        async def edit() -> None:
            [[at]] = await editor.rows(store._sql.begin_adding, None)
            await editor.rows(store._sql.edit_waiting, at, [task.id], [former], [lane], [None], [None])

        run = Overtaken(store, replacer, editor, edit)
        submitted = new_task(key="k", delay=FAR, priority=7, if_exists="replace")
        [added] = await Submission(run, store._sql, store._lanes, None, lock_parents=True).add([submitted])
        await replacer.commit()
    assert added.verdict is AddVerdict.REPLACED
    assert (await get(store, task)).priority == 7
