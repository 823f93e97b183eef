"""What a worker answers to probes: whether to restart it (`/livez`), whether it starts attempts (`/readyz`), and its metrics."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from duetime.api.problems import Refusal
from duetime.cli.hosting.health_port import Page, Pages
from duetime.wire.overview import Health, LoopHealth
from duetime.wire.problem import NOT_READY, STOPPING, STUCK
from duetime.worker.exposition import MEDIA_TYPE, exposition

if TYPE_CHECKING:
    from duetime.worker.worker import Worker

STUCK_AFTER = 90.0  # seconds, as at a server: longer than any bound on a store's answer


class Probes:
    """The pages of a worker. `worker` returns it once it is registered, `draining` whether it has been told to stop, or restarts."""

    def __init__(self, worker: Callable[[], Worker | None], draining: Callable[[], bool]) -> None:
        self._worker = worker
        self._draining = draining

    def pages(self) -> Pages:
        return {"/livez": self.alive, "/readyz": self.ready, "/metrics": self.metrics}

    def alive(self) -> Page:
        """Return whether all of its loops go on. While it starts, and while the store is down, a restart would not help."""
        worker = self._worker()
        if worker is None:
            return _page(Health("ok"))
        now = time.monotonic()
        blocked = worker.health().blocked_for
        if blocked > STUCK_AFTER:
            raise Refusal(STUCK, f"a handler has blocked the event loop for {blocked:.0f} seconds; restart this worker")
        loops = [LoopHealth(pulse.name, pulse.stuck_for(now)) for pulse in worker.pulses]
        for loop in loops:
            if loop.seconds > STUCK_AFTER:
                raise Refusal(STUCK, f"{loop.name} has not gone on for {loop.seconds:.0f} seconds; restart this worker")
        return _page(Health("ok", loops))

    def ready(self) -> Page:
        problem = self._problem()
        if problem is not None:
            raise problem
        return _page(Health("ok"))

    def metrics(self) -> Page:
        worker = self._worker()
        ready = self._problem() is None
        if worker is None:
            return Page(exposition(ready=ready, health=None, totals={}).encode(), MEDIA_TYPE)
        text = exposition(ready=ready, health=worker.health(), totals=worker.totals(), times=worker.store_times())
        return Page(text.encode(), MEDIA_TYPE)

    def _problem(self) -> Refusal | None:
        """Return why it starts no attempts, or None if it does."""
        if self._draining():
            return Refusal(STOPPING, "this worker is stopping, or restarts: it starts nothing more")
        worker = self._worker()
        if worker is None:
            return Refusal(NOT_READY, "this worker is starting: it is not registered yet")
        health = worker.health()
        if not health.proved:
            return Refusal(NOT_READY, f"the store has not taken its proof of life for {health.proved_ago:.1f} s: it starts nothing")
        if health.store_away:
            return Refusal(NOT_READY, "the store cannot be reached")
        return None


def _page(health: Health) -> Page:
    return Page(msgspec.json.encode(health))
