"""The sweeper: ends waiting tasks that nobody will claim, because they expired or a gate drops them."""

from __future__ import annotations

from duetime.runtime.service import Alarms, Service
from duetime.store.shard import Sweeping

BATCH = 2_000
LOOK_EVERY = 1.0


class Sweeper(Service):
    """Ends expired and dropped tasks in bounded batches, so that claims are not delayed."""

    name = "sweeper"

    def __init__(self, store: Sweeping, alarms: Alarms) -> None:
        super().__init__(alarms)
        self._store = store

    async def run_once(self) -> float | None:
        return 0.01 if await self.sweep() >= BATCH else LOOK_EVERY

    async def sweep(self) -> int:
        """Sweep one batch of each kind; return how many tasks ended."""
        return await self._store.expire(BATCH) + await self._store.drop(BATCH)
