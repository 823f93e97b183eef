"""How pages write instants, durations, numbers and ids. Pure: the time and the zone are given."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

import msgspec
from markupsafe import Markup, escape

from duetime.clock import Instant, to_datetime
from duetime.model.retry import retry_text
from duetime.web.marks import badge, glyph, node_badge, operation_badge

THIN = "\N{NARROW NO-BREAK SPACE}"
RELATIVE_UP_TO = timedelta(hours=24)
LONGEST_JSON = 65_536


def number(value: float | None) -> str:
    """Write a number with thin separators: 12 345."""
    if value is None:
        return "–"
    text = f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"
    return text.replace(",", THIN)


def size(count: int) -> str:
    """Write a number of bytes with a unit: 98 MB."""
    for unit, each in (("GB", 1_000_000_000), ("MB", 1_000_000), ("kB", 1_000)):
        if count >= each:
            return f"{count / each:.1f}".removesuffix(".0") + f" {unit}"
    return f"{count} {'byte' if count == 1 else 'bytes'}"


def duration(seconds: float | None) -> str:
    """Write a duration in its two largest units."""
    if seconds is None:
        return "–"
    sign, seconds = ("\N{MINUS SIGN}" if seconds < 0 else ""), abs(seconds)
    if seconds < 0.000_95:
        return f"{sign}{seconds * 1e6:.0f} µs"
    if seconds < 0.9995:
        return f"{sign}{seconds * 1e3:.3g} ms" if seconds < 0.01 else f"{sign}{seconds * 1e3:.0f} ms"
    if seconds < 59.95:
        return f"{sign}{seconds:.1f} s" if seconds < 10 else f"{sign}{seconds:.0f} s"
    whole = round(seconds)
    for size, name, smaller, smaller_name in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // smaller
            return f"{sign}{number(whole // size)} {name}" + (f" {rest} {smaller_name}" if rest else "")
    raise AssertionError(whole)


def share(part: float, whole: float) -> str:
    """Write a part of a whole in per cent; nothing of nothing is a dash."""
    if not whole:
        return "–"
    percent = 100 * part / whole
    return f"{percent:.0f} %" if percent >= 10 or percent == 0 else f"{percent:.1f} %"


def short_id(id: str) -> str:
    """Return the first eight and the last four characters of an id."""
    return id if len(id) <= 14 else f"{id[:8]}…{id[-4:]}"


def cut(text: str, length: int = 120) -> str:
    """Return text on one line, at most so many characters."""
    line = " ".join(text.split())
    return line if len(line) <= length else f"{line[: length - 1]}…"


def inside(text: str) -> Markup:
    """Write text as the content of an element, where quotes need no escape: a list of fifty payloads has hundreds of them."""
    return Markup(str(escape(text)).replace("&#34;", '"').replace("&#39;", "'"))


def json_line(value: Any, length: int = 120) -> str:
    """Return a JSON value on one line, cut."""
    return cut(msgspec.json.encode(value).decode(), length)


def json_text(value: Any) -> str:
    """Return a JSON value for people to read, cut where it is long."""
    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    return text if len(text) <= LONGEST_JSON else f"{text[:LONGEST_JSON]}\n… {number(len(text) - LONGEST_JSON)} more characters"


class Words:
    """How instants are written at one moment, for a person in one zone."""

    def __init__(self, now: Instant, tz: tzinfo, zone: str) -> None:
        self.now = to_datetime(now)
        self.tz = tz
        self.zone = zone

    number = staticmethod(number)
    size = staticmethod(size)
    duration = staticmethod(duration)
    share = staticmethod(share)
    short_id = staticmethod(short_id)
    cut = staticmethod(cut)
    inside = staticmethod(inside)
    retry_text = staticmethod(retry_text)
    json_line = staticmethod(json_line)
    json_text = staticmethod(json_text)
    badge = staticmethod(badge)
    glyph = staticmethod(glyph)
    operation_badge = staticmethod(operation_badge)
    node_badge = staticmethod(node_badge)

    def full(self, at: datetime) -> str:
        """Write an instant with date, time and zone."""
        return f"{at.astimezone(self.tz):%Y-%m-%d %H:%M:%S} {self.zone}"

    def text(self, at: datetime) -> str:
        """Write an instant: relative within a day, then with its date."""
        delta = (at - self.now).total_seconds()
        if abs(delta) >= RELATIVE_UP_TO.total_seconds():
            local = at.astimezone(self.tz)
            return f"{local:%Y-%m-%d %H:%M}" if local.year != self.now.year else f"{local:%d %b %H:%M}"
        if abs(delta) < 1:
            return "now"
        size = duration(float(int(abs(delta)))) if abs(delta) < 60 else duration(abs(delta) // 60 * 60)
        size = size.replace(".0 s", " s")
        return f"in {size}" if delta > 0 else f"{size} ago"

    def when(self, at: datetime | None, otherwise: str = "–") -> Markup:
        """Write an instant as an element: relative, with the absolute one as its title. The browser keeps it right between answers."""
        if at is None:
            return escape(otherwise)
        relative = " data-rel" if abs(at - self.now) < RELATIVE_UP_TO else ""
        return Markup('<time datetime="{}" title="{}"{}>{}</time>').format(
            f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}", self.full(at), Markup(relative), self.text(at)
        )

    def at(self, at: datetime | None) -> Markup:
        """Write an instant as an element, absolute."""
        if at is None:
            return Markup("–")
        local = at.astimezone(self.tz)
        return Markup('<time datetime="{}" title="{}">{}</time>').format(at.isoformat(), self.full(at), f"{local:%d %b %H:%M:%S}")

    def between(self, start: datetime | None, end: datetime | None) -> str:
        """Write how long something took, or has taken so far."""
        if start is None:
            return "–"
        return duration(((end or self.now) - start).total_seconds())
