"""What requests carry and what they are answered: the types that decode, check and describe both. Unknown fields are refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from duetime.api.problems import Problem
from duetime.client.gates import GateInfo
from duetime.client.insight import AttemptInfo, HandlerInfo, WorkerInfo
from duetime.model.gate import GateAction
from duetime.model.query import MAX_PAGE
from duetime.model.task import MAX_NAME, IfExists, State, Task
from duetime.model.why import Reason
from duetime.store.protocol import CancelVerdict

MOST_WAIT = 60.0
MOST_ITEMS = 10_000

Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME, pattern=r"\S")]
Instant = Annotated[datetime, Meta(tz=True)]
LONGEST = 250_000_000_000  # seconds: nearly eight thousand years
Duration = Annotated[float, Meta(ge=0, le=LONGEST)]
Lasting = Annotated[float, Meta(gt=0, le=LONGEST)]
Priority = Annotated[int, Meta(ge=0, le=9, description="9 first.")]
Wait = Annotated[float, Meta(ge=0, le=MOST_WAIT, description="Seconds to wait until the task is final; the answer is its state then.")]
SearchText = Annotated[str, Meta(min_length=1, max_length=1_000)]


class RetryNumbers(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A retry policy in numbers; what is left out has the default of RetryPolicy."""

    attempts: Annotated[int, Meta(ge=1, le=1_000_000, description="Tries, the first included.")] | UnsetType | None = UNSET
    base: Duration | UnsetType = UNSET
    factor: Annotated[float, Meta(ge=1, le=100)] | UnsetType = UNSET
    cap: Duration | UnsetType = UNSET
    jitter: Annotated[float, Meta(ge=0, le=1)] | UnsetType = UNSET
    delays: Annotated[list[Duration], Meta(min_length=1, max_length=1_000)] | UnsetType | None = UNSET
    within: Lasting | UnsetType | None = UNSET


class NewTaskBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A task to submit. It is due at `due_at`, or `delay` seconds from now; without both at once."""

    handler: Name
    payload: Annotated[dict[str, Any], Meta(description="The handler's arguments by name.")] = {}
    due_at: Instant | UnsetType | None = UNSET
    delay: Duration | UnsetType | None = UNSET
    key: Name | UnsetType | None = UNSET
    if_exists: IfExists = "error"
    collection: Name | UnsetType | None = UNSET
    priority: Priority | UnsetType | None = UNSET
    timeout: Lasting | UnsetType | None = UNSET
    retry: RetryNumbers | UnsetType | None = UNSET
    expires: (
        Annotated[float, Meta(gt=0, le=LONGEST, description="Seconds after the due time.")]
        | Annotated[datetime, Meta(tz=True, description="An instant.")]
        | UnsetType
        | None
    ) = UNSET
    meta: Annotated[dict[str, str], Meta(description="A small map of texts that travels with the task.")] | UnsetType | None = UNSET


class Change(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """What to change on a waiting task; at least one."""

    due_at: Instant | UnsetType = UNSET
    delay: Duration | UnsetType = UNSET
    priority: Priority | UnsetType = UNSET
    collection: Name | UnsetType = UNSET


class Filter(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Which tasks; all that are given must hold. Times `after` are inclusive, `before` exclusive."""

    state: State | UnsetType = UNSET
    handler: Name | UnsetType = UNSET
    collection: Name | UnsetType = UNSET
    key: Name | UnsetType = UNSET
    schedule: Name | UnsetType = UNSET
    retrying: bool | UnsetType = UNSET
    due_after: Instant | UnsetType = UNSET
    due_before: Instant | UnsetType = UNSET
    submitted_after: Instant | UnsetType = UNSET
    submitted_before: Instant | UnsetType = UNSET
    finished_after: Instant | UnsetType = UNSET
    finished_before: Instant | UnsetType = UNSET
    error: SearchText | UnsetType = UNSET
    logs: SearchText | UnsetType = UNSET


