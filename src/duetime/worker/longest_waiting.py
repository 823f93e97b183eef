"""Which handlers have waited longest for permits of a limit of which attempts take different numbers.

Attempts that take few could keep out for ever those that take many: what becomes free is enough for them. So whoever has waited for
PATIENT_FOR comes first, the longest waiting before all, and nothing else begins under the limit until it has what it needs. All limits go
by the same instant of a handler, so two that need two limits never wait for each other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

import msgspec

from duetime.worker.queues import HandlerQueue

PATIENT_FOR = 1.0  # seconds
VAIN_PAUSE = 10.0  # seconds for which a handler does not wait that was waited for, and then nothing of it was due


class Wait(msgspec.Struct):
    """Since when a handler has waited, and how many of its attempts had begun then. `sure`: something of it is due."""

    since: float
    begun: int
    sure: bool = False


class LongestWaiting:
    """Since when each handler has waited for permits."""

    def __init__(self) -> None:
        self._waits: dict[HandlerQueue, Wait] = {}

    def since(self, queue: HandlerQueue) -> float:
        return self._waits[queue].since

    async def look(
        self, queues: Iterable[HandlerQueue], now: float, is_due: Callable[[HandlerQueue], Awaitable[bool]]
    ) -> list[HandlerQueue]:
        """Return those that have waited long and have something to start, the longest waiting first."""
        for queue in queues:
            self._note(queue, now)
        for queue, wait in list(self._waits.items()):
            if not wait.sure and now - wait.since >= PATIENT_FOR:
                wait.sure = bool(queue.tasks) or await is_due(queue)
                if not wait.sure:
                    self._waits[queue] = Wait(now, queue.begun)
        found = [queue for queue, wait in self._waits.items() if wait.sure and wait.begun == queue.begun]
        return sorted(found, key=self.since)

    def _note(self, queue: HandlerQueue, now: float) -> None:
        wait = self._waits.get(queue)
        wants = queue.free > 0 and (bool(queue.tasks) or queue.more)
        if wait is not None and wait.begun == queue.begun:
            if (wants and (wait.sure or queue.startable <= 0)) or wait.since > now:
                return
            if wait.sure and queue.free > 0:  # others waited in vain
                self._waits[queue] = Wait(now + VAIN_PAUSE, queue.begun)
                return
        if wants and queue.startable <= 0:
            self._waits[queue] = Wait(now, queue.begun)
        else:
            self._waits.pop(queue, None)

    def forget(self) -> None:
        self._waits.clear()
