"""Make a failing world small: leave out what it does not need to fail, faults first."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from tests.chaos.history import rules
from tests.simulation.world import Outcome, Plan, simulate

T = TypeVar("T")


def shrunk(outcome: Outcome, run: Callable[[Plan], Outcome] = simulate) -> Outcome:
    """Return the smallest world found that breaks one of the same rules; each part that is left is needed for that."""
    broken = rules(outcome.violations).keys()
    smallest = outcome

    def fails(plan: Plan) -> bool:
        nonlocal smallest
        tried = run(plan)
        if not rules(tried.violations).keys() & broken:
            return False
        smallest = tried
        return True

    for _ in range(2):  # what the faults needed may be gone with the operations
        before = len(smallest.plan.faults) + len(smallest.plan.operations)
        _least(smallest.plan.faults, lambda some: fails(msgspec.structs.replace(smallest.plan, faults=some)))
        _least(smallest.plan.operations, lambda some: fails(msgspec.structs.replace(smallest.plan, operations=some)))
        if before == len(smallest.plan.faults) + len(smallest.plan.operations):
            break
    return smallest


def _least(parts: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> Sequence[T]:
    """Leave out as many parts as possible, in portions that get smaller: half of them, a quarter, …, one."""
    kept, size = list(parts), max(1, len(parts) // 2)
    while kept:
        start = 0
        while start < len(kept):
            fewer = kept[:start] + kept[start + size :]
            if fails(fewer):
                kept = fewer
            else:
                start += size
        if size == 1:
            break
        size //= 2
    return kept
