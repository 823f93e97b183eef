"""What a task needs before it may start: other tasks that succeed, or that end in any way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from duetime.errors import InvalidValue
from duetime.ids import is_id
from duetime.model.task import Edge, Task

MAX_NEEDS = 1_000
Need: TypeAlias = "str | Task[Any] | Edge"


def ended(task: str | Task[Any]) -> Edge:
    """Need the end of a task, whatever it is; a task without this must succeed: `needs=[fetched, ended(charged)]`."""
    return Edge(_id_of(task, "ended(…)"), "end")


def edges_of(needs: Sequence[Need]) -> tuple[Edge, ...]:
    """Return what is needed, checked: each task once, its success if that is asked for beside its end."""
    if isinstance(needs, str | Task | Edge):
        raise InvalidValue("needs is a list of tasks: needs=[task], or needs=[ended(task)]")
    if len(needs) > MAX_NEEDS:
        raise InvalidValue(
            f"a task needs at most {MAX_NEEDS:,} others, got {len(needs):,}; let some of them be needed by a task in between"
        )
    edges: dict[str, Edge] = {}
    for number, need in enumerate(needs):
        edge = need if isinstance(need, Edge) else Edge(_id_of(need, f"needs[{number}]"))
        before = edges.get(edge.parent)
        if before is None or before.needs == "end":
            edges[edge.parent] = edge
    return tuple(edges.values())


def _id_of(task: object, where: str) -> str:
    given = task.id if isinstance(task, Task) else task
    if not isinstance(given, str):
        raise InvalidValue(f"{where} must be a task or its id, got {type(given).__name__}; submit it first: task = await handler.now(…)")
    if not is_id(given.lower()):
        raise InvalidValue(f"{where} is not the id of a task: {given[:80]!r}")
    return given.lower()
