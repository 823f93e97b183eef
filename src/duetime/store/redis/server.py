"""The present server: which one that is may change, and commands that the former one did not execute are sent to the next."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import AskError, ClusterDownError, MovedError, NoScriptError, ResponseError, TryAgainError

from duetime.errors import StoreUnavailable
from duetime.store.redis.address import Address, Endpoint
from duetime.store.redis.finding import Finder
from duetime.store.redis.keys import Keys
from duetime.store.redis.link import Link, Word, is_replica, script_words, unavailable
from duetime.store.redis.scripts import Script
from duetime.store.redis.waiting import Waiting
from duetime.store.server_clock import ServerClock, monotonic

MOVING = 2.0  # seconds for which commands wait for a slot that is being moved, at most
FIRST_PAUSE, LONGEST_PAUSE = 0.01, 0.2


class Server:
    """The connections of one opened store: one for each event loop that uses it."""

    def __init__(self, address: Address, keys: Keys, clock: ServerClock) -> None:
        self.address = address
        self.keys = keys
        self.clock = clock
        self._finder = Finder(address)
        self._link: Link | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._door = asyncio.Lock()
        self.waiting = Waiting(self)

    async def link(self) -> Link:
        """Return a connection that can be used."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._door, self._link = loop, asyncio.Lock(), None
        if self._link is not None and self._link.is_usable:
            return self._link
        async with self._door:
            if self._link is None or not self._link.is_usable:
                self._link = await self._connect()
        return self._link

    async def _connect(self) -> Link:
        redirected = Redirected(self.address)
        while True:
            link = Link(self.address, await self._finder.find(), self.keys, self.clock)
            try:
                await link.connect()
            except ResponseError as error:
                await self._follow(link, error, redirected)
            else:
                return link

    def beside(self, link: Link) -> Link:
        """Return another connection to the same server, not connected yet."""
        return Link(self.address, link.server, self.keys, self.clock)

    async def new_connection(self) -> AbstractConnection:
        """Return a connection to the present server for other uses, not connected yet."""
        return self.address.new_connection(await self._finder.find())

    async def _follow(self, link: Link, error: ResponseError, redirected: Redirected) -> None:
        """Go where a server says that the keys are, or wait for a moment; give up when that has happened for long."""
        if not _was_not_executed(error) or self.address.kind == "single":
            raise await self._refusal(error)
        if isinstance(error, MovedError):
            self._finder.told(Endpoint(error.host or link.server.host, error.port))
        if isinstance(error, MovedError) or is_replica(error):
            await link.retire()
        await redirected.pause(error)

    async def _ask(self, commands: Sequence[Sequence[Word]], link: Link | None = None) -> list[Any]:
        """Return the replies, refusals among them. What a server did not execute because another one has the keys is sent again."""
        replies: list[Any] = [None] * len(commands)
        left = list(range(len(commands)))
        redirected = Redirected(self.address)
        while left:
            link = link or await self.link()
            for index, reply in zip(left, await link.call_all([commands[index] for index in left]), strict=True):
                replies[index] = reply
            left = [index for index in left if _was_not_executed(replies[index])]
            if left:
                await self._follow(link, replies[left[0]], redirected)
                link = None
        return replies

    async def run(self, script: Script, keys: Sequence[str], arguments: Sequence[Word]) -> Any:
        """Run a script that returns the server's time first."""
        return await self.run_at(None, script, keys, arguments)

    async def run_at(self, link: Link | None, script: Script, keys: Sequence[str], arguments: Sequence[Word]) -> Any:
        """Run a script by this connection first; by that to another server only if this one has executed nothing."""
        sent = monotonic()
        words = script_words(self.keys, self.clock, keys, arguments)
        [reply] = await self._ask([("EVALSHA", script.digest, *words)], link)
        if isinstance(reply, NoScriptError):
            [reply] = await self._ask([("EVAL", script.text, *words)], link if link is not None and link.is_usable else None)
        if isinstance(reply, ResponseError):
            raise await self._refusal(reply)
        if isinstance(reply, list) and self.clock.parameter is None:
            self.clock.heard(reply[0], sent)
        return reply

    async def call(self, *command: Word) -> Any:
        [reply] = await self.call_all([command])
        return reply

    async def call_all(self, commands: Sequence[Sequence[Word]]) -> list[Any]:
        replies = await self._ask(commands)
        for reply in replies:
            if isinstance(reply, ResponseError):
                raise await self._refusal(reply)
        return replies

    async def _refusal(self, error: ResponseError) -> StoreUnavailable:
        """Return what a refusal means. After one of a whole cluster the next call looks for another server."""
        if isinstance(error, ClusterDownError) or is_replica(error):
            link, self._link = self._link, None
            if link is not None:
                await link.retire()
        refusal = unavailable(error, self.address)
        refusal.__cause__ = error
        return refusal

    async def close(self) -> None:
        await self.waiting.close()
        link, self._link = self._link, None
        if link is not None and self._loop is asyncio.get_running_loop():
            await link.close()


def _was_not_executed(reply: object) -> bool:
    """Return whether a server refused because another one has the keys, or will have them in a moment."""
    return isinstance(reply, AskError | TryAgainError) or is_replica(reply)  # a MovedError is an AskError


class Redirected:
    """How often and since when one call was told to look elsewhere."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._until: float | None = None
        self._pause = 0.0

    async def pause(self, error: ResponseError) -> None:
        now = asyncio.get_running_loop().time()
        self._until = self._until or now + MOVING
        if now > self._until:
            raise unavailable(error, self._address) from error
        await asyncio.sleep(self._pause)  # the first time it is only another address
        self._pause = min(LONGEST_PAUSE, self._pause * 2 or FIRST_PAUSE)
