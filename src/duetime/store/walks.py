"""How far a process has come along the finished tasks, when it removes only those of some handlers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from duetime.clock import DAY, Instant
from duetime.model.task import State

Position = TypeVar("Position")


class Walk(NamedTuple):
    """Removes finished tasks of a state: those of some handlers (`named`), or all others. Another set of handlers is another walk."""

    state: State
    handlers: frozenset[str]
    named: bool


class Walks(Generic[Position]):
    """Remembers a position for each walk, so that no round looks again at tasks that stay.

    It is forgotten after a day: a task may be written behind it, by a slow transaction or after the clock was set back.
    """

    def __init__(self, now: Callable[[], Instant]) -> None:
        self._now = now
        self._reached: dict[Walk, tuple[Instant, Position]] = {}

    def begin(self, walk: Walk, first: Position) -> Position:
        """Return where to go on, or `first`."""
        now = self._now()
        self._reached = {each: known for each, known in self._reached.items() if 0 <= now - known[0] < DAY}
        return self._reached.setdefault(walk, (now, first))[1]

    def reached(self, walk: Walk, position: Position) -> None:
        """Note that nothing is left to remove up to a position."""
        begun_at, _ = self._reached[walk]
        self._reached[walk] = begun_at, position
