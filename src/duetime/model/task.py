"""Tasks: to be submitted (`NewTask`), stored (`TaskRecord`) and as people see them (`Task`)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, Generic, Literal, Self, TypeAlias, TypeVar

import msgspec

from duetime.clock import LATEST, Instant, Seconds, to_datetime, to_instant, to_micros
from duetime.errors import InvalidValue
from duetime.model.merging import Merged, Pace, due_at, first, join
from duetime.model.shapes import derive
from duetime.model.trace_context import TRACEPARENT, TRACESTATE

R_co = TypeVar("R_co", covariant=True)
S = TypeVar("S", bound=msgspec.Struct)
When = TypeVar("When")
Json = TypeVar("Json")

IfExists: TypeAlias = Literal["error", "keep", "replace", "queue_one"]  # of a task whose key a live one has
IfStored: TypeAlias = Literal["error", "keep", "replace"]  # of what is stored under a name of its own

PRIORITIES = range(10)
DEFAULT_PRIORITY = 5
MAX_PAYLOAD = 1_000_000
MAX_NAME = 200
MAX_META = 8_192
COPY_OF = "copy_of"  # in the meta of a copy: the id of the task that it is a copy of

_decode = msgspec.json.Decoder().decode


class State(StrEnum):
    """The state of a task; `model.lifecycle` has the moves between states."""

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
LONGEST_KEPT = 100 * 365 * 86_400  # seconds for which a handler's finished tasks are kept at most: a hundred years


class ErrorInfo(msgspec.Struct, frozen=True, gc=False):
    """Why an attempt did not succeed, as it is stored and shown. `location` is where: `shop/tasks.py:42 in charge`, or empty.

    `fingerprint` is what failures of the same kind share (`model.failures`); empty of what is no failure.
    """

    type: str
    message: str
    traceback: str = ""
    location: str = ""
    fingerprint: str = ""

    def __str__(self) -> str:
        """Return type and message."""
        return f"{self.type}: {self.message}" if self.message else self.type


class Edge(msgspec.Struct, frozen=True):
    """A task that must end before another may start: in any way, or only with success."""

    parent: str
    needs: Literal["end", "success"] = "success"

    def __bool__(self) -> bool:
        """Refuse `if ended(task):`, which would look as if it asked for the task's state."""
        raise TypeError("ended(task) is what another task may need, not whether the task has ended; ask (await app.get(task)).state")


class NewTask(msgspec.Struct, Generic[R_co], frozen=True, gc=False, kw_only=True):
    """A task that is not stored yet. `.at` and `.after` set when it is due; without them it is due at once.

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
    pace: Pace | None = None
    merged: Merged | None = None

    def at(self, when: datetime) -> Self:
        """Return the same task with a due time."""
        return msgspec.structs.replace(self._undebounced(), due_at=due_instant(when), delay=0)

    def after(self, delay: Seconds) -> Self:
        """Return the same task, due `delay` after it is submitted."""
        return msgspec.structs.replace(self._undebounced(), due_at=None, delay=delay_micros(delay))

    def _undebounced(self) -> Self:
        if self.pace is not None and self.pace.debounce:
            raise InvalidValue("debounce says when the task is due; leave out .at(…) and .after(…)")
        return self


class Extras(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    """What a task carries that no store decides by. Stores keep it as one text, so that a new field of this sort changes no table.

    Each field here is also one of `NewTask` and of `Stored`.
    """

    meta: Mapping[str, str] | None = None
    merged: Merged | None = None


class Stored(msgspec.Struct, Generic[When, Json], frozen=True, gc=False):
    """A stored task. Its shapes differ in how they write instants and JSON: `TaskRecord` and `Task` here, `RawTask` on the wire.

    `due_at` is the next one while it waits for a retry. `parked`: it is pending, but its payload fits no code that has tried it.
    `deadline_at`: somebody outside has accepted the work of its running attempt, which times out then unless something is reported before.
    """

    id: str
    handler: str
    state: State
    payload: Json
    due_at: When
    submitted_at: When
    submitted_by: str = ""
    key: str | None = None
    collection: str | None = None
    priority: int = DEFAULT_PRIORITY
    timeout: float | None = None
    retry: Json | None = None
    expires_at: When | None = None
    meta: Mapping[str, str] | None = None
    schedule: str | None = None
    planned_at: When | None = None
    attempt: int = 0
    tries: int = 0
    crashes: int = 0
    cancelling: bool = False
    parked: bool = False
    worker: str | None = None
    started_at: When | None = None
    finished_at: When | None = None
    result: Json | None = None
    error: ErrorInfo | None = None
    progress: float | None = None
    progress_text: str = ""
    deadline_at: When | None = None
    merged: Merged | None = None


def with_extras(task: S, extras: Extras | None) -> S:
    """Return a task with what its extras say."""
    return task if extras is None else msgspec.structs.replace(task, **msgspec.structs.asdict(extras))


INSTANTS = ("due_at", "submitted_at", "expires_at", "planned_at", "started_at", "finished_at", "deadline_at")  # of a stored task


class TaskRecord(Stored[Instant, bytes], frozen=True, gc=False):
    """A stored task, as a store returns it."""


class Task(Stored[datetime, Any], Generic[R_co], frozen=True, gc=True):
    """A task as people and programs see it. `R_co` is the type of the handler's result, for `app.result`."""

    payload: dict[str, Any]
    retry: dict[str, Any] | None = None
    meta: dict[str, str] = {}
    result: Any = None

    @property
    def final(self) -> bool:
        return self.state in FINAL


