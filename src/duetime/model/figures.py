"""The names of counters, and distributions read from them.

A counter has a name, a handler ('' if it is about a whole process) and a part: an outcome, or a bucket of a distribution. Buckets
are named by their upper bounds in microseconds, so counts of versions with different bounds can be added up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from duetime.clock import MILLISECOND, SECOND

ATTEMPTS = "attempts"  # ended attempts; the parts are outcomes
RETRIES = "retries"
TASKS_FAILED = "tasks_failed"  # tasks whose last attempt failed for good
LATENESS = "lateness"  # from the due time to the start of an attempt
DURATION = "duration"  # from its start to its end
STALE_WRITES = "stale_writes"
LEASE_LOSSES = "lease_losses"
WORKERS_LOST = "workers_lost"
ATTEMPTS_LOST = "attempts_lost"
STORE_ERRORS = "store_errors"
BLOCKED_LOOPS = "blocked_loops"
HOOK_CALLS = "hook_calls"  # by the name of the hook; the parts are how the calls ended
OPERATED = "operated"  # tasks that operations have acted on; the parts are verb and answer

SUM, BEYOND = "sum", "inf"  # parts of a distribution besides its buckets
BOUNDS = (
    *(round(ms * MILLISECOND) for ms in (1, 2.5, 5, 10, 25, 50, 100, 250, 500)),
    *(round(s * SECOND) for s in (1, 2.5, 5, 10, 30, 60, 300, 1_800, 3_600)),
)


class FigureKey(NamedTuple):
    """The identity of a counter."""

    name: str
    handler: str = ""
    part: str = ""


class Distribution(msgspec.Struct, frozen=True):
    """A histogram. `buckets` are (upper bound in seconds, number of values up to it); the last bound is None."""

    buckets: tuple[tuple[float | None, int], ...]
    sum: float

    @property
    def count(self) -> int:
        return self.buckets[-1][1]

    def within(self, bound: float) -> float:
        """Estimate which share of the values is at most a bound, by linear interpolation within a bucket; 1 without values."""
        lower, before = 0.0, 0
        for upper, upto in self.buckets:
            if upper is None:
                return before / self.count if self.count else 1.0
            if upper >= bound:
                inside = (upto - before) * (bound - lower) / (upper - lower)
                return (before + inside) / self.count if self.count else 1.0
            lower, before = upper, upto
        return 1.0

    def quantile(self, share: float) -> float | None:
        """Estimate a quantile by linear interpolation within a bucket; None without values.

        Values beyond the last bound count as that bound.
        """
        if not self.count:
            return None
        wanted, lower, before = share * self.count, 0.0, 0
        for upper, upto in self.buckets:
            if upper is None:
                break
            if upto >= wanted and upto > before:
                return lower + (upper - lower) * (wanted - before) / (upto - before)
            lower, before = upper, upto
        return lower


def distributions(figures: Mapping[FigureKey, int], name: str) -> dict[str, Distribution]:
    """Return the distributions of a name by handler."""
    parts: dict[str, dict[str, int]] = {}
    for key, count in figures.items():
        if key.name == name:
            parts.setdefault(key.handler, {})[key.part] = count
    return {handler: _distribution(own) for handler, own in sorted(parts.items())}


def _distribution(parts: Mapping[str, int]) -> Distribution:
    # also the buckets without values: a reader that adds up several handlers needs the same bounds of each
    bounds = sorted({*BOUNDS, *(int(part) for part in parts if part not in (SUM, BEYOND))})
    buckets: list[tuple[float | None, int]] = []
    upto = 0
    for bound in bounds:
        upto += parts.get(str(bound), 0)
        buckets.append((bound / SECOND, upto))
    return Distribution((*buckets, (None, upto + parts.get(BEYOND, 0))), parts.get(SUM, 0) / SECOND)
