"""Walks every order of events of a small model."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, NamedTuple, TypeVar

S = TypeVar("S", bound=Hashable)

MOST_STATES = 500_000


class Found(NamedTuple, Generic[S]):
    """How many states there are, and the shortest ways to a wrong one and to one in which nothing happens any more but should."""

    states: int
    wrong: list[str] | None
    stuck: list[str] | None


def explore(
    start: S, steps: Callable[[S], Iterable[tuple[str, S]]], *, wrong: Callable[[S], bool], unfinished: Callable[[S], bool]
) -> Found[S]:
    """Visit every state that can be reached."""
    came_from: dict[S, tuple[S, str] | None] = {start: None}
    waiting = deque([start])
    first_wrong: S | None = None
    first_stuck: S | None = None
    while waiting:
        state = waiting.popleft()
        if first_wrong is None and wrong(state):
            first_wrong = state
        following = list(steps(state))
        if first_stuck is None and not following and unfinished(state):
            first_stuck = state
        for event, next_state in following:
            if next_state not in came_from:
                came_from[next_state] = (state, event)
                waiting.append(next_state)
        assert len(came_from) < MOST_STATES, "the model is too large to be walked"

    def way_to(state: S | None) -> list[str] | None:
        if state is None:
            return None
        events = []
        while (before := came_from[state]) is not None:
            state, event = before
            events.append(event)
        return events[::-1]

    return Found(len(came_from), way_to(first_wrong), way_to(first_stuck))
