"""One way to run statements on connections of different kinds: ours, and those of callers.

Statements number their parameters ($1, $2, …) and cast each where the server could not tell its type. Parameters are text,
numbers, None, and lists of these, which every driver can send.

A caller's connection is known by the name of its class, so no driver has to be installed. On a synchronous one `rows` never
suspends. Whatever the caller has set there (the shape of rows, kinds of cursors, options of execution) neither disturbs our
statements nor is changed by them.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from duetime.errors import InvalidValue
from duetime.store.alchemy import (
    BEGIN_FIRST,
    Alchemy,
    class_names,
    inside_scope,
    is_session,
    kind_of,
    refuse_without_loop,
    refuse_without_transaction,
)

Row = tuple[Any, ...]

ACCEPTED = (
    "connections of asyncpg, psycopg and psycopg2, and connections and sessions of SQLAlchemy over these drivers, "
    "each synchronous or asynchronous"
)


class Runner(Protocol):
    """Runs statements in the transaction that is open on a connection, or each in one of its own."""

    async def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[Sequence[Any]]: ...


class CallersRunner(Runner, Protocol):
    """Runs statements on a connection of the caller's, and never ends its transaction."""

    def look(self) -> None:
        """Raise InvalidValue if the driver knows, without asking the server, that there is no transaction to be part of."""


# ---- drivers ----


class AsyncpgRunner:
    """Statements on an asyncpg connection, or one that a pool of asyncpg has lent."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def look(self) -> None:
        refuse_without_loop()
        if self._connection.is_closed():
            raise _closed()
        if not self._connection.is_in_transaction():
            raise InvalidValue(BEGIN_FIRST + "call it inside `async with connection.transaction():`")

    async def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[Sequence[Any]]:
        return [tuple(record) for record in await self._connection.fetch(sql, *parameters)]


class PsycopgRunner:
    """Statements on a connection of psycopg 3, in this thread, without ever suspending."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def look(self) -> None:
        _look_at_psycopg(self._connection, "call it inside `with connection.transaction():`")

    async def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[Sequence[Any]]:
        # not connection.cursor(), which uses the caller's settings: other placeholders, rows of other shapes
        with sys.modules["psycopg"].Cursor(self._connection, row_factory=_tuples) as cursor:
            cursor.execute(percent_style(sql), as_texts(parameters))
            return cursor.fetchall() if cursor.description else []


class AsyncPsycopgRunner:
    """Statements on an asynchronous connection of psycopg 3."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def look(self) -> None:
        refuse_without_loop()
        _look_at_psycopg(self._connection, "call it inside `async with connection.transaction():`")

    async def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[Sequence[Any]]:
        async with sys.modules["psycopg"].AsyncCursor(self._connection, row_factory=_tuples) as cursor:
            await cursor.execute(percent_style(sql), as_texts(parameters))
            return await cursor.fetchall() if cursor.description else []


class Psycopg2Runner:
    """Statements on a connection of psycopg2, in this thread, without ever suspending."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def look(self) -> None:
        if self._connection.closed:
            raise _closed()
        if self._connection.async_:
            raise InvalidValue("connection= is an asynchronous connection of psycopg2, which has no transactions; open it without async_")
        if self._connection.get_transaction_status() == _IDLE:
            raise InvalidValue(BEGIN_FIRST + "set `connection.autocommit = False` and do your own write first, or execute BEGIN on it")

    async def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[Sequence[Any]]:
        with self._connection.cursor(cursor_factory=sys.modules["psycopg2.extensions"].cursor) as cursor:
            cursor.execute(percent_style(sql), as_texts(parameters))
            return list(cursor.fetchall()) if cursor.description else []


# ---- SQLAlchemy ----

# Options that a caller may have set for all its statements and under which ours would fail: cursors on the server, and % left alone.
_PLAINLY = {"stream_results": False, "yield_per": None, "no_parameters": False}


class AlchemyRunner:
    """Statements on a SQLAlchemy connection or session, in this thread, without ever suspending.

    They go through SQLAlchemy and not around it, because it begins the driver's transaction only at the first statement.
    """

    def __init__(self, connection: Any) -> None:
        self._given = connection

    def look(self) -> None:
        refuse_without_transaction(self._given, "synchronous")

    async def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[Sequence[Any]]:
        connection = self._given.connection() if is_session(self._given) else self._given
        result = connection.exec_driver_sql(*_for_dialect(connection.dialect, sql, parameters), execution_options=_PLAINLY)
        return [tuple(row) for row in result] if result.returns_rows else []


class AsyncAlchemyRunner:
    """Statements on an asynchronous SQLAlchemy connection or session."""

    def __init__(self, connection: Any) -> None:
        self._given = connection

    def look(self) -> None:
        refuse_without_transaction(self._given, "asynchronous")

    async def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[Sequence[Any]]:
        connection = await self._given.connection() if is_session(self._given) else self._given
        result = await connection.exec_driver_sql(*_for_dialect(connection.dialect, sql, parameters), execution_options=_PLAINLY)
        return [tuple(row) for row in result] if result.returns_rows else []


