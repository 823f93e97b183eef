"""Instants, durations and clocks.

Inside Duetime an instant is an integer: microseconds since the Unix epoch in UTC. It compares and adds cheaply, and every store
has a type for it. `datetime` exists only at the edges: the API, the command line, the pages.
"""

from __future__ import annotations

import functools
import math
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Protocol, TypeAlias

from duetime.errors import InvalidValue

Instant: TypeAlias = int
Seconds: TypeAlias = float | timedelta

SECOND = 1_000_000
MILLISECOND = 1_000
MINUTE = 60 * SECOND
DAY = 86_400 * SECOND

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_UNITS = ("seconds", "minutes", "hours", "days", "weeks")
LONGEST = 1e15  # seconds: thirty million years, far beyond any calendar, and its microseconds can still be computed
LATEST: Instant = (datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC) - _EPOCH) // _MICROSECOND
EARLIEST: Instant = (datetime(1, 1, 2, tzinfo=UTC) - _EPOCH) // _MICROSECOND  # a day after the first one, so that it exists in every zone


_wall: Callable[[], int] = time.time_ns
_monotonic: Callable[[], float] = time.monotonic


def monotonic() -> float:
    """Return the seconds of a clock that only runs forward, to measure with."""
    return _monotonic()


def wall() -> int:
    """Return the nanoseconds since the epoch by this process's clock of day."""
    return _wall()


@contextmanager
def clocks_from(*, wall: Callable[[], int], monotonic: Callable[[], float]) -> Iterator[None]:
    """Read both clocks from elsewhere within the block: a simulation's time is not the machine's."""
    global _wall, _monotonic
    before = _wall, _monotonic
    _wall, _monotonic = wall, monotonic
    try:
        yield
    finally:
        _wall, _monotonic = before


class Clock(Protocol):
    """The wall time, which decides what is due, and the monotonic time, which measures."""

    def now(self) -> Instant: ...

    def monotonic(self) -> float: ...


class SystemClock:
    """The clocks of this host."""

    def now(self) -> Instant:
        return _wall() // 1_000

    def monotonic(self) -> float:
        return _monotonic()


CLOCKS_APART = 2.0  # seconds between two clocks that nobody minds


def ahead_of(store_now: Instant) -> float:
    """Return how many seconds this host's clock of day is ahead of a store's; 0 while nobody would mind."""
    ahead = (SystemClock().now() - store_now) / SECOND
    return ahead if abs(ahead) >= CLOCKS_APART else 0.0


class ManualClock:
    """A clock for tests, which moves only by `advance` and `set`."""

    def __init__(self, now: Instant = 1_800_000_000 * SECOND) -> None:
        self._now = now

    def now(self) -> Instant:
        return self._now

    def monotonic(self) -> float:
        return self._now / SECOND

    def advance(self, by: Seconds) -> Instant:
        self._now += to_micros(by)
        return self._now

    def set(self, now: Instant) -> None:
        self._now = now


def to_instant(when: datetime, name: str = "due_at") -> Instant:
    """Convert an aware datetime. A naive one is refused, because its zone would be a guess; so is one without a year in UTC."""
    if not isinstance(when, datetime):
        raise InvalidValue(f"{name} must be a datetime with a time zone, got {type(when).__name__}")
    if when.tzinfo is None or when.utcoffset() is None:
        raise InvalidValue(f"{name} must carry a time zone, got the naive {when.isoformat()}; use datetime.now(UTC) or .replace(tzinfo=…)")
    instant = (when - _EPOCH) // _MICROSECOND
    if not EARLIEST <= instant <= LATEST:
        raise InvalidValue(f"{name} must lie between the years 1 and 9999 in UTC, got {when.isoformat()}")
    return instant


@functools.lru_cache(maxsize=1024)  # tasks of one batch share their instants
def to_datetime(instant: Instant) -> datetime:
    return _EPOCH + timedelta(microseconds=instant)


def to_seconds(duration: Seconds, name: str = "duration") -> float:
    """Check a duration given as seconds or timedelta and return it in seconds."""
    if isinstance(duration, timedelta):
        return duration.total_seconds()
    if isinstance(duration, bool) or not isinstance(duration, int | float):
        raise InvalidValue(f"{name} must be seconds or a timedelta, got {type(duration).__name__}{_as_duration(duration)}")
    if not math.isfinite(duration):
        raise InvalidValue(f"{name} must be finite, got {duration}")
    return duration


def _as_duration(text: object) -> str:
    """Return how to write a duration that was given as text, such as "30m"."""
    written = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhdw])\s*", text) if isinstance(text, str) else None
    if written is None:
        return ""
    unit = next(unit for unit in _UNITS if unit.startswith(written[2]))
    seconds = timedelta(**{unit: float(written[1])}).total_seconds()
    return f" {text!r}; write {seconds:g} or timedelta({unit}={written[1]})"


def to_micros(duration: Seconds, name: str = "duration") -> int:
    seconds = to_seconds(duration, name)
    if abs(seconds) > LONGEST:
        raise InvalidValue(f"{name} must be shorter than {LONGEST:.0e} seconds, got {duration}")
    return round(seconds * SECOND)
