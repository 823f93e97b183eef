"""The role of the seam that is about what workers count; a part of `store.control`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from duetime.clock import Instant
from duetime.model.figures import FigureKey


class FigureStore(Protocol):
    """Where the counts of all processes are added up. Sums never decrease, whichever processes come and go."""

    async def add_figures(self, source: str, number: int, increments: Mapping[FigureKey, int]) -> None:
        """Add what a process has counted since its last write.

        `source` is a process's own random name. `number` counts its writes from 1; a number that is not above the last one is a repeat
        and changes nothing. Any number of processes may write at once: nothing is lost, and none waits for another.
        """
        ...

    async def figures(self) -> dict[FigureKey, int]:
        """Return the sums over all processes, those that have ended included."""
        ...

    async def fold_figures(self, before: Instant) -> int:
        """Merge the counters of processes whose last write was before an instant; return how many processes these were.

        No sum changes, even when one of them writes again.
        """
        ...
