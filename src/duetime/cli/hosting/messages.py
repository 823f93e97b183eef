"""Messages that another process says over a socket, one to a line."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

M = TypeVar("M")


class Lines(Generic[M]):
    """Reads what has come over a socket that does not block. `hung_up` tells when nothing more will come."""

    def __init__(self, connection: socket.socket, read: Callable[[bytes], M]) -> None:
        self._connection = connection
        self._read = read
        self._heard = b""
        self.hung_up = False

    def receive(self) -> list[M]:
        """Give what was said since the last time."""
        try:
            while part := self._connection.recv(65_536):
                self._heard += part
            self.hung_up = True
        except BlockingIOError:
            pass
        except ConnectionError:
            self.hung_up = True
        *lines, self._heard = self._heard.split(b"\n")
        messages = []
        for line in lines:
            with contextlib.suppress(msgspec.MsgspecError):  # a handler that writes to descriptors which are not its own
                messages.append(self._read(line))
        return messages
