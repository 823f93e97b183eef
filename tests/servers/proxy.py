"""A network that a test controls: a TCP proxy on loopback that cuts, refuses, holds, loses and delays what passes through it.

It runs in a thread of its own, so that a test can give orders in the middle of what it does, whichever loop that runs in.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self, TypeVar

from tests.servers.link import Cut, Limit, Link, Loss, Side, reset
from tests.servers.ports import free_port
from tests.servers.waiting import PATIENCE
from tests.servers.wire import Conversation, Plain

__all__ = ["Cut", "Proxy", "Side"]

T = TypeVar("T")
HOST = "127.0.0.1"
CHUNK = 65_536
BOTH = (Side.CLIENT, Side.SERVER)


class Proxy:
    """Forwards connections to a server on loopback, until told otherwise. Orders hold from the moment they return.

    `conversation` makes what understands the server's protocol; only `lose_reply` needs one. While the server is down a
    connection is accepted and then reset, because only then is it known.
    """

    def __init__(self, server_port: int, conversation: Callable[[], Conversation] = Plain) -> None:
        self.port = free_port()
        self.accepted = 0  # connections so far
        self.passed: Counter[Side] = Counter()  # bytes so far, by who said them
        self._server_port = server_port
        self._conversation = conversation
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._listening: asyncio.Server | None = None
        self._links: set[Link] = set()
        self._flowing = {side: asyncio.Event() for side in BOTH}
        self._swallowed: set[Side] = set()
        self._seconds = 0.0
        self._limits: dict[Side, Limit] = {}
        self._loss: Loss | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        self.heal()
        self.accept()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()

    @property
    def live(self) -> int:
        """How many connections there are now, cut ones whose ends have not noticed included."""
        return len(self._links)

    def refuse(self) -> None:
        """Refuse new connections; those that exist go on."""
        self._order(self._stop_listening)

    def accept(self) -> None:
        """Accept new connections again."""
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(30)

    def lead_to(self, server_port: int) -> None:
        """Forward new connections to another server, as after a fail-over; those that exist stay where they are."""

        def lead() -> None:
            self._server_port = server_port

        self._order(lead)

    def cut(self, how: Cut = Cut.RST) -> int:
        """End all connections; give how many they were."""

        def cut() -> int:
            links = [link for link in self._links if not link.over]
            for link in links:
                link.cut(how)
            return len(links)

        return self._order(cut)

    def hold(self, sides: Iterable[Side] = BOTH) -> None:
        """Let nothing of these sides pass until `heal`, and lose nothing: a network that is down for a while."""

        def hold() -> None:
            for side in sides:
                self._flowing[side].clear()

        self._order(hold)

    def swallow(self, sides: Iterable[Side] = BOTH) -> None:
        """Lose what these sides say, ends included, and keep all connections open: one has vanished without a word."""
        self._order(lambda: self._swallowed.update(sides))

    def delay(self, seconds: float) -> None:
        """Pass everything on later by this much, in both directions, until told otherwise."""

        def delay() -> None:
            self._seconds = seconds

        self._order(delay)

    def heal(self) -> None:
        """Let everything pass again and forget all orders but `refuse`. A connection that lost bytes is reset."""

        def heal() -> None:
            self._swallowed.clear()
            self._limits.clear()
            self._seconds, self._loss = 0.0, None
            for link in self._links:
                if link.gap:
                    link.cut(Cut.RST)
            for flowing in self._flowing.values():
                flowing.set()

        self._order(heal)

    def cut_after(self, count: int, side: Side, how: Cut = Cut.FIN) -> threading.Event:
        """Pass exactly `count` more bytes of a side, whatever the connection, and then cut the one that said the last of them.

        If the count is 0, the next byte is the one that does not pass. The event is set when it has happened.
        """
        limit = Limit(count, how, threading.Event())
        self._order(lambda: self._limits.update({side: limit}))
        return limit.done

    def lose_reply(self, *markers: bytes) -> threading.Event:
        """Pass on the next request that contains all of these, swallow the whole answer to it, and then cut that connection.

        What the request did is done when the event is set, and the client cannot know.
        """
        loss = Loss(markers, threading.Event())

        def lose() -> None:
            self._loss = loss

        self._order(lose)
        return loss.done

    def _order(self, order: Callable[[], T]) -> T:
        async def run() -> T:
            return order()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(30)

    async def _listen(self) -> None:
        if self._listening is None:
            self._listening = await asyncio.start_server(self._join, HOST, self.port)

    def _stop_listening(self) -> None:
        if self._listening is not None:
            self._listening.close()
            self._listening = None

    async def _close(self) -> None:
        self._stop_listening()
        for link in self._links:
            link.cut(Cut.RST)
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one client."""
        self.accepted += 1
        try:
            server_reader, server_writer = await asyncio.open_connection(HOST, self._server_port)
        except OSError:
            reset(writer)
            return
        readers = {Side.CLIENT: reader, Side.SERVER: server_reader}
        link = Link(readers, {Side.CLIENT: server_writer, Side.SERVER: writer}, self._conversation())
        self._links.add(link)
        try:
            await asyncio.gather(*(self._pump(link, side) for side in BOTH))
        finally:
            self._links.discard(link)
            writer.close()
            server_writer.close()

    async def _pump(self, link: Link, side: Side) -> None:
        """Pass on what one side says until it ends, then that it has ended."""
        try:
            while data := await link.readers[side].read(CHUNK):
                await self._pass(link, side, data)
            await self._flowing[side].wait()
            if side in self._swallowed:
                link.gap = True
            elif not link.over:
                link.writers[side].write_eof()
        except OSError:  # not only ConnectionError: a socket whose other end is gone already says ENOTCONN
            if side in self._swallowed:
                link.gap = True
            else:
                link.cut(Cut.RST)

    async def _pass(self, link: Link, side: Side, data: bytes) -> None:
        if self._seconds:
            await asyncio.sleep(self._seconds)
        await self._flowing[side].wait()
        if link.over:
            return
        if side in self._swallowed:
            link.gap = True
            return
        limit = self._limits.get(side)
        if limit is not None:
            data = data[: limit.left]
            limit.left -= len(data)
            if limit.left == 0:
                del self._limits[side]
        if not self._lost(link, side, data):
            self.passed[side] += len(data)
            link.writers[side].write(data)
            with contextlib.suppress(ConnectionError):  # whoever reads from that socket is told as well
                await link.writers[side].drain()
        if limit is not None and limit.left == 0:
            link.cut(limit.how)
            limit.done.set()

    def _lost(self, link: Link, side: Side, data: bytes) -> bool:
        """Follow the conversation, and tell whether these bytes belong to an answer that must be lost."""
        if side is Side.CLIENT:
            requests = link.conversation.client(data)
            if self._loss and any(all(marker in request for marker in self._loss.markers) for request in requests):
                link.loss, self._loss = self._loss, None
            return False
        ended = link.conversation.server(data)
        if link.loss is None:
            return False
        if ended:
            link.cut(Cut.RST)
            link.loss.done.set()
        return True
