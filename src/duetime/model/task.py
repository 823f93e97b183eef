"""What a task is: the wish (`NewTask`), the stored fact (`TaskRecord`) and what people are shown of it (`Task`)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, Generic, Literal, Self, TypeAlias, TypeVar

import msgspec

from duetime.clock import LATEST, Instant, Seconds, to_datetime, to_instant, to_micros
from duetime.errors import InvalidValue

R_co = TypeVar("R_co", covariant=True)

IfExists: TypeAlias = Literal["error", "keep", "replace"]

PRIORITIES = range(10)
DEFAULT_PRIORITY = 5
MAX_PAYLOAD = 1_000_000
MAX_NAME = 200

NO_EXTRAS = (None,) * 6
_decode = msgspec.json.Decoder().decode


class State(StrEnum):
    """Where a task stands; `model.lifecycle` has the moves between them."""

    BLOCKED = "blocked"
    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    DROPPED = "dropped"
    EXPIRED = "expired"


FINAL = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED, State.DROPPED, State.EXPIRED})
LIVE = frozenset(State) - FINAL


class ErrorInfo(msgspec.Struct, frozen=True, gc=False):
    """Why an attempt did not succeed, as it is stored and shown."""

    type: str
    message: str
    traceback: str = ""


class Edge(msgspec.Struct, frozen=True):
    """A task that must end before another may start: in any way, or only with success."""

    parent: str
    needs: Literal["end", "success"] = "success"


class NewTask(msgspec.Struct, Generic[R_co], frozen=True, gc=False, kw_only=True):
    """A wish: one piece of work, not yet stored. `.at` and `.after` say when; without them it is due at once.

    `delay` and `expires_in` are microseconds, resolved by the store's clock when the task is added;
    `expires_in` counts from the due time.
    """

    id: str
    handler: str
    payload: bytes
    due_at: Instant | None = None
    delay: int = 0
    key: str | None = None
    if_exists: IfExists = "error"
    collection: str | None = None
    priority: int = DEFAULT_PRIORITY
    timeout: float | None = None
    retry: bytes | None = None
    expires_at: Instant | None = None
    expires_in: int | None = None
    meta: Mapping[str, str] | None = None
    submitted_by: str = ""
    schedule: str | None = None
    planned_at: Instant | None = None
    edges: tuple[Edge, ...] = ()

    def at(self, when: datetime) -> Self:
        """Give the same wish with a due time."""
        return msgspec.structs.replace(self, due_at=due_instant(when), delay=0)

    def after(self, delay: Seconds) -> Self:
        """Give the same wish, due so long after it is submitted."""
        return msgspec.structs.replace(self, due_at=None, delay=delay_micros(delay))


class TaskRecord(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A stored task, as a store tells it. `due_at` is the next one while it waits for a retry."""

    id: str
    handler: str
    state: State
    payload: bytes
    due_at: Instant
    submitted_at: Instant
    submitted_by: str = ""
    key: str | None = None
    collection: str | None = None
    priority: int = DEFAULT_PRIORITY
    timeout: float | None = None
    retry: bytes | None = None
    expires_at: Instant | None = None
    meta: Mapping[str, str] | None = None
    schedule: str | None = None
    planned_at: Instant | None = None
    attempt: int = 0
    tries: int = 0
    crashes: int = 0
    cancelling: bool = False
    worker: str | None = None
    started_at: Instant | None = None
    finished_at: Instant | None = None
    result: bytes | None = None
    error: ErrorInfo | None = None
    progress: float | None = None
    progress_text: str = ""

    @property
    def extras(self) -> bool:
        """Whether it carries anything that most tasks do not."""
        own = (self.timeout, self.retry, self.expires_at, self.meta, self.schedule, self.planned_at)
        return own != NO_EXTRAS


def due_of(task: NewTask[Any], now: Instant) -> Instant:
    """Settle when a wish is due."""
    due_at = now + task.delay if task.due_at is None else task.due_at
    if due_at > LATEST:
        raise InvalidValue("the due time lies beyond the year 9999; choose a shorter delay")
    return due_at


def expiry_of(task: NewTask[Any], due_at: Instant) -> Instant | None:
    """Settle when a wish is too late."""
    if task.expires_in is None:
        return task.expires_at
    return min(LATEST, due_at + task.expires_in)


