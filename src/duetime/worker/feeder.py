"""The feeder: claims due tasks for free slots, and sleeps exactly until there may be some."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from itertools import count
from types import MappingProxyType
from typing import Any

from duetime.clock import SECOND, Instant
from duetime.model.gate import Gate
from duetime.runtime.service import Alarms, Call, Service
from duetime.runtime.wheel import Timer
from duetime.store import Store
from duetime.store.disabling import Probe
from duetime.store.values import Hint, HintKind
from duetime.worker.claim_timing import ClaimTiming
from duetime.worker.executor import Executor

PARKED_EVERY = 30.0  # seconds between two looks for parked tasks; a hint comes sooner, but may be lost
PARKED_PAUSE = 1.0  # seconds between two looks that hints ask for: each task that is parked sends one
PARKED_BUSY = 0.02  # seconds after which to look again for slots, when there are more parked tasks than those
PROBES_PAUSE = 5.0  # seconds until the next look behind a gate at which a probe was due, but no task
SHORTEST_INTERVAL = 0.002  # between two claims that found work: batches are what makes this fast


class Feeder(Service):
    """Claims in batches, at the due instant or a few milliseconds before it, as the store's traits say.

    A cancel or edit that was acknowledged before the claim always wins, and so does a gate that was in force.
    """

    name = "feeder"

    def __init__(
        self, store: Store, worker: str, executor: Executor, alarms: Alarms, *, declared: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        super().__init__(alarms)
        self._alarms = alarms
        self._declared = declared  # the digest of each handler's declaration
        self._parked = False  # whether there may be parked tasks that fit it
        self._probing = False  # whether a probe of an automatic gate may be due
        self._probe_timer: Timer[Call] | None = None
        self._store = store
        self._worker = worker
        self._executor = executor
        self._timing = ClaimTiming()
        self._numbers = count(1)
        self._claimed_at = 0.0  # when the last claim that found work was sent
        self.in_flight: int | None = None  # the number of a claim whose reply is not here yet
        self.known = 0  # every claim up to this number has been answered

    def on_hint(self, hint: Hint) -> None:
        """Look when a hint says that there may be work. If it is about later work, only remember when."""
        if hint.kind is HintKind.ANY:
            self.wake()
        elif hint.kind is HintKind.DUE:
            self._timing.on_hint(None if hint.at is None else hint.at - self._store.traits.claim_ahead, self._store.now())
            super().wake()

    def wake(self) -> None:
        """Look now, whatever is expected."""
        self._timing.look_now()
        super().wake()

    def freed(self) -> None:
        """Wake up because a handler that may have more tasks has free slots again."""
        super().wake()

    def look_for_parked(self) -> None:
        """Look for tasks that other code has refused: this worker's may fit them."""
        self._parked = True
        super().wake()

    def look_for_probes(self) -> None:
        """Look whether a task may pass an automatic gate."""
        self._probing = True
        super().wake()

    async def run_once(self) -> float | None:
        if self._parked:
            self._parked = False
            await self._claim_parked()
        if self._probing:
            self._probing = False
            try:
                await self._claim_probe()
            except BaseException:
                self._probing = True
                raise
        seconds, now = asyncio.get_running_loop().time(), self._store.now()
        due = self._timing.due(now, seconds)
        if due:
            self._executor.queues.expect_more()
        wants, total = self._executor.wants()
        if wants:
            wait = self._claimed_at + SHORTEST_INTERVAL - seconds
            return wait if wait > 0 and self._executor.busy else await self._claim(wants, total)
        if self.pulse.failures:
            self.skipped()
        if due:
            # there is no free slot; the executor knows which handlers may have more, and calls `freed`
            self._timing.begin(now, seconds)
            self._timing.found(seconds)
        return self._timing.pause(now, seconds)

    async def _claim(self, wants: Mapping[str, int], total: int) -> float:
        loop = asyncio.get_running_loop()
        sent_at = loop.time()
        reasons = self._timing.begin(self._store.now(), sent_at)
        below = self._executor.queues.below(wants)
        options: dict[str, Any] = {"below": below} if below else {}  # most handlers have no reserve
        self.in_flight = number = next(self._numbers)
        try:
            claim = await self._store.claim(self._worker, number, wants, total, ahead=self._store.traits.claim_ahead, **options)
        finally:
            self.in_flight = None
        self.known = number
        self._executor.offer(claim.tasks)
        full = len(claim.tasks) >= total
        self._executor.queues.note_claimed(wants, claim.tasks, full=full, **options)
        now, seconds = self._store.now(), loop.time()
        if claim.next_at is not None and (claim.next_at > claim.now or not full):
            # never early: the store decides what is due, and this is only when to ask. Until then is counted from the store's
            # present time, because that of its reply is as old as the reply's way here.
            self._timing.know(claim.next_at, now)
        if claim.tasks:
            self._claimed_at = sent_at
            self._timing.found(seconds)
            return 0.0  # there may be slots for more
        self._timing.found_nothing(reasons, seconds, now=claim.now, next_at=claim.next_at)
        return self._timing.pause(now, seconds)

    async def _claim_parked(self) -> None:
        """Claim parked tasks for free slots; if that fails, a later look does it."""
        if not self._executor.starts.allowed:
            return
        wants = self._executor.free_slots()
        if not wants:
            self._alarms.after(PARKED_BUSY, self.look_for_parked)
            return
        self.in_flight = number = next(self._numbers)
        try:
            claim = await self._store.claim_parked(self._worker, number, self._declared, wants)
        finally:
            self.in_flight = None
        self.known = number
        if claim.tasks:
            self._executor.offer(claim.tasks)
            self.look_for_parked()  # there may be more

    async def _claim_probe(self) -> None:
        """Claim one task that passes an automatic gate, if its probe is due, and come again when the next one is."""
        gates = self._executor.starts.gates
        handlers = {gate.handler for gate in gates if gate.probe_at is not None and gate.handler in self._executor.queues.by_name}
        slots = self._executor.free_slots()
        probe = await self._store.take_probe(sorted(handlers & slots.keys())) if handlers else Probe(None, None)
        next_at, now = probe.next_at, self._store.now()
        if handlers - slots.keys():
            next_at = now + SECOND  # there is no slot for it now
        if probe.gate is not None:
            names = self._executor.queues.by_name[probe.gate.handler].names
            if await self._send_through(probe.gate, names):
                next_at = now  # there may be other gates
            else:
                next_at = now + round(PROBES_PAUSE * SECOND)
                await self._store.put_off_probe(probe.gate, next_at)
        self._look_for_probes_at(next_at, now)

    async def _send_through(self, gate: Gate, names: Collection[str]) -> bool:
        self.in_flight = number = next(self._numbers)
        try:
            claim = await self._store.claim_probe(self._worker, number, names, gate)
        finally:
            self.in_flight = None
        self.known = number
        self._executor.starts.probes.update(claimed.id for claimed in claim.tasks)
        self._executor.offer(claim.tasks)
        return bool(claim.tasks)

    def _look_for_probes_at(self, next_at: Instant | None, now: Instant) -> None:
        if self._probe_timer is not None:
            self._alarms.remove(self._probe_timer)
            self._probe_timer = None
        if next_at is not None:
            self._probe_timer = self._alarms.after(max(0.0, (next_at - now) / SECOND), self.look_for_probes)


class ParkedLooks(Service):
    """Lets the feeder look for parked tasks from time to time, at first when the worker starts."""

    name = "parked"

    def __init__(self, feeder: Feeder, alarms: Alarms) -> None:
        super().__init__(alarms)
        self._feeder = feeder
        self._looked_at = -PARKED_PAUSE

    async def run_once(self) -> float | None:
        now = asyncio.get_running_loop().time()
        if now < self._looked_at + PARKED_PAUSE:
            return self._looked_at + PARKED_PAUSE - now
        self._looked_at = now
        self._feeder.look_for_parked()
        return PARKED_EVERY
