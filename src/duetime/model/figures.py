"""What is counted of attempts, under which names, and what the counts tell.

A count has a name, a handler ('' where it is about a whole process) and a part: an outcome, or a place in a distribution. The
places of a distribution are named by their upper bounds in microseconds, so versions with different bounds can be added up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from duetime.clock import MILLISECOND, SECOND

ATTEMPTS = "attempts"  # that ended; their parts are outcomes
RETRIES = "retries"
LATENESS = "lateness"  # from the due time to the start of an attempt
DURATION = "duration"  # from its start to its end
STALE_WRITES = "stale_writes"
LEASE_LOSSES = "lease_losses"
WORKERS_LOST = "workers_lost"
ATTEMPTS_LOST = "attempts_lost"
STORE_ERRORS = "store_errors"
BLOCKED_LOOPS = "blocked_loops"

SUM, BEYOND = "sum", "inf"  # parts of a distribution besides its bounds
BOUNDS = (
    *(round(ms * MILLISECOND) for ms in (1, 2.5, 5, 10, 25, 50, 100, 250, 500)),
    *(round(s * SECOND) for s in (1, 2.5, 5, 10, 30, 60, 300, 1_800, 3_600)),
)


class FigureKey(NamedTuple):
    """What a count is of."""

    name: str
    handler: str = ""
    part: str = ""


class Distribution(msgspec.Struct, frozen=True):
    """How values are spread. `places` has upper bounds in seconds, None for the last, and how many values lie up to each."""

    places: tuple[tuple[float | None, int], ...]
    sum: float

    @property
    def count(self) -> int:
        return self.places[-1][1]

    def quantile(self, share: float) -> float | None:
        """Estimate the value that this share of all values does not exceed, evenly within a place; None without values.

        What lies beyond the last bound counts as that bound.
        """
        if not self.count:
            return None
        wanted, lower, before = share * self.count, 0.0, 0
        for upper, upto in self.places:
            if upper is None:
                break
            if upto >= wanted and upto > before:
                return lower + (upper - lower) * (wanted - before) / (upto - before)
            lower, before = upper, upto
        return lower


def distributions(figures: Mapping[FigureKey, int], name: str) -> dict[str, Distribution]:
    """Give the distributions of a name by handler."""
    parts: dict[str, dict[str, int]] = {}
    for key, count in figures.items():
        if key.name == name:
            parts.setdefault(key.handler, {})[key.part] = count
    return {handler: _distribution(own) for handler, own in sorted(parts.items())}


def _distribution(parts: Mapping[str, int]) -> Distribution:
    # all present bounds besides those with values: a reader that adds up several handlers needs the same bounds of each
    bounds = sorted({*BOUNDS, *(int(part) for part in parts if part not in (SUM, BEYOND))})
    places: list[tuple[float | None, int]] = []
    upto = 0
    for bound in bounds:
        upto += parts.get(str(bound), 0)
        places.append((bound / SECOND, upto))
    return Distribution((*places, (None, upto + parts.get(BEYOND, 0))), parts.get(SUM, 0) / SECOND)
