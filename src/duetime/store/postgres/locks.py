"""Locks in the database."""

from __future__ import annotations

from duetime.clock import SECOND, Instant
from duetime.store.locks import LockRecord, Seen
from duetime.store.postgres.connection import Link
from duetime.store.postgres.database import OpenSchema
from duetime.store.rows.locks import read_row


class Locks(OpenSchema):
    """Where locks are."""

    async def take_lock(self, name: str, holder: str, by: str, lease: float, dead: Seen | None = None) -> LockRecord:
        for _ in range(3):  # one that is given back between the look and the answer is free, so ask again
            async with self._opened.link() as link:
                rows = await self._take_lock(link, name, holder, by, lease, dead)
            if rows:
                return rows[0]
        return rows[0]

    async def _take_lock(self, link: Link, name: str, holder: str, by: str, lease: float, dead: Seen | None) -> list[LockRecord]:
        seen = (None, None) if dead is None else (dead.fence, dead.beat)
        values = [self._clock.parameter, name, holder, by, lease, *seen, link.incarnation]
        return [read_row(row[1:], row[0], holder) for row in await link.rows(self._sql.take_lock, values)]

    async def renew_lock(self, name: str, holder: str) -> bool:
        return bool(await self._opened.rows(self._sql.renew_lock, [self._clock.parameter, name, holder]))

    async def free_lock(self, name: str, holder: str, rest: float = 0.0) -> bool:
        if rest <= 0:
            return bool(await self._opened.rows(self._sql.delete_lock, [name, holder]))
        return bool(await self._opened.rows(self._sql.rest_lock, [self._clock.parameter, name, holder, round(rest * SECOND)]))

    async def locks(self) -> list[LockRecord]:
        return [read_row(row[1:], row[0]) for row in await self._opened.rows(self._sql.all_locks, [self._clock.parameter])]

    async def remove_lock(self, name: str) -> bool:
        return bool(await self._opened.rows(self._sql.remove_lock, [name]))

    async def prune_locks(self, before: Instant) -> int:
        return len(await self._opened.rows(self._sql.prune_locks, [self._clock.parameter, before]))
