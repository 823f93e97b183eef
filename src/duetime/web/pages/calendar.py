"""The calendar of a day: each schedule a row with its runs, its skips and what is planned."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import msgspec

from duetime.client.schedules.info import ScheduleInfo, SkipInfo
from duetime.clock import to_datetime, to_instant
from duetime.errors import DuetimeError, InvalidValue
from duetime.model.query import Query
from duetime.model.task import Task
from duetime.store.schedules import ScheduleFilter
from duetime.web.day import Day, Mark, day_of, hours, marks, row
from duetime.web.page import Page, View
from duetime.web.pages.schedules import service
from duetime.web.visit import Visit

PER_PAGE = 30
MOST_RUNS = 500  # of a schedule on a day
MOST_PLANNED = 2_000
MOST_SKIPS = 100
TICK = timedelta(microseconds=1)  # a preview begins after an instant, and midnight belongs to the day
MARGIN = timedelta(days=1)  # a run of the day before may last into this one


class ScheduleDay(msgspec.Struct, frozen=True):
    """What happened on a day, and what will. `cut`: there were more runs than are looked at."""

    schedule: ScheduleInfo
    runs: list[Task[object]]
    skips: list[SkipInfo]
    planned: list[datetime]
    cut: bool


async def view(visit: Visit) -> View:
    tz, now = visit.preferences.tz, to_datetime(visit.now)
    today = now.astimezone(tz).date()
    chosen = _chosen(visit.query.get("day", ""), today)
    day, after = day_of(chosen, tz), visit.query.get("after", "")
    key = f"calendar of {chosen} {visit.preferences.zone} {after} {'|'.join(visit.caller.handlers)}"
    seen = await visit.sight.see(key, lambda: _look(visit, day, after))
    found, more = seen.value
    stats = (await visit.sight.see("stats", visit.app.insight.stats)).value
    lasting = {each.handler: each.duration.p50 for each in stats.handlers if each.duration is not None}
    here = day.share(now) if day.start <= now < day.end else None
    rows = [(each, _marks(each, day, now, lasting)) for each in found]
    facts = {
        "day": day,
        "rows": [(each, row(drawn, now=here, name=each.schedule.name), drawn) for each, drawn in rows],
        "hours": hours(day),
        "seen": seen,
        "today": chosen == today,
        "days": [(word, visit.here(day=at.isoformat(), after=None)) for word, at in _around(chosen)],
        "first": not after,
        "next": None if more is None else visit.here(after=more),
    }
    return View(title="Calendar", facts=facts, crumbs=(("/schedules", "Schedules"),), every=10.0 if chosen == today else None)


def _around(chosen: date) -> list[tuple[str, date]]:
    return [("Day before", chosen - timedelta(days=1)), ("Day after", chosen + timedelta(days=1))]


def _chosen(text: str, today: date) -> date:
    if not text:
        return today
    try:
        chosen = date.fromisoformat(text)
    except ValueError:
        raise InvalidValue(f"a day is written such as {today.isoformat()}, got {text[:40]!r}") from None
    if not 2000 <= chosen.year < 2200:
        raise InvalidValue(f"the calendar goes from 2000 to 2199, got {chosen.isoformat()}")
    return chosen


def _marks(found: ScheduleDay, day: Day, now: datetime, lasting: dict[str, float]) -> list[Mark]:
    return marks(found.runs, found.skips, found.planned, day=day, now=now, lasting=lasting.get(found.schedule.handler))


async def _look(visit: Visit, day: Day, after: str) -> tuple[list[ScheduleDay], str | None]:
    items, more = await service(visit).page(ScheduleFilter(limit=PER_PAGE, after=after))
    return [await _day_of(visit, each, day) for each in items if visit.may_see(each.handler)], more


async def _day_of(visit: Visit, schedule: ScheduleInfo, day: Day) -> ScheduleDay:
    start, end = day.start.astimezone(UTC), day.end.astimezone(UTC)
    query = Query(schedule=schedule.name, due_after=to_instant(start - MARGIN), due_before=to_instant(end), limit=MOST_RUNS, brief=True)
    page = await visit.app.client.page(query)
    skips = await visit.app.schedules.skips(schedule.name, limit=MOST_SKIPS, before=end)
    return ScheduleDay(
        schedule,
        page.items,
        [skip for skip in skips if skip.until_at >= start],
        await planned_between(visit, schedule, max(start - TICK, to_datetime(visit.app.store.now())), end),
        page.next is not None,
    )


async def planned_between(visit: Visit, schedule: ScheduleInfo, start: datetime, end: datetime) -> list[datetime]:
    """Return when a schedule will fire after a start up to an end, in the zone of the person; at most so many."""
    if start >= end or schedule.paused or schedule.health in ("ended", "broken"):
        return []
    try:
        found = await visit.app.schedules.preview(schedule.name, count=MOST_PLANNED, after=start)
    except DuetimeError:
        return []
    return [at.astimezone(visit.preferences.tz) for at in found if at < end]


PAGE = Page(path="/calendar", template="calendar.html", view=view)
