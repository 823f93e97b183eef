"""Joining a caller's transaction: which transactions are accepted, and how our errors leave them open."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NoReturn

from duetime.errors import InvalidValue, StoreUnavailable
from duetime.model.task import NewTask
from duetime.store.alchemy import BEGIN_FIRST
from duetime.store.postgres.connection import LANE_GONE
from duetime.store.postgres.runner import Runner, failure, runner_for
from duetime.store.postgres.submit import Submission, Submitting
from duetime.store.postgres.work import LONGEST_POLL
from duetime.store.sql import Statements
from duetime.store.values import Added

# Errors after which the caller must repeat the whole transaction. Code that repeats transactions expects the driver's own exception.
_TO_REPEAT = "40"
_MISSING = frozenset({"42P01", "3F000", "42703", "42883"})
_REFUSED = {
    "25P01": f"{BEGIN_FIRST}each of its statements is committed at once (autocommit): switch that off, or execute BEGIN",
    "25P02": "the transaction of connection= has failed already, by an earlier statement; roll it back and begin a new one",
    "42501": "the user of connection= may not use the store's tables ({}); docs/postgres.md lists the privileges needed",
}


@asynccontextmanager
async def callers_transaction(connection: object, sql: Statements, store: str, home: str) -> AsyncIterator[Runner]:
    """Run statements in a transaction that the caller has begun and will end.

    A savepoint keeps it open and as it was if anything fails. `store` names the store to people; `home` is what the statement
    `whereabouts` says on the store's own connection.
    """
    runner = runner_for(connection)
    runner.look()
    try:
        await runner.rows("savepoint duetime_add")
    except Exception as error:
        _raise(error, store)
    try:
        await check_connection(runner, sql, store, home)
        yield runner
        await runner.rows("release savepoint duetime_add")
    except (Exception, asyncio.CancelledError) as error:
        with contextlib.suppress(Exception):  # the connection itself is lost, and with it all that was written
            await runner.rows("rollback to savepoint duetime_add")
            await runner.rows("release savepoint duetime_add")
        _raise(error, store)


async def check_connection(runner: Runner, sql: Statements, store: str, home: str) -> None:
    """Refuse a transaction in which a task would get lost or change: of another database, one that may not write, without nulls."""
    try:
        [[here, read_only, database, nulls]] = await runner.rows(sql.whereabouts)
    except Exception as error:
        failed = failure(error)
        if failed is None or failed.state not in _MISSING:
            raise
        raise InvalidValue(
            f"connection= is open on a database without the tables of the store {store} ({failed.message}); "
            "open it on the store's own database: a transaction covers one database only"
        ) from error
    if here != home:
        raise InvalidValue(
            f"connection= is open on {database}, which holds another store than {store}, perhaps a copy of it; "
            "open it on the store's own database: a transaction covers one database only"
        )
    if read_only:
        raise InvalidValue("connection= is in a read-only transaction, or on a replica; begin one that may write, on the primary server")
    if not nulls:
        raise InvalidValue("connection= has array_nulls = off, by which a null becomes the text NULL; set local array_nulls = on before")


def _raise(error: BaseException, store: str) -> NoReturn:
    """Raise what the seam promises. Errors that require a repeat of the transaction are raised as the driver's own exception."""
    if isinstance(error, OSError):
        raise StoreUnavailable(f"connection= to the store {store} failed: {str(error) or type(error).__name__}") from error
    failed = failure(error)
    if failed is None or (failed.state or "").startswith(_TO_REPEAT):
        raise error
    if failed.state in _REFUSED:
        raise InvalidValue(_REFUSED[failed.state].format(failed.message)) from error
    if (failed.state or "").startswith("22"):
        raise InvalidValue(f"a value cannot be stored: {failed.message}") from error
    raise StoreUnavailable(f"connection= to the store {store} failed: {failed.message}") from error


class CallersTransactions(Submitting):
    """Adds tasks inside a caller's transaction."""

    async def add_on(self, connection: object, tasks: Sequence[NewTask[object]]) -> list[Added]:
        try:
            return await self._add_on(connection, tasks)
        except StoreUnavailable as error:
            failed = None if error.__cause__ is None else failure(error.__cause__)
            if failed is not None and failed.state == LANE_GONE:
                await self._lanes.restore(self._opened)  # the caller's next try finds it
            raise

    async def _add_on(self, connection: object, tasks: Sequence[NewTask[object]]) -> list[Added]:
        async with callers_transaction(connection, self._sql, self.url, self._whereabouts) as run:
            if not tasks:
                return []
            await self.prepare(tasks)
            submission = Submission(run, self._sql, self._lanes, self._clock.parameter, lock_parents=False)
            added = await submission.add(tasks)
            if self._address.notify and submission.earliest is not None and submission.earliest <= self._clock.now() + LONGEST_POLL:
                await run.rows(self._sql.notify, [self._wakeups.channel, self._wakeups.caught])
            return added