def due_of(task: NewTask[Any], now: Instant) -> Instant:
    """Return when a new task is due."""
    due_at = now + task.delay if task.due_at is None else task.due_at
    if due_at > LATEST:
        raise InvalidValue("the due time lies beyond the year 9999; choose a shorter delay")
    return due_at


def begun(task: NewTask[Any], now: Instant) -> NewTask[Any]:
    """Return a task as it is stored if nothing with its key waits: a debounced one is due once its key was quiet."""
    if task.pace is None or not task.pace.debounce:
        return task
    merged = first(task.id, task.pace, now)
    return msgspec.structs.replace(task, due_at=due_at(task.pace, merged, now), merged=merged)


def joined(task: NewTask[Any], waiting: TaskRecord, now: Instant) -> NewTask[Any] | None:
    """Return a task as a waiting one takes it over, with when it is due; None if that has newer arguments, or these."""
    before = waiting.merged or first(waiting.id, None, waiting.submitted_at)
    merged = join(task.id, task.pace, before, waiting.attempt > 0, now)
    if merged is None:
        return None
    if task.pace is None or not task.pace.debounce:
        return msgspec.structs.replace(task, merged=merged)
    return msgspec.structs.replace(task, due_at=due_at(task.pace, merged, now), merged=merged)


def throttled_until(task: NewTask[Any], now: Instant) -> Instant:
    """Return until when a throttled task is the answer to others with its key."""
    return min(LATEST, now + (0 if task.pace is None else task.pace.throttle))


def expiry_of(task: NewTask[Any], due_at: Instant) -> Instant | None:
    """Return when a new task expires; None if never."""
    if task.expires_in is None:
        return task.expires_at
    return min(LATEST, due_at + task.expires_in)


_accepted = derive(NewTask, TaskRecord, given=("state", "submitted_at", "due_at", "expires_at"))
_shown = derive(
    TaskRecord, Task, {**dict.fromkeys(INSTANTS, to_datetime), **dict.fromkeys(("payload", "retry", "result"), _decode)}, given=("meta",)
)


def accepted(task: NewTask[Any], state: State, now: Instant, due_at: Instant) -> TaskRecord:
    """Return the record of a task that was stored just now."""
    return _accepted(task, state, now, due_at, expiry_of(task, due_at))


def copied(record: TaskRecord, task_id: str, payload: bytes, submitted_by: str) -> NewTask[Any]:
    """Return a new task like a stored one, due now: same handler and options, and in its meta the origin's id.

    It has no key, because the origin may still hold it, and belongs to no schedule, because no occurrence asked for it. It expires as
    long after its due time as the origin would now. What the origin waited for has no part in it, nor has the origin's trace.
    """
    life = None if record.expires_at is None else record.expires_at - record.due_at
    kept = {name: value for name, value in (record.meta or {}).items() if name not in (TRACEPARENT, TRACESTATE)}
    return NewTask(
        id=task_id,
        handler=record.handler,
        payload=payload,
        collection=record.collection,
        priority=record.priority,
        timeout=record.timeout,
        retry=record.retry,
        expires_in=life if life is not None and life > 0 else None,
        meta=check_meta({**kept, COPY_OF: record.id}),
        submitted_by=submitted_by,
    )


def shown(record: TaskRecord) -> Task[Any]:
    """Return a record as people see it: instants as datetimes, payload and result decoded."""
    return _shown(record, dict(record.meta) if record.meta else {})


def due_instant(when: datetime) -> Instant:
    """Check a due time: aware, and within the calendar."""
    return to_instant(when)


def delay_micros(delay: Seconds) -> int:
    """Check a delay: not negative, and within the calendar."""
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
    if len(meta) > MAX_META:
        raise InvalidValue(
            f"meta must have at most {MAX_META:,} characters in all, got {len(meta):,} names; put larger data into the payload"
        )
    for name, value in meta.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidValue(f"meta must map text to text, got {name!r}: {value!r}")
        checked[name] = value
    if sum(len(name) + len(value) for name, value in checked.items()) > MAX_META:
        raise InvalidValue(f"meta must stay under {MAX_META:,} characters in all; put larger data into the payload")
    return checked
