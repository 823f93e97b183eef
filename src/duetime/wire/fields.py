"""Field types that several nouns share, and helpers for values that were left out."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from duetime.model.query import MIN_ID_PREFIX
from duetime.model.query_text import LONGEST as QUERY_LENGTH
from duetime.model.task import MAX_NAME

T = TypeVar("T")

MOST_WAIT = 60.0
MOST_ITEMS = 10_000
LONGEST = 250_000_000_000  # seconds: nearly eight thousand years

Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME, pattern=r"\S")]
Instant = Annotated[datetime, Meta(tz=True)]
Duration = Annotated[float, Meta(ge=0, le=LONGEST)]
Lasting = Annotated[float, Meta(gt=0, le=LONGEST)]
Priority = Annotated[int, Meta(ge=0, le=9, description="9 first.")]
SearchText = Annotated[str, Meta(min_length=1, max_length=1_000)]
QueryText = Annotated[str, Meta(max_length=QUERY_LENGTH, description="Filters in one text, such as state:failed handler:shop.*")]
IdPrefix = Annotated[str, Meta(min_length=MIN_ID_PREFIX, max_length=36, pattern="^[0-9a-f-]*$", description="How their ids begin.")]
TaskId = Annotated[str, Meta(min_length=36, max_length=36, description="The id of a task.")]
Fingerprint = Annotated[str, Meta(pattern="^[0-9a-f]{16}$", description="The kind of failure that finished tasks ended with.")]
Arguments = Annotated[dict[str, Any], Meta(description="The handler's arguments by name.")]
Cursor = Annotated[str, Meta(min_length=1, max_length=1_000, description="The `next` of the page before.")]


class RetryNumbers(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A retry policy in numbers. Fields that are left out have the defaults of RetryPolicy."""

    tries: Annotated[int, Meta(ge=1, le=1_000_000, description="The first included.")] | UnsetType | None = UNSET
    base: Duration | UnsetType = UNSET
    factor: Annotated[float, Meta(ge=1, le=100)] | UnsetType = UNSET
    cap: Duration | UnsetType = UNSET
    jitter: Annotated[float, Meta(ge=0, le=1)] | UnsetType = UNSET
    delays: Annotated[list[Duration], Meta(min_length=1, max_length=1_000)] | UnsetType | None = UNSET
    within: Lasting | UnsetType | None = UNSET


class NoQuery(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """No parameters."""


class NoBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Nothing, or an empty object."""


def given(value: T | UnsetType | None) -> T | None:
    """Return a value, or None if it was left out."""
    return None if value is UNSET else value


def optional(value: T | None) -> T | UnsetType:
    """Return a value to send, or UNSET, which is not sent, for None."""
    return UNSET if value is None else value


def given_fields(struct: msgspec.Struct, *leaving: str) -> dict[str, Any]:
    """Return the fields that were given, by name."""
    values = {name: getattr(struct, name) for name in struct.__struct_fields__ if name not in leaving}
    return {name: value for name, value in values.items() if value is not UNSET and value is not None}
