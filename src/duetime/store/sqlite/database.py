"""What all roles of the embedded store share: the file, its two threads, the clock and the wake-ups."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from duetime.clock import Clock, Instant
from duetime.errors import StoreUnavailable
from duetime.model.claim_order import ClaimOrder
from duetime.model.partitions import Counted
from duetime.runtime.forks import Original
from duetime.store.sqlite import liveness
from duetime.store.sqlite.connection import DatabaseThread
from duetime.store.sqlite.wakeups import Wakeups
from duetime.store.values import (
    HintKind,
)

T = TypeVar("T")


class OpenFile:
    """One file, or memory. Each role of the store is a class on top of this one."""

    def __init__(self, path: str, synchronous: str, clock: Clock) -> None:
        self._path = path if path == ":memory:" else os.path.abspath(path)
        self._synchronous = synchronous
        self._clock = clock
        self._claim_order = ClaimOrder()
        self._locks: dict[str, liveness.WorkerLock] = {}
        self._temporary: str | None = None
        self._writer: DatabaseThread | None = None
        self._reader: DatabaseThread | None = None
        self._wakeups: Wakeups | None = None
        self._original = Original()
        self._replaced: list[str] = []  # running tasks that newer ones replace, to be stopped
        self._arrived = False  # a settle has ended members of flows, and nobody has looked since whether these go on

    @property
    def url(self) -> str:
        return f"sqlite:///{self._path}"

    @property
    def _folder(self) -> Path:
        """What lies beside the file: locks of workers, sockets for wake-ups, output of attempts."""
        if self._path != ":memory:":
            return Path(f"{self._path}-duetime")
        if self._temporary is None:
            self._temporary = tempfile.mkdtemp(prefix="duetime-")
        return Path(self._temporary)

    async def _write(self, job: Callable[[sqlite3.Connection], T], *, urgent: bool = False) -> T:
        self._opened(self._wakeups).own_writes += 1
        return await self._opened(self._writer).run(job, urgent=urgent)

    async def _read(self, job: Callable[[sqlite3.Connection], T]) -> T:
        return await self._opened(self._reader).run(job)

    def read_now(self, job: Callable[[sqlite3.Connection], T]) -> T:
        """Read and wait for the result without an event loop, for the assertions of `duetime.testing`."""
        return self._opened(self._reader).call(job)

    # ---- what limits that the store counts say (store/sqlite/counting.py) ----

    _counted = Counted()

    def _admit(self, connection: sqlite3.Connection, chosen: Sequence[int], version: int, now: Instant) -> Sequence[int]:
        """Return those of the chosen tasks that may start; `version` is that of the gates."""
        raise NotImplementedError

    def _leave(self, connection: sqlite3.Connection, attempts: Sequence[tuple[str, int]], now: Instant) -> Instant | None:
        """Free what ended attempts took; return the earliest position of a task that goes on."""
        raise NotImplementedError

    async def _stop_replaced(self) -> None:
        """Stop running tasks that a claim has replaced by newer ones."""
        raise NotImplementedError

    def _hint(self, kind: HintKind, at: Instant | None = None) -> None:
        if self._wakeups is not None:
            self._wakeups.send(kind, at)

    def _opened(self, part: T | None) -> T:
        if part is None or self._original.copied:  # a fork has neither the threads nor the right to the connections
            raise StoreUnavailable(f"the store {self.url} is not open; await open() first")
        return part
