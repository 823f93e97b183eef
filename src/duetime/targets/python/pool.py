"""The sub-processes of one worker: who starts, who performs what, who waits for the next attempt, and who is replaced."""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import msgspec

from duetime.model.outcome import Ended, Outcome
from duetime.model.task import ErrorInfo
from duetime.store.values import ClaimedTask
from duetime.targets.output import DEFAULT_CAP
from duetime.targets.python.children import Child, NotStarted
from duetime.targets.python.conversation import Broken, End, Performance
from duetime.targets.python.frames import Done, Order
from duetime.targets.steps import StepDoor

START_WITHIN = 30.0
_STARTS = 3


class Recycling(msgspec.Struct, frozen=True):
    """When a child is replaced, looked at after each attempt: after so many attempts, or with so many bytes of memory in use."""

    attempts: int | None = None
    memory: int | None = None

    def is_due(self, attempts: int, memory: Callable[[], int]) -> bool:
        if self.attempts is not None and attempts >= self.attempts:
            return True
        return self.memory is not None and memory() > self.memory


NEVER = Recycling()


class Follower(Protocol):
    """An attempt that may be performed after another one by the same child. Called in the event loop."""

    @property
    def order(self) -> Order: ...

    def next_up(self) -> None:
        """It begins when the one before it has ended: from now on it takes a slot."""
        ...

    def began(self, started_at: int) -> None: ...

    def report(self, fraction: float, text: str) -> None: ...

    def ended(self, ended: Ended, took: int, *, silent: bool) -> None: ...

    def went_back(self, *, tried: bool) -> None:
        """It has not begun and does not in this child; `tried`: the child died when it was about to."""
        ...


# Returns what may follow an attempt, given how many a child has by now and how many it may have.
Following = Callable[[int, int], Sequence[Follower]]


