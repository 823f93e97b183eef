"""What a pull worker may claim under limits of the whole fleet.

A pull worker has no permits: nothing in it would keep them. The claim that hands out its attempts counts them, under the lock under which
permits are granted, and from then on whoever asks for permits counts them as work that goes on elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Left(NamedTuple):
    """How much is left of a limit, and what an attempt of each of its handlers takes."""

    name: str
    uses: Mapping[str, int]
    free: int


def bounded(wants: Mapping[str, int], total: int, limits: Sequence[Left], order: Sequence[str]) -> dict[str, int]:
    """Return how many attempts of each handler may be claimed, so that none of the limits is exceeded whatever comes of it.

    Handlers that share a limit get of it in this order: the first as much as it wants, the others what is left.
    """
    free = {limit.name: max(0, limit.free) for limit in limits}
    allowed = dict(wants)
    for handler in order:
        own = [(limit.name, limit.uses[handler]) for limit in limits if handler in limit.uses]
        if not own:
            continue
        allowed[handler] = most = min(wants[handler], total, *(free[name] // each for name, each in own))
        for name, each in own:
            free[name] -= most * each
    return {handler: most for handler, most in allowed.items() if most > 0}


def orders(wants: Mapping[str, int], limits: Sequence[Left], first: Sequence[str]) -> list[list[str]]:
    """Return the orders in which to try handlers that share limits, until a claim brings something: each of them comes first once."""
    shared = [handler for handler in first if any(handler in limit.uses for limit in limits)]
    return [shared[index:] + shared[:index] for index in range(len(shared))] or [[]]
