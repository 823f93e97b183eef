"""What ties the serving process of `duetime dev` to the one that watches the code: one socket, and a few words over it.

As with `duetime.cli.hosting.lifeline`, the kernel tells either side when the other has ended, however it ended.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable

import msgspec

from duetime.cli.hosting.messages import Lines


class Launch(msgspec.Struct, frozen=True):
    """What a serving process is started with; passed as its only argument."""

    app: str
    link: int
    listener: int
    grace: float
    log_level: str
    url: str | None = None
    folder: str | None = None
    quiet: bool = False  # the commands to try have been shown already


class Loaded(msgspec.Struct, frozen=True, tag=True):
    """The code could be imported, from these files below the watched folder. The process waits for the word to go on."""

    files: list[str]


class Serving(msgspec.Struct, frozen=True, tag=True):
    """Requests are answered and tasks are run."""


Message = Loaded | Serving
_messages: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)
_GO = b"go\n"


class WatcherEnd(Lines[Message]):
    """The end of the process that watches."""

    def __init__(self) -> None:
        self.socket, self.theirs = socket.socketpair()
        self.socket.setblocking(False)
        super().__init__(self.socket, _messages.decode)

    def go_on(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.send(_GO)

    def close(self) -> None:
        self.socket.close()


class ServingEnd:
    """The end of the process that serves. A thread listens: neither an import nor a blocked event loop may hide the watcher's end."""

    def __init__(self, descriptor: int, gone: Callable[[], None]) -> None:
        os.set_inheritable(descriptor, False)
        self._socket = socket.socket(fileno=descriptor)
        self._gone = gone
        self._go = threading.Event()
        threading.Thread(target=self._listen, name="duetime-dev-link", daemon=True).start()

    def tell(self, message: Message) -> None:
        with contextlib.suppress(OSError):
            self._socket.sendall(msgspec.json.encode(message) + b"\n")

    def wait_for_go(self) -> None:
        self._go.wait()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while self._socket.recv(1_024):
                self._go.set()
        self._gone()
