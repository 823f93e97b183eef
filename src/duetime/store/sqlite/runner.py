"""One way to run statements on connections of different kinds: ours, the caller's `sqlite3`, the caller's aiosqlite,
and those that are behind a connection or session of SQLAlchemy.

Submitting is written once as a coroutine over this. On a synchronous connection it never suspends, so it can be driven
to its end in the caller's own thread by a single `send`.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeAlias, TypeVar, cast

from duetime.errors import InvalidValue
from duetime.store import alchemy

T = TypeVar("T")
Row = tuple[Any, ...]
Parameters: TypeAlias = Sequence[Any] | Mapping[str, Any]

ACCEPTED = "sqlite3 and aiosqlite connections, and connections and sessions of SQLAlchemy over them (sqlite+pysqlite, sqlite+aiosqlite)"


class Runner(Protocol):
    """Runs statements in the transaction that is open on a connection."""

    async def rows(self, sql: str, parameters: Parameters = ()) -> list[Row]: ...

    async def many(self, sql: str, parameters: Iterable[Sequence[Any]]) -> None: ...


class SyncRunner:
    """Statements on a `sqlite3` connection, in this thread, without ever suspending."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    async def rows(self, sql: str, parameters: Parameters = ()) -> list[Row]:
        cursor = self._connection.cursor()
        cursor.row_factory = None  # the caller may have set one
        return cursor.execute(sql, parameters).fetchall()

    async def many(self, sql: str, parameters: Iterable[Sequence[Any]]) -> None:
        self._connection.executemany(sql, parameters)


class AsyncRunner:
    """Statements on an aiosqlite connection."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def rows(self, sql: str, parameters: Parameters = ()) -> list[Row]:
        async with self._connection.execute(sql, parameters) as cursor:
            return [tuple(row) for row in await cursor.fetchall()]

    async def many(self, sql: str, parameters: Iterable[Sequence[Any]]) -> None:
        await self._connection.executemany(sql, list(parameters))


def drive(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that does not suspend."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return cast(T, done.value)
    coroutine.close()
    raise RuntimeError("a statement on a synchronous connection suspended")


def runner_for(connection: object) -> Runner:
    """Choose by the kind of connection; aiosqlite is known by its name so that it need not be installed."""
    if isinstance(connection, sqlite3.Connection):
        return SyncRunner(connection)
    if type(connection).__module__.partition(".")[0] == "aiosqlite" and hasattr(connection, "execute"):
        return AsyncRunner(connection)
    kind = f"{type(connection).__module__}.{type(connection).__name__}"
    raise InvalidValue(f"connection= takes {ACCEPTED} for a SQLite store, got {kind}")


async def driver_connection(connection: object) -> Any:
    """Return the driver's own connection: what was given, or what is behind a connection or session of SQLAlchemy.

    SQLAlchemy's own commit and rollback end the driver's transaction, whoever has begun it. So statements need not go through it.
    """
    given: Any = alchemy.inside_scope(connection)
    kind = alchemy.kind_of(given)
    if kind is None:
        return connection
    alchemy.refuse_without_transaction(given, kind)
    dialect = (given.get_bind() if alchemy.is_session(given) else given).dialect
    if dialect.name != "sqlite":
        raise InvalidValue(
            f"connection= is a SQLAlchemy connection to {dialect.name} by {dialect.driver}, but a SQLite store takes {ACCEPTED}"
        )
    try:
        if kind == "synchronous":
            opened = given.connection() if alchemy.is_session(given) else given
            return opened.connection.driver_connection
        opened = await given.connection() if alchemy.is_session(given) else given
        return (await opened.get_raw_connection()).driver_connection
    except Exception as error:
        refused = getattr(error, "orig", None)  # a session connects and begins only here
        if isinstance(refused, sqlite3.Error):
            raise refused from error
        raise


async def begin_for_alchemy(connection: Any, runner: Runner) -> None:
    """Begin what SQLAlchemy has begun: by default its driver does so only before the first write that goes through it."""
    commits_itself = getattr(connection, "autocommit", None) is True
    if connection.in_transaction and not commits_itself:
        return
    if commits_itself or connection.isolation_level is None:
        raise InvalidValue(
            "connection= is a SQLAlchemy connection whose driver commits each statement at once (autocommit); leave AUTOCOMMIT out, or let "
            "SQLAlchemy begin: @event.listens_for(engine, 'begin') executes BEGIN IMMEDIATE, see SQLAlchemy in docs/transactions.md"
        )
    await runner.rows("begin immediate")


@contextmanager
def plain_text(connection: Any) -> Iterator[None]:
    """Return text as `str`, whatever `text_factory` the caller has set."""
    wanted = connection.text_factory
    if wanted is not str:
        connection.text_factory = str
    try:
        yield
    finally:
        if wanted is not str:
            connection.text_factory = wanted


async def check_file(runner: Runner, path: str) -> None:
    """Refuse a connection to another file, on which a task would get lost."""
    files = [row[2] for row in await runner.rows("pragma database_list") if row[1] == "main"]
    if not files or not _same_file(files[0], path):
        raise InvalidValue(
            f"connection= is open on {files[0] if files and files[0] else 'a database in memory'}, but the store is {path}; "
            "a transaction covers one file only: open the connection on the store's file"
        )


def check_transaction(connection: Any) -> None:
    """Refuse a connection without an open transaction: its caller could not roll the task back."""
    if not connection.in_transaction:
        raise InvalidValue(
            "connection= has no open transaction to be part of; execute BEGIN IMMEDIATE on it first "
            "(a plain BEGIN may fail with 'database is locked' at its first write)"
        )


def _same_file(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False
