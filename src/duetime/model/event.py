"""Events: what happens to tasks, schedules, workers and gates, told after the fact.

A store keeps them as `EventRecord`s while somebody follows them. People see a type per noun, with what there is to tell of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Literal, TypeAlias, get_args

import msgspec

from duetime.clock import Instant, to_datetime
from duetime.errors import InvalidValue
from duetime.model.access import fits
from duetime.model.task import check_name

TaskEventName: TypeAlias = Literal[
    "task.submitted",
    "task.started",
    "task.retrying",
    "task.lost",
    "task.released",
    "task.succeeded",
    "task.failed",
    "task.quarantined",
    "task.cancelled",
    "task.dropped",
    "task.expired",
    "task.skipped",
    "task.retried",
]
ScheduleEventName: TypeAlias = Literal["schedule.fired", "schedule.missed", "schedule.skipped", "schedule.paused", "schedule.resumed"]
WorkerEventName: TypeAlias = Literal["worker.started", "worker.stopped", "worker.lost"]
GateEventName: TypeAlias = Literal["gate.paused", "gate.dropped", "gate.opened"]
AllOfNoun: TypeAlias = Literal["task.*", "schedule.*", "worker.*", "gate.*"]
EventName: TypeAlias = TaskEventName | ScheduleEventName | WorkerEventName | GateEventName

NAMES: tuple[str, ...] = tuple(
    name for kind in (TaskEventName, ScheduleEventName, WorkerEventName, GateEventName) for name in get_args(kind)
)
MOST_EVENTS = 1_000  # on one page


class EventError(msgspec.Struct, frozen=True):
    """What an attempt failed with."""

    type: str = ""
    message: str = ""


class EventRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An event as a store keeps it. `cursor` is where to go on after it."""

    cursor: str
    at: Instant
    name: str
    subject: str
    handler: str | None = None
    collection: str | None = None
    attempt: int | None = None
    outcome: str | None = None
    worker: str | None = None
    schedule: str | None = None
    planned_at: Instant | None = None
    until_at: Instant | None = None
    count: int | None = None
    note: str | None = None
    by: str | None = None
    error: str | None = None


class TaskEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to a task. `outcome` is that of the attempt that ended, `attempt` its number, `worker` who ran it."""

    name: TaskEventName
    cursor: str
    at: datetime
    task: str
    handler: str
    collection: str | None = None
    attempt: int = 0
    outcome: str | None = None
    worker: str | None = None
    schedule: str | None = None
    planned_at: datetime | None = None
    error: EventError | None = None


class ScheduleEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to a schedule. `task` is the task of an occurrence that fired.

    Missed and skipped are `count` occurrences, from `planned_at` to `until_at`, for the `reason`.
    """

    name: ScheduleEventName
    cursor: str
    at: datetime
    schedule: str
    handler: str | None = None
    collection: str | None = None
    task: str | None = None
    planned_at: datetime | None = None
    until_at: datetime | None = None
    count: int | None = None
    reason: str | None = None
    note: str | None = None
    by: str | None = None


class WorkerEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that came, left, or was found dead."""

    name: WorkerEventName
    cursor: str
    at: datetime
    worker: str
    host: str = ""


class GateEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A gate that was closed, by whom and until when, or opened."""

    name: GateEventName
    cursor: str
    at: datetime
    handler: str
    collection: str | None = None
    until_at: datetime | None = None
    note: str = ""
    by: str = ""


Event: TypeAlias = TaskEvent | ScheduleEvent | WorkerEvent | GateEvent
KINDS: dict[str, type[TaskEvent] | type[ScheduleEvent] | type[WorkerEvent] | type[GateEvent]] = {
    "task": TaskEvent,
    "schedule": ScheduleEvent,
    "worker": WorkerEvent,
    "gate": GateEvent,
}


class EventFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which events somebody wants: names (all if empty), a handler or all that begin with one (`shop.*`), a task.

    With `handler` or `task`, events of other things than tasks, schedules and gates of such handlers are left out. `visible` are the
    handlers that a token is for, with the same effect.
    """

    names: frozenset[str] = frozenset()
    handler: str | None = None
    task: str | None = None
    visible: tuple[str, ...] = ()

    def takes(self, record: EventRecord) -> bool:
        if self.names and record.name not in self.names:
            return False
        if self.handler is not None and (record.handler is None or not fits((self.handler,), record.handler)):
            return False
        if self.task is not None and (record.subject if record.name.startswith("task.") else record.note) != self.task:
            return False
        return not self.visible or (record.handler is not None and fits(self.visible, record.handler))


def check_events(names: Iterable[str]) -> frozenset[str]:
    """Check names of events; `task.*` stands for all of a noun."""
    found: set[str] = set()
    for name in names:
        chosen = [known for known in NAMES if known == name or (name.endswith(".*") and known.startswith(name[:-1]))]
        if not chosen:
            nouns = ", ".join(f"{noun}.*" for noun in KINDS)
            raise InvalidValue(f"there is no event {name!r}; there are {', '.join(NAMES)}, and {nouns} for all of a noun")
        found.update(chosen)
    return frozenset(found)


def check_pattern(handler: str | None) -> str | None:
    """Check a handler's name, or a prefix that ends with one `*`."""
    if handler is not None:
        check_name(handler, "handler")
        if "*" in handler[:-1]:
            raise InvalidValue(f"handler must be a name, or a prefix that ends with one *, got {handler!r}")
    return handler


def shown(record: EventRecord) -> Event:
    """Return an event as people see it."""
    name, cursor, at = record.name, record.cursor, to_datetime(record.at)
    planned_at, until_at = _when(record.planned_at), _when(record.until_at)
    match name.partition(".")[0]:
        case "task":
            return TaskEvent(
                name=name,  # type: ignore[arg-type]
                cursor=cursor,
                at=at,
                task=record.subject,
                handler=record.handler or "",
                collection=record.collection,
                attempt=record.attempt or 0,
                outcome=record.outcome,
                worker=record.worker,
                schedule=record.schedule,
                planned_at=planned_at,
                error=_error(record.error),
            )
        case "schedule":
            return ScheduleEvent(
                name=name,  # type: ignore[arg-type]
                cursor=cursor,
                at=at,
                schedule=record.subject,
                handler=record.handler,
                collection=record.collection,
                task=record.note if name == "schedule.fired" else None,
                planned_at=planned_at,
                until_at=until_at,
                count=record.count,
                reason=record.outcome,
                note=None if name == "schedule.fired" else record.note,
                by=record.by,
            )
        case "worker":
            return WorkerEvent(name=name, cursor=cursor, at=at, worker=record.subject, host=record.note or "")  # type: ignore[arg-type]
        case _:
            return GateEvent(
                name=name,  # type: ignore[arg-type]
                cursor=cursor,
                at=at,
                handler=record.subject,
                collection=record.collection,
                until_at=until_at,
                note=record.note or "",
                by=record.by or "",
            )


def subject_of(event: Event) -> str:
    """Return what an event is about: events of the same thing come in order."""
    match event:
        case TaskEvent():
            return event.task
        case ScheduleEvent():
            return f"schedule {event.schedule}"
        case WorkerEvent():
            return f"worker {event.worker}"
        case GateEvent():
            return f"gate {event.handler}"


def by_subject(events: Collection[Event]) -> list[list[Event]]:
    """Divide events by what they are about, each in its order."""
    found: dict[str, list[Event]] = {}
    for event in events:
        found.setdefault(subject_of(event), []).append(event)
    return list(found.values())


def _when(instant: Instant | None) -> datetime | None:
    return None if instant is None else to_datetime(instant)


def _error(text: str | None) -> EventError | None:
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=EventError)
    except msgspec.DecodeError:
        return EventError(message=text[:1_000])
