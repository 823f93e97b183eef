"""An outage of the store as all loops of a process see it: it is logged once, not by each of them."""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref

from duetime.model.wording import count

logger = logging.getLogger("duetime")

FIRST_REMINDER = 5.0  # seconds between the first log line of a failure and the next; each interval is twice the last
LONGEST_REMINDER = 300.0


class Outage:
    """Which loops wait for the store. Logs when the first one does, ever more rarely while it lasts, and when none does any more.

    Loops may be in different threads. Instants are of `time.monotonic`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: set[object] = set()
        self._most = 0
        self._since = self._remind_at = 0.0
        self._interval = FIRST_REMINDER

    @property
    def lasts(self) -> bool:
        """Whether any loop waits for the store."""
        return bool(self._waiting)

    def join(self, loop: object, name: str, error: str, began_at: float, now: float) -> None:
        """Note that a loop could not reach the store, in a run that began at an instant."""
        with self._lock:
            first = not self._waiting
            self._waiting.add(loop)
            if first:
                self._since, self._most, self._interval = began_at, 0, FIRST_REMINDER
                self._remind_at = now + self._interval
            self._most = max(self._most, len(self._waiting))
            reminds = not first and now >= self._remind_at
            if reminds:
                self._interval = min(self._interval * 2, LONGEST_REMINDER)
                self._remind_at = now + self._interval
            since, waiting = self._since, len(self._waiting)
        if first:
            logger.warning("the store is away, first seen by the %s: %s", name, error)
        elif reminds:
            logger.warning("the store has been away for %.1f s, %s: %s", now - since, count(waiting, "loop waits", "loops wait"), error)

    def leave(self, loop: object, now: float | None = None) -> None:
        """Note that a loop has reached the store; without `now`, that it does not try any more."""
        with self._lock:
            if loop not in self._waiting:
                return
            self._waiting.discard(loop)
            over, lasted, most = not self._waiting, (now or 0.0) - self._since, self._most
        if over and now is not None:
            logger.warning("the store answers again after %.1f s; %s", lasted, count(most, "loop waited", "loops waited"))


_outages: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Outage] = weakref.WeakKeyDictionary()


def outage_of(loop: asyncio.AbstractEventLoop) -> Outage:
    """Return what all services on an event loop share: a worker and a server in one process have one store."""
    return _outages.setdefault(loop, Outage())
