"""Events over HTTP."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable

import msgspec

from duetime.client.events import Events, EventSource
from duetime.errors import StoreUnavailable
from duetime.model.event import Event, EventFilter
from duetime.remote.output import read_blocks
from duetime.remote.query import query_params
from duetime.remote.transport import FIRST_PAUSE, LONGEST_PAUSE, Transport
from duetime.wire.events import EventBody, EventList, event_of

FOLLOW_THROUGH = 60.0  # seconds of an outage of the server or its store that following survives


class RemoteEvents(EventSource):
    """Events of a server. A stream that is cut off goes on where it was."""

    def __init__(self, transport: Transport, *, opened: Callable[[], Awaitable[None]]) -> None:
        self._transport = transport
        self._opened = opened

    async def page(self, filter: EventFilter, *, after: str | None = None, limit: int = 100) -> Events:
        await self._opened()
        query = query_params({**_asked(filter), "cursor": after, "limit": limit})
        found = await self._transport.ask(EventList, "GET", "/v1/events", query=query)
        return Events([event_of(body) for body in found.items], found.next)

    async def follow(self, filter: EventFilter, *, after: str | None = None) -> AsyncGenerator[Event, None]:
        await self._opened()
        loop, query = asyncio.get_running_loop(), query_params({**_asked(filter), "follow": True})
        pause, heard_at = FIRST_PAUSE, loop.time()
        while True:
            try:
                headers = {} if after is None else {"last-event-id": after}
                async with self._transport.stream("/v1/events", query, headers) as chunks:
                    async for block in read_blocks(chunks):
                        if "data" in block:
                            event = event_of(msgspec.json.decode(block["data"], type=EventBody))
                            after, pause, heard_at = event.cursor, FIRST_PAUSE, loop.time()
                            yield event
                heard_at = loop.time()  # a regular end: the server is stopping
            except StoreUnavailable:
                if loop.time() - heard_at > FOLLOW_THROUGH:
                    raise
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, LONGEST_PAUSE)


def _asked(filter: EventFilter) -> dict[str, object]:
    return {"names": ",".join(sorted(filter.names)) or None, "handler": filter.handler, "task": filter.task}
