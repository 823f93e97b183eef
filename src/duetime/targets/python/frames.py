"""The protocol between a worker and its child processes: frames of four bytes of length and JSON, over one socket.

Orders that follow the one under way come over a second socket, one packet each, which both sides read: what the worker reads back the
child has not taken, and never will.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Coroutine
from typing import Any, TypeAlias, TypeVar

import msgspec

from duetime.model.flow_values import Source
from duetime.model.outcome import Ended, Outcome
from duetime.model.steps import NewStep, StepRecord
from duetime.model.task import ErrorInfo, NewTask, TaskRecord
from duetime.store.flows import NewPiece, PieceVerdict
from duetime.store.results import ResultsPage
from duetime.store.values import ClaimedTask

MAX_FRAME = 16 * 1_048_576
MAX_PACKET = 65_536
LOOP_EVERY = 0.02  # seconds after which a child's event loop runs, for what the lifespan keeps alive
# A real-time signal that nobody uses by habit: by it the worker tells a child to stop its attempt. None where there is none.
INTERRUPT = signal.SIGRTMIN + 8 if hasattr(signal, "SIGRTMIN") else None


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """The first frame to a child: what to import from where, and which descriptors it has."""

    app: str
    path: list[str]
    followers: int  # where orders come that follow the one under way
    printed: int  # the reading end of what the child prints
    passed_through: int
    inherited: list[int]


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt to perform. One that follows another begins when that has ended: `clock` is what the child adds to its monotonic clock
    to know when that was, and `timeout` how many microseconds it may take.
    """

    task: ClaimedTask
    started_at: int
    deadline_at: int
    output_path: str | None
    output_cap: int
    clock: int | None = None
    timeout: int = 0

    def begun(self) -> Order:
        """Return the order of an attempt that begins now."""
        if self.clock is None:
            return self
        now = self.clock + time.monotonic_ns() // 1_000
        return msgspec.structs.replace(self, started_at=now, deadline_at=now + self.timeout)


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The app is there and its lifespan entered."""


class NotReady(msgspec.Struct, frozen=True, tag="not_ready"):
    """The app could not be imported or its lifespan not entered; the child ends."""

    error: ErrorInfo


class Began(msgspec.Struct, frozen=True, tag="began"):
    """The attempt's own code is about to run: from now on the child's death is the attempt's."""

    started_at: int


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
    """The attempt's code has ended, after so many microseconds. `silent`: nothing was written to its output file.

    After a success the child takes what follows at once; otherwise it waits for an order over the socket of frames.
    """

    ended: Ended
    silent: bool = False
    took: int = 0

    @property
    def goes_on(self) -> bool:
        """Whether the child takes what follows."""
        return self.ended.outcome is Outcome.SUCCEEDED


Value = TypeVar("Value")
Answer: TypeAlias = Ready | NotReady | Began | Progress | Ask | Done


def frame(message: msgspec.Struct) -> bytes:
    """Return a message as it is sent."""
    data = msgspec.json.encode(message)
    return len(data).to_bytes(4, "big") + data


def packets() -> tuple[socket.socket, socket.socket]:
    """Return the two ends of a socket for whole packets."""
    try:
        return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError:  # not on this system
        return socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)


def take_packet(connection: socket.socket) -> bytes | None:
    """Return the next packet; None if there is none now. Of several who read the same socket one gets it."""
    try:
        return connection.recv(MAX_PACKET, socket.MSG_DONTWAIT) or None
    except BlockingIOError:
        return None


class Inbox:
    """Where a child finds its orders. The event loop runs while there is none, and now and then while there are."""

    def __init__(self, channel: Channel, followers: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self._channel = channel
        self._followers = followers
        self._loop = loop
        self._ran_at = 0.0
        self._orders = msgspec.json.Decoder(Order)

    def next(self, *, follows: bool) -> Order | None:
        """Return the next order, which may be one that follows the last; None when the worker has closed its end."""
        now = time.monotonic()
        if now - self._ran_at > LOOP_EVERY:
            self._run(asyncio.sleep(0))
        data = take_packet(self._followers) if follows else None
        if data is None:
            data = self._run(self._wait(follows=follows))
        return None if data is None else self._orders.decode(data)

    def _run(self, call: Coroutine[Any, Any, Value]) -> Value:
        value = self._loop.run_until_complete(call)
        self._ran_at = time.monotonic()
        return value

    async def _wait(self, *, follows: bool) -> bytes | None:
        while follows:
            if await self._ready() == self._channel.fileno():
                break
            data = take_packet(self._followers)
            if data is not None:
                return data
        return await self._channel.receive()

    async def _ready(self) -> int:
        """Return which of the two sockets can be read."""
        ready: asyncio.Future[int] = self._loop.create_future()
        both = (self._channel.fileno(), self._followers.fileno())
        for each in both:
            self._loop.add_reader(each, _tell, ready, each)
        try:
            return await ready
        finally:
            for each in both:
                self._loop.remove_reader(each)


def _tell(ready: asyncio.Future[int], which: int) -> None:
    if not ready.done():
        ready.set_result(which)


class Channel:
    """A child's end of the socket of frames. Orders are awaited in the loop; answers are sent by any thread, whole."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._lock = threading.Lock()
        self.sending = False
        self._writable = select.poll()
        self._writable.register(connection, select.POLLOUT)

    def fileno(self) -> int:
        return self._connection.fileno()

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
