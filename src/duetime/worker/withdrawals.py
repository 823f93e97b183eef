"""Tells servers that have accepted work (202) when it was cancelled, if they said where.

Best effort: the worker that sent the request remembers where, in memory. Whoever it cannot tell learns it from the answer to its next
report, and the attempt ends 30 seconds after the cancel in any case.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from duetime.model.outcome import Acceptance
from duetime.runtime.service import Alarms, Service
from duetime.store.accepting import Accepting
from duetime.targets.target import Withdraw

MOST = 10_000  # attempts that are remembered; the oldest are forgotten first
LOOK_EVERY = 30.0  # seconds; a hint comes sooner, but may be lost
AT_ONCE = 20
ASKED_AT_ONCE = 1_000


class _Sent(NamedTuple):
    attempt: int
    withdraw: Withdraw


class Withdrawals(Service):
    """Withdraws accepted work whose task was cancelled."""

    name = "withdrawals"

    def __init__(self, store: Accepting, alarms: Alarms) -> None:
        super().__init__(alarms)
        self._store = store
        self._sent: dict[str, _Sent] = {}

    def remember(self, acceptance: Acceptance, withdraw: Withdraw) -> None:
        """Remember how to withdraw what is accepted now."""
        first = not self._sent
        self._sent[acceptance.id] = _Sent(acceptance.attempt, withdraw)
        if len(self._sent) > MOST:
            del self._sent[next(iter(self._sent))]
        if first:
            self.wake()

    @property
    def waiting(self) -> int:
        """How many are remembered."""
        return len(self._sent)

    async def run_once(self) -> float | None:
        """Withdraw what was cancelled, and forget what has ended."""
        asked = list(self._sent.items())
        for start in range(0, len(asked), ASKED_AT_ONCE):
            some = dict(asked[start : start + ASKED_AT_ONCE])
            found = {each.task.id: each for each in await self._store.open_attempts(list(some))}
            cancelled = []
            for task_id, sent in some.items():
                attempt = found.get(task_id)
                if attempt is not None and attempt.task.attempt == sent.attempt and not attempt.task.cancelling:
                    continue
                if self._sent.get(task_id) is sent:
                    del self._sent[task_id]
                if attempt is not None and attempt.task.attempt == sent.attempt:
                    cancelled.append(sent.withdraw)
            for number in range(0, len(cancelled), AT_ONCE):
                await asyncio.gather(*(withdraw() for withdraw in cancelled[number : number + AT_ONCE]))
                self.progressed()
        return LOOK_EVERY if self._sent else None
