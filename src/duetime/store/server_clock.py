"""The server's time as this process knows it."""

from __future__ import annotations

import time

from duetime.clock import Clock, Instant

# How far two clocks may drift apart, in parts per million; far more than quartz does.
DRIFT = 200


def monotonic() -> int:
    """Return this host's monotonic time in microseconds; its wall clock is never read."""
    return time.monotonic_ns() // 1_000


class ServerClock:
    """Adds an offset to the monotonic clock. Every reply that carries the server's time bounds the offset from both sides."""

    def __init__(self, given: Clock | None = None) -> None:
        self._given = given
        self._offset = time.time_ns() // 1_000 - monotonic()  # a first guess, until the first reply
        self._low = self._high = self._offset
        self._at = 0

    @property
    def parameter(self) -> Instant | None:
        """Return what statements take as `now`: None lets the server's own clock decide."""
        return None if self._given is None else self._given.now()

    def now(self) -> Instant:
        if self._given is not None:
            return self._given.now()
        return monotonic() + self._offset

    def reached(self) -> Instant:
        """Return an instant that the server's clock has reached for certain, by the replies so far."""
        if self._given is not None:
            return self._given.now()
        present = monotonic()
        return present + self._low - (present - self._at) * DRIFT // 1_000_000

    def heard(self, server: Instant, sent: int) -> None:
        """Narrow the offset by a reply to a statement that was sent at a monotonic instant."""
        received = monotonic()
        low, high = server - received, server - sent
        slack = (received - self._at) * DRIFT // 1_000_000
        if self._at == 0 or high < self._low - slack or low > self._high + slack:
            self._low, self._high = low, high
        else:
            self._low, self._high = max(self._low - slack, low), min(self._high + slack, high)
        self._at = received
        self._offset = (self._low + self._high) // 2
