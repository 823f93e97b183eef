"""Attempts that follow others in their sub-processes: handed over before there is a slot for them, and taken back until they begin.

A slot goes from an attempt to the one that follows it, so no more run at once than there are slots. What waits in a child is as good as
queued: gates, cancels and a worker that stops take it back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from duetime.clock import DAY, Instant
from duetime.model.outcome import Ended, Outcome
from duetime.targets.target import AttemptHandle, Stop
from duetime.worker.attempt import Attempt
from duetime.worker.queues import HandlerQueue

if TYPE_CHECKING:
    from duetime.worker.executor import Executor

LARGEST = 8_000  # characters of a payload: the order has to fit into a packet
_MOST_ALONE = 1_000


class Followers:
    """Takes attempts from the queues for children that have begun others, and passes on what becomes of them."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._with_slot: set[str] = set()
        self._alone: set[str] = set()  # tasks whose child died when they were about to begin: they follow nobody again

    def now(self) -> Instant:
        return self._executor.now()

    def take(self, handler: str, most: int) -> Sequence[Attempt]:
        """Return attempts that may follow one of the same handler.

        None while one could have a slot of its own, while other handlers need this one's, or where starts are counted.
        """
        executor = self._executor
        queue = executor.queues.by_name[handler]
        scarce = executor.queues.free <= 0 and executor.queues.several
        if scarce or queue.limits or queue.reserve or executor.overfull:
            return ()
        if queue.startable > 0 and executor.queues.free > 0:
            executor.go_on_soon()
            return ()
        now, tasks, taken = executor.now(), queue.tasks, list[Attempt]()
        while tasks and len(taken) < most:
            claimed = tasks[0]
            if claimed.crashes or claimed.id in self._alone or len(claimed.payload) > LARGEST:
                break
            tasks.popleft()
            if executor.checked(claimed):
                attempt = Attempt(claimed, queue.spec, executor, None, now, now + DAY)
                executor.running[claimed.id] = attempt
                executor.starts.begin(claimed)
                taken.append(attempt)
        executor.moved(queue, now)
        return taken

    def next_up(self, attempt: AttemptHandle) -> None:
        """It begins at the end of the attempt before it, and takes over that one's slot."""
        claimed = attempt.claimed
        self._executor.queues.take_slot(self._queue(attempt), claimed.priority)
        self._with_slot.add(claimed.id)

    def began(self, attempt: AttemptHandle, started_at: Instant) -> None:
        self._executor.begun_at(self._attempt(attempt), started_at)

    def ended(self, attempt: AttemptHandle, ended: Ended, took: int) -> None:
        """Its code has ended, or its child is gone. `took`: for how many microseconds it ran, if that is known."""
        executor, mine = self._executor, self._attempt(attempt)
        self._with_slot.discard(attempt.claimed.id)
        if mine.stop is not None and ended.outcome is Outcome.LOST:
            ended = executor.ended_by(mine, asyncio.CancelledError())
        now = executor.now()
        executor.end(mine, self._queue(attempt), mine.blanked(ended), min(now, mine.started_at + took) if took else now)
        executor.go_on_soon()

    def went_back(self, attempt: AttemptHandle, *, tried: bool) -> None:
        """It has not begun. `tried`: its child died when it was about to, so it begins with a child of its own next time."""
        executor, claimed, mine = self._executor, attempt.claimed, self._attempt(attempt)
        if claimed.id in self._with_slot:
            self._with_slot.discard(claimed.id)
            executor.queues.free_slot(self._queue(attempt), claimed.priority)
        if tried:
            if len(self._alone) >= _MOST_ALONE:
                self._alone.clear()
            self._alone.add(claimed.id)
        mine.end()
        del executor.running[claimed.id]
        executor.starts.begun(claimed.id)
        match mine.stop:
            case None:
                if executor.checked(claimed):
                    executor.queues.put_back(claimed)
            case Stop.LOST:
                pass
            case Stop.CANCEL:
                executor.give_back(claimed, Outcome.CANCELLED)
            case Stop.RELEASE | Stop.TIMEOUT:
                executor.give_back(claimed, Outcome.RELEASED)
        executor.start_behind(claimed.id)
        executor.go_on_soon()

    def _queue(self, attempt: AttemptHandle) -> HandlerQueue:
        return self._executor.queues.by_name[attempt.claimed.handler]

    def _attempt(self, attempt: AttemptHandle) -> Attempt:
        return self._executor.running[attempt.claimed.id]
