"""The pruner: removes finished tasks, their output, skips, idempotency keys and audit entries after their retention."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from duetime.clock import Instant, to_micros
from duetime.model.task import FINAL, State
from duetime.runtime.service import Alarms, Service
from duetime.store import Store

BATCH = 1_000
LOOK_EVERY = 60.0
PAUSE = 0.05  # seconds between two batches, so that others can write
SKIPS_KEPT = timedelta(days=30)
SILENT_FOR = timedelta(hours=1)  # far longer than a process repeats a write; then its counters are added up
REQUESTS_KEPT = timedelta(hours=24)  # how long a request may be repeated under its Idempotency-Key
AUDIT_KEPT = timedelta(days=400)  # over a year, for yearly reviews


class Pruner(Service):
    """Removes finished tasks after the retention of their state, skips after 30 days, idempotency keys after 24 hours, audit
    entries after 400 days. Never removes a live task.
    """

    name = "pruner"

    def __init__(self, store: Store, alarms: Alarms, retention: Mapping[State, timedelta]) -> None:
        super().__init__(alarms)
        self._store = store
        self._retention = {state: kept for state, kept in retention.items() if state in FINAL}
        self._round_at: Instant | None = None

    async def run_once(self) -> float | None:
        # A store may remove fewer than a batch although there are more, so a round lasts until nothing is left. All its batches
        # use the same instant, or a round would never end while tasks keep finishing.
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
            # whole steps only: a store may keep the tasks of a step in one partition and drop it
            before -= before % self._store.traits.retention_step(state)
            largest = max(largest, len(await self._store.prune(state, before, BATCH)))
        return max(largest, await self._store.prune_audit(now - to_micros(AUDIT_KEPT), BATCH))
