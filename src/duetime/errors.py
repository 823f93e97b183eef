"""All exceptions of Duetime.

DuetimeError
├── InvalidValue (ValueError)      an option or argument outside what is allowed
│   └── InvalidStep                a step of a handler that cannot be: its name twice, a value that is not JSON or does not fit
├── InvalidHandler (TypeError)     a function that cannot be declared as a handler
├── InvalidPayload (ValueError)    arguments that do not fit the handler
├── PayloadTooLarge (ValueError)   payload or result over the size limit
├── UnknownHandler (LookupError)   no process has declared a handler of that name
├── TaskNotFound (LookupError)     no such task: never submitted, or pruned
├── ScheduleNotFound (LookupError) no schedule or calendar of that name
├── TokenNotFound (LookupError)    no token of that name or id
├── SecretNotFound (LookupError)   no secret of that name
├── FailureNotFound (LookupError)  no kind of failure with that fingerprint
├── ArtifactNotFound (LookupError) no artifact, version or upload of that name
├── TargetNotFound (LookupError)   no target is stored under that name
├── OperationNotFound (LookupError) no operation of that id
├── WorkerNotFound (LookupError)   no worker of that id
├── FlowNotFound (LookupError)     no such flow: never submitted, or pruned
├── SignalNotFound (LookupError)   no signal of that name is kept
├── AlertNotFound (LookupError)    no rule of alerts of that name, or it does not fire for that subject
├── ChannelNotFound (LookupError)  no channel of that name
├── SecretUnreadable               none of the keys here opens the secret
├── DuplicateKey                   a live task holds that (handler, key)
│   └── DuplicateKeys              the same for some of many; the others were stored
├── Conflict                       a task, schedule or calendar is in a state that forbids the request
│   └── ChangedMeanwhile           it is not as the caller has seen it
├── QuotaExceeded                  more is submitted of a handler than its quota allows; `wait` says when to try again
├── NotAllowed                     a server refuses the token: missing, unknown, expired, without the scope, or over its rate
├── TaskFailed                     `result` of a task that ended failed, dropped or expired
├── TaskCancelled                  `result` of a task that ended cancelled
├── FlowFailed                     `result` of a flow that ended failed or cancelled
├── MissingExtra (ImportError)     a part of Duetime that is not installed; the message says how to install it
├── CannotListen                   the address of a server is in use, or not this machine's
└── StoreUnavailable               the store cannot be reached, read or written

What handlers raise to end their attempt, and what is raised in them:

Signal
├── Fatal                          no more retries
├── RetryLater                     again after a delay, uses up no try
└── AttemptCancelled               raised by `ctx.check()` after a cancel or a timeout

The API and the command line have tables from these classes to HTTP statuses and exit codes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any


class DuetimeError(Exception):
    """The base class of all errors that Duetime raises on purpose."""


class InvalidValue(DuetimeError, ValueError):
    """An option or argument is outside what is allowed."""


class InvalidStep(InvalidValue):
    """A step of a handler cannot be: its name is there twice, or its value is not JSON, too large, or of another type.

    It ends the attempt as Fatal does.
    """


class InvalidHandler(DuetimeError, TypeError):
    """A function cannot be declared as a handler."""


class InvalidPayload(DuetimeError, ValueError):
    """The arguments do not fit the handler's parameters; `field` is the wrong one, if it is known."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class PayloadTooLarge(DuetimeError, ValueError):
    """A payload or result is over the size limit."""


class UnknownHandler(DuetimeError, LookupError):
    """No process that opened the store has declared a handler of that name."""


class TaskNotFound(DuetimeError, LookupError):
    """There is no such task: it was never submitted, or it has been deleted or pruned."""


class ScheduleNotFound(DuetimeError, LookupError):
    """There is no schedule, or no calendar, of that name."""


class TokenNotFound(DuetimeError, LookupError):
    """There is no token of that name or id."""


class FailureNotFound(DuetimeError, LookupError):
    """No kind of failure has that fingerprint: never seen, or too long ago."""


class OperationNotFound(DuetimeError, LookupError):
    """There is no operation of that id."""


class WorkerNotFound(DuetimeError, LookupError):
    """No worker of that id is registered: it has stopped, or was taken for dead."""


class LockNotFound(DuetimeError, LookupError):
    """Nobody holds a lock of that name."""


