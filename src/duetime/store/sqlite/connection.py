"""Connections to the file, each owned by one thread; the only code that translates SQLite's errors."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Generic, TypeVar

from duetime.errors import StoreUnavailable
from duetime.store.sqlite.forking import lock_against_forks

T = TypeVar("T")

# The most jobs in one commit: enough for many to share an fsync, few enough for the first to be answered soon.
GROUP = 64


class _Job(Generic[T]):
    __slots__ = ("error", "future", "loop", "urgent", "value", "work")

    def __init__(self, work: Callable[[sqlite3.Connection], T], loop: asyncio.AbstractEventLoop | None, *, urgent: bool = False) -> None:
        self.work = work
        self.urgent = urgent
        self.loop = loop
        self.future: Any = concurrent.futures.Future() if loop is None else loop.create_future()
        self.value: T | None = None
        self.error: BaseException | None = None


class _TransactionLost(Exception):
    """SQLite rolled the whole transaction back by itself (disk full, I/O error)."""


class DatabaseThread:
    """One connection and the thread that owns it. Jobs run in order; those that wait together share one commit."""

    def __init__(self, connect: Callable[[], sqlite3.Connection], *, name: str, writes: bool, patience: float, path: str) -> None:
        self._connect = connect
        self._writes = writes
        self._patience = patience
        self._path = path
        self._jobs: queue.SimpleQueue[_Job[Any] | None] = queue.SimpleQueue()
        self._at_work = lock_against_forks()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    async def run(self, work: Callable[[sqlite3.Connection], T], *, urgent: bool = False) -> T:
        """Run a job in a transaction.

        Once begun, it finishes even if the caller is cancelled. An urgent job goes before others that wait and has its own commit.
        """
        job = _Job(work, asyncio.get_running_loop(), urgent=urgent)
        self._jobs.put(job)
        value: T = await job.future
        return value

    def call(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run a job for a plain thread, which waits for it."""
        job = _Job(work, None)
        self._jobs.put(job)
        value: T = job.future.result()
        return value

    def stop(self) -> None:
        """Let the thread end after its queued jobs, and wait for that."""
        self._jobs.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        with self._at_work:
            try:
                connection = self._connect()
            except Exception as error:
                self._refuse_all(translated(error, self._path))
                return
            with contextlib.closing(connection):
                while self._serve(connection):
                    pass

    def _serve(self, connection: sqlite3.Connection) -> bool:
        """Wait for jobs and run them; return False when there will be no more."""
        batch = self._take()
        for group in _groups(batch or []):
            self._perform(connection, group)
            _resolve_all(group)
        return batch is not None

    def _wait_for_job(self) -> _Job[Any] | None:
        """Return the next job. Only here, and between two tries for the write lock, this process may fork."""
        self._at_work.release()
        try:
            return self._jobs.get()
        finally:
            self._at_work.acquire()

    def _take(self) -> list[_Job[Any]] | None:
        first = self._wait_for_job()
        if first is None:
            return None
        batch = [first]
        while len(batch) < GROUP:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                break
            if job is None:
                self._jobs.put(None)
                break
            batch.append(job)
        return batch

    def _refuse_all(self, error: Exception) -> None:
        while (job := self._wait_for_job()) is not None:
            job.error = error
            _resolve_all([job])

    def _perform(self, connection: sqlite3.Connection, batch: list[_Job[Any]]) -> None:
        try:
            self._begin(connection)
        except Exception as error:  # no job of the batch could have begun; trying again for each would only add up the waiting times
            for job in batch:
                job.error = translated(error, self._path)
            return
        failure = self._transact(connection, batch)
        if failure is None:
            return
        if len(batch) == 1:
            batch[0].error = batch[0].error or translated(failure, self._path)
            return
        # one of them cannot be committed: each gets a transaction of its own, so that only that one fails
        for job in batch:
            job.error = None
            self._perform(connection, [job])

    def _transact(self, connection: sqlite3.Connection, batch: list[_Job[Any]]) -> Exception | None:
        """Run jobs and commit; return why that was not possible. Nothing of them is stored then."""
        try:
            for job in batch:
                self._perform_one(connection, job, alone=len(batch) == 1)
            connection.execute("commit")
        except Exception as error:
            if connection.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("rollback")
            return error
        return None

    def _begin(self, connection: sqlite3.Connection) -> None:
        """Begin a transaction; try for the write lock at short intervals.

        SQLite's own busy handler sleeps up to 100 ms between tries, which starves a process beside busy writers.
        """
        if not self._writes:
            connection.execute("begin")
            return
        deadline, pause = time.monotonic() + self._patience, 0.0002
        while True:
            try:
                connection.execute("begin immediate")
                return
            except sqlite3.OperationalError as error:
                if not _is_busy(error) or time.monotonic() >= deadline:
                    raise
            self._at_work.release()
            try:
                time.sleep(pause)
            finally:
                self._at_work.acquire()
            pause = min(pause * 1.5, 0.005)

    def _perform_one(self, connection: sqlite3.Connection, job: _Job[Any], *, alone: bool) -> None:
        if alone:
            job.value = job.work(connection)
            return
        connection.execute("savepoint job")
        try:
            job.value = job.work(connection)
        except Exception as error:
            if not connection.in_transaction:
                raise _TransactionLost from error
            connection.execute("rollback to job")
            job.error = translated(error, self._path)
        connection.execute("release job")


