"""Workers: registering them, proving that they are alive, and reaping dead ones."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from duetime.store.shard import Lease
from duetime.store.sqlite import liveness, pull_workers, read, work
from duetime.store.sqlite.connection import connect, translated
from duetime.store.sqlite.database import OpenFile
from duetime.store.sqlite.records import write_json
from duetime.store.sqlite.statements import SQL
from duetime.store.sqlite.targets import targets_version
from duetime.store.values import (
    HintKind,
    NewWorker,
    Renewal,
    RunningAttempt,
    RunningCount,
    WorkerRecord,
)


class Registering(OpenFile):
    """Which workers there are, and what they run."""

    async def register(self, worker: NewWorker) -> Lease:
        lock = self._locks.get(worker.id) or liveness.WorkerLock(self._folder / "workers", worker.id, self._clock)
        row = (
            *(worker.id, worker.host, worker.pid, msgspec.json.encode(dict(worker.slots)).decode(), worker.concurrency),
            *(self._clock.now(), liveness.process_mark(), msgspec.json.encode(dict(worker.declared)).decode()),
            *(worker.draining, worker.version, worker.python),
        )
        try:
            await self._write(lambda connection: connection.execute(SQL.insert_worker, row).fetchall())
        except BaseException:
            if worker.id not in self._locks:
                lock.release()
            raise
        self._locks[worker.id] = lock
        if self._path == ":memory:":
            return SqliteLease(worker.id, lock, self._path, self._opened(self._writer).call)
        return SqliteLease(worker.id, lock, self._path, OwnReader(self._path, self._synchronous))

    async def change_slots(self, worker: NewWorker) -> bool:
        row = (write_json(dict(worker.slots)), write_json(dict(worker.declared)), worker.concurrency, worker.id)
        return await self._write(lambda connection: connection.execute(SQL.change_slots, row).rowcount > 0)

    async def drain(self, worker: str, draining: bool) -> bool:
        return await self._write(lambda connection: connection.execute(SQL.drain_worker, (draining, worker)).rowcount > 0)

    async def note_lag(self, worker: str, lag: float) -> None:
        await self._write(lambda connection: connection.execute(SQL.note_lag, (lag, worker)).rowcount)

    async def unregister(self, worker: str) -> None:
        released = await self._write(lambda connection: work.unregister(connection, worker, self._clock.now()))
        lock = self._locks.pop(worker, None)
        if lock is not None:
            lock.release()
        if released:
            self._hint(HintKind.DUE)
        self._hint(HintKind.GATES)  # a caller that sets a gate may wait for this worker only

    async def confirm_gates(self, worker: str, version: int) -> None:
        lock = self._locks.get(worker)
        if lock is not None:
            lock.confirm(version)
            self._hint(HintKind.GATES)

    async def attempts_of(self, worker: str) -> list[RunningAttempt]:
        return await self._read(lambda connection: read.attempts_of(connection, worker))

    async def running_counts(self) -> list[RunningCount]:
        rows = await self._read(lambda connection: connection.execute(SQL.running_by_worker).fetchall())
        return [RunningCount(*row) for row in rows]

    async def workers(self) -> list[WorkerRecord]:
        mark_of = partial(read.mark_in, self._folder / "workers")
        return await self._read(lambda connection: read.workers(connection, mark_of))

    async def reap(self, worker: str, beat: int) -> int | None:
        path = self._folder / "workers" / worker

        def job(connection: sqlite3.Connection) -> int | None:
            row = connection.execute(SQL.worker_known, (worker,)).fetchone()
            stored_beat = pull_workers.beat(connection, worker)
            if stored_beat is not None:
                return work.reap(connection, worker, self._clock.now()) if stored_beat == beat else None
            # looked at under the write lock: a worker that registers now is not yet in the table, and one that is dead stays dead
            own_beat, beat_at, _ = liveness.read_mark(path)
            if row is None or own_beat != beat or (alive := liveness.is_alive(path, row[0])):
                return None
            if alive is None and beat_at is None:  # there is no lock to judge by, and its process cannot be seen from here
                return None
            return work.reap(connection, worker, self._clock.now())

        taken = await self._write(job)
        if taken is not None:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            self._hint(HintKind.GATES)
        if taken:
            self._hint(HintKind.DUE)
            self._hint(HintKind.DONE)
        return taken


class OwnReader:
    """A connection for one plain thread, opened at its first use; reading never waits for a writer."""

    def __init__(self, path: str, synchronous: str) -> None:
        self._open = partial(connect, path, synchronous=synchronous, writes=False)
        self._connection: sqlite3.Connection | None = None

    def __call__(self, job: Callable[[sqlite3.Connection], Renewal]) -> Renewal:
        if self._connection is None:
            self._connection = self._open()
        return job(self._connection)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class SqliteLease:
    """The lock is the lease: renewing only beats and reads."""

    def __init__(
        self,
        worker: str,
        lock: liveness.WorkerLock,
        path: str,
        run: Callable[[Callable[[sqlite3.Connection], Renewal]], Renewal],
    ) -> None:
        self._worker = worker
        self._lock = lock
        self._path = path
        self._run = run

    def renew(self) -> Renewal:
        self._lock.beat()
        try:
            return self._run(self._renewal)
        except sqlite3.Error as error:
            raise translated(error, self._path) from error

    def _renewal(self, connection: sqlite3.Connection) -> Renewal:
        known = connection.execute(SQL.worker_known, (self._worker,)).fetchone()
        (version,) = connection.execute(SQL.gates_version).fetchone()
        attempts, draining = read.attempts_of(connection, self._worker), known is not None and bool(known[1])
        return Renewal(known is not None, version, attempts, targets_version(connection), draining)

    def inheritable(self) -> Sequence[int]:
        return (self._lock.descriptor,)

    def close(self) -> None:
        if isinstance(self._run, OwnReader):
            self._run.close()
