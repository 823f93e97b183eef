"""Submitting inside the caller's own transaction: what is particular to the drivers of SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiosqlite
import pytest

from duetime.clock import ManualClock
from duetime.errors import InvalidValue
from duetime.store import Store
from duetime.store.open import store_from_url
from duetime.store.values import AddVerdict, NewWorker
from tests.conformance.build import Worker, add, new_task


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "duetime.db"


@pytest.fixture
async def store(file: Path) -> AsyncIterator[Store]:
    store = store_from_url(f"sqlite:///{file}", clock=ManualClock())
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def worker(store: Store) -> AsyncIterator[Worker]:
    lease = await store.register(NewWorker(id="worker", host="here", pid=1, slots={}))
    yield Worker(store, "worker", lease)
    lease.close()


@pytest.fixture
def connection(store: Store, file: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute("create table orders (id integer primary key, state text)")
    yield connection
    connection.close()


async def test_a_connection_to_a_database_in_memory_is_refused(store: Store) -> None:
    other = sqlite3.connect(":memory:", isolation_level=None)
    other.execute("begin immediate")
    with pytest.raises(InvalidValue):
        await store.add_on(other, [new_task()])
    other.rollback()
    other.close()


async def test_a_connection_to_a_copy_of_the_database_is_refused(store: Store, connection: sqlite3.Connection, tmp_path: Path) -> None:
    """A copy has the same tables and the same rows, and yet its tasks would never run here."""
    other = sqlite3.connect(tmp_path / "copy.db", isolation_level=None)
    connection.backup(other)
    other.execute("begin immediate")
    with pytest.raises(InvalidValue):
        await store.add_on(other, [new_task()])
    other.rollback()
    other.close()


async def test_python_style_implicit_transactions_work(store: Store, connection: sqlite3.Connection, worker: Worker, file: Path) -> None:
    """The default mode of `sqlite3` begins by itself before an insert, and `with connection` commits."""
    own = sqlite3.connect(file)
    with own:
        own.execute("insert into orders values (1, 'placed')")
        await store.add_on(own, [new_task()])
    own.close()
    assert len(await worker.take()) == 1


async def test_a_row_factory_of_the_caller_does_not_disturb(store: Store, connection: sqlite3.Connection, worker: Worker) -> None:
    connection.row_factory = lambda cursor, row: dict(zip([column[0] for column in cursor.description], row, strict=True))
    await check_that_factories_do_not_disturb(store, connection, worker)


async def test_a_text_factory_of_the_caller_does_not_disturb(store: Store, connection: sqlite3.Connection, worker: Worker) -> None:
    connection.text_factory = bytes
    await check_that_factories_do_not_disturb(store, connection, worker)


async def check_that_factories_do_not_disturb(store: Store, connection: sqlite3.Connection, worker: Worker) -> None:
    factories = (connection.row_factory, connection.text_factory)
    await add(store, key="k")
    connection.execute("begin immediate")
    try:
        first, second = await store.add_on(connection, [new_task(key="k", if_exists="keep"), new_task("other", meta={"a": "b"})])
        assert (first.verdict, first.record.key, second.record.meta) == (AddVerdict.KEPT, "k", {"a": "b"})
    finally:
        connection.commit()
    assert (connection.row_factory, connection.text_factory) == factories
    assert len(await worker.take("work", "other")) == 2


async def test_an_aiosqlite_connection_works_too(store: Store, worker: Worker, file: Path) -> None:
    committed, undone = new_task(), new_task()
    async with aiosqlite.connect(file, isolation_level=None) as own:
        await own.execute("begin immediate")
        await store.add_on(own, [committed])
        await own.commit()
        await own.execute("begin immediate")
        await store.add_on(own, [undone])
        await own.rollback()
        with pytest.raises(InvalidValue, match=r"(?i)begin"):
            await store.add_on(own, [new_task()])
    assert [task.id for task in await worker.take()] == [committed.id]
