"""Tasks in JSON: to submit, to change, to choose by filters, and as they are shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from duetime.client.admission import HANDLERS_OWN
from duetime.client.insight import AttemptInfo
from duetime.client.operations import OperationInfo
from duetime.clock import SECOND, to_datetime, to_instant
from duetime.errors import InvalidValue
from duetime.model.merging import Pace
from duetime.model.needs import MAX_NEEDS, Need, ended
from duetime.model.query import MAX_PAGE, MOST_COUNTED, USUAL_COUNT, USUAL_SCAN, Query
from duetime.model.query_text import write_query
from duetime.model.shapes import derive
from duetime.model.task import INSTANTS, IfExists, NewTask, State, Stored, Task, TaskRecord
from duetime.model.why import Reason
from duetime.store.values import CancelVerdict
from duetime.wire.fields import (
    LONGEST,
    MOST_WAIT,
    Arguments,
    Cursor,
    Duration,
    Fingerprint,
    IdPrefix,
    Instant,
    Lasting,
    Name,
    Priority,
    QueryText,
    RetryNumbers,
    SearchText,
    TaskId,
    optional,
)
from duetime.wire.problem import Problem

Wait = Annotated[float, Meta(ge=0, le=MOST_WAIT, description="Seconds to wait until the task is final; the answer is its state then.")]

_NULL = msgspec.Raw(b"null")
_numbers = msgspec.json.Decoder(RetryNumbers)


# ---- requests ----


class NeedsEnd(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The end of a task, whatever it is."""

    ended: TaskId


Needs = Annotated[
    list[TaskId | NeedsEnd],
    Meta(max_length=MAX_NEEDS, description="Tasks that must succeed before it starts; those in `ended` need only end."),
]


