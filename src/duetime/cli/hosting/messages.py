"""Messages that another process sends over a socket, one per line."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

M = TypeVar("M")


class MessageReader(Generic[M]):
    """Reads messages from a non-blocking socket. `hung_up` is true when no more will come."""

    def __init__(self, connection: socket.socket, decode: Callable[[bytes], M]) -> None:
        self._connection = connection
        self._decode = decode
        self._buffer = b""
        self.hung_up = False

    def receive(self) -> list[M]:
        """Return the messages that have arrived since the last call."""
        try:
            while part := self._connection.recv(65_536):
                self._buffer += part
            self.hung_up = True
        except BlockingIOError:
            pass
        except ConnectionError:
            self.hung_up = True
        *lines, self._buffer = self._buffer.split(b"\n")
        messages = []
        for line in lines:
            with contextlib.suppress(msgspec.MsgspecError):  # written by a handler into a descriptor that is not its own
                messages.append(self._decode(line))
        return messages
