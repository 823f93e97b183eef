"""What a worker has of a limit of the whole fleet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sized
from typing import Protocol

from duetime.model.limit import Limit

PLENTY = 1 << 30


class Waiter(Protocol):
    """A running attempt that waits for permits, and since when."""

    takes: int
    since: float

    def grant(self) -> None: ...


class Queue(Protocol):
    """The attempts of one handler that have not begun."""

    free: int  # slots
    more: bool  # whether the store may have due tasks for it

    @property
    def tasks(self) -> Sized: ...


class HeldLimit:
    """What this worker has of one limit. `target`: beyond it permits go back as they become free, because others lack them.

    `over`: more is out in the fleet than may be, because the limit was lowered. Then nothing starts, and what becomes free goes back.
    `waiters`: running attempts that want some (`ctx.limit`), first come first served; they come before attempts that have not begun.
    `mixed`: attempts of its handlers take different numbers, in the whole fleet. Then `first` is a queue here that has waited for long:
    nothing of the others begins before it. `yields`: somebody in another worker has waited longer still.
    """

    __slots__ = (
        "asked",
        "awaited",
        "declared",
        "first",
        "held",
        "mixed",
        "name",
        "over",
        "seen",
        "served",
        "step",
        "target",
        "used",
        "uses",
        "waiters",
        "yields",
    )

    def __init__(self, limit: Limit) -> None:
        self.name = limit.name
        self.declared = limit.running or 0
        self.uses: dict[str, int] = {}  # by each name of its handlers
        self.held = self.used = self.asked = self.seen = 0
        self.target = PLENTY
        self.step = 1  # what an attempt takes at least, of those that could run next
        self.awaited = 0  # the number of the call whose answer counts
        self.over = self.mixed = self.yields = False
        self.waiters: deque[Waiter] = deque()
        self.first: Queue | None = None
        self.served: Callable[[], None] | None = None  # called when an attempt of the first queue begins

    @property
    def free(self) -> int:
        """How many permits attempts that have not begun may take."""
        return 0 if self.waiters else self.left

    def free_for(self, queue: Queue) -> int:
        """How many permits attempts of a queue may take."""
        first = self.first
        if first is not None and first is not queue and first.free > 0 and (first.tasks or first.more):
            return 0
        return self.free

    def begin(self, queue: Queue) -> None:
        """Note that an attempt begins: others may, too, if this queue was waited for."""
        if self.first is queue:
            self.first = None
            if self.served is not None:
                self.served()

    @property
    def left(self) -> int:
        return 0 if self.over else min(self.held, self.target) - self.used

    @property
    def wanted_inside(self) -> int:
        """How many permits running attempts wait for."""
        return sum(waiter.takes for waiter in self.waiters)
