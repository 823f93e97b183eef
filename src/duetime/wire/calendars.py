"""Calendars in JSON."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, field

from duetime.model.rules import DayCalendar
from duetime.wire.fields import Name
from duetime.wire.rules import Zone

MOST_DAYS = 10_000
Texts = Annotated[list[Annotated[str, Meta(min_length=1, max_length=20)]], Meta(max_length=MOST_DAYS)]


class CalendarBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A set of days and hours: `exclude` permits what does not match, `include` what does.

    `also` names other calendars that must permit the time too.
    """

    mode: Literal["exclude", "include"] = "exclude"
    dates: Annotated[Texts, Meta(examples=[["2030-04-22"]])] = field(default_factory=list)
    yearly: Annotated[Texts, Meta(examples=[["12-25", "12-26"]])] = field(default_factory=list)
    monthly: Annotated[Texts, Meta(examples=[["1", "last"]])] = field(default_factory=list)
    weekdays: Annotated[str, Meta(max_length=100, examples=["mon-fri"])] = ""
    times: Annotated[Texts, Meta(examples=[["09:00-17:00"]])] = field(default_factory=list)
    cron: Annotated[str, Meta(max_length=1_000, examples=["* 22-23,0-5 * * MON-FRI"], description="In place of all of these.")] = ""
    tz: Zone = "UTC"
    also: Annotated[list[Name], Meta(max_length=100)] = field(default_factory=list)


class CalendarView(CalendarBody, forbid_unknown_fields=False, frozen=True, kw_only=True):
    """A stored calendar."""

    name: str


class CalendarList(msgspec.Struct, frozen=True):
    """All calendars by name."""

    items: list[CalendarView]
    next: None = None


def view_of(name: str, calendar: DayCalendar) -> CalendarView:
    """Return a stored calendar as JSON shows it."""
    body = body_of(calendar)
    return CalendarView(name=name, **msgspec.structs.asdict(body))


def calendar_of(body: CalendarBody) -> DayCalendar:
    """Return the calendar of a body. Raises InvalidValue if it is not valid."""
    return DayCalendar(
        mode=body.mode,
        dates=body.dates,
        yearly=body.yearly,
        monthly=body.monthly,
        weekdays=body.weekdays,
        times=body.times,
        cron=body.cron,
        tz=body.tz,
        also=body.also,
    )


def body_of(calendar: DayCalendar) -> CalendarBody:
    return CalendarBody(
        mode=calendar.mode,
        dates=list(calendar.dates),
        yearly=list(calendar.yearly),
        monthly=[str(day) for day in calendar.monthly],
        weekdays=str(calendar.weekdays),
        times=list(calendar.times),
        cron=calendar.cron,
        tz=calendar.tz,
        also=list(calendar.also),
    )
