"""Driving races step by step: store objects as several processes would have them, and transactions that stop half-way."""

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from duetime.ids import new_id
from duetime.model.outcome import Settlement
from duetime.store import Store
from duetime.store.open import store_from_url
from duetime.store.postgres.address import Address
from duetime.store.postgres.lanes import Lane
from duetime.store.postgres.store import PostgresStore
from duetime.store.postgres.work import columns
from duetime.store.sql import Statements
from duetime.store.values import NewWorker
from tests.chaos.processes import until
from tests.conformance.build import Worker


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[PostgresStore]:
    """Open a store object of one's own, as another process would."""
    store = store_from_url(url)
    assert isinstance(store, PostgresStore)
    await store.open()
    await store.tidy()  # as every worker does first: a statement that lacks a table is refused and repeated
    try:
        yield store
    finally:
        await store.close()


async def hire(store: Store, id: str | None = None, *, lease: float = 2.0) -> Worker:
    """Register a worker that does nothing by itself."""
    new = NewWorker(id=id or f"worker-{new_id()}", host="here", pid=os.getpid(), slots={"work": 100}, lease=lease)
    return Worker(store, new.id, await store.register(new))


async def beat_of(store: Store, worker: Worker) -> int:
    [beat] = [each.beat for each in await store.workers() if each.id == worker.id]
    return beat


async def reap(store: Store, worker: Worker) -> int | None:
    return await store.reap(worker.id, await beat_of(store, worker))


async def look(store: PostgresStore, lane: Lane) -> None:
    """Look at a lane as a claim does from time to time, and move its floor as far as that proves."""
    statement = f'select * from "{store._address.schema}".look(null, null, $1::integer[], $2::bigint[])'
    [[at, oldest, next_number, entries]] = await store._opened.rows(statement, [[lane.id], [lane.floor]])
    store._lanes.looked(at, oldest, next_number, entries, [lane])


class HalfWay:
    """A transaction on the store's tables that has not ended yet."""

    def __init__(self, connection: Any, sql: Statements, schema: str) -> None:
        self._connection = connection
        self._sql = sql
        self.schema = schema

    async def rows(self, statement: str, *parameters: object) -> list[Any]:
        found: list[Any] = await self._connection.fetch(statement.replace("%s", self.schema), *parameters)
        return found

    async def begin(self) -> None:
        self._transaction = self._connection.transaction()
        await self._transaction.start()

    async def commit(self) -> None:
        await self._transaction.commit()

    async def rollback(self) -> None:
        await self._transaction.rollback()

    async def settle(self, worker: str, settlements: Sequence[Settlement]) -> Sequence[Any]:
        """Do all that a settle does but commit."""
        [row] = await self.rows(self._sql.settle, None, worker, None, *columns(settlements))
        return tuple(row)

    async def lock_claims(self, worker: str) -> None:
        """Hold what a settle or a reaper of this worker must have."""
        assert await self.rows('select number from "%s".claim where worker = $1 for update', worker)

    async def someone_waits(self) -> None:
        """Wait until another connection waits for a lock that this transaction holds."""
        [[own]] = await self.rows("select pg_backend_pid()")
        others = "select pid from pg_stat_activity where $1 = any (pg_blocking_pids(pid))"
        await until("somebody waits for the lock", lambda: self.rows(others, own))


@asynccontextmanager
async def half_way(url: str, *, begun: bool = True) -> AsyncIterator[HalfWay]:
    """Begin a transaction of one's own; what is not committed at the end is rolled back."""
    address = Address.from_url(url)
    connection = await asyncpg.connect(address.dsn, timeout=30)
    try:
        transaction = HalfWay(connection, PostgresStore(address)._sql, address.schema)
        if begun:
            await transaction.begin()
        yield transaction
    finally:
        connection.terminate()
