"""Workers as they are shown, what one runs, and draining it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Protocol

import msgspec

from duetime.client.liveness import silence
from duetime.clock import Instant, to_datetime
from duetime.errors import WorkerNotFound
from duetime.store import Store
from duetime.store.values import WorkerRecord

MOST_TASKS = 1_000  # running tasks that are shown of a worker


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A registered worker. `concurrency` is its slots over all handlers; no handler is shown with more.

    `alive` is None where only its next beats can show it. `silent_for` is then how many seconds ago the last beat was, by the store's
    clock, if that is longer than its lease. A pull worker speaks over HTTP; its `host` is the name it gave. `running` and `concurrency` are
    None for somebody who may not see all of its handlers. A `draining` one finishes what it runs and starts nothing. `version` and `python`
    are those of Duetime and Python in it, None of a pull worker. `lag` is by how many seconds its event loop answered late in the last
    seconds, 0 if in time: something that runs in it does not let the others go on.
    """

    id: str
    host: str
    pid: int
    slots: Mapping[str, int]
    concurrency: int | None = None
    running: int | None
    started_at: datetime
    beat_at: datetime | None
    alive: bool | None
    pull: bool = False
    silent_for: float | None = None
    draining: bool = False
    version: str | None = None
    python: str | None = None
    lag: float = 0.0

    def part(self, may_see: Callable[[str], bool]) -> WorkerInfo | None:
        """Return what somebody may see who may see some handlers; None if it has none of them."""
        slots = {handler: number for handler, number in self.slots.items() if may_see(handler)}
        if len(slots) == len(self.slots):
            return self
        return msgspec.structs.replace(self, slots=slots, concurrency=None, running=None) if slots else None


def worker_info(worker: WorkerRecord, now: Instant) -> WorkerInfo:
    """Return a worker as it is shown."""
    return WorkerInfo(
        id=worker.id,
        host=worker.host,
        pid=worker.pid,
        slots={handler: worker.slots_of(handler) for handler in worker.slots},
        concurrency=worker.concurrency,
        running=worker.running,
        started_at=to_datetime(worker.started_at),
        beat_at=None if worker.beat_at is None else to_datetime(worker.beat_at),
        alive=worker.alive,
        pull=worker.pull,
        silent_for=silence(worker, now),
        draining=worker.draining,
        version=worker.version,
        python=worker.python,
        lag=worker.lag,
    )


class WorkerTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task that a worker runs."""

    id: str
    handler: str
    attempt: int
    started_at: datetime
    cancelling: bool = False


class WorkerDetails(msgspec.Struct, frozen=True, kw_only=True):
    """A worker and the first 1,000 tasks that it runs, longest running first."""

    worker: WorkerInfo
    tasks: Sequence[WorkerTask]

    def part(self, may_see: Callable[[str], bool]) -> WorkerDetails | None:
        """Return what somebody may see who may see some handlers; None if it has none of them."""
        worker = self.worker.part(may_see)
        return None if worker is None else WorkerDetails(worker=worker, tasks=[task for task in self.tasks if may_see(task.handler)])


class Workers(Protocol):
    """Verbs on one worker, over a store or a server. Each raises WorkerNotFound if none of that id is registered."""

    async def get(self, worker: str) -> WorkerDetails:
        """Return a worker and what it runs."""
        ...

    async def drain(self, worker: str, *, undo: bool = False) -> WorkerInfo:
        """Let a worker finish what it runs and claim nothing more; or let it claim again. It stays registered."""
        ...


class LocalWorkers(Workers):
    """Workers of a store."""

    def __init__(self, store: Store, *, opened: Callable[[], Awaitable[None]]) -> None:
        self._store = store
        self._opened = opened

    async def get(self, worker: str) -> WorkerDetails:
        await self._opened()
        info = await self._info(worker)
        running = sorted(await self._store.running_tasks(worker, payloads=False), key=lambda task: task.claimed_at)
        tasks = [
            WorkerTask(
                id=task.id, handler=task.handler, attempt=task.attempt, started_at=to_datetime(task.claimed_at), cancelling=task.cancelling
            )
            for task in running[:MOST_TASKS]
        ]
        return WorkerDetails(worker=info, tasks=tasks)

    async def drain(self, worker: str, *, undo: bool = False) -> WorkerInfo:
        await self._opened()
        if not await self._store.drain(worker, not undo):
            raise no_worker(worker)
        return await self._info(worker)

    async def _info(self, worker: str) -> WorkerInfo:
        found = next((each for each in await self._store.workers() if each.id == worker), None)
        if found is None:
            raise no_worker(worker)
        return worker_info(found, self._store.now())


def no_worker(worker: str) -> WorkerNotFound:
    return WorkerNotFound(f"there is no worker {worker[:80]!r}: it has stopped, or was taken for dead; `duetime workers` lists all")
