"""Handlers performed in sub-processes; `children` has the processes themselves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

from duetime.clock import SECOND
from duetime.model.outcome import Ended, Outcome
from duetime.model.task import ErrorInfo
from duetime.targets.endings import ran_too_long
from duetime.targets.host import TargetHost
from duetime.targets.output import Sink
from duetime.targets.python.children import NEVER, ChildPool, Recycling
from duetime.targets.python.thread import ThreadTarget
from duetime.targets.target import Accepted, AttemptHandle, Stop, Target


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
            return self._counted(attempt, await self._perform(children, attempt, sink))

    async def _perform(self, children: ChildPool, attempt: AttemptHandle, sink: Sink | None) -> Ended:
        try:
            return await children.perform(
                attempt.claimed,
                started_at=attempt.started_at,
                deadline_at=attempt.deadline_at,
                output_path=None if sink is None else str(sink.share()),
                progress=attempt.report,
                began=attempt.has_begun,
                silent=(lambda: None) if sink is None else sink.unshare,
                recycling=self._recycling,
                steps=self._host.steps,
            )
        except BaseException:
            self._forget(attempt)
            raise

    def _counted(self, attempt: AttemptHandle, ended: Ended) -> Ended:
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
        if reason is Stop.LOST or not self._kill_after or children is None or not children.interrupt(task):
            attempt.cancel()
            return 0.0
        self._interrupted[task] = reason, asyncio.get_running_loop().call_later(self._kill_after, attempt.cancel)
        return self._kill_after


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
