"""From problem documents (RFC 9457) back to the errors that the same call raises on a store, by one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from duetime import errors

NAMESPACE = "urn:duetime:problem:"


class GateNotFound(errors.DuetimeError):
    """There is no such gate; whoever opens one is told so as an answer."""


class Fault(msgspec.Struct, frozen=True):
    """One thing that is wrong, and where."""

    detail: str = ""
    pointer: str | None = None
    parameter: str | None = None


class Problem(msgspec.Struct, frozen=True):
    """A problem document, as far as we need it."""

    type: str = "about:blank"
    title: str = ""
    detail: str = ""
    errors: Sequence[Fault] = ()
    task_id: str | None = None

    @property
    def kind(self) -> str:
        return self.type.removeprefix(NAMESPACE)


_decoder = msgspec.json.Decoder(Problem)


def read_problem(data: bytes) -> Problem | None:
    """Read a problem document of a Duetime server; None if it is something else, such as a proxy's own page."""
    try:
        problem = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return problem if problem.type.startswith(NAMESPACE) else None


def error_of(problem: Problem) -> errors.DuetimeError:
    """Give the error that a problem stands for; of a kind that only a newer server knows, the root of them all."""
    return ERRORS.get(problem.kind, _plain(errors.DuetimeError))(problem)


def _plain(kind: type[errors.DuetimeError]) -> Callable[[Problem], errors.DuetimeError]:
    return lambda problem: kind(problem.detail or problem.title)


def _invalid_payload(problem: Problem) -> errors.DuetimeError:
    pointer = next((fault.pointer for fault in problem.errors if fault.pointer), "")
    return errors.InvalidPayload(problem.detail, field=path_of(pointer.removeprefix("/payload")) or None)


def _duplicate_key(problem: Problem) -> errors.DuetimeError:
    return errors.DuplicateKey(problem.detail, task_id=problem.task_id or "")


ERRORS: Mapping[str, Callable[[Problem], errors.DuetimeError]] = {
    "invalid-payload": _invalid_payload,
    "duplicate-key": _duplicate_key,
    "payload-too-large": _plain(errors.PayloadTooLarge),
    "content-too-large": _plain(errors.PayloadTooLarge),
    "unknown-handler": _plain(errors.UnknownHandler),
    "task-not-found": _plain(errors.TaskNotFound),
    "schedule-not-found": _plain(errors.ScheduleNotFound),
    "token-not-found": _plain(errors.TokenNotFound),
    "gate-not-found": _plain(GateNotFound),
    "precondition-failed": _plain(errors.ChangedMeanwhile),
    "conflict": _plain(errors.Conflict),
    "idempotency-key-reused": _plain(errors.Conflict),
    "store-unavailable": _plain(errors.StoreUnavailable),
    "stopping": _plain(errors.StoreUnavailable),
    "not-ready": _plain(errors.StoreUnavailable),
    "request-timeout": _plain(errors.StoreUnavailable),
    "invalid-request": _plain(errors.InvalidValue),
    "unauthorized": _plain(errors.NotAllowed),
    "forbidden": _plain(errors.NotAllowed),
    "too-many-requests": _plain(errors.NotAllowed),
}


def path_of(pointer: str) -> str:
    """Write a JSON pointer as the path of an argument: `/items/0/name` is `items[0].name`."""
    path = ""
    for step in pointer.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if name.isdecimal() and path:
            path += f"[{name}]"
        else:
            path += f".{name}" if path else name
    return path
