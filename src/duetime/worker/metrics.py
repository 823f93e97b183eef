"""A worker's metrics: how late its attempts began, how long they took, how they ended.

Counting is part of every task, so attempts that end together are counted together. The counts are written every few seconds, in one small
write, and only if something has changed; the store adds up those of all processes.
"""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from operator import sub
from typing import Protocol, runtime_checkable

from duetime.clock import Instant
from duetime.model.figures import ATTEMPTS, BEYOND, BOUNDS, DURATION, LATENESS, RETRIES, SUM, TASKS_FAILED, FigureKey
from duetime.model.outcome import Outcome, Settlement
from duetime.model.task import State
from duetime.runtime.service import Alarms, Service
from duetime.store.figures import FigureStore

WRITE_EVERY = 5.0
FEW = 4  # attempts that are quicker to count one by one

_PARTS = (*map(str, BOUNDS), BEYOND)
_SUCCEEDED = Outcome.SUCCEEDED
_SPENT = frozenset({Outcome.FAILED, Outcome.TIMED_OUT})


class Spread:
    """A histogram of durations in microseconds over `BOUNDS`."""

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * len(_PARTS)
        self.sum = 0

    def add(self, value: int) -> None:
        self.counts[bisect_left(BOUNDS, value)] += 1
        if value > 0:  # a clock that was set back must not take back what was counted
            self.sum += value

    def add_many(self, values: list[int]) -> None:
        """Count values. Mostly all belong to one bucket; if not, they are sorted, so that only the bounds have to be searched for."""
        if not self.add_between(min(values), max(values), len(values), sum(values)):
            self._add_sorted(values)

    def add_between(self, least: int, greatest: int, number: int, total: int) -> bool:
        """Count values of which only this is known, if they all belong to one bucket; return whether they do."""
        bucket = bisect_left(BOUNDS, least)
        if bucket < len(BOUNDS) and greatest > BOUNDS[bucket]:
            return False
        self.counts[bucket] += number
        self.sum += max(0, total)
        return True

    def _add_sorted(self, values: list[int]) -> None:
        values.sort()
        size, below = len(values), 0
        bucket = bisect_left(BOUNDS, values[0])
        while below < size:
            upto = bisect_right(values, BOUNDS[bucket], below) if bucket < len(BOUNDS) else size
            self.counts[bucket] += upto - below
            bucket, below = bucket + 1, upto
        self.sum += max(0, sum(values))

    def parts(self) -> Iterable[tuple[str, int]]:
        """Return what is not zero: of a thousand handlers with nineteen buckets each, that is little."""
        yield from ((part, count) for part, count in zip(_PARTS, self.counts, strict=True) if count)
        if self.sum:
            yield SUM, self.sum


class Tally:
    """What the attempts of one handler came to, since this process began. Those that never began are left out."""

    __slots__ = ("duration", "failed", "lateness", "outcomes", "retries")

    def __init__(self) -> None:
        self.lateness = Spread()
        self.duration = Spread()
        self.outcomes: Counter[Outcome] = Counter()
        self.retries = 0
        self.failed = 0  # tasks, not attempts

    def note(self, settlement: Settlement, due_at: Instant) -> None:
        """Count one attempt."""
        started_at = settlement.started_at
        if started_at is None:
            return
        self.lateness.add(started_at - due_at)
        self.duration.add(settlement.finished_at - started_at)
        self.outcomes[settlement.outcome] += 1
        if settlement.outcome is not _SUCCEEDED:
            self.retries += settlement.state is State.PENDING and settlement.outcome in _SPENT
            self.failed += settlement.state is State.FAILED

    def note_successes(self, settlements: Sequence[Settlement], due: Sequence[Instant], began_at: Instant | None) -> None:
        """Count attempts that succeeded, all at once if they followed one another: `bench/ceiling.py` shows no difference beyond its noise.

        `began_at`: each began when the one before it ended, and the first one then; None if others ended between them.
        """
        number = len(due)
        if number < FEW or began_at is None:
            for settlement, due_at in zip(settlements, due, strict=True):
                self.note(settlement, due_at)
            return
        finished = [settlement.finished_at for settlement in settlements]
        last = finished[-1]
        started = [began_at, *finished]
        started.pop()
        if not self.lateness.add_between(began_at - max(due), started[-1] - min(due), number, sum(started) - sum(due)):
            self.lateness.add_many(list(map(sub, started, due)))
        if not self.duration.add_between(0, max(map(sub, finished, started)), number, last - began_at):
            self.duration.add_many(list(map(sub, finished, started)))
        self.outcomes[Outcome.SUCCEEDED] += number

    def totals(self, handler: str) -> Iterable[tuple[FigureKey, int]]:
        for name, spread in ((LATENESS, self.lateness), (DURATION, self.duration)):
            for part, count in spread.parts():
                yield FigureKey(name, handler, part), count
        for outcome, count in list(self.outcomes.items()):  # at once: a health port reads it from another thread
            yield FigureKey(ATTEMPTS, handler, outcome.value), count
        if self.retries:
            yield FigureKey(RETRIES, handler), self.retries
        if self.failed:
            yield FigureKey(TASKS_FAILED, handler), self.failed


@runtime_checkable
class Counting(Protocol):
    """A duty that counts something besides."""

    def totals(self) -> Mapping[FigureKey, int]: ...


class FigureWriter(Service):
    """Writes what a process has counted since its last write. If it is killed, what it had not written yet is not counted."""

    name = "metrics"

    def __init__(
        self,
        store: FigureStore,
        source: str,
        alarms: Alarms,
        totals: Callable[[], Mapping[FigureKey, int]],
        also: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        super().__init__(alarms)
        self._also = also  # what else is written in the same rhythm
        self._store = store
        self._source = source
        self._totals = totals
        self._written: Mapping[FigureKey, int] = {}
        self._number = 0
        # a write whose answer did not come is repeated as it was: under the same number it cannot be counted twice
        self._unanswered: tuple[Mapping[FigureKey, int], dict[FigureKey, int]] | None = None

    async def run_once(self) -> float | None:
        await self.write()
        if self._also is not None:
            await self._also()
        return WRITE_EVERY * random.uniform(0.8, 1.2)

    async def write(self) -> None:
        """Write what is new, if anything is."""
        if self._unanswered is not None:
            await self._send()
        totals = self._totals()
        written = self._written
        increments = {key: count - before for key, count in totals.items() if count > (before := written.get(key, 0))}
        if increments:
            self._unanswered = totals, increments
            await self._send()

    async def _send(self) -> None:
        assert self._unanswered is not None
        totals, increments = self._unanswered
        await self._store.add_figures(self._source, self._number + 1, increments)
        self._number += 1
        self._written, self._unanswered = totals, None
