"""What the doctor finds and repairs where accepted attempts and their deadlines do not fit each other any more."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from duetime.clock import SECOND
from duetime.model.outcome import Acceptance
from duetime.model.task import NewTask, State
from duetime.store import Store
from duetime.store.open import store_from_url
from duetime.store.values import NewWorker
from tests.conformance.build import new_task, state_of
from tests.integration.postgres import admin, schema_of


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    address: str = f"sqlite:///{tmp_path}/duetime.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    return address


def empty(url: str, table: str, sqlite_table: str) -> None:
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as connection:
            connection.execute(f"delete from {sqlite_table}")
    else:
        with admin(url) as server:
            server.execute(f"delete from {schema_of(url)}.{table}".encode())


async def kinds(store: Store, *, repair: bool) -> list[str]:
    return [problem.kind for problem in await store.inspect(repair=repair)]


async def accepted(store: Store) -> NewTask[object]:
    task = new_task()
    await store.add([task])
    lease = await store.register(NewWorker(id="w" * 16, host="here", pid=os.getpid(), slots={task.handler: 1}))
    [claimed] = (await store.claim("w" * 16, 1, {task.handler: 1}, 1)).tasks
    await store.accept("w" * 16, [Acceptance(claimed.id, claimed.attempt, store.now() + 3_600 * SECOND)])
    lease.close()
    await store.unregister("w" * 16)
    assert await kinds(store, repair=False) == []
    return task


async def test_one_without_a_deadline_times_out(url: str) -> None:
    store = store_from_url(url)
    await store.open()
    try:
        task = await accepted(store)
        empty(url, "accepted", "duetime_accepted")
        assert await kinds(store, repair=False) == ["accepted attempt without a deadline"]
        assert await kinds(store, repair=True) == ["accepted attempt without a deadline"]
        assert await kinds(store, repair=False) == []
        assert [attempt.task.id for attempt in await store.overdue(10)] == [task.id]
        assert await state_of(store, task) is State.RUNNING
    finally:
        await store.close()


async def test_a_deadline_without_an_attempt_is_removed(url: str) -> None:
    store = store_from_url(url)
    await store.open()
    try:
        await accepted(store)
        empty(url, "claim", "duetime_running")
        assert "deadline without an attempt" in await kinds(store, repair=False)
        assert "deadline without an attempt" in await kinds(store, repair=True)
        assert "deadline without an attempt" not in await kinds(store, repair=False)
    finally:
        await store.close()
