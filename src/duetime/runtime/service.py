"""The one shape of every background loop: a turn, a pause, back-off and a log line when something goes wrong.

This is the only place that spawns long-lived asyncio tasks; the timers of a process all run on one wheel.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Callable

from duetime.errors import StoreUnavailable
from duetime.runtime.wheel import Timer, Wheel

logger = logging.getLogger("duetime")

Call = Callable[[], None]

_TICKS = 10_000  # per second: a due instant is met to a tenth of a millisecond
FIRST_BACK_OFF = 0.05
LONGEST_BACK_OFF = 5.0
NO_PROGRESS = 10.0  # seconds without progress after which a loop is said to stand still
FIRST_REMINDER = 5.0  # seconds between the first log line of a failure and the next; each interval is twice the last
LONGEST_REMINDER = 300.0


class Alarms:
    """Calls things at their time; one wheel, and one timer of the event loop for its next deadline."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._wheel: Wheel[Call] = Wheel(int(self._loop.time() * _TICKS))
        self._handle: asyncio.TimerHandle | None = None
        self._armed_for = 0

    def after(self, seconds: float, call: Call) -> Timer[Call]:
        """Call so many seconds from now, never earlier."""
        timer = self._wheel.insert(math.ceil((self._loop.time() + seconds) * _TICKS), call)
        if self._handle is None or timer.deadline < self._armed_for:
            self._arm(timer.deadline)
        return timer

    def remove(self, timer: Timer[Call]) -> None:
        self._wheel.remove(timer)

    def close(self) -> None:
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
    """How a loop fares: when its last turn succeeded, what keeps it from succeeding, and since when it stands still.

    The loop alone writes it; it may be read from any thread. Instants are of `time.monotonic`. A loop that waits for its next
    turn is well; one whose turn does not end, or fails again and again, makes no progress.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.succeeded_at: float | None = None
        self.failures = 0  # in a row
        self.store_errors = 0  # since it began
        self.error: str | None = None
        self._patience = NO_PROGRESS
        self._began_at: float | None = None  # of the turn that is under way
        self._failing_since: float | None = None
        self._remind_at = 0.0
        self._interval = FIRST_REMINDER
        self._complained = False
        self._store_fails = False

    def begin(self, now: float) -> None:
        self._began_at = now

    def succeed(self, now: float, pause: float | None = None) -> None:
        """Note a turn that succeeded, or progress within a long one; tell of the end of what was told before."""
        lost = self._without_progress(now)
        if self.failures:
            again = f"{self.name}: the store answers again" if self._store_fails else f"{self.name} works again"
            logger.warning("%s after %.1f s, %d failure%s", again, lost, self.failures, "s" if self.failures > 1 else "")
        elif self._complained:
            logger.warning("%s goes on after %.1f s without progress", self.name, lost)
        self._began_at = self._failing_since = self.error = None
        self.failures, self._interval, self._complained = 0, FIRST_REMINDER, False
        self.succeeded_at = now
        self._patience = max(self._patience, 3 * (pause or 0.0))

    def pause(self) -> None:
        """Note the end of a turn that told nothing: what failed before is still to be tried."""
        self._began_at = None

    def fail(self, error: Exception, now: float) -> None:
        """Note a turn that failed; log the first failure and then ever more rarely, an expected one without its traceback."""
        self._store_fails = isinstance(error, StoreUnavailable)
        self.failures += 1
        self.store_errors += self._store_fails
        self.error = str(error) or type(error).__name__
        if self._failing_since is None:
            self._failing_since = now if self._began_at is None else self._began_at
        self._began_at = None
        if self.failures > 1 and now < self._remind_at:
            return
        if self.failures > 1:
            self._interval = min(self._interval * 2, LONGEST_REMINDER)
        self._remind_at = now + self._interval
        how_often = f"failed {self.failures} times in {now - self._failing_since:.1f} s" if self.failures > 1 else "failed"
        logger.warning("%s %s: %s", self.name, how_often, self.error, exc_info=None if self._store_fails else error)

    def stands_still_for(self, now: float) -> float:
        """Give for how many seconds it has made no progress, or 0 as long as that is not worth a word."""
        lost = self._without_progress(now)
        return lost if lost > self._patience else 0.0

    def stuck_for(self, now: float) -> float:
        """Give for how many seconds its turn has lasted, or it has failed by a fault that is not the store's."""
        own_fault = self._failing_since is not None and not self._store_fails
        since = self._failing_since if own_fault else self._began_at
        return 0.0 if since is None else now - since

    def problem(self, now: float) -> str | None:
        """Say that it stands still, if it does."""
        lost = self.stands_still_for(now)
        return f"{self.name} has made no progress for {lost:.1f} s: {self.error or 'its turn does not end'}" if lost else None

    def complain(self, now: float) -> str | None:
        """Say it once; the loop itself says when it goes on."""
        problem = None if self._complained else self.problem(now)
        self._complained = self._complained or problem is not None
        return problem

    def _without_progress(self, now: float) -> float:
        since = self._failing_since if self._failing_since is not None else self._began_at
        return 0.0 if since is None else now - since


class Service:
    """A background loop. Subclasses say what one `run_once` does; it returns the seconds to wait, or None for a wake-up."""

    name = "service"

    def __init__(self, alarms: Alarms) -> None:
        self._wake = Wake(alarms)
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self._asked_nothing = False
        self.pulse = Pulse(self.name)

    async def run_once(self) -> float | None:
        raise NotImplementedError

    def start(self) -> None:
        self._stopping = False
        self._task = asyncio.create_task(self._run(), name=f"duetime {self.name}")

    def wake(self) -> None:
        self._wake.set()

    async def stop(self) -> None:
        """End the loop after the turn that is under way."""
        self._stopping = True
        self._wake.set()
        if self._task is not None:
            task, self._task = self._task, None
            await task

    def progressed(self) -> None:
        """Note progress in the middle of a turn that may go on for long as long as there is work."""
        now = time.monotonic()
        self.pulse.succeed(now)
        self.pulse.begin(now)

    def asked_nothing(self) -> None:
        """Note that the turn which is under way asks nothing of anybody, so that its end is no success after failures."""
        self._asked_nothing = True

    async def _run(self) -> None:
        pulse = self.pulse
        while not self._stopping:
            pulse.begin(time.monotonic())
            self._asked_nothing = False
            try:
                pause = await self.run_once()
            except Exception as error:
                pulse.fail(error, time.monotonic())
                pause = min(FIRST_BACK_OFF * 2 ** min(pulse.failures, 16), LONGEST_BACK_OFF) * random.uniform(0.5, 1.0)
            else:
                if self._asked_nothing:
                    pulse.pause()
                else:
                    pulse.succeed(time.monotonic(), pause)
            if not self._stopping:
                await self._wake.wait(pause)
