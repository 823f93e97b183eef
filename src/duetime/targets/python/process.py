"""Handlers performed in sub-processes; `children` has the processes themselves."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any

from duetime.clock import SECOND, Instant
from duetime.model.outcome import Ended, Outcome
from duetime.model.task import ErrorInfo
from duetime.targets.endings import ran_too_long
from duetime.targets.host import TargetHost
from duetime.targets.output import Sink
from duetime.targets.python.frames import Done
from duetime.targets.python.pool import NEVER, ChildPool, Follower, Following, Recycling
from duetime.targets.python.thread import ThreadTarget
from duetime.targets.target import Accepted, AttemptHandle, Stop, Supply, Target

QUICK = 2_000  # microseconds of attempts that are worth handing over many at a time
AHEAD = 10_000  # microseconds of work that a child may have at once


class ProcessTarget:
    """Performs attempts in sub-processes, at most as many at once as `limit` allows.

    Stopping interrupts the code, and kills the process and all that it started if the code has not ended `kill_after` seconds later.
    """

    direct_call = None

    def __init__(
        self, host: TargetHost, limit: asyncio.Semaphore | None = None, recycling: Recycling = NEVER, kill_after: float = 0.0
    ) -> None:
        self._host = host
        self._limit = limit
        self._recycling = recycling
        self._kill_after = kill_after
        self._interrupted: dict[str, tuple[Stop, asyncio.TimerHandle]] = {}  # by task
        self._followers: dict[str, _Follower] = {}
        self._took: float | None = None  # microseconds of an attempt in its child, of late

    async def perform(self, attempt: AttemptHandle) -> Ended:
        children = self._host.children
        if children is None:
            text = "isolation='process' needs an app that can be imported: start the worker with `duetime worker module:app`"
            return Ended(Outcome.FAILED, error=ErrorInfo("NotImportable", text))
        sink = attempt.sink
        attempt.postpone()
        async with contextlib.nullcontext() if self._limit is None else self._limit:
            failure = await children.prepare()
            if failure is not None:
                return failure
            if not attempt.may_begin():
                return Ended(Outcome.RELEASED)
            return self.counted(attempt, await self._perform(children, attempt, sink))

    async def _perform(self, children: ChildPool, attempt: AttemptHandle, sink: Sink | None) -> Ended:
        try:
            return await children.perform(
                attempt.claimed,
                started_at=attempt.started_at,
                deadline_at=attempt.deadline_at,
                output_path=None if sink is None else sink.share(),
                progress=attempt.report,
                began=attempt.has_begun,
                told=partial(self._told, sink),
                recycling=self._recycling,
                steps=self._host.steps,
                following=self._following_of(children, attempt),
            )
        except BaseException:
            self._forget(attempt)
            raise

    def _told(self, sink: Sink | None, done: Done) -> None:
        self._measure(done.took)
        if done.silent and sink is not None:
            sink.unshare()

    def counted(self, attempt: AttemptHandle, ended: Ended) -> Ended:
        """Return the end of an attempt, given that it may have been interrupted."""
        reason = self._forget(attempt)
        if reason is None or ended.outcome is Outcome.SUCCEEDED:
            return ended
        if reason is Stop.TIMEOUT:
            return Ended(Outcome.TIMED_OUT, error=ran_too_long((attempt.deadline_at - attempt.started_at) / SECOND, ended.error))
        return Ended(Outcome.CANCELLED if reason is Stop.CANCEL else Outcome.RELEASED)

    def _forget(self, attempt: AttemptHandle) -> Stop | None:
        """Return why an attempt was interrupted; it has ended."""
        found = self._interrupted.pop(attempt.claimed.id, None)
        if found is None:
            return None
        found[1].cancel()
        return found[0]

    def stop(self, attempt: AttemptHandle, reason: Stop) -> float:
        children, task = self._host.children, attempt.claimed.id
        self._forget(attempt)
        if children is not None and not children.may_perform(task):
            return 0.0  # it has ended, or will not begin
        follower = self._followers.get(task)
        kill = attempt.cancel if follower is None or children is None else partial(children.end, task)
        if reason is Stop.LOST or not self._kill_after or children is None:
            kill()
            return 0.0
        if not children.interrupt(task):
            if follower is None:
                kill()
                return 0.0
            follower.told = reason  # it is about to begin
        self._interrupted[task] = reason, asyncio.get_running_loop().call_later(self._kill_after, kill)
        return self._kill_after

    # ---- what follows an attempt in its child ----

    def _following_of(self, children: ChildPool, attempt: AttemptHandle) -> Following | None:
        """Return what gives an attempt's child more of the same handler while it performs that; None for one that must be alone."""
        supply = self._host.supply
        if supply is None or self._limit is not None or attempt.claimed.crashes:
            return None
        return partial(self._following, children, supply, attempt.claimed.handler)

    def _following(self, children: ChildPool, supply: Supply, handler: str, has: int, most: int) -> Sequence[Follower]:
        if self._took is None or self._took > QUICK:
            return ()
        most = min(most, int(AHEAD / max(self._took, 1.0))) - has
        taken = supply.take(handler, most) if most > 0 else ()
        clock = supply.now() - time.monotonic_ns() // 1_000
        followers = [_Follower(self, supply, each, children, clock) for each in taken]
        self._followers |= {each.attempt.claimed.id: each for each in followers}
        return followers

    def forget_follower(self, attempt: AttemptHandle, took: int) -> None:
        del self._followers[attempt.claimed.id]
        if took:
            self._measure(took)

    def _measure(self, took: int) -> None:
        self._took = took if self._took is None else self._took + (took - self._took) / 10


