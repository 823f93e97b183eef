"""Servers: how one makes itself known, and how they are shown."""

from __future__ import annotations

import os
import platform
import socket
from datetime import datetime

import msgspec

from duetime.clock import SECOND, Instant, to_datetime
from duetime.ids import token
from duetime.runtime.service import Alarms, Service
from duetime.store import Store
from duetime.store.servers import NewServer, ServerRecord

BEAT_EVERY = 10.0
SILENT_AFTER = 3 * BEAT_EVERY  # seconds


class ServerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A server that has made itself known. `url` is where it is reached, None if another application has mounted it.

    `silent_for` is how many seconds ago its last beat was, by the store's clock, if it has missed three of them: it was killed, or cannot
    reach the store.
    """

    id: str
    host: str
    pid: int
    url: str | None
    version: str
    python: str
    started_at: datetime
    beat_at: datetime
    silent_for: float | None = None


def server_info(server: ServerRecord, now: Instant) -> ServerInfo:
    silent = max(0, now - server.beat_at) / SECOND
    return ServerInfo(
        id=server.id,
        host=server.host,
        pid=server.pid,
        url=server.url,
        version=server.version,
        python=server.python,
        started_at=to_datetime(server.started_at),
        beat_at=to_datetime(server.beat_at),
        silent_for=silent if silent > SILENT_AFTER else None,
    )


def this_server(url: str | None) -> NewServer:
    """Return this process as a server that is about to make itself known."""
    from importlib.metadata import version  # every program would pay 7 ms for it

    return NewServer(
        id=token(8),
        host=socket.gethostname(),
        pid=os.getpid(),
        url=url,
        version=version("duetime"),
        python=platform.python_version(),
    )


class Beats(Service):
    """Says every ten seconds that a server is there, and that it is not when it stops."""

    name = "server beats"

    def __init__(self, store: Store, server: NewServer, alarms: Alarms) -> None:
        super().__init__(alarms)
        self._store = store
        self.server = server

    async def run_once(self) -> float | None:
        await self._store.beat_server(self.server)
        return BEAT_EVERY

    async def leave(self) -> None:
        await self._store.remove_server(self.server.id)
