"""The days that a calendar rule may name: 15, -1, "last friday", "third business day", "last friday of november"."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from duetime.errors import InvalidValue
from duetime.model.rules.reading import (
    LONGEST_MONTHS,
    MONTH_NAMES,
    WEEKDAY_NAMES,
    read_month,
    read_month_and_day,
    read_weekday,
    several,
)

_ORDINALS = {"first": 1, "second": 2, "third": 3, "fourth": 4, "fifth": 5, "last": -1}
_ORDINAL = re.compile(r"([0-9]{1,2})(?:st|nd|rd|th)")
_MOST = {"day": 31, "weekday": 5, "business": 23}  # no month has more
_MONTH_EXAMPLES = '1, 15, -1, "last", "first monday", "last friday", "first business day"'


class Form(NamedTuple):
    """One day of a month: a number, a weekday or a business day, counted from the start or, if negative, from the end."""

    kind: Literal["day", "weekday", "business"]
    number: int
    weekday: int = 0
    month: int = 0  # only for years

    @property
    def text(self) -> str | int:
        """Return its canonical text."""
        if self.kind == "day":
            if self.month and self.number > 0:
                return f"{self.month:02}-{self.number:02}"
            named: str | int = self.number
        else:
            ordinal = next((word for word, number in _ORDINALS.items() if number == self.number), None) or f"{self.number}th"
            named = f"{ordinal} {'business day' if self.kind == 'business' else WEEKDAY_NAMES[self.weekday]}"
        return f"{named} of {MONTH_NAMES[self.month - 1]}" if self.month else named

    def bits(self, length: int, first_weekday: int, business: Sequence[int], missing: str) -> int:
        """Return the day in a month of this length that begins with this weekday; `business` lists its business days."""
        if self.kind == "day":
            if self.number < 0:
                return 1 << length + self.number if length + self.number >= 0 else 0
            candidates: Sequence[int] = range(1, length + 1)
        elif self.kind == "weekday":
            candidates = range((self.weekday - first_weekday) % 7 + 1, length + 1, 7)
        else:
            candidates = business
        if not candidates:
            return 0
        if self.number < 0 or (self.number > len(candidates) and missing == "last"):
            return 1 << candidates[-1] - 1
        return 1 << candidates[self.number - 1] - 1 if self.number <= len(candidates) else 0


def read_month_forms(values: object) -> tuple[Form, ...]:
    """Read `on` of a monthly rule."""
    return tuple(dict.fromkeys(_month_form(value) for value in several(values)))


def read_year_forms(values: object) -> tuple[Form, ...]:
    """Read `on` of a yearly rule: month and day, or a monthly form with the name of the month."""
    return tuple(dict.fromkeys(_year_form(value) for value in several(values)))


def _month_form(value: object) -> Form:
    if isinstance(value, int) and not isinstance(value, bool):
        if 1 <= abs(value) <= 31:
            return Form("day", value)
        raise InvalidValue(f"on: a day of the month is 1 to 31, or -1 to -31 counted from the end, got {value}; for example 15 or -1")
    words = value.lower().split() if isinstance(value, str) else []
    if len(words) == 1 and re.fullmatch(r"-?[0-9]+", words[0]):
        return _month_form(int(words[0]))
    if words[1:] == ["day"] or words == ["last"]:
        number = _ordinal(words[0], "day")
        if number is not None:
            return Form("day", number)
    if words[1:] == ["business", "day"]:
        number = _ordinal(words[0], "business")
        if number is not None:
            return Form("business", number)
    if len(words) == 2:
        weekday, number = read_weekday(words[1]), _ordinal(words[0], "weekday")
        if weekday is not None and number is not None:
            return Form("weekday", number, weekday)
    raise InvalidValue(f"on: for months say one or several of {_MONTH_EXAMPLES}, got {value!r}")


def _ordinal(word: str, kind: str) -> int | None:
    match = _ORDINAL.fullmatch(word)
    number = int(match[1]) if match else _ORDINALS.get(word)
    return number if number is not None and (number == -1 or 1 <= number <= _MOST[kind]) else None


def _year_form(value: object) -> Form:
    text = " ".join(value.lower().split()) if isinstance(value, str) else ""
    day_text, of, month_text = text.rpartition(" of ")
    if of:
        month = read_month(month_text)
        if month is not None:
            form = _month_form(day_text)
            if form.kind == "day" and abs(form.number) > LONGEST_MONTHS[month - 1]:
                name = MONTH_NAMES[month - 1].capitalize()
                raise InvalidValue(f'on: {name} never has a day {form.number}, got {value!r}; for example "12-24"')
            return form._replace(month=month)
    elif re.fullmatch(r"[0-9]{1,2}-[0-9]{1,2}", text):
        month, day = read_month_and_day(text, "on")
        return Form("day", day, month=month)
    raise InvalidValue(f'on: for years say one or several of "12-24", "last friday of november", "15 of march", got {value!r}')


def refuse_impossible(forms: Sequence[Form], every: int, anchor_month: int) -> None:
    """Refuse days that no month of an interval of `every` months has."""
    met = {(anchor_month - 1 + every * step) % 12 + 1 for step in range(12)}
    longest = max(LONGEST_MONTHS[month - 1] for month in met)
    if all(form.kind == "day" and abs(form.number) > longest for form in forms):
        names = ", ".join(MONTH_NAMES[month - 1].capitalize() for month in sorted(met))
        raise InvalidValue(f'on: day {forms[0].number} never comes in {names}; for example -1 or "last" for the last day')


MonthMask = Callable[[int, int, int, int], int]


def month_mask(
    forms: Sequence[Form], *, every: int, anchor: int, yearly: bool, missing: str, business: Callable[[int, int, int], Sequence[int]]
) -> MonthMask:
    """Return a function that computes a month's days as bits. `anchor` is a month counted from year 0, or a year if `yearly`."""
    counting = any(form.kind == "business" for form in forms)

    def mask_of(year: int, month: int, length: int, first_weekday: int) -> int:
        number = year if yearly else year * 12 + month - 1
        if (number - anchor) % every:
            return 0
        days = business(year, month, length) if counting else ()
        mask = 0
        for form in forms:
            if not form.month or form.month == month:
                mask |= form.bits(length, first_weekday, days, missing)
        return mask

    return mask_of
