"""Running the past of a schedule: what a span would run is told before it is run."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import cast, get_args
from zoneinfo import ZoneInfo

import msgspec

from duetime.client.schedules.backfill import Backfill, Existing
from duetime.client.schedules.info import ScheduleInfo
from duetime.client.schedules.service import Schedules
from duetime.errors import DuetimeError, InvalidValue

MOST_AT_ONCE = 1_000


class Span(msgspec.Struct, frozen=True):
    """Which of the past to run, as somebody wrote it: local times of the schedule's zone."""

    since: str = ""
    until: str = ""
    existing: str = "skip"
    concurrency: str = "1"

    @classmethod
    def of(cls, fields: Mapping[str, str]) -> Span:
        given = {name: fields[name].strip() for name in cls.__struct_fields__ if fields.get(name, "").strip()}
        return cls(**given)

    @property
    def is_given(self) -> bool:
        return bool(self.since or self.until)


async def backfill(schedules: Schedules, schedule: ScheduleInfo, span: Span, *, dry_run: bool) -> Backfill:
    """Run what a span says, or only return what that would be."""
    if span.existing not in get_args(Existing):
        raise InvalidValue(f"those that have run can be {', '.join(get_args(Existing))}, got {span.existing[:40]!r}")
    if not span.concurrency.isdecimal() or not 1 <= int(span.concurrency) <= MOST_AT_ONCE:
        raise InvalidValue(f"how many run at once must be a whole number from 1 to {MOST_AT_ONCE:,}, got {span.concurrency[:40]!r}")
    zone = ZoneInfo(schedule.zone)
    return await schedules.backfill(
        schedule.name,
        _instant("from", span.since, zone),
        _instant("until", span.until, zone),
        existing=cast(Existing, span.existing),
        concurrency=int(span.concurrency),
        dry_run=dry_run,
    )


async def foreseen(schedules: Schedules, schedule: ScheduleInfo, span: Span) -> tuple[Backfill | None, str]:
    """Return what a span would run, or what is wrong with it; neither if nobody has asked."""
    if not span.is_given:
        return None, ""
    try:
        return await backfill(schedules, schedule, span, dry_run=True), ""
    except DuetimeError as error:
        return None, str(error)


def _instant(what: str, text: str, zone: ZoneInfo) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidValue(f"{what} must be a date and a time such as 2030-01-31T07:00, got {text[:40]!r}") from None
    return found if found.tzinfo is not None else found.replace(tzinfo=zone)
