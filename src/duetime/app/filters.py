"""Which tasks: filters as people write them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, TypedDict

from duetime.app.handlers import AnyHandler, Handler
from duetime.clock import Instant, to_instant
from duetime.errors import InvalidValue
from duetime.model.query import Query, parse_state
from duetime.model.query_text import both, read_query
from duetime.model.task import State


class Filters(TypedDict, total=False):
    """Which tasks; all that are given must hold. Times `after` are inclusive, `before` exclusive, bounds of priority inclusive.

    `handler` may have a `*` for any characters. `worker` is how a worker's id begins. For `error`, `worker`, `submitted_by`, `meta` and
    `payload` (texts by path: `{"order.id": "7"}`) tasks are looked at one by one.
    """

    state: State | str
    states: Collection[State | str]
    handler: str | AnyHandler
    collection: str
    key: str
    schedule: str
    retrying: bool
    parked: bool
    due_after: datetime
    due_before: datetime
    submitted_after: datetime
    submitted_before: datetime
    finished_after: datetime
    finished_before: datetime
    error: str
    fingerprint: str
    logs: str
    id_prefix: str
    priority_min: int
    priority_max: int
    worker: str
    submitted_by: str
    mine: bool
    meta: Mapping[str, str]
    payload: Mapping[str, str]


def query_of(filters: Filters, text: str = "", now: Instant = 0) -> Query:
    """Turn filters as people write them into a query. What a text (`model.query_text`) says must hold too, counted from `now`."""
    found = _query_of(filters)
    return both(read_query(text, now), found) if text else found


def _query_of(filters: Filters) -> Query:
    parts: dict[str, Any] = {name: value for name, value in filters.items() if value is not None}
    for name, value in parts.items():
        if name == "state":
            parts[name] = parse_state(value)
        elif name == "states":
            parts[name] = tuple(parse_state(each) for each in ([value] if isinstance(value, str) else value))
        elif name in ("meta", "payload"):
            parts[name] = _texts(name, value)
        elif name == "handler":
            parts[name] = name_of(value)
        elif name.endswith(("_after", "_before")):
            parts[name] = to_instant(value, name)
    surplus = parts.keys() - Filters.__annotations__.keys()
    if surplus:
        raise InvalidValue(f"{min(surplus)} is not a filter; there are {', '.join(Filters.__annotations__)}")
    return Query(**parts)


def _texts(name: str, entries: Mapping[str, str]) -> dict[str, str]:
    for key, value in entries.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise InvalidValue(f"{name} must map texts to texts, got {key!r}: {value!r}; write numbers and other values as JSON does: '7'")
    return dict(entries)


def name_of(handler: str | AnyHandler) -> str:
    if isinstance(handler, str):
        return handler
    if isinstance(handler, Handler):
        return handler.name
    raise InvalidValue(f"a handler is given by its name or as what @app.task made of it, got {type(handler).__name__}")
