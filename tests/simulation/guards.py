"""The list of guards that are taken away on purpose: in `broken`, and in `broken_fleet` those of flows, limits and locks."""

from collections.abc import Callable
from typing import Any, NamedTuple

Replacements = list[tuple[Any, str, Any]]  # owner, attribute, replacement


class Guard(NamedTuple):
    """A guard: what is taken away, and by which rules that may be seen. `fleet`: only in worlds with flows, limits and locks."""

    name: str
    text: str
    shows: frozenset[str]
    fleet: bool
    replace: Callable[[], Replacements]


GUARDS: dict[str, Guard] = {}


def guard(text: str, *shows: str, fleet: bool = False) -> Callable[[Callable[[], Replacements]], None]:
    """Note a function that says what to replace."""

    def note(function: Callable[[], Replacements]) -> None:
        GUARDS[function.__name__] = Guard(function.__name__, text, frozenset(shows), fleet, function)

    return note
