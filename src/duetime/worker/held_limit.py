"""What a worker has of a limit of the whole fleet."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from duetime.model.limit import Limit

PLENTY = 1 << 30


class Waiter(Protocol):
    """A running attempt that waits for permits."""

    takes: int

    def grant(self) -> None: ...


class HeldLimit:
    """What this worker has of one limit. `target`: beyond it permits go back as they become free, because others lack them.

    `over`: more is out in the fleet than may be, because the limit was lowered. Then nothing starts, and what becomes free goes back.
    `waiters`: running attempts that want some (`ctx.limit`), first come first served; they come before attempts that have not begun.
    """

    __slots__ = ("asked", "awaited", "declared", "held", "name", "over", "seen", "step", "target", "used", "uses", "waiters")

    def __init__(self, limit: Limit) -> None:
        self.name = limit.name
        self.declared = limit.running or 0
        self.uses: dict[str, int] = {}  # by each name of its handlers
        self.held = self.used = self.asked = self.seen = 0
        self.target = PLENTY
        self.step = 1  # what an attempt takes at least, of those that could run next
        self.awaited = 0  # the number of the call whose answer counts
        self.over = False
        self.waiters: deque[Waiter] = deque()

    @property
    def free(self) -> int:
        """How many permits attempts that have not begun may take."""
        return 0 if self.waiters else self.left

    @property
    def left(self) -> int:
        return 0 if self.over else min(self.held, self.target) - self.used

    @property
    def wanted_inside(self) -> int:
        """How many permits running attempts wait for."""
        return sum(waiter.takes for waiter in self.waiters)
