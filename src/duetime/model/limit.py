"""Limits: how much may run at once in the whole fleet, of one handler or of several together.

Capacity is leased. A worker holds *permits* of a limit, and the permits of all workers together are never more than the limit allows. A
start needs only a free permit in the worker's memory. Permits belong to the worker's lease: when it is reaped, it is surely dead, and they
are free. So nothing is counted that could be counted wrong: what a dead worker held is known by its name.

The order of writing is what makes it exact (tests/models/test_limits.py): a worker that gives permits back lowers its own number first and
then the store's; one that gets more raises its own after the store's. Calls are numbered, so that one that arrives late changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import msgspec

from duetime.clock import SECOND, Instant, Seconds, to_micros
from duetime.errors import InvalidValue

MOST_RUNNING = 1_000_000
MOST_RATES = 4
MOST_COUNTED = 2  # limits of a handler that the store counts
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")


Over = Literal["wait", "drop", "cancel_running"]
DAY = 86_400 * SECOND
LONGEST_PERIOD = 366 * DAY
_PATH = re.compile(r"[^.\x00]{1,100}(\.[^.\x00]{1,100}){0,9}\Z")


class Rate(msgspec.Struct, frozen=True):
    """How many attempts may start in a time: `Rate(10, per=1, burst=20)`, `Rate(100_000, per="day")`.

    Starts come evenly, `per / count` apart, and up to `burst` at once after a pause. `per="day"` is different: so many in each day of UTC,
    at any time of it.
    """

    count: int
    per: Seconds | Literal["day"]
    burst: int = 1

    def __post_init__(self) -> None:
        _whole("a rate's count", self.count, MOST_RUNNING, "")
        _whole("a rate's burst", self.burst, MOST_RUNNING, "")
        if self.per == "day":
            if self.burst != 1:
                raise InvalidValue('a rate per="day" has no burst: all of a day\'s starts may come at once; leave burst= out')
        elif isinstance(self.per, str):
            raise InvalidValue(f'a rate\'s per must be a number of seconds, a timedelta or "day", got {self.per[:40]!r}')
        elif not 1 <= to_micros(self.per) <= LONGEST_PERIOD:
            raise InvalidValue(f"a rate's per must be above 0 and at most 366 days, got {self.per!r}")

    @property
    def rule(self) -> RateRule:
        return RateRule(self.count, self.period, self.burst)

    @property
    def period(self) -> int:
        """In microseconds; 0: a day of UTC."""
        return 0 if isinstance(self.per, str) else to_micros(self.per)

    def __str__(self) -> str:
        per = "day" if isinstance(self.per, str) else f"{self.period / SECOND:g}s"
        return f"{self.count:,}/{per}" + (f", burst {self.burst:,}" if self.burst > 1 else "")


class Limit(msgspec.Struct, frozen=True):
    """How many attempts may run at once in the whole fleet, or start in a time. Several handlers may share one.

    `@app.task(limits=[Limit("erp", running=40)])`. An attempt that needs more of it than one: `gpu.take(2)`. `by` counts each value of a
    field of the payload, of `"collection"` or of `"meta.NAME"` on its own: `Limit("per-user", running=1, by="user_id")`. `rate` bounds
    starts. What may not run waits; with `over="drop"` it is dropped, with `over="cancel_running"` it replaces what runs.
    """

    name: str
    running: int | None = None
    each: int = 1
    by: str | None = None
    rate: tuple[Rate, ...] | list[Rate] = ()
    over: Over = "wait"

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.match(self.name):
            raise InvalidValue(
                f"a limit's name has up to 100 letters, digits and . _ - and begins with a letter or digit, got {self.name!r}"
            )
        if not isinstance(self.rate, (tuple, list)) or not all(isinstance(rate, Rate) for rate in self.rate):
            raise InvalidValue(f"the limit {self.name}: rate must be a list such as [Rate(10, per=1)], got {self.rate!r}")
        if len(self.rate) > MOST_RATES:
            raise InvalidValue(f"the limit {self.name} has {len(self.rate)} rates; at most {MOST_RATES} make sense")
        if self.running is None and not self.rate:
            raise InvalidValue(f"the limit {self.name} bounds nothing: give running=, how many may run at once, or rate=[Rate(10, per=1)]")
        if self.running is not None:
            check_running(self.running)
        if self.over not in get_args(Over):
            raise InvalidValue(f"the limit {self.name}: over must be one of {', '.join(get_args(Over))}, got {self.over!r}")
        if self.over == "cancel_running" and (self.rate or self.running is None):
            raise InvalidValue(
                f'the limit {self.name}: over="cancel_running" goes with running= alone; a rate is not met by stopping what runs'
            )
        if self.by is not None and not (isinstance(self.by, str) and _PATH.match(self.by)):
            raise InvalidValue(
                f"the limit {self.name}: by names a field of the payload (a.b: inside of another), collection or meta.NAME, got {self.by!r}"
            )
        most = MOST_RUNNING if self.running is None else self.running
        _whole(f"what an attempt takes of the limit {self.name}", self.each, most, ", or it could never run")

    def take(self, each: int) -> Limit:
        """Return this limit for a handler whose attempts take so many of it each."""
        return msgspec.structs.replace(self, each=each)

    @property
    def is_counted(self) -> bool:
        """Whether the store counts at each claim, instead of leasing permits to workers."""
        return self.by is not None or bool(self.rate) or self.over != "wait"

    def bounds_as(self, other: Limit) -> bool:
        """Return whether another declaration says the same, whatever an attempt takes."""
        return (self.running, self.by, tuple(self.rate), self.over) == (other.running, other.by, tuple(other.rate), other.over)

    def __str__(self) -> str:
        parts = [] if self.running is None else [f"{self.running:,} at once"]
        parts += [str(rate) for rate in self.rate]
        parts += ([f"by {self.by}"] if self.by else []) + ([f"over {self.over}"] if self.over != "wait" else [])
        return ", ".join(parts)


def check_running(running: object) -> None:
    """Raise InvalidValue unless so many may run at once under a limit."""
    _whole("running, how many may run at once,", running, MOST_RUNNING, "; to stop work, use a gate")


def _whole(what: str, number: object, most: int, advice: str) -> None:
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= most:
        raise InvalidValue(f"{what} must be a whole number from 1 to {most:,}{advice}; got {number!r}")


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker says of a limit that its handlers have: how many permits it has now, and how many it wants.

    `declared` is what its code says may run, `uses` what an attempt of each of its handlers takes, `seen` the version of the limit that it
    goes by: it has started nothing since that it might not start under it. Fewer permits than `least` would be of no use to it; `need`
    is what it would like to have if others lacked nothing. `waited`: for so many microseconds one of its attempts has waited for permits,
    0 unless that is long: where attempts take different numbers, who has waited longest comes first.
    """

    limit: str
    declared: int
    uses: Mapping[str, int]
    held: int
    want: int
    seen: int = 0
    least: int = 0
    need: int = 0
    waited: int = 0


