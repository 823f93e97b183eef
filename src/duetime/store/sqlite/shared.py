"""A database in memory that several stores of one thread share, for simulations of several processes.

Each store belongs to one simulated process. All statements are the real ones; each verb's transaction runs whole, in the caller's thread.
What lies between a process and a server (delays, lost answers, a server that is away) is the store's `Link`. Workers live by leases, as
on PostgreSQL: there is no kernel here that could free the lock of a simulated process.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, Protocol, TypeVar

import msgspec

from duetime.clock import Clock, Instant
from duetime.store.shard import Lease
from duetime.store.sqlite import pull_workers, read, schema, work
from duetime.store.sqlite.connection import DatabaseThread, translated
from duetime.store.sqlite.statements import SQL
from duetime.store.sqlite.store import SqliteStore
from duetime.store.sqlite.wakeups import Wakeups
from duetime.store.traits import Traits
from duetime.store.values import Counts, Hint, HintKind, NewWorker, Renewal, WorkerRecord

T = TypeVar("T")

OnHint = Callable[[Hint], None]


class Link(Protocol):
    """What lies between one process and the database."""

    async def call(self, verb: str, execute: Callable[[], T]) -> T:
        """Execute something on the server and return what it returns, or raise StoreUnavailable."""
        ...

    def call_now(self, verb: str, execute: Callable[[], T]) -> T:
        """Do the same for a plain thread, which waits for it."""
        ...

    def deliver(self, on_hint: OnHint, hint: Hint) -> None:
        """Deliver a hint to this process, some time later, once, twice or never."""
        ...


class Mark(msgspec.Struct):
    """What a worker has proved: that it lived, when, for how long that counts, and which gates it keeps to."""

    beat: int
    beat_at: Instant
    lease: float
    seen_gates: int = 0


class SharedMemory:
    """The database."""

    def __init__(self) -> None:
        self.connection = _SPARE.pop() if _SPARE else _new_database()
        self.marks: dict[str, Mark] = {}
        self.stores: list[SharedStore] = []

    def execute(self, job: Callable[[sqlite3.Connection], T]) -> T:
        """Run a job in a transaction of its own."""
        connection = self.connection
        connection.execute("begin immediate")
        try:
            value = job(connection)
            connection.execute("commit")
        except Exception as error:
            if connection.in_transaction:
                connection.execute("rollback")
            refused = translated(error, ":memory:")
            raise refused from (None if refused is error else error)
        return value

    def read(self, job: Callable[[sqlite3.Connection], T]) -> T:
        """Run a job that only reads. It needs no transaction: nobody else runs meanwhile."""
        try:
            return job(self.connection)
        except Exception as error:
            refused = translated(error, ":memory:")
            raise refused from (None if refused is error else error)

    def counts(self, now: Instant) -> Counts:
        """Count tasks, whatever happens to the processes."""
        return read.counts(self.connection, now)

    def next_due(self, now: Instant) -> Instant | None:
        """Return when the next task is due that is not due now, or the next wait of a task ends by itself."""
        found = self.connection.execute(SQL.lanes_later, (now,)).fetchone()
        waits = self.connection.execute(SQL.next_wait, (now,)).fetchone()
        return min((int(at) for at in (None if found is None else found[1], waits[0]) if at is not None), default=None)

    def close(self) -> None:
        """Empty the database for the next simulation, which need not prepare the statements again: a sixth of a short one's time."""
        if self.connection.in_transaction:
            self.connection.execute("rollback")
        tables, rows = _first_rows()
        with self.connection:
            self.connection.execute("begin")
            for table in tables:
                self.connection.execute(f"delete from {table}")
            for statement, row in rows:
                self.connection.execute(statement, row)
        _SPARE.append(self.connection)


_SPARE: list[sqlite3.Connection] = []  # empty databases


def _new_database() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None, cached_statements=1_024, check_same_thread=False)
    schema.migrate(connection, now=0)
    return connection


@cache
def _first_rows() -> tuple[list[str], list[tuple[str, tuple[Any, ...]]]]:
    """Return the tables of a database, and the rows that a new one has as statements with their values."""
    with contextlib.closing(_new_database()) as connection:
        tables = [name for (name,) in connection.execute("select name from sqlite_schema where type = 'table' order by name")]
        rows = [
            (f"insert into {table} values ({', '.join('?' * len(row))})", row)
            for table in tables
            for row in connection.execute(f"select * from {table}")
        ]
        return tables, rows


class _InlineConnection(DatabaseThread):
    """Runs jobs where they are called, through the link."""

    def __init__(self, execute: Callable[..., Any], link: Link) -> None:
        self._execute = execute
        self._link = link

    async def run(self, work: Callable[[sqlite3.Connection], T], *, urgent: bool = False) -> T:
        return await self._link.call(_verb_of(work), partial(self._execute, work))

    def call(self, work: Callable[[sqlite3.Connection], T]) -> T:
        value: T = self._link.call_now(_verb_of(work), partial(self._execute, work))
        return value

    def stop(self) -> None:
        """There is no thread."""


def _verb_of(work: Any) -> str:
    """Return the name of the verb whose job this is: of `Working.claim.<locals>.<lambda>` claim."""
    work = getattr(work, "func", work)
    parts: list[str] = work.__qualname__.split(".")
    return parts[1] if len(parts) > 2 else parts[-1]


