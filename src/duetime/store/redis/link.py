"""One connection to the server. Commands go out as they come and replies are read in their order."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Sequence
from typing import Any, TypeAlias

from hiredis import pack_command
from redis.exceptions import MovedError, NoScriptError, OutOfMemoryError, ReadOnlyError, RedisError, ResponseError

from duetime.errors import StoreUnavailable
from duetime.model.fences import next_epoch
from duetime.store.redis.address import FORMS, Address, Endpoint
from duetime.store.redis.keys import Keys
from duetime.store.redis.scripts import BEGIN, Script
from duetime.store.server_clock import ServerClock

Word: TypeAlias = str | bytes | int | float

USUAL_LEASE = 15.0  # seconds; that of workers which did not note a longer or shorter one
_FIRST_EPOCH = -next_epoch(-(10**12), 0)  # where the numbers of epochs begin, in seconds of Unix time
_NEVER_A_REPLICA = "0" * 40


def unavailable(error: BaseException, address: Address) -> StoreUnavailable:
    """Return what a driver's error means to those who use the store."""
    text = str(error) or type(error).__name__
    if isinstance(error, ResponseError):
        if isinstance(error, OutOfMemoryError):
            return StoreUnavailable(f"{address.shown} has no memory left (its maxmemory): nothing was stored; raise it, or remove tasks")
        if isinstance(error, MovedError) and address.kind != "cluster":
            return StoreUnavailable(f"{address.shown} is a node of a cluster, and another one has our keys: write {FORMS['cluster']}")
        return StoreUnavailable(f"{address.shown} refuses: {text}")
    return StoreUnavailable(f"{address.shown} does not answer: {text}")


class Link:
    """One connection, and so one start of one server: what it says of the server holds as long as it lasts."""

    def __init__(self, address: Address, server: Endpoint, keys: Keys, clock: ServerClock) -> None:
        self._address = address
        self.server = server
        self._keys = keys
        self._clock = clock
        self._connection = address.new_connection(server)
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._problem: BaseException | None = None
        self._reading: asyncio.Task[None] | None = None
        self._retired = False
        self.incarnation = ""
        self.version = ""
        self.keeps_file = False  # whether it writes an append-only file,
        self.flushes = ""  # and when it flushes that: always, everysec or no
        self.waits_for_disks = False  # whether it knows WAITAOF
        self.replicas = 0  # how many were connected to it at the beginning

    @property
    def is_usable(self) -> bool:
        return self._problem is None and self._reading is not None and not self._retired

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
        if "sentinel" in (facts.get("server_mode"), facts.get("redis_mode")):
            raise StoreUnavailable(f"{self._address.shown} is a Sentinel: write {FORMS['sentinel']}")
        self.incarnation = facts["run_id"]
        self.version = facts.get("valkey_version") or facts["redis_version"]
        if facts.get("role") != "master":
            raise StoreUnavailable(f"{self.server} is a replica, which takes no writes; name the primary")
        settings = await self.call("CONFIG", "GET", "appendfsync")
        self.keeps_file = facts.get("aof_enabled") == "1"
        self.replicas = int(facts.get("connected_slaves", 0))
        # a replica that was promoted may lack what the primary had, however often it writes to its own disk
        was_promoted = facts.get("master_replid2", _NEVER_A_REPLICA) != _NEVER_A_REPLICA
        self.flushes = settings[-1].decode() if self.keeps_file and settings else ""
        keeps_all = self.flushes == "always" and not was_promoted
        try:
            await self.call("WAITAOF", 0, 0, 1)
            self.waits_for_disks = True
        except ResponseError:
            self.waits_for_disks = False
        usual = round(USUAL_LEASE * 1_000_000)
        await self.run(
            BEGIN, [], [self.incarnation, str(self.server), int(keeps_all), int(self._address.kind == "single"), _FIRST_EPOCH, usual]
        )

    async def run(self, script: Script, keys: Sequence[str], arguments: Sequence[Word]) -> Any:
        """Run a script on this connection, and on no other one."""
        words = script_words(self._keys, self._clock, keys, arguments)
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
            packed = b"".join(pack_command(tuple(command)) for command in commands)  # type: ignore[arg-type]
            await self._connection.send_packed_command(packed, check_health=False)
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

    async def retire(self) -> None:
        """Take no more commands: another server has the keys now. Replies that are under way are waited for."""
        self._retired = True
        if not self._waiting:
            await self.close()

    async def close(self) -> None:
        self._problem = self._problem or ConnectionError("it was closed")
        reading, self._reading = self._reading, None
        if reading is not None and reading is not asyncio.current_task():
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reading
        await self._connection.disconnect(nowait=True)

    async def _read(self) -> None:
        """Hand each reply to whoever waits longest, until the connection ends."""
        problem: BaseException = ConnectionError("it was closed")
        try:
            while not self._retired or self._waiting:
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
            if self._retired:
                await self._connection.disconnect(nowait=True)


def script_words(keys: Keys, clock: ServerClock, own: Sequence[str], arguments: Sequence[Word]) -> tuple[Word, ...]:
    """Return what follows a script: the fixed keys, its own, the time that a test gives, and its arguments."""
    every = [*keys.fixed, *own]
    given = clock.parameter
    return len(every), *every, "" if given is None else given, *arguments


def is_replica(error: object) -> bool:
    """Return whether a server refused to write because it has become a replica. Redis 6 says so within another error."""
    return isinstance(error, ReadOnlyError) or (isinstance(error, ResponseError) and "READONLY" in str(error))
