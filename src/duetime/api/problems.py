"""What a request is answered when it cannot be done: problem documents by RFC 9457, chosen from kinds of errors by one table.

`type` and `title` of a problem never change; `detail` is for people. docs/http.md explains each type, and a test says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from duetime import errors

MEDIA_TYPE: Final = "application/problem+json"
NAMESPACE: Final = "urn:duetime:problem:"
RETRY_AFTER: Final = "1"  # seconds: a store that restarts is back soon, and clients add their own back-off


class Fault(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that is wrong: a place in the body (`pointer`), or a parameter of query or header."""

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
NO_WORKER = Kind("worker-not-found", 404, "There can be no such worker")
NO_GATE = Kind("gate-not-found", 404, "There is no such gate")
NO_METHOD = Kind("method-not-allowed", 405, "The address does not know this method")
TOO_SLOW = Kind("request-timeout", 408, "The request did not arrive in time")
LEASE_OVER = Kind("lease-over", 410, "The lease of the worker is over")
CHANGED = Kind("precondition-failed", 412, "It is not as it was expected to be")
TOO_LARGE = Kind("content-too-large", 413, "The request is too large")
WRONG_MEDIA = Kind("unsupported-media-type", 415, "The body has a content type that is not understood here")
INVALID = Kind("invalid-request", 422, "The request does not fit")
KEY_REUSED = Kind("idempotency-key-reused", 422, "The Idempotency-Key was used for another request")
TOO_FAST = Kind("too-many-requests", 429, "The token makes more requests than it may")
HEADERS_TOO_LARGE = Kind("headers-too-large", 431, "The head of the request is too large")
UNEXPECTED = Kind("unexpected", 500, "Something went wrong in the server")
STOPPING = Kind("stopping", 503, "The server is stopping")
NOT_READY = Kind("not-ready", 503, "The server cannot accept tasks now")
STUCK = Kind("stuck", 503, "A loop of the server makes no progress")

# The first row whose class fits decides.
TABLE: Final[tuple[tuple[type[BaseException], Kind], ...]] = (
    (errors.InvalidPayload, Kind("invalid-payload", 422, "The payload does not fit the handler")),
    (errors.PayloadTooLarge, Kind("payload-too-large", 413, "The payload of a task is too large")),
    (errors.UnknownHandler, Kind("unknown-handler", 404, "No process has declared this handler")),
    (errors.TaskNotFound, Kind("task-not-found", 404, "There is no such task")),
    (errors.ScheduleNotFound, Kind("schedule-not-found", 404, "There is no such schedule or calendar")),
    (errors.DuplicateKey, Kind("duplicate-key", 409, "A live task holds the key")),
    (errors.ChangedMeanwhile, CHANGED),
    (errors.Conflict, Kind("conflict", 409, "The state of things forbids this")),
    (errors.StoreUnavailable, Kind("store-unavailable", 503, "The store cannot be reached")),
    (errors.InvalidValue, INVALID),
    (errors.DuetimeError, Kind("refused", 409, "The request was refused")),
    (Exception, UNEXPECTED),
)

KINDS: Final = tuple(value for value in list(globals().values()) if isinstance(value, Kind)) + tuple(
    kind for _, kind in TABLE if kind not in (INVALID, CHANGED, UNEXPECTED)
)


class Refusal(errors.DuetimeError):
    """A request that is answered with a problem of its own kind. For the audit it is a refusal, like our other errors."""

    def __init__(self, kind: Kind, detail: str, *, faults: Sequence[Fault] = (), headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.kind = kind
        self.faults = faults
        self.headers = dict(headers or {})


def problem_of(error: BaseException, fields: Sequence[str] = ()) -> Problem:
    """Describe an error; `fields` are those of the body, to point at the one that a message begins with."""
    if isinstance(error, Refusal):
        return _problem(error.kind, str(error), error.faults)
    kind = next(kind for known, kind in TABLE if isinstance(error, known))
    if kind is UNEXPECTED:
        return _problem(kind, "an unexpected error was logged by the server; the request may or may not have been carried out")
    # the library names an argument that no request has
    detail = str(error).replace(", or allow_unknown=True", "")
    return _problem(kind, detail, _faults(error, detail, fields), task_id=error.task_id if isinstance(error, errors.DuplicateKey) else None)


def headers_of(error: BaseException, problem: Problem) -> dict[str, str]:
    """Give what a client must know besides the document."""
    headers = error.headers if isinstance(error, Refusal) else {}
    return {"retry-after": RETRY_AFTER, **headers} if problem.status == 503 else headers


def _problem(kind: Kind, detail: str, faults: Sequence[Fault] = (), *, task_id: str | None = None) -> Problem:
    return Problem(type=NAMESPACE + kind.name, title=kind.title, status=kind.status, detail=detail, errors=tuple(faults), task_id=task_id)


def _faults(error: BaseException, detail: str, fields: Sequence[str]) -> Sequence[Fault]:
    match error:
        case errors.InvalidPayload(field=field):
            return [Fault(detail, pointer="/payload" + (pointer_of(field) if field else ""))]
        case errors.PayloadTooLarge():
            return [Fault(detail, pointer="/payload")]
        case errors.UnknownHandler() if "handler" in fields:
            return [Fault(detail, pointer="/handler")]
        case errors.DuplicateKey() if "key" in fields:
            return [Fault(detail, pointer="/key")]
        case errors.InvalidValue():
            # messages name the option at fault first: "priority must be …"
            name = detail.partition(" ")[0].rstrip(":")
            return [Fault(detail, pointer=f"/{name}")] if name in fields else []
    return []


_PLACE = re.compile(r"(?P<what>.*?)(?: - at `\$(?P<path>[^`]*)`)?\Z", re.DOTALL)
_FIELD = re.compile(r"Object (?:missing required|contains unknown) field `(?P<name>[^`]+)`")
_STEP = re.compile(r"\.?([^.\[\]]+)|\[(\d+)\]|\[\.\.\.\]")


def fault_of(error: msgspec.ValidationError) -> Fault:
    """Point at what does not fit its type, from msgspec's own words."""
    match = _PLACE.match(str(error))
    assert match is not None
    pointer = pointer_of(match["path"] or "")
    field = _FIELD.match(match["what"])
    return Fault(match["what"], pointer=pointer + (f"/{_escaped(field['name'])}" if field else ""))


def pointer_of(path: str) -> str:
    """Write a path such as `items[0].name` as a JSON pointer; what lies inside of a map without its key ends it."""
    steps = []
    for step in _STEP.finditer(path):
        name = step[1] or step[2]
        if name is None:
            break
        steps.append(f"/{_escaped(name)}")
    return "".join(steps)


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
