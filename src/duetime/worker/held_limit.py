"""What a worker has of a limit of the whole fleet."""

from __future__ import annotations

from duetime.model.limit import Limit

PLENTY = 1 << 30


class HeldLimit:
    """What this worker has of one limit. `target`: beyond it permits go back as they become free, because others lack them."""

    __slots__ = ("asked", "awaited", "declared", "held", "name", "seen", "step", "target", "used", "uses")

    def __init__(self, limit: Limit) -> None:
        self.name = limit.name
        self.declared = limit.running
        self.uses: dict[str, int] = {}  # by each name of its handlers
        self.held = self.used = self.asked = self.seen = 0
        self.target = PLENTY
        self.step = 1  # what an attempt takes at least, of those that could run next
        self.awaited = 0  # the number of the call whose answer counts

    @property
    def free(self) -> int:
        return min(self.held, self.target) - self.used
