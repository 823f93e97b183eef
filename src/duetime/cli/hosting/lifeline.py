"""What ties a worker process to its supervisor: one socket, whose end on either side the kernel tells the other.

The worker holds its end as long as it lives, and so do its sub-processes: when the supervisor reads the end of the stream,
all of them are gone. When the worker does, the supervisor is gone, and it stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import stat
from collections.abc import Callable, MutableMapping

import click
import msgspec

SOCKET, WORKER, NUMBER = "DUETIME_SUPERVISOR", "DUETIME_WORKER_ID", "DUETIME_WORKER_NUMBER"
_WORKER_ID = re.compile(r"[0-9a-f]{16}")


class Found(msgspec.Struct, frozen=True, tag=True):
    """The App is there and its settings are right: this is who is about to register, where, and how long it may take to stop."""

    worker: str
    url: str
    grace: float


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The worker is registered and claims."""


class Left(msgspec.Struct, frozen=True, tag=True):
    """The worker has unregistered: there is nothing to take back from it."""


Message = Found | Ready | Left
_messages: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


def read_message(line: bytes) -> Message:
    return _messages.decode(line)


def environment(descriptor: int, worker: str, number: int) -> dict[str, str]:
    """Give the variables by which a worker process finds its lifeline."""
    return {SOCKET: str(descriptor), WORKER: worker, NUMBER: str(number)}


class Lifeline:
    """The worker's end. `worker` is the id that the supervisor chose for it, `number` its place among its like."""

    def __init__(self, connection: socket.socket, worker: str, number: int) -> None:
        self._connection = connection
        self.worker = worker
        self.number = number

    @classmethod
    def taken_from(cls, variables: MutableMapping[str, str]) -> Lifeline | None:
        """Take what the supervisor passed on, if there is one; what this process starts must not find it. The number stays."""
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

    def tell(self, message: Message) -> None:
        """Tell the supervisor, if it is still there; three small messages always fit into the socket."""
        with contextlib.suppress(OSError):
            self._connection.send(msgspec.json.encode(message) + b"\n")

    def watch(self, loop: asyncio.AbstractEventLoop, gone: Callable[[], None]) -> None:
        """Call when the supervisor has ended, in whatever way."""

        def look() -> None:
            with contextlib.suppress(BlockingIOError):
                if self._received():
                    return
                loop.remove_reader(self._connection)
                gone()

        loop.add_reader(self._connection, look)

    def _received(self) -> bytes:
        try:
            return self._connection.recv(4_096)
        except ConnectionError:
            return b""

    def survive(self, worker: str) -> dict[str, str]:
        """Keep it open for the program that takes this one's place under another id; give its variables."""
        os.set_inheritable(self.descriptor, True)
        return environment(self.descriptor, worker, self.number)
