"""Servers in the database."""

from __future__ import annotations

from duetime.store.postgres.database import OpenSchema
from duetime.store.rows.servers import FORGOTTEN_AFTER, read_server_row, server_row
from duetime.store.servers import NewServer, ServerRecord


class Servers(OpenSchema):
    """Which servers there are."""

    async def beat_server(self, server: NewServer) -> None:
        await self._opened.rows(self._sql.put_server, [self._clock.parameter, *server_row(server), FORGOTTEN_AFTER])

    async def remove_server(self, id: str) -> bool:
        return bool(await self._opened.rows(self._sql.delete_server, [id]))

    async def servers(self) -> list[ServerRecord]:
        return [read_server_row(row) for row in await self._opened.rows(self._sql.all_servers)]