def _groups(batch: list[_Job[Any]]) -> list[list[_Job[Any]]]:
    """Put jobs into transactions: each urgent one into its own, the others into one."""
    urgent = [[job] for job in batch if job.urgent]
    if not urgent:
        return [batch]
    others = [job for job in batch if not job.urgent]
    return [*urgent, others] if others else urgent


def _resolve_all(batch: Iterable[_Job[Any]]) -> None:
    """Answer the callers, with one call into each event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_Job[Any]]] = {}
    for job in batch:
        if job.loop is None:
            _answer([job])
        else:
            by_loop.setdefault(job.loop, []).append(job)
    for loop, jobs in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(_answer, jobs)


def _answer(jobs: list[_Job[Any]]) -> None:
    for job in jobs:
        if job.future.done():
            continue
        if job.error is not None:
            job.future.set_exception(job.error)
        else:
            job.future.set_result(job.value)


def _is_busy(error: sqlite3.OperationalError) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def translated(error: Exception, path: str) -> Exception:
    """Turn an error of SQLite or the file system into ours; leave our own as they are."""
    if not isinstance(error, sqlite3.Error | OSError | _TransactionLost):
        return error
    cause = error.__cause__ if isinstance(error, _TransactionLost) and isinstance(error.__cause__, Exception) else error
    advice = _ADVICE.get(getattr(cause, "sqlite_errorcode", 0) & 0xFF, "see the cause")
    wrapped = StoreUnavailable(f"the SQLite store {path} cannot be used: {cause}; {advice}")
    wrapped.__cause__ = cause
    return wrapped


_ADVICE = {
    sqlite3.SQLITE_BUSY: "another program holds its write lock; end that transaction, or raise ?timeout= in the URL",
    sqlite3.SQLITE_LOCKED: "another program holds its write lock; end that transaction, or raise ?timeout= in the URL",
    sqlite3.SQLITE_FULL: "the disk or its quota is full; free some room, nothing that was acknowledged is lost",
    sqlite3.SQLITE_IOERR: "reading or writing the file failed; check the disk, its quota and file size limits",
    sqlite3.SQLITE_READONLY: "this user may not write the file or its folder; change the permissions",
    sqlite3.SQLITE_CANTOPEN: "check that the folder exists and that this user may write there",
    sqlite3.SQLITE_NOTADB: "the file is not a SQLite database; choose another path or move the file away",
    sqlite3.SQLITE_CORRUPT: "the file is damaged; stop all workers, then restore a backup or use sqlite3's .recover",
    sqlite3.SQLITE_PERM: "this user may not open the file; change the permissions",
    sqlite3.SQLITE_ERROR: "the tables do not look as expected; run `duetime migrate`, then `duetime doctor`",
}


def connect(path: str, *, synchronous: str, writes: bool) -> sqlite3.Connection:
    """Open a connection that is ours alone. Writers take the lock by `begin immediate`, readers never write."""
    if path != ":memory:" and not Path(path).parent.is_dir():
        raise StoreUnavailable(f"the folder of {path} does not exist; create it, or choose another path")
    connection = sqlite3.connect(path, timeout=5.0, isolation_level=None, check_same_thread=False, cached_statements=256)
    try:
        _use_wal(connection)
        connection.execute(f"pragma synchronous = {synchronous}")
        connection.execute("pragma journal_size_limit = 67108864")
        connection.execute("pragma cache_size = -65536")
        connection.execute("pragma temp_store = memory")
        connection.execute(f"pragma query_only = {0 if writes else 1}")
        if writes:
            connection.execute("pragma busy_timeout = 0")  # DatabaseThread waits instead
    except BaseException:
        connection.close()
        raise
    return connection


def _use_wal(connection: sqlite3.Connection) -> None:
    """Switch to WAL mode. SQLite's busy handler is not called when several processes do this to a new file at once, so retry here."""
    deadline = time.monotonic() + 5.0
    while True:
        try:
            connection.execute("pragma journal_mode = wal")
            return
        except sqlite3.OperationalError as error:
            if not _is_busy(error) or time.monotonic() >= deadline:
                raise
        time.sleep(0.005)
