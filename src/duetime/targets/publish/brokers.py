"""The brokers of a worker: one connection each, made when it is first needed and again when it was lost.

However many tasks are due, at most one connection is tried per second and broker, and less often the longer a broker stays away: after
1, 2, 4 … 60 seconds. Whoever comes meanwhile is told at once when to come again, so no slot is held.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from time import monotonic
from typing import Any

from duetime.targets.publish.address import Address
from duetime.targets.publish.messages import Acknowledgement, BrokerUnreachable, Link, Message, PublishRefused

FIRST_DELAY = 1.0
LONGEST_DELAY = 60.0
CONNECT_WITHIN = 5.0
CLOSE_WITHIN = 1.0
CONFIRM_WITHIN = 10.0  # a broker that is connected but silent counts as unreachable

logger = logging.getLogger("duetime.publish")

OpenLink = Callable[[Address, tuple[str, int]], Awaitable[Link]]


class Broker:
    """One broker as the handlers of a worker share it."""

    def __init__(self, address: Address, open_link: OpenLink) -> None:
        self.address = address
        self._open_link = open_link
        self._link: Link | None = None
        self._connecting: asyncio.Task[Link] | None = None
        self._failures = 0  # connections in a row that confirmed nothing
        self._tried = 0
        self._not_before = 0.0
        self._closing: set[asyncio.Task[None]] = set()

    async def publish(self, message: Message) -> Acknowledgement:
        """Publish a message and return the broker's acknowledgement; raises BrokerUnreachable or PublishRefused."""
        link = await self._connected()
        try:
            async with asyncio.timeout(CONFIRM_WITHIN):
                acknowledged = await link.publish(message)
        except TimeoutError:
            self._lose(link, f"it has not confirmed within {CONFIRM_WITHIN:g} s")
            raise self._unreachable(f"{self.address.shown} has not confirmed a message within {CONFIRM_WITHIN:g} s") from None
        except BrokerUnreachable as error:
            self._lose(link, str(error))
            raise self._unreachable(f"the connection to {self.address.shown} was lost before it confirmed: {error}") from error
        if self._failures:
            logger.info("%s is back", self.address.shown)
            self._failures = 0
        return acknowledged

    async def close(self) -> None:
        """End the connection; nothing is under way any more."""
        connecting, self._connecting = self._connecting, None
        if connecting is not None:
            connecting.cancel()
            await asyncio.wait([connecting], timeout=2 * CLOSE_WITHIN)  # a cancelled one still closes what it had opened
        link, self._link = self._link, None
        if link is not None:
            await _closed(link)
        await asyncio.gather(*self._closing)

    async def _connected(self) -> Link:
        if self._link is not None:
            if self._link.is_open:
                return self._link
            self._lose(self._link, "the connection was lost", counts=False)
        if self._connecting is None:
            if monotonic() < self._not_before:
                raise self._unreachable(f"{self.address.shown} cannot be reached; it is tried again soon")
            self._connecting = asyncio.create_task(self._connect())
            self._connecting.add_done_callback(lambda done: None if done.cancelled() else done.exception())  # waiting ones may have gone
        connecting = self._connecting
        try:
            return await asyncio.shield(connecting)
        except BrokerUnreachable as error:
            raise self._unreachable(str(error)) from error.__cause__

    async def _connect(self) -> Link:
        """Try one connection; with several hosts, to the next of them each time."""
        host = self.address.hosts[self._tried % len(self.address.hosts)]
        self._tried += 1
        self._not_before = monotonic() + FIRST_DELAY
        try:
            try:
                async with asyncio.timeout(CONNECT_WITHIN):
                    self._link = await self._open_link(self.address, host)
            except TimeoutError:
                raise BrokerUnreachable(f"no connection within {CONNECT_WITHIN:g} s") from None
        except (BrokerUnreachable, PublishRefused) as error:
            self._failed(str(error))
            if isinstance(error, PublishRefused):
                raise
            raise BrokerUnreachable(f"{self.address.shown} cannot be reached: {error}") from error
        finally:
            self._connecting = None
        return self._link

    def _lose(self, link: Link, why: str, *, counts: bool = True) -> None:
        """Forget a connection. All who used it report its loss; it counts once."""
        if self._link is not link:
            return
        self._link = None
        if counts:
            self._failed(why)
        closing = asyncio.create_task(_closed(link))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def _failed(self, why: str) -> None:
        self._failures += 1
        delay = min(LONGEST_DELAY, FIRST_DELAY * 2 ** min(self._failures - 1, 10))
        self._not_before = monotonic() + delay
        if self._failures == 1:
            logger.warning("%s is not available; what is to be published there waits: %s", self.address.shown, why)

    def _unreachable(self, text: str) -> BrokerUnreachable:
        return BrokerUnreachable(text, max(self._not_before - monotonic(), 0.0))


async def _closed(link: Link) -> None:
    await closed_in_time(link.close())


async def closed_in_time(closing: Coroutine[Any, Any, object]) -> None:
    """Close a connection that may be broken: that may fail, and must not take long.

    A task of its own, because some clients swallow the one cancel that a time-out sends, and then wait without end.
    """
    task = asyncio.create_task(closing)
    try:
        await asyncio.wait([task], timeout=CLOSE_WITHIN)
    finally:
        task.cancel()
        task.add_done_callback(lambda done: None if done.cancelled() else done.exception())


class Brokers:
    """All brokers of one worker."""

    def __init__(self) -> None:
        self._brokers: dict[Address, Broker] = {}

    def at(self, address: Address, open_link: OpenLink) -> Broker:
        """Return the broker at an address; handlers that publish to the same one share its connection."""
        if address not in self._brokers:
            self._brokers[address] = Broker(address, open_link)
        return self._brokers[address]

    async def close(self) -> None:
        for broker in self._brokers.values():
            await broker.close()
