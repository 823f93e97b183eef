"""Workers: who they are, the proof that they live, and taking everything from the dead."""

from __future__ import annotations

import msgspec

from duetime.clock import Instant
from duetime.model.lifecycle import conclude
from duetime.model.outcome import Ended, Outcome, Running
from duetime.model.retry import RetryPolicy
from duetime.model.task import ErrorInfo
from duetime.store.postgres.lease import PostgresLease
from duetime.store.postgres.read import attempts_of
from duetime.store.postgres.records import write_json
from duetime.store.postgres.runner import Runner
from duetime.store.postgres.work import Working, columns
from duetime.store.shard import Lease
from duetime.store.sql import Statements
from duetime.store.values import HintKind, NewWorker, RunningAttempt, RunningCount, WorkerRecord

_decode_slots = msgspec.json.Decoder(dict[str, int]).decode
_NO_POLICY = RetryPolicy()


async def take_from(run: Runner, sql: Statements, worker: str, ended: Ended, now: Instant) -> int:
    """End all attempts of a worker that cannot do so itself; its row is locked by the caller. Return how many there were."""
    rows = await run.rows(sql.open_attempts, [worker])
    settlements = []
    said = msgspec.structs.replace(ended, alone=len(rows) == 1)
    for task_id, attempt, tries, crashes, claimed_at, since_at, expires_at, handler in rows:
        running = Running(task_id, handler, attempt, tries, crashes, since_at, expires_at)
        settlements.append(conclude(running, said, _NO_POLICY, started_at=claimed_at, now=now, chance=0.0))
    if settlements:
        await run.rows(sql.settle, [now, worker, None, *columns(settlements)])
    return len(settlements)


async def reap(run: Runner, sql: Statements, worker: str, beat: int, now: Instant | None) -> int | None:
    """Take everything from a dead worker; its row is locked first, so that it can neither claim nor beat meanwhile."""
    if not await run.rows(sql.lock_worker, [worker, beat]):
        return None
    [[at]] = await run.rows(sql.begin_adding, [now])
    error = ErrorInfo("WorkerDied", f"worker {worker} died while it ran this task")
    taken = await take_from(run, sql, worker, Ended(Outcome.LOST, error=error, crashed=True), at)
    await run.rows(sql.mark_lost, [worker, at])
    await run.rows(sql.delete_worker, [worker])
    return taken


async def unregister(run: Runner, sql: Statements, worker: str, now: Instant | None) -> int:
    """Forget a worker that stopped by itself; what it still holds goes back."""
    if not await run.rows(sql.lock_worker, [worker, None]):
        return 0
    [[at]] = await run.rows(sql.begin_adding, [now])
    released = await take_from(run, sql, worker, Ended(Outcome.RELEASED), at)
    await run.rows(sql.delete_worker, [worker])
    return released


class Registering(Working):
    """Which workers there are, and what they run."""

    async def register(self, worker: NewWorker) -> Lease:
        slots = msgspec.json.encode(dict(worker.slots)).decode()
        identity = (worker.id, worker.host, worker.pid, slots, worker.lease, write_json(worker.declared), worker.concurrency)
        facts = (worker.draining, worker.version, worker.python)
        await self._opened.rows(self._sql.insert_worker, [self._clock.parameter, *identity, *facts])
        return PostgresLease(worker.id, worker.lease, self._address, self._clock)

    async def change_slots(self, worker: NewWorker) -> bool:
        values = [worker.id, write_json(dict(worker.slots)), write_json(dict(worker.declared)), worker.concurrency]
        return bool(await self._opened.rows(self._sql.change_slots, values))

    async def drain(self, worker: str, draining: bool) -> bool:
        return bool(await self._opened.rows(self._sql.drain_worker, [worker, draining]))

    async def note_lag(self, worker: str, lag: float) -> None:
        await self._opened.rows(self._sql.note_lag, [worker, lag])

    async def unregister(self, worker: str) -> None:
        released = await self._opened.transaction(lambda run: unregister(run, self._sql, worker, self._clock.parameter))
        self._claims.forget(worker)
        if released:
            self._hint(HintKind.DUE)
        self._hint(HintKind.GATES)  # a barrier may have waited for this worker only
        await self._lanes.publish()  # or the next worker would walk over all that this one has taken

    async def confirm_gates(self, worker: str, version: int) -> None:
        await self._opened.rows(self._sql.confirm_gates, [worker, version])  # an earlier version takes nothing back
        self._hint(HintKind.GATES)

    async def attempts_of(self, worker: str) -> list[RunningAttempt]:
        return await attempts_of(self._opened, self._sql, worker)

    async def running_counts(self) -> list[RunningCount]:
        return [RunningCount(*row) for row in await self._opened.rows(self._sql.running_by_worker)]

    async def workers(self) -> list[WorkerRecord]:
        """List workers; whether one is alive nobody can tell from outside but by watching its beat."""
        rows = await self._opened.rows(self._sql.all_workers)
        return [
            WorkerRecord(
                id=worker,
                host=host,
                pid=pid,
                slots=_decode_slots(slots),
                started_at=started_at,
                beat=beat,
                beat_at=beat_at,
                seen_gates=seen_gates,
                running=running,
                alive=None,
                concurrency=concurrency,
                lease=lease,
                pull=pull,
                draining=draining,
                version=version,
                python=python,
                lag=lag,
            )
            for worker, host, pid, slots, started_at, beat, beat_at, seen_gates, lease, pull, running, concurrency, *more in rows
            for draining, version, python, lag in [more]
        ]

    async def reap(self, worker: str, beat: int) -> int | None:
        taken = await self._opened.transaction(lambda run: reap(run, self._sql, worker, beat, self._clock.parameter))
        if taken is not None:
            self._hint(HintKind.GATES)
        if taken:
            self._hint(HintKind.DUE)
            self._hint(HintKind.DONE)
        return taken
