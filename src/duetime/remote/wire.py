"""Between what travels and what the library knows: tasks, wishes and filters."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from duetime.client.admission import HANDLERS_OWN
from duetime.clock import SECOND, Instant, to_datetime, to_instant
from duetime.errors import InvalidValue
from duetime.model.query import Query
from duetime.model.task import ErrorInfo, NewTask, State, TaskRecord
from duetime.remote.problems import Problem

_BOUNDS = ("_after", "_before")
_NULL = msgspec.Raw(b"null")


class TaskWire(msgspec.Struct, frozen=True, kw_only=True):
    """A task as a server shows it; payload and result stay as they came, so that a handler's own types read them."""

    id: str
    handler: str
    state: State
    payload: msgspec.Raw
    due_at: datetime
    submitted_at: datetime
    submitted_by: str = ""
    key: str | None = None
    collection: str | None = None
    priority: int = 0
    timeout: float | None = None
    retry: msgspec.Raw = _NULL
    expires_at: datetime | None = None
    meta: dict[str, str] = {}
    schedule: str | None = None
    planned_at: datetime | None = None
    attempt: int = 0
    tries: int = 0
    crashes: int = 0
    cancelling: bool = False
    worker: str | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    result: msgspec.Raw = _NULL
    error: ErrorInfo | None = None
    progress: float | None = None
    progress_text: str = ""


class TaskListWire(msgspec.Struct, frozen=True):
    """A page of tasks."""

    items: list[TaskWire]
    next: str | None = None


class BatchItemWire(msgspec.Struct, frozen=True):
    """What became of one task of a batch."""

    verdict: str
    id: str = ""
    problem: Problem | None = None


class BatchWire(msgspec.Struct, frozen=True):
    """What became of a batch; when and by whom its new tasks were submitted."""

    items: list[BatchItemWire]
    submitted_at: datetime | None = None
    submitted_by: str | None = None


def record_of(task: TaskWire) -> TaskRecord:
    """Give a task as a store would tell it."""
    return TaskRecord(
        id=task.id,
        handler=task.handler,
        state=task.state,
        payload=bytes(task.payload),
        due_at=to_instant(task.due_at),
        submitted_at=to_instant(task.submitted_at),
        submitted_by=task.submitted_by,
        key=task.key,
        collection=task.collection,
        priority=task.priority,
        timeout=task.timeout,
        retry=_bytes(task.retry),
        expires_at=_instant(task.expires_at),
        meta=task.meta or None,
        schedule=task.schedule,
        planned_at=_instant(task.planned_at),
        attempt=task.attempt,
        tries=task.tries,
        crashes=task.crashes,
        cancelling=task.cancelling,
        worker=task.worker,
        started_at=_instant(task.started_at),
        finished_at=_instant(task.finished_at),
        result=_bytes(task.result),
        error=task.error,
        progress=task.progress,
        progress_text=task.progress_text,
    )


def body_of(task: NewTask[Any]) -> dict[str, Any]:
    """Give a wish as a server takes it. A delay stays one: the store's clock decides when it has passed."""
    if task.schedule is not None or task.planned_at is not None or task.edges:
        raise InvalidValue(
            f"a task of {task.handler} is planned around an event or waits for other tasks, which a server cannot be told; "
            "submit it where the store is reached"
        )
    body: dict[str, Any] = {"handler": task.handler, "payload": msgspec.Raw(task.payload)}
    if task.due_at is not None:
        body["due_at"] = to_datetime(task.due_at)
    elif task.delay:
        body["delay"] = task.delay / SECOND
    if task.priority != HANDLERS_OWN:
        body["priority"] = task.priority
    if task.if_exists != "error":
        body["if_exists"] = task.if_exists
    if task.retry is not None:
        body["retry"] = msgspec.Raw(task.retry)
    if task.expires_at is not None:
        body["expires"] = to_datetime(task.expires_at)
    elif task.expires_in is not None:
        body["expires"] = task.expires_in / SECOND
    if task.meta:
        body["meta"] = dict(task.meta)
    for name in ("key", "collection", "timeout"):
        value = getattr(task, name)
        if value is not None:
            body[name] = value
    return body


def filter_of(query: Query) -> dict[str, Any]:
    """Give the filter of a query: what is asked for, instants as datetimes, without where a page begins and how long it is."""
    given = {name: getattr(query, name) for name in Query.__struct_fields__ if name not in ("limit", "cursor")}
    return {name: to_datetime(value) if name.endswith(_BOUNDS) else value for name, value in given.items() if value is not None}


def parameters_of(query: Query) -> dict[str, str]:
    """Give a query as parameters of an address."""
    return texts({**filter_of(query), "limit": query.limit, "cursor": query.cursor})


def texts(values: Mapping[str, object]) -> dict[str, str]:
    """Write values as parameters of an address; None is left out."""
    return {name: _text(value) for name, value in values.items() if value is not None}


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _instant(when: datetime | None) -> Instant | None:
    return None if when is None else to_instant(when)


def _bytes(raw: msgspec.Raw) -> bytes | None:
    """Give JSON, or None for null: that a handler returned nothing is kept as no result."""
    return None if bytes(raw) == b"null" else bytes(raw)
