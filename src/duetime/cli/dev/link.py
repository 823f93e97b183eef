"""The socket between the two processes of `duetime dev`: the one that serves, and the one that watches the code.

As with `duetime.cli.hosting.lifeline`, each side sees when the other has ended, for whatever reason.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable
from typing import Literal

import msgspec

from duetime.cli.hosting.log import LogChoice
from duetime.cli.hosting.messages import MessageReader


class Launch(msgspec.Struct, frozen=True):
    """What a serving process is started with; passed as its only argument."""

    app: str
    link: int
    listener: int
    grace: float
    log: LogChoice
    url: str | None = None
    folder: str | None = None
    allow: tuple[Literal["command"], ...] = ()  # kinds of stored targets to run besides the usual ones
    quiet: bool = False  # the commands to try were printed already


class Loaded(msgspec.Struct, frozen=True, tag=True):
    """The code was imported, from these files below the watched folder. The process waits for `go`."""

    files: list[str]


class Serving(msgspec.Struct, frozen=True, tag=True):
    """Requests are answered and tasks are run."""


Message = Loaded | Serving
_messages: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)
_GO = b"go\n"


class WatcherEnd(MessageReader[Message]):
    """The end of the process that watches the code."""

    def __init__(self) -> None:
        self.socket, self.theirs = socket.socketpair()
        self.socket.setblocking(False)
        super().__init__(self.socket, _messages.decode)

    def send_go(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.send(_GO)

    def close(self) -> None:
        self.socket.close()


class ServingEnd:
    """The end of the process that serves. A thread reads it: an import or a blocked event loop must not hide the watcher's end."""

    def __init__(self, descriptor: int, on_end: Callable[[], None]) -> None:
        os.set_inheritable(descriptor, False)
        self._socket = socket.socket(fileno=descriptor)
        self._on_end = on_end
        self._go = threading.Event()
        threading.Thread(target=self._read, name="duetime-dev-link", daemon=True).start()

    def send(self, message: Message) -> None:
        with contextlib.suppress(OSError):
            self._socket.sendall(msgspec.json.encode(message) + b"\n")

    def wait_for_go(self) -> None:
        self._go.wait()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while self._socket.recv(1_024):
                self._go.set()
        self._on_end()
