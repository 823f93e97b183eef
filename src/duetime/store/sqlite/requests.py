"""Named requests in the file."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from duetime.clock import Instant
from duetime.store.requests import NamedRequest
from duetime.store.sqlite.database import OpenFile
from duetime.store.sqlite.statements import SQL


def note(connection: sqlite3.Connection, requests: Sequence[NamedRequest], now: Instant) -> list[NamedRequest]:
    stored = []
    for request in requests:
        connection.execute(SQL.insert_request, (request.caller, request.key, request.digest, request.task, now))
        digest, task = connection.execute(SQL.request_by_key, (request.caller, request.key)).fetchone()
        stored.append(NamedRequest(request.caller, request.key, digest, task))
    return stored


def prune(connection: sqlite3.Connection, before: Instant, limit: int) -> int:
    return connection.execute(SQL.delete_requests, (before, limit)).rowcount


class Requests(OpenFile):
    """Where named requests live."""

    async def note_requests(self, requests: Sequence[NamedRequest]) -> list[NamedRequest]:
        return await self._write(lambda connection: note(connection, requests, self._clock.now())) if requests else []

    async def prune_requests(self, before: Instant, limit: int) -> int:
        return await self._write(lambda connection: prune(connection, before, limit))
