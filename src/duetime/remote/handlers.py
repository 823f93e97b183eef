"""The handlers that a server knows and that the token may use."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from duetime.client.insight import HandlerInfo
from duetime.remote.transport import Transport
from duetime.store.values import Declaration
from duetime.wire.overview import HandlerList


async def handlers(transport: Transport) -> list[HandlerInfo]:
    return (await transport.ask(HandlerList, "GET", "/v1/handlers")).items


class ServerHandlers:
    """The declarations of a server's handlers, for `Admission`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def declarations(self, *, former: bool = False) -> list[Declaration]:
        return [
            Declaration(name=each.name, schema=msgspec.json.encode(each.schema), doc=each.doc, timeout=each.timeout, priority=each.priority)
            for each in await handlers(self._transport)
        ]

    async def declare(self, declarations: Sequence[Declaration]) -> None:
        """Do nothing: the workers that run the handlers declare them."""
