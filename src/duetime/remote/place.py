"""What stands where App has a store when it works over a server: it says what needs one."""

from __future__ import annotations

from typing import Any

import msgspec

from duetime.client.insight import HandlerInfo
from duetime.clock import Instant
from duetime.remote.address import needs_store
from duetime.remote.transport import Transport
from duetime.store.values import Declaration
from duetime.wire.overview import HandlerList


class ServerPlace:
    """The few things of a store that a server answers for. All others raise, with what to do."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.url = transport.url

    def __repr__(self) -> str:
        return f"<server {self.url}>"

    def now(self) -> Instant:
        return self.transport.now()

    async def open(self, *, migrate: bool = True) -> None:
        """Do nothing: the first request connects."""

    async def close(self) -> None:
        await self.transport.close()

    async def handlers(self) -> list[HandlerInfo]:
        return (await self.transport.ask(HandlerList, "GET", "/v1/handlers")).items

    async def declarations(self) -> list[Declaration]:
        """Give the handlers that the server knows, those that the token is for."""
        return [
            Declaration(name=each.name, schema=msgspec.json.encode(each.schema), doc=each.doc, timeout=each.timeout, priority=each.priority)
            for each in await self.handlers()
        ]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise needs_store("this", self.url)
