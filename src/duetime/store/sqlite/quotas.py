"""Quotas of submissions in the file."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from duetime.clock import Instant
from duetime.model.quota import QuotaAsk, spend
from duetime.store.sqlite.database import OpenFile
from duetime.store.sqlite.gates import read_names
from duetime.store.sqlite.statements import SQL


class Quotas(OpenFile):
    """Where it is counted what was submitted of handlers that have a quota."""

    async def spend_quotas(self, asks: Sequence[QuotaAsk]) -> list[int]:
        return await self._write(lambda connection: _spend(connection, asks, self._clock.now())) if asks else []


def _spend(connection: sqlite3.Connection, asks: Sequence[QuotaAsk], now: Instant) -> list[int]:
    names, waits = read_names(connection), []
    for ask in asks:
        handler = names.present(ask.handler)
        row = connection.execute(SQL.quota, (handler,)).fetchone()
        used_until, wait = spend(0 if row is None else row[0], ask, now)
        if not wait:
            connection.execute(SQL.put_quota, (handler, used_until))
        waits.append(wait)
    return waits
