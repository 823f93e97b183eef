"""Output of attempts over HTTP."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime
from typing import Any, Literal, cast

import msgspec

from duetime.client.output import AttemptOutput, LogHits, OutputEnd, OutputEvent, OutputPage, Outputs, read_position
from duetime.clock import to_instant
from duetime.errors import StoreUnavailable
from duetime.model.task import Task
from duetime.remote.address import needs_store, part
from duetime.remote.query import query_params
from duetime.remote.transport import FIRST_PAUSE, LONGEST_PAUSE, Transport
from duetime.wire.logs import LogEvent, OutputList, event_of

MOST_ATTEMPTS = 100  # in a page
FOLLOW_THROUGH = 60.0  # seconds of an outage of the server or its store that following survives


class RemoteOutputs(Outputs):
    """`app.output` over HTTP."""

    def __init__(self, transport: Transport, *, opened: Callable[[], Awaitable[None]]) -> None:
        self._transport = transport
        self._opened = opened

    async def page(self, task: str | Task[Any], *, attempt: int | None = None, after: int = 0, limit: int | None = 20) -> OutputPage:
        found: list[AttemptOutput] = []
        cursor: int | None = after
        while cursor is not None:
            size = MOST_ATTEMPTS if limit is None else min(MOST_ATTEMPTS, limit)
            query = query_params({"attempt": attempt, "limit": size, "cursor": cursor or None})
            await self._opened()
            page = await self._transport.ask(OutputList, "GET", _path(task), query=query)
            found += page.items
            cursor = None if page.next is None else int(page.next)
            if limit is not None:  # the caller goes on from here
                break
        return OutputPage(found, cursor)

    async def ends(self, task: str | Task[Any], *, attempts: int, size: int) -> list[OutputEnd]:
        found = [each for each in (await self.page(task, limit=None)).items if each.text][-attempts:]
        texts = [(each.attempt, each.text.encode()) for each in found]
        return [OutputEnd(attempt, text[-size:].decode(errors="ignore"), max(0, len(text) - size)) for attempt, text in texts]

    async def follow(self, task: str | Task[Any], attempt: int | None = None, *, after: str | None = None) -> AsyncIterator[OutputEvent]:
        if after is not None:
            read_position(after)
        await self._opened()
        loop, query = asyncio.get_running_loop(), query_params({"follow": True, "attempt": attempt})
        pause, heard_at = FIRST_PAUSE, loop.time()
        while True:
            try:
                headers = {} if after is None else {"last-event-id": after}
                async with self._transport.stream(_path(task), query, headers) as chunks:
                    async for event in read_events(chunks):
                        after, pause, heard_at = event.position, FIRST_PAUSE, loop.time()
                        yield event
                        if event.kind == "end":
                            return
                heard_at = loop.time()  # a regular end of the stream without an `end` event: the server is stopping
            except StoreUnavailable:
                if loop.time() - heard_at > FOLLOW_THROUGH:
                    raise
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, LONGEST_PAUSE)

    async def search(
        self,
        words: str,
        *,
        handler: str | None = None,
        collection: str | None = None,
        after: datetime | None = None,
        before: datetime | None = None,
        limit: int = 20,
        cursor: str | None = None,
    ) -> LogHits:
        for name, when in (("after", after), ("before", before)):
            if when is not None:
                to_instant(when, name)
        asked = {"q": words, "handler": handler, "collection": collection, "after": after, "before": before}
        await self._opened()
        return await self._transport.ask(LogHits, "GET", "/v1/logs", query=query_params({**asked, "limit": limit, "cursor": cursor}))

    async def keep(self, task: str, attempt: int, text: str) -> None:
        raise needs_store("keeping output", self._transport.url)


async def read_events(chunks: AsyncIterator[bytes]) -> AsyncIterator[OutputEvent]:
    """Parse what is followed. Comments and events of unknown kinds are ignored."""
    async for fields in read_blocks(chunks):
        if fields.get("event") in ("output", "attempt", "end"):
            kind = cast(Literal["output", "attempt", "end"], fields["event"])
            data = msgspec.json.decode(fields.get("data", "{}"), type=LogEvent)
            yield event_of(kind, fields.get("id", ""), data)


async def read_blocks(chunks: AsyncIterator[bytes]) -> AsyncIterator[dict[str, str]]:
    """Parse server-sent events from pieces of any size; each is its fields by name."""
    rest = b""
    async for chunk in chunks:
        *blocks, rest = (rest + chunk).split(b"\n\n")
        for block in blocks:
            yield dict(_field(line) for line in block.decode().split("\n"))


def _field(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name, value.removeprefix(" ")


def _path(task: str | Task[Any]) -> str:
    return f"/v1/tasks/{part(task if isinstance(task, str) else task.id)}/logs"
