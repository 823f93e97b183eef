"""The role of the seam that is about servers: which ones there are, so that people and programs find them; a part of `store.control`."""

from __future__ import annotations

from typing import Protocol

import msgspec

from duetime.clock import Instant


class NewServer(msgspec.Struct, frozen=True, kw_only=True):
    """A server as it makes itself known. `url` is where it is reached, None if another application has mounted it."""

    id: str
    host: str
    pid: int
    url: str | None
    version: str
    python: str


class ServerRecord(NewServer, frozen=True, kw_only=True):
    """A server that has made itself known. Both instants are by the store's clock."""

    started_at: Instant
    beat_at: Instant


class ServerStore(Protocol):
    """Which servers there are. Nothing is decided by it: who has no server at hand finds one here."""

    async def beat_server(self, server: NewServer) -> None:
        """Make a server known, or say that it is still there. Forgets those that have not been heard of for a day."""
        ...

    async def remove_server(self, id: str) -> bool:
        """Forget a server that has stopped; return whether it was known."""
        ...

    async def servers(self) -> list[ServerRecord]:
        """List servers by start, also those that have not been heard of for a while."""
        ...
