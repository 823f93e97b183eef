"""Sets of days: by month, by week, every n days. Days are counted since 1970-01-01."""

from __future__ import annotations

from calendar import isleap
from collections.abc import Callable
from typing import Protocol

from duetime.model.rules.reading import FIRST_DAY, LAST_DAY, LONGEST_MONTHS, date_of

# A search gives up after 50 years; the rarest day, 29 February on one weekday, needs 40 (over the year 2100).
HORIZON_MONTHS = 51 * 12


class Days(Protocol):
    """A set of days."""

    def first(self, day: int) -> int | None:
        """Return the first day of the set that is `day` or later, or None if there is none for 50 years."""
        ...


class MonthDays:
    """Days that are decided month by month. The last month is cached.

    `mask_of(year, month, length, first_weekday)` returns a month's days as bits, bit 0 for the first.
    """

    def __init__(self, mask_of: Callable[[int, int, int, int], int]) -> None:
        self._mask_of = mask_of
        self._month = (0, 0, 0)  # its first day, the day after its last, its bits; replaced as one, so threads may share it

    def first(self, day: int) -> int | None:
        start, end, mask = self._month
        if start <= day < end:
            rest = mask >> day - start
            if rest:
                return day + (rest & -rest).bit_length() - 1
            day = end
        if not FIRST_DAY <= day <= LAST_DAY:
            return self.first(FIRST_DAY) if day < FIRST_DAY else None
        when = date_of(day)
        return self._search(when.year, when.month, day, when.day)

    def _search(self, year: int, month: int, day: int, day_of_month: int) -> int | None:
        """Search month by month from a day on. Plain integers, because a rare day may be 480 months away."""
        start, before = day - day_of_month + 1, day_of_month - 1
        for _ in range(HORIZON_MONTHS):
            length = month_length(year, month)
            mask = self._mask_of(year, month, length, weekday_of(start))
            rest = mask >> before
            if rest:
                self._month = (start, start + length, mask)
                return start + before + (rest & -rest).bit_length() - 1
            start, before = start + length, 0
            year, month = (year, month + 1) if month < 12 else (year + 1, 1)
            if start > LAST_DAY:
                break
        return None


class EveryDays:
    """Every n days, counted from an anchor in both directions."""

    def __init__(self, every: int, anchor: int) -> None:
        self._every = every
        self._anchor = anchor

    def first(self, day: int) -> int | None:
        return day + (self._anchor - day) % self._every


class WeekDays:
    """Some weekdays of every n weeks; weeks begin on Monday."""

    def __init__(self, every: int, weekdays: int, anchor: int) -> None:
        self._every = every
        self._weekdays = weekdays
        self._monday = anchor - weekday_of(anchor)

    def first(self, day: int) -> int | None:
        week, weekday = divmod(day - self._monday, 7)
        rest = self._weekdays >> weekday
        if week % self._every or not rest:
            week += 0 if week % self._every else 1
            week += -week % self._every
            rest, weekday = self._weekdays, 0
        return self._monday + week * 7 + weekday + (rest & -rest).bit_length() - 1


def month_length(year: int, month: int) -> int:
    return 28 if month == 2 and not isleap(year) else LONGEST_MONTHS[month - 1]


def weekday_of(day: int) -> int:
    """Return the weekday, Monday is 0; 1970-01-01 was a Thursday."""
    return (day + 3) % 7
