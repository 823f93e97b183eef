"""Tasks that were claimed a few milliseconds ahead of their due time: they wait in memory until then.

A claim may be a commit on another machine. Made when a task is due, it can only be late.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from duetime.clock import LATEST, SECOND, Instant
from duetime.model.outcome import Outcome
from duetime.store import Store
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
        """Remove and return the tasks that are due, by due time."""
        tasks = []
        while self._heap and self._heap[0][0] <= reached:
            claimed = heapq.heappop(self._heap)[2]
            self.by_handler[claimed.handler] -= 1
            tasks.append(claimed)
        return tasks

    def retain(self, wanted: Callable[[ClaimedTask], bool]) -> None:
        """Remove all tasks that are not wanted."""
        left: Iterable[ClaimedTask] = [claimed for claimed in self if wanted(claimed)]
        self._heap = [(claimed.due_at, claimed.id, claimed) for claimed in left]
        heapq.heapify(self._heap)
        self.by_handler = Counter(claimed.handler for claimed in left)


class AheadTimer:
    """Starts tasks that were claimed ahead when the store's clock has surely reached their due time."""

    def __init__(
        self,
        ahead: ClaimedAhead,
        store: Store,
        start: Callable[[Sequence[ClaimedTask]], None],
        give_back: Callable[[ClaimedTask, Outcome], None],
    ) -> None:
        self._ahead = ahead
        self._store = store
        self._start = start
        self._give_back = give_back
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.TimerHandle | None = None

    def filter_due(self, tasks: Sequence[ClaimedTask]) -> Sequence[ClaimedTask]:
        """Return the tasks that are due; the others start later."""
        due = self._ahead.filter_due(tasks, self._store.reached())
        self._set()
        return due

    def start_due(self) -> None:
        """Start what is due now."""
        reached = self._store.reached()
        first_at = self._ahead.first_at
        due: Sequence[ClaimedTask] = ()
        if first_at is not None and first_at - reached > 2 * self._store.traits.claim_ahead:
            # the store's clock was set back; nobody knows for how long these would wait
            for claimed in self._ahead.take_due(LATEST):
                self._give_back(claimed, Outcome.RELEASED)
        else:
            due = self._ahead.take_due(reached)
        self._set()
        self._start(due)

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _set(self) -> None:
        self.close()
        first_at = self._ahead.first_at
        if first_at is not None:
            left = first_at - self._store.reached()
            self._handle = self._loop.call_later(max(left, 0) / SECOND, self.start_due)
