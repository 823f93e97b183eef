"""Waiting until what was written has reached the disks and servers that a level of durability names."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from redis.exceptions import ResponseError

from duetime.errors import StoreUnavailable
from duetime.store.redis.address import Address, Durable
from duetime.store.redis.link import Link, Word, unavailable
from duetime.store.redis.scripts import MARK

if TYPE_CHECKING:
    from duetime.store.redis.server import Server

SHARE = 0.8  # of the timeout for a reply: how long the server may wait for others
_MISSING = {
    "disk": "it is not on the server's disk yet",
    "replica": "no replica has it yet",
    "both": "it is not on the disks of the server and of a replica yet (the replica needs appendonly yes too)",
}


class Waiting:
    """Asks a server to wait for disks and replicas, over a connection of its own, because that blocks a connection.

    Who comes while such a wait is under way shares the next one: many small writes cost one wait.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._address: Address = server.address
        self._link: Link | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: dict[Durable, asyncio.Task[str]] = {}
        self._next: dict[Durable, asyncio.Task[str]] = {}

    async def until(self, level: Durable, incarnation: str) -> None:
        """Return when everything that this start of the server has written so far is as safe as the level says."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._link, self._running, self._next = loop, None, {}, {}
        if level not in self._next:
            self._next[level] = loop.create_task(self._one(level, self._running.get(level)), name="duetime-wait")
            self._next[level].add_done_callback(lambda wait: wait.cancelled() or wait.exception())  # who waits may have gone
        if await asyncio.shield(self._next[level]) != incarnation:
            raise StoreUnavailable(f"{self._address.shown} was replaced by another server while this was stored: repeat the call")

    async def _one(self, level: Durable, former: asyncio.Task[str] | None) -> str:
        """Wait once, after the former wait; return which start of which server has waited."""
        if former is not None:
            await asyncio.wait([former])
        self._running[level] = self._next.pop(level)
        link = await self._connected(level)
        if level == "disk" and link.flushes == "always":
            return link.incarnation
        timeout = round(self._address.timeout * SHARE * 1_000)
        command: tuple[Word, ...] = {
            "disk": ("WAITAOF", 1, 0, timeout),
            "replica": ("WAIT", 1, timeout),
            "both": ("WAITAOF", 1, 1, timeout),
        }[level]
        try:
            [_, known] = await link.run(MARK, [], [])
            reply = await link.call(*command)
        except ResponseError as error:
            await link.close()
            raise unavailable(error, self._address) from error
        if known.decode() != link.incarnation:
            await link.close()
            return ""
        counts = reply if isinstance(reply, list) else [reply]
        if any(count < wanted for count, wanted in zip(counts, command[1:-1], strict=True)):
            raise StoreUnavailable(
                f"{self._address.shown}: this was stored, but {_MISSING[level]}, as durable={level} wants; repeating the call is safe"
            )
        return link.incarnation

    async def _connected(self, level: Durable) -> Link:
        present = await self._server.link()
        if self._link is None or not self._link.is_usable or self._link.incarnation != present.incarnation:
            if self._link is not None:
                await self._link.close()
            link = self._server.beside(present)
            try:
                await link.connect()
            except ResponseError as error:
                raise unavailable(error, self._address) from error
            self.check(link, level)
            self._link = link
        return self._link

    def check(self, link: Link, level: Durable) -> None:
        """Refuse a level that this server cannot reach."""
        if level in ("disk", "both") and not link.keeps_file:
            raise StoreUnavailable(f"durable={level} needs a server with appendonly yes, and {self._address.shown} has appendonly no")
        if level in ("disk", "both") and link.flushes == "no":
            raise StoreUnavailable(
                f"durable={level} needs a server that flushes its file by itself, and {self._address.shown} has appendfsync no: "
                "set it to everysec or always"
            )
        if not link.waits_for_disks and (level == "both" or (level == "disk" and link.flushes != "always")):
            remedy = "set appendfsync always, or use" if level == "disk" else "use"
            raise StoreUnavailable(
                f"durable={level} needs WAITAOF, which {self._address.shown} (version {link.version}) does not know: "
                f"{remedy} Valkey, or Redis 7.2 or newer"
            )

    async def close(self) -> None:
        link, self._link = self._link, None
        if self._loop is asyncio.get_running_loop():
            for task in [*self._running.values(), *self._next.values()]:
                task.cancel()
            if link is not None:
                await link.close()
