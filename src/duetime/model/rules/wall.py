"""From local times to instants, through gaps and folds. *Wall* is local time, as a clock on the wall shows it.

A rule with fixed times has *slots*. A slot is planned at the first real second at which the wall shows it or a later time: the first
pass of a fold, the first second after a gap. So slots keep their order, and the slots after a real second are exactly those later
than everything that the wall has shown until then.

Wildcards (`*/30 * * * *`) have no slots: they run at every real second whose wall time matches, in both passes of a fold.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from typing import Protocol

from duetime.clock import SECOND, Instant
from duetime.model.rules.days import Days
from duetime.model.rules.reading import DAY_SECONDS, FIRST_SECOND, HORIZON_SECONDS, LAST_SECOND
from duetime.model.rules.zones import Zone

_MOST_GAPS = 1000  # in a row; far more than the yearly gaps within the search horizon


class Times(Protocol):
    """Times of day, in seconds since midnight."""

    first: int

    def next(self, second: int) -> int | None:
        """Return the first one that is `second` or later on the same day."""
        ...


class ListedTimes:
    """A few times of day."""

    def __init__(self, seconds: Sequence[int]) -> None:
        self._seconds = array("L", seconds)
        self.first = seconds[0]

    def next(self, second: int) -> int | None:
        index = bisect_left(self._seconds, second)
        return self._seconds[index] if index < len(self._seconds) else None


class ClockTimes:
    """Some seconds of some minutes of some hours, as bits. Nothing is listed, because `* * * * * *` would list 86,400."""

    def __init__(self, hours: int, minutes: int, seconds: int) -> None:
        self._hours = hours
        self._minutes = minutes
        self._seconds = seconds
        self._first_second = _lowest(seconds)
        self._first_minute = _lowest(minutes) * 60 + self._first_second
        self.first = _lowest(hours) * 3600 + self._first_minute

    def next(self, second: int) -> int | None:
        minute, second_of_minute = divmod(second, 60)
        hour, minute_of_hour = divmod(minute, 60)
        if self._hours >> hour & 1:
            rest = self._minutes >> minute_of_hour
            if rest & 1:
                fitting = self._seconds >> second_of_minute
                if fitting:
                    return second + (fitting & -fitting).bit_length() - 1
                rest -= 1
            if rest:
                return (minute + (rest & -rest).bit_length() - 1) * 60 + self._first_second
        rest = self._hours >> hour + 1
        return (hour + (rest & -rest).bit_length()) * 3600 + self._first_minute if rest else None


def _lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1


class _WallTimes:
    """Times of day on days of a zone's calendar."""

    def __init__(self, days: Days, times: Times, zone: Zone) -> None:
        self._days = days
        self._times = times
        self._zone = zone
        self._segment = zone.segment(0)
        self._day: int | None = None  # the day found last, which most calls are about

    def _next_wall(self, wall: int) -> int | None:
        """Return the first wall time of the rule that is `wall` or later."""
        day, second = divmod(wall, DAY_SECONDS)
        if day == self._day or self._days.first(day) == day:
            self._day = day
            found = self._times.next(second)
            if found is not None:
                return day * DAY_SECONDS + found
            day += 1
        next_day = self._days.first(day)
        return None if next_day is None else next_day * DAY_SECONDS + self._times.first


class FixedTimes(_WallTimes):
    """Slots: once each, in gaps and folds too."""

    def __init__(self, days: Days, times: Times, zone: Zone, *, skip_gaps: bool = False) -> None:
        super().__init__(days, times, zone)
        self._skip_gaps = skip_gaps

    def after(self, instant: Instant) -> Instant | None:
        at = instant // SECOND  # not the second after it: a slot in a gap lies behind the wall once the gap is over
        start, end, offset, top = self._segment
        if not start <= at < end:
            if not FIRST_SECOND <= at <= LAST_SECOND:
                return self.after(FIRST_SECOND * SECOND) if at < FIRST_SECOND else None
            start, end, offset, top = self._segment = self._zone.segment(at)
        wall = max(top, at + offset + 1)
        for _ in range(_MOST_GAPS):
            slot = self._next_wall(wall)
            if slot is None or slot > LAST_SECOND:
                return None
            if slot - offset < end:
                return (slot - offset) * SECOND
            found, exact = self._zone.first_at(slot)
            if exact or not self._skip_gaps:
                return found * SECOND
            wall = found + self._zone.segment(found).offset  # all slots of a gap are skipped at once
        return None


class MatchingTimes(_WallTimes):
    """Every real second at which the wall shows a matching time."""

    def after(self, instant: Instant) -> Instant | None:
        at = instant // SECOND + 1
        start, end, offset, _top = self._segment
        if not start <= at < end:
            if not FIRST_SECOND <= at <= LAST_SECOND:
                return self.after(FIRST_SECOND * SECOND) if at < FIRST_SECOND else None
            _start, end, offset, _top = self._segment = self._zone.segment(at)
        limit = min(at + HORIZON_SECONDS, LAST_SECOND)
        while at <= limit:
            wall = self._next_wall(at + offset)
            if wall is not None and wall - offset < end:
                return (wall - offset) * SECOND
            at = end
            _start, end, offset, _top = self._segment = self._zone.segment(at)
        return None
