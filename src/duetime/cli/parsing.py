"""What people type: durations, instants, zones, JSON and NAME=VALUE. The functions are callbacks of click's options."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

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

_ZONE = "duetime.zone"
_ZONE_USED = "duetime.zone.used"


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
    """Read ISO 8601. Without a zone it is that of --tz; without that it is UTC, as in all that is printed, and stderr says so."""
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidValue(f"expected an instant such as 2030-01-31T07:00:00Z or 2030-01-31T07:00+01:00, got {text!r}") from None
    if when.tzinfo is not None:
        return when
    ctx = click.get_current_context(silent=True)
    zone: str | None = None if ctx is None else ctx.meta.get(_ZONE)
    if zone is None or ctx is None:
        click.echo(f"{text} does not say its zone and is taken as UTC; --tz names another one", err=True)
        return when.replace(tzinfo=UTC)
    ctx.meta[_ZONE_USED] = True
    return _at_wall(when, zone, text)


def _at_wall(when: datetime, zone: str, text: str) -> datetime:
    """Return when the clocks of a zone show a time. One that they skip or show twice is refused: an offset says what is meant."""
    first, second = (when.replace(tzinfo=ZoneInfo(zone), fold=fold) for fold in (0, 1))
    if first.utcoffset() == second.utcoffset():
        return first
    if first.astimezone(UTC).astimezone(ZoneInfo(zone)).replace(tzinfo=None) != when:
        raise InvalidValue(f"the clocks of {zone} skip {text}; write another time, or add an offset such as +01:00")
    offsets = " or ".join(each.isoformat()[-6:] for each in (first, second))
    raise InvalidValue(f"the clocks of {zone} show {text} twice; add the offset that is meant, {offsets}")


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


def instants_zone(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Read a zone, and remember it for the instants of the command that do not say theirs. The option must be eager."""
    name: str | None = zone(ctx, param, value)
    if name is not None:
        ctx.meta[_ZONE] = name
    return name


def was_zone_used(ctx: click.Context) -> bool:
    """Return whether an instant took its zone from --tz."""
    return bool(ctx.meta.get(_ZONE_USED))


tz_option = click.option(
    "--tz",
    metavar="ZONE",
    is_eager=True,
    expose_value=False,
    callback=instants_zone,
    help="The zone of instants that do not say theirs, such as Europe/Berlin; otherwise UTC.",
)
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
