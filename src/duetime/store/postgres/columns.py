"""New tasks and their requests as the columns that statements take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, TypeVar

from duetime.clock import DAY, MILLISECOND, Instant
from duetime.model.task import Extras, NewTask
from duetime.store.postgres import arrays
from duetime.store.postgres.lanes import Lanes
from duetime.store.requests import NamedRequest
from duetime.store.rows.extras import ExtrasTexts
from duetime.store.sql import Statements

T = TypeVar("T")


def request_columns(requests: Sequence[NamedRequest | None]) -> list[Any]:
    """Return callers, keys and digests beside the columns of the tasks; null where a task has no request."""
    return [
        [None if request is None else request.caller for request in requests],
        [None if request is None else request.key for request in requests],
        [None if request is None else request.digest for request in requests],
    ]


def with_tasks(sql: Statements, statement: str) -> str:
    """Put the columns of new tasks, which are the first parameters, where a statement says `$tasks`."""
    return statement.replace("$tasks", sql.new_tasks)


def new_tasks(tasks: Sequence[NewTask[object]], lanes: Lanes) -> list[Any]:
    """Return the columns of new tasks in the order of the statement `new_tasks`; one in which no task has anything is one null."""
    ids = list(map(_id, tasks))
    least = min(ids)
    usual = list(map(_unusual, tasks)).count(_USUAL) == len(tasks)
    keys = _shared(list(map(_lane_key, tasks)))
    return [
        least,
        # nothing finishes a day before it was submitted, however wrong the clock was that its id was made by
        _time_of(least) - DAY,
        _time_of(max(ids)),
        arrays.plain(ids),
        arrays.numbers([lanes[handler, collection or "", priority].id for handler, collection, priority in keys]),
        arrays.texts([handler for handler, _, _ in keys]),
        arrays.encoded(list(map(_payload, tasks))),
        _column(tasks, _due_at, arrays.numbers),
        _column(tasks, _delay, arrays.numbers, nothing=0),
        arrays.texts(_shared(list(map(_submitted_by, tasks)))),
        *([None] * (len(_SPECIAL) + 1) if usual else _special(tasks)),
    ]


def _shared(values: list[T]) -> list[T]:
    """Return one value if all are the same."""
    return values[:1] if values.count(values[0]) == len(values) else values


def _time_of(task_id: str) -> Instant:
    return int(task_id[:8] + task_id[9:13], 16) * MILLISECOND


_SPECIAL: tuple[tuple[Callable[[NewTask[object]], Any], Callable[[list[Any]], str]], ...] = (
    (attrgetter("key"), arrays.texts),
    (attrgetter("expires_at"), arrays.numbers),
    (attrgetter("expires_in"), arrays.numbers),
    (attrgetter("timeout"), arrays.numbers),
    (attrgetter("retry"), lambda policies: arrays.texts([None if policy is None else policy.decode() for policy in policies])),
    (attrgetter("schedule"), arrays.texts),
    (attrgetter("planned_at"), arrays.numbers),
)
_EXTRAS = 5  # where the extras stand among them


def _special(tasks: Sequence[NewTask[object]]) -> list[str | None]:
    """Return the columns in which most tasks have nothing."""
    columns = [_column(tasks, value, write) for value, write in _SPECIAL]
    extras = ExtrasTexts().column(tasks)
    return [*columns[:_EXTRAS], None if extras is None else arrays.texts(extras), *columns[_EXTRAS:]]


_id, _payload, _due_at, _delay, _submitted_by = map(attrgetter, ("id", "payload", "due_at", "delay", "submitted_by"))
_lane_key = attrgetter("handler", "collection", "priority")
_SPECIAL_FIELDS = ("key", "expires_at", "expires_in", "timeout", "retry", *Extras.__struct_fields__, "schedule", "planned_at")
_unusual, _USUAL = attrgetter(*_SPECIAL_FIELDS), (None,) * len(_SPECIAL_FIELDS)


def _column(
    tasks: Sequence[NewTask[object]], value: Callable[[NewTask[object]], Any], write: Callable[[list[Any]], str], nothing: object = None
) -> str | None:
    column = list(map(value, tasks))
    return None if column.count(nothing) == len(column) else write(column)
