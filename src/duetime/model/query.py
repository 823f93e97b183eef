"""Which tasks to list, and where a page continues."""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from duetime.clock import Instant
from duetime.errors import InvalidValue
from duetime.model.task import State, TaskRecord

MAX_PAGE = 1_000


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """A filter over tasks; all given parts must hold. Bounds in time are `after` inclusive, `before` exclusive."""

    state: State | None = None
    handler: str | None = None
    collection: str | None = None
    key: str | None = None
    schedule: str | None = None
    retrying: bool | None = None
    due_after: Instant | None = None
    due_before: Instant | None = None
    submitted_after: Instant | None = None
    submitted_before: Instant | None = None
    finished_after: Instant | None = None
    finished_before: Instant | None = None
    error: str | None = None
    logs: str | None = None
    limit: int = 100
    cursor: str | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.limit <= MAX_PAGE:
            raise InvalidValue(f"limit must lie between 1 and {MAX_PAGE}, got {self.limit}")


class Page(msgspec.Struct, frozen=True):
    """Some tasks and the cursor of the next page, None on the last."""

    items: list[TaskRecord]
    next: str | None


def parse_state(text: str) -> State:
    try:
        return State(text)
    except ValueError:
        raise InvalidValue(f"state must be one of {', '.join(State)}, got {text!r}") from None


def write_cursor(*place: int | str) -> str:
    """Pack a place in an order into an opaque word."""
    return base64.urlsafe_b64encode(msgspec.json.encode(place)).decode().rstrip("=")


def read_cursor(cursor: str, *kinds: type) -> list[Any]:
    """Unpack a cursor, which came from outside: anything that we did not write is refused."""
    place: list[Any] | None
    try:
        place = msgspec.json.decode(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (ValueError, RecursionError, msgspec.DecodeError):
        place = None
    if (
        not isinstance(place, list)
        or [type(part) for part in place] != list(kinds)
        or any(isinstance(part, int) and not 0 <= part < 2**63 for part in place)
    ):
        raise InvalidValue(f"cursor is not one that this list gave out: {cursor[:80]!r}; begin again without it")
    return place


def _beyond(part: object) -> bool:
    """Tell a number that no store can have written."""
    return isinstance(part, int) and not 0 <= part < 2**63