def accepted(task: NewTask[Any], state: State, now: Instant, due_at: Instant) -> TaskRecord:
    """Give the record of a wish that was stored just now."""
    record = TaskRecord(
        id=task.id,
        handler=task.handler,
        state=state,
        payload=task.payload,
        due_at=due_at,
        submitted_at=now,
        submitted_by=task.submitted_by,
        key=task.key,
        collection=task.collection,
        priority=task.priority,
    )
    expires_at = expiry_of(task, due_at)
    if (task.timeout, task.retry, expires_at, task.meta, task.schedule, task.planned_at) == NO_EXTRAS:
        return record
    return msgspec.structs.replace(
        record,
        timeout=task.timeout,
        retry=task.retry,
        expires_at=expires_at,
        meta=task.meta,
        schedule=task.schedule,
        planned_at=task.planned_at,
    )


class Task(msgspec.Struct, Generic[R_co], frozen=True, kw_only=True):
    """A task as people and programs see it. `R_co` is the type of the handler's result, for `app.result`."""

    id: str
    handler: str
    state: State
    payload: dict[str, Any]
    due_at: datetime
    submitted_at: datetime
    submitted_by: str = ""
    key: str | None = None
    collection: str | None = None
    priority: int = DEFAULT_PRIORITY
    timeout: float | None = None
    retry: dict[str, Any] | None = None
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
    result: Any = None
    error: ErrorInfo | None = None
    progress: float | None = None
    progress_text: str = ""

    @property
    def final(self) -> bool:
        return self.state in FINAL


def shown(record: TaskRecord) -> Task[Any]:
    """Turn a stored fact into what people see: instants as datetimes, payload and result decoded."""
    task: Task[Any] = Task(
        id=record.id,
        handler=record.handler,
        state=record.state,
        payload=_decode(record.payload),
        due_at=to_datetime(record.due_at),
        submitted_at=to_datetime(record.submitted_at),
        submitted_by=record.submitted_by,
        key=record.key,
        collection=record.collection,
        priority=record.priority,
    )
    if record.state is State.PENDING and not record.attempt and not record.extras:
        return task  # bulk submitting shows tens of thousands of these a second
    return msgspec.structs.replace(
        task,
        timeout=record.timeout,
        retry=None if record.retry is None else _decode(record.retry),
        expires_at=_datetime(record.expires_at),
        meta=dict(record.meta) if record.meta else {},
        schedule=record.schedule,
        planned_at=_datetime(record.planned_at),
        attempt=record.attempt,
        tries=record.tries,
        crashes=record.crashes,
        cancelling=record.cancelling,
        worker=record.worker,
        started_at=_datetime(record.started_at),
        finished_at=_datetime(record.finished_at),
        result=None if record.result is None else _decode(record.result),
        error=record.error,
        progress=record.progress,
        progress_text=record.progress_text,
    )


def _datetime(instant: Instant | None) -> datetime | None:
    return None if instant is None else to_datetime(instant)


def due_instant(when: datetime) -> Instant:
    """Check a due time: aware, and not beyond what can be shown again."""
    return to_instant(when)


def delay_micros(delay: Seconds) -> int:
    """Check a delay: not negative, and short enough to stay inside the calendar."""
    micros = to_micros(delay, "delay")
    if micros < 0:
        raise InvalidValue(f"delay must not be negative, got {delay}; for work that is due now use .now(…) or a delay of 0")
    if micros > LATEST:
        raise InvalidValue(f"delay leads beyond the year 9999, got {delay}")
    return micros


def check_priority(priority: int) -> int:
    if isinstance(priority, bool) or not isinstance(priority, int) or priority not in PRIORITIES:
        raise InvalidValue(f"priority must be a whole number from 0 to 9 (9 first), got {priority!r}")
    return priority


def check_name(value: str, what: str) -> str:
    """Check a handler, key or collection: text, not empty, of bounded length, without control characters."""
    if not isinstance(value, str):
        raise InvalidValue(f"{what} must be text, got {type(value).__name__}")
    if not value or value.isspace():
        raise InvalidValue(f"{what} must not be empty")
    if len(value) > MAX_NAME:
        raise InvalidValue(f"{what} must have at most {MAX_NAME} characters, got {len(value)}")
    if not value.isprintable():
        raise InvalidValue(f"{what} must not contain control characters, got {value!r}")
    return value


def check_meta(meta: Mapping[str, str]) -> dict[str, str]:
    """Check the small string map that travels with a task."""
    checked = {}
    for name, value in meta.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidValue(f"meta must map text to text, got {name!r}: {value!r}")
        checked[name] = value
    if sum(len(name) + len(value) for name, value in checked.items()) > 8_192:
        raise InvalidValue("meta must stay under 8,192 characters in all; put larger data into the payload")
    return checked
