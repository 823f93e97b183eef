"""The one shape of every background loop: run once, pause, back off after a failure, and log it.

Long-lived asyncio tasks are started only here. All timers of a process run on one wheel.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Callable

from duetime.clock import monotonic
from duetime.errors import StoreUnavailable
from duetime.model.wording import count
from duetime.runtime.forks import Original
from duetime.runtime.outage import FIRST_REMINDER, LONGEST_REMINDER, Outage, outage_of
from duetime.runtime.wheel import Timer, Wheel

logger = logging.getLogger("duetime")

Call = Callable[[], None]

_TICKS = 10_000  # per second: a due instant is met to a tenth of a millisecond
FIRST_BACK_OFF = 0.05
LONGEST_BACK_OFF = 5.0
NO_PROGRESS = 10.0  # seconds without progress after which a loop counts as stalled


class Alarms:
    """Calls things at their time; one wheel, and one timer of the event loop for its next deadline."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.original = Original(self._loop)  # all that these alarms serve must not go on in a fork
        self._wheel: Wheel[Call] = Wheel(int(self._loop.time() * _TICKS))
        self._handle: asyncio.TimerHandle | None = None
        self._armed_for = 0
        self.outage = outage_of(self._loop)

    def after(self, seconds: float, call: Call) -> Timer[Call]:
        """Call so many seconds from now, never earlier."""
        timer = self._wheel.insert(math.ceil((self._loop.time() + seconds) * _TICKS), call)
        if self._handle is None or timer.deadline < self._armed_for:
            self._arm(timer.deadline)
        return timer

    def remove(self, timer: Timer[Call]) -> None:
        self._wheel.remove(timer)

    def close(self) -> None:
        self.original.close()
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _arm(self, tick: int) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._armed_for = tick
        self._handle = self._loop.call_at(tick / _TICKS, self._fire)

    def _fire(self) -> None:
        self._handle = None
        for call in self._wheel.advance(int(self._loop.time() * _TICKS)):
            try:
                call()
            except Exception:
                logger.exception("an alarm failed")
        tick = self._wheel.next_deadline()
        if tick is not None and (self._handle is None or tick < self._armed_for):
            self._arm(tick)


class Wake:
    """A wake-up that can be waited for, with a time limit; setting it twice is the same as once."""

    def __init__(self, alarms: Alarms) -> None:
        self._alarms = alarms
        self._future: asyncio.Future[None] | None = None
        self._set = False

    def set(self) -> None:
        if self._future is None:
            self._set = True
        elif not self._future.done():
            self._future.set_result(None)

    async def wait(self, seconds: float | None) -> None:
        """Return when set, or after so many seconds."""
        if self._set:
            self._set = False
            return
        self._future = asyncio.get_running_loop().create_future()
        timer = None if seconds is None else self._alarms.after(seconds, self.set)
        try:
            await self._future
        finally:
            self._future = None
            if timer is not None:
                self._alarms.remove(timer)


