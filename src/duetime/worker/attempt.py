"""One attempt in a worker, from its start to its end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, ClassVar, Protocol, overload

import msgspec

from duetime.clock import DAY, Instant
from duetime.model.outcome import Ended, Outcome
from duetime.model.retry import RetryPolicy
from duetime.model.secrets import Secret
from duetime.runtime.forks import Original
from duetime.runtime.service import Call
from duetime.runtime.wheel import Timer
from duetime.secrets.redacting import Redactor
from duetime.store.values import ClaimedTask
from duetime.targets.context import Context, Resources
from duetime.targets.declaring import refused
from duetime.targets.endings import failed, timed_out
from duetime.targets.host import TargetHost
from duetime.targets.output import OutputFiles, Sink
from duetime.targets.permits import PermitSource
from duetime.targets.python.threads import ThreadCall
from duetime.targets.spawned import Spawned
from duetime.targets.spec import HandlerSpec
from duetime.targets.target import Accepted, Stop

_COUNTS_AS = {
    Stop.TIMEOUT: Outcome.TIMED_OUT,
    Stop.CANCEL: Outcome.CANCELLED,
    Stop.RELEASE: Outcome.RELEASED,
    Stop.LOST: Outcome.LOST,
}


class Interrupted(BaseException):
    """Raised in the middle of code that blocks the event loop past its deadline. Not an Exception: handlers rarely catch it."""


class AttemptOwner(Protocol):
    """What an attempt needs of its executor."""

    resources: Resources
    host: TargetHost

    @property
    def output(self) -> OutputFiles | None: ...

    @property
    def permits(self) -> PermitSource | None: ...

    def report(self, attempt: Attempt, fraction: float, text: str) -> None: ...

    def may_begin(self, attempt: Attempt) -> bool: ...

    def has_begun(self, attempt: Attempt) -> None: ...


class Attempt(msgspec.Struct, eq=False):
    """One attempt. Light, because there are tens of thousands a second: what a fast handler never uses is made only when used.

    A struct of msgspec is made in 0.25 µs; an object of Python with as many fields takes 0.9 µs (`bench/ceiling.py`).
    """

    claimed: ClaimedTask
    spec: HandlerSpec
    owner: AttemptOwner
    runner: asyncio.Task[None] | None
    started_at: Instant
    deadline_at: Instant
    work: Coroutine[Any, Any, Any] | None = None  # the handler's code, once it has been called
    ended: bool = False
    timer: Timer[Call] | None = None
    stop: Stop | None = None
    made: Context | None = None
    raised: BaseException | None = None  # until its end is logged: its traceback refers to this attempt
    spawned: Spawned | None = None  # what its code has started beside itself, if anything
    redactor: Redactor | None = None  # once it has used a secret
    call: ThreadCall | None = None  # until it ends, if it was handed over to threads
    _sink: Sink | None = None

    _beginning: ClassVar[threading.RLock] = threading.RLock()  # reentrant: a signal handler may print too

    @property
    def timeout(self) -> float:
        return self.spec.timeout if self.claimed.timeout is None else self.claimed.timeout

    @property
    def context(self) -> Context:
        """The attempt as its handler sees it, made when it is first read."""
        if self.made is None:
            self.made = Context(
                self.claimed,
                started_at=self.started_at,
                deadline_at=self.deadline_at,
                resources=self.owner.resources,
                progress=self.report,
                door=self.owner.host.steps,
                permits=self.owner.permits,
            )
            if self.stop is not None:
                self.made.tell_to_stop(_COUNTS_AS[self.stop])
        return self.made

    @property
    def sink(self) -> Sink | None:
        """Where its output goes, made when it is first read; None if output is not kept. Closed once the attempt has ended."""
        files = self.owner.output
        if self._sink is None and files is not None:
            sink = Sink(files, self.claimed.id, self.claimed.attempt, self.claimed.handler)
            with self._beginning:
                if self._sink is None:
                    sink.redact(self.redactor)
                    self._sink = sink
            # no lock is needed: `end` sets this before it looks for the sink, and here the sink is set before this is read
            if self.ended:
                self._sink.close()
        return self._sink

    def spawning(self) -> Spawned:
        """Return what its code has started beside itself, from any thread."""
        with self._beginning:
            if self.spawned is None:
                self.spawned = Spawned()
            return self.spawned

    async def reveal(self, secret: Secret) -> tuple[str, ...]:
        """Return the live values of a secret, the newest first, and blank them from now on in all that is kept of this attempt."""
        revealed = await self.owner.host.secrets.reveal(secret.name)
        with self._beginning:
            self.redactor = revealed.redactor if self.redactor is None else self.redactor | revealed.redactor
            if self._sink is not None:
                self._sink.redact(self.redactor)
        return revealed.values

    def report(self, fraction: float, text: str) -> None:
        """Pass on its progress, from any thread."""
        self.owner.report(self, fraction, text if self.redactor is None else self.redactor.text(text))

    def postpone(self) -> None:
        """Let its time not run before `may_begin`."""
        self.deadline_at += DAY

    def may_begin(self) -> bool:
        """Count its time from now, unless it may not start any more."""
        return self.owner.may_begin(self)

    def has_begun(self) -> None:
        """Note that its code runs, after `may_begin`."""
        self.owner.has_begun(self)

    def cancel(self) -> None:
        """Cancel its coroutine."""
        if self.runner is not None:
            self.runner.cancel()

    def ended_by(self, error: BaseException, policy: RetryPolicy) -> Ended:
        """Return what an exception means, given that the attempt may have been told to stop."""
        ended = self._ended_by(error, policy)
        if self.redactor is not None:
            self.raised = None  # its message cannot be blanked, and whoever formats the log record would show it
        return self.blanked(ended)

    def _ended_by(self, error: BaseException, policy: RetryPolicy) -> Ended:
        if isinstance(error, Interrupted):
            self.stop = self.stop or Stop.TIMEOUT
        match self.stop:
            case Stop.TIMEOUT:
                return timed_out(error, self.timeout)
            case Stop.CANCEL:
                return Ended(Outcome.CANCELLED)
            case Stop.RELEASE | Stop.LOST:
                return Ended(Outcome.RELEASED)
            case None:
                self.raised = error
                return refused(failed(error, policy), self.spec)

    @overload
    def blanked(self, ended: Ended) -> Ended: ...
    @overload
    def blanked(self, ended: Ended | Accepted) -> Ended | Accepted: ...
    def blanked(self, ended: Ended | Accepted) -> Ended | Accepted:
        """Return its end without the values of secrets that it has used."""
        if self.redactor is None:
            return ended
        if isinstance(ended, Accepted):  # a location that names a secret is not stored, nor is it of use without it
            told = ended.location is None or self.redactor.text(ended.location) == ended.location
            return ended if told else msgspec.structs.replace(ended, location=None)
        return self.redactor.ended(ended)

    def end(self) -> None:
        """Release what its code used. What its threads print from now on goes to the process's own streams."""
        self.ended = True
        self.made = None  # they refer to each other: without this they would wait for the garbage collector
        if self._sink is not None:
            self._sink.close()

    def tell_to_stop(self, why: Stop) -> None:
        """Note that it has to stop, and show that to its handler."""
        self.stop = why
        if self.made is not None:
            self.made.tell_to_stop(_COUNTS_AS[why])


class Current:
    """The attempt that runs on the event loop's thread right now; the keeper reads it from its own thread.

    When an attempt's code gives the thread back, `original` says whether this is still the worker, or a fork that the code made.
    """

    __slots__ = ("attempt", "original")

    def __init__(self, original: Original) -> None:
        self.attempt: Attempt | None = None
        self.original = original
