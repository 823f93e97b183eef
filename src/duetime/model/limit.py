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

import msgspec

from duetime.clock import Instant
from duetime.errors import InvalidValue

MOST_RUNNING = 1_000_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")


class Limit(msgspec.Struct, frozen=True):
    """How many attempts may run at once in the whole fleet. Several handlers may share one, and each takes one or more of it.

    `@app.task(limits=[Limit("erp", running=40)])`. An attempt that needs more of it than one: `gpu.take(2)`.
    """

    name: str
    running: int
    each: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.match(self.name):
            raise InvalidValue(
                f"a limit's name has up to 100 letters, digits and . _ - and begins with a letter or digit, got {self.name!r}"
            )
        check_running(self.running)
        _whole(f"what an attempt takes of the limit {self.name}", self.each, self.running, ", or it could never run")

    def take(self, each: int) -> Limit:
        """Return this limit for a handler whose attempts take so many of it each."""
        return Limit(self.name, self.running, each)


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
    is what it would like to have if others lacked nothing.
    """

    limit: str
    declared: int
    uses: Mapping[str, int]
    held: int
    want: int
    seen: int = 0
    least: int = 0
    need: int = 0


class Allotment(msgspec.Struct, frozen=True):
    """What a worker has of a limit: never more than is left. `out` is what all have together, work that was accepted elsewhere included.

    `lacking`: how many permits others want and do not have. `sharing`: how many workers want or have some, this one included.
    """

    limit: str
    permits: int
    running: int
    version: int
    out: int
    lacking: int
    sharing: int

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


class LimitRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A stored limit. `own` is what an operator has set instead of what code declares, until `until_at` if that is given."""

    name: str
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

    def own_at(self, now: Instant) -> int | None:
        """Return what an operator has set, if that still holds."""
        return None if self.until_at is not None and self.until_at <= now else self.own

    @property
    def out(self) -> int:
        """How many permits are with workers, and what was accepted elsewhere."""
        return self.accepted + sum(holder.permits for holder in self.holders)


def in_force(declared: int, own: int | None, until_at: Instant | None, now: Instant) -> int:
    return declared if own is None or (until_at is not None and until_at <= now) else own


def granted(running: int, others: int, ask: Ask) -> int:
    """Return a worker's permits: what it wants as far as something is left, and never less than it says it has.

    It says it has less than before if it gives some back. What it has was granted once, so after a server lost that it is granted again.
    """
    left = min(ask.want, running - others)
    return max(ask.held, left) if left >= ask.least else ask.held
