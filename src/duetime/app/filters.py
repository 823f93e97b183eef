"""Which tasks: filters as people write them."""

from __future__ import annotations

from datetime import datetime
from typing import Any, TypedDict

from duetime.app.handlers import AnyHandler, Handler
from duetime.clock import to_instant
from duetime.errors import InvalidValue
from duetime.model.query import Query, parse_state
from duetime.model.task import State


class Filters(TypedDict, total=False):
    """Which tasks; all that are given must hold. Times `after` are inclusive, `before` exclusive."""

    state: State | str
    handler: str | AnyHandler
    collection: str
    key: str
    schedule: str
    retrying: bool
    due_after: datetime
    due_before: datetime
    submitted_after: datetime
    submitted_before: datetime
    finished_after: datetime
    finished_before: datetime
    error: str
    logs: str


def query_of(filters: Filters) -> Query:
    """Turn filters as people write them into a query."""
    parts: dict[str, Any] = {name: value for name, value in filters.items() if value is not None}
    for name, value in parts.items():
        if name == "state":
            parts[name] = parse_state(value)
        elif name == "handler":
            parts[name] = name_of(value)
        elif name.endswith(("_after", "_before")):
            parts[name] = to_instant(value, name)
    surplus = parts.keys() - Filters.__annotations__.keys()
    if surplus:
        raise InvalidValue(f"{min(surplus)} is not a filter; there are {', '.join(Filters.__annotations__)}")
    return Query(**parts)


def name_of(handler: str | AnyHandler) -> str:
    if isinstance(handler, str):
        return handler
    if isinstance(handler, Handler):
        return handler.name
    raise InvalidValue(f"a handler is given by its name or as what @app.task made of it, got {type(handler).__name__}")
