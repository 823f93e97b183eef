"""What a worker's claims hold, as far as this process remembers it: only a matter of speed, the store checks everything."""

from __future__ import annotations

from collections.abc import Sequence

from duetime.model.outcome import Settlement
from duetime.model.task import State

SMALLEST_WHOLE = 32  # places of a claim below which settling it on its own costs more than it spares


class Held:
    """The claims of one worker: which tasks they hold, in the order of their places, and which claim holds a task."""

    def __init__(self) -> None:
        self._tasks: dict[int, list[str]] = {}  # claim → its tasks, as long as none of them has ended
        self._numbers: dict[str, int] = {}  # task → claim

    def add(self, number: int, tasks: list[str]) -> None:
        self._tasks[number] = tasks
        self._numbers.update(dict.fromkeys(tasks, number))

    def whole(self, settlements: Sequence[Settlement]) -> list[int] | None:
        """Give the claims that these settle whole, place by place, with plain successes; None if that is not what they do."""
        ids = [settlement.id for settlement in settlements]
        claims, place = [], 0
        while place < len(ids):
            number = self._numbers.get(ids[place], 0)
            tasks = self._tasks.get(number, [])
            if len(tasks) < SMALLEST_WHOLE or ids[place : place + len(tasks)] != tasks:
                return None
            claims.append(number)
            place += len(tasks)
        if not all(s.state is State.SUCCEEDED and s.result is None for s in settlements):
            return None
        return claims

    def portion(self, settlements: Sequence[Settlement], at_most: int) -> int:
        """Give the last place up to `at_most` at which the settlements of a claim are complete; 0 if the first claim is not yet."""
        most = min(len(settlements), at_most)
        number_of = self._numbers.get
        number = number_of(settlements[most - 1].id, 0)
        tasks = self._tasks.get(number, [])
        if len(tasks) < SMALLEST_WHOLE or tasks[-1] == settlements[most - 1].id:
            return most
        while most and number_of(settlements[most - 1].id) == number:
            most -= 1
        return most

    def claims_of(self, settlements: Sequence[Settlement]) -> list[int] | None:
        """Give the claims that hold these; None if one of them is not known here."""
        numbers = {self._numbers.get(settlement.id) for settlement in settlements}
        return None if None in numbers else sorted(number for number in numbers if number is not None)

    def drop(self, claims: Sequence[int]) -> None:
        """Forget claims that have ended."""
        for number in claims:
            for task in self._tasks.pop(number):
                self._numbers.pop(task, None)

    def forget(self, settlements: Sequence[Settlement]) -> None:
        """Forget tasks that have ended; their claims are no longer whole."""
        for settlement in settlements:
            number = self._numbers.pop(settlement.id, None)
            if number is not None:
                self._tasks.pop(number, None)
