"""Quotas: how many tasks of a handler may be submitted in a time, by the whole fleet together.

The rule is that of a leaky bucket (the generic cell rate algorithm). All that is stored of a handler is an instant: until when what was
submitted has used up the quota. A submission moves it on by its cost, and is refused if it would be further away than the burst allows. So
a time `t` never sees more than `burst + t * count / per` submissions, wherever they come from.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec

from duetime.clock import SECOND, Instant, Seconds, to_seconds
from duetime.errors import InvalidValue

MOST_COUNT = 1_000_000
LONGEST_PERIOD = 366 * 86_400.0


class Quota(msgspec.Struct, frozen=True):
    """How many tasks of a handler may be submitted: `Quota(1_000, per=60)`, at once up to `burst`, or as many as `count`.

    Submissions beyond it are refused with QuotaExceeded, over HTTP with 429 and Retry-After.
    """

    count: int
    per: Seconds
    burst: int | None = None

    def __post_init__(self) -> None:
        _whole("count", self.count)
        if self.burst is not None:
            _whole("burst", self.burst)
        seconds = to_seconds(self.per, "a quota's per")
        if not 0.001 <= seconds <= LONGEST_PERIOD:
            raise InvalidValue(f"a quota's per must be from 0.001 seconds to 366 days, got {self.per!r}")
        msgspec.structs.force_setattr(self, "per", seconds)

    @property
    def at_once(self) -> int:
        return self.count if self.burst is None else self.burst

    def cost(self, tasks: int) -> int:
        """Return by how many microseconds so many submissions move on the instant that is stored."""
        return math.ceil(tasks * to_seconds(self.per, "per") * SECOND / self.count)

    def __str__(self) -> str:
        period = to_seconds(self.per, "per")
        named = {1.0: "second", 60.0: "minute", 3_600.0: "hour", 86_400.0: "day"}.get(period, f"{period:g} s")
        return f"{self.count:,} per {named}" + ("" if self.burst is None else f", {self.burst:,} at once")


class QuotaAsk(NamedTuple):
    """What is asked of a handler's quota, in microseconds: the cost of some submissions, and how far away their instant may be."""

    handler: str
    cost: int
    allowed: int


def spend(used_until: Instant, ask: QuotaAsk, now: Instant) -> tuple[Instant, int]:
    """Return until when a quota is used up afterwards, and for how many microseconds to wait instead if that is too far away.

    An instant that was stored by a clock which was set back, or under a larger quota, counts as far as this one allows.
    """
    base = min(max(used_until, now), now + ask.allowed)
    wait = base + ask.cost - now - ask.allowed
    return (base, wait) if wait > 0 else (base + ask.cost, 0)


def check_quota(handler: str, quota: object) -> Quota | None:
    """Return a handler's quota; raise InvalidValue for anything else."""
    if quota is None or isinstance(quota, Quota):
        return quota
    raise InvalidValue(f"{handler}: quota says how much may be submitted, such as Quota(1_000, per=60), got {quota!r}")


def _whole(what: str, number: object) -> None:
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= MOST_COUNT:
        raise InvalidValue(f"a quota's {what} must be a whole number from 1 to {MOST_COUNT:,}, got {number!r}; to stop work, use a gate")
