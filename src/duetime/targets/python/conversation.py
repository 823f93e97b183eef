"""What a worker and one of its child processes tell each other: orders there, answers back.

The first order goes as a frame. While it is performed more may follow it as packets over a second socket, and the child takes one as soon
as it has ended another well: neither side waits for the other. Both read that socket, so the kernel decides of each packet who has it: what
is taken back never begins. While many are under way the worker looks for answers every millisecond instead of being woken by each.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec

from duetime.targets.python.asking import answer as answer_question
from duetime.targets.python.frames import (
    MAX_FRAME,
    Answer,
    Ask,
    Began,
    Done,
    NotReady,
    Order,
    Progress,
    Ready,
    Setup,
    frame,
    packets,
    take_packet,
)
from duetime.targets.steps import StepDoor

MOST = 64  # orders that a child has at once
MANY = 4  # of them are worth looking for answers now and then
LOOK_AFTER = 0.001
STALLED_AFTER = 0.02  # seconds after which what waits behind an attempt is taken back: another child may have time

_answers: msgspec.json.Decoder[Answer] = msgspec.json.Decoder(Answer)


class Broken(Exception):
    """The child died, or sent a frame that does not belong there."""


# How an order ended, and whether the child has nothing else to do; None: the child never began it.
End: TypeAlias = Done | Broken | None


class Performance(msgspec.Struct, eq=False):
    """An order that a child has, and what is called in the event loop when it begins, reports and ends: with its end, whether that leaves
    the child without anything to do, and whether its code has begun.

    `following` returns what may follow it in the same child, given how many that has and how many it may get. `next_up` is called when it
    is the child's next: it begins, unless it is taken back.
    """

    order: Order
    ended: Callable[[End, bool, bool], None]
    began: Callable[[int], None]
    progress: Callable[[float, str], None]
    steps: StepDoor | None = None
    following: Callable[[int, int], Sequence[Performance]] | None = None
    next_up: Callable[[], None] | None = None
    has_begun: bool = False


class Conversation(asyncio.Protocol):
    """The worker's side, for one child."""

    def __init__(self, connection: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self._connection = connection
        self._packets_out, self.packets_in = packets()
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._performing: deque[Performance] = deque()
        self._first: asyncio.Future[Answer] | None = None
        self._broken: Broken | None = None
        self._telling: asyncio.Task[None] | None = None
        self._stall: asyncio.TimerHandle | None = None
        self._ends = 0
        self.orders = 0  # that it was given and that were not taken back
        self.may_follow = True  # whether orders may follow others

    async def begin(self, setup: Setup) -> Answer:
        """Say what to import, and return the answer to that."""
        self._first = self._loop.create_future()
        self._transport, _ = await self._loop.create_unix_connection(lambda: self, sock=self._connection)
        self._transport.write(frame(setup))
        return await self._first

    @property
    def under_way(self) -> bool:
        """Whether the child has something to answer."""
        return bool(self._performing) or (self._first is not None and not self._first.done())

    @property
    def current(self) -> Performance | None:
        """The attempt that it performs, or is about to."""
        return self._performing[0] if self._performing else None

    # ---- orders ----

    def perform(self, performance: Performance) -> None:
        """Have an attempt performed; the child has nothing else to do."""
        self.may_follow = True
        self.orders += 1
        self._performing.append(performance)
        if self._broken is not None or self._transport is None:
            self._loop.call_soon(self._break, Broken(""))
        else:
            self._transport.write(frame(performance.order))

    def _follow(self, performance: Performance) -> bool:
        """Have an attempt performed after the others; return False if the child can be given no more."""
        try:
            self._packets_out.send(msgspec.json.encode(performance.order), socket.MSG_DONTWAIT)
        except OSError:  # full, or larger than a packet may be
            return False
        self.orders += 1
        self._performing.append(performance)
        return True

    def take_back(self) -> None:
        """Take back what the child has not taken, and have nothing follow what it has."""
        self.may_follow = False
        if self._broken is None:
            self._take_back()

    def _take_back(self) -> None:
        back = []
        while take_packet(self.packets_in) is not None:
            back.append(self._performing.pop())
        self.orders -= len(back)
        free = not self._performing
        for each in back[:-1]:  # the last one first
            each.ended(None, False, False)
        if back:
            back[-1].ended(None, free, False)

    def took_last(self, task: str) -> bool:
        """Return whether a task's attempt is the last that the child has."""
        return bool(self._performing) and self._performing[-1].order.task.id == task

    def _refill(self) -> None:
        following = self._performing[0].following if self._performing and self.may_follow and self._broken is None else None
        if following is None or len(self._performing) > MOST // 2:
            return
        more = following(len(self._performing), MOST)
        sent = 0
        for each in more:
            if not self._follow(each):
                break
            sent += 1
        for each in reversed(more[sent:]):
            each.ended(None, False, False)
        if sent and self._stall is None:
            self._stall = self._loop.call_later(STALLED_AFTER, self._check, self._ends)

    def _check(self, ends: int) -> None:
        self._stall = None
        if len(self._performing) > 1 and self._broken is None:
            if self._ends == ends:
                self._take_back()
            else:
                self._stall = self._loop.call_later(STALLED_AFTER, self._check, self._ends)

    # ---- answers ----

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        try:
            self._read()
        except Broken as broken:
            self._break(broken)
        except msgspec.MsgspecError as problem:
            self._break(Broken(f"it sent a malformed frame: {problem}"))
        else:
            self._refill()
            if len(self._performing) >= MANY and self._transport is not None:
                self._transport.pause_reading()
                self._loop.call_later(LOOK_AFTER, self._look)

    def _look(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _read(self) -> None:
        buffer, at = self._buffer, 0
        while len(buffer) - at >= 4:
            size = int.from_bytes(buffer[at : at + 4], "big")
            if size > MAX_FRAME:
                raise Broken(f"it sent a frame of {size:,} bytes; at most {MAX_FRAME:,} are allowed")
            if len(buffer) - at - 4 < size:
                break
            at += 4 + size
            self._take(_answers.decode(buffer[at - size : at]))
        del buffer[:at]

    def _take(self, answer: Answer) -> None:
        if self._first is not None and not self._first.done():
            self._first.set_result(answer)
            return
        if not self._performing:
            raise Broken(f"it answered {type(answer).__name__} without an order")
        performance = self._performing[0]
        match answer:
            case Began(started_at):
                performance.has_begun = True
                performance.began(started_at)
            case Progress(fraction, text):
                performance.progress(fraction, text)
            case Ask() as question:
                self._telling = self._loop.create_task(self._tell(performance.steps, question))
            case Done() as done:
                self._end(performance, done)
            case Ready() | NotReady():
                raise Broken(f"it answered {type(answer).__name__} in the middle of an attempt")

    def _end(self, performance: Performance, done: Done) -> None:
        self._ends += 1
        if not done.goes_on:
            self._take_back()  # the child waits until it is given another order
        elif len(self._performing) == 1:
            self._refill()
        self._performing.popleft()
        following = self.current
        if following is not None and following.next_up is not None:
            following.next_up()
        performance.ended(done, following is None, True)

    async def _tell(self, steps: StepDoor | None, question: Ask) -> None:
        told = await answer_question(steps, question)
        if self._transport is not None:
            self._transport.write(frame(told))

    # ---- its end ----

    def connection_lost(self, exc: Exception | None) -> None:
        self._break(Broken(""))

    def _break(self, broken: Broken) -> None:
        """Nothing more can be said: pass on what became of all that the child had."""
        if self._broken is None:
            self._take_back()
            self._broken = broken
            self._packets_out.close()
            self.packets_in.close()
        if self._first is not None and not self._first.done():
            self._first.set_exception(broken)
        if self._stall is not None:
            self._stall.cancel()
        performing, self._performing = self._performing, deque()
        for each in reversed(performing):
            each.ended(broken, False, each.has_begun)

    def close(self) -> None:
        """Let the child leave once it has nothing to do."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        else:
            self._connection.close()
            with contextlib.suppress(OSError):
                self._packets_out.close()
                self.packets_in.close()
