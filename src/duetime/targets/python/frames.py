"""The protocol between a worker and its child processes: frames of four bytes of length and JSON, over one socket."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import threading
from typing import Any, TypeAlias

import msgspec

from duetime.model.flow_values import Source
from duetime.model.outcome import Ended
from duetime.model.steps import NewStep, StepRecord
from duetime.model.task import ErrorInfo, NewTask, TaskRecord
from duetime.store.flows import NewPiece, PieceVerdict
from duetime.store.results import ResultsPage
from duetime.store.values import ClaimedTask

MAX_FRAME = 16 * 1_048_576
# A real-time signal that nobody uses by habit: by it the worker tells a child to stop its attempt. None where there is none.
INTERRUPT = signal.SIGRTMIN + 8 if hasattr(signal, "SIGRTMIN") else None


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """The first frame to a child: what to import from where, and which descriptors it has."""

    app: str
    path: list[str]
    printed: int  # the reading end of what the child prints
    passed_through: int
    inherited: list[int]


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt to perform."""

    task: ClaimedTask
    started_at: int
    deadline_at: int
    output_path: str | None
    output_cap: int


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The app is there and its lifespan entered."""


class NotReady(msgspec.Struct, frozen=True, tag="not_ready"):
    """The app could not be imported or its lifespan not entered; the child ends."""

    error: ErrorInfo


class Began(msgspec.Struct, frozen=True, tag="began"):
    """The attempt's own code is about to run: from now on the child's death is the attempt's."""


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """How far the attempt is."""

    fraction: float
    text: str


class Ask(msgspec.Struct, frozen=True, tag="ask", kw_only=True):
    """What an attempt needs of the store: the saved steps of the task, a step saved, tasks added, what became of tasks, a piece of what it
    yields kept, or results that it reads.
    """

    load: str | None = None
    save: NewStep | None = None
    add: list[NewTask[Any]] | None = None
    records: list[str] | None = None
    emit: NewPiece | None = None
    results: tuple[str, Source, int] | None = None


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """The worker's answer to that. `error`: the class and the message of an exception that is raised in the child instead."""

    steps: list[StepRecord] = []
    saved: StepRecord | None = None
    records: list[TaskRecord | None] = []
    verdict: PieceVerdict | None = None
    page: ResultsPage | None = None
    error: tuple[str, str] | None = None


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The attempt's code has ended. `silent`: nothing was written to its output file."""

    ended: Ended
    silent: bool = False


Answer: TypeAlias = Ready | NotReady | Began | Progress | Ask | Done


def frame(message: msgspec.Struct) -> bytes:
    """Return a message as it is sent."""
    data = msgspec.json.encode(message)
    return len(data).to_bytes(4, "big") + data


class Channel:
    """A child's end of the socket. Orders are awaited in the loop; answers are sent by any thread, whole."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._lock = threading.Lock()
        self.sending = False
        self._writable = select.poll()
        self._writable.register(connection, select.POLLOUT)

    async def receive(self) -> bytes | None:
        """Return the next frame; None when the worker has closed its end."""
        size = await self._exactly(4)
        return None if size is None else await self._exactly(int.from_bytes(size, "big"))

    async def _exactly(self, size: int) -> bytes | None:
        loop = asyncio.get_running_loop()
        data = bytearray()
        while len(data) < size:
            part = await loop.sock_recv(self._connection, size - len(data))
            if not part:
                return None
            data += part
        return bytes(data)

    def send(self, answer: Answer) -> None:
        left = memoryview(frame(answer))
        with self._lock:
            self.sending = True
            while left:
                try:
                    left = left[self._connection.send(left) :]
                except BlockingIOError:
                    self._writable.poll()
                except OSError:
                    os._exit(1)  # the worker is gone
            self.sending = False
