"""Wake-ups by LISTEN and NOTIFY: hints from one connection per process, sent after the commit and gathered.

The first goes out at once, then at most one every 20 ms. NOTIFY inside a transaction would hold a lock of the whole server until
its commit is on disk, so our own verbs never do that. A submission of tasks that are due at once sends its hint in the same round trip,
in a second transaction, if none was sent just before. Without wake-ups everything works by polling.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import secrets
import time
from collections.abc import Callable
from typing import Any

import msgspec

from duetime.clock import Instant, monotonic
from duetime.runtime.outage import outage_of
from duetime.store.postgres.address import LONGEST_NAME, Address
from duetime.store.postgres.connection import Link, connect, translated
from duetime.store.values import Hint, HintKind

logger = logging.getLogger("duetime.store")

PAUSE = 0.02
FIRST_BACK_OFF, LONGEST_BACK_OFF = 0.1, 5.0
PROBE_EVERY = 5.0
TELL_AFTER = 5.0  # seconds; a connection that only broke is back long before
LAST_WORDS = 0.5  # seconds that closing may take because of hints which have not gone out yet

_Kinds = dict[HintKind, Instant | None]


class _Message(msgspec.Struct):
    """What travels: who sent it, and hints by kind."""

    sender: str
    hints: dict[str, int | None]


_decode = msgspec.json.Decoder(_Message).decode


def channel_of(schema: str) -> str:
    name = f"duetime_{schema}"
    return name if len(name.encode()) <= LONGEST_NAME else f"duetime_{hashlib.sha256(schema.encode()).hexdigest()[:32]}"


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
    """Sends and receives hints for one opened store."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._channel = channel_of(address.schema)
        self._sender = secrets.token_hex(6)
        self._listeners: set[Subscription] = set()
        self._waiting: _Kinds = {}
        self._task: asyncio.Task[None] | None = None
        self._changed: asyncio.Event | None = None
        self._closing = False
        self._sent_at = 0.0
        self.due_now = _encode(self._sender, {HintKind.DUE: None})
        # what a caller's transaction sends: always the same, so the server merges it
        self.caught = _encode("caller", {HintKind.DUE: None})
        self.intents = _encode("caller", {HintKind.INTENTS: None})

    @property
    def channel(self) -> str:
        return self._channel

    def listen(self, heard: Callable[[Hint], None]) -> Subscription:
        subscription = Subscription(self, heard)
        self._listeners.add(subscription)
        self._ensure_running()
        return subscription

    def forget(self, subscription: Subscription) -> None:
        self._listeners.discard(subscription)

    def tell(self, kind: HintKind, at: Instant | None) -> None:
        """Notify listeners of this process at once."""
        self._deliver({kind: at})

    def send(self, kind: HintKind, at: Instant | None = None) -> None:
        """Notify listeners of this process at once, and those of others at once or within 20 ms."""
        self._deliver({kind: at})
        if not self._address.notify:
            return
        self._await(kind, at)
        self._ensure_running()

    def _await(self, kind: HintKind, at: Instant | None) -> None:
        """Keep a hint until it can go out."""
        known = self._waiting.get(kind, at)
        self._waiting[kind] = None if known is None or at is None else min(known, at)
        if self._changed is not None:
            self._changed.set()

    def may_send(self) -> bool:
        """Return whether the caller may send a hint itself, now. It then counts as sent; the caller calls `tell` for this process."""
        now = time.monotonic()
        if not self._address.notify or self._waiting or now < self._sent_at + PAUSE:
            return False
        self._sent_at = now
        return True

    async def close(self) -> None:
        self._listeners.clear()
        if self._task is not None:
            task, self._task = self._task, None
            if task.get_loop() is asyncio.get_running_loop():
                await self._last_words(task)
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await task

    async def _last_words(self, task: asyncio.Task[None]) -> None:
        """Send the hints that still wait.

        Without this, the task of a program that submits and ends at once would wait for the next poll.
        """
        if self._waiting and self._changed is not None:
            self._closing = True
            self._changed.set()
            await asyncio.wait([task], timeout=LAST_WORDS)
            self._closing = False

    def _ensure_running(self) -> None:
        """Keep one connection in the running event loop as long as there are hints to send or listeners."""
        if not self._address.notify:
            return
        loop = asyncio.get_running_loop()
        if self._task is None or self._task.done() or self._task.get_loop() is not loop:
            self._changed = asyncio.Event()
            if self._waiting:
                self._changed.set()
            self._task = loop.create_task(self._run(self._changed), name="duetime-wakeups")

    async def _run(self, changed: asyncio.Event) -> None:
        """Connect, listen, send; begin again after any failure.

        In an outage of the store the loops of the process say so, once for all of them. What is said here is for the rest: only
        wake-ups fail, or nothing else uses the store.
        """
        outage = outage_of(asyncio.get_running_loop())
        back_off, failures, failing_since, told = FIRST_BACK_OFF, 0, 0.0, False
        while True:
            link: Link | None = None
            try:
                link = await connect(self._address, lazy_commits=True)
                await link.connection.add_listener(self._channel, self._on_notification)
                if told:
                    logger.info("wake-ups: the connection is back after %d failures", failures)
                if failures:
                    self._deliver({HintKind.ANY: None})  # some may have been missed
                    self._deliver({HintKind.GATES: None, HintKind.CANCEL: None})
                back_off, failures, told = FIRST_BACK_OFF, 0, False
                await self._serve(link, changed)
                return
            except Exception as error:
                now = monotonic()
                failing_since = failing_since if failures else now
                failures += 1
                if not told and not outage.lasts and now - failing_since >= TELL_AFTER:
                    told = True
                    logger.warning("wake-ups: %s; polling goes on meanwhile", translated(error, self._address))
            finally:
                if link is not None:
                    link.drop()
            await asyncio.sleep(back_off)
            back_off = min(LONGEST_BACK_OFF, back_off * 2)

    async def _serve(self, link: Link, changed: asyncio.Event) -> None:
        """Send what there is to send, until the store is being closed and nothing is left."""
        while self._waiting or not self._closing:
            try:
                # not wait_for: before Python 3.12 it forgets a cancel that comes together with the event
                async with asyncio.timeout(PROBE_EVERY):
                    await changed.wait()
            except TimeoutError:
                await link.rows("select 1", timeout=PROBE_EVERY)  # a connection that is only listened to would die unnoticed
                continue
            changed.clear()
            if self._waiting:
                await asyncio.sleep(self._sent_at + PAUSE - time.monotonic())
                self._sent_at = time.monotonic()
                hints, self._waiting = self._waiting, {}
                try:
                    await link.rows("select pg_notify($1, $2)", [self._channel, _encode(self._sender, hints)], timeout=PROBE_EVERY)
                except BaseException:
                    for kind, at in hints.items():
                        self._await(kind, at)
                    raise

    def _on_notification(self, connection: Any, pid: int, channel: str, payload: object) -> None:
        try:
            message = _decode(str(payload))
            hints: _Kinds = {HintKind(kind): at for kind, at in message.hints.items()}
        except (ValueError, msgspec.DecodeError):
            hints = {HintKind.ANY: None}  # from another version, or from a person
        else:
            if message.sender == self._sender:
                return
        self._deliver(hints)

    def _deliver(self, hints: _Kinds) -> None:
        for kind, at in hints.items():
            for listener in list(self._listeners):
                listener.deliver(Hint(kind, at))


def _encode(sender: str, hints: _Kinds) -> str:
    return msgspec.json.encode(_Message(sender, {kind.value: at for kind, at in hints.items()})).decode()
