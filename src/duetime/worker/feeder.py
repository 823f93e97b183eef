"""The feeder: claims due tasks for free slots, and sleeps exactly until there may be some."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from itertools import count

from duetime.runtime.service import Alarms, Service
from duetime.store import Store
from duetime.store.values import Hint, HintKind
from duetime.worker.claim_timing import ClaimTiming
from duetime.worker.executor import Executor

SHORTEST_INTERVAL = 0.002  # between two claims that found work: batches are what makes this fast


class Feeder(Service):
    """Claims in batches, at the due instant or a few milliseconds before it, as the store's traits say.

    A cancel or edit that was acknowledged before the claim always wins, and so does a gate that was in force.
    """

    name = "feeder"

    def __init__(self, store: Store, worker: str, executor: Executor, alarms: Alarms) -> None:
        super().__init__(alarms)
        self._store = store
        self._worker = worker
        self._executor = executor
        self._timing = ClaimTiming()
        self._numbers = count(1)
        self._claimed_at = 0.0  # when the last claim that found work was sent
        self.in_flight: int | None = None  # the number of a claim whose reply is not here yet
        self.known = 0  # every claim up to this number has been answered

    def on_hint(self, hint: Hint) -> None:
        """Look when a hint says that there may be work. If it is about later work, only remember when."""
        if hint.kind is HintKind.ANY:
            self.wake()
        elif hint.kind is HintKind.DUE:
            self._timing.on_hint(None if hint.at is None else hint.at - self._store.traits.claim_ahead, self._store.now())
            super().wake()

    def wake(self) -> None:
        """Look now, whatever is expected."""
        self._timing.look_now()
        super().wake()

    def freed(self) -> None:
        """Wake up because a handler that may have more tasks has free slots again."""
        super().wake()

    async def run_once(self) -> float | None:
        seconds, now = asyncio.get_running_loop().time(), self._store.now()
        due = self._timing.due(now, seconds)
        if due:
            self._executor.queues.expect_more()
        wants, total = self._executor.wants()
        if wants:
            wait = self._claimed_at + SHORTEST_INTERVAL - seconds
            return wait if wait > 0 and self._executor.busy else await self._claim(wants, total)
        if self.pulse.failures:
            self.skipped()
        if due:
            # there is no free slot; the executor knows which handlers may have more, and calls `freed`
            self._timing.begin(now, seconds)
            self._timing.found(seconds)
        return self._timing.pause(now, seconds)

    async def _claim(self, wants: Mapping[str, int], total: int) -> float:
        loop = asyncio.get_running_loop()
        sent_at = loop.time()
        reasons = self._timing.begin(self._store.now(), sent_at)
        self.in_flight = number = next(self._numbers)
        try:
            claim = await self._store.claim(self._worker, number, wants, total, ahead=self._store.traits.claim_ahead)
        finally:
            self.in_flight = None
        self.known = number
        self._executor.offer(claim.tasks)
        full = len(claim.tasks) >= total
        self._executor.queues.note_claimed(wants, claim.tasks, full=full)
        now, seconds = self._store.now(), loop.time()
        if claim.next_at is not None and (claim.next_at > claim.now or not full):
            # never early: the store decides what is due, and this is only when to ask. Until then is counted from the store's
            # present time, because that of its reply is as old as the reply's way here.
            self._timing.know(claim.next_at, now)
        if claim.tasks:
            self._claimed_at = sent_at
            self._timing.found(seconds)
            return 0.0  # there may be slots for more
        self._timing.found_nothing(reasons, seconds, now=claim.now, next_at=claim.next_at)
        return self._timing.pause(now, seconds)