class _NewTask(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    handler: Name
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
    needs: Needs | UnsetType | None = UNSET
    debounce: (
        Annotated[Lasting, Meta(description="Start once nothing with this key was submitted for so many seconds; the newest payload wins.")]
        | UnsetType
        | None
    ) = UNSET
    max_wait: (
        Annotated[Lasting, Meta(description="With debounce: start so many seconds after the first submission at the latest.")]
        | UnsetType
        | None
    ) = UNSET
    throttle: (
        Annotated[Lasting, Meta(description="Store one task with this key within so many seconds; others are answered with it.")]
        | UnsetType
        | None
    ) = UNSET


class NewTaskBody(_NewTask, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A task to submit. It is due at `due_at`, or `delay` seconds from now; without either it is due at once."""

    payload: Arguments = {}


class RawNewTask(_NewTask, frozen=True, kw_only=True, omit_defaults=True):
    """The same body as a client sends it: the payload is already encoded."""

    payload: msgspec.Raw


class Change(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """What to change on a waiting task; at least one field."""

    due_at: Instant | UnsetType = UNSET
    delay: Duration | UnsetType = UNSET
    priority: Priority | UnsetType = UNSET
    collection: Name | UnsetType = UNSET


class TaskChange(Change, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """What to change on a waiting task; at least one field. The payload alone can also be changed of one that ended without success."""

    payload: Arguments | UnsetType = UNSET


class CopyBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    """How a copy of a task differs from it."""

    payload: Arguments | UnsetType = UNSET


class Filter(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Which tasks; all that are given must hold. Times `after` are inclusive, `before` exclusive."""

    state: State | UnsetType = UNSET
    handler: Name | UnsetType = UNSET
    collection: Name | UnsetType = UNSET
    key: Name | UnsetType = UNSET
    schedule: Name | UnsetType = UNSET
    retrying: bool | UnsetType = UNSET
    parked: bool | UnsetType = UNSET
    due_after: Instant | UnsetType = UNSET
    due_before: Instant | UnsetType = UNSET
    submitted_after: Instant | UnsetType = UNSET
    submitted_before: Instant | UnsetType = UNSET
    finished_after: Instant | UnsetType = UNSET
    finished_before: Instant | UnsetType = UNSET
    error: SearchText | UnsetType = UNSET
    fingerprint: Fingerprint | UnsetType = UNSET
    logs: SearchText | UnsetType = UNSET
    id_prefix: IdPrefix | UnsetType = UNSET
    priority_min: Priority | UnsetType = UNSET
    priority_max: Priority | UnsetType = UNSET
    worker: Name | UnsetType = UNSET
    submitted_by: Name | UnsetType = UNSET
    mine: Annotated[bool, Meta(description="Only what the owner of the token has submitted.")] | UnsetType = UNSET
    q: QueryText | UnsetType = UNSET


class ListQuery(Filter, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The filter of a list, and the cursor of a page. `brief`: payloads are cut, results and tracebacks left out.

    `scan`: where tasks have to be looked at one by one, the page ends after so many.
    """

    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = 100
    cursor: Cursor | UnsetType = UNSET
    brief: bool = False
    scan: Annotated[int, Meta(ge=1, le=USUAL_SCAN)] = USUAL_SCAN


class CountQuery(Filter, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A filter, and up to how many tasks to count."""

    limit: Annotated[int, Meta(ge=1, le=MOST_COUNTED)] = USUAL_COUNT


class AttemptQuery(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The cursor of a page of attempts."""

    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = 100
    cursor: Cursor | UnsetType = UNSET


class BulkBody(Filter, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A filter; a dry run only counts the tasks that match. `rate` is at most so many tasks per second."""

    dry_run: bool = False
    rate: Annotated[float, Meta(gt=0, le=1_000_000)] | UnsetType | None = UNSET


class BulkEditBody(BulkBody, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A filter, and what to change on the waiting tasks that match."""

    set: Change


class WaitQuery(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """How long to wait for the end of a task."""

    wait: Wait = 0.0


# ---- answers ----


class TaskList(msgspec.Struct, frozen=True):
    """Some tasks and the cursor of the next page, null on the last. `looked`: it ended after looking at so many one by one."""

    items: list[Task]  # type: ignore[type-arg]  # one schema for both: `Task` and `Task[Any]` would be two
    next: str | None
    looked: int | None = None


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
    """`cancelled`: it will not start. `cancelling`: it runs and was told to stop. `finished`: it had already ended."""

    id: str
    answer: CancelVerdict


class BulkAnswer(msgspec.Struct, frozen=True):
    """How many tasks matched, the number of each verdict, and the operation that acts on them; neither of these after a dry run."""

    matched: int
    answers: Mapping[str, int]
    dry_run: bool
    operation: OperationInfo | None = None


class AttemptList(msgspec.Struct, frozen=True):
    """Attempts of a task, the first one first, and the cursor of the next page, null on the last."""

    items: list[AttemptInfo]
    next: str | None = None


class ReasonList(msgspec.Struct, frozen=True):
    """What a task waits for, or how it ended."""

    items: list[Reason]
    next: None = None


# ---- as a client reads and writes them ----


def _json(raw: msgspec.Raw) -> bytes | None:
    """Return JSON, or None for null, because the result of a handler that returned None is not stored."""
    found = bytes(raw)
    return None if found == b"null" else found


class RawTask(Stored[datetime, msgspec.Raw], frozen=True):
    """A task as `Task` shows it. Payload and result stay encoded, so that they can be decoded with the handler's own types."""

    retry: msgspec.Raw = _NULL
    result: msgspec.Raw = _NULL


class RawTaskList(msgspec.Struct, frozen=True):
    """Some tasks and the cursor of the next page."""

    items: list[RawTask]
    next: str | None = None
    looked: int | None = None


_record_of = derive(
    RawTask, TaskRecord, {**dict.fromkeys(INSTANTS, to_instant), "payload": bytes, "retry": _json, "result": _json}, given=("meta",)
)


_raw_of = derive(
    TaskRecord,
    RawTask,
    {**dict.fromkeys(INSTANTS, to_datetime), **dict.fromkeys(("payload", "retry", "result"), msgspec.Raw)},
    given=("meta",),
)


def raw_of(record: TaskRecord) -> RawTask:
    """Return a task as it is sent, without decoding its payload and result: as values they can take twenty times the memory."""
    return _raw_of(record, record.meta or {})


def record_of(task: RawTask) -> TaskRecord:
    """Return a task as a store would return it."""
    return _record_of(task, task.meta or None)


def body_of(task: NewTask[Any]) -> RawNewTask:
    """Return the body that submits a task. A delay stays a delay: it is measured by the store's clock."""
    if task.schedule is not None or task.planned_at is not None:
        raise InvalidValue(
            f"a task of {task.handler} is planned around an event, which a server cannot be told; submit it where the store is reached"
        )
    return RawNewTask(
        handler=task.handler,
        payload=msgspec.Raw(task.payload),
        due_at=UNSET if task.due_at is None else to_datetime(task.due_at),
        delay=task.delay / SECOND if task.due_at is None and task.delay else UNSET,
        key=optional(task.key),
        if_exists=task.if_exists,
        collection=optional(task.collection),
        priority=UNSET if task.priority == HANDLERS_OWN else task.priority,
        timeout=optional(task.timeout),
        retry=UNSET if task.retry is None else _numbers.decode(task.retry),
        expires=_expires(task),
        meta=dict(task.meta) if task.meta else UNSET,
        needs=[edge.parent if edge.needs == "success" else NeedsEnd(edge.parent) for edge in task.edges] or UNSET,
        **_pace(task.pace),
    )


def _pace(pace: Pace | None) -> dict[str, float]:
    return {} if pace is None else {name: micros / SECOND for name, micros in msgspec.structs.asdict(pace).items() if micros}


def needs_of(needs: Sequence[str | NeedsEnd]) -> list[Need]:
    """Return what a body says that a task needs, as `Handler.options` takes it."""
    return [each if isinstance(each, str) else ended(each.ended) for each in needs]


def _expires(task: NewTask[Any]) -> float | datetime | UnsetType:
    if task.expires_at is not None:
        return to_datetime(task.expires_at)
    return UNSET if task.expires_in is None else task.expires_in / SECOND


def filter_of(query: Query) -> dict[str, Any]:
    """Return the fields of `Filter` that choose the same tasks as a query."""
    text = write_query(query)
    return {"q": text} if text else {}
