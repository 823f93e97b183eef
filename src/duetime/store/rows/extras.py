"""The column `extras`: all that a task carries and no store decides by, as one text."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import msgspec

from duetime.model.shapes import derive
from duetime.model.task import Extras, NewTask
from duetime.store.pull_workers import RunningTask

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Extras).decode
_values = attrgetter(*Extras.__struct_fields__)
_NOTHING = _values(Extras())
_extras_of = derive(NewTask, Extras, {"meta": lambda meta: dict(meta) or None})


class ExtrasTexts:
    """Writes the extras of a batch of tasks, each once however many tasks share them: those of schedules that fire together do."""

    def __init__(self) -> None:
        self._written: dict[object, str | None] = {}

    def column(self, tasks: Sequence[NewTask[Any]]) -> list[str | None] | None:
        """Return the texts of tasks; None if no task carries anything special."""
        if list(map(_values, tasks)).count(_NOTHING) == len(tasks):
            return None
        return list(map(self.of, tasks))

    def of(self, task: NewTask[Any]) -> str | None:
        """Return the text to store, None for a task that carries nothing special."""
        values = _values(task)
        if values == _NOTHING:
            return None
        key = tuple(map(id, values)) if isinstance(values, tuple) else id(values)  # by identity: the tasks keep their values alive
        if key not in self._written:
            extras = _extras_of(task)
            self._written[key] = None if extras == Extras() else _encode(extras).decode()
        return self._written[key]


def read_extras(text: str | None) -> Extras | None:
    return None if text is None else _decode(text)


_EXTRAS, _CANCELLING = map(RunningTask.__struct_fields__.index, ("extras", "cancelling"))


def read_running_task(row: Sequence[Any]) -> RunningTask:
    """Read a row whose columns are the fields of a RunningTask."""
    values = list(row)
    values[_EXTRAS], values[_CANCELLING] = read_extras(values[_EXTRAS]), bool(values[_CANCELLING])
    return RunningTask(*values)
