"""When a handler's target is taken for broken: ends of attempts in, what happens to its gate out.

A target that fails again and again uses up the tries of every task that comes due. So its handler, or the failing collection, is
*disabled*: an automatic gate pauses it. At an interval one task, the *probe*, passes the gate; its success opens it.
"""

from __future__ import annotations

import msgspec

from duetime.clock import SECOND, Instant, Seconds, to_datetime, to_seconds
from duetime.errors import InvalidValue
from duetime.model.gate import Gate, GateAction, Gates
from duetime.model.outcome import Unavailable

SET_BY = "duetime"  # who sets and opens automatic gates
IN_A_ROW = 3  # answers "not now" after which a whole handler waits
MAX_LAST = 120  # characters of how the last one failed
LONGEST = 30 * 86_400.0


class DisableAfter(msgspec.Struct, frozen=True):
    """So many failures in a row, over at least `lasting` seconds, disable a handler; a probe passes every `probe_every` seconds."""

    failures: int = 20
    lasting: Seconds = 600.0
    probe_every: Seconds = 900.0

    def __post_init__(self) -> None:
        if isinstance(self.failures, bool) or not isinstance(self.failures, int) or not 1 <= self.failures <= 1_000_000:
            raise InvalidValue(f"disable_after is how many failures in a row disable, a whole number from 1 on, got {self.failures!r}")
        if not 0 <= to_seconds(self.lasting, "lasting") <= LONGEST:
            raise InvalidValue(f"lasting, for how long attempts must have failed, is 0 s to 30 days, got {self.lasting}")
        if not 1 <= to_seconds(self.probe_every, "probe_every") <= LONGEST:
            raise InvalidValue(f"probe_every, the pause between two probes, is 1 s to 30 days, got {self.probe_every}")


class Disabling(msgspec.Struct, frozen=True):
    """What a handler declares about being disabled. Without `after` failures never do it; `by_collection`: each collection for itself."""

    after: DisableAfter | None = None
    by_collection: bool = False


class Streak(msgspec.Struct, frozen=True):
    """Failures in a row: how many, since when, and how the last one failed."""

    failures: int
    since_at: Instant
    last: str


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker has seen of a handler, or of one collection, since it last told.

    `succeeded`: at least one attempt has; `failures` came after that. `unavailable`: the target takes no work before `again_at`.
    `seen_gates` is the gates' version when it saw the first failure: what was seen before somebody opened or closed a gate does not count
    after it.
    """

    handler: str
    collection: str | None = None
    succeeded: bool = False
    failures: int = 0
    since_at: Instant = 0
    last: str = ""
    rule: DisableAfter | None = None
    unavailable: Unavailable | None = None
    again_at: Instant = 0
    seen_gates: int = 0


class Change(msgspec.Struct, frozen=True):
    """What to write: the streak as it is now, a gate to close, or to open, or the instant of its next probe."""

    streak: Streak | None = None
    close: Gate | None = None
    open: Gate | None = None
    probe_at: Instant | None = None


def judge(observed: Observed, streak: Streak | None, gates: Gates, now: Instant) -> Change:
    """Decide what becomes of a streak and of the gate. A gate that a person has set is left alone."""
    gate = gates.holding(observed.handler, observed.collection, now)
    if gate is not None:
        return _behind(gate, observed)
    if observed.succeeded:
        streak = None
    current = observed.seen_gates == gates.version
    if observed.unavailable is not None and current:
        return Change(streak, close=_paused(observed, observed.unavailable, now))
    if not observed.failures or not current:
        return Change(streak)
    streak = Streak(
        observed.failures + (streak.failures if streak else 0), min(observed.since_at, streak.since_at if streak else now), observed.last
    )
    rule = observed.rule
    if rule is None or streak.failures < rule.failures or now - streak.since_at < to_seconds(rule.lasting) * SECOND:
        return Change(streak)
    return Change(close=_disabled(observed, streak, rule, now))


def _behind(gate: Gate, observed: Observed) -> Change:
    """Return what is learned while a gate is closed: a success opens one that probes, an answer "not now" may put the next probe off."""
    own = gate.probe_at is not None and gate.collection == observed.collection
    if own and observed.succeeded and not observed.failures:
        return Change(open=gate)
    if own and observed.unavailable is not None and observed.unavailable.probe_every is not None:
        return Change(probe_at=observed.again_at)
    return Change()


def _disabled(observed: Observed, streak: Streak, rule: DisableAfter, now: Instant) -> Gate:
    since = to_datetime(streak.since_at)
    day = "" if since.date() == to_datetime(now).date() else f"{since:%Y-%m-%d} "
    every = to_seconds(rule.probe_every)
    return Gate(
        handler=observed.handler,
        collection=observed.collection,
        action=GateAction.PAUSE,
        note=f"disabled: {streak.failures:,} failures since {day}{since:%H:%M} UTC, last: {streak.last}",
        set_by=SET_BY,
        set_at=now,
        automatic=True,
        probe_at=now + round(every * SECOND),
        probe_every=every,
    )


def _paused(observed: Observed, unavailable: Unavailable, now: Instant) -> Gate:
    """Return the gate of a target that has said when to come again, or that is to be probed from then on."""
    probed = unavailable.probe_every is not None
    return Gate(
        handler=observed.handler,
        collection=observed.collection,
        action=GateAction.PAUSE,
        until_at=None if probed else observed.again_at,
        note=unavailable.why,
        set_by=SET_BY,
        set_at=now,
        automatic=True,
        probe_at=observed.again_at if probed else None,
        probe_every=unavailable.probe_every,
    )
