"""Permits: what this worker has of limits of the whole fleet. Whether an attempt may start under them is decided in memory.

The store gives permits and takes them back in calls that are numbered. Giving back lowers our own number first, getting more raises it
last, so the store never counts less than may run here (`model.limit`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from duetime.clock import monotonic
from duetime.model.limit import Allotment, Ask, Limit
from duetime.runtime.service import Alarms, Service
from duetime.store import Store
from duetime.worker.held_limit import PLENTY, HeldLimit
from duetime.worker.queues import HandlerQueue

ASK_EVERY = 1.0  # seconds between two looks: a hint comes sooner, but may be lost


class Permits(Service):
    """Asks for permits when handlers could run more, and gives back what others lack."""

    name = "permits"

    def __init__(self, store: Store, worker: str, queues: Iterable[HandlerQueue], alarms: Alarms, *, more: Callable[[], None]) -> None:
        super().__init__(alarms)
        self._store = store
        self._worker = worker
        self._more = more
        self._number = int(monotonic() * 1e6)  # a worker that registers again under its name goes on from there
        self._handed_over: dict[str, HandlerQueue] = {}
        self.limits: dict[str, HeldLimit] = {}
        self._queues = [queue for queue in dict.fromkeys(queues) if queue.spec.limits]
        for queue in self._queues:
            queue.limits = tuple((self._limit_of(limit, queue.names), limit.each) for limit in queue.spec.limits)

    def _limit_of(self, limit: Limit, names: Mapping[str, bool]) -> HeldLimit:
        held = self.limits.setdefault(limit.name, HeldLimit(limit))
        held.uses |= dict.fromkeys(names, limit.each)
        return held

    def forget(self) -> None:
        """Begin anew: the store took this worker for dead, and nothing runs here any more."""
        for limit in self.limits.values():
            limit.held = limit.asked = limit.awaited = 0
        self.wake()

    # ---- what attempts do ----

    def free(self, queue: HandlerQueue) -> None:
        """Take back what an attempt had that has ended."""
        for limit, each in queue.limits:
            limit.used -= each
            if limit.held > max(limit.used, limit.target):
                self.wake()

    def hand_over(self, task: str, queue: HandlerQueue) -> None:
        """Keep the permits of an attempt that somebody else goes on with, until the store counts it there."""
        self._handed_over[task] = queue

    def handed_over(self, tasks: Iterable[str]) -> None:
        """The store counts these as accepted, so their permits are not ours any more; answers from before that do not count."""
        for task in tasks:
            queue = self._handed_over.pop(task, None)
            for limit, each in queue.limits if queue is not None else ():
                limit.used -= each
                limit.held -= each
                limit.awaited = 0
                self.wake()

    def need(self) -> None:
        """Ask if handlers could run more than there are permits for."""
        if any(self._need(limit)[0] > limit.asked for limit in self.limits.values()):
            self.wake()

    def _need(self, limit: HeldLimit) -> tuple[int, int]:
        """Return how many permits would be used if the store had all that our handlers could run, and what one attempt takes at least."""
        need, steps = limit.used, []
        for queue in self._queues:
            for each, cost in queue.limits:
                if each is limit and (attempts := max(len(queue.tasks), queue.free if queue.more else 0)):
                    need += cost * attempts
                    steps.append(cost)
        return need, min(steps, default=1)

    # ---- asking ----

    async def run_once(self) -> float | None:
        if not self.limits:
            return None
        self._number = number = max(self._number + 1, int(monotonic() * 1e6))
        asks = []
        for limit in self.limits.values():
            limit.asked, limit.step = self._need(limit)
            want = limit.asked
            if limit.target == PLENTY:
                want = max(want, limit.held)  # idle ones are kept for what comes, as long as nobody lacks them
            elif limit.held:
                want = min(want, max(limit.used, limit.target))
            limit.held = min(limit.held, max(limit.used, want))  # before the store's number
            limit.awaited = number
            asks.append(
                Ask(
                    limit=limit.name,
                    declared=limit.declared,
                    uses=limit.uses,
                    held=limit.held,
                    want=max(want, limit.used),
                    seen=limit.seen,
                    least=limit.used + limit.step,
                    need=limit.asked,
                )
            )
        before = {name: limit.held for name, limit in self.limits.items()}
        again = False
        for allotment in await self._store.allot(self._worker, number, asks):
            again = self._apply(self.limits[allotment.limit], allotment, number) or again
        if any(limit.held > before[name] for name, limit in self.limits.items()):
            self._more()
        return 0.0 if again else ASK_EVERY

    def _apply(self, limit: HeldLimit, allotment: Allotment, number: int) -> bool:
        """Take an answer; return whether to ask again at once, to confirm a version or to give back what others lack."""
        before = limit.held
        if limit.awaited == number:
            limit.held = allotment.permits
        limit.target = PLENTY
        if allotment.is_over:
            limit.target = limit.used
        elif allotment.lacking and limit.held <= before:  # what has just come is used once
            is_useless = limit.used < limit.held < limit.used + limit.step
            limit.target = allotment.share if allotment.share >= limit.step and not is_useless else 0
        is_new, limit.seen = allotment.version != limit.seen, allotment.version
        return is_new or limit.held > max(limit.used, limit.target)
