"""Connections and sessions of SQLAlchemy that callers pass as `connection=`, as far as every SQL store treats them alike.

They are known by the names of their classes, so SQLAlchemy need not be installed.
"""

from __future__ import annotations

import asyncio
from typing import Any, Literal, TypeAlias

from duetime.errors import InvalidValue

Alchemy: TypeAlias = Literal["synchronous", "asynchronous"]

BEGIN_FIRST = "connection= has no open transaction to be part of; begin one first: "

_KINDS: dict[tuple[str, str], Alchemy] = {
    ("sqlalchemy", "Connection"): "synchronous",
    ("sqlalchemy", "Session"): "synchronous",
    ("sqlalchemy", "AsyncConnection"): "asynchronous",
    ("sqlalchemy", "AsyncSession"): "asynchronous",
}
_SCOPES = {("sqlalchemy", "scoped_session"), ("sqlalchemy", "async_scoped_session")}
_BEGIN: dict[Alchemy, str] = {
    "synchronous": "call it inside `with connection.begin():` or `with session.begin():`",
    "asynchronous": "call it inside `async with connection.begin():` or `async with session.begin():`",
}


def class_names(kind: type) -> list[tuple[str, str]]:
    """Name a class and those that it is made of by their package."""
    return [(each.__module__.partition(".")[0], each.__name__) for each in kind.__mro__]


def inside_scope(connection: object) -> object:
    """Return what was given, or of a scoped session the session of this thread or asyncio task."""
    # not type(): what traces connections wraps them, and answers here for what is inside
    if any(name in _SCOPES for name in class_names(connection.__class__)):
        session: object = connection()  # type: ignore[operator]
        return session
    return connection


def kind_of(connection: object) -> Alchemy | None:
    """Return which kind of SQLAlchemy connection or session this is; None if it is something else."""
    return next((_KINDS[name] for name in class_names(connection.__class__) if name in _KINDS), None)


def is_session(given: object) -> bool:
    return hasattr(given, "get_bind")


def refuse_without_transaction(given: Any, kind: Alchemy) -> None:
    """Raise InvalidValue if SQLAlchemy has not begun a transaction that the caller will end."""
    if kind == "asynchronous":
        refuse_without_loop()
    if not given.in_transaction():
        raise InvalidValue(BEGIN_FIRST + _BEGIN[kind])


def refuse_without_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise InvalidValue(
            "connection= is an asynchronous connection, which app.sync cannot use; await the call in its event loop instead"
        ) from None
