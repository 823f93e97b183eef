"""One way to run statements on connections of different kinds: ours, the caller's `sqlite3`, the caller's aiosqlite.

Submitting is written once as a coroutine over this. On a synchronous connection it never suspends, so it can be driven
to its end in the caller's own thread by a single `send`.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar, cast

from duetime.errors import InvalidValue

T = TypeVar("T")
Row = tuple[Any, ...]


class Runner(Protocol):
    """Runs statements in the transaction that is open on a connection."""

    async def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]: ...

    async def many(self, sql: str, parameters: Iterable[Sequence[Any]]) -> None: ...


class SyncRunner:
    """Statements on a `sqlite3` connection, in this thread, without ever suspending."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    async def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        cursor = self._connection.cursor()
        cursor.row_factory = None  # the caller may have set one
        return cursor.execute(sql, parameters).fetchall()

    async def many(self, sql: str, parameters: Iterable[Sequence[Any]]) -> None:
        self._connection.executemany(sql, parameters)


class AsyncRunner:
    """Statements on an aiosqlite connection."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
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
    raise InvalidValue(f"connection= takes a sqlite3 or aiosqlite connection for a SQLite store, got {kind}")


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


async def check_connection(connection: object, runner: Runner, path: str) -> None:
    """Refuse a connection on which a task could get lost: one to another file, or without an open transaction."""
    files = [row[2] for row in await runner.rows("pragma database_list") if row[1] == "main"]
    if not files or not _same_file(files[0], path):
        raise InvalidValue(
            f"connection= is open on {files[0] if files and files[0] else 'a database in memory'}, but the store is {path}; "
            "a transaction covers one file only: open the connection on the store's file"
        )
    if not getattr(connection, "in_transaction", False):
        raise InvalidValue(
            "connection= has no open transaction to be part of; execute BEGIN IMMEDIATE on it first "
            "(a plain BEGIN may fail with 'database is locked' at its first write)"
        )


def _same_file(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False
