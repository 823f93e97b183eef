"""Counting what a process does on SQLite: statements, transactions, the longest of them, bytes written to the write-ahead log."""

from __future__ import annotations

import os
import sqlite3
import struct
import threading
import time
from collections.abc import Mapping
from typing import Any, Self

FRAME_HEADER = 24  # bytes before each page in the log
WAL_INDEX = struct.Struct("=14xHI12x8s")  # of the index's header: page size, number of the last frame, salt of the log


class SqliteMeter:
    """Totals over all connections of this process that were opened after `install`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._statements = 0
        self._transactions = 0
        self._wal_bytes = 0
        self._longest = 0.0
        self._index: int | None = None
        self._last = (0, b"")  # frames and salt of the log

    @classmethod
    def install(cls) -> Self:
        """Count on every connection that `sqlite3.connect` makes from now on."""
        meter = cls()
        connect = sqlite3.connect

        def counted(database: str, *arguments: Any, **options: Any) -> sqlite3.Connection:
            connection = connect(database, *arguments, factory=_Counted, **options)
            connection.meter, connection.path = meter, database
            connection.set_trace_callback(meter._statement)
            return connection

        sqlite3.connect = counted  # type: ignore[assignment]
        return meter

    def read(self) -> dict[str, float]:
        """Return the totals, and begin to look for the longest transaction anew."""
        with self._lock:
            self._longest = 0.0
            return {"statements": self._statements, "transactions": self._transactions, "wal": self._wal_bytes}

    def since(self, before: Mapping[str, float]) -> dict[str, float]:
        longest = self._longest
        return {name: value - before[name] for name, value in self.read().items()} | {"longest": longest}

    def _statement(self, _: str) -> None:
        with self._lock:
            self._statements += 1

    def ended(self, path: str, seconds: float) -> None:
        """Note that a transaction has ended."""
        with self._lock:
            self._transactions += 1
            self._longest = max(self._longest, seconds)
            self._follow_log(path)

    def _follow_log(self, path: str) -> None:
        """Add what the log has grown by. It begins again from the start, with another salt, once all of it is in the database."""
        if self._index is None:
            if not os.path.exists(f"{path}-shm"):
                return
            # never closed: closing any descriptor of this file would take SQLite's own locks on it away
            self._index = os.open(f"{path}-shm", os.O_RDONLY)
        page, frames, salt = WAL_INDEX.unpack(os.pread(self._index, WAL_INDEX.size, 0))
        known, known_salt = self._last
        grown = frames - known if salt == known_salt else frames
        self._last = frames, salt
        self._wal_bytes += grown * ((65_536 if page == 1 else page) + FRAME_HEADER)


class _Counted(sqlite3.Connection):
    """A connection that reports the end of each transaction to its meter; one statement outside of any is a transaction too."""

    meter: SqliteMeter
    path: str
    _began: float | None = None

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        return self._timed(super().execute, arguments)

    def executemany(self, *arguments: Any) -> sqlite3.Cursor:
        return self._timed(super().executemany, arguments)

    def executescript(self, *arguments: Any) -> sqlite3.Cursor:
        return self._timed(super().executescript, arguments)

    def _timed(self, statement: Any, arguments: tuple[Any, ...]) -> sqlite3.Cursor:
        if self._began is None:
            self._began = time.perf_counter()
        inside = self.in_transaction
        try:
            cursor: sqlite3.Cursor = statement(*arguments)
        except sqlite3.OperationalError:
            if not inside:
                self._began = None  # it could not begin, because another connection was writing; the store tries again
            raise
        if not self.in_transaction:
            self.meter.ended(self.path, time.perf_counter() - self._began)
            self._began = None
        return cursor
