"""One connection through a proxy."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import socket
import struct
import threading
from dataclasses import dataclass

from tests.servers.wire import Conversation


class Side(enum.Enum):
    """Who says what passes."""

    CLIENT = "client"
    SERVER = "server"


class Cut(enum.Enum):
    """How a connection ends: `FIN` after all that was said, as when a process ends; `RST` at once, as when a machine was lost."""

    FIN = "fin"
    RST = "rst"


@dataclass
class Limit:
    """How many bytes of a side may still pass."""

    left: int
    how: Cut
    done: threading.Event


@dataclass
class Loss:
    """An answer that must not arrive: that to a request which contains all markers."""

    markers: tuple[bytes, ...]
    done: threading.Event


@dataclass(eq=False)
class Link:
    """A client's connection and the one that the proxy made to the server for it.

    `readers` receive what a side says; `writers` pass it on, so each belongs to the other side's socket.
    """

    readers: dict[Side, asyncio.StreamReader]
    writers: dict[Side, asyncio.StreamWriter]
    conversation: Conversation
    over: bool = False  # nothing passes any more
    gap: bool = False  # something was swallowed, so nothing that follows would make sense
    loss: Loss | None = None

    def cut(self, how: Cut) -> None:
        self.over = True
        for writer in self.writers.values():
            if how is Cut.RST:
                reset(writer)
            elif not writer.is_closing():
                with contextlib.suppress(OSError):  # its other end is gone already
                    writer.write_eof()  # and go on reading: to close a socket with unread bytes would send RST


def reset(writer: asyncio.StreamWriter) -> None:
    """Close a socket so that its other end is told of an error."""
    if not writer.is_closing():
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
