"""The pruner: removes finished tasks, their output, skipped occurrences and entries of the audit when their time is over."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta

from duetime.clock import to_micros
from duetime.model.task import FINAL, State
from duetime.output import OutputFiles
from duetime.service import Alarms, Service
from duetime.store.protocol import Pruned, Store

BATCH = 1_000
LOOK_EVERY = 60.0
SKIPS_KEPT = timedelta(days=30)
AUDIT_KEPT = timedelta(days=400)  # over a year, so that a yearly review finds all of it


class Pruner(Service):
    """Keeps finished tasks for as long as their state's retention says, skipped occurrences for 30 days, the audit for 400.

    A live task is never removed.
    """

    name = "pruner"

    def __init__(self, store: Store, alarms: Alarms, retention: Mapping[State, timedelta], output: OutputFiles | None) -> None:
        super().__init__(alarms)
        self._store = store
        self._retention = {state: kept for state, kept in retention.items() if state in FINAL}
        self._output = output

    async def turn(self) -> float | None:
        return 0.05 if await self.run_once() >= BATCH else LOOK_EVERY

    async def run_once(self) -> int:
        """Remove one batch of each state, one of skips and one of the audit; return the size of the largest."""
        largest = await self._store.prune_skips(self._store.now() - to_micros(SKIPS_KEPT), BATCH)
        for state, kept in self._retention.items():
            before = self._store.now() - to_micros(kept)
            # whole steps only: a store may keep the tasks of a step together, and removes them all at once
            before -= before % self._store.retention_step(state)
            pruned = await self._store.prune(state, before, BATCH)
            if self._output is not None and pruned:
                await asyncio.to_thread(_remove, self._output, pruned)
            largest = max(largest, len(pruned))
        return max(largest, await self._store.prune_audit(self._store.now() - to_micros(AUDIT_KEPT), BATCH))


def _remove(output: OutputFiles, pruned: list[Pruned]) -> None:
    for task in pruned:
        if task.attempt:
            output.remove(task.id, task.attempt)
