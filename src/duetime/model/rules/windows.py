"""Daily windows: from a local start, every interval in elapsed time, until a local end."""

from __future__ import annotations

from duetime.clock import SECOND, Instant
from duetime.model.rules.days import WeekDays
from duetime.model.rules.reading import DAY_SECONDS, FIRST_SECOND, LAST_SECOND
from duetime.model.rules.zones import Zone


class Windows:
    """The windows of one rule, one per day, none of which extends beyond the start of the next."""

    def __init__(self, every: int, start: int, end: int, weekdays: int, zone: Zone, *, skip_gaps: bool = False) -> None:
        self._every = every
        self._start = start
        self._end = end if end > start else end + DAY_SECONDS
        self._days = WeekDays(1, weekdays, 4)  # 1970-01-05, a Monday
        self._zone = zone
        self._skip_gaps = skip_gaps
        self._window = (0, 0, 0)  # day, first and last instant of the last window; replaced as one

    def after(self, instant: Instant) -> Instant | None:
        at = max(instant // SECOND, FIRST_SECOND)
        if at > LAST_SECOND:
            return None
        # Begin two days before: yesterday's window may extend past midnight, and in a fold the wall shows an earlier day again.
        day = (at + self._zone.segment(at).offset) // DAY_SECONDS - 2
        for _ in range(1000):  # far more than the days between two windows, some of them skipped
            found = self._days.first(day)
            if found is None or found * DAY_SECONDS > LAST_SECOND:
                return None
            first, last = self._look(found)
            next_at = first if instant < first else instant + self._every - (instant - first) % self._every
            if next_at <= last:
                return next_at
            day = found + 1
        return None

    def _look(self, day: int) -> tuple[Instant, Instant]:
        known, first, last = self._window
        if known != day:
            start, exact = self._zone.first_at(day * DAY_SECONDS + self._start)
            end, _ = self._zone.first_at(day * DAY_SECONDS + self._end)
            first, last = start * SECOND, end * SECOND
            if self._skip_gaps and not exact:
                last = first - 1  # an empty window
            self._window = (day, first, last)
        return first, last
