"""Deadlines: ends attempts whose work somebody outside has accepted and not completed in time."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Protocol

from duetime.clock import SECOND
from duetime.model.figures import ATTEMPTS, RETRIES, TASKS_FAILED, FigureKey
from duetime.model.lifecycle import conclude
from duetime.model.outcome import Ended, Outcome, Settlement, SettleVerdict
from duetime.model.retry import RetryPolicy
from duetime.model.task import ErrorInfo, State
from duetime.runtime.service import Alarms, Service
from duetime.store.accepting import Accepting, OpenAttempt
from duetime.store.control import DeclarationStore
from duetime.store.schedules import ScheduleStore
from duetime.store.shard import Timekeeping

BATCH = 500
LOOK_EVERY = 1.0


class DeadlineStore(Accepting, Timekeeping, DeclarationStore, ScheduleStore, Protocol):
    """What the duty needs of a store."""


class Deadlines(Service):
    """Ends accepted attempts whose time is over, in bounded batches. One that was told to stop ends as cancelled."""

    name = "deadlines"

    def __init__(self, store: DeadlineStore, alarms: Alarms, *, chance: Callable[[], float] = random.random) -> None:
        super().__init__(alarms)
        self._store = store
        self._chance = chance
        self._counts: Counter[FigureKey] = Counter()

    def totals(self) -> Mapping[FigureKey, int]:
        """Return the metrics of the attempts that were ended here."""
        return dict(self._counts)

    async def run_once(self) -> float | None:
        return 0.01 if await self.sweep() >= BATCH else LOOK_EVERY

    async def sweep(self) -> int:
        """End one batch; return how many were found."""
        late = await self._store.overdue(BATCH)
        if not late:
            return 0
        retries = {each.name: each.retry for each in await self._store.declarations()}
        settlements = [self._end(each, retries.get(each.task.handler, b"{}")) for each in late]
        # the store looks at each once more: a report or the end may have come since
        verdicts = await self._store.complete(settlements, overdue=True)
        ended = [(each, said) for each, said, verdict in zip(late, settlements, verdicts, strict=True) if verdict is SettleVerdict.ACCEPTED]
        for each, settlement in ended:
            self._count(each.task.handler, settlement)
        schedules = {each.task.schedule for each, _ in ended if each.task.schedule is not None}
        if schedules:
            await self._store.wake_schedules(sorted(schedules))
        return len(late)

    def _end(self, late: OpenAttempt, retry: bytes) -> Settlement:
        task = late.task
        started_at, now = max(task.claimed_at, task.due_at), self._store.now()
        if task.cancelling:
            ended = Ended(Outcome.CANCELLED)
        else:
            text = f"its work was accepted elsewhere, and no end was reported within {(now - started_at) / SECOND:.0f} s"
            ended = Ended(Outcome.TIMED_OUT, error=ErrorInfo("TimedOut", text))
        policy = RetryPolicy().with_numbers(task.retry or retry)
        return conclude(task, ended, policy, started_at=started_at, now=now, chance=self._chance())

    def _count(self, handler: str, settlement: Settlement) -> None:
        self._counts[FigureKey(ATTEMPTS, handler, settlement.outcome.value)] += 1
        if settlement.state is State.FAILED:
            self._counts[FigureKey(TASKS_FAILED, handler)] += 1
        elif settlement.state is State.PENDING:
            self._counts[FigureKey(RETRIES, handler)] += 1
