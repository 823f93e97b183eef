"""Tasks that were claimed a little before they are due: they wait here, in memory, for their instant.

A claim is a commit on another machine and takes its milliseconds; one that is made when a task is due can only be late.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from duetime.clock import Instant
from duetime.store.values import ClaimedTask


class ClaimedAhead:
    """A heap by due time. Pure: instants are arguments."""

    def __init__(self) -> None:
        self._heap: list[tuple[Instant, str, ClaimedTask]] = []
        self.by_handler: Counter[str] = Counter()

    def __iter__(self) -> Iterator[ClaimedTask]:
        return (claimed for _, _, claimed in self._heap)

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def first_at(self) -> Instant | None:
        """When the first one is due."""
        return self._heap[0][0] if self._heap else None

    def filter_due(self, tasks: Sequence[ClaimedTask], reached: Instant) -> Sequence[ClaimedTask]:
        """Return the tasks that are due, in their order; keep the others until they are."""
        if not any(claimed.due_at > reached for claimed in tasks):
            return tasks
        for claimed in tasks:
            if claimed.due_at > reached:
                heapq.heappush(self._heap, (claimed.due_at, claimed.id, claimed))
                self.by_handler[claimed.handler] += 1
        return [claimed for claimed in tasks if claimed.due_at <= reached]

    def take_due(self, reached: Instant) -> list[ClaimedTask]:
        """Take out those that are due now, the first one first."""
        tasks = []
        while self._heap and self._heap[0][0] <= reached:
            claimed = heapq.heappop(self._heap)[2]
            self.by_handler[claimed.handler] -= 1
            tasks.append(claimed)
        return tasks

    def retain(self, wanted: Callable[[ClaimedTask], bool]) -> None:
        """Take out everything that is not wanted here."""
        left: Iterable[ClaimedTask] = [claimed for claimed in self if wanted(claimed)]
        self._heap = [(claimed.due_at, claimed.id, claimed) for claimed in left]
        heapq.heapify(self._heap)
        self.by_handler = Counter(claimed.handler for claimed in left)
