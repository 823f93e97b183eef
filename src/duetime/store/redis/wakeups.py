"""Wake-ups by PUBLISH and SUBSCRIBE, gathered: the first goes out at once, then at most one message every 20 ms."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any

import msgspec
from redis.exceptions import RedisError

from duetime.clock import Instant
from duetime.errors import StoreUnavailable
from duetime.ids import token
from duetime.store.redis.server import Server
from duetime.store.values import Hint, HintKind

logger = logging.getLogger("duetime.store")

PAUSE = 0.02
FIRST_BACK_OFF, LONGEST_BACK_OFF = 0.1, 5.0
LAST_WORDS = 0.5  # seconds that closing may take because of hints which have not gone out yet

_Hints = dict[HintKind, Instant | None]


class _Message(msgspec.Struct):
    """What travels: who sent it, and hints by kind."""

    sender: str
    hints: dict[str, int | None]


_decode = msgspec.json.Decoder(_Message).decode


class Subscription:
    """One listener and the event loop that it is called in."""

    def __init__(self, wakeups: Wakeups, heard: Callable[[Hint], None]) -> None:
        self._wakeups = wakeups
        self._heard = heard
        self._loop = asyncio.get_running_loop()

    def deliver(self, hint: Hint) -> None:
        with contextlib.suppress(RuntimeError):  # its loop is closed
            if asyncio.get_running_loop() is self._loop:
                self._loop.call_soon(self._heard, hint)
            else:
                self._loop.call_soon_threadsafe(self._heard, hint)

    def close(self) -> None:
        self._wakeups.forget(self)


class Wakeups:
    """Sends and receives hints for one store object."""

    def __init__(self, channel: str) -> None:
        self._channel = channel
        self._sender = token(6)
        self._server: Server | None = None
        self._listeners: set[Subscription] = set()
        self._waiting: _Hints = {}
        self._sending: asyncio.Task[None] | None = None
        self._receiving: asyncio.Task[None] | None = None
        self._sent_at = 0.0

    def open(self, server: Server) -> None:
        self._server = server

    def listen(self, heard: Callable[[Hint], None]) -> Subscription:
        subscription = Subscription(self, heard)
        self._listeners.add(subscription)
        if not _runs_here(self._receiving):
            self._receiving = asyncio.get_running_loop().create_task(self._receive(), name="duetime-wakeups")
        return subscription

    def forget(self, subscription: Subscription) -> None:
        self._listeners.discard(subscription)

    def send(self, kind: HintKind, at: Instant | None = None) -> None:
        """Notify listeners of this process at once, and those of others at once or within 20 ms."""
        self._deliver({kind: at})
        known = self._waiting.get(kind, at)
        self._waiting[kind] = None if known is None or at is None else min(known, at)
        if not _runs_here(self._sending):
            self._sending = asyncio.get_running_loop().create_task(self._send(), name="duetime-wakeups-out")

    async def close(self) -> None:
        self._listeners.clear()
        sending, receiving, self._sending, self._receiving = self._sending, self._receiving, None, None
        if sending is not None and _runs_here(sending):
            # without this the task of a program that submits and ends at once would wait for the next poll
            await asyncio.wait([sending], timeout=LAST_WORDS)
        for task in (sending, receiving):
            if task is not None and _runs_here(task):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        self._server = None

    async def _send(self) -> None:
        while self._waiting and self._server is not None:
            await asyncio.sleep(max(0.0, self._sent_at + PAUSE - time.monotonic()))
            self._sent_at = time.monotonic()
            hints, self._waiting = self._waiting, {}
            message = msgspec.json.encode(_Message(self._sender, {kind.value: at for kind, at in hints.items()}))
            with contextlib.suppress(StoreUnavailable):  # polling goes on without it
                await self._server.call("PUBLISH", self._channel, message)

    async def _receive(self) -> None:
        """Subscribe and listen; begin again after any failure."""
        back_off, failed = FIRST_BACK_OFF, False
        while self._server is not None:
            connection = None
            try:
                connection = await self._server.new_connection()
                await connection.connect()  # type: ignore[no-untyped-call]
                await connection.send_command("SUBSCRIBE", self._channel)
                await connection.read_response()
                if failed:
                    self._deliver(dict.fromkeys((HintKind.ANY, HintKind.GATES, HintKind.CANCEL)))  # some may have been missed
                back_off, failed = FIRST_BACK_OFF, False
                while True:
                    self._hear(await connection.read_response())
            except (RedisError, OSError, StoreUnavailable) as error:
                logger.debug("wake-ups: %s; polling goes on meanwhile", error)
                failed = True
            finally:
                if connection is not None:
                    await connection.disconnect(nowait=True)
            await asyncio.sleep(back_off)
            back_off = min(LONGEST_BACK_OFF, back_off * 2)

    def _hear(self, reply: Any) -> None:
        if not isinstance(reply, list) or reply[0] != b"message":
            return
        try:
            message = _decode(reply[2])
            hints: _Hints = {HintKind(kind): at for kind, at in message.hints.items()}
        except (ValueError, msgspec.DecodeError):
            hints = {HintKind.ANY: None}  # from another version, or from a person
        else:
            if message.sender == self._sender:
                return
        self._deliver(hints)

    def _deliver(self, hints: _Hints) -> None:
        for kind, at in hints.items():
            for listener in list(self._listeners):
                listener.deliver(Hint(kind, at))


def _runs_here(task: asyncio.Task[None] | None) -> bool:
    return task is not None and not task.done() and task.get_loop() is asyncio.get_running_loop()
