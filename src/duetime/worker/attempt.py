"""One attempt in a worker, from its claim to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context as Variables
from enum import Enum
from types import coroutine
from typing import Any

from duetime.clock import Instant
from duetime.output import Sink
from duetime.service import Call
from duetime.store.protocol import ClaimedTask
from duetime.targets.context import Context
from duetime.targets.spec import HandlerSpec
from duetime.wheel import Timer
from duetime.worker.threads import ThreadCall


class Stop(Enum):
    """Why an attempt was told to stop; decides how it counts once its code has ended."""

    TIMEOUT = "timeout"
    CANCEL = "cancel"
    RELEASE = "release"
    LOST = "lost"


class Interrupted(BaseException):
    """Raised in the middle of code that blocks the event loop past its deadline. Not an Exception: handlers rarely catch it."""


class Attempt:
    """One attempt. Light, because there are tens of thousands a second; what a fast handler never needs is made late."""

    __slots__ = (
        "_progress",
        "call",
        "claimed",
        "context",
        "deadline_at",
        "runner",
        "sink",
        "spec",
        "started_at",
        "stop",
        "timeout",
        "timer",
    )

    def __init__(self, claimed: ClaimedTask, spec: HandlerSpec, progress: Callable[[Attempt, float, str], None]) -> None:
        self._progress = progress
        self.claimed = claimed
        self.spec = spec
        self.timeout = spec.timeout if claimed.timeout is None else claimed.timeout
        self.started_at: Instant = 0
        self.deadline_at: Instant = 0
        self.context: Context | None = None
        self.sink: Sink | None = None
        self.runner: asyncio.Task[None] | None = None
        self.timer: Timer[Call] | None = None
        self.call: ThreadCall | None = None
        self.stop: Stop | None = None

    def report(self, fraction: float, text: str) -> None:
        """Pass on how far the attempt says it is."""
        self._progress(self, fraction, text)


class Current:
    """Which attempt runs on the event loop's thread at this very moment, for those who watch from outside."""

    __slots__ = ("attempt", "since")

    def __init__(self) -> None:
        self.attempt: Attempt | None = None
        self.since = 0.0


@coroutine
def drive(
    work: Coroutine[Any, Any, Any], variables: Variables, attempt: Attempt, current: Current, suspended: Callable[[Attempt], None]
) -> Generator[Any, Any, Any]:
    """Run a handler's coroutine inside the awaiting task, with context variables of its own.

    An attempt that never waits costs no asyncio task; `suspended` is called once, when it first waits. Handlers see the
    runner's task as `asyncio.current_task()`, so timeouts and task groups work in them as anywhere.
    """
    run = variables.run
    advance: Callable[[Any], Any] = work.send
    value: Any = None
    waited = False
    while True:
        current.attempt = attempt
        try:
            awaited = run(advance, value)
        except StopIteration as done:
            return done.value
        except Interrupted as error:
            advance, value = work.throw, error
            if getattr(work, "cr_frame", None) is None:  # it ended just before it could be interrupted
                raise
            continue
        except GeneratorExit as error:
            if error is value:  # it is we who are being closed
                raise
            raise RuntimeError("the handler raised GeneratorExit") from error
        finally:
            current.attempt = None
        if not waited:
            waited = True
            suspended(attempt)
        try:
            value = yield awaited
            advance = work.send
        except BaseException as error:
            advance, value = work.throw, error
