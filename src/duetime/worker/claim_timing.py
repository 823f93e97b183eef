"""When a worker looks for work. Pure: the store's instants and the monotonic seconds are arguments."""

from __future__ import annotations

from duetime.clock import SECOND, Instant

LONGEST_SLEEP = 1.0

# A worker that keeps losing races waits longer before its next look, until it finds something or has not lost for a while.
# Otherwise all processes rush to every task: with eight of them 89% of the claims found nothing.
FIRST_DELAY = 0.003
LONGEST_DELAY_AFTER_HINTS, LONGEST_DELAY_WHEN_DUE = 0.1, 0.05  # shorter: people look at the lateness of tasks with a due time
FORGET_AFTER = 0.5


class Expectation:
    """An instant at which there may be work, and how long to wait then because other workers were faster before."""

    __slots__ = ("_delay", "_longest", "_lost_at", "at")

    def __init__(self, longest_delay: float) -> None:
        self._longest = longest_delay
        self.at: Instant | None = None  # None: nothing is expected
        self._delay = 0.0
        self._lost_at = 0.0

    def note(self, at: Instant | None, now: Instant) -> None:
        at = now if at is None or at < now else at  # the delay counts from the present
        if self.at is None or at < self.at:
            self.at = at

    def until(self, now: Instant, seconds: float) -> float:
        if self.at is None:
            return LONGEST_SLEEP
        delay = self._delay if seconds - self._lost_at < FORGET_AFTER else 0.0
        return (self.at - now) / SECOND + delay

    def fulfilled(self) -> None:
        self._delay = 0.0

    def lost(self, seconds: float) -> None:
        grown = max(self._delay * 2, FIRST_DELAY) if seconds - self._lost_at < FORGET_AFTER else FIRST_DELAY
        self._delay, self._lost_at = min(grown, self._longest), seconds


class ClaimTiming:
    """Knows when work is expected, and when to look in any case.

    What the store's replies say about this worker's handlers and what hints say about any handler are separate. If most hints are about
    other handlers, looking in vain does not mean that others were faster.
    """

    def __init__(self) -> None:
        self._known, self._hinted = Expectation(LONGEST_DELAY_WHEN_DUE), Expectation(LONGEST_DELAY_AFTER_HINTS)
        self._poll_at = 0.0

    def know(self, at: Instant, now: Instant) -> None:
        """Note when a task of this worker's handlers may come due."""
        self._known.note(at, now)

    def on_hint(self, at: Instant | None, now: Instant) -> None:
        """Note a hint that there is or will be work."""
        self._hinted.note(at, now)

    def look_now(self) -> None:
        """Look now, whatever is expected."""
        self._poll_at = 0.0

    def due(self, now: Instant, seconds: float) -> bool:
        """Return whether it is time to look."""
        return self.pause(now, seconds) <= 0

    def pause(self, now: Instant, seconds: float) -> float:
        """Return the seconds until it is time to look."""
        return max(0.0, min(self._poll_at - seconds, self._known.until(now, seconds), self._hinted.until(now, seconds)))

    def begin(self, now: Instant, seconds: float) -> list[tuple[Expectation, Instant]]:
        """Forget what is expected, because it is looked for now. Return the expectations that led to this look."""
        reasons = [(each, each.at) for each in (self._known, self._hinted) if each.at is not None and each.until(now, seconds) <= 0]
        self._known.at = self._hinted.at = None
        self._poll_at = 0.0  # should looking fail, look again
        return reasons

    def found(self, seconds: float) -> None:
        """Note that there was work, or no free slot for any."""
        self._poll_at = seconds + LONGEST_SLEEP
        self._known.fulfilled()
        self._hinted.fulfilled()

    def found_nothing(self, reasons: list[tuple[Expectation, Instant]], seconds: float, *, now: Instant, next_at: Instant | None) -> None:
        """Note that at the store's `now` there was none. Where some was expected, others were faster, unless this look was too early."""
        self._poll_at = seconds + LONGEST_SLEEP
        for expectation, at in reasons:
            if next_at is None or not now < next_at <= at:
                expectation.lost(seconds)
