"""Rules as text: reading what people type, and describing a rule in one line."""

from __future__ import annotations

import re
from datetime import datetime
from typing import assert_never

import msgspec

from duetime.clock import to_datetime
from duetime.errors import InvalidValue
from duetime.model.rules.kinds import AfterEnd, At, Calendar, Cron, Every, Rule, Union, Window
from duetime.model.rules.reading import MONTH_NAMES, WEEKDAY_NAMES, as_seconds, duration_text, read_duration, read_weekdays

_EXAMPLES = '"*/5 * * * *", "@daily", "every 10m", "every 90s phase 5s", "after end 60s", "2030-01-31T07:00:00Z" or a rule as JSON'
_EVERY = re.compile(r"every\s+(.+?)(?:\s+phase\s+(.+))?", re.IGNORECASE)
_AFTER_END = re.compile(r"after[\s_-]+end\s+(.+)", re.IGNORECASE)
_INSTANT = re.compile(r"\d{4}-\d{2}-\d{2}")
_DECODER: msgspec.json.Decoder[Rule] = msgspec.json.Decoder(Rule)


def read_rule(text: str) -> Rule:
    """Read a rule from text: a cron expression, "every …", "after end …", instants, or JSON."""
    words = text.strip() if isinstance(text, str) else ""
    if words.startswith("{"):
        return _read_json(words)
    if match := _EVERY.fullmatch(words):
        phase = read_duration(match[2], "phase") if match[2] else 0.0
        return Every(read_duration(match[1], "every"), phase)
    if match := _AFTER_END.fullmatch(words):
        return AfterEnd(read_duration(match[1], "after end"))
    if _INSTANT.match(words):
        return At([_read_instant(part) for part in re.split(r"[\s,]+", words) if part])
    if words.startswith("@") or len(words.split()) in (5, 6):
        return Cron(words)
    raise InvalidValue(f"a rule must look like {_EXAMPLES}, got {text!r}")


def _read_json(text: str) -> Rule:
    try:
        return _DECODER.decode(text)
    except msgspec.MsgspecError as error:
        if isinstance(error.__cause__, InvalidValue):
            raise error.__cause__ from None
        raise InvalidValue(f'a rule as JSON must look like {{"rule":"cron","expression":"0 9 * * *"}}: {error}') from None


def _read_instant(text: str) -> datetime:
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidValue(f"an instant must look like 2030-01-31T07:00:00Z, got {text!r}") from None
    if when.tzinfo is None:
        raise InvalidValue(f"{text} does not say its time zone; write {when.isoformat()}Z for UTC or add an offset such as +01:00")
    return when


def describe(rule: Rule) -> str:
    """Describe a rule in one line."""
    match rule:
        case Cron():
            return f"cron {rule.expression} {rule.tz}"
        case Every():
            phase = as_seconds(rule.phase)
            text = f"every {_singular(duration_text(as_seconds(rule.interval)))}"
            return f"{text}, {duration_text(phase)} later" if phase else text
        case AfterEnd():
            return f"{duration_text(as_seconds(rule.delay))} after the end of the last run"
        case Calendar():
            return _describe_calendar(rule)
        case At():
            instants = [to_datetime(instant).strftime("%Y-%m-%dT%H:%M:%SZ") for instant in rule.instants if isinstance(instant, int)]
            shown = ", ".join(instants[:3])
            return f"at {shown}" if len(instants) <= 3 else f"at {shown} and {len(instants) - 3} more"
        case Window():
            days = "" if rule.days == "mon-sun" else f" {rule.days}"
            return f"every {_singular(duration_text(as_seconds(rule.every)))} from {rule.start} to {rule.end}{days} {rule.tz}"
        case Union():
            return " | ".join(describe(part) for part in rule.parts)
        case _:
            assert_never(rule)


def _singular(text: str) -> str:
    """Return "every minute" for "every 1 minute"."""
    return text[2:] if text.startswith("1 ") and text.count(" ") == 1 else text


def _describe_calendar(rule: Calendar) -> str:
    unit = rule.unit if rule.every == 1 else f"{rule.every} {rule.unit}s"
    at = f"at {_list(rule.at)} {rule.tz}"
    anchor = rule.anchor
    names = rule.on if isinstance(rule.on, tuple) else ()
    if rule.unit == "day":
        text = f"every {'business day' if names else unit} {at}"
    elif rule.unit == "week":
        weekdays = read_weekdays(names, "on") if names else 1 << anchor.weekday()
        days = _list([name.capitalize() for number, name in enumerate(WEEKDAY_NAMES) if weekdays >> number & 1])
        text = f"every {unit} on {days} {at}"
    elif rule.unit == "month":
        of = "of the month" if rule.every == 1 else f"every {unit}"
        text = f"{_list([_day_text(name) for name in names or (anchor.day,)])} {of} {at}"
    else:
        days = _list([_date_text(str(name)) for name in names or (f"{anchor.month:02}-{anchor.day:02}",)])
        text = f"every {unit} on {days} {at}"
    return f"{text}, business days by {rule.business}" if rule.business else text


def _day_text(name: int | str) -> str:
    if name == -1:
        return "last day"
    if isinstance(name, int):
        return f"day {name}" if name > 0 else f"day {-name} from the end"
    return name


def _date_text(name: str) -> str:
    """Return "24 December" for "12-24"."""
    month, dash, day = name.partition("-")
    return f"{int(day)} {MONTH_NAMES[int(month) - 1].capitalize()}" if dash and month.isdigit() else name


def _list(names: object) -> str:
    words = [str(name) for name in names] if isinstance(names, list | tuple) else [str(names)]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
