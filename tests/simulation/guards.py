"""The list of guards that are taken away on purpose: in `broken`, in `broken_fleet` those of flows, limits and locks,
in `broken_stories` those of steps, signals and merged submissions, in `broken_keyed` those of limits by key and rate."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

Worlds = Literal["all", "fleet", "stories", "keyed"]
Replacements = list[tuple[Any, str, Any]]  # owner, attribute, replacement


class Guard(NamedTuple):
    """A guard: what is taken away, and by which rules that may be seen. `worlds`: only in those with flows, limits and locks, with steps,
    or with limits by key and rate."""

    name: str
    text: str
    shows: frozenset[str]
    worlds: Worlds
    replace: Callable[[], Replacements]


GUARDS: dict[str, Guard] = {}


def guard(text: str, *shows: str, worlds: Worlds = "all") -> Callable[[Callable[[], Replacements]], None]:
    """Note a function that says what to replace."""

    def note(function: Callable[[], Replacements]) -> None:
        GUARDS[function.__name__] = Guard(function.__name__, text, frozenset(shows), worlds, function)

    return note
