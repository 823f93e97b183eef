"""An occurrence as its handler sees it: the planned instant, on which clock, and how the run before it went."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import msgspec

from duetime.clock import Instant, to_datetime, to_instant
from duetime.model.schedule import LastRun
from duetime.model.task import ErrorInfo, State

# Names in the meta of a schedule's tasks.
ZONE, LOCAL, LAST, KIND, SINCE = "duetime.zone", "duetime.local", "duetime.last", "duetime.kind", "duetime.since"

_last: msgspec.json.Decoder[LastRun] = msgspec.json.Decoder(LastRun)


class LastRunView(msgspec.Struct, frozen=True, kw_only=True):
    """How a schedule's run that ended last went. `result` is None also if it was too large to be handed on; the task has it."""

    task: str
    state: State
    planned_at: datetime
    finished_at: datetime
    started_at: datetime | None = None
    worker: str | None = None
    result: Any = None
    error: ErrorInfo | None = None


class Interval(NamedTuple):
    """A stretch of time: `start` belongs to it, `end` does not."""

    start: datetime
    end: datetime


class Occurrence(msgspec.Struct, frozen=True, kw_only=True):
    """One planned instant of a schedule. `local` is that instant on the clock of the rule's zone.

    `interval` is from the instant that the rule plans before this one up to this one, on the clock of the rule's zone. It follows from the
    rule alone, so a backfill of the occurrence gets the same one.
    """

    schedule: str
    planned_at: datetime
    zone: str
    local: datetime
    interval: Interval
    last: LastRunView | None = None


def since_of(meta: Mapping[str, str]) -> Instant | None:
    """Return where the interval of an occurrence begins, by the meta of its task."""
    since = meta.get(SINCE)
    return None if since is None else to_instant(datetime.fromisoformat(since))


def last_run_view(last: LastRun) -> LastRunView:
    return LastRunView(
        task=last.task,
        state=last.state,
        planned_at=to_datetime(last.planned_at),
        finished_at=to_datetime(last.finished_at),
        started_at=None if last.started_at is None else to_datetime(last.started_at),
        worker=last.worker,
        result=None if last.result is None else msgspec.json.decode(last.result),
        error=last.error,
    )


def occurrence_of(schedule: str, planned_at: Instant, meta: Mapping[str, str]) -> Occurrence:
    """Read the occurrence from a task's meta."""
    zone = meta.get(ZONE, "UTC")
    planned = to_datetime(planned_at)
    local = planned.astimezone(ZoneInfo(zone))
    since = since_of(meta)
    last = meta.get(LAST)
    return Occurrence(
        schedule=schedule,
        planned_at=planned,
        zone=zone,
        local=local,
        interval=Interval(local if since is None else to_datetime(since).astimezone(ZoneInfo(zone)), local),
        last=None if last is None else last_run_view(_last.decode(last)),
    )
