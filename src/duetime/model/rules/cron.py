"""Cron expressions of five fields, or six with seconds first, parsed into numbers and bits.

The matching days of a month depend only on its length and its first weekday, so day of month and day of week together are 28 bit
sets.

The meaning is that of Debian's cron and of cronsim: if day of month and day of week both name days, either must match; if one of
them begins with `*`, both must match (`*/2` is an example where that matters). Extensions: names in any case, ranges that
wrap (`FRI-MON`, `22-2`), `?`, `L`, `L-3`, `LW`, `15W`, `FRI#2`, `FRIL`, and `@daily` with its relatives.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from duetime.errors import InvalidValue
from duetime.model.rules.reading import LONGEST_MONTHS, MONTHS

SHORTHANDS: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_LENGTHS = {month: (28, 29) if month == 2 else (longest,) for month, longest in enumerate(LONGEST_MONTHS, 1)}
_WEEKLY = 1 | 1 << 7 | 1 << 14 | 1 << 21 | 1 << 28


class Field(NamedTuple):
    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()

    def refuse(self, text: str, why: str = "") -> InvalidValue:
        names = f" or {self.names[0]}–{self.names[-1]}" if self.names else ""
        expected = why or f"must be {self.low}–{self.high}{names}, a range, a list or a step"
        return InvalidValue(f'expression: {self.name} {expected}, got {text!r}; for example "{_EXAMPLES[self.name]}"')


_SUNDAY_FIRST = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
SECOND_FIELD: Final = Field("second", 0, 59)
MINUTE_FIELD: Final = Field("minute", 0, 59)
HOUR_FIELD: Final = Field("hour", 0, 23)
DAY_FIELD: Final = Field("day of month", 1, 31)
MONTH_FIELD: Final = Field("month", 1, 12, tuple(name.upper() for name in MONTHS))
WEEKDAY_FIELD: Final = Field("day of week", 0, 7, _SUNDAY_FIRST)
FIELDS: Final = (SECOND_FIELD, MINUTE_FIELD, HOUR_FIELD, DAY_FIELD, MONTH_FIELD, WEEKDAY_FIELD)
_EXAMPLES = {
    "second": "*/15 * * * * *",
    "minute": "*/5 * * * *",
    "hour": "0 8-18 * * *",
    "day of month": "0 9 1,15,L * *",
    "month": "0 9 1 JAN-MAR *",
    "day of week": "0 9 * * MON-FRI",
}

_LAST_DAY = re.compile(r"L(?:-([0-9]{1,2}))?")
_NEAREST_WEEKDAY = re.compile(r"([0-9]{1,2})W")
_NTH_WEEKDAY = re.compile(r"([0-9A-Z]+)#([0-9]+)")
_LAST_WEEKDAY = re.compile(r"([0-9A-Z]+)L")


class Expression:
    """A parsed cron expression. Days of a month are bits, bit 0 for the first."""

    def __init__(self, words: Sequence[str]) -> None:
        second, minute, hour, day, month, weekday = words
        self.seconds = _bits(SECOND_FIELD, second)
        self.minutes = _bits(MINUTE_FIELD, minute)
        self.hours = _bits(HOUR_FIELD, hour)
        self.months = _bits(MONTH_FIELD, month)
        # runs at every real matching instant, see wall.py
        self.wildcard = minute.startswith("*") or hour.startswith("*")
        self._days, self._weekdays = _Days(day), _Weekdays(weekday)
        self._both = day[0] in "*?" or weekday[0] in "*?"
        self._masks: dict[tuple[int, int], int] = {}  # at most 28, each computed on first use

    def days_of(self, month: int, length: int, first_weekday: int) -> int:
        """Return the days of a month of this length that begins with this weekday (Monday is 0)."""
        if not self.months >> month & 1:
            return 0
        mask = self._masks.get((length, first_weekday))
        if mask is None:
            by_day, by_weekday = self._days.mask(length, first_weekday), self._weekdays.mask(length, first_weekday)
            mask = self._masks[length, first_weekday] = by_day & by_weekday if self._both else by_day | by_weekday
        return mask

    @property
    def possible(self) -> bool:
        """Return whether any year has a matching day: each month begins with each weekday in some year, and February has two lengths."""
        months = ((month, length) for month, lengths in _LENGTHS.items() for length in lengths)
        return any(self.days_of(month, length, first) for month, length in months for first in range(7))


@lru_cache(maxsize=4096)
def read_expression(text: str) -> Expression:
    """Parse an expression, or refuse it with the wrong field and an example."""
    words = SHORTHANDS.get(text.strip().lower(), text).upper().split()
    if len(words) == 1 and words[0].startswith("@"):
        raise InvalidValue(f"expression: {text!r} is unknown; there are {', '.join(SHORTHANDS)}")
    if len(words) not in (5, 6):
        example = 'for example "30 9 * * MON-FRI"'
        raise InvalidValue(f"expression must have 5 fields, or 6 with seconds first, got {len(words)} in {text!r}; {example}")
    expression = Expression(words if len(words) == 6 else ["0", *words])
    if not expression.possible:
        day, month, weekday = words[-3:]
        where = "" if month == "*" else f" in month {month}"
        on = "" if weekday in "*?" else f" on day of week {weekday}"
        example = 'for example "0 9 L * *" for the last day'
        raise InvalidValue(f"expression: day of month {day} never comes{where}{on}, got {text!r}; {example}")
    return expression


def _number(field: Field, text: str, whole: str) -> int:
    if text in field.names:
        return field.names.index(text) + field.low
    if text.isascii() and text.isdigit() and field.low <= int(text) <= field.high:
        return int(text)
    raise field.refuse(whole)


def _bits(field: Field, text: str) -> int:
    bits = 0
    for term in text.split(","):
        for number in _term(field, term):
            bits |= 1 << number
    return bits


def _term(field: Field, term: str) -> Sequence[int]:
    base, slash, step_text = term.partition("/")
    step = int(step_text) if step_text.isascii() and step_text.isdigit() else 0
    if slash and step < 1:
        raise field.refuse(term, "needs a step of at least 1 after the slash")
    if base == "*":
        run: Sequence[int] = range(field.low, field.high + 1)
    elif "-" in base:
        first_text, _, last_text = base.partition("-")
        first, last = _number(field, first_text, term), _number(field, last_text, term)
        if last < first:  # it wraps; Sunday is then 0 and not 7 as well
            size = 7 if field is WEEKDAY_FIELD else field.high - field.low + 1
            run = [(number - field.low) % size + field.low for number in range(first, last + size + 1)]
        else:
            run = range(first, last + 1)
    else:
        first = _number(field, base, term)
        run = range(first, (field.high if slash else first) + 1)
    return run[:: step or 1]


class _Days:
    """The parsed field day of month."""

    def __init__(self, text: str) -> None:
        self.numbers = 0
        self.from_end: list[int] = []
        self.nearest: list[int] = []
        self.last_working_day = False
        for term in ("*" if text == "?" else text).split(","):
            base = term.partition("/")[0] if term.startswith("L") else term  # cronsim reads L/2 as L
            last, nearest = _LAST_DAY.fullmatch(base), _NEAREST_WEEKDAY.fullmatch(base)
            if base == "LW":
                self.last_working_day = True
            elif last is not None and int(last[1] or 0) <= 30:
                self.from_end.append(int(last[1] or 0))
            elif nearest is not None and 1 <= int(nearest[1]) <= 31:
                self.nearest.append(int(nearest[1]))
            else:
                self.numbers |= _bits(DAY_FIELD, term) >> 1

    def mask(self, length: int, first_weekday: int) -> int:
        mask = self.numbers
        for back in self.from_end:
            if back < length:
                mask |= 1 << length - 1 - back
        for day in self.nearest:
            if day <= length:
                mask |= 1 << _nearest_working_day(day, length, first_weekday) - 1
        if self.last_working_day:
            weekday = (first_weekday + length - 1) % 7
            mask |= 1 << length - 1 - max(0, weekday - 4)
        return mask & (1 << length) - 1


def _nearest_working_day(day: int, length: int, first_weekday: int) -> int:
    """Move a Saturday back and a Sunday forward, unless that leaves the month."""
    weekday = (first_weekday + day - 1) % 7
    if weekday == 5:
        return day - 1 if day > 1 else day + 2
    if weekday == 6:
        return day + 1 if day < length else day - 2
    return day


class _Weekdays:
    """The parsed field day of week; here Monday is 0."""

    def __init__(self, text: str) -> None:
        self.numbers: set[int] = set()
        self.nth: set[tuple[int, int]] = set()
        self.last: set[int] = set()
        for term in ("*" if text == "?" else text).split(","):
            nth, last = _NTH_WEEKDAY.fullmatch(term), _LAST_WEEKDAY.fullmatch(term)
            if nth is not None:
                if not 1 <= int(nth[2]) <= 5:
                    raise WEEKDAY_FIELD.refuse(term, "has #1 to #5")
                self.nth.add((self._read(nth[1], term), int(nth[2])))
            elif last is not None:
                self.last.add(self._read(last[1], term))
            else:
                self.numbers |= {(number - 1) % 7 for number in _term(WEEKDAY_FIELD, term)}

    @staticmethod
    def _read(text: str, term: str) -> int:
        return (_number(WEEKDAY_FIELD, text, term) - 1) % 7

    def mask(self, length: int, first_weekday: int) -> int:
        whole = (1 << length) - 1
        if len(self.numbers) == 7:
            return whole
        mask = 0
        for weekday in self.numbers:
            mask |= _WEEKLY << (weekday - first_weekday) % 7
        for weekday, number in self.nth:
            mask |= 1 << (weekday - first_weekday) % 7 + 7 * (number - 1)
        for weekday in self.last:
            first = (weekday - first_weekday) % 7
            mask |= 1 << first + (length - 1 - first) // 7 * 7
        return mask & whole
