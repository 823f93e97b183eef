"""Permits: what this worker has of limits of the whole fleet. Whether an attempt may start under them is decided in memory.

The store gives permits and takes them back in calls that are numbered. Giving back lowers our own number first, getting more raises it
last, so the store never counts less than may run here (`model.limit`).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping

from duetime.clock import monotonic
from duetime.errors import InvalidValue
from duetime.model.limit import Allotment, Ask, CountedLimit, Limit
from duetime.runtime.service import Alarms, Service
from duetime.store import Store
from duetime.worker.held_limit import PLENTY, HeldLimit
from duetime.worker.longest_waiting import PATIENT_FOR, LongestWaiting
from duetime.worker.queues import HandlerQueue

ASK_EVERY = 1.0  # seconds between two looks: a hint comes sooner, but may be lost
INSIDE = 1 << 50  # microseconds: running attempts come before those that have not begun, which may wait for what these have


def counted_limits(queues: Iterable[HandlerQueue]) -> tuple[list[str], list[CountedLimit]]:
    """Return the names of all handlers, and the limits of them that the store counts."""
    names: list[str] = []
    uses: dict[str, tuple[Limit, dict[str, int]]] = {}
    for queue in dict.fromkeys(queues):
        names += queue.names or [queue.spec.name]
        for limit in queue.spec.limits:
            if limit.is_counted:
                uses.setdefault(limit.name, (limit, {}))[1].update(dict.fromkeys(queue.names or [queue.spec.name], limit.each))
    return names, [
        CountedLimit(
            name=limit.name,
            running=limit.running or 0,
            uses=taken,
            by=limit.by,
            rates=[rate.rule for rate in limit.rate],
            over=limit.over,
        )
        for limit, taken in uses.values()
    ]


class Inside:
    """Permits that a running attempt wants, or has (`ctx.limit`)."""

    def __init__(self, permits: Permits, limit: HeldLimit, takes: int, granted: Callable[[], None]) -> None:
        self._permits = permits
        self._limit = limit
        self._granted = granted
        self._has = False
        self.takes = takes
        self.since = monotonic()

    def begin(self) -> None:
        self._limit.waiters.append(self)
        self._permits.serve(self._limit)
        self._permits.need()

    def grant(self) -> None:
        self._has = True
        self._granted()

    def give_back(self) -> None:
        if self._has:
            self._has = False
            self._permits.take_back(self._limit, self.takes)
        elif self in self._limit.waiters:
            self._limit.waiters.remove(self)
            self._permits.serve(self._limit)


class Permits(Service):
    """Asks for permits when handlers could run more, and gives back what others lack."""

    name = "permits"

    def __init__(self, store: Store, worker: str, queues: Iterable[HandlerQueue], alarms: Alarms, *, more: Callable[[], None]) -> None:
        super().__init__(alarms)
        self._store = store
        self._worker = worker
        self._more = more
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._number = int(monotonic() * 1e6)  # a worker that registers again under its name goes on from there
        self._handed_over: dict[str, HandlerQueue] = {}
        self.limits: dict[str, HeldLimit] = {}
        self._queues: list[HandlerQueue] = []
        self._waiting = LongestWaiting()
        self.bound(queues)

    def bound(self, queues: Iterable[HandlerQueue]) -> None:
        """Let queues keep the limits of their handlers."""
        for queue in dict.fromkeys(queues):
            leased = [limit for limit in queue.spec.limits if not limit.is_counted]
            if leased and queue not in self._queues:
                self._queues.append(queue)
                queue.limits = tuple((self._limit_of(limit, queue.names), limit.each) for limit in leased)

    def _limit_of(self, limit: Limit, names: Mapping[str, bool]) -> HeldLimit:
        held = self.limits.setdefault(limit.name, HeldLimit(limit))
        held.uses |= dict.fromkeys(names, limit.each)
        held.served = self.wake
        return held

    def forget(self) -> None:
        """Begin anew: the store took this worker for dead, and nothing runs here any more."""
        for limit in self.limits.values():
            limit.held = limit.asked = limit.awaited = 0
            limit.over = limit.yields = False
            limit.first = None
        self._waiting.forget()
        self.wake()

    # ---- what attempts do ----

    def free(self, queue: HandlerQueue) -> None:
        """Take back what an attempt had that has ended."""
        for limit, each in queue.limits:
            self._free(limit, each)

    def take_back(self, limit: HeldLimit, takes: int) -> None:
        """Take back what a running attempt had of a limit."""
        self._free(limit, takes)
        if limit.free > 0:
            self._more()

    def _free(self, limit: HeldLimit, takes: int) -> None:
        limit.used -= takes
        self.serve(limit)
        if limit.over or limit.held > max(limit.used, limit.target):
            self.wake()

    def serve(self, limit: HeldLimit) -> None:
        """Let running attempts have what they wait for, in turn."""
        while limit.waiters and limit.left >= limit.waiters[0].takes:
            waiter = limit.waiters.popleft()
            limit.used += waiter.takes
            waiter.grant()

    def taking(self, limit: Limit | str, granted: Callable[[], None]) -> Inside:
        """Return what takes permits for a running attempt."""
        if isinstance(limit, str):
            held, takes = self.limits.get(limit), 1
            if held is None:
                raise InvalidValue(f"no handler of this worker has the limit {limit[:100]!r}; give the Limit itself to ctx.limit")
        else:
            if limit.is_counted:
                raise InvalidValue(f"ctx.limit takes a limit with running= alone; {limit.name} is counted when tasks are claimed ({limit})")
            held, takes = self._limit_of(limit, {}), limit.each
            if held.declared != limit.running:
                raise InvalidValue(f"the limit {limit.name} allows {held.declared} elsewhere in this worker, and {limit.running} here")
        return Inside(self, held, takes, granted)

    def call(self, function: Callable[[], None]) -> None:
        """Call a function in the worker's event loop."""
        if threading.get_ident() == self._thread:
            function()
        else:
            self._loop.call_soon_threadsafe(function)

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
        if any(self._need(limit)[0] > limit.asked for limit in tuple(self.limits.values())):
            self.wake()

    def _need(self, limit: HeldLimit) -> tuple[int, int]:
        """Return how many permits would be used if the store had all that our handlers could run, and what one attempt takes at least."""
        need, steps = limit.used + limit.wanted_inside, [waiter.takes for waiter in limit.waiters]
        for queue in self._queues:
            for each, cost in queue.limits:
                if each is limit and (attempts := max(len(queue.tasks), queue.free if queue.more else 0)):
                    need += cost * attempts
                    steps.append(cost)
        if limit.waiters:
            return need, limit.waiters[0].takes
        if limit.first is not None:
            return need, max(cost for queue in self._queues if queue is limit.first for each, cost in queue.limits if each is limit)
        return need, min(steps, default=1)

    # ---- who is waited for ----

    async def _find_longest_waiting(self) -> None:
        """Say which handler is waited for, of each limit of which attempts take different numbers."""
        limits = [limit for limit in tuple(self.limits.values()) if limit.mixed]
        if not limits:
            return
        before = [limit.first for limit in limits]
        queues = [queue for queue in self._queues if any(limit.mixed for limit, _ in queue.limits)]
        waiting = await self._waiting.look(queues, monotonic(), self._is_due)
        for limit in limits:
            limit.first = next((queue for queue in waiting if any(each is limit for each, _ in queue.limits)), None)
        if [limit.first for limit in limits] != before:
            self._more()

    async def _is_due(self, queue: HandlerQueue) -> bool:
        for name in tuple(queue.names) or (queue.spec.name,):
            if (await self._store.handler_load(name)).due:
                return True
        return False

    def _waited(self, limit: HeldLimit) -> int:
        """Return for how many microseconds somebody has waited who comes before others; 0: nobody has waited long."""
        now = monotonic()
        if limit.mixed and limit.waiters and (waited := now - limit.waiters[0].since) >= PATIENT_FOR:
            return INSIDE + int(waited * 1e6)
        first = next((queue for queue in self._queues if queue is limit.first), None)
        return 0 if first is None else max(1, int((now - self._waiting.since(first)) * 1e6))

    # ---- asking ----

    async def run_once(self) -> float | None:
        if not self.limits:
            return None
        await self._find_longest_waiting()
        self._number = number = max(self._number + 1, int(monotonic() * 1e6))
        asks = []
        for limit in tuple(self.limits.values()):
            limit.asked, limit.step = self._need(limit)
            want = limit.asked
            if limit.over and limit.held:
                want = limit.used
            elif limit.target == PLENTY:
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
                    waited=self._waited(limit),
                )
            )
        before = {name: limit.free for name, limit in self.limits.items()}
        again = False
        for allotment in await self._store.allot(self._worker, number, asks):
            again = self._apply(self.limits[allotment.limit], allotment, number) or again
        if any(limit.free > before.get(name, 0) for name, limit in self.limits.items()):
            self._more()
        return 0.0 if again else ASK_EVERY

    def _apply(self, limit: HeldLimit, allotment: Allotment, number: int) -> bool:
        """Take an answer; return whether to ask again at once, to confirm a version or to give back what others lack."""
        before, was_over, had_yielded = limit.held, limit.over, limit.yields
        if limit.awaited == number:
            limit.held = allotment.permits
        limit.target, limit.over = PLENTY, allotment.is_over
        limit.mixed, limit.yields = allotment.mixed, allotment.yields
        if limit.yields:
            limit.target = 0  # whoever is waited for needs all that becomes free
        elif allotment.lacking and not limit.over and limit.held <= before and limit.first is None:  # what has just come is used once
            is_useless = limit.used < limit.held < limit.used + limit.step
            limit.target = allotment.share if allotment.share >= limit.step and not is_useless else 0
        is_new, limit.seen = allotment.version != limit.seen, allotment.version
        self.serve(limit)
        if limit.over:
            return is_new or limit.held > limit.used
        goes_on = (was_over or had_yielded) and not limit.yields and limit.asked > limit.held
        return is_new or goes_on or limit.held > max(limit.used, limit.target)
