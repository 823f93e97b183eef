"""Filters over tasks, and the cursors of their pages."""

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


def write_cursor(*position: int | str) -> str:
    """Encode a position in a list as opaque text."""
    return base64.urlsafe_b64encode(msgspec.json.encode(position)).decode().rstrip("=")


def read_cursor(cursor: str, *kinds: type) -> list[Any]:
    """Decode a cursor. It comes from outside, so everything that `write_cursor` cannot have written is refused."""
    position: list[Any] | None
    try:
        position = msgspec.json.decode(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (ValueError, RecursionError, msgspec.DecodeError):
        position = None
    if (
        not isinstance(position, list)
        or [type(part) for part in position] != list(kinds)
        or any(isinstance(part, int) and not 0 <= part < 2**63 for part in position)
    ):
        raise InvalidValue(f"cursor is not one that this list gave out: {cursor[:80]!r}; begin again without it")
    return position
