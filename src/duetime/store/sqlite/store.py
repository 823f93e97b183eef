"""The embedded store: verbs of the seam on one SQLite file."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from duetime.clock import Clock, Instant, SystemClock
from duetime.errors import InvalidValue, StoreUnavailable
from duetime.model.access import AuditEntry, TokenRecord
from duetime.model.claim_order import ClaimOrder
from duetime.model.figures import FigureKey
from duetime.model.gate import Gate, Gates
from duetime.model.outcome import AttemptRecord, Settlement, SettleVerdict
from duetime.model.query import Page, Query
from duetime.model.rules import DayCalendar
from duetime.model.schedule import ScheduleRecord, Skip
from duetime.model.task import FINAL, NewTask, State, TaskRecord
from duetime.store.access import AuditFilter, AuditPage, TokenVerdict
from duetime.store.output import KeptOutput, OutputChunk, OutputHits, OutputPosition, OutputSearch
from duetime.store.pull_workers import PullWorker, RunningTask
from duetime.store.requests import NamedRequest
from duetime.store.schedules import DueSchedules, DutyLease, ScheduleCursor, ScheduleFilter, ScheduleWrite
from duetime.store.shard import AsTheyCome, Grouping, Lease, Listener
from duetime.store.sqlite import access, control, figures, gates, liveness, output, pull_workers, read, schedules, schema, upkeep, work
from duetime.store.sqlite import requests as named_requests
from duetime.store.sqlite.connection import DatabaseThread, connect, translated
from duetime.store.sqlite.records import records_by_id
from duetime.store.sqlite.runner import SyncRunner, check_connection, drive, plain_text, runner_for
from duetime.store.sqlite.statements import NEVER, SQL
from duetime.store.sqlite.submit import Submission
from duetime.store.sqlite.wakeups import Wakeups
from duetime.store.traits import Traits
from duetime.store.values import (
    Added,
    CancelVerdict,
    ChangeVerdict,
    Claim,
    Counts,
    Declaration,
    Edit,
    HandlerLoad,
    Hint,
    HintKind,
    Inconsistency,
    NewWorker,
    Progress,
    Pruned,
    Renewal,
    RunningAttempt,
    WorkerRecord,
)

T = TypeVar("T")

OLDEST_SQLITE = (3, 40, 0)
SYNCHRONOUS = {
    "extra": "A returned write survives a crash of the process, of the system and a loss of power (synchronous=extra).",
    "full": "A returned write survives a crash of the process, of the system and a loss of power (synchronous=full).",
    "normal": "A returned write survives a crash of the process; a loss of power may take back the last ones (synchronous=normal).",
}


class SqliteStore:
    """One file, or memory, behind the verbs of `duetime.store.Store`."""

    def __init__(self, path: str, *, synchronous: str = "full", patience: float = 30.0, clock: Clock | None = None) -> None:
        if sqlite3.sqlite_version_info < OLDEST_SQLITE:
            raise StoreUnavailable(f"SQLite 3.40 or newer is needed, this Python has {sqlite3.sqlite_version}")
        self._path = path if path == ":memory:" else os.path.abspath(path)
        self._synchronous = synchronous
        self._patience = patience
        self._clock: Clock = clock or SystemClock()
        self.now: Callable[[], Instant] = self._clock.now  # asked twice per attempt: no call in between
        self.reached: Callable[[], Instant] = self._clock.now
        durability = SYNCHRONOUS[synchronous] if path != ":memory:" else "Nothing survives the end of the process (:memory:)."
        self.traits = Traits(atomic="call", durability=durability, liveness="lock", output_batch=output.AT_ONCE)
        self._claim_order = ClaimOrder()
        self._locks: dict[str, liveness.WorkerLock] = {}
        self._temporary: str | None = None
        self._door = asyncio.Lock()
        self._writer: DatabaseThread | None = None
        self._reader: DatabaseThread | None = None
        self._wakeups: Wakeups | None = None

    @classmethod
    def from_url(cls, url: str, *, clock: Clock | None = None) -> SqliteStore:
        """Read `sqlite:///relative.db`, `sqlite:////absolute.db` or `sqlite:///:memory:`, with options in the query."""
        parts = urlsplit(url)
        path = unquote(parts.path).removeprefix("/")
        if parts.netloc or not path:
            raise InvalidValue(f"{url!r} names no file; write sqlite:///relative.db, sqlite:////absolute/path.db or sqlite:///:memory:")
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        synchronous = options.pop("synchronous", "full").lower()
        if synchronous not in SYNCHRONOUS:
            raise InvalidValue(f"synchronous must be one of {', '.join(SYNCHRONOUS)}, got {synchronous!r}")
        try:
            patience = float(options.pop("timeout", "30"))
        except ValueError:
            raise InvalidValue("timeout in a sqlite URL is a number of seconds to wait for the write lock") from None
        if options:
            raise InvalidValue(f"a sqlite URL takes the options synchronous and timeout, got {', '.join(sorted(options))}")
        return cls(path, synchronous=synchronous, patience=patience, clock=clock)

    @property
    def url(self) -> str:
        return f"sqlite:///{self._path}"

    @property
    def output_folder(self) -> str | None:
        return str(self._folder / "output")

    @property
    def _folder(self) -> Path:
        """What lies beside the file: locks of workers, sockets for wake-ups, output of attempts."""
        if self._path != ":memory:":
            return Path(f"{self._path}-duetime")
        if self._temporary is None:
            self._temporary = tempfile.mkdtemp(prefix="duetime-")
        return Path(self._temporary)

    async def open(self, *, migrate: bool = True) -> None:
        async with self._door:
            if self._writer is None:
                await self._open(migrate)

    async def _open(self, migrate: bool) -> None:
        memory = self._path == ":memory:"
        threads: list[DatabaseThread] = []
        for name, writes in (("writer", True),) if memory else (("writer", True), ("reader", False)):
            opening = partial(connect, self._path, synchronous=self._synchronous, writes=writes)
            threads.append(DatabaseThread(opening, name=f"duetime-{name}", writes=writes, patience=self._patience, path=self._path))
        writer, reader = threads[0], threads[-1]
        try:
            # looked at by reading: whoever is up to date need not wait for a writer, which may be this very program's transaction
            if not await reader.run(schema.is_current):
                await self._upgrade(writer, migrate)
        except BaseException:
            for thread in threads:
                await asyncio.to_thread(thread.stop)
            raise
        self._writer, self._reader = writer, reader
        watch = partial(connect, self._path, synchronous=self._synchronous, writes=False)
        self._wakeups = Wakeups(None if memory else self._folder / "sockets", None if memory else watch)

    async def _upgrade(self, writer: DatabaseThread, migrate: bool) -> None:
        try:
            await writer.run(partial(schema.migrate if migrate else schema.refuse_old, now=self._clock.now()))
        except StoreUnavailable as error:
            if isinstance(error.__cause__, sqlite3.OperationalError):
                raise StoreUnavailable(
                    f"{error}. Its tables must be made first: run `duetime migrate`, or open the App, before a transaction begins"
                ) from error
            raise

    async def close(self) -> None:
        self._door = asyncio.Lock()  # a later event loop needs its own
        writer, reader, wakeups = self._writer, self._reader, self._wakeups
        self._writer = self._reader = self._wakeups = None
        if wakeups is not None:
            wakeups.close()
        if writer is not None:
            await asyncio.to_thread(writer.stop)
        if reader is not None and reader is not writer:
            await asyncio.to_thread(reader.stop)
        for lock in self._locks.values():
            lock.release()
        self._locks.clear()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None

    async def ping(self) -> None:
        # the writer is asked, because tasks have to be written; it costs no commit, because it changes nothing
        await self._write(lambda connection: connection.execute(SQL.ping).close())

    def script(self) -> str:
        return schema.script()

    # ---- submitting ----

    async def add(self, tasks: Sequence[NewTask[object]]) -> list[Added]:
        if not tasks:
            return []

        def job(connection: sqlite3.Connection) -> tuple[list[Added], Instant]:
            submission = Submission(SyncRunner(connection), self._clock.now())
            return drive(submission.add(tasks)), submission.earliest

        added, earliest = await self._write(job)
        self._hint(HintKind.DUE, None if earliest == NEVER else earliest)
        return added

    async def prepare(self, tasks: Sequence[NewTask[object]]) -> None:
        """Do nothing: the caller's transaction may hold the only write lock."""

    async def add_on(self, connection: object, tasks: Sequence[NewTask[object]]) -> list[Added]:
        runner = runner_for(connection)
        try:
            with plain_text(connection):
                await check_connection(connection, runner, self._path)
                return await Submission(runner, self._clock.now()).add(tasks) if tasks else []
        except sqlite3.OperationalError as error:
            raise translated_on(error, self._path) from error
        except sqlite3.Error as error:
            raise translated(error, self._path) from error

    async def declare(self, declarations: Sequence[Declaration]) -> None:
        if declarations:
            await self._write(lambda connection: control.declare(connection, declarations, self._clock.now()))

    async def declarations(self) -> list[Declaration]:
        return await self._read(control.declarations)

    # ---- working ----

    async def register(self, worker: NewWorker) -> Lease:
        lock = self._locks.get(worker.id) or liveness.WorkerLock(self._folder / "workers", worker.id, self._clock)
        row = (
            *(worker.id, worker.host, worker.pid, msgspec.json.encode(dict(worker.slots)).decode()),
            *(self._clock.now(), liveness.process_mark(worker.pid)),
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

    async def unregister(self, worker: str) -> None:
        released = await self._write(lambda connection: work.unregister(connection, worker, self._clock.now()))
        lock = self._locks.pop(worker, None)
        if lock is not None:
            lock.release()
        if released:
            self._hint(HintKind.DUE)
        self._hint(HintKind.GATES)  # a barrier may have waited for this worker only

    async def claim(self, worker: str, claim: int, wants: Mapping[str, int], total: int, *, ahead: int = 0) -> Claim:
        # urgent: what it brings can run while the outcomes that wait beside it are written
        return await self._write(
            lambda connection: work.claim(connection, worker, claim, wants, total, ahead, self._clock.now(), self._claim_order), urgent=True
        )

    async def settle(self, worker: str, settlements: Sequence[Settlement]) -> list[SettleVerdict]:
        if not settlements:
            return []
        settled = await self._write(lambda connection: work.settle(connection, worker, settlements, self._clock.now()))
        if settled.earliest is not None:
            self._hint(HintKind.DUE, settled.earliest)
        if settled.finished:
            self._hint(HintKind.DONE)
        return settled.verdicts

    def grouping(self, worker: str) -> Grouping:
        return AsTheyCome()

    async def progress(self, worker: str, marks: Sequence[Progress]) -> None:
        if marks:
            rows = [(mark.fraction, mark.text, mark.id, mark.attempt, worker) for mark in marks]
            await self._write(lambda connection: connection.executemany(SQL.mark_progress, rows).close())

    async def confirm_gates(self, worker: str, version: int) -> None:
        lock = self._locks.get(worker)
        if lock is not None:
            lock.confirm(version)
            self._hint(HintKind.GATES)

    async def attempts_of(self, worker: str) -> list[RunningAttempt]:
        return await self._read(lambda connection: read.attempts_of(connection, worker))

    async def workers(self) -> list[WorkerRecord]:
        return await self._read(lambda connection: read.workers(connection, self._folder / "workers"))

    async def reap(self, worker: str, beat: int) -> int | None:
        path = self._folder / "workers" / worker

        def job(connection: sqlite3.Connection) -> int | None:
            row = connection.execute(SQL.worker_known, (worker,)).fetchone()
            stored_beat = pull_workers.beat(connection, worker)
            if stored_beat is not None:
                return work.reap(connection, worker, self._clock.now()) if stored_beat == beat else None
            # looked at under the write lock: a worker that registers now is not yet in the table, and one that is dead stays dead
            if row is None or liveness.read_mark(path)[0] != beat or liveness.is_alive(path, row[0]) is not False:
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

    # ---- pull workers ----

    async def register_pull_worker(self, worker: PullWorker) -> None:
        await self._write(lambda connection: pull_workers.register(connection, worker, self._clock.now()))

    async def pull_worker(self, id: str) -> PullWorker | None:
        return await self._read(lambda connection: pull_workers.by_id(connection, id))

    async def renew_pull_worker(self, id: str) -> bool:
        return await self._write(lambda connection: pull_workers.renew(connection, id, self._clock.now()))

    async def claim_for(self, worker: str, claim: int, wants: Mapping[str, int], total: int) -> Claim:
        return await self._write(
            lambda connection: pull_workers.claim(connection, worker, claim, wants, total, self._clock.now(), self._claim_order),
            urgent=True,
        )

    async def running_tasks(self, worker: str, ids: Sequence[str] | None = None) -> list[RunningTask]:
        return (
            [] if ids is not None and not ids else await self._read(lambda connection: pull_workers.running_tasks(connection, worker, ids))
        )

    # ---- control ----

    async def cancel(self, ids: Sequence[str]) -> list[CancelVerdict]:
        if not ids:
            return []
        verdicts = await self._write(lambda connection: control.cancel(connection, ids, self._clock.now()))
        if CancelVerdict.CANCELLING in verdicts:
            self._hint(HintKind.CANCEL)
        if CancelVerdict.CANCELLED in verdicts:
            self._hint(HintKind.DONE)
            self._hint(HintKind.DUE)  # a child may have waited only for its end
        return verdicts

    async def retry(self, ids: Sequence[str]) -> list[ChangeVerdict]:
        if not ids:
            return []
        verdicts = await self._write(lambda connection: control.retry(connection, ids, self._clock.now()))
        self._hint(HintKind.DUE)
        return verdicts

    async def edit(self, edits: Sequence[Edit]) -> list[ChangeVerdict]:
        if not edits:
            return []
        verdicts = await self._write(lambda connection: control.edit(connection, edits, self._clock.now()))
        self._hint(HintKind.DUE)
        return verdicts

    async def put_gate(self, gate: Gate) -> int:
        version = await self._write(lambda connection: gates.put_gate(connection, gate))
        self._hint(HintKind.GATES)
        return version

    async def remove_gate(self, handler: str, collection: str | None) -> int | None:
        version = await self._write(lambda connection: gates.remove_gate(connection, handler, collection, self._clock.now()))
        self._hint(HintKind.GATES)
        self._hint(HintKind.DUE)
        return version

    async def gates(self) -> Gates:
        return await self._read(lambda connection: gates.read_gates(connection, self._clock.now()))

    # ---- schedules ----

    async def write_schedules(self, writes: Sequence[ScheduleWrite], *, together: bool = False) -> list[bool]:
        if not writes:
            return []
        written = await self._write(lambda connection: schedules.write(connection, writes, self._clock.now(), together=together))
        if any(written.accepted):
            self._hint(HintKind.SCHEDULES, written.next_at)
        if written.due_at is not None:
            self._hint(HintKind.DUE, written.due_at)
        return written.accepted

    async def due_schedules(
        self, limit: int, closed: Sequence[tuple[str, str | None]] = (), *, after: ScheduleCursor | None = None
    ) -> DueSchedules:
        return await self._read(lambda connection: schedules.due(connection, limit, closed, after, self._clock.now()))

    async def wake_schedules(self, names: Sequence[str]) -> None:
        # looked up by reading: most schedules wait for no run, and a write would wait for its turn and a flush to change nothing
        if names and await self._read(lambda connection: schedules.waiting(connection, names, self._clock.now())):
            self._hint(HintKind.SCHEDULES, await self._write(lambda connection: schedules.wake(connection, names, self._clock.now())))

    async def schedules(self, names: Sequence[str]) -> list[ScheduleRecord | None]:
        return await self._read(lambda connection: schedules.by_name(connection, names)) if names else []

    async def list_schedules(self, filter: ScheduleFilter) -> list[ScheduleRecord]:
        return await self._read(lambda connection: schedules.page(connection, filter))

    async def skips(self, schedule: str, limit: int, before: Instant | None = None) -> list[Skip]:
        return await self._read(lambda connection: schedules.skips(connection, schedule, limit, before))

    async def prune_skips(self, before: Instant, limit: int) -> int:
        return await self._write(lambda connection: schedules.prune_skips(connection, before, limit))

    async def put_calendar(self, name: str, calendar: DayCalendar | None) -> bool:
        known = await self._write(lambda connection: schedules.put_calendar(connection, name, calendar))
        self._hint(HintKind.SCHEDULES)
        return known

    async def calendars(self) -> dict[str, DayCalendar]:
        return await self._read(schedules.calendars)

    async def take_duty(self, duty: str, holder: str, seconds: float) -> DutyLease:
        # looked up by reading: of many that ask only one may write
        lease = await self._read(lambda connection: schedules.lease_of_another(connection, duty, holder, seconds, self._clock.now()))
        if lease is None:
            lease = await self._write(lambda connection: schedules.take_duty(connection, duty, holder, seconds, self._clock.now()))
        return lease

    async def leave_duty(self, duty: str, holder: str) -> None:
        await self._write(lambda connection: schedules.leave_duty(connection, duty, holder, self._clock.now()))

    async def duties(self) -> dict[str, DutyLease]:
        return await self._read(lambda connection: schedules.duties(connection, self._clock.now()))

    # ---- tokens and the audit ----

    async def put_token(self, token: TokenRecord) -> TokenVerdict:
        return await self._write(lambda connection: access.put_token(connection, token, self._clock.now()))

    async def tokens(self) -> list[TokenRecord]:
        return await self._read(access.tokens)

    async def find_tokens(self, ids: Sequence[str]) -> list[TokenRecord | None]:
        return await self._read(lambda connection: access.find_tokens(connection, ids)) if ids else []

    async def remove_token(self, id: str) -> bool:
        return await self._write(lambda connection: access.remove_token(connection, id))

    async def note_use(self, uses: Mapping[str, Instant]) -> None:
        if uses:
            await self._write(lambda connection: access.note_use(connection, uses))

    async def add_audit(self, entries: Sequence[AuditEntry]) -> None:
        if entries:
            await self._write(lambda connection: access.add_audit(connection, entries))

    async def audit(self, filter: AuditFilter) -> AuditPage:
        return await self._read(lambda connection: access.audit(connection, filter))

    async def prune_audit(self, before: Instant, limit: int) -> int:
        return await self._write(lambda connection: access.prune_audit(connection, before, limit))

    async def note_requests(self, requests: Sequence[NamedRequest]) -> list[NamedRequest]:
        return await self._write(lambda connection: named_requests.note(connection, requests, self._clock.now())) if requests else []

    async def prune_requests(self, before: Instant, limit: int) -> int:
        return await self._write(lambda connection: named_requests.prune(connection, before, limit))

    # ---- what workers count ----

    async def add_figures(self, source: str, number: int, increments: Mapping[FigureKey, int]) -> None:
        if increments:
            await self._write(lambda connection: figures.add(connection, source, number, increments, self._clock.now()))

    async def figures(self) -> dict[FigureKey, int]:
        return await self._read(figures.sums)

    async def fold_figures(self, before: Instant) -> int:
        return await self._write(lambda connection: figures.fold(connection, before))

    # ---- output ----

    async def keep_output(self, chunks: Sequence[OutputChunk]) -> list[int | None]:
        return await self._write(lambda connection: output.keep(connection, chunks, self._clock.now())) if chunks else []

    async def kept_output(self, task: str) -> list[KeptOutput]:
        return await self._read(lambda connection: output.kept(connection, task))

    async def output(self, task: str, attempt: int | None, after: OutputPosition, limit: int) -> list[OutputChunk]:
        return await self._read(lambda connection: output.chunks(connection, task, attempt, after, limit))

    async def search_output(self, search: OutputSearch) -> OutputHits:
        return await self._read(lambda connection: output.search(connection, search))

    # ---- upkeep ----

    async def drop(self, limit: int) -> int:
        return await self._upkeep(lambda connection: control.drop(connection, limit, self._clock.now()))

    async def expire(self, limit: int) -> int:
        return await self._upkeep(lambda connection: work.expire(connection, limit, self._clock.now()))

    async def tidy(self) -> None:
        """Do nothing: the file keeps itself in order."""

    async def prune(self, state: State, before: Instant, limit: int) -> list[Pruned]:
        if state not in FINAL:
            raise InvalidValue(f"only final states can be pruned, got {state}")
        return await self._write(lambda connection: upkeep.prune(connection, state, before, limit))

    async def inspect(self, *, repair: bool) -> list[Inconsistency]:
        return await self._write(lambda connection: upkeep.inspect(connection, self._clock.now(), repair=repair))

    # ---- reading ----

    async def get(self, ids: Sequence[str]) -> list[TaskRecord | None]:
        if not ids:
            return []
        found = await self._read(lambda connection: records_by_id(connection, ids))
        return [found.get(task_id) for task_id in ids]

    async def find(self, handler: str, key: str) -> TaskRecord | None:
        return await self._read(lambda connection: read.find(connection, handler, key))

    async def page(self, query: Query) -> Page:
        return await self._read(lambda connection: read.page(connection, query))

    async def attempts(self, task: str) -> list[AttemptRecord]:
        return await self._read(lambda connection: read.attempts(connection, task))

    async def counts(self) -> Counts:
        return await self._read(lambda connection: read.counts(connection, self._clock.now()))

    async def handler_load(self, handler: str) -> HandlerLoad:
        return await self._read(lambda connection: read.handler_load(connection, handler, self._clock.now()))

    # ---- wake-ups ----

    def listen(self, on_hint: Callable[[Hint], None]) -> Listener:
        return self._opened(self._wakeups).listen(on_hint)

    def _hint(self, kind: HintKind, at: Instant | None = None) -> None:
        if self._wakeups is not None:
            self._wakeups.send(kind, at)

    # ---- the two threads ----

    async def _write(self, job: Callable[[sqlite3.Connection], T], *, urgent: bool = False) -> T:
        self._opened(self._wakeups).own_writes += 1
        return await self._opened(self._writer).run(job, urgent=urgent)

    async def _read(self, job: Callable[[sqlite3.Connection], T]) -> T:
        return await self._opened(self._reader).run(job)

    def read_now(self, job: Callable[[sqlite3.Connection], T]) -> T:
        """Read and wait for the result without an event loop, for the assertions of `duetime.testing`."""
        return self._opened(self._reader).call(job)

    async def _upkeep(self, job: Callable[[sqlite3.Connection], int]) -> int:
        changed = await self._write(job)
        if changed:
            self._hint(HintKind.DONE)
            self._hint(HintKind.DUE)  # a child may have waited only for its end
        return changed

    def _opened(self, part: T | None) -> T:
        if part is None:
            raise StoreUnavailable(f"the store {self.url} is not open; await open() first")
        return part


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
        known = connection.execute(SQL.worker_known, (self._worker,)).fetchone() is not None
        (version,) = connection.execute(SQL.gates_version).fetchone()
        return Renewal(known, version, read.attempts_of(connection, self._worker))

    def inheritable(self) -> Sequence[int]:
        return (self._lock.descriptor,)

    def close(self) -> None:
        if isinstance(self._run, OwnReader):
            self._run.close()


def translated_on(error: sqlite3.OperationalError, path: str) -> Exception:
    """Explain why a write inside a caller's transaction failed; mostly it began without taking the write lock."""
    if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreUnavailable(
            f"the transaction on connection= could not take the write lock of {path}: {error}; "
            "begin it with BEGIN IMMEDIATE, which waits for the lock before anything is read, then repeat it"
        )
    return translated(error, path)
