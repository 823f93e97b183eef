"""Wake-ups between processes on one file: datagrams to sockets beside it, and a look at the file's change counter beneath.

Each process that listens binds a socket in a folder beside the database. After a commit the writer sends one small
datagram to every socket there: the first at once, then at most one of a kind every 20 ms. A commit that nobody
announced (a caller's own transaction, another program) is found by `pragma data_version`, which costs 5 µs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import sqlite3
from collections.abc import Callable
from pathlib import Path

from duetime.clock import Instant
from duetime.runtime.permissions import make_folder, share
from duetime.store.sqlite.forking import lock_against_forks
from duetime.store.values import Hint, HintKind

logger = logging.getLogger("duetime.store")

PAUSE = 0.02
LOOK_EVERY = 0.02
LOOK_AT_OWN_EVERY = 0.1  # while this process writes itself, every look finds a change; most of them are its own


class Wakeups:
    """Sends and receives hints for one opened store."""

    def __init__(self, folder: Path | None, watch: Callable[[], sqlite3.Connection] | None) -> None:
        self._folder = folder
        self._watch = watch
        self._listeners: dict[Subscription, None] = {}  # in the order in which they came, which a simulation repeats
        self._sender: socket.socket | None = None
        self._quiet_until: dict[HintKind, float] = {}
        self._later: dict[HintKind, Instant | None] = {}
        self._descriptor: int | None = None
        self.own_writes = 0

    def __del__(self) -> None:
        if self._sender is not None:  # a program may end without closing its App
            self._sender.close()

    def listen(self, on_hint: Callable[[Hint], None]) -> Subscription:
        subscription = Subscription(self, on_hint, asyncio.get_running_loop())
        self._listeners[subscription] = None
        if self._folder is not None:
            subscription.bind(self._address_folder(), self._watch)
        return subscription

    def forget(self, subscription: Subscription) -> None:
        self._listeners.pop(subscription, None)

    def send(self, kind: HintKind, at: Instant | None = None) -> None:
        """Wake listeners of this process at once, and those of others at once or within 20 ms."""
        for listener in list(self._listeners):
            listener.deliver(Hint(kind, at))
        if self._folder is None:
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        if kind in self._later:
            known = self._later[kind]
            self._later[kind] = at if known is None else known if at is None else min(known, at)
        elif now >= self._quiet_until.get(kind, 0.0):
            self._quiet_until[kind] = now + PAUSE
            self._broadcast(kind, at)
        else:
            self._later[kind] = at
            loop.call_at(self._quiet_until[kind], self._send_later, kind, loop)

    def _send_later(self, kind: HintKind, loop: asyncio.AbstractEventLoop) -> None:
        if kind in self._later:
            self._quiet_until[kind] = loop.time() + PAUSE
            self._broadcast(kind, self._later.pop(kind))

    def _broadcast(self, kind: HintKind, at: Instant | None) -> None:
        if self._sender is None:
            self._sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._sender.setblocking(False)
        folder = self._address_folder()
        own = {listener.name for listener in self._listeners}
        message = f"{kind} {'' if at is None else at}".encode()
        try:
            names = os.listdir(folder)
        except OSError:
            return
        for name in names:
            if name in own:
                continue
            try:
                self._sender.sendto(message, f"{folder}/{name}")
            except ConnectionRefusedError:
                with contextlib.suppress(OSError):  # its process is gone
                    os.unlink(f"{folder}/{name}")
            except OSError:
                continue  # full, or just removed: it is only a hint

    def _address_folder(self) -> str:
        """Return the sockets' folder by a short name: a socket's path may have only some hundred characters."""
        assert self._folder is not None
        if self._descriptor is None:
            make_folder(self._folder, like=self._folder.parent)
            self._descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        short = f"/proc/self/fd/{self._descriptor}"
        return short if os.path.isdir(short) else str(self._folder)

    def close(self) -> None:
        for listener in list(self._listeners):
            listener.close()
        if self._sender is not None:
            self._sender.close()
            self._sender = None
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        self._later.clear()
        self._quiet_until.clear()


class Subscription:
    """One listener: a socket and a look at the change counter, both in the listener's event loop."""

    def __init__(self, wakeups: Wakeups, on_hint: Callable[[Hint], None], loop: asyncio.AbstractEventLoop) -> None:
        self.name = f"{os.getpid()}-{secrets.token_hex(6)}"
        self._wakeups = wakeups
        self._on_hint = on_hint
        self._loop = loop
        self._socket: socket.socket | None = None
        self._path: str | None = None
        self._connection: sqlite3.Connection | None = None
        self._in_sqlite = lock_against_forks()
        self._version: int | None = None
        self._look_handle: asyncio.TimerHandle | None = None
        self._own_writes = 0
        self._told_at = 0.0

    def bind(self, folder: str, watch: Callable[[], sqlite3.Connection] | None) -> None:
        receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        receiver.setblocking(False)
        self._path = f"{folder}/{self.name}"
        try:
            receiver.bind(self._path)
            share(self._path, like=folder)
        except OSError:
            receiver.close()  # no sockets on this system: polling suffices
            self._path = None
        else:
            self._socket = receiver
            self._loop.add_reader(receiver, self._receive, receiver)
        if watch is not None:
            with self._in_sqlite:
                self._connection = watch()
            self._version = self._read_version()
            self._look_handle = self._loop.call_later(LOOK_EVERY, self._look)

    def deliver(self, hint: Hint) -> None:
        if self._loop.is_closed():
            self.close()
        elif self._loop is asyncio.get_running_loop():
            self._tell(hint)
        else:
            self._loop.call_soon_threadsafe(self._tell, hint)

    def _tell(self, hint: Hint) -> None:
        """Pass a hint on. An exception of a listener is logged, and does not reach the sender."""
        try:
            self._on_hint(hint)
        except Exception:
            logger.exception("a listener failed on %s", hint)

    def _receive(self, receiver: socket.socket) -> None:
        hints: dict[HintKind, Instant | None] = {}
        for _ in range(100):
            try:
                message = receiver.recv(64)
            except OSError:
                break
            kind, _, at = message.decode("ascii", "replace").partition(" ")
            with contextlib.suppress(ValueError):  # not from us
                instant = int(at) if at else None
                hint = HintKind(kind)
                known = hints.get(hint, instant)
                hints[hint] = None if known is None or instant is None else min(known, instant)
        for hint, at_instant in hints.items():
            self._tell(Hint(hint, at_instant))

    def _look(self) -> None:
        version, now = self._read_version(), self._loop.time()
        ours = self._wakeups.own_writes != self._own_writes
        if version != self._version and (not ours or now - self._told_at >= LOOK_AT_OWN_EVERY):
            self._version, self._own_writes, self._told_at = version, self._wakeups.own_writes, now
            self._tell(Hint(HintKind.ANY))
        if self._connection is not None:
            self._look_handle = self._loop.call_later(LOOK_EVERY, self._look)

    def _read_version(self) -> int | None:
        assert self._connection is not None
        try:
            with self._in_sqlite:
                (version,) = self._connection.execute("pragma data_version").fetchone()
        except sqlite3.Error:
            return self._version
        return int(version)

    def close(self) -> None:
        self._wakeups.forget(self)
        if self._look_handle is not None:
            self._look_handle.cancel()
            self._look_handle = None
        if self._connection is not None:
            with self._in_sqlite:
                self._connection.close()
            self._connection = None
        if self._socket is not None:
            if not self._loop.is_closed():
                self._loop.remove_reader(self._socket)
            self._socket.close()
            self._socket = None
            if self._path is not None:
                with contextlib.suppress(OSError):
                    os.unlink(self._path)
