"""The task of an occurrence, and how a run ended, as the next run gets it."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

import msgspec

from duetime.clock import SECOND, Instant, to_datetime
from duetime.model.rules import Plan
from duetime.model.schedule import Ends, LastRun, Run, RunKind, ScheduleRecord, occurrence_id
from duetime.model.task import FINAL, Edge, ErrorInfo, NewTask, TaskRecord

LARGEST_RESULT: Final = 4_096  # bytes of a result that are handed to the next run
LONGEST_MESSAGE: Final = 1_000  # characters of an error's message
SUBMITTED_BY: Final = "schedule"

_encode = msgspec.json.Encoder().encode


def due_of_occurrence(record: ScheduleRecord, planned_at: Instant) -> Instant:
    """Return when an occurrence's task is due: as planned, or later by a share of the jitter that is the same for each computation."""
    jitter = record.spec.jitter
    if not jitter:
        return planned_at
    return planned_at + (int(jitter * SECOND) * zlib.crc32(f"{record.id}\0{planned_at}".encode()) >> 32)


def task_of(
    record: ScheduleRecord,
    plan: Plan,
    planned_at: Instant,
    *,
    kind: RunKind = "rule",
    number: int = 0,
    due_at: Instant | None = None,
    edges: tuple[Edge, ...] = (),
    payload: bytes | None = None,
    last: LastRun | None = None,
    submitted_by: str = SUBMITTED_BY,
    near: Instant | None = None,
) -> NewTask[object]:
    """Make the task of an occurrence. `last` is the run that ended last; `near` an instant that is probably the one planned before."""
    spec = record.spec
    meta = occurrence_meta(plan.zone, planned_at, since_of(plan, planned_at, record.state.planned_at if near is None else near))
    if spec.meta or kind != "rule" or last is not None:
        meta = {**spec.meta, **meta}
        if kind != "rule":
            meta["duetime.kind"] = kind
        if last is not None:
            meta["duetime.last"] = _encode(last).decode()
    return NewTask(
        id=occurrence_id(record.id, planned_at, kind, number),
        handler=spec.handler,
        payload=bytes(spec.payload) if payload is None else payload,
        due_at=due_of_occurrence(record, planned_at) if due_at is None else due_at,
        collection=spec.collection,
        priority=spec.priority,
        timeout=spec.timeout,
        retry=None if spec.retry is None else bytes(spec.retry),
        expires_in=spec.expires_in,
        meta=meta,
        submitted_by=submitted_by,
        schedule=record.name,
        planned_at=planned_at,
        edges=edges,
    )


def since_of(plan: Plan, planned_at: Instant, fired: Instant | None) -> Instant:
    """Return where the interval of an occurrence begins: the instant that the rule plans before it; its own instant if there is none.

    A rule that waits for the end of a run plans nothing by itself: there it is the run before. `fired` is the occurrence before.
    """
    if plan.waits:
        found = plan.before(planned_at)
        earlier = [instant for instant in (found, fired) if instant is not None and instant < planned_at]
        return max(earlier, default=planned_at)
    if fired is not None and planned_after(plan, fired) == planned_at and planned_after(plan, fired - 1) == fired:
        return fired  # the usual case; finding it backwards takes twenty times as long
    found = _planned_before(plan, planned_at)
    return planned_at if found is None else found


@lru_cache(maxsize=4_096)  # schedules that fire together often share their plan and their cursor
def planned_after(plan: Plan, cursor: Instant) -> Instant | None:
    return plan.after(cursor)


@lru_cache(maxsize=4_096)
def _planned_before(plan: Plan, planned_at: Instant) -> Instant | None:
    return plan.before(planned_at)


@lru_cache(maxsize=4_096)  # schedules that fire together mostly share instant and zone; nobody changes the meta of a new task
def occurrence_meta(zone: str, planned_at: Instant, since: Instant) -> dict[str, str]:
    """Return what every task of an occurrence carries in its meta."""
    return {"duetime.zone": zone, "duetime.local": local_text(zone, planned_at), "duetime.since": to_datetime(since).isoformat()}


def local_text(zone: str, planned_at: Instant) -> str:
    """Return an instant as local time of a zone, with its offset."""
    return to_datetime(planned_at).astimezone(ZoneInfo(zone)).isoformat()


def ended_run(run: Run, task: TaskRecord, now: Instant) -> LastRun | None:
    """Return how a run ended, short enough for the next run's meta; None if it has not ended."""
    if task.state not in FINAL:
        return None
    error = task.error
    return LastRun(
        task=run.task,
        state=task.state,
        planned_at=run.planned_at,
        finished_at=now if task.finished_at is None else task.finished_at,
        started_at=task.started_at,
        worker=task.worker,
        result=None if task.result is None or len(task.result) > LARGEST_RESULT else msgspec.Raw(task.result),
        error=None if error is None else ErrorInfo(error.type[:LONGEST_MESSAGE], error.message[:LONGEST_MESSAGE], location=error.location),
    )


def ends_of(runs: Iterable[Run], tasks: Mapping[str, TaskRecord | None], now: Instant) -> Ends:
    """Return which of these runs have ended, by their stored tasks."""
    ended: list[LastRun] = []
    gone: list[str] = []
    for run in runs:
        task = tasks.get(run.task)
        if task is None:
            gone.append(run.task)
        elif (last := ended_run(run, task, now)) is not None:
            ended.append(last)
    ended.sort(key=lambda last: last.finished_at)
    return Ends(tuple(ended), tuple(gone))


def has_nothing_to_wait_for(plan: Plan, cursor: Instant, ended_at: Instant | None) -> bool:
    """Return whether a rule that waits for the end of a run has none to wait for, or one whose delay ended before the cursor."""
    return plan.waits and (ended_at is None or plan.waited(cursor, ended_at) is None)
