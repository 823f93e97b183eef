"""The one shape of every background loop: a turn, a pause, back-off and a log line when something goes wrong.

This is the only place that spawns long-lived asyncio tasks; the timers of a process all run on one wheel.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Callable

from duetime.errors import StoreUnavailable
from duetime.wheel import Timer, Wheel

logger = logging.getLogger("duetime")

Call = Callable[[], None]

_TICKS = 10_000  # per second: a due instant is met to a tenth of a millisecond
FIRST_BACK_OFF = 0.05
LONGEST_BACK_OFF = 5.0


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


class Service:
    """A background loop. Subclasses say what one `turn` does; it returns the seconds to wait, or None for a wake-up."""

    name = "service"

    def __init__(self, alarms: Alarms) -> None:
        self._wake = Wake(alarms)
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self.turned_at = 0.0  # loop time of the last turn that succeeded; health looks at it

    async def turn(self) -> float | None:
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

    async def _run(self) -> None:
        failures = 0
        loop = asyncio.get_running_loop()
        while not self._stopping:
            try:
                pause = await self.turn()
                self.turned_at = loop.time()
                if failures:
                    logger.info("%s works again", self.name)
                failures = 0
            except Exception as error:
                failures += 1
                self._report(error, failures)
                pause = min(FIRST_BACK_OFF * 2 ** min(failures, 16), LONGEST_BACK_OFF) * random.uniform(0.5, 1.0)
            if not self._stopping:
                await self._wake.wait(pause)

    def _report(self, error: Exception, failures: int) -> None:
        """Log the first failure and then ever more rarely; an expected one without its traceback."""
        if failures & (failures - 1) == 0:
            expected = isinstance(error, StoreUnavailable)
            logger.warning("%s failed (%d in a row): %s", self.name, failures, error, exc_info=None if expected else error)
