"""The embedded store: verbs of the seam on one SQLite file."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sqlite3
from collections.abc import Callable
from functools import partial
from typing import Self, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from duetime.clock import Clock, Instant, SystemClock
from duetime.errors import InvalidValue, StoreUnavailable
from duetime.runtime.permissions import make_file, make_folder
from duetime.store.shard import Listener
from duetime.store.sqlite import schema
from duetime.store.sqlite.access import Access
from duetime.store.sqlite.alerts import Alerts
from duetime.store.sqlite.artifacts import Artifacts
from duetime.store.sqlite.connection import DatabaseThread, connect
from duetime.store.sqlite.counting import Counting
from duetime.store.sqlite.disabling import TargetWatching
from duetime.store.sqlite.events import Events
from duetime.store.sqlite.failures import Failures
from duetime.store.sqlite.fairness import Weighing
from duetime.store.sqlite.figures import Figures
from duetime.store.sqlite.flows import FlowKeeping
from duetime.store.sqlite.gates import GateKeeping
from duetime.store.sqlite.intents import Intents
from duetime.store.sqlite.limits import Limiting
from duetime.store.sqlite.locks import Locks
from duetime.store.sqlite.operations import Operations
from duetime.store.sqlite.output import AT_ONCE, Output
from duetime.store.sqlite.parked import Parking
from duetime.store.sqlite.pull_workers import PullWorkers
from duetime.store.sqlite.quotas import Quotas
from duetime.store.sqlite.read import Reading
from duetime.store.sqlite.requests import Requests
from duetime.store.sqlite.schedules import Scheduling
from duetime.store.sqlite.secrets import Secrets
from duetime.store.sqlite.series import SeriesKeeping
from duetime.store.sqlite.servers import Servers
from duetime.store.sqlite.statements import SQL
from duetime.store.sqlite.steps import Steps
from duetime.store.sqlite.targets import Targets
from duetime.store.sqlite.wakeups import Wakeups
from duetime.store.traits import Traits
from duetime.store.values import (
    Hint,
)

T = TypeVar("T")

OLDEST_SQLITE = (3, 40, 0)
SQLITE = sqlite3.sqlite_version  # that of this Python
SYNCHRONOUS = {
    "extra": "A returned write survives a crash of the process, of the system and a loss of power (synchronous=extra).",
    "full": "A returned write survives a crash of the process, of the system and a loss of power (synchronous=full).",
    "normal": "A returned write survives a crash of the process; a loss of power may take back the last ones (synchronous=normal).",
}


class SqliteStore(
    FlowKeeping,  # with Submitting, Accepting, Registering, Changing and Upkeep
    Intents,
    Operations,
    Limiting,
    Counting,
    Parking,
    PullWorkers,
    Reading,
    GateKeeping,
    Weighing,
    Quotas,
    TargetWatching,
    Scheduling,
    Access,
    Secrets,
    Artifacts,
    Targets,
    Requests,
    Figures,
    SeriesKeeping,
    Failures,
    Events,
    Locks,
    Steps,
    Alerts,
    Servers,
    Output,
):
    """One file, or memory, behind the verbs of `duetime.store.Store`."""

    def __init__(self, path: str, *, synchronous: str = "full", patience: float = 30.0, clock: Clock | None = None) -> None:
        if sqlite3.sqlite_version_info < OLDEST_SQLITE:
            raise StoreUnavailable(f"SQLite 3.40 or newer is needed, this Python has {SQLITE}")
        super().__init__(path, synchronous, clock or SystemClock())
        self._patience = patience
        self.now: Callable[[], Instant] = self._clock.now  # called twice per attempt, so without a call in between
        self.reached: Callable[[], Instant] = self._clock.now
        durability = SYNCHRONOUS[synchronous] if path != ":memory:" else "Nothing survives the end of the process (:memory:)."
        self.traits = Traits(atomic="call", durability=durability, liveness="lock", output_batch=AT_ONCE)
        self._door = asyncio.Lock()

    @classmethod
    def from_url(cls, url: str, *, clock: Clock | None = None) -> Self:
        """Read `sqlite:///relative.db`, `sqlite:////absolute.db` or `sqlite:///:memory:`, with options in the query."""
        parts = urlsplit(url)
        path = unquote(parts.path).removeprefix("/")
        if parts.netloc or not path or not url.partition(":")[2].startswith("///"):
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
    def output_folder(self) -> str | None:
        return str(self._folder / "output")

    async def open(self, *, migrate: bool = True) -> None:
        async with self._door:
            if self._writer is None:
                await self._open(migrate)

    async def _open(self, migrate: bool) -> None:
        memory = self._path == ":memory:"
        if not memory:
            self._make_files()
        threads: list[DatabaseThread] = []
        for name, writes in (("writer", True),) if memory else (("writer", True), ("reader", False)):
            opening = partial(connect, self._path, synchronous=self._synchronous, writes=writes)
            threads.append(DatabaseThread(opening, name=f"duetime-{name}", writes=writes, patience=self._patience, path=self._path))
        writer, reader = threads[0], threads[-1]
        try:
            # read first: with a current schema there is no need to wait for a writer, which may be a transaction of this same program
            if not await reader.run(schema.is_current):
                await self._upgrade(writer, migrate)
        except BaseException:
            for thread in threads:
                await asyncio.to_thread(thread.stop)
            raise
        self._writer, self._reader = writer, reader
        watch = partial(connect, self._path, synchronous=self._synchronous, writes=False)
        self._wakeups = Wakeups(None if memory else self._folder / "sockets", None if memory else watch)

    def _make_files(self) -> None:
        """Make what is missing of the file and the folders beside it, readable by those who may read the file."""
        make_file(self._path)
        if not os.path.exists(self._path):  # its own folder is missing or closed to us; whoever connects says so
            return
        with contextlib.suppress(OSError):  # somebody who may only read
            for name in ("workers", "sockets", "output"):
                make_folder(self._folder / name, like=self._path)

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
        # through the writer, because accepting tasks needs it; this changes nothing, so it costs no commit
        await self._write(lambda connection: connection.execute(SQL.ping).close())

    def script(self) -> str:
        return schema.script()

    def listen(self, on_hint: Callable[[Hint], None]) -> Listener:
        return self._opened(self._wakeups).listen(on_hint)