class _SharedWakeups(Wakeups):
    """Sends hints to the other processes through their links."""

    def __init__(self, store: SharedStore) -> None:
        super().__init__(None, None)
        self._store = store

    def send(self, kind: HintKind, at: Instant | None = None) -> None:
        super().send(kind, at)
        for other in self._store.memory.stores:
            if other is not self._store:
                other.pass_on(Hint(kind, at))

    def tell(self, hint: Hint) -> None:
        """Tell the listeners of this process only."""
        super().send(hint.kind, hint.at)


class SharedStore(SqliteStore):
    """One process's store. `claim_ahead` is the trait of that name."""

    def __init__(self, memory: SharedMemory, link: Link, clock: Clock, *, claim_ahead: int = 0) -> None:
        super().__init__(":memory:", synchronous="full", clock=clock)
        self.memory = memory
        self._link = link
        self.traits = Traits(
            atomic="call", durability="Nothing survives the simulation.", liveness="lease", claim_ahead=claim_ahead, output_batch=1 << 20
        )
        self._inline: _SharedWakeups | None = None

    @property
    def output_folder(self) -> str | None:
        return None

    async def _open(self, migrate: bool) -> None:
        self._writer = _InlineConnection(self.memory.execute, self._link)
        self._reader = _InlineConnection(self.memory.read, self._link)
        self._wakeups = self._inline = _SharedWakeups(self)
        self.memory.stores.append(self)

    async def close(self) -> None:
        self.leave()
        await super().close()

    def leave(self) -> None:
        """Hear no more hints: the process has ended."""
        if self in self.memory.stores:
            self.memory.stores.remove(self)

    def pass_on(self, hint: Hint) -> None:
        """Pass on a hint of another process."""
        self._link.deliver(self._tell, hint)

    def _tell(self, hint: Hint) -> None:
        if self._inline is not None and self._wakeups is not None:
            self._inline.tell(hint)

    @property
    def listeners(self) -> int:
        """How many listeners this process has."""
        return 0 if self._inline is None else len(self._inline._listeners)

    # ---- workers, which live by leases ----

    async def register(self, worker: NewWorker) -> Lease:
        def job(connection: sqlite3.Connection) -> None:
            slots, declared = (msgspec.json.encode(dict(each)).decode() for each in (worker.slots, worker.declared))
            row = (worker.id, worker.host, worker.pid, slots, worker.concurrency, self._clock.now(), "simulated", declared)
            facts = (worker.draining, worker.version, worker.python)
            connection.execute(SQL.insert_worker, row + facts).fetchall()
            before = self.memory.marks.get(worker.id)
            # a beat that nobody has seen before: a worker that comes back is not taken for the one that was reaped
            self.memory.marks[worker.id] = Mark(1 if before is None else before.beat + 1, self._clock.now(), worker.lease)

        await self._write(job)
        return SharedLease(self, worker.id)

    async def unregister(self, worker: str) -> None:
        def job(connection: sqlite3.Connection) -> int:
            return work.unregister(connection, worker, self._clock.now())

        if await self._write(job):
            self._hint(HintKind.DUE)
        self._hint(HintKind.GATES)

    async def confirm_gates(self, worker: str, version: int) -> None:
        def job(connection: sqlite3.Connection) -> None:
            mark = self.memory.marks.get(worker)
            if mark is not None:
                mark.seen_gates = max(mark.seen_gates, version)

        await self._write(job)
        self._hint(HintKind.GATES)

    async def workers(self) -> list[WorkerRecord]:
        def job(connection: sqlite3.Connection) -> list[WorkerRecord]:
            return [self._with_lease(record) for record in read.workers(connection, self._mark_of)]

        return await self._read(job)

    def _mark_of(self, worker: str, process: str) -> read.WorkerMark:
        mark = self.memory.marks[worker]
        return read.WorkerMark(mark.beat, mark.beat_at, mark.seen_gates, None)

    def _with_lease(self, record: WorkerRecord) -> WorkerRecord:
        return record if record.pull else msgspec.structs.replace(record, lease=self.memory.marks[record.id].lease)

    async def reap(self, worker: str, beat: int) -> int | None:
        def job(connection: sqlite3.Connection) -> int | None:
            known = connection.execute(SQL.worker_known, (worker,)).fetchone() is not None
            stored = pull_workers.beat(connection, worker)
            mark = self.memory.marks.get(worker)
            present = stored if stored is not None else None if mark is None else mark.beat
            return work.reap(connection, worker, self._clock.now()) if known and present == beat else None

        taken = await self._write(job)
        if taken is not None:
            self._hint(HintKind.GATES)
        if taken:
            self._hint(HintKind.DUE)
            self._hint(HintKind.DONE)
        return taken


class SharedLease:
    """A lease that is renewed in the database."""

    def __init__(self, store: SharedStore, worker: str) -> None:
        self._store = store
        self._worker = worker

    def renew(self) -> Renewal:
        return self._store._link.call_now("renew", self.execute)

    def execute(self) -> Renewal:
        """Renew on the server."""
        return self._store.memory.execute(self._renewal)

    def _renewal(self, connection: sqlite3.Connection) -> Renewal:
        known = connection.execute(SQL.worker_known, (self._worker,)).fetchone()
        mark = self._store.memory.marks.get(self._worker)
        if known is not None and mark is not None:
            mark.beat += 1
            mark.beat_at = self._store.now()
        (version,) = connection.execute(SQL.gates_version).fetchone()
        attempts, draining = read.attempts_of(connection, self._worker), known is not None and bool(known[1])
        return Renewal(known is not None, version, attempts, draining=draining)

    def inheritable(self) -> Sequence[int]:
        return ()

    def close(self) -> None:
        """Nothing is open."""
