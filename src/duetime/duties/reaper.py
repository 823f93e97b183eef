"""The reaper: takes tasks back from workers that died."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Protocol

from duetime.model.figures import ATTEMPTS_LOST, TASKS_FAILED, WORKERS_LOST, FigureKey
from duetime.model.task import State
from duetime.model.wording import count
from duetime.runtime.service import Alarms, Service
from duetime.store.shard import LookingUp, Registering
from duetime.store.values import WorkerRecord

logger = logging.getLogger("duetime.duties")

LOOK_EVERY = 0.5
LONGEST_GAP = 0.4  # of the lease: the most that the time between two looks counts


class Reapable(Registering, LookingUp, Protocol):
    """The parts of a store that reaping needs."""


async def reap(store: Reapable, worker: WorkerRecord) -> dict[FigureKey, int] | None:
    """Reap a dead worker; return what that counts, or None if there was nothing to do.

    A task that is quarantined ends here and not in a worker, so it is counted here. Only one that ran alone can be.
    """
    running = await store.attempts_of(worker.id)
    attempts = await store.reap(worker.id, worker.beat)
    if attempts is None:
        return None
    counted = {FigureKey(WORKERS_LOST): 1, FigureKey(ATTEMPTS_LOST): attempts}
    if attempts == len(running) == 1:
        [record] = await store.get([running[0].id])
        if record is not None and record.state is State.FAILED and record.attempt == running[0].attempt:
            counted[FigureKey(TASKS_FAILED, record.handler)] = 1
    return counted


class Reaper(Service):
    """Watches all workers and reaps the dead ones.

    Where the store knows who is alive (by a lock that the kernel frees), that decides. Otherwise a worker is dead when this process
    has seen the same beat for a whole lease, by its own monotonic clock; no wall clock decides. While the store does not answer,
    no worker can beat, so a long time between two looks does not count in full: after an outage live workers can beat before they
    are judged.
    """

    name = "reaper"

    def __init__(self, store: Reapable, alarms: Alarms, *, lease: float) -> None:
        super().__init__(alarms)
        self._store = store
        self._lease = lease
        self._seen: dict[str, tuple[int, float]] = {}  # the beat, and the value of `_watched` when it was first seen
        self._looked_at: float | None = None
        self._watched = 0.0
        self._counted = Counter({FigureKey(WORKERS_LOST): 0, FigureKey(ATTEMPTS_LOST): 0})

    async def run_once(self) -> float | None:
        await self.reap()
        return LOOK_EVERY

    async def reap(self, now: float | None = None) -> int:
        """Reap the workers that are dead at `now`, by the monotonic clock; return how many attempts go back.

        By default `now` is when the store has answered.
        """
        workers = await self._store.workers()
        if now is None:
            # not earlier: the answer may take longer than a lease, and its beats may be as new as its end
            now = asyncio.get_running_loop().time()
        if self._looked_at is not None:
            self._watched += min(now - self._looked_at, max(2 * LOOK_EVERY, LONGEST_GAP * self._lease))
        self._looked_at = now
        taken = 0
        for worker in workers:
            if self._is_dead(worker):
                counted = await reap(self._store, worker)
                if counted is not None:
                    attempts = counted[FigureKey(ATTEMPTS_LOST)]
                    who = f"pull worker {worker.host}" if worker.pull else f"process {worker.pid} on {worker.host}"
                    logger.warning("worker %s (%s) died; %s back", worker.id, who, count(attempts, "attempt goes", "attempts go"))
                    taken += attempts
                    self._counted.update(counted)
        self._seen = {worker.id: self._seen[worker.id] for worker in workers if worker.id in self._seen}
        return taken

    def totals(self) -> dict[FigureKey, int]:
        """Return its counters, for the worker that writes them."""
        return dict(self._counted)

    def _is_dead(self, worker: WorkerRecord) -> bool:
        if worker.alive is not None:
            return not worker.alive
        beat, since = self._seen.get(worker.id, (-1, 0.0))
        if beat != worker.beat:
            self._seen[worker.id] = (worker.beat, self._watched)
            return False
        # a pull worker chooses its lease; for our own workers the longest lease counts that any process was started with
        return self._watched - since >= (worker.lease if worker.pull else max(self._lease, worker.lease))
