"""An event loop in virtual time: nothing waits, and the order in which processes run follows from a seed.

Every callback belongs to the simulated process in whose context it was scheduled. Callbacks of one process keep their order, as on a real
event loop; those of different processes are mixed. Those of a dead process never run, and those of a frozen one wait until it goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import math
import random
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar

T = TypeVar("T")

INSTRUCTION = 2e-6  # seconds that each round takes: a clock that stands still while code runs would be none


class Deadlock(RuntimeError):
    """Nothing is left that could happen."""


class Endless(RuntimeError):
    """What was simulated did not come to its end in time."""


class Owner:
    """Who callbacks belong to: a process that can be frozen and die."""

    def __init__(self) -> None:
        self.dead = False
        self.frozen = False
        self.held: list[OwnedHandle] = []  # what waits until it goes on
        self.tasks: list[asyncio.Task[Any]] = []  # all that it has begun; also kept so that nothing of a dead process is cleaned up
        self._prune_at = 256

    def add(self, task: asyncio.Task[Any]) -> None:
        self.tasks.append(task)
        if len(self.tasks) >= self._prune_at and not self.dead:
            self.tasks = [each for each in self.tasks if not each.done()]
            self._prune_at = 2 * len(self.tasks) + 256


OWNER: ContextVar[Owner | None] = ContextVar("duetime_simulated_process", default=None)


class OwnedHandle(asyncio.TimerHandle):
    """A callback that knows whose it is. Made and cancelled without asyncio's checks: there are thousands in each world."""

    __slots__ = ("owner",)

    def __init__(self, when: float, callback: Callable[..., Any], args: tuple[Any, ...], loop: Any, context: Context | None) -> None:
        self._context = context = copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None
        self._source_traceback = None
        self._when = when
        self._scheduled = False
        self.owner = context.get(OWNER)

    def cancel(self) -> None:
        """It is left out when its time comes."""
        self._cancelled = True
        self._callback = self._args = None  # type: ignore[assignment]


class SimulatedLoop(asyncio.BaseEventLoop):
    """Runs callbacks at once, and sets its clock to the next timer when there are none.

    Scheduling is written anew, without asyncio's checks and with a heap that C compares: half of a simulation's time went there.
    """

    _ready: deque[OwnedHandle]
    _stopping: bool

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._virtual = 1_000.0
        self._chance = chance
        self._timers: list[tuple[float, int, OwnedHandle]] = []
        self._number = 0
        self.set_task_factory(_owned_task)
        self.unowned: list[asyncio.Task[Any]] = []  # tasks that belong to no process
        self.steps = 0
        self.ends_at = math.inf  # in its own time

    def time(self) -> float:
        return self._virtual

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> asyncio.Handle:  # type: ignore[override]
        handle = OwnedHandle(0.0, callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> asyncio.Handle:  # type: ignore[override]
        return self.call_soon(callback, *args, context=context)

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> asyncio.TimerHandle:  # type: ignore[override]
        return self.call_at(self._virtual + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> asyncio.TimerHandle:  # type: ignore[override]
        timer = OwnedHandle(when, callback, args, self, context)
        self._number += 1
        heapq.heappush(self._timers, (when, self._number, timer))
        return timer

    def run_in_executor(self, executor: Executor | None, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """Call the function at once."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            future.set_exception(error)
        return future

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """There is none."""

    def _run_once(self) -> None:
        """Run rounds until the loop is to stop: each has all that is ready at its beginning."""
        timers, ready, pop = self._timers, self._ready, heapq.heappop
        while True:
            if not ready and not self._stopping:
                while timers and timers[0][2]._cancelled:
                    pop(timers)
                if not timers:
                    raise Deadlock("nothing is left that could happen: every task waits for another one")
                self._virtual = max(self._virtual, timers[0][0])
                if self._virtual > self.ends_at:
                    raise Endless("virtual time is over, and something has not ended")
            self._virtual = now = self._virtual + INSTRUCTION
            while timers and timers[0][0] <= now:
                ready.append(pop(timers)[2])
            if len(ready) == 1:
                self._step(ready.popleft())
            else:
                handles = list(ready)
                ready.clear()
                for each in self._mixed(handles):
                    self._step(each)
            if self._stopping:
                return

    def _step(self, handle: OwnedHandle) -> None:
        """Run a callback, unless its process is dead or frozen."""
        if handle._cancelled:
            return
        owner = handle.owner
        if owner is not None:
            if owner.dead:
                return
            if owner.frozen:
                owner.held.append(handle)
                return
        self.steps += 1
        try:
            handle._context.run(handle._callback, *handle._args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self.call_exception_handler({"message": f"{handle._callback} raised", "exception": error, "handle": handle})

    def _mixed(self, handles: list[OwnedHandle]) -> list[OwnedHandle]:
        """Return callbacks in another order, which keeps that of each process."""
        queues: dict[Owner | None, deque[OwnedHandle]] = {}
        for handle in handles:
            queues.setdefault(handle.owner, deque()).append(handle)
        if len(queues) == 1:
            return handles
        waiting, chosen, chance = list(queues.values()), list[OwnedHandle](), self._chance.random
        while waiting:
            index = int(chance() * len(waiting))
            chosen.append(waiting[index].popleft())
            if not waiting[index]:
                del waiting[index]
        return chosen

    def thaw(self, owner: Owner) -> None:
        """Let a frozen process go on."""
        owner.frozen = False
        held, owner.held = owner.held, []
        self._ready.extend(held)

    def _process_events(self, event_list: list[Any]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """Nobody else could wake it."""


def _owned_task(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
    context = options.get("context")
    task: asyncio.Task[Any] = asyncio.Task(coro, loop=loop, **options)
    owner = OWNER.get() if context is None else context.get(OWNER)
    if owner is not None:
        owner.add(task)
    elif isinstance(loop, SimulatedLoop):
        loop.unowned.append(task)
    return task


def abandon(owner: Owner) -> None:
    """End what a process has begun without another step of it; after the simulation."""
    tasks, owner.tasks = owner.tasks, []
    for task in tasks:
        if not task.done():
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            coroutine = task.get_coro()
            if isinstance(coroutine, Coroutine):
                _close(coroutine, task.get_loop())


def _close(coroutine: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop) -> None:
    """Close a coroutine, whatever its code says to that. The loop counts as running, or asyncio would make one that nobody closes."""
    asyncio._set_running_loop(loop)
    try:
        with contextlib.suppress(BaseException):  # it awaits something in a `finally`, or insists on going on: its process is dead
            coroutine.close()
    finally:
        asyncio._set_running_loop(None)
