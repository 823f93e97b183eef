"""Whether an attempt may start, decided in memory in the thread that starts it.

Claimed is not started: between the two lie the reply, the queue and the event loop. Meanwhile a gate may have been closed, the
task cancelled or expired, or the worker have lost its lease.
"""

from __future__ import annotations

from collections.abc import Callable

from duetime.clock import Instant
from duetime.model.gate import Gates
from duetime.model.outcome import Outcome
from duetime.store.values import ClaimedTask


def has_expired(claimed: ClaimedTask, now: Instant) -> bool:
    """Return whether it is too late to start an attempt. It goes back, and the store's next look at it ends its task."""
    return claimed.expires_at is not None and claimed.expires_at <= now


class Starts:
    """What keeps attempts from starting: gates, cancels of tasks that wait, and a worker that must not start any.

    An attempt is *beginning* from when its target may begin until its code runs. A gate that holds such an attempt must not be confirmed
    before that; `on_begun` is called when one has begun, or has ended.
    """

    def __init__(self, now: Callable[[], Instant]) -> None:
        self._now = now
        self._gates = Gates()
        self.allowed = True
        self.beginning: dict[str, ClaimedTask] = {}
        self.gated = False  # whether there are gates at all
        self.cancels: set[str] = set()  # tasks that wait in memory
        self.probes: set[str] = set()  # tasks that were claimed to pass an automatic gate
        self.on_begun: Callable[[], None] | None = None

    @property
    def gates(self) -> Gates:
        return self._gates

    @gates.setter
    def gates(self, gates: Gates) -> None:
        self._gates, self.gated = gates, bool(gates)

    def refusal(self, claimed: ClaimedTask) -> Outcome | None:
        """Return how an attempt ends that may not start; None if it may."""
        if claimed.id in self.cancels:
            self.cancels.discard(claimed.id)
            return Outcome.CANCELLED
        return Outcome.RELEASED if has_expired(claimed, self._now()) or self.held_back(claimed) else None

    def held_back(self, claimed: ClaimedTask) -> bool:
        """Return whether the worker or a gate keeps an attempt from starting."""
        if not self.allowed:
            return True
        gate = self._gates.holding(claimed.handler, claimed.collection, self._now()) if self.gated else None
        return gate is not None and not (gate.automatic and claimed.id in self.probes)

    @property
    def too_late(self) -> bool:
        """Whether an attempt is beginning that may not start any more."""
        return any(map(self.held_back, self.beginning.values()))

    def begin(self, claimed: ClaimedTask) -> None:
        self.beginning[claimed.id] = claimed

    def begun(self, task: str) -> None:
        if self.beginning.pop(task, None) is not None and self.on_begun is not None:
            self.on_begun()