class ChildPool:
    """Performs attempts of one app's handlers in sub-processes, as many at once as there are calls.

    Children start one by one, when there is none that could be used again: fifty interpreters that start at once take two cores longer
    than the work of most attempts, and an attempt that ends meanwhile leaves its child to the next. `inherit` are descriptors that every
    child holds as long as it lives, such as the worker's lock. Up to `max_idle` children wait for the next attempt.
    """

    def __init__(
        self,
        app_path: str,
        *,
        inherit: Sequence[int] = (),
        max_idle: int = 4,
        output_cap: int = DEFAULT_CAP,
        start_within: float = START_WITHIN,
    ) -> None:
        self._app_path = app_path
        self._inherit = tuple(inherit)
        self._max_idle = max_idle
        self._output_cap = output_cap
        self._start_within = start_within
        self._idle: list[Child] = []
        self._children: set[Child] = set()
        self._performing: dict[str, Child] = {}  # by task
        self._waiters: deque[asyncio.Future[Child]] = deque()
        self._starter: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()  # of attempts that end with their child
        self._closed = False

    def order(
        self,
        claimed: ClaimedTask,
        output_path: str | None,
        *,
        started_at: int = 0,
        deadline_at: int = 0,
        clock: int | None = None,
        timeout: int = 0,
    ) -> Order:
        """Return the order to perform an attempt."""
        return Order(
            task=claimed,
            started_at=started_at,
            deadline_at=deadline_at,
            output_path=output_path,
            output_cap=self._output_cap,
            clock=clock,
            timeout=timeout,
        )

    async def perform(
        self,
        claimed: ClaimedTask,
        *,
        started_at: int,
        deadline_at: int,
        output_path: str | None,
        progress: Callable[[float, str], None],
        began: Callable[[], None] = lambda: None,
        told: Callable[[Done], None] = lambda done: None,
        recycling: Recycling = NEVER,
        steps: StepDoor | None = None,
        following: Following | None = None,
    ) -> Ended:
        """Run one attempt to its end; call `began` when it has begun, and `told` when its child has told its end.

        While it runs, its child may be given what `following` returns. When cancelled, kill the child, wait until it is gone, then raise.
        """
        order = self.order(claimed, output_path, started_at=started_at, deadline_at=deadline_at)
        for _ in range(_STARTS):
            try:
                child = await self._take()
            except NotStarted as problem:
                return problem.ended
            self._performing[claimed.id] = child
            end: asyncio.Future[tuple[End, bool]] = asyncio.get_running_loop().create_future()
            performance = Performance(order, partial(_resolve, end), lambda _: began(), progress, steps)
            if following is not None:
                performance.following = partial(self._following, _Chain(child, following, recycling, steps))
            child.perform(performance)
            try:
                done, last = await end
                if isinstance(done, Broken | None):
                    await child.end()
                    if performance.has_begun:
                        return self._lost(child, done, order)
                    if child.killed_on_purpose:  # a worker without its lease must not begin it in another child
                        return Ended(Outcome.RELEASED)
                    # it died while it was idle; the attempt had not begun, so another child may have it
                else:
                    told(done)
                    if not self._used_again(child, done.ended, recycling, last=last):
                        await child.end()
                    return done.ended
            except BaseException:
                child.take_back()
                await child.end()
                raise
            finally:
                self._performing.pop(claimed.id, None)
        error = ErrorInfo("ProcessDied", f"{_STARTS} sub-processes, one after the other, died before the attempt began")
        return Ended(Outcome.FAILED, error=error)

    def _lost(self, child: Child, broken: Broken | None, order: Order) -> Ended:
        error = child.obituary(broken or Broken(""), order)
        return Ended(Outcome.LOST, error=error, crashed=not child.killed_on_purpose, alone=True)

    def _used_again(self, child: Child, ended: Ended, recycling: Recycling, *, last: bool) -> bool:
        """Keep a child for the next attempt, if it has nothing else to do; return False if it must be killed first.

        The next attempt must not run beside what this one has started, or in what an interruption has left half done.
        """
        if ended.outcome is not Outcome.SUCCEEDED and (child.interrupted or child.left_something):
            return False
        if last:
            self._put_back(child, recycling)
        return True

    # ---- what follows an attempt in its child ----

    def _following(self, chain: _Chain, has: int, most: int) -> list[Performance]:
        child, recycling = chain.child, chain.recycling
        if self._closed or child.killed_on_purpose or recycling.memory is not None:
            return []
        if recycling.attempts is not None:
            most = min(most, has + recycling.attempts - child.attempts)
        return [self._performance(chain, follower) for follower in chain.following(has, most)]

    def _performance(self, chain: _Chain, follower: Follower) -> Performance:
        self._performing[follower.order.task.id] = chain.child
        return Performance(
            follower.order,
            partial(self._follower_ended, chain, follower),
            follower.began,
            follower.report,
            chain.steps,
            partial(self._following, chain),
            follower.next_up,
        )

    def _follower_ended(self, chain: _Chain, follower: Follower, end: End, last: bool, has_begun: bool) -> None:
        self._performing.pop(follower.order.task.id, None)
        if isinstance(end, Done):
            if self._used_again(chain.child, end.ended, chain.recycling, last=last):
                follower.ended(end.ended, end.took, silent=end.silent)
            else:
                self._later(self._ended_with(chain.child, follower, end))
        elif has_begun:
            self._later(self._died_with(chain.child, follower, end))
        else:
            follower.went_back(tried=end is not None)
            if last:
                self._put_back(chain.child, chain.recycling)

    async def _ended_with(self, child: Child, follower: Follower, done: Done) -> None:
        await child.end()
        follower.ended(done.ended, done.took, silent=done.silent)

    async def _died_with(self, child: Child, follower: Follower, broken: Broken | None) -> None:
        await child.end()
        follower.ended(self._lost(child, broken, follower.order), 0, silent=False)

    def _later(self, call: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(call, context=contextvars.Context())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def take_back(self) -> None:
        """Take back all that has not begun."""
        for child in tuple(self._children):
            child.take_back()

    # ---- stopping ----

    def may_perform(self, task: str) -> bool:
        """Take back what follows a task's attempt, and the attempt too if it has not begun. Return whether it may still run.

        A child takes the next order only after it has told the end of the one before: whatever is not its last has ended.
        """
        child = self._performing.get(task)
        return child is None or child.may_perform(task)

    def end(self, task: str) -> None:
        """Kill the child that performs a task's attempt, and let the attempt end when it is gone."""
        child = self._performing.get(task)
        if child is not None:
            child.killed_on_purpose = True
            child.kill()

    def interrupt(self, task: str) -> bool:
        """Tell the code of a task's attempt to stop, after `may_perform`; return False if it does not run, or cannot be told."""
        child = self._performing.get(task)
        return child is not None and child.interrupt(task)

    async def prepare(self) -> Ended | None:
        """Have a child ready, so that the `perform` that follows begins at once. If none starts, return the attempt's end."""
        try:
            self._put_back(await self._take())
        except NotStarted as problem:
            return problem.ended
        return None

    def kill(self) -> None:
        """Kill all children now, from any thread: for a worker that has lost its lease while its event loop is blocked."""
        for child in tuple(self._children):
            child.killed_on_purpose = True
            child.kill()

    async def close(self) -> None:
        """Let idle children leave their lifespan, kill the others, and wait until all are gone."""
        self._closed = True
        for child in tuple(self._children):
            if child in self._idle:
                child.retire()
            else:
                child.killed_on_purpose = True
                child.kill()
        self._idle.clear()
        for child in tuple(self._children):
            await child.wait_until_gone()
        others = (*self._ending, *(() if self._starter is None else (self._starter,)))
        if others:
            await asyncio.wait(others)

    async def _take(self) -> Child:
        """Return a child, as soon as one is put back or has started."""
        while True:
            if self._closed:
                raise RuntimeError("the pool of sub-processes is closed")
            while self._idle:
                child = self._idle.pop()
                if not child.exited:
                    return child
            child = await self._wait()
            if not child.exited:
                return child

    async def _wait(self) -> Child:
        waiter: asyncio.Future[Child] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._ensure_starter()
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._put_back(waiter.result())
            raise

    def _ensure_starter(self) -> None:
        if self._waiters and self._starter is None and not self._closed:
            # it belongs to the pool and not to the attempt that asks first, so it has none of that one's context
            self._starter = asyncio.create_task(self._start_children(), name="duetime sub-processes", context=contextvars.Context())

    async def _start_children(self) -> None:
        """Start one child after the other, as long as somebody waits for one."""
        try:
            while self._waiters:
                try:
                    child = await self._start()
                except BaseException as problem:
                    waiters, self._waiters = self._waiters, deque()
                    for waiter in waiters:  # the others would fail for the same reason, after as long a time
                        if not waiter.done():
                            waiter.set_exception(problem)
                    if not isinstance(problem, Exception):
                        raise
                else:
                    self._put_back(child)
        finally:
            self._starter = None

    async def _start(self) -> Child:
        child = Child(self._app_path, self._inherit)
        self._children.add(child)
        child.gone.add_done_callback(lambda _: self._children.discard(child))
        try:
            await child.start(self._start_within)
        except BaseException:
            await child.end()
            raise
        return child

    def _put_back(self, child: Child, recycling: Recycling = NEVER) -> None:
        """Give a child to whoever waits for one, or keep it; retire it if it has done enough, or too many are kept."""
        while self._waiters and self._waiters[0].done():  # cancelled meanwhile
            self._waiters.popleft()
        if self._closed or recycling.is_due(child.attempts, child.memory):
            child.retire()
            self._ensure_starter()
        elif self._waiters:
            self._waiters.popleft().set_result(child)
        elif len(self._idle) >= self._max_idle:
            child.retire()
        else:
            self._idle.append(child)


class _Chain(NamedTuple):
    """An attempt and those that follow it in its child."""

    child: Child
    following: Following
    recycling: Recycling
    steps: StepDoor | None


def _resolve(future: asyncio.Future[tuple[End, bool]], end: End, last: bool, _: bool) -> None:
    if not future.done():
        future.set_result((end, last))