class Pulse:
    """The health of a loop: when it last succeeded, what keeps it from succeeding, and for how long it has made no progress.

    Only the loop writes it; any thread may read it. Instants are monotonic. A loop that pauses is healthy. One whose `run_once`
    does not return, or keeps failing, makes no progress. What all loops suffer from, an `outage` of the store, is logged for all of them.
    """

    def __init__(self, name: str, outage: Outage | None = None) -> None:
        self.name = name
        self.outage = Outage() if outage is None else outage
        self.succeeded_at: float | None = None
        self.failures = 0  # in a row
        self.store_errors = 0  # since it began
        self.error: str | None = None
        self._patience = NO_PROGRESS
        self._began_at: float | None = None  # of the present run
        self._failing_since: float | None = None
        self._remind_at = 0.0
        self._interval = FIRST_REMINDER
        self._logged = False
        self._store_fails = False

    def begin(self, now: float) -> None:
        self._began_at = now

    def succeed(self, now: float, pause: float | None = None) -> None:
        """Note a run that succeeded, or progress within a long one. If a problem was logged before, log that it is over."""
        lost = self._without_progress(now)
        if self.failures and self._store_fails:
            self.outage.leave(self, now)
        elif self.failures:
            logger.warning("%s works again after %.1f s, %s", self.name, lost, count(self.failures, "failure"))
        elif self._logged:
            logger.warning("%s goes on after %.1f s without progress", self.name, lost)
        self._began_at = self._failing_since = self.error = None
        self.failures, self._interval, self._logged = 0, FIRST_REMINDER, False
        self.succeeded_at = now
        self._patience = max(self._patience, 3 * (pause or 0.0))

    def pause(self) -> None:
        """Note the end of a run that did not use the store: whether it answers again is still unknown."""
        self._began_at = None

    def fail(self, error: Exception, now: float) -> None:
        """Note a run that failed. Log the first one, then at growing intervals, with the traceback. An outage is logged apart."""
        self._store_fails = isinstance(error, StoreUnavailable)
        self.failures += 1
        self.store_errors += self._store_fails
        self.error = str(error) or type(error).__name__
        if self._failing_since is None:
            self._failing_since = now if self._began_at is None else self._began_at
        self._began_at = None
        if self._store_fails:
            self.outage.join(self, self.name, self.error, self._failing_since, now)
            return
        self.outage.leave(self)
        if self.failures > 1 and now < self._remind_at:
            return
        if self.failures > 1:
            self._interval = min(self._interval * 2, LONGEST_REMINDER)
        self._remind_at = now + self._interval
        how_often = f"failed {self.failures} times in {now - self._failing_since:.1f} s" if self.failures > 1 else "failed"
        logger.warning("%s %s: %s", self.name, how_often, self.error, exc_info=error)

    def stalled_for(self, now: float) -> float:
        """Return for how many seconds it has made no progress; 0 while that is not long enough to matter."""
        lost = self._without_progress(now)
        return lost if lost > self._patience else 0.0

    def stuck_for(self, now: float) -> float:
        """Return for how many seconds its run has lasted, or it has failed for a reason other than the store."""
        own_fault = self._failing_since is not None and not self._store_fails
        since = self._failing_since if own_fault else self._began_at
        return 0.0 if since is None else now - since

    def problem(self, now: float) -> str | None:
        """Return a message if it is stalled."""
        lost = self.stalled_for(now)
        return f"{self.name} has made no progress for {lost:.1f} s: {self.error or 'it does not come to an end'}" if lost else None

    def away_for(self, now: float) -> float:
        """Return for how many seconds it has been stalled because the store is away."""
        return self.stalled_for(now) if self._failing_since is not None and self._store_fails else 0.0

    def problem_to_log(self, now: float) -> str | None:
        """Return that message the first time only, and not in an outage, which is told once for all loops.

        The loop itself logs when it makes progress again.
        """
        if self._began_at is None and self._failing_since is None:  # it pauses, as most loops do at most looks
            return None
        problem = None if self._logged or self.away_for(now) else self.problem(now)
        self._logged = self._logged or problem is not None
        return problem

    def _without_progress(self, now: float) -> float:
        since = self._failing_since if self._failing_since is not None else self._began_at
        return 0.0 if since is None else now - since


class Service:
    """A background loop over `run_once`, which returns the seconds to pause, or None to pause until a wake-up."""

    name = "service"

    def __init__(self, alarms: Alarms) -> None:
        self._wake = Wake(alarms)
        self._original = alarms.original
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self._skipped = False
        self.pulse = Pulse(self.name, alarms.outage)

    async def run_once(self) -> float | None:
        raise NotImplementedError

    def start(self) -> None:
        self._stopping = False
        self._task = asyncio.create_task(self._run(), name=f"duetime {self.name}")

    def wake(self) -> None:
        self._wake.set()

    async def stop(self) -> None:
        """End the loop after the present run."""
        self._stopping = True
        self._wake.set()
        if self._task is not None:
            task, self._task = self._task, None
            await task
        self.pulse.outage.leave(self.pulse)

    def progressed(self) -> None:
        """Note progress in the middle of a run that goes on as long as there is work."""
        now = monotonic()
        self.pulse.succeed(now)
        self.pulse.begin(now)

    def skipped(self) -> None:
        """Note that the present run did not use the store, so that its end does not count as a success after failures."""
        self._skipped = True

    async def _run(self) -> None:
        pulse = self.pulse
        while not self._stopping:
            if self._original.copied:
                self._original.leave()
            pulse.begin(monotonic())
            self._skipped = False
            try:
                pause = await self.run_once()
            except Exception as error:
                pulse.fail(error, monotonic())
                pause = min(FIRST_BACK_OFF * 2 ** min(pulse.failures, 16), LONGEST_BACK_OFF) * random.uniform(0.5, 1.0)
            else:
                if self._skipped:
                    pulse.pause()
                else:
                    pulse.succeed(monotonic(), pause)
            if not self._stopping:
                await self._wake.wait(pause)
