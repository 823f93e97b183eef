"""The feeder: claims due tasks for free slots, and sleeps exactly until there may be some."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import count

from duetime.clock import SECOND, Instant
from duetime.service import Alarms, Service
from duetime.store.protocol import Hint, HintKind, Store
from duetime.worker.executor import Executor

LONGEST_SLEEP = 1.0
SHORTEST_INTERVAL = 0.002  # between two claims that found work: batches are what makes this fast


class Feeder(Service):
    """Claims in batches, at the due instant: a cancel, gate or edit that was acknowledged before always wins."""

    name = "feeder"

    def __init__(self, store: Store, worker: str, executor: Executor, alarms: Alarms) -> None:
        super().__init__(alarms)
        self._store = store
        self._worker = worker
        self._executor = executor
        self._numbers = count(1)
        self._sleeps_until: Instant | None = None
        self._claimed_at = 0.0
        self._left_behind = True  # whether there may be due tasks that the last claim had no room for
        self.in_flight: int | None = None  # the number of a claim whose reply is not here yet
        self.known = 0  # every claim up to this number has been answered

    def heard(self, hint: Hint) -> None:
        """Wake up if a hint may concern us: work that is due before we would look anyway."""
        if hint.kind is HintKind.ANY or (
            hint.kind is HintKind.DUE and (hint.at is None or self._sleeps_until is None or hint.at < self._sleeps_until)
        ):
            self.wake()

    def freed(self) -> None:
        """Wake up because there is room again, if there may be something to put into it."""
        if self._left_behind:
            self.wake()

    async def turn(self) -> float | None:
        loop = asyncio.get_running_loop()
        wants, total = self._executor.wants()
        if not wants:
            self._sleeps_until, self._left_behind = None, True
            return LONGEST_SLEEP
        wait = self._claimed_at + SHORTEST_INTERVAL - loop.time()
        if wait > 0 and self._executor.busy:
            return wait
        self.in_flight = number = next(self._numbers)
        try:
            claim = await self._store.claim(self._worker, number, wants, total)
        finally:
            self.in_flight = None
        self.known = number
        self._executor.offer(claim.tasks)
        taken = Counter(task.handler for task in claim.tasks)
        self._left_behind = len(wants) < self._executor.handlers or any(taken[name] >= want for name, want in wants.items())
        if claim.tasks:
            self._claimed_at = loop.time()
        if len(claim.tasks) >= total:
            self._left_behind = True
            return 0.0
        self._sleeps_until = claim.next_at
        if claim.next_at is None:
            return LONGEST_SLEEP
        # never early: the store decides what is due; this is only when to ask. The reply's own time is as old as its way here.
        return min(LONGEST_SLEEP, max(0.0, (claim.next_at - self._store.now()) / SECOND))
