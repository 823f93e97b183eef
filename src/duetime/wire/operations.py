"""Operations in JSON. `OperationInfo` is an operation as it is shown."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from duetime.client.operations import OperationInfo
from duetime.model.operation import MOST_RATE, Verb
from duetime.model.query import MAX_PAGE
from duetime.wire.fields import MOST_WAIT, Cursor
from duetime.wire.tasks import Change, Filter

Rate = Annotated[float, Meta(gt=0, le=MOST_RATE, description="At most so many tasks per second.")]
Wait = Annotated[float, Meta(ge=0, le=MOST_WAIT, description="Seconds to wait until the operation has ended.")]


class CanaryBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Retry one task first, then `share` percent, then the rest; stop when more than `failed` percent of a stage failed again."""

    share: Annotated[float, Meta(gt=0, le=100)] = 1.0
    failed: Annotated[float, Meta(ge=0, lt=100)] = 10.0


class OperationBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """An operation to start: a verb, which tasks, for an edit what to change, and how fast."""

    verb: Verb
    filter: Filter
    set: Change | UnsetType = UNSET
    rate: Rate | UnsetType | None = UNSET
    canary: CanaryBody | UnsetType | None = UNSET


class OperationQuery(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """How long to wait for the end of an operation."""

    wait: Wait = 0.0


class BulkQuery(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """How long to wait for the end of a verb on many tasks; it goes on after that."""

    wait: Wait = 10.0


class OperationListQuery(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The cursor of a page of operations."""

    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = 100
    cursor: Cursor | UnsetType = UNSET


class OperationList(msgspec.Struct, frozen=True):
    """Operations, latest started first, and the cursor of the next page, null on the last."""

    items: list[OperationInfo]
    next: str | None = None
