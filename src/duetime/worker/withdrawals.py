"""Tells servers that have accepted work (202) when it was cancelled, if they said where.

The location is stored with the accepted attempt, so any worker with the handler can tell it; one of them takes it. Best effort: a worker
may die with one in its hands. Whoever is not told learns it from the answer to its next report, and the attempt ends 30 seconds after
the cancel in any case.
"""

from __future__ import annotations

import asyncio

import msgspec

from duetime.clock import SECOND
from duetime.runtime.service import Alarms, Service
from duetime.store import Store
from duetime.store.accepting import Withdrawal
from duetime.targets.target import WithdrawingTarget
from duetime.worker.attempt import Attempt
from duetime.worker.executor import Executor

LOOK_EVERY = 10.0  # seconds; a hint comes sooner, but may be lost
AT_ONCE = 20


class Withdrawals(Service):
    """Withdraws accepted work whose task was cancelled."""

    name = "withdrawals"

    def __init__(self, store: Store, executor: Executor, alarms: Alarms) -> None:
        super().__init__(alarms)
        self._store = store
        self._executor = executor

    async def run_once(self) -> float | None:
        """Tell the servers of what was cancelled; sleep for ever where no handler's work can be accepted."""
        handlers = [name for name, queue in self._executor.queues.by_name.items() if queue.concurrency and _accepts(queue.target)]
        if not handlers:
            return None
        taken = await self._store.take_withdrawals(handlers, AT_ONCE)
        if taken:
            await self._tell(taken)
        return 0.0 if len(taken) == AT_ONCE else LOOK_EVERY

    async def _tell(self, taken: list[Withdrawal]) -> None:
        ids = [each.id for each in taken]
        running = {each.task.id: each.task for each in await self._store.open_attempts(ids)}
        records = {record.id: record for record in await self._store.get(ids) if record is not None}
        calls = []
        for each in taken:
            task, record = running.get(each.id), records.get(each.id)
            if task is None or record is None or task.attempt != each.attempt:
                continue  # it has ended meanwhile
            queue, now = self._executor.queues.by_name[task.handler], self._store.now()
            claimed = msgspec.structs.replace(task, payload=record.payload)
            attempt = Attempt(claimed, queue.spec, self._executor, None, now, now + int(queue.spec.timeout * SECOND))
            assert isinstance(queue.target, WithdrawingTarget)
            calls.append(queue.target.withdraw(attempt, each.location))
        await asyncio.gather(*calls)


def _accepts(target: object) -> bool:
    return isinstance(target, WithdrawingTarget) and target.accepts
