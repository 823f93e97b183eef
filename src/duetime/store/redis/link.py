"""One connection to the server. Commands go out as they come and replies are read in their order."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Sequence
from typing import Any, TypeAlias

from redis.exceptions import NoScriptError, OutOfMemoryError, RedisError, ResponseError

from duetime.errors import StoreUnavailable
from duetime.model.fences import next_epoch
from duetime.store.redis.address import Address
from duetime.store.redis.keys import Keys
from duetime.store.redis.scripts import BEGIN, Script
from duetime.store.server_clock import ServerClock, monotonic

Word: TypeAlias = str | bytes | int | float

LEASE_FACTOR = 1.2
LONGEST_LEASE = 15.0  # seconds; a worker may have a longer one, and then says so when it registers
_FIRST_EPOCH = -next_epoch(-(10**12), 0)  # where the numbers of epochs begin, in seconds of Unix time


def unavailable(error: BaseException, address: Address) -> StoreUnavailable:
    """Return what a driver's error means to those who use the store."""
    text = str(error) or type(error).__name__
    if isinstance(error, ResponseError):
        if isinstance(error, OutOfMemoryError):
            return StoreUnavailable(f"{address.shown} has no memory left (its maxmemory): nothing was stored; raise it, or remove tasks")
        return StoreUnavailable(f"{address.shown} refuses: {text}")
    return StoreUnavailable(f"{address.shown} does not answer: {text}")


class Link:
    """One connection, and so one start of one server: what it says of the server holds as long as it lasts."""

    def __init__(self, address: Address, keys: Keys, clock: ServerClock) -> None:
        self._address = address
        self._keys = keys
        self._clock = clock
        self._connection = address.new_connection()
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._problem: BaseException | None = None
        self._reading: asyncio.Task[None] | None = None
        self.incarnation = ""
        self.version = ""

    @property
    def is_usable(self) -> bool:
        return self._problem is None and self._reading is not None

    async def connect(self) -> None:
        """Connect, and learn which start of which server this is. One that is new is closed until the leases of before are over."""
        try:
            async with asyncio.timeout(self._address.timeout):
                await self._connection.connect()  # type: ignore[no-untyped-call]
        except (RedisError, OSError, TimeoutError) as error:
            await self._connection.disconnect(nowait=True)
            raise unavailable(error, self._address) from error
        self._reading = asyncio.create_task(self._read(), name="duetime-redis")
        try:
            await self._meet()
        except BaseException:
            await self.close()
            raise

    async def _meet(self) -> None:
        info: bytes = await self.call("INFO")
        facts = dict(line.split(":", 1) for line in info.decode().splitlines() if ":" in line)
        self.incarnation = facts["run_id"]
        self.version = facts.get("valkey_version") or facts["redis_version"]
        if facts.get("role") != "master":
            raise StoreUnavailable(f"{self._address.shown} is a replica, which takes no writes; name the primary")
        settings = await self.call("CONFIG", "GET", "appendfsync")
        keeps_all = facts.get("aof_enabled") == "1" and settings[-1:] == [b"always"]
        closed = 0 if keeps_all else round(LONGEST_LEASE * LEASE_FACTOR * 1_000_000)
        await self.run(BEGIN, [], [self.incarnation, closed, _FIRST_EPOCH])

    async def run(self, script: Script, keys: Sequence[str], arguments: Sequence[Word]) -> Any:
        """Run a script with the fixed keys, these keys, the time that a test gives, and these arguments."""
        every = [*self._keys.fixed, *keys]
        given = self._clock.parameter
        words = (len(every), *every, "" if given is None else given, *arguments)
        try:
            return await self.call("EVALSHA", script.digest, *words)
        except NoScriptError:
            return await self.call("EVAL", script.text, *words)

    async def call(self, *command: Word) -> Any:
        """Send one command and return its reply."""
        [reply] = await self.call_all([command])
        if isinstance(reply, ResponseError):
            raise reply
        return reply

    async def call_all(self, commands: Sequence[Sequence[Word]]) -> list[Any]:
        """Send commands in one go and return their replies, refusals among them."""
        if not self.is_usable:
            raise unavailable(self._problem or ConnectionError("it was closed"), self._address)
        loop = asyncio.get_running_loop()
        replies: list[asyncio.Future[Any]] = [loop.create_future() for _ in commands]
        self._waiting.extend(replies)
        try:
            await self._connection.send_packed_command(self._connection.pack_commands(commands), check_health=False)
            async with asyncio.timeout(self._address.timeout):
                return [await reply for reply in replies]
        except (RedisError, OSError, TimeoutError) as error:
            self._problem = self._problem or error
            await self.close()
            raise unavailable(error, self._address) from error
        finally:
            for reply in replies:
                if not reply.cancel() and not reply.cancelled():
                    reply.exception()  # seen, whether or not it came to be awaited

    async def close(self) -> None:
        self._problem = self._problem or ConnectionError("it was closed")
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reading
        await self._connection.disconnect(nowait=True)

    async def _read(self) -> None:
        """Hand each reply to whoever waits longest, until the connection ends."""
        problem: BaseException = ConnectionError("it was closed")
        try:
            while True:
                try:
                    reply: Any = await self._connection.read_response()
                except ResponseError as refused:  # the reply to one command; the connection goes on
                    reply = refused
                waiting = self._waiting.popleft()
                if not waiting.done():
                    waiting.set_result(reply)
        except (RedisError, OSError) as error:
            problem = error
        finally:
            self._problem = self._problem or problem
            for waiting in self._waiting:
                if not waiting.done():
                    waiting.set_exception(ConnectionError(str(problem)))
            self._waiting.clear()


class Server:
    """The connections of one opened store: one for each event loop that uses it."""

    def __init__(self, address: Address, keys: Keys, clock: ServerClock) -> None:
        self.address = address
        self.keys = keys
        self.clock = clock
        self._link: Link | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._door = asyncio.Lock()

    async def link(self) -> Link:
        """Return a connection that can be used."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._door, self._link = loop, asyncio.Lock(), None
        if self._link is not None and self._link.is_usable:
            return self._link
        async with self._door:
            if self._link is None or not self._link.is_usable:
                link = Link(self.address, self.keys, self.clock)
                await link.connect()
                self._link = link
        return self._link

    async def run(self, script: Script, keys: Sequence[str], arguments: Sequence[Word]) -> Any:
        """Run a script that returns the server's time first; see `Link.run`."""
        return await self.run_at(await self.link(), script, keys, arguments)

    async def run_at(self, link: Link, script: Script, keys: Sequence[str], arguments: Sequence[Word]) -> Any:
        sent = monotonic()
        try:
            reply = await link.run(script, keys, arguments)
        except ResponseError as error:
            raise unavailable(error, self.address) from error
        if isinstance(reply, list) and self.clock.parameter is None:
            self.clock.heard(reply[0], sent)
        return reply

    async def call(self, *command: Word) -> Any:
        link = await self.link()
        try:
            return await link.call(*command)
        except ResponseError as error:
            raise unavailable(error, self.address) from error

    async def call_all(self, commands: Sequence[Sequence[Word]]) -> list[Any]:
        replies = await (await self.link()).call_all(commands)
        for reply in replies:
            if isinstance(reply, ResponseError):
                raise unavailable(reply, self.address) from reply
        return replies

    async def close(self) -> None:
        link, self._link = self._link, None
        if link is not None and self._loop is asyncio.get_running_loop():
            await link.close()
