"""From problem documents (RFC 9457) back to the errors that the same call raises on a store, by the table in `wire.problem`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from duetime import errors
from duetime.wire.problem import NAMESPACE, NO_GATE, SERVER_ONLY, TABLE, Problem


class GateNotFound(errors.DuetimeError):
    """There is no such gate; `open` then returns False."""


_decoder = msgspec.json.Decoder(Problem)


def read_problem(data: bytes) -> Problem | None:
    """Read a problem document of a Duetime server; None if it is something else, such as a proxy's own page."""
    try:
        problem = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return problem if problem.type.startswith(NAMESPACE) else None


def error_of(problem: Problem) -> errors.DuetimeError:
    """Return the error that a problem stands for; DuetimeError for a kind that only a newer server knows."""
    return ERRORS.get(problem.kind, _plain(errors.DuetimeError))(problem)


def _plain(kind: type[errors.DuetimeError]) -> Callable[[Problem], errors.DuetimeError]:
    return lambda problem: kind(problem.detail or problem.title)


def _invalid_payload(problem: Problem) -> errors.DuetimeError:
    pointer = next((fault.pointer for fault in problem.errors if fault.pointer), "")
    return errors.InvalidPayload(problem.detail, field=path_of(pointer.removeprefix("/payload")) or None)


def _duplicate_key(problem: Problem) -> errors.DuetimeError:
    return errors.DuplicateKey(problem.detail, task_id=problem.task_id or "")


ERRORS: Mapping[str, Callable[[Problem], errors.DuetimeError]] = {
    **{kind.name: _plain(error) for error, kind in TABLE if issubclass(error, errors.DuetimeError)},
    **{kind.name: _plain(error) for kind, error in SERVER_ONLY.items()},
    NO_GATE.name: _plain(GateNotFound),
    "invalid-payload": _invalid_payload,
    "duplicate-key": _duplicate_key,
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
