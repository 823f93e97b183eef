"""The role of the seam that is about what happened when; a part of `store.control`. Rules: `model/series.py`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec

from duetime.clock import Instant
from duetime.model.names import HandlerNames
from duetime.model.series import Buckets, Load, Sample, Step
from duetime.store.values import LaneCount


def sample_of(lanes: Iterable[LaneCount], names: HandlerNames, now: Instant) -> Sample:
    """Return a sample of counted lanes, those of a handler's former names with the others."""
    loads: dict[str, Load] = {}
    for lane in lanes:
        name = names.present(lane.handler)
        load = loads.get(name, Load())
        waited = 0 if lane.oldest_due_at is None else max(0, now - lane.oldest_due_at)
        loads[name] = Load(load.due + lane.due, load.later + lane.later, load.running + lane.running, max(load.oldest_due, waited))
    return Sample(now, {name: load for name, load in loads.items() if load != Load()})


class SeriesPage(msgspec.Struct, frozen=True):
    """The buckets of a span of time, the last sample that was kept, and the store's time."""

    buckets: Buckets
    last: Sample | None
    now: Instant


class SeriesStore(Protocol):
    """Where counts and samples are kept in buckets of time. `add_figures` puts what it adds there too, in the same transaction."""

    async def sample(self) -> Sample:
        """Count what is due, waits for its time and runs, by the present name of each handler. Does not look at finished tasks."""
        ...

    async def keep_sample(self, sample: Sample) -> None:
        """Keep a sample. Any number of processes may do so: averages stay averages."""
        ...

    async def last_sample(self) -> Sample | None:
        """Return the sample that was kept last."""
        ...

    async def series(self, step: Step, since: Instant, until: Instant, handler: str | None = None) -> SeriesPage:
        """Return the buckets of a step that begin at `since` or later and before `until`: those of ALL and of a handler, or of every one.

        Everything that was written before the call is in them, folded or not.
        """
        ...

    async def fold_series(self) -> int:
        """Add what processes have written to the buckets of each step, and remove buckets that are past their time.

        Return how many writes were added up: 0 if none was left. Whatever happens meanwhile, each is counted once. A store where nothing
        was written since the last time is not written to.
        """
        ...
