"""The calendar of a month: each schedule a row of days."""

from __future__ import annotations

from datetime import date, datetime, timedelta

import msgspec

from duetime.client.schedules.info import ScheduleInfo, SkipInfo
from duetime.clock import to_datetime, to_instant
from duetime.errors import InvalidValue
from duetime.model.query import Query
from duetime.model.task import Task
from duetime.store.schedules import ScheduleFilter
from duetime.web.month import Month, cells, labels, month_of, month_row
from duetime.web.page import Page, View
from duetime.web.pages.calendar import MOST_PLANNED, MOST_RUNS, MOST_SKIPS, PER_PAGE, TICK, planned_between
from duetime.web.pages.schedules import service
from duetime.web.visit import Visit


class ScheduleMonth(msgspec.Struct, frozen=True):
    """What happened in a month, and what will. `known_from`: earlier runs are not looked at; `planned_until`: nor later plans."""

    schedule: ScheduleInfo
    runs: list[Task[object]]
    skips: list[SkipInfo]
    planned: list[datetime]
    known_from: datetime | None
    planned_until: datetime | None


async def view(visit: Visit) -> View:
    tz = visit.preferences.tz
    today = to_datetime(visit.now).astimezone(tz).date()
    month, after = month_of(_chosen(visit.query.get("month", ""), today), tz), visit.query.get("after", "")
    here = today.replace(day=1) == month.first
    key = f"calendar of {month.first:%Y-%m} {visit.preferences.zone} {after} {'|'.join(visit.caller.handlers)}"
    seen = await visit.sight.see(key, lambda: _look(visit, month, after))
    found, more = seen.value
    following = month.first + timedelta(days=31)
    rows = []
    for each in found:
        days = cells(each.runs, each.skips, each.planned, month=month, known_from=each.known_from, planned_until=each.planned_until)
        rows.append((each.schedule, month_row(days, month=month, today=today.day if here else None, name=each.schedule.name), days))
    facts = {
        "month": month,
        "rows": rows,
        "labels": labels(month),
        "seen": seen,
        "here": here,
        "around": [("Month before", _link(visit, month.first - timedelta(days=1))), ("Month after", _link(visit, following))],
        "first": not after,
        "next": None if more is None else visit.here(after=more),
    }
    return View(title="Month", facts=facts, crumbs=(("/schedules", "Schedules"),), every=10.0 if here else None)


def _link(visit: Visit, day: date) -> str:
    return visit.here(month=f"{day:%Y-%m}", after=None)


def _chosen(text: str, today: date) -> date:
    if not text:
        return today
    try:
        chosen = date.fromisoformat(f"{text}-01")
    except ValueError:
        raise InvalidValue(f"a month is written such as {today:%Y-%m}, got {text[:40]!r}") from None
    if not 2000 <= chosen.year < 2200:
        raise InvalidValue(f"the calendar goes from 2000 to 2199, got {chosen:%Y-%m}")
    return chosen


async def _look(visit: Visit, month: Month, after: str) -> tuple[list[ScheduleMonth], str | None]:
    items, more = await service(visit).page(ScheduleFilter(limit=PER_PAGE, after=after))
    return [await _month_of(visit, each, month) for each in items if visit.may_see(each.handler)], more


async def _month_of(visit: Visit, schedule: ScheduleInfo, month: Month) -> ScheduleMonth:
    query = Query(schedule=schedule.name, due_after=to_instant(month.start), due_before=to_instant(month.end), limit=MOST_RUNS, brief=True)
    page = await visit.app.client.page(query)
    skips = await visit.app.schedules.skips(schedule.name, limit=MOST_SKIPS, before=month.end)
    now = to_datetime(visit.app.store.now())
    planned = await planned_between(visit, schedule, max(month.start - TICK, now), month.end)
    return ScheduleMonth(
        schedule,
        page.items,
        [skip for skip in skips if skip.until_at >= month.start],
        planned,
        None if page.next is None else min((run.planned_at or run.due_at for run in page.items), default=month.end),
        planned[-1] if len(planned) >= MOST_PLANNED else None,
    )


PAGE = Page(path="/calendar/month", template="month.html", view=view)
