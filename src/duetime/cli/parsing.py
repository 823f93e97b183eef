"""What people type: durations, instants, zones, JSON and NAME=VALUE. The functions are callbacks of click's options."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from duetime.clock import SystemClock, to_datetime
from duetime.config import parse_duration
from duetime.errors import InvalidValue

T = TypeVar("T")
Callback = Callable[[click.Context, click.Parameter, Any], Any]

DURATION = "DURATION"
INSTANT = "ISO"
MOMENT = "ISO|AGE"


def _callback(parse: Callable[[str], T], *, many: bool = False) -> Callback:
    """Turn a parser that raises InvalidValue into the callback of an option."""

    def callback(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
        if value is None:
            return None
        try:
            return [parse(each) for each in value] if many else parse(value)
        except InvalidValue as problem:
            raise click.BadParameter(str(problem), ctx=ctx, param=param) from None

    return callback


def parse_seconds(text: str) -> float:
    """Read a duration that is not negative: 90, 30s, 10m, 1h30m, 2d."""
    seconds = parse_duration(text)
    if seconds < 0:
        raise InvalidValue(f"a duration must not be negative, got {text!r}")
    return seconds


def parse_instant(text: str) -> datetime:
    """Read ISO 8601 with a zone; without one nobody knows whose clock is meant."""
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidValue(f"expected an instant such as 2030-01-31T07:00:00Z or 2030-01-31T07:00+01:00, got {text!r}") from None
    if when.tzinfo is None:
        raise InvalidValue(f"{text} does not say its time zone; write {when.isoformat()}Z for UTC or add an offset such as +01:00")
    return when


def parse_expiry(text: str) -> float | datetime:
    """Read an instant, or a duration."""
    try:
        return parse_seconds(text)
    except InvalidValue:
        return parse_instant(text)


def _moment(direction: int) -> Callable[[str], datetime]:
    def parse(text: str) -> datetime:
        sign = {"-": -1, "+": 1}.get(text[:1])
        try:
            seconds = parse_seconds(text if sign is None else text[1:])
        except InvalidValue:
            return parse_instant(text)
        try:
            return to_datetime(SystemClock().now()) + (sign or direction) * timedelta(seconds=seconds)
        except OverflowError:
            raise InvalidValue(f"{text} from now is not a date between the years 1 and 9999") from None

    return parse


def _zone(text: str) -> str:
    """Read the name of a time zone."""
    from duetime.model.rules.reading import read_zone  # here, because only commands about schedules need it

    return read_zone(text)


duration = _callback(parse_seconds)
instant = _callback(parse_instant)
instants = _callback(parse_instant, many=True)
zone = _callback(_zone)
expiry = _callback(parse_expiry)
past_moment = _callback(_moment(-1))  # 1h is an hour ago
future_moment = _callback(_moment(1))  # 1h is in an hour


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise InvalidValue(f"expected NAME=VALUE, got {text!r}")
    return name, value


def _unique(pairs: Iterable[tuple[str, T]]) -> dict[str, T]:
    found: dict[str, T] = {}
    for name, value in pairs:
        if name in found:
            raise InvalidValue(f"{name} is given twice")
        found[name] = value
    return found


def _text_map(texts: Iterable[str]) -> dict[str, str]:
    return _unique(_pair(text) for text in texts)


def _argument_map(texts: Iterable[str]) -> dict[str, Any]:
    """Read NAME=VALUE arguments. A value that is JSON is read as JSON, any other is text."""
    return {name: _json_or_text(value) for name, value in _text_map(texts).items()}


def _json_or_text(value: str) -> Any:
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeError):
        return value


def _payload(text: str) -> dict[str, Any]:
    """Read a JSON object: the text itself, @file, or - for standard input."""
    value: Any
    try:
        value = msgspec.json.decode(_read_source(text))
    except (msgspec.DecodeError, UnicodeError) as problem:
        raise InvalidValue(f"the payload is not JSON: {problem}") from None
    if not isinstance(value, dict):
        raise InvalidValue(f"the payload must be a JSON object of named arguments, got {type(value).__name__}")
    return value


def _read_source(text: str) -> str | bytes:
    if text == "-":
        return sys.stdin.buffer.read()
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_bytes()
    except OSError as problem:
        raise InvalidValue(f"{text[1:]} cannot be read: {problem.strerror}") from None


def _text(text: str) -> str:
    """Read text: the text itself, @file, or - for standard input."""
    try:
        source = _read_source(text)
        return source if isinstance(source, str) else source.decode()
    except UnicodeError:
        raise InvalidValue(f"{text} is not UTF-8 text") from None


text = _callback(_text)
texts = _callback(_text, many=True)
text_map = _callback(_text_map)
argument_map = _callback(_argument_map)
payload = _callback(_payload)