class LimitNotFound(DuetimeError, LookupError):
    """No worker has declared a limit of that name."""


class LockTaken(DuetimeError):
    """Somebody else holds the lock."""


class LockLost(DuetimeError):
    """The lock is not held any more: somebody else may have it."""


class AlertNotFound(DuetimeError, LookupError):
    """There is no rule of that name, or it does not fire for that subject."""


class ChannelNotFound(DuetimeError, LookupError):
    """There is no channel of that name."""


class FlowNotFound(DuetimeError, LookupError):
    """There is no such flow: it was never submitted, or it has been pruned."""


class SignalNotFound(DuetimeError, LookupError):
    """No signal of that name, or with that id, is kept."""


class SecretNotFound(DuetimeError, LookupError):
    """There is no secret of that name. It ends an attempt that needs it as Fatal does."""


class ArtifactNotFound(DuetimeError, LookupError):
    """There is no artifact, version or upload of that name. It ends an attempt that needs it as Fatal does."""


class TargetNotFound(DuetimeError, LookupError):
    """No target is stored under that handler's name."""


class SecretUnreadable(DuetimeError):
    """None of the keys of this process opens the secret. It ends an attempt that needs it as Fatal does."""


class DuplicateKey(DuetimeError):
    """A live task, or flow, already holds this key; `task_id` names it."""

    def __init__(self, message: str, *, task_id: str) -> None:
        super().__init__(message)
        self.task_id = task_id


class DuplicateKeys(DuplicateKey):
    """Some of many tasks found their key taken; the others were stored.

    `tasks` has one entry per submitted task, None for a duplicate; `duplicates` maps the index of each duplicate to the id of
    the live task that holds its key.
    """

    def __init__(self, message: str, *, tasks: Sequence[Any], duplicates: Mapping[int, str]) -> None:
        super().__init__(message, task_id=next(iter(duplicates.values())))
        self.tasks = list(tasks)
        self.duplicates = dict(duplicates)


class Conflict(DuetimeError):
    """A task, schedule or calendar is in a state that forbids the request, or others keep changing it."""


class ChangedMeanwhile(Conflict):
    """A task or schedule has changed since the caller read it; nothing was written."""


class QuotaExceeded(DuetimeError):
    """More was submitted of a handler than its quota allows; nothing of it was stored. Try again in `wait` seconds, if that is given."""

    def __init__(self, message: str, *, wait: float | None = None) -> None:
        super().__init__(message)
        self.wait = wait


class NotAllowed(DuetimeError):
    """A server refuses the token: it is missing, unknown, expired, without the scope or handler, or over its rate."""


class TaskFailed(DuetimeError):
    """The awaited task ended without a result; `error_type` and `state` say how."""

    def __init__(self, message: str, *, task_id: str, state: str, error_type: str | None = None) -> None:
        super().__init__(message)
        self.task_id = task_id
        self.state = state
        self.error_type = error_type


class TaskCancelled(DuetimeError):
    """The awaited task was cancelled."""

    def __init__(self, message: str, *, task_id: str) -> None:
        super().__init__(message)
        self.task_id = task_id


class FlowFailed(DuetimeError):
    """The awaited flow ended failed or cancelled, as `state` says; `nodes` are those that did not succeed."""

    def __init__(self, message: str, *, flow_id: str, state: str, nodes: Sequence[str]) -> None:
        super().__init__(message)
        self.flow_id = flow_id
        self.state = state
        self.nodes = list(nodes)


class MissingExtra(DuetimeError, ImportError):
    """A package is missing that an optional part of Duetime needs; the message says how to install it."""


class CannotListen(DuetimeError):
    """The address is in use, or does not belong to this machine."""


class StoreUnavailable(DuetimeError):
    """The store cannot be reached, read or written; nothing was written, unless the message says that this is unknown."""


class Signal(Exception):
    """Raised by a handler to end its attempt in a certain way."""


class Fatal(Signal):
    """End the task as failed: no more retries."""


class RetryLater(Signal):
    """Run the task again after a delay; uses up no try."""

    def __init__(self, delay: timedelta | float, reason: str = "") -> None:
        super().__init__(reason or f"again in {delay}")
        self.delay = delay


class AttemptCancelled(Signal):
    """The attempt was told to stop; raised by `ctx.check()`."""
