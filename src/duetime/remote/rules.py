"""Schedules on their way: rules, wishes and what is shown of them, to JSON and back."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import msgspec

from duetime.client.schedules.info import Health, PauseInfo, ScheduleInfo
from duetime.client.schedules.wishes import Schedule
from duetime.clock import to_datetime, to_instant, to_seconds
from duetime.model.retry import RetryPolicy
from duetime.model.rules import At, Calendar, Cron, Rule, Union, Window
from duetime.model.schedule import DEFAULT_GRACE
from duetime.targets.occurrence import LastRunView


class StoredWire(msgspec.Struct, frozen=True, kw_only=True):
    """What runs, and when, as a server shows it."""

    handler: str
    rule: dict[str, Any]
    payload: dict[str, Any] = {}
    calendars: list[str] = []
    start: datetime | None = None
    end: datetime | None = None
    count: int | None = None
    jitter: float = 0.0
    missed: str = "latest"
    overlap: str | None = None
    grace: float = DEFAULT_GRACE
    pause_after: int | None = None
    collection: str | None = None
    priority: int | None = None
    timeout: float | None = None
    retry: dict[str, Any] | None = None
    expires: float | None = None
    meta: dict[str, str] = {}
    note: str = ""


class ScheduleWire(msgspec.Struct, frozen=True, kw_only=True):
    """A stored schedule as a server shows it; instants in UTC."""

    name: str
    handler: str
    schedule: StoredWire
    description: str
    zone: str
    next_at: datetime | None
    health: Health
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
    tag: str = ""


_LOCAL = ("next_at", "planned_at", "fired_at")  # shown on the clock of the rule's zone
_SPANS = ("jitter", "grace", "timeout", "expires")


def info_of(wire: ScheduleWire) -> ScheduleInfo:
    """Give a schedule as the library shows it."""
    wish, zone = wish_of(wire.name, wire.schedule), ZoneInfo(wire.zone)
    local: dict[str, Any] = {name: None if getattr(wire, name) is None else getattr(wire, name).astimezone(zone) for name in _LOCAL}
    same = {name: getattr(wire, name) for name in ScheduleWire.__struct_fields__ if name not in ("schedule", *_LOCAL)}
    return ScheduleInfo(schedule=wish, rule=rule_of(wire.schedule.rule), **same, **local)


def wish_of(name: str, wire: StoredWire) -> Schedule:
    own = {each: getattr(wire, each) for each in StoredWire.__struct_fields__ if each not in ("handler", "rule", "retry")}
    retry = None if wire.retry is None else RetryPolicy().with_numbers(msgspec.json.encode(wire.retry))
    return Schedule(name, wire.handler, rule_of(wire.rule), retry=retry, **own)


def body_of(schedule: Schedule, *, handler: str, payload: Mapping[str, Any] | msgspec.Raw, priority: int | None) -> dict[str, Any]:
    """Give a wish as a server takes it, with what its handler decides here; without its name."""
    own = {name: getattr(schedule, name) for name in StoredWire.__struct_fields__}
    for name in _SPANS:
        own[name] = None if own[name] is None else to_seconds(own[name])
    own.update(
        handler=handler,
        rule=rule_body(schedule.rule),
        payload=payload,
        calendars=list(schedule.calendars),
        priority=priority,
        retry=None if schedule.retry is None else msgspec.Raw(schedule.retry.numbers()),
        meta=dict(schedule.meta),
    )
    return {name: value for name, value in own.items() if value is not None}


def rule_body(rule: Rule | str) -> Any:
    """Give a rule as a server takes it."""
    return rule if isinstance(rule, str) else _outgoing(msgspec.to_builtins(rule))


def rule_of(body: Mapping[str, Any]) -> Rule:
    """Read a rule that a server shows."""
    rule: Rule = msgspec.convert(_incoming(dict(body)), Rule)
    return rule


def zone_of(rule: Rule) -> ZoneInfo:
    """Give the zone on whose clock a rule's instants are shown."""
    parts = rule.parts if isinstance(rule, Union) else (rule,)
    return ZoneInfo(next((part.tz for part in parts if isinstance(part, Cron | Calendar | Window)), "UTC"))


def _outgoing(body: dict[str, Any]) -> dict[str, Any]:
    """Write instants as RFC 3339, and leave out what is not said."""
    if body["rule"] == At.__struct_config__.tag:
        body["instants"] = [to_datetime(each).isoformat() for each in body["instants"]]
    if "rules" in body:
        body["rules"] = [_outgoing(each) for each in body["rules"]]
    return {name: value for name, value in body.items() if value is not None}


def _incoming(body: dict[str, Any]) -> dict[str, Any]:
    if body["rule"] == At.__struct_config__.tag:
        body["instants"] = [to_instant(datetime.fromisoformat(each)) for each in body["instants"]]
    if "rules" in body:
        body["rules"] = [_incoming(dict(each)) for each in body["rules"]]
    return body
