"""Named calendars: which days and hours are permitted, and the next permitted instant."""

from __future__ import annotations

from bisect import bisect_right
from calendar import monthrange
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from functools import lru_cache
from typing import Literal

import msgspec
from msgspec.structs import force_setattr

from duetime.clock import SECOND, Instant
from duetime.errors import InvalidValue
from duetime.model.rules.cron import Expression, read_expression
from duetime.model.rules.days import weekday_of
from duetime.model.rules.reading import (
    DAY_SECONDS,
    FIRST_SECOND,
    HORIZON_SECONDS,
    LAST_SECOND,
    date_of,
    day_of,
    read_choice,
    read_date,
    read_day_of_month,
    read_month_and_day,
    read_range,
    read_weekdays,
    read_zone,
    several,
    time_text,
    weekdays_text,
)
from duetime.model.rules.zones import zone_of


class DayCalendar(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A set of days and hours, to be stored under a name: holidays, business hours, a change freeze.

    A time matches if its local day is one of `dates`, `yearly`, `monthly` or `weekdays` (any day if none of these is given) and its local
    time lies in one of `times` (any time if none is given; from the start up to, not including, the end; a range over midnight
    means the early and the late hours of the same day). With `cron`, an expression of five fields in place of all of these, it matches
    in each minute that the expression names. `exclude` permits what does not match, `include` what does.
    `also` names other calendars that must permit the time too.

        DayCalendar(dates=["2030-04-22"], yearly=["12-25", "12-26"], tz="Europe/Berlin")
        DayCalendar(monthly=["1", "last"], tz="Europe/Berlin")
        DayCalendar(cron="* 22-23,0-5 * * MON-FRI", tz="Europe/Berlin")
        DayCalendar(mode="include", weekdays="mon-fri", times="09:00-17:00", tz="Europe/Berlin", also=["holidays"])
    """

    mode: Literal["exclude", "include"] = "exclude"
    dates: str | Sequence[str] = ()
    yearly: str | Sequence[str] = ()
    monthly: str | Sequence[str | int] = ()
    weekdays: str | Sequence[str] = ""
    times: str | Sequence[str] = ()
    cron: str = ""
    tz: str = "UTC"
    also: str | Sequence[str] = ()

    def __post_init__(self) -> None:
        read_choice(self.mode, ("exclude", "include"), "mode")
        dates = sorted({read_date(value, "dates") for value in several(self.dates)})
        yearly = sorted({read_month_and_day(value, "yearly") for value in several(self.yearly)})
        monthly = sorted({read_day_of_month(value, "monthly") or 32 for value in several(self.monthly)})
        times = sorted({read_range(value, "times") for value in several(self.times)})
        also = several(self.also)
        for name in also:
            if not isinstance(name, str) or not name:
                raise InvalidValue(f'also must name other calendars, for example also=["holidays"], got {name!r}')
        force_setattr(self, "dates", tuple(when.isoformat() for when in dates))
        force_setattr(self, "yearly", tuple(f"{month:02}-{day:02}" for month, day in yearly))
        force_setattr(self, "monthly", tuple("last" if day == 32 else str(day) for day in monthly))
        force_setattr(self, "weekdays", weekdays_text(read_weekdays(self.weekdays, "weekdays")))
        force_setattr(self, "times", tuple(f"{time_text(start)}-{time_text(end)}" for start, end in times))
        force_setattr(self, "tz", read_zone(self.tz))
        force_setattr(self, "also", tuple(dict.fromkeys(also)))
        said = self.dates or self.yearly or self.monthly or self.weekdays or self.times
        if not said and not self.cron:
            raise InvalidValue(
                'a calendar must say which time it means: dates, yearly, monthly, weekdays, times or cron, for example weekdays="sat,sun"'
            )
        if self.cron:
            if said:
                raise InvalidValue("cron says both the days and the hours: leave out dates, yearly, monthly, weekdays and times")
            _read_minutes(self.cron)

    def permits(self, instant: Instant, calendars: Mapping[str, DayCalendar] | None = None) -> bool:
        """Return whether this calendar and all of its `also`, looked up in `calendars`, permit an instant."""
        chain = (self, *chain_of(self.also, calendars or {}))
        return all(_rule_of(calendar).permits(instant) for calendar in chain)


def chain_of(names: Iterable[str], calendars: Mapping[str, DayCalendar]) -> tuple[DayCalendar, ...]:
    """Look up calendars and, recursively, their `also`; refuse unknown names and cycles."""
    found: dict[str, DayCalendar] = {}

    def look_up(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            raise InvalidValue(f"calendars go round in a circle: {' → '.join((*path, name))}; take one of them out of `also`")
        if name not in calendars:
            known = ", ".join(sorted(calendars)) or "none yet"
            named_by = f" (named by `also` of {path[-1]})" if path else ""
            raise InvalidValue(f"calendar {name!r}{named_by} is unknown; there are: {known}")
        if name not in found:
            for other in calendars[name].also:
                look_up(other, (*path, name))
            found[name] = calendars[name]

    for name in names:
        look_up(name, ())
    return tuple(found.values())


class CalendarRule:
    """One calendar in computed form, without its `also`."""

    def __init__(self, calendar: DayCalendar) -> None:
        self._zone = zone_of(calendar.tz)
        self._exclude = calendar.mode == "exclude"
        self._dates = frozenset(day_of(date.fromisoformat(text)) for text in calendar.dates)
        self._yearly = frozenset(read_month_and_day(text, "yearly") for text in calendar.yearly)
        self._monthly = frozenset(read_day_of_month(text, "monthly") for text in calendar.monthly)
        self._weekdays = read_weekdays(calendar.weekdays, "weekdays")
        self._cron = _read_minutes(calendar.cron) if calendar.cron else None
        self._any_day = not (self._dates or self._yearly or self._monthly or self._weekdays or self._cron)
        if self._cron is None:
            self._ranges = _split_ranges(read_range(text, "times") for text in calendar.times)
        else:
            self._ranges = _minutes_of(self._cron)
        self._borders = sorted({border for pair in self._ranges for border in pair} | {DAY_SECONDS})

    def permits(self, instant: Instant) -> bool:
        at = instant // SECOND
        wall = at + self._zone.segment(at).offset
        return self._matches(*divmod(wall, DAY_SECONDS)) is not self._exclude

    def permits_day(self, day: int) -> bool:
        """Return whether at least a part of a day is permitted."""
        if not self._exclude:
            return self._matches_day(day)
        return not (self._matches_day(day) and (not self._ranges or self._covers_day()))

    def first_permitted(self, instant: Instant) -> Instant | None:
        """Return the first permitted instant that is `instant` or later, or None if there is none for 50 years."""
        at = begun = instant // SECOND
        limit = min(at + HORIZON_SECONDS, LAST_SECOND)
        while at <= limit:
            _start, end, offset, _top = self._zone.segment(at)
            day, second = divmod(at + offset, DAY_SECONDS)
            if self._matches(day, second) is not self._exclude:
                return instant if at == begun else at * SECOND
            border = DAY_SECONDS
            if self._ranges and self._matches_day(day):
                border = self._borders[bisect_right(self._borders, second)]
            at = min(day * DAY_SECONDS + border - offset, end)
        return None

    def _matches(self, day: int, second: int) -> bool:
        if self._ranges:
            for start, end in self._ranges:
                if start <= second < end:
                    break
            else:
                return False
        return self._matches_day(day)

    def _matches_day(self, day: int) -> bool:
        if self._any_day or day in self._dates or self._weekdays >> weekday_of(day) & 1:
            return True
        if (self._yearly or self._monthly or self._cron) and FIRST_SECOND <= day * DAY_SECONDS <= LAST_SECOND:
            when = date_of(day)
            if self._cron is not None:
                length = monthrange(when.year, when.month)[1]
                return bool(self._cron.days_of(when.month, length, weekday_of(day - when.day + 1)) >> (when.day - 1) & 1)
            if (when.month, when.day) in self._yearly or when.day in self._monthly:
                return True
            return 0 in self._monthly and when.day == monthrange(when.year, when.month)[1]
        return False

    def _covers_day(self) -> bool:
        reached = 0
        for start, end in self._ranges:
            if start > reached:
                return False
            reached = max(reached, end)
        return reached >= DAY_SECONDS


def _read_minutes(text: str) -> Expression:
    """Parse the expression of a calendar, which means whole minutes."""
    if isinstance(text, str) and len(text.split()) == 6:
        raise InvalidValue(f'cron of a calendar has 5 fields, because it means whole minutes, got {text!r}; for example "* 0-5 * * *"')
    return read_expression(text)


def _minutes_of(expression: Expression) -> list[tuple[int, int]]:
    """Return the hours of a day that an expression names, in seconds; minutes that follow one another are one range."""
    ranges: list[tuple[int, int]] = []
    for minute in range(24 * 60):
        if expression.hours >> minute // 60 & 1 and expression.minutes >> minute % 60 & 1:
            start = minute * 60
            if ranges and ranges[-1][1] == start:
                start = ranges.pop()[0]
            ranges.append((start, minute * 60 + 60))
    return ranges


def _split_ranges(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Split ranges over midnight into early and late hours."""
    pieces: list[tuple[int, int]] = []
    for start, end in ranges:
        pieces += [(start, end)] if start < end else [(start, DAY_SECONDS), (0, end)]
    return sorted(piece for piece in pieces if piece[0] < piece[1])


@lru_cache(maxsize=1024)
def _rule_of(calendar: DayCalendar) -> CalendarRule:
    return CalendarRule(calendar)


class Permission:
    """What several calendars permit together."""

    def __init__(self, calendars: Iterable[DayCalendar]) -> None:
        self._rules = [_rule_of(calendar) for calendar in calendars]

    def permits_day(self, day: int) -> bool:
        return all(rule.permits_day(day) for rule in self._rules)

    def first(self, instant: Instant) -> Instant | None:
        """Return the first instant that all permit and that is `instant` or later, or None if there is none for 50 years."""
        if not self._rules:
            return instant
        limit = instant + HORIZON_SECONDS * SECOND
        agreed = 0  # how many in a row permit the same instant
        while instant <= limit:
            for rule in self._rules:
                found = rule.first_permitted(instant)
                if found is None:
                    return None
                agreed = agreed + 1 if found == instant else 1
                instant = found
                if agreed == len(self._rules):
                    return instant
        return None
