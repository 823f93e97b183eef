"""The pruner: removes finished tasks, and their output, when their time is over."""

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


class Pruner(Service):
    """Keeps finished tasks for as long as their state's retention says. A live task is never removed."""

    name = "pruner"

    def __init__(self, store: Store, alarms: Alarms, retention: Mapping[State, timedelta], output: OutputFiles | None) -> None:
        super().__init__(alarms)
        self._store = store
        self._retention = {state: kept for state, kept in retention.items() if state in FINAL}
        self._output = output

    async def turn(self) -> float | None:
        return 0.05 if await self.run_once() >= BATCH else LOOK_EVERY

    async def run_once(self) -> int:
        """Remove one batch of each state; return the size of the largest."""
        largest = 0
        for state, kept in self._retention.items():
            before = self._store.now() - to_micros(kept)
            # whole steps only: a store may keep the tasks of a step together, and removes them all at once
            before -= before % self._store.retention_step(state)
            pruned = await self._store.prune(state, before, BATCH)
            if self._output is not None and pruned:
                await asyncio.to_thread(_remove, self._output, pruned)
            largest = max(largest, len(pruned))
        return largest


def _remove(output: OutputFiles, pruned: list[Pruned]) -> None:
    for task in pruned:
        if task.attempt:
            output.remove(task.id, task.attempt)
