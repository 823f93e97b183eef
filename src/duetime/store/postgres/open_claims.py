"""What a worker's claims hold, as far as this process remembers it: only a matter of speed, the store checks everything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import repeat
from typing import NamedTuple

from duetime.model.outcome import Settlement
from duetime.model.task import State

SMALLEST_SLICE = 32  # neighbouring attempts below which settling them on their own costs more than it spares
_SUCCEEDED = State.SUCCEEDED  # looking a member up takes 0.1 µs


class Slice(NamedTuple):
    """Neighbouring attempts of a claim, the first one counted from 1."""

    claim: int
    first: int
    size: int


class OpenClaims:
    """The claims of one worker: which tasks they hold, in the order of their attempts, and which claim holds a task."""

    def __init__(self) -> None:
        self._tasks: dict[int, list[str]] = {}  # claim → its tasks, as long as one of them has not ended
        self._open: dict[int, int] = {}  # claim → how many have not ended
        self._numbers: dict[str, int] = {}  # task that has not ended → claim

    def add(self, number: int, tasks: list[str]) -> None:
        self._tasks[number] = tasks
        self._open[number] = len(tasks)
        self._numbers.update(dict.fromkeys(tasks, number))

    def slices(self, settlements: Sequence[Settlement]) -> list[Slice] | None:
        """Return the slices of claims that these settle, attempt by attempt, with plain successes; None if that is not what they do."""
        if not plain_successes(settlements):
            return None
        ids = [settlement.id for settlement in settlements]
        slices: list[Slice] = []
        index = last = 0
        while index < len(ids):
            number = self._numbers.get(ids[index])
            # rising, because that is the order in which everybody locks claims
            if number is None or number <= last:
                return None
            tasks = self._tasks[number]
            first = len(tasks) - self._open[number]  # that is where it is if all before it have ended
            if tasks[first] != ids[index]:
                first = tasks.index(ids[index])
            size = _in_common(tasks[first:], ids[index:])
            if size < SMALLEST_SLICE:
                return None
            slices.append(Slice(number, first + 1, size))
            index, last = index + size, number
        return slices

    def portion(self, settlements: Sequence[Settlement], at_most: int) -> int:
        """Return the last index up to `at_most` at which the settlements of a claim are complete; 0 if the first claim is not yet."""
        most = min(len(settlements), at_most)
        last = settlements[most - 1].id
        tasks = self._tasks.get(self._numbers.get(last, 0), [])
        if len(tasks) < SMALLEST_SLICE or tasks[-1] == last:
            return most
        return max(0, most - tasks.index(last) - 1)  # they end in the order of their attempts, or it does not matter

    def claims_of(self, settlements: Sequence[Settlement]) -> list[int] | None:
        """Return the claims that hold these; None if one of them is not known here."""
        numbers = {self._numbers.get(settlement.id) for settlement in settlements}
        return None if None in numbers else sorted(number for number in numbers if number is not None)

    def forget(self, settlements: Sequence[Settlement]) -> None:
        """Forget tasks that have ended, and claims of which all have."""
        self.forget_ids([settlement.id for settlement in settlements])

    def forget_ids(self, ids: Sequence[str]) -> None:
        gone = Counter(map(self._numbers.pop, ids, repeat(None)))
        for number, size in gone.items():
            if number is not None:
                self._end(number, size)

    def forget_slices(self, slices: Sequence[Slice]) -> None:
        """Forget neighbours that have ended. Some may be forgotten already: another settle may have removed them meanwhile."""
        for number, first, size in slices:
            before = len(self._numbers)
            for task in self._tasks.get(number, ())[first - 1 : first - 1 + size]:
                self._numbers.pop(task, None)
            if len(self._numbers) < before:
                self._end(number, before - len(self._numbers))

    def _end(self, number: int, size: int) -> None:
        self._open[number] -= size
        if not self._open[number]:
            del self._open[number], self._tasks[number]


def plain_successes(settlements: Sequence[Settlement]) -> bool:
    """Return whether all of these are successes without a result and a detail."""
    size = len(settlements)
    return (
        [each.state for each in settlements].count(_SUCCEEDED) == size
        and [each.result for each in settlements].count(None) == size
        and [each.detail for each in settlements].count(None) == size
    )


def _in_common(these: list[str], those: list[str]) -> int:
    """Return for how many attempts two lists are the same. Most often the shorter one ends first, and comparing them whole is quickest."""
    size = min(len(these), len(those))
    if these[:size] == those[:size]:
        return size
    return next(index for index, (this, that) in enumerate(zip(these, those, strict=False)) if this != that)
