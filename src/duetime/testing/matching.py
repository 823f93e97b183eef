"""Comparing tasks with the arguments of an assertion, and showing them in its message."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from duetime.errors import DuetimeError, InvalidValue
from duetime.model.task import Task, TaskRecord
from duetime.targets.python.function import PythonFunction, function_of
from duetime.targets.spec import HandlerSpec

LONGEST_CALL = 300


def check_names(spec: HandlerSpec, arguments: Iterable[str]) -> None:
    """Refuse an argument that the handler does not have: no task can have it."""
    python = spec.target
    if not isinstance(python, PythonFunction):
        return
    names = list(inspect.signature(python.function).parameters)[1 if python.takes_context else 0 :]
    for argument in arguments:
        if argument not in names:
            raise InvalidValue(f"{spec.name} has no parameter {argument!r}; it has {', '.join(names) or 'none'}")


def has_arguments(record: TaskRecord, spec: HandlerSpec | None, arguments: Mapping[str, object]) -> bool:
    """Compare with what the handler would receive, defaults included, or with the stored JSON."""
    if not arguments:
        return True
    stored: dict[str, object] = msgspec.json.decode(record.payload)
    given: dict[str, object] = {}
    if spec is not None:
        function = function_of(spec)
        parameters = {} if function is None else inspect.signature(function).parameters
        given = {name: each.default for name, each in parameters.items() if each.default is not inspect.Parameter.empty}
        with contextlib.suppress(DuetimeError):
            given |= spec.payloads.decode(record.payload)
    missing = object()
    return all(value in (given.get(name, missing), stored.get(name, missing)) for name, value in arguments.items())


def as_call(handler: str, arguments: Mapping[str, object]) -> str:
    shown = ", ".join(f"{name}={value!r}" for name, value in arguments.items()) or "…"
    return f"{handler}({shown if len(shown) <= LONGEST_CALL else shown[:LONGEST_CALL] + '…'})"


def as_line(task: Task[Any]) -> str:
    key = f", key {task.key!r}" if task.key is not None else ""
    return f"{as_call(task.handler, task.payload)} {task.state}, due {task.due_at.isoformat()}{key}"
