"""Locks in the file."""

from __future__ import annotations

import sqlite3

from duetime.clock import SECOND, Instant
from duetime.store.locks import LockRecord, Seen
from duetime.store.rows.locks import read_row
from duetime.store.sqlite.database import OpenFile
from duetime.store.sqlite.statements import SQL
from duetime.store.sqlite.work import current_epoch


def take(connection: sqlite3.Connection, name: str, holder: str, by: str, lease: float, dead: Seen | None, now: Instant) -> LockRecord:
    row = connection.execute(SQL.one_lock, (name,)).fetchone()
    if row is not None:
        found = read_row(row[:-1], now, holder)
        rests = found.free_at is not None and now < found.free_at <= now + row[-1]  # further away: the clock was set back
        held = found.free_at is None and (dead is None or (found.fence, found.beat) != (dead.fence, dead.beat))
        if found.taken or rests or held:
            return found
    (number,) = connection.execute(SQL.next_lock_number).fetchone()
    epoch = current_epoch(connection, now)
    connection.execute(
        SQL.put_lock, {"name": name, "holder": holder, "epoch": epoch, "number": number, "by": by, "lease": lease, "now": now}
    )
    return read_row(connection.execute(SQL.one_lock, (name,)).fetchone()[:-1], now, holder)


def free(connection: sqlite3.Connection, name: str, holder: str, rest: int, now: Instant) -> bool:
    if rest <= 0:
        return connection.execute(SQL.delete_lock, (name, holder)).rowcount > 0
    return connection.execute(SQL.rest_lock, {"name": name, "holder": holder, "rest": rest, "now": now}).rowcount > 0


class Locks(OpenFile):
    """Where locks are."""

    async def take_lock(self, name: str, holder: str, by: str, lease: float, dead: Seen | None = None) -> LockRecord:
        return await self._write(lambda connection: take(connection, name, holder, by, lease, dead, self._clock.now()))

    async def renew_lock(self, name: str, holder: str) -> bool:
        return await self._write(lambda connection: connection.execute(SQL.renew_lock, (self._clock.now(), name, holder)).rowcount) > 0

    async def free_lock(self, name: str, holder: str, rest: float = 0.0) -> bool:
        return await self._write(lambda connection: free(connection, name, holder, round(rest * SECOND), self._clock.now()))

    async def locks(self) -> list[LockRecord]:
        now = self._clock.now()
        rows = await self._read(lambda connection: connection.execute(SQL.all_locks, {"now": now}).fetchall())
        return [read_row(row, now) for row in rows]

    async def remove_lock(self, name: str) -> bool:
        return await self._write(lambda connection: connection.execute(SQL.remove_lock, (name,)).rowcount) > 0

    async def prune_locks(self, before: Instant) -> int:
        if not await self.locks():  # a look first: it waits for no writer
            return 0
        values = {"now": self._clock.now(), "before": before}
        return await self._write(lambda connection: connection.execute(SQL.prune_locks, values).rowcount)