class Allotment(msgspec.Struct, frozen=True):
    """What a worker has of a limit: never more than is left. `out` is what all have together, work that was accepted elsewhere included.

    `lacking`: how many permits others want and do not have. `sharing`: how many workers want or have some, this one included. `mixed`:
    attempts of its handlers take different numbers. `yields`: somebody else has waited longer than anyone here, and is waited for.
    """

    limit: str
    permits: int
    running: int
    version: int
    out: int
    lacking: int
    sharing: int
    mixed: bool = False
    yields: bool = False

    @property
    def is_over(self) -> bool:
        """Whether more are out than may be, because the limit was lowered: what becomes free goes back."""
        return self.out > self.running

    @property
    def share(self) -> int:
        """What is this worker's part if all want as much as they can get."""
        return max(1, self.running // max(1, self.sharing))


class Holder(msgspec.Struct, frozen=True):
    """A worker that has permits of a limit, or wants some."""

    worker: str
    permits: int
    wanted: int
    seen: int


class CountedLimit(msgspec.Struct, frozen=True, kw_only=True):
    """A limit that the store counts, as code declares it. `uses`: what an attempt of each handler takes."""

    name: str
    running: int  # 0: as many as come
    uses: Mapping[str, int]
    by: str | None = None
    rates: Sequence[RateRule] = ()
    over: Over = "wait"


class RateRule(msgspec.Struct, frozen=True, array_like=True):
    """A rate in microseconds; `period` 0 is a day of UTC."""

    count: int
    period: int
    burst: int = 1

    def __str__(self) -> str:
        per = "day" if not self.period else f"{self.period / SECOND:g}s"
        return f"{self.count:,}/{per}" + (f", burst {self.burst:,}" if self.burst > 1 else "")


class LimitRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A stored limit. `own` is what an operator has set instead of what code declares, until `until_at` if that is given.

    The store counts at each claim what has `by`, rates or another `over` than to wait: `counted` attempts run, and `parked` tasks wait.
    """

    name: str
    by: str | None = None
    rates: Sequence[RateRule] = ()
    own_rates: Sequence[RateRule] | None = None
    over: Over = "wait"
    counted: int = 0
    parked: int = 0
    declared: int
    uses: Mapping[str, int]
    version: int
    own: int | None = None
    until_at: Instant | None = None
    note: str = ""
    set_by: str = ""
    set_at: Instant | None = None
    accepted: int = 0
    holders: Sequence[Holder] = ()

    def running_at(self, now: Instant) -> int:
        """Return how many may run now."""
        return in_force(self.declared, self.own, self.until_at, now)

    def rates_at(self, now: Instant) -> Sequence[RateRule]:
        """Return the rates that hold now."""
        return self.rates if self.own_rates is None or not self.is_own_at(now) else self.own_rates

    def is_own_at(self, now: Instant) -> bool:
        """Return whether anything that an operator has set holds still."""
        return (self.own is not None or self.own_rates is not None) and (self.until_at is None or self.until_at > now)

    def own_at(self, now: Instant) -> int | None:
        """Return what an operator has set, if that still holds."""
        return None if self.until_at is not None and self.until_at <= now else self.own

    @property
    def out(self) -> int:
        """How many permits are with workers, and what was accepted elsewhere."""
        return self.counted + self.accepted + sum(holder.permits for holder in self.holders)

    @property
    def is_counted(self) -> bool:
        return self.by is not None or bool(self.rates) or self.over != "wait"


class PartitionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One value of a limit by key that something runs or waits under, or that has a number of its own (`own`).

    `tasks` are some of those that run; `next_at` is when the next may start, if a rate holds it.
    """

    name: str
    running: int
    own: int | None = None
    until_at: Instant | None = None
    note: str = ""
    set_by: str = ""
    counted: int = 0
    parked: int = 0
    oldest_due_at: Instant | None = None
    next_at: Instant | None = None
    tasks: Sequence[str] = ()


def in_force(declared: int, own: int | None, until_at: Instant | None, now: Instant) -> int:
    return declared if own is None or (until_at is not None and until_at <= now) else own


def is_mixed(uses: Mapping[str, int]) -> bool:
    """Return whether attempts of handlers take different numbers of a limit: those that take few could keep out those that take many."""
    return len(set(uses.values())) > 1


Waiting = tuple[Instant, str]  # since when an attempt of which worker has waited: the first in order is waited for


def yields(own: Waiting | None, first: Waiting | None) -> bool:
    """Return whether a worker has to wait for another one, which has waited longer."""
    return first is not None and (own is None or first < own)


def granted(running: int, others: int, ask: Ask, *, yielding: bool = False) -> int:
    """Return a worker's permits: what it wants as far as something is left, and never less than it says it has.

    It says it has less than before if it gives some back. What it has was granted once, so after a server lost that it is granted again.
    While another one is waited for (`yielding`) nothing is left.
    """
    left = 0 if yielding else min(ask.want, running - others)
    return max(ask.held, left) if left >= ask.least else ask.held