def _for_dialect(dialect: Any, sql: str, parameters: Sequence[Any]) -> tuple[str, Any]:
    """Write a statement for the driver behind SQLAlchemy."""
    if dialect.name == "postgresql" and dialect.driver == "asyncpg":
        return sql, tuple(parameters)
    if dialect.name == "postgresql" and dialect.driver in ("psycopg", "psycopg2"):
        return percent_style(sql), as_texts(parameters)
    raise InvalidValue(
        f"connection= is a SQLAlchemy connection to {dialect.name} by {dialect.driver}, but a PostgreSQL store takes {ACCEPTED}"
    )


# ---- which connection it is ----

_KINDS: Mapping[tuple[str, str], Callable[[Any], CallersRunner]] = {
    ("asyncpg", "Connection"): AsyncpgRunner,
    ("asyncpg", "PoolConnectionProxy"): AsyncpgRunner,
    ("psycopg", "Connection"): PsycopgRunner,
    ("psycopg", "AsyncConnection"): AsyncPsycopgRunner,
    ("psycopg2", "connection"): Psycopg2Runner,
}
_ALCHEMY: Mapping[Alchemy, Callable[[Any], CallersRunner]] = {"synchronous": AlchemyRunner, "asynchronous": AsyncAlchemyRunner}


def runner_for(connection: object) -> CallersRunner:
    """Choose by the kind of connection."""
    given = inside_scope(connection)
    alchemy = kind_of(given)
    if alchemy is not None:
        return _ALCHEMY[alchemy](given)
    for name in class_names(connection.__class__):  # not type(): what traces connections wraps them, and answers here for what is inside
        if name in _KINDS:
            return _KINDS[name](connection)
    kind = f"{type(connection).__module__}.{type(connection).__qualname__}"
    raise InvalidValue(f"connection= takes {ACCEPTED}, got {kind}")


def _closed() -> InvalidValue:
    return InvalidValue("connection= is closed; open a new one and begin a transaction on it")


# What libpq calls the states of a connection; psycopg and psycopg2 repeat its numbers.
_IDLE, _ACTIVE = 0, 1


def _look_at_psycopg(connection: Any, how: str) -> None:
    if connection.closed:
        raise _closed()
    if int(connection.info.pipeline_status):
        raise InvalidValue("connection= is in pipeline mode, in which no answer comes before its end; submit before or after the pipeline")
    status = int(connection.info.transaction_status)
    if status == _ACTIVE:
        raise InvalidValue("connection= is busy with another statement; end it first")
    if status == _IDLE:
        raise InvalidValue(BEGIN_FIRST + how)


def _tuples(_cursor: object) -> type[Row]:
    return tuple


# ---- statements for drivers that do not take $1 ----

_PARTS = re.compile(
    r"""
    (?P<kept> '(?:[^']|'')*' | "(?:[^"]|"")*" | --[^\n]* | /\*.*?\*/ | \$(?P<tag>[A-Za-z_]\w*|)\$ .*? \$(?P=tag)\$ )
    | (?<![\w$]) \$(?P<number>\d+)
    | %
    """,
    re.VERBOSE | re.DOTALL,
)


@functools.lru_cache(maxsize=512)
def percent_style(sql: str) -> str:
    """Write $1 as %(p1)s, and % as %%, also inside of quotes, because the drivers look there too."""
    return _PARTS.sub(lambda part: f"%(p{part['number']})s" if part["number"] else part[0].replace("%", "%%"), sql)


def as_texts(parameters: Sequence[Any]) -> Mapping[str, str | None]:
    """Write parameters as the server reads them.

    Left to themselves the drivers choose types by the values, refuse lists of whole and broken numbers, and do with lists what
    their user has told them to. As text, each becomes what the cast in its statement says.
    """
    return {f"p{number}": None if value is None else _as_text(value) for number, value in enumerate(parameters, 1)}


def _as_text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return "{" + ",".join([_as_element(element) for element in value]) + "}"
    raise TypeError(f"a parameter of a statement is text, a number, a list of these or None, not {type(value).__name__}")


def _as_element(value: object) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return _as_text(value)


# ---- what drivers raise ----

_DRIVERS = frozenset({"asyncpg", "psycopg", "psycopg2", "sqlalchemy"})


class Failure(NamedTuple):
    """What a driver's exception says: the SQLSTATE, unless the server had no part in it, and one line."""

    state: str | None
    message: str


def failure(error: BaseException) -> Failure | None:
    """Read an exception of one of the drivers; None for any other exception."""
    packages = {package for package, _ in class_names(type(error))}
    if not packages & _DRIVERS:
        return None
    if "sqlalchemy" in packages:
        for raised_by_its_driver in (getattr(error, "orig", None), error.__cause__):
            if raised_by_its_driver is not None and (found := failure(raised_by_its_driver)):
                return found
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    return Failure(state, str(error).strip().partition("\n")[0] or type(error).__name__)
