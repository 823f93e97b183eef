"""Turns errors into problem documents, by the table in `wire.problem`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from duetime import errors
from duetime.api.misfits import in_json, payload_in_json
from duetime.wire.problem import NAMESPACE, TABLE, UNEXPECTED, Fault, FieldError, Kind, Problem

RETRY_AFTER: Final = "1"  # seconds: a store that restarts is back soon, and clients add their own back-off


class Refusal(errors.DuetimeError):
    """An error that is answered with a problem of its own kind. The audit records it as refused, like our other errors."""

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
    # the library's message names an argument that requests do not have
    detail = str(error).replace(", or allow_unknown=True", "")
    if isinstance(error, errors.InvalidPayload):
        detail = payload_in_json(detail)
    return _problem(kind, detail, _faults(error, detail, fields), task_id=error.task_id if isinstance(error, errors.DuplicateKey) else None)


def headers_of(error: BaseException, problem: Problem) -> dict[str, str]:
    """Return the headers that go with the problem document."""
    headers = error.headers if isinstance(error, Refusal) else {}
    if isinstance(error, errors.QuotaExceeded) and error.wait is not None:
        return {"retry-after": str(math.ceil(error.wait))}
    return {"retry-after": RETRY_AFTER, **headers} if problem.status == 503 else headers


def _problem(kind: Kind, detail: str, faults: Sequence[Fault] = (), *, task_id: str | None = None) -> Problem:
    return Problem(type=NAMESPACE + kind.name, title=kind.title, status=kind.status, detail=detail, errors=tuple(faults), task_id=task_id)


def _faults(error: BaseException, detail: str, fields: Sequence[str]) -> Sequence[Fault]:
    match error:
        case FieldError(pointer=pointer):
            return [Fault(detail, pointer=pointer)]
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


_MISFIT = re.compile(r"(?P<what>.*?)(?: - at `\$(?P<path>[^`]*)`)?\Z", re.DOTALL)
_FIELD = re.compile(r"Object (?:missing required|contains unknown) field `(?P<name>[^`]+)`")
_STEP = re.compile(r"\.?([^.\[\]]+)|\[(\d+)\]|\[\.\.\.\]")


def fault_of(error: msgspec.ValidationError, kind: Any) -> Fault:
    """Return where a value does not match its type, `kind`, from msgspec's message."""
    match = _MISFIT.match(str(error))
    assert match is not None
    pointer = pointer_of(match["path"] or "")
    field = _FIELD.match(match["what"])
    return Fault(in_json(match["what"], kind, pointer), pointer=pointer + (f"/{_escaped(field['name'])}" if field else ""))


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
