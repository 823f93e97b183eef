"""Parts of tasks that only admins see, named by paths: `payload.card.number`, `meta.*`, `result.token`.

What is hidden is blanked where tasks are shown, and cannot be searched for. Attempts and those who submit have it all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import replace

from duetime.errors import InvalidValue
from duetime.model.query import Query
from duetime.model.task import Task, TaskRecord

ROOTS = ("payload", "result", "meta")
ANY = "*"
BLANK = "(hidden)"
Path: TypeAlias = tuple[str, ...]

_encode = msgspec.json.Encoder().encode


class Hiding(msgspec.Struct, frozen=True):
    """What is hidden: for each root the paths below it."""

    payload: tuple[Path, ...] = ()
    result: tuple[Path, ...] = ()
    meta: tuple[Path, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.payload or self.result or self.meta)

    def of(self, record: TaskRecord) -> TaskRecord:
        """Return a stored task without what is hidden."""
        if not self:
            return record
        return replace(
            record,
            payload=self._blanked(record.payload, self.payload),
            result=None if record.result is None else self._blanked(record.result, self.result),
            meta=None if record.meta is None else _blank(record.meta, self.meta),
        )

    def of_task(self, task: Task[Any]) -> Task[Any]:
        """Return a task as people see it, without what is hidden."""
        if not self:
            return task
        blanked = {"payload": _blank(task.payload, self.payload), "result": _blank(task.result, self.result)}
        return replace(task, meta=_blank(task.meta, self.meta), **blanked)

    def check(self, query: Query) -> None:
        """Refuse to search for what is hidden: whether something is found would tell it."""
        for root, asked in (("payload", query.payload), ("meta", query.meta)):
            for path in asked:
                if _covers(getattr(self, root), tuple(path.split(".")) if root == "payload" else (path,)):
                    raise InvalidValue(f"{root}.{path[:80]} is hidden here (DUETIME_HIDE), so it cannot be searched for")

    def _blanked(self, data: bytes, paths: Sequence[Path]) -> bytes:
        if not paths:
            return data
        try:
            return _encode(_blank(msgspec.json.decode(data), paths))
        except (msgspec.DecodeError, RecursionError):  # a brief page has cut it
            return _encode(BLANK)


NOTHING = Hiding()


def _covers(paths: Iterable[Path], asked: Path) -> bool:
    """Return whether a path, or something above it, is hidden."""
    return any(len(path) <= len(asked) and all(part in (ANY, own) for part, own in zip(path, asked, strict=False)) for path in paths)


def _blank(value: Any, paths: Sequence[Path]) -> Any:
    if not paths:
        return value
    if isinstance(value, Mapping):
        return {key: _part(each, str(key), paths) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_part(each, str(index), paths) for index, each in enumerate(value)]
    return value


def _part(value: Any, key: str, paths: Sequence[Path]) -> Any:
    below = [path[1:] for path in paths if path[0] in (ANY, key)]
    return BLANK if () in below else _blank(value, below)


def read_hiding(value: object, name: str) -> Hiding:
    """Read paths with commas between: `payload.password, meta.*`."""
    if not isinstance(value, str):
        raise InvalidValue(f"{name} must be text such as 'payload.password, meta.*', got {type(value).__name__}")
    found: dict[str, list[Path]] = {root: [] for root in ROOTS}
    for text in filter(None, (each.strip() for each in value.split(","))):
        root, *parts = text.split(".")
        if root not in found or not parts or not all(parts):
            raise InvalidValue(f"{name} has paths such as payload.card.number, result.token or meta.*, got {text[:80]!r}")
        found[root].append(tuple(parts))
    return Hiding(**{root: tuple(paths) for root, paths in found.items()})