class _Follower:
    """An attempt that follows another one in its child."""

    def __init__(self, target: ProcessTarget, supply: Supply, attempt: AttemptHandle, children: ChildPool, clock: int) -> None:
        self._target = target
        self._supply = supply
        self.attempt = attempt
        self.told: Stop | None = None  # before it had begun
        self._sink = sink = attempt.sink
        path, timeout = None if sink is None else sink.share(), int(attempt.timeout * SECOND)
        self.order = children.order(attempt.claimed, path, clock=clock, timeout=timeout)

    def next_up(self) -> None:
        self._supply.next_up(self.attempt)

    def began(self, started_at: Instant) -> None:
        self._supply.began(self.attempt, started_at)
        if self.told is not None:
            self._target.stop(self.attempt, self.told)

    def report(self, fraction: float, text: str) -> None:
        self.attempt.report(fraction, text)

    def ended(self, ended: Ended, took: int, *, silent: bool) -> None:
        if silent and self._sink is not None:
            self._sink.unshare()
        self._target.forget_follower(self.attempt, took)
        self._supply.ended(self.attempt, self._target.counted(self.attempt, ended), took)

    def went_back(self, *, tried: bool) -> None:
        self._target.forget_follower(self.attempt, 0)
        if self._sink is not None:
            self._sink.unshare()
        self._supply.went_back(self.attempt, tried=tried)


class SuspectsApart:
    """Performs a task whose process died before alone in a sub-process, where there are any, and all others as usual."""

    def __init__(self, usual: Target, apart: Target, host: TargetHost) -> None:
        self._usual = usual
        self._apart = apart
        self._host = host
        self.direct_call = usual.direct_call

    def perform(self, attempt: AttemptHandle) -> Coroutine[Any, Any, Ended | Accepted]:
        return self._for(attempt).perform(attempt)

    def stop(self, attempt: AttemptHandle, reason: Stop) -> float:
        return self._for(attempt).stop(attempt, reason)

    def _for(self, attempt: AttemptHandle) -> Target:
        return self._apart if attempt.claimed.crashes and self._host.children is not None else self._usual


class ThreadsApart(SuspectsApart):
    """The same, for attempts that are handed over to threads, many at a time."""

    def __init__(self, threads: ThreadTarget, apart: Target, host: TargetHost) -> None:
        super().__init__(threads, apart, host)
        self.call, self.hand_over = threads.call, threads.hand_over
