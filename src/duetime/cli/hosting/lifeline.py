"""The socket between a worker process and its supervisor. When one side ends, the kernel closes its end and the other side sees it.

The worker and its sub-processes keep their end open as long as they live. When the supervisor reads end-of-file, all of them are
gone. When the worker does, the supervisor is gone, and the worker stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import socket
import stat
from collections.abc import Callable, MutableMapping

import click
import msgspec

SOCKET, WORKER, NUMBER = "DUETIME_SUPERVISOR", "DUETIME_WORKER_ID", "DUETIME_WORKER_NUMBER"
_WORKER_ID = re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9_-]{0,63}\.)?[0-9a-f]{8,16}")


class Found(msgspec.Struct, frozen=True, tag=True):
    """The App was imported and its settings are valid. Names the worker that is about to register, its store, grace and process."""

    worker: str
    url: str
    grace: float
    pid: int


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The worker is registered and claims."""


class Left(msgspec.Struct, frozen=True, tag=True):
    """The worker has unregistered: it has no claims left."""


Message = Found | Ready | Left
_messages: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


def read_message(line: bytes) -> Message:
    return _messages.decode(line)


def environment(descriptor: int, worker: str, number: int) -> dict[str, str]:
    """Return the variables by which a worker process finds its lifeline."""
    return {SOCKET: str(descriptor), WORKER: worker, NUMBER: str(number)}


def new_worker_id(name: str | None = None) -> str:
    """Return an id for a worker: random, because one that died may still be counted as alive, and with its name before that."""
    return secrets.token_hex(8) if name is None else f"{name}.{secrets.token_hex(4)}"


def successor_of(worker: str) -> str:
    """Return another id for a worker of the same name."""
    name, dot, _ = worker.rpartition(".")
    return new_worker_id(name if dot else None)


class Lifeline:
    """The worker's end. `worker` is the id that the supervisor chose, `number` counts the processes from 1."""

    def __init__(self, connection: socket.socket, worker: str, number: int) -> None:
        self._connection = connection
        self.worker = worker
        self.number = number

    @classmethod
    def take_from(cls, variables: MutableMapping[str, str]) -> Lifeline | None:
        """Take the lifeline out of the environment, so that sub-processes do not find it. The number stays there."""
        given, worker = variables.pop(SOCKET, None), variables.pop(WORKER, "")
        if given is None:
            return None
        try:
            descriptor, number = int(given), int(variables[NUMBER])
            if not _WORKER_ID.fullmatch(worker) or not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                raise ValueError
        except (KeyError, ValueError, OSError):
            raise click.UsageError(f"{SOCKET} is for processes that `duetime worker --processes` starts; unset it") from None
        os.set_inheritable(descriptor, False)
        connection = socket.socket(fileno=descriptor)
        connection.setblocking(False)
        return cls(connection, worker, number)

    @property
    def descriptor(self) -> int:
        return self._connection.fileno()

    def send(self, message: Message) -> None:
        """Send a message, if the supervisor still lives. Three small messages always fit into the socket's buffer."""
        with contextlib.suppress(OSError):
            self._connection.send(msgspec.json.encode(message) + b"\n")

    def watch(self, loop: asyncio.AbstractEventLoop, on_end: Callable[[], None]) -> None:
        """Call `on_end` when the supervisor has ended, for whatever reason."""

        def read() -> None:
            with contextlib.suppress(BlockingIOError):
                if self._received():
                    return
                loop.remove_reader(self._connection)
                on_end()

        loop.add_reader(self._connection, read)

    def _received(self) -> bytes:
        try:
            return self._connection.recv(4_096)
        except ConnectionError:
            return b""

    def pass_on(self, worker: str) -> dict[str, str]:
        """Keep the socket open across `exec`; return the variables for the new program and its new id."""
        os.set_inheritable(self.descriptor, True)
        return environment(self.descriptor, worker, self.number)
