"""The seam between a worker and whatever performs attempts: a coroutine, a thread, a sub-process, a request.

The worker's executor decides what starts, when it has to stop and what its end means. A target performs one attempt at a time as it is
given them, and makes it end when told to. It knows nothing of stores and nothing of the worker but an `AttemptHandle`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from contextvars import Context as Variables
from enum import Enum
from typing import Any, ClassVar, Protocol, runtime_checkable

import msgspec

from duetime.clock import Instant
from duetime.model.outcome import Ended
from duetime.model.secrets import Secret
from duetime.store.values import ClaimedTask
from duetime.targets.context import Context
from duetime.targets.output import Sink
from duetime.targets.python.threads import ThreadCall


class Stop(Enum):
    """Why an attempt was told to stop; decides how it counts once its code has ended."""

    TIMEOUT = "timeout"
    CANCEL = "cancel"
    RELEASE = "release"
    LOST = "lost"


class Accepted(msgspec.Struct, frozen=True):
    """Somebody else has taken the work over and reports its end later (HTTP 202).

    Such an attempt takes no slot and belongs to no worker. It times out at `deadline_at`, or after `silence` seconds without a report.
    `location` is where whoever has it can be told that it was cancelled.
    """

    outcome: ClassVar[None] = None  # there is none yet

    deadline_at: Instant
    silence: float | None = None
    location: str | None = None


class AttemptHandle(Protocol):
    """An attempt as its target sees it."""

    @property
    def claimed(self) -> ClaimedTask:
        """The task with its payload, and the attempt's number."""
        ...

    @property
    def context(self) -> Context:
        """What a Python handler is given; made when it is first read."""
        ...

    @property
    def started_at(self) -> Instant: ...

    @property
    def deadline_at(self) -> Instant: ...

    @property
    def sink(self) -> Sink | None:
        """Where its output goes; None if output is not kept."""
        ...

    async def reveal(self, secret: Secret) -> tuple[str, ...]:
        """Return the live values of a secret, the newest first. A target sends that one, and signs with all of them.

        From now on they are blanked in all that is kept of this attempt: result, error, detail, progress, and what its sink is given.
        Raises SecretNotFound or SecretUnreadable, which end the task as Fatal does. Usually answered from memory: call it per attempt.
        """
        ...

    def blanked(self, ended: Ended) -> Ended:
        """Return an end without the values of secrets that it has used, for others than the worker, which does that by itself."""
        ...

    def report(self, fraction: float, text: str) -> None:
        """Pass on the progress of the work; from any thread."""
        ...

    def postpone(self) -> None:
        """Let its time not run before `may_begin`: something has to be made ready first, such as a process."""
        ...

    def may_begin(self) -> bool:
        """Count its time from now and return True; or return False if it must not start any more: then it ended as released.

        Between this and `has_begun` the worker confirms no gate that holds it, so call that as soon as its code runs.
        """
        ...

    def has_begun(self) -> None:
        """Note that its code runs, after `may_begin`. An attempt that ends before that need not call it."""
        ...

    def cancel(self) -> None:
        """Raise CancelledError in the coroutine that `perform` returned."""
        ...


@runtime_checkable
class HandedOver(Protocol):
    """A target whose attempts can be handed over many at a time, without a coroutine that waits for each."""

    def call(self, attempt: AttemptHandle, variables: Variables, ended: Callable[[Any, BaseException | None], None]) -> ThreadCall:
        """Return the call of an attempt, to be made in a thread with these context variables.

        `ended` is called in the event loop when the code has ended, with its value or its exception. Raises what decoding the payload
        raises. Not used for a task whose process died before.
        """
        ...

    def hand_over(self, calls: Sequence[ThreadCall]) -> None:
        """Have these calls made."""
        ...


DirectCall = Callable[[AttemptHandle], Coroutine[Any, Any, object]]


class Target(Protocol):
    """Performs the attempts of one handler in one worker, any number at once. All methods are called in the event loop."""

    @property
    def direct_call(self) -> DirectCall | None:
        """The shortest way, if there is one: the handler's own coroutine, with nothing of ours around it.

        What it returns is the result and what it raises the failure, so a no-op attempt needs one coroutine instead of two.
        Not used for a task whose process died before.
        """
        ...

    def perform(self, attempt: AttemptHandle) -> Coroutine[Any, Any, Ended | Accepted]:
        """Perform an attempt, and return how it ended once its code *has* ended: the next attempt may start right after.

        It runs with context variables of the attempt's own. An exception counts as one that a handler raised, unless the attempt was
        told to stop: then it has stopped.
        """
        ...

    def stop(self, attempt: AttemptHandle, reason: Stop) -> float:
        """Make an attempt's code end soon; `perform` returns or raises when it has.

        Return the seconds until its code is interrupted, 0 if it is now: code that goes on long after that is stuck. A second call comes
        only with `Stop.LOST`.
        """
        ...


@runtime_checkable
class WithdrawingTarget(Protocol):
    """A target whose accepted work can be withdrawn."""

    @property
    def accepts(self) -> bool:
        """Whether its work may be accepted at all."""
        ...

    async def withdraw(self, attempt: AttemptHandle, location: str) -> None:
        """Tell whoever has accepted an attempt that it was cancelled. Raises nothing, and takes a few seconds at most.

        It need not be the worker that performed the attempt which tells.
        """
        ...
