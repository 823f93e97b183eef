"""Problem documents by RFC 9457, and which of our errors each kind stands for: one table, read in both directions.

`type` and `title` of a problem never change; `detail` is for people. docs/http.md explains each type, and a test says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import msgspec

from duetime import errors

MEDIA_TYPE: Final = "application/problem+json"
NAMESPACE: Final = "urn:duetime:problem:"


class Fault(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that is wrong: a part of the body (`pointer`), or a parameter of query or header."""

    detail: str
    pointer: str | None = None
    parameter: str | None = None


class Problem(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A problem document. `task_id` names the task that holds a key."""

    type: str
    title: str
    status: int
    detail: str
    errors: Sequence[Fault] = ()
    task_id: str | None = None

    @property
    def kind(self) -> str:
        return self.type.removeprefix(NAMESPACE)


class FieldError(errors.InvalidValue):
    """The value at `pointer` of a body has the right type and is still not valid."""

    def __init__(self, detail: str, pointer: str) -> None:
        super().__init__(detail)
        self.pointer = pointer


@contextmanager
def pointing(pointer: str, names: Mapping[str, str]) -> Iterator[None]:
    """Point at the field whose name begins the message of an InvalidValue; otherwise at `pointer` as a whole."""
    try:
        yield
    except FieldError:
        raise
    except errors.InvalidValue as error:
        detail = str(error)
        said, _, rest = detail.partition(" ")
        name = names.get(said.rstrip(":"))
        if name is not None:  # use the field's name in the body
            detail = f"{name}{':' if said.endswith(':') else ''} {rest}"
        raise FieldError(detail, pointer if name is None else f"{pointer}/{name}") from None


class Kind(msgspec.Struct, frozen=True):
    """A kind of problem: the end of its `type`, its status and its title."""

    name: str
    status: int
    title: str


MALFORMED = Kind("malformed-body", 400, "The body is not well-formed")
BAD_REQUEST = Kind("bad-request", 400, "The request is not well-formed")
UNAUTHORIZED = Kind("unauthorized", 401, "A good token is needed")
FORBIDDEN = Kind("forbidden", 403, "The caller may not do this")
NO_ROUTE = Kind("no-such-route", 404, "There is nothing at this address")
NO_WORKER = Kind("worker-not-found", 404, "There is no such worker")
NO_TASK = Kind("task-not-found", 404, "There is no such task")
NO_GATE = Kind("gate-not-found", 404, "There is no such gate")
NO_METHOD = Kind("method-not-allowed", 405, "The address does not know this method")
TOO_SLOW = Kind("request-timeout", 408, "The request did not arrive in time")
LEASE_OVER = Kind("lease-over", 410, "The lease of the worker is over")
CHANGED = Kind("precondition-failed", 412, "It is not as it was expected to be")
TOO_LARGE = Kind("content-too-large", 413, "The request is too large")
TARGET_TOO_LONG = Kind("target-too-long", 414, "The address is too long")
WRONG_MEDIA = Kind("unsupported-media-type", 415, "The body has a content type that is not understood here")
INVALID = Kind("invalid-request", 422, "The request does not fit")
KEY_REUSED = Kind("idempotency-key-reused", 422, "The Idempotency-Key was used for another request")
TOO_FAST = Kind("too-many-requests", 429, "The token makes more requests than it may")
HEADERS_TOO_LARGE = Kind("headers-too-large", 431, "The head of the request is too large")
UNEXPECTED = Kind("unexpected", 500, "Something went wrong in the server")
BUSY = Kind("busy", 503, "The server has no connection left")
STOPPING = Kind("stopping", 503, "The server is stopping")
NOT_READY = Kind("not-ready", 503, "The server cannot accept tasks now")
STUCK = Kind("stuck", 503, "A loop of the server makes no progress")

# From an error to a problem: the first row whose class fits decides.
TABLE: Final[tuple[tuple[type[BaseException], Kind], ...]] = (
    (errors.InvalidPayload, Kind("invalid-payload", 422, "The payload does not fit the handler")),
    (errors.PayloadTooLarge, Kind("payload-too-large", 413, "The payload of a task is too large")),
    (errors.UnknownHandler, Kind("unknown-handler", 404, "No process has declared this handler")),
    (errors.TaskNotFound, NO_TASK),
    (errors.ScheduleNotFound, Kind("schedule-not-found", 404, "There is no such schedule or calendar")),
    (errors.OperationNotFound, Kind("operation-not-found", 404, "There is no such operation")),
    (errors.WorkerNotFound, NO_WORKER),
    (errors.LockNotFound, Kind("lock-not-found", 404, "Nobody holds this lock")),
    (errors.LimitNotFound, Kind("limit-not-found", 404, "There is no such limit")),
    (errors.FlowNotFound, Kind("flow-not-found", 404, "There is no such flow")),
    (errors.SignalNotFound, Kind("signal-not-found", 404, "No such signal is kept")),
    (errors.AlertNotFound, Kind("alert-not-found", 404, "There is no such rule, or it does not fire for that")),
    (errors.ChannelNotFound, Kind("channel-not-found", 404, "There is no such channel")),
    (errors.SecretNotFound, Kind("secret-not-found", 404, "There is no such secret")),
    (errors.TargetNotFound, Kind("target-not-found", 404, "No target is stored under this name")),
    (errors.SecretUnreadable, Kind("secret-unreadable", 409, "No key of the server opens the secret")),
    (errors.FailureNotFound, Kind("failure-not-found", 404, "There is no such kind of failure")),
    (errors.ArtifactNotFound, Kind("artifact-not-found", 404, "There is no such artifact, version or upload")),
    (errors.TokenNotFound, Kind("token-not-found", 404, "There is no such token")),
    (errors.DuplicateKey, Kind("duplicate-key", 409, "A live task holds the key")),
    (errors.QuotaExceeded, Kind("quota-exceeded", 429, "More is submitted of the handler than its quota allows")),
    (errors.ChangedMeanwhile, CHANGED),
    (errors.Conflict, Kind("conflict", 409, "The state of things forbids this")),
    (errors.StoreUnavailable, Kind("store-unavailable", 503, "The store cannot be reached")),
    (errors.InvalidValue, INVALID),
    (errors.DuetimeError, Kind("refused", 409, "The request was refused")),
    (Exception, UNEXPECTED),
)

# Back to errors: problems that only a server has are raised as the nearest error.
SERVER_ONLY: Final[Mapping[Kind, type[errors.DuetimeError]]] = {
    TOO_LARGE: errors.PayloadTooLarge,
    KEY_REUSED: errors.Conflict,
    BUSY: errors.StoreUnavailable,
    STOPPING: errors.StoreUnavailable,
    NOT_READY: errors.StoreUnavailable,
    TOO_SLOW: errors.StoreUnavailable,
    UNAUTHORIZED: errors.NotAllowed,
    FORBIDDEN: errors.NotAllowed,
    TOO_FAST: errors.NotAllowed,
}

_named = [value for value in globals().values() if isinstance(value, Kind)]
KINDS: Final = tuple(dict.fromkeys([*_named, *(kind for _, kind in TABLE)]))
