"""Parsing the parts of rules: zones, times of day, weekdays, dates and durations.

Each function takes the name of the field, for an error message with the field and an example.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import date, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from duetime.clock import MILLISECOND, SECOND, Seconds, to_seconds
from duetime.errors import InvalidValue

DAY_SECONDS: Final = 86_400
EPOCH_ORDINAL: Final = date(1970, 1, 1).toordinal()
WEEKDAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
WEEKDAY_NAMES: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
MONTH_NAMES: Final = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
LONGEST_MONTHS: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
EVERY_WEEKDAY: Final = 0b1111111
LONGEST_INTERVAL: Final = 100 * 366 * DAY_SECONDS

_TIME = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?")
_MONTH_AND_DAY = re.compile(r"(\d{1,2})-(\d{1,2})")
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(second|minute|hour|day|week|sec|min|ms|s|m|h|d|w)s?[\s,]*")
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}


def read_zone(tz: object, name: str = "tz") -> str:
    """Check that a zone exists and return its IANA name."""
    key = tz.key if isinstance(tz, ZoneInfo) else tz
    if isinstance(key, str) and key:
        try:
            ZoneInfo(key)
            return key
        except (LookupError, ValueError, OSError):  # unknown; not a key at all; a folder such as "Europe"
            pass
    raise InvalidValue(f'{name} must be an IANA time zone such as "Europe/Berlin" or "UTC", got {tz!r}')


def read_choice(value: object, choices: Sequence[str], name: str) -> None:
    """Check that a value is one of a few words."""
    if value not in choices:
        raise InvalidValue(f"{name} must be {' or '.join(repr(choice) for choice in choices)}, got {value!r}")


def read_interval(value: Seconds, name: str, example: str) -> float:
    """Check an interval of at least one second and of whole milliseconds; return seconds."""
    seconds = read_millis(value, name, example)
    if seconds < 1:
        raise InvalidValue(f"{name} must be at least 1 second, the granularity of rules, got {seconds:g} s; for example {example}")
    if seconds > LONGEST_INTERVAL:
        raise InvalidValue(f"{name} must be at most 100 years, got {seconds:g} s; for example {example}")
    return seconds


def read_millis(value: Seconds, name: str, example: str) -> float:
    """Check a duration of whole milliseconds; return seconds."""
    seconds = to_seconds(value, name)
    if abs(seconds) > LONGEST_INTERVAL:
        raise InvalidValue(f"{name} must be at most 100 years, got {seconds:g} s; for example {example}")
    millis = round(seconds * 1000)
    if abs(seconds * 1000 - millis) > 1e-4:  # far below a microsecond, far above what a float of 100 years loses
        raise InvalidValue(f"{name} must be whole milliseconds, got {seconds!r} s; for example {example}")
    return millis / 1000


def to_micros_exactly(seconds: float) -> int:
    return round(seconds * 1000) * MILLISECOND


def read_time(text: object, name: str, *, end: bool = False) -> int:
    """Read "09:00" or "09:00:30" as seconds since midnight; the end of a range may be "24:00"."""
    match = _TIME.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is not None:
        hours, minutes, seconds = int(match[1]), int(match[2]), int(match[3] or 0)
        if (hours < 24 and minutes < 60 and seconds < 60) or (end and (hours, minutes, seconds) == (24, 0, 0)):
            return hours * 3600 + minutes * 60 + seconds
    raise InvalidValue(f'{name} must be a time of day such as "09:00" or "18:30:15", got {text!r}')


def time_text(second: int) -> str:
    text = f"{second // 3600:02}:{second // 60 % 60:02}"
    return f"{text}:{second % 60:02}" if second % 60 else text


def read_times(values: object, name: str) -> tuple[str, ...]:
    """Read one time of day or several; return them sorted, distinct and in canonical form."""
    seconds = sorted({read_time(value, name) for value in several(values)})
    if not seconds:
        raise InvalidValue(f'{name} must name at least one time of day, for example "09:00"')
    return tuple(time_text(second) for second in seconds)


def read_range(text: object, name: str) -> tuple[int, int]:
    """Read "09:00-17:00" as seconds since midnight; the end may be 24:00 or, over midnight, earlier than the start."""
    start, dash, end = text.partition("-") if isinstance(text, str) else ("", "", "")
    if dash:
        first, last = read_time(start, name), read_time(end, name, end=True)
        if first != last:
            return first, last
    raise InvalidValue(f'{name} must be a range of times such as "09:00-17:00" or "22:00-06:00", got {text!r}')


def several(values: object) -> tuple[object, ...]:
    """Return one value or several as a list; text may list several with commas."""
    if isinstance(values, str):
        return tuple(part.strip() for part in values.split(",") if part.strip())
    if isinstance(values, Iterable):
        return tuple(values)
    return (values,)


def read_weekday(text: object) -> int | None:
    """Read "mon" or "Monday" as 0 to 6, or return None."""
    word = text.strip().lower() if isinstance(text, str) else ""
    for names in (WEEKDAYS, WEEKDAY_NAMES):
        if word in names:
            return names.index(word)
    return None


def read_weekdays(values: object, name: str) -> int:
    """Read "mon-fri", "sat,sun" or ["monday"] as bits, Monday lowest."""
    mask = 0
    for value in several(values):
        first_text, dash, last_text = value.partition("-") if isinstance(value, str) else ("", "", "")
        first = read_weekday(first_text)
        last = read_weekday(last_text) if dash else first
        if first is None or last is None:
            raise InvalidValue(f'{name} must name weekdays such as "mon-fri" or "sat,sun", got {value!r}')
        for step in range((last - first) % 7 + 1):
            mask |= 1 << (first + step) % 7
    return mask


def weekdays_text(mask: int) -> str:
    """Return weekdays in canonical form: "mon-fri", "sat,sun", "mon-wed,fri"."""
    runs: list[list[int]] = []
    for weekday in range(7):
        if mask >> weekday & 1:
            if runs and runs[-1][-1] == weekday - 1:
                runs[-1].append(weekday)
            else:
                runs.append([weekday])
    words = [f"{WEEKDAYS[run[0]]}-{WEEKDAYS[run[-1]]}" if len(run) > 2 else ",".join(WEEKDAYS[day] for day in run) for run in runs]
    return ",".join(words)


def read_month(text: str) -> int | None:
    """Read "nov" or "November" as 11, or return None."""
    for names in (MONTHS, MONTH_NAMES):
        if text in names:
            return names.index(text) + 1
    return None


def read_month_and_day(text: object, name: str) -> tuple[int, int]:
    """Read "12-24"."""
    match = _MONTH_AND_DAY.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is not None and 1 <= int(match[1]) <= 12:
        month, day = int(match[1]), int(match[2])
        if 1 <= day <= LONGEST_MONTHS[month - 1]:
            return month, day
        raise InvalidValue(f'{name}: {MONTH_NAMES[month - 1].capitalize()} never has a day {day}, got {text!r}; for example "12-24"')
    raise InvalidValue(f'{name} must be month and day such as "12-24", got {text!r}')


def read_day_of_month(text: object, name: str) -> int:
    """Read "15"; 0 stands for "last", the last day of a month."""
    word = text.strip().lower() if isinstance(text, str) else text
    if word == "last":
        return 0
    if isinstance(word, str) and word.isdecimal() and 1 <= int(word) <= 31:
        return int(word)
    if isinstance(word, int) and not isinstance(word, bool) and 1 <= word <= 31:
        return word
    raise InvalidValue(f'{name} must be a day of the month from 1 to 31, or "last", got {text!r}')


def read_date(value: object, name: str) -> date:
    if isinstance(value, date) and not isinstance(value, datetime):
        return value
    if isinstance(value, str):
        try:
            return date.fromisoformat(value.strip())
        except ValueError:
            pass
    raise InvalidValue(f'{name} must be a date such as "2030-12-24", got {value!r}')


def read_duration(text: str, name: str) -> float:
    """Read "90", "30s", "1h30m" or "10 minutes" as seconds."""
    words = text.strip().lower()
    try:
        return to_seconds(float(words), name)
    except ValueError:
        pass
    parts = list(_PART.finditer(words))
    if not parts or "".join(part[0] for part in parts) != words:
        raise InvalidValue(f"{name} must be a duration such as 90s, 10m, 1h30m or 2d, got {text!r}")
    return sum(float(part[1]) * (0.001 if part[2] == "ms" else _UNITS[part[2][0]]) for part in parts)


def duration_text(seconds: float) -> str:
    """Return a duration in plain words: "10 minutes", "1 hour 30 minutes", "2.5 seconds"."""
    if seconds == 0:
        return "0 seconds"
    millis = round(seconds * 1000)
    words = []
    for unit, size in (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000)):
        number, millis = divmod(millis, size)
        if number:
            words.append(f"{number} {unit}{'s' if number > 1 else ''}")
    if millis:
        words.append(f"{millis / 1000:g} second{'' if millis == 1000 else 's'}")
    return " ".join(words)


def as_seconds(value: Seconds) -> float:
    """Return a checked duration as seconds: __post_init__ has made it a number."""
    return value.total_seconds() if isinstance(value, timedelta) else value


def day_of(when: date) -> int:
    """Count days since 1970-01-01."""
    return when.toordinal() - EPOCH_ORDINAL


def date_of(day: int) -> date:
    return date.fromordinal(day + EPOCH_ORDINAL)


LAST_DAY: Final = day_of(date(9999, 12, 28))  # three days before the end, so that no zone exceeds the range of datetime
FIRST_DAY: Final = day_of(date(1, 1, 4))
LAST_SECOND: Final = LAST_DAY * DAY_SECONDS
FIRST_SECOND: Final = FIRST_DAY * DAY_SECONDS
HORIZON_SECONDS: Final = 50 * 366 * DAY_SECONDS
HORIZON: Final = HORIZON_SECONDS * SECOND
