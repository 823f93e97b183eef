"""The reaper: takes tasks back from workers that died."""

from __future__ import annotations

import asyncio
import logging

from duetime.model.figures import ATTEMPTS_LOST, WORKERS_LOST, FigureKey
from duetime.runtime.service import Alarms, Service
from duetime.store.shard import Registering
from duetime.store.values import WorkerRecord

logger = logging.getLogger("duetime.duties")

LOOK_EVERY = 0.5
LONGEST_GAP = 0.4  # of the lease: what the time between two looks counts at the most


class Reaper(Service):
    """Looks at all workers and reaps the dead.

    Where the store knows (a lock that the kernel frees), its word is taken. Elsewhere a worker is dead when this process
    has seen the same beat for a whole lease on its own monotonic clock; no wall clock of another host decides. While the store
    does not answer nobody can beat, so a long time between two looks does not count in full: after an outage the living are
    heard before they are judged.
    """

    name = "reaper"

    def __init__(self, store: Registering, alarms: Alarms, *, lease: float) -> None:
        super().__init__(alarms)
        self._store = store
        self._lease = lease
        self._seen: dict[str, tuple[int, float]] = {}  # the beat, and at how many seconds of watching it was seen first
        self._looked_at: float | None = None
        self._watched = 0.0
        self._workers = self._attempts = 0  # taken back from the dead

    async def run_once(self) -> float | None:
        await self.reap()
        return LOOK_EVERY

    async def reap(self, now: float | None = None) -> int:
        """Reap what is dead at an instant of the monotonic clock, by default that of the store's answer; return how many attempts
        were taken back.
        """
        workers = await self._store.workers()
        if now is None:
            # not before: the answer may take longer than a lease, and show a beat that is as new as its end
            now = asyncio.get_running_loop().time()
        if self._looked_at is not None:
            self._watched += min(now - self._looked_at, max(2 * LOOK_EVERY, LONGEST_GAP * self._lease))
        self._looked_at = now
        taken = 0
        for worker in workers:
            if self._is_dead(worker):
                attempts = await self._store.reap(worker.id, worker.beat)
                if attempts is not None:
                    who = f"pull worker {worker.host}" if worker.pull else f"process {worker.pid} on {worker.host}"
                    logger.warning("worker %s (%s) died; %d attempts go back", worker.id, who, attempts)
                    taken += attempts
                    self._workers += 1
                    self._attempts += attempts
        self._seen = {worker.id: self._seen[worker.id] for worker in workers if worker.id in self._seen}
        return taken

    def totals(self) -> dict[FigureKey, int]:
        """Give what it has counted, for the worker that writes it."""
        return {FigureKey(WORKERS_LOST): self._workers, FigureKey(ATTEMPTS_LOST): self._attempts}

    def _is_dead(self, worker: WorkerRecord) -> bool:
        if worker.alive is not None:
            return not worker.alive
        beat, since = self._seen.get(worker.id, (-1, 0.0))
        if beat != worker.beat:
            self._seen[worker.id] = (worker.beat, self._watched)
            return False
        # a pull worker's lease is its own choice; of our own workers the longest one counts that any process was started with
        return self._watched - since >= (worker.lease if worker.pull else max(self._lease, worker.lease))