class ListQuery(Filter, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The filter of a list, and where it goes on."""

    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = 100
    cursor: Annotated[str, Meta(min_length=1, max_length=1_000, description="The `next` of the page before.")] | UnsetType = UNSET


class BulkBody(Filter, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A filter; a dry run only counts the tasks that match."""

    dry_run: bool = False


class BulkEditBody(BulkBody, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A filter, and what to change on the waiting tasks that match."""

    set: Change


class WaitQuery(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """How long to wait for the end of a task."""

    wait: Wait = 0.0


class PlaceQuery(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The gate of a collection; without it that of the whole handler."""

    collection: Name | UnsetType = UNSET


class GateBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A gate to set. It opens by itself after `lasting` seconds; `wait` is how long to wait for the workers' word."""

    action: GateAction
    lasting: Annotated[float, Meta(gt=0, le=3_000_000_000)] | UnsetType | None = UNSET
    note: Annotated[str, Meta(max_length=1_000)] = ""
    wait: Annotated[float, Meta(ge=0, le=MOST_WAIT)] = 20.0
    allow_unknown: bool = False


class NoQuery(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """No parameters."""


class NoBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Nothing, or an empty object."""


# ---- answers ----


class TaskList(msgspec.Struct, frozen=True):
    """Some tasks and the cursor of the next page, null on the last."""

    items: list[Task]  # type: ignore[type-arg]  # one schema for both: `Task` and `Task[Any]` would be two
    next: str | None


class Verdict(StrEnum):
    """What became of one task of a batch."""

    ADDED = "added"
    KEPT = "kept"
    REPLACED = "replaced"
    DUPLICATE = "duplicate"
    REFUSED = "refused"


class BatchItem(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What became of one task of a batch. `id` is the task that is stored now; with a duplicate, the one that holds the key."""

    verdict: Verdict
    id: str | None = None
    problem: Problem | None = None


class BatchAnswer(msgspec.Struct, frozen=True):
    """One item per task, in the order of the request, and how often each verdict was given.

    `submitted_at` and `submitted_by` are those of the tasks that were added; null if none was.
    """

    items: Sequence[BatchItem]
    counts: Mapping[str, int]
    submitted_at: datetime | None = None
    submitted_by: str | None = None


class CancelAnswer(msgspec.Struct, frozen=True):
    """`cancelled`: never starts. `cancelling`: runs, and was told to stop. `finished`: too late."""

    id: str
    answer: CancelVerdict


class BulkAnswer(msgspec.Struct, frozen=True):
    """How many tasks matched, and how often each answer was given; none if it was a dry run."""

    matched: int
    answers: Mapping[str, int]
    dry_run: bool


class AttemptList(msgspec.Struct, frozen=True):
    """All attempts of a task, the first one first."""

    items: list[AttemptInfo]
    next: None = None


class ReasonList(msgspec.Struct, frozen=True):
    """What holds a task, or how it ended."""

    items: list[Reason]
    next: None = None


class GateList(msgspec.Struct, frozen=True):
    """The closed gates, by handler and collection."""

    items: list[GateInfo]
    next: None = None


class GateAnswer(msgspec.Struct, frozen=True):
    """A gate that was set. In force: every live worker has confirmed that it starts nothing against it."""

    gate: GateInfo
    version: int
    in_force: bool
    confirmed: list[str]
    waiting: list[str]


class WorkerList(msgspec.Struct, frozen=True):
    """All registered workers, by start."""

    items: list[WorkerInfo]
    next: None = None


class HandlerList(msgspec.Struct, frozen=True):
    """All declared handlers, by name, with the JSON Schema of their payloads."""

    items: list[HandlerInfo]
    next: None = None


class LoopHealth(msgspec.Struct, frozen=True):
    """A loop of the server, and for how many seconds its present turn has lasted."""

    name: str
    seconds: float


class Health(msgspec.Struct, frozen=True):
    """That all is well, and the loops that were asked."""

    status: Literal["ok"]
    loops: Sequence[LoopHealth] = ()


def given(value: Any) -> Any:
    """Give a value, or None if it was left out."""
    return None if value is UNSET else value


def given_fields(struct: msgspec.Struct, *leaving: str) -> dict[str, Any]:
    """Give the fields that were given, by name."""
    values = {name: getattr(struct, name) for name in struct.__struct_fields__ if name not in leaving}
    return {name: value for name, value in values.items() if value is not UNSET and value is not None}
