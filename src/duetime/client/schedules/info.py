"""Schedules as people see them: what is planned, how the last run ended, and the health."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Literal, TypeAlias
from zoneinfo import ZoneInfo

import msgspec

from duetime.client.schedules.schedule import Schedule, schedule_of
from duetime.clock import LATEST, SECOND, Instant, to_datetime
from duetime.errors import InvalidValue
from duetime.model.firing import has_ended, next_planned
from duetime.model.gate import Gates
from duetime.model.policies import read_overlap
from duetime.model.retry import RetryPolicy
from duetime.model.rules import DayCalendar, Plan, Rule, describe, plan_of
from duetime.model.schedule import ScheduleRecord, ScheduleSpec, Skip, SkipReason
from duetime.model.wording import span
from duetime.targets.occurrence import LastRunView, last_run_view

LOOKED_AHEAD = 10  # occurrences between which retries must fit

ScheduleHealth: TypeAlias = Literal["ok", "failing", "paused", "late", "gated", "ended", "broken"]


class PauseInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Since when, by whom and why a schedule does not fire. `automatic`: after too many failed runs in a row."""

    at: datetime
    by: str
    note: str
    automatic: bool


class ScheduleInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A stored schedule. Instants are in local time of the rule's `zone`.

    `schedule` would create it again. `next_at` is the next planned instant; while one is late, that one. `health` is
    "ok", "failing" (the last run failed), "paused", "gated" (a gate is closed), "late" (due for longer than its grace, and nobody fires),
    "ended" (nothing more is planned) or "broken" (it cannot be planned any more, for example without a calendar; `problem` says why).
    `fired` and `missed` count occurrences that became tasks and that did not, `failures` the failed runs in a row. `running` are its
    tasks that had not ended at the last look. `warning` says when the retries of a run may last into the next one; lists leave it out.
    `declared` is the revision of the program that declared it, if one did. `tag` differs after every change that people make, but not
    after firing: `put` and `delete` can require it.
    """

    name: str
    handler: str
    schedule: Schedule
    rule: Rule
    description: str
    zone: str
    next_at: datetime | None
    health: ScheduleHealth
    last: LastRunView | None
    paused: PauseInfo | None
    fired: int
    missed: int
    failures: int
    running: list[str]
    planned_at: datetime | None
    fired_at: datetime | None
    revision: int
    declared: int | None
    created_at: datetime
    changed_at: datetime
    changed_by: str
    problem: str = ""
    warning: str = ""
    tag: str = ""


class SkipInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Occurrences that became no task: `count` of them from `planned_at` to `until_at`, and why."""

    schedule: str
    planned_at: datetime
    until_at: datetime
    count: int
    reason: SkipReason
    at: datetime
    note: str


def plan_for(spec: ScheduleSpec, calendars: Mapping[str, DayCalendar]) -> Plan:
    """Return the plan of a stored schedule; raise InvalidValue if a calendar is missing."""
    return plan_of(spec.rule, calendars=calendars, within=spec.calendars, start_at=spec.start_at, end_at=spec.end_at)


def plan_or_none(spec: ScheduleSpec, calendars: Mapping[str, DayCalendar]) -> Plan | None:
    """Return the plan of a stored schedule; None if it cannot be planned any more."""
    try:
        return plan_for(spec, calendars)
    except InvalidValue:
        return None


def schedule_info(record: ScheduleRecord, calendars: Mapping[str, DayCalendar], gates: Gates, now: Instant) -> ScheduleInfo:
    """Return a stored schedule as people see it."""
    problem, next_at, zone, waits = "", None, "UTC", False
    try:
        plan = plan_for(record.spec, calendars)
        zone, waits = plan.zone, plan.waits
        next_at = next_planned(record, plan)
    except InvalidValue as error:
        problem = str(error)
    spec, state = record.spec, record.state
    clock = ZoneInfo(zone)
    pause = state.paused
    return ScheduleInfo(
        name=record.name,
        handler=spec.handler,
        schedule=schedule_of(record),
        rule=spec.rule,
        description=describe(spec.rule),
        zone=zone,
        next_at=_local(next_at, clock),
        health="broken" if problem else health_of(record, next_at, gates, now, waits=waits),
        last=None if state.last is None else last_run_view(state.last),
        paused=None if pause is None else PauseInfo(at=to_datetime(pause.at), by=pause.by, note=pause.note, automatic=pause.automatic),
        fired=state.fired,
        missed=state.missed,
        failures=state.failures,
        running=[run.task for run in state.runs],
        planned_at=_local(state.planned_at, clock),
        fired_at=_local(state.fired_at, clock),
        revision=record.revision,
        declared=record.declared,
        created_at=to_datetime(record.created_at),
        changed_at=to_datetime(record.changed_at),
        changed_by=record.changed_by,
        problem=problem,
        tag=tag_of(record),
    )


def warning_of(record: ScheduleRecord, calendars: Mapping[str, DayCalendar], retry: bytes | None, now: Instant) -> str:
    """Return a warning if a run may still be retried when the next one is planned, by the delays alone; `retry` as it is stored."""
    overlap, plan = read_overlap(record.spec.overlap), plan_or_none(record.spec, calendars)
    if retry is None or plan is None or plan.waits or (overlap.kind == "allow" and overlap.limit is None):
        return ""
    lasts = RetryPolicy().with_numbers(retry).lasts
    planned = plan.between(now, LATEST, LOOKED_AHEAD)
    gaps = [(later - earlier) / SECOND for earlier, later in pairwise(planned)]
    if not gaps or lasts < min(gaps):
        return ""
    between, most = (span(timedelta(seconds=seconds)) for seconds in (min(gaps), lasts))
    return (
        f"the retries of a run may last {most}, and the next one is planned {between} after it: then overlap={record.spec.overlap!r} "
        f"decides. RetryPolicy(within={min(gaps) * 0.9:g}) ends them before"
    )


def tag_of(record: ScheduleRecord) -> str:
    """Return a hash of what people can change: the spec and the pause. Firing does not change it.

    The version changes with each occurrence, so an edit of a schedule that fires every minute would always come too late.
    """
    facts = (record.id, record.revision, record.changed_at, record.changed_by, record.state.paused)
    return hashlib.blake2b(msgspec.json.encode(facts), digest_size=12).hexdigest()


def health_of(record: ScheduleRecord, next_at: Instant | None, gates: Gates, now: Instant, *, waits: bool) -> ScheduleHealth:
    """Return the first that applies: paused, ended, gated, late, failing, ok."""
    spec, state = record.spec, record.state
    if state.paused is not None:
        return "paused"
    if next_at is None and (not waits or has_ended(record, state) or (spec.end_at is not None and spec.end_at < now)):
        return "ended"
    if gates.holding(spec.handler, spec.collection, now) is not None:
        return "gated"
    if next_at is not None and next_at + spec.grace * SECOND < now:
        return "late"
    return "failing" if state.failures else "ok"


def skip_info(skip: Skip) -> SkipInfo:
    return SkipInfo(
        schedule=skip.schedule,
        planned_at=to_datetime(skip.planned_at),
        until_at=to_datetime(skip.until_at),
        count=skip.count,
        reason=skip.reason,
        at=to_datetime(skip.at),
        note=skip.note,
    )


def _local(instant: Instant | None, zone: ZoneInfo) -> datetime | None:
    return None if instant is None else to_datetime(instant).astimezone(zone)
