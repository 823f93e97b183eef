"""The pruner: removes finished tasks with their output, skipped occurrences, named requests and old entries of the audit."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from duetime.clock import Instant, to_micros
from duetime.model.task import FINAL, State
from duetime.runtime.service import Alarms, Service
from duetime.store import Store

BATCH = 1_000
LOOK_EVERY = 60.0
PAUSE = 0.05  # seconds between two batches, for others to write
SKIPS_KEPT = timedelta(days=30)
SILENT_FOR = timedelta(hours=1)  # far longer than a process repeats a write; what it has counted is added up then
REQUESTS_KEPT = timedelta(hours=24)  # how long a request may be repeated under its Idempotency-Key
AUDIT_KEPT = timedelta(days=400)  # over a year, so that a yearly review finds all of it


class Pruner(Service):
    """Keeps finished tasks for as long as their state's retention says, skipped occurrences for 30 days, the
    names of requests for 24 hours, the audit for 400 days.

    A live task is never removed.
    """

    name = "pruner"

    def __init__(self, store: Store, alarms: Alarms, retention: Mapping[State, timedelta]) -> None:
        super().__init__(alarms)
        self._store = store
        self._retention = {state: kept for state, kept in retention.items() if state in FINAL}
        self._round_at: Instant | None = None

    async def run_once(self) -> float | None:
        # A store may remove fewer than a batch although there are more, so a round lasts until nothing is left; all its turns
        # look from the same instant, or it would never end where tasks end all the time.
        if self._round_at is None:
            self._round_at = self._store.now()
        if await self.prune(self._round_at):
            return PAUSE
        self._round_at = None
        return LOOK_EVERY

    async def prune(self, now: Instant | None = None) -> int:
        """Remove one batch of each state, one of skips, one of requests and one of the audit; return the size of the largest."""
        now = self._store.now() if now is None else now
        await self._store.fold_figures(now - to_micros(SILENT_FOR))
        largest = await self._store.prune_skips(now - to_micros(SKIPS_KEPT), BATCH)
        largest = max(largest, await self._store.prune_requests(now - to_micros(REQUESTS_KEPT), BATCH))
        for state, kept in self._retention.items():
            before = now - to_micros(kept)
            # whole steps only: a store may keep the tasks of a step together, and removes them all at once
            before -= before % self._store.traits.retention_step(state)
            largest = max(largest, len(await self._store.prune(state, before, BATCH)))
        return max(largest, await self._store.prune_audit(now - to_micros(AUDIT_KEPT), BATCH))
