"""Handlers performed in sub-processes; `children` has the processes themselves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

from duetime.model.outcome import Ended, Outcome
from duetime.model.task import ErrorInfo
from duetime.targets.host import TargetHost
from duetime.targets.python.children import NEVER, Recycling
from duetime.targets.python.thread import ThreadTarget
from duetime.targets.target import Accepted, AttemptHandle, Stop, Target


class ProcessTarget:
    """Performs attempts in sub-processes, at most as many at once as `limit` allows. Stopping kills the process and all that it started."""

    direct_call = None

    def __init__(self, host: TargetHost, limit: asyncio.Semaphore | None = None, recycling: Recycling = NEVER) -> None:
        self._host = host
        self._limit = limit
        self._recycling = recycling

    async def perform(self, attempt: AttemptHandle) -> Ended:
        children = self._host.children
        if children is None:
            text = "isolation='process' needs an app that can be imported: start the worker with `duetime worker module:app`"
            return Ended(Outcome.FAILED, error=ErrorInfo("NotImportable", text))
        output_path = None if attempt.sink is None else str(attempt.sink.share())
        attempt.postpone()
        async with contextlib.nullcontext() if self._limit is None else self._limit:
            failure = await children.prepare()
            if failure is not None:
                return failure
            if not attempt.may_begin():
                return Ended(Outcome.RELEASED)
            return await children.perform(
                attempt.claimed,
                started_at=attempt.started_at,
                deadline_at=attempt.deadline_at,
                output_path=output_path,
                progress=attempt.report,
                began=attempt.has_begun,
                recycling=self._recycling,
                steps=self._host.steps,
            )

    def stop(self, attempt: AttemptHandle, reason: Stop) -> float:
        attempt.cancel()
        return 0.0


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
