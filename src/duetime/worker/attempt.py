"""One attempt in a worker, from its start to its end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Generator
from contextvars import Context as Variables
from enum import Enum
from functools import partial
from types import coroutine
from typing import Any, ClassVar, Protocol

import msgspec

from duetime.clock import Instant
from duetime.model.outcome import Outcome
from duetime.runtime.service import Call
from duetime.runtime.wheel import Timer
from duetime.store.values import ClaimedTask
from duetime.targets.context import Context, Resources
from duetime.targets.output import OutputFiles, Sink
from duetime.targets.spec import HandlerSpec
from duetime.worker.threads import ThreadCall


class Stop(Enum):
    """Why an attempt was told to stop; decides how it counts once its code has ended."""

    TIMEOUT = "timeout"
    CANCEL = "cancel"
    RELEASE = "release"
    LOST = "lost"


_COUNTS_AS = {
    Stop.TIMEOUT: Outcome.TIMED_OUT,
    Stop.CANCEL: Outcome.CANCELLED,
    Stop.RELEASE: Outcome.RELEASED,
    Stop.LOST: Outcome.LOST,
}


class Interrupted(BaseException):
    """Raised in the middle of code that blocks the event loop past its deadline. Not an Exception: handlers rarely catch it."""


class Home(Protocol):
    """What an attempt needs of its executor."""

    resources: Resources

    @property
    def output(self) -> OutputFiles | None: ...

    def progress(self, attempt: Attempt, fraction: float, text: str) -> None: ...


class Attempt(msgspec.Struct, eq=False):
    """One attempt. Light, because there are tens of thousands a second; what a fast handler never needs is made late.

    A struct of msgspec is made in 0.25 µs; an object of Python with as many fields takes 0.9 µs (`bench/ceiling.py`).
    """

    claimed: ClaimedTask
    spec: HandlerSpec
    home: Home
    runner: asyncio.Task[None] | None
    started_at: Instant
    deadline_at: Instant
    work: Coroutine[Any, Any, Any] | None = None  # the handler's code, once it has been called
    ended: bool = False
    timer: Timer[Call] | None = None
    call: ThreadCall | None = None
    stop: Stop | None = None
    made: Context | None = None
    _sink: Sink | None = None

    _beginning: ClassVar[threading.RLock] = threading.RLock()  # reentrant: a signal handler may print too

    @property
    def timeout(self) -> float:
        return self.spec.timeout if self.claimed.timeout is None else self.claimed.timeout

    @property
    def context(self) -> Context:
        """The attempt as its handler sees it, made when it is first asked for."""
        if self.made is None:
            self.made = Context(
                self.claimed,
                started_at=self.started_at,
                deadline_at=self.deadline_at,
                resources=self.home.resources,
                progress=partial(self.home.progress, self),
            )
            if self.stop is not None:
                self.made.tell_to_stop(_COUNTS_AS[self.stop])
        return self.made

    @property
    def sink(self) -> Sink | None:
        """The way to its file, made when it is first asked for; None if no output is kept. After the end of the attempt it is closed."""
        files = self.home.output
        if self._sink is None and files is not None:
            sink = Sink(files, self.claimed.id, self.claimed.attempt)
            with self._beginning:
                if self._sink is None:
                    self._sink = sink
            # without a lock: an end looks for the sink after it has set this, and a beginner at this after the sink is there
            if self.ended:
                self._sink.close()
        return self._sink

    def end(self) -> None:
        """Let go of what its code had. What threads of it print from now on goes to the process's own streams."""
        self.ended = True
        self.made = None  # it knows the attempt: without this they would wait for the garbage collector
        if self._sink is not None:
            self._sink.close()

    def tell_to_stop(self, why: Stop) -> None:
        """Note that it shall stop, and let its handler see that."""
        self.stop = why
        if self.made is not None:
            self.made.tell_to_stop(_COUNTS_AS[why])


class Current:
    """Which attempt runs on the event loop's thread at this very moment, for those who watch from outside."""

    __slots__ = ("attempt",)

    def __init__(self) -> None:
        self.attempt: Attempt | None = None


@coroutine
def drive(
    work: Coroutine[Any, Any, Any], variables: Variables, attempt: Attempt, current: Current, awaited: Any, thrown: Interrupted | None
) -> Generator[Any, Any, Any]:
    """Go on with a handler's coroutine inside the awaiting task, with context variables of its own.

    Its first step has been done: it waits for `awaited`, or was interrupted by `thrown` in the middle of that step. Handlers
    see the runner's task as `asyncio.current_task()`, so timeouts and task groups work in them as anywhere.
    """
    run, send, throw = variables.run, work.send, work.throw
    advance: Any
    value: Any
    while True:
        if thrown is not None:
            advance, value, thrown = throw, thrown, None
        else:
            try:
                value = yield awaited
                advance = send
            except BaseException as error:
                advance, value = throw, error
        current.attempt = attempt
        try:
            awaited = run(advance, value)
        except StopIteration as done:
            return done.value
        except Interrupted as error:
            if has_ended(work):  # just before it could be interrupted, or by that
                raise
            thrown = error
        except GeneratorExit as error:
            if error is value:  # it is we who are being closed
                raise
            raise RuntimeError("the handler raised GeneratorExit") from error
        finally:
            current.attempt = None


def has_ended(work: Coroutine[Any, Any, Any]) -> bool:
    """Tell whether a coroutine's code has ended."""
    return getattr(work, "cr_frame", None) is None
