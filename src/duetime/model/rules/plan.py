"""From a rule to instants: `plan_of` turns a rule into a `Plan`, which computes the next instant."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from functools import lru_cache
from typing import Final, Protocol, assert_never

from duetime.clock import LATEST, SECOND, Instant, to_datetime
from duetime.errors import InvalidValue
from duetime.model.rules import forms
from duetime.model.rules.calendars import DayCalendar, Permission, chain_of
from duetime.model.rules.cron import read_expression
from duetime.model.rules.days import Days, EveryDays, MonthDays, WeekDays, weekday_of
from duetime.model.rules.kinds import AfterEnd, At, Calendar, Cron, Every, Rule, Union, Window
from duetime.model.rules.reading import (
    HORIZON,
    as_seconds,
    day_of,
    read_time,
    read_weekdays,
    to_micros_exactly,
)
from duetime.model.rules.wall import ClockTimes, FixedTimes, ListedTimes, MatchingTimes
from duetime.model.rules.windows import Windows
from duetime.model.rules.zones import zone_of

_NO_CALENDARS: Final[Mapping[str, DayCalendar]] = {}
# How many instants or stretches in a row calendars may refuse; 50 years of days are 18,262. Each asks all rules of a union.
_MOST_REFUSED, _MOST_REFUSED_OF_EACH = 100_000, 20_000


class Part(Protocol):
    """One rule without calendars and bounds."""

    def after(self, instant: Instant) -> Instant | None: ...


class Rate:
    """Whole intervals since the epoch, shifted by a phase."""

    def __init__(self, interval: int, phase: int) -> None:
        self.interval = interval
        self.phase = phase

    def after(self, instant: Instant) -> Instant | None:
        return instant + self.interval - (instant - self.phase) % self.interval

    def last(self, until: Instant) -> Instant:
        return until - (until - self.phase) % self.interval

    def count(self, after: Instant, until: Instant) -> int:
        return max(0, (until - self.phase) // self.interval - (after - self.phase) // self.interval)


class Listed:
    """Explicit instants."""

    def __init__(self, instants: Sequence[Instant]) -> None:
        self._instants = instants

    def after(self, instant: Instant) -> Instant | None:
        index = bisect_right(self._instants, instant)
        return self._instants[index] if index < len(self._instants) else None


class Plan:
    """A rule with its calendars and bounds, in computed form. Its answers never change."""

    __slots__ = ("_after", "_before", "_delays", "_end_at", "_parts", "_permission", "waits", "zone")

    def __init__(
        self,
        parts: Sequence[Part],
        *,
        delays: Sequence[int] = (),
        zone: str = "UTC",
        permission: Permission | None = None,
        start_at: Instant | None = None,
        end_at: Instant | None = None,
    ) -> None:
        self._parts = tuple(parts)
        self._delays = tuple(delays)
        self._permission = permission
        self._before = -LATEST if start_at is None else start_at - 1
        self._end_at = LATEST if end_at is None else min(end_at, LATEST)
        self._after: Callable[[Instant], Instant | None] = parts[0].after if len(parts) == 1 else self._merged
        self.waits = bool(delays)
        self.zone = zone

    def after(self, instant: Instant, ended_at: Instant | None = None) -> Instant | None:
        """Return the first planned instant strictly after `instant`, or None.

        `ended_at` is when the last run ended; without it, a rule that waits for that end plans nothing.
        """
        if instant < self._before:
            instant = self._before
        if self._permission is None:
            found = self._after(instant)
            if found is not None and found > self._end_at:
                found = None
        else:
            found = self._permitted(instant, self._permission, self._end_at)
        if ended_at is not None and self._delays:
            waited = self.waited(instant, ended_at)
            if waited is not None and (found is None or waited < found):
                return waited
        return found

    def between(self, after: Instant, until: Instant, limit: int, ended_at: Instant | None = None) -> list[Instant]:
        """Return the planned instants after `after` (exclusive) until `until` (inclusive), at most `limit` of them."""
        found: list[Instant] = []
        while len(found) < limit:
            planned_at = self.after(after, ended_at)
            if planned_at is None or planned_at > until:
                break
            found.append(planned_at)
            after = planned_at
        return found

    def last(self, after: Instant, until: Instant) -> Instant | None:
        """Return the latest planned instant after `after` (exclusive) until `until` (inclusive), or None, without walking through all."""
        after, until = max(after, self._before), min(until, self._end_at)
        return None if until <= after else self._last(after, until)

    def before(self, instant: Instant) -> Instant | None:
        """Return the latest instant before another that the rule and its calendars plan, whatever the bounds; None if there is none."""
        return self._last(instant - HORIZON, instant - 1)

    def _last(self, after: Instant, until: Instant) -> Instant | None:
        if self._permission is not None:
            permission = self._permission
            return _search_last(lambda instant: self._permitted(instant, permission, until), after, until)
        found = [part.last(until) if isinstance(part, Rate) else _search_last(part.after, after, until) for part in self._parts]
        return max((instant for instant in found if instant is not None and instant > after), default=None)

    def count(self, after: Instant, until: Instant, at_most: int) -> int:
        """Count the planned instants after `after` (exclusive) until `until` (inclusive), at most `at_most`."""
        after, until = max(after, self._before), min(until, self._end_at)
        [only] = self._parts if len(self._parts) == 1 else [None]
        if isinstance(only, Rate) and self._permission is None:
            return min(only.count(after, until), at_most)
        number = 0
        while number < at_most:
            planned_at = self.after(after)
            if planned_at is None or planned_at > until:
                break
            after = planned_at
            number += 1
        return number

    def waited(self, instant: Instant, ended_at: Instant) -> Instant | None:
        """Return the first instant after `instant` at which a delay since the end of the last run is over.

        A delay that ends when calendars do not permit it is extended, because nothing would follow otherwise.
        """
        nearest: Instant | None = None
        for delay in self._delays:
            waited: Instant | None = max(ended_at + delay, self._before + 1)
            if self._permission is not None and waited is not None:
                waited = self._permission.first(waited)
            if waited is not None and instant < waited <= self._end_at and (nearest is None or waited < nearest):
                nearest = waited
        return nearest

    def _merged(self, instant: Instant) -> Instant | None:
        nearest = None
        for part in self._parts:
            found = part.after(instant)
            if found is not None and (nearest is None or found < nearest):
                nearest = found
        return nearest

    def _permitted(self, instant: Instant, permission: Permission, until: Instant) -> Instant | None:
        """Return the first instant after `instant` that all calendars permit, skipping refused stretches as a whole."""
        until = min(until, instant + HORIZON)
        for _ in range(max(_MOST_REFUSED // len(self._parts), _MOST_REFUSED_OF_EACH) if self._parts else 0):
            found = self._after(instant)
            if found is None or found > until:
                return None
            clear = permission.first(found)
            if clear == found:
                return found
            if clear is None or clear > until:
                return None
            instant = clear - 1
        return None


def _search_last(next_after: Callable[[Instant], Instant | None], after: Instant, until: Instant) -> Instant | None:
    """Find the latest instant by forward searches: first from ever further back, then by bisection."""
    found: Instant | None = None
    step, empty_from = SECOND, until
    while found is None:
        start = max(after, until - step)
        found = next_after(start)
        if found is None or found > until:
            if start == after:
                return None
            found, empty_from = None, start
            step *= 4
    while True:  # `found` is planned, nothing is planned after `empty_from`; each iteration halves what lies between
        later = next_after(found)
        if later is None or later > until:
            return found
        middle = later + (empty_from - later) // 2
        beyond = next_after(middle)
        if beyond is not None and beyond <= until:
            found = beyond
        else:
            found, empty_from = later, middle


def plan_of(
    rule: Rule,
    *,
    calendars: Mapping[str, DayCalendar] = _NO_CALENDARS,
    within: Sequence[str] = (),
    start_at: Instant | None = None,
    end_at: Instant | None = None,
) -> Plan:
    """Turn a rule into a plan.

    `within` names the calendars that must permit every instant. Raises InvalidValue for names that `calendars` lacks, cycles of
    `also`, and an end before the start.
    """
    if start_at is not None and end_at is not None and end_at < start_at:
        start, end = to_datetime(start_at).isoformat(), to_datetime(end_at).isoformat()
        raise InvalidValue(f"end_at must not lie before start_at, got start_at {start} and end_at {end}; leave end_at out for no end")
    singles = rule.parts if isinstance(rule, Union) else (rule,)
    parts: list[Part] = []
    delays: list[int] = []
    zones: list[str] = []
    for single in singles:
        if isinstance(single, AfterEnd):
            delays.append(to_micros_exactly(as_seconds(single.delay)))
            continue
        business = getattr(single, "business", None)
        parts.append(part_of(single, chain_of((business,), calendars) if business else ()))
        zones += [single.tz] if isinstance(single, Cron | Calendar | Window) else []
    permission = Permission(chain_of(within, calendars)) if within else None
    zone = zones[0] if zones else "UTC"
    return Plan(parts, delays=delays, zone=zone, permission=permission, start_at=start_at, end_at=end_at)


@lru_cache(maxsize=16_384)
def part_of(rule: Cron | Every | Calendar | At | Window, business: tuple[DayCalendar, ...]) -> Part:
    match rule:
        case Cron():
            return _cron(rule)
        case Every():
            return Rate(to_micros_exactly(as_seconds(rule.interval)), to_micros_exactly(as_seconds(rule.phase)))
        case Calendar():
            times = ListedTimes([read_time(text, "at") for text in rule.at])
            return FixedTimes(_calendar_days(rule, business), times, zone_of(rule.tz), skip_gaps=rule.gap == "skip")
        case At():
            return Listed([instant for instant in rule.instants if isinstance(instant, int)])
        case Window():
            return _window(rule)
        case _:
            assert_never(rule)


def _cron(rule: Cron) -> Part:
    expression = read_expression(rule.expression)

    def mask_of(_year: int, month: int, length: int, first_weekday: int) -> int:
        return expression.days_of(month, length, first_weekday)

    days = MonthDays(mask_of)
    times = ClockTimes(expression.hours, expression.minutes, expression.seconds)
    if expression.wildcard:
        return MatchingTimes(days, times, zone_of(rule.tz))
    return FixedTimes(days, times, zone_of(rule.tz), skip_gaps=rule.gap == "skip")


def _window(rule: Window) -> Part:
    start, end = read_time(rule.start, "start"), read_time(rule.end, "end", end=True)
    weekdays = read_weekdays(rule.days, "days")
    every = to_micros_exactly(as_seconds(rule.every))
    return Windows(every, start, end, weekdays, zone_of(rule.tz), skip_gaps=rule.gap == "skip")


def _calendar_days(rule: Calendar, business: tuple[DayCalendar, ...]) -> Days:
    anchor = rule.anchor
    permission = Permission(business)
    if rule.unit == "week":
        weekdays = read_weekdays(rule.on, "on") if rule.on is not None else 1 << anchor.weekday()
        return WeekDays(rule.every, weekdays, day_of(anchor))
    if rule.unit == "day":
        return EveryDays(rule.every, day_of(anchor)) if rule.on is None else _every_business_day(permission)
    yearly = rule.unit == "year"
    if rule.on is None:
        days: Sequence[forms.Form] = [forms.Form("day", anchor.day, month=anchor.month if yearly else 0)]
    else:
        days = forms.read_year_forms(rule.on) if yearly else forms.read_month_forms(rule.on)

    def business_days(year: int, month: int, length: int) -> list[int]:
        return _business_days(permission, day_of(date(year, month, 1)), length)

    counted_from = anchor.year if yearly else anchor.year * 12 + anchor.month - 1
    mask_of = forms.month_mask(days, every=rule.every, anchor=counted_from, yearly=yearly, missing=rule.missing, business=business_days)
    return MonthDays(mask_of)


def _business_days(permission: Permission, first: int, length: int) -> list[int]:
    """Return the business days of a month, counted from 1: Monday to Friday, if the calendars permit some of the day."""
    days = range(first, first + length)
    return [day - first + 1 for day in days if weekday_of(day) < 5 and permission.permits_day(day)]


def _every_business_day(permission: Permission) -> Days:
    def mask_of(year: int, month: int, length: int, _first_weekday: int) -> int:
        return sum(1 << day - 1 for day in _business_days(permission, day_of(date(year, month, 1)), length))

    return MonthDays(mask_of)
