"""Servers in the file."""

from __future__ import annotations

import sqlite3

from duetime.clock import Instant
from duetime.store.rows.servers import FORGOTTEN_AFTER, read_server_row, server_row
from duetime.store.servers import NewServer, ServerRecord
from duetime.store.sqlite.database import OpenFile
from duetime.store.sqlite.statements import SQL


def beat(connection: sqlite3.Connection, server: NewServer, now: Instant) -> None:
    connection.execute(SQL.delete_silent_servers, (now - FORGOTTEN_AFTER,))
    connection.execute(SQL.put_server, [*server_row(server), now, now])


class Servers(OpenFile):
    """Which servers there are."""

    async def beat_server(self, server: NewServer) -> None:
        await self._write(lambda connection: beat(connection, server, self._clock.now()))

    async def remove_server(self, id: str) -> bool:
        return await self._write(lambda connection: connection.execute(SQL.delete_server, (id,)).rowcount) > 0

    async def servers(self) -> list[ServerRecord]:
        rows = await self._read(lambda connection: connection.execute(SQL.all_servers).fetchall())
        return [read_server_row(row) for row in rows]
