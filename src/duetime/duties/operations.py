"""Operations: performs what people asked for on all tasks that match, batch by batch."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from msgspec.structs import replace

from duetime.clock import SECOND
from duetime.errors import InvalidValue, StoreUnavailable
from duetime.ids import token
from duetime.model.figures import OPERATED, FigureKey
from duetime.model.operation import BATCH, Operation, OperationState, awaits_canary, ended, is_through, judged, next_page, planned
from duetime.model.query import MOST_COUNTED
from duetime.runtime.service import Alarms, Service
from duetime.store.control import Listing
from duetime.store.operations import OperationStore
from duetime.store.schedules import ScheduleStore
from duetime.store.shard import LookingUp, Timekeeping
from duetime.store.values import Hint, HintKind

LEASE = 5.0  # seconds
RENEW_EVERY = 1.5
LOOK_EVERY = 5.0  # seconds until the next look if no hint comes
MOST = 100  # operations that are performed at once, a batch of each in turn
MOST_PAGES = 10  # that are looked at without finding a task, before the cursor is saved
LOOK_AT_CANARY = 0.5  # seconds between two looks whether its tasks have ended
AGAIN_AFTER = 0.05  # seconds, when tasks of a batch moved on again and again


class PerformingStore(OperationStore, Listing, LookingUp, Timekeeping, Protocol):
    """What performing an operation needs of a store."""


class DutyStore(PerformingStore, ScheduleStore, Protocol):
    """What the duty needs besides: its lease."""


class Step(NamedTuple):
    """An operation after a step, how many seconds to wait before the next one, and the answers that this step was given."""

    operation: Operation
    pause: float
    answers: Mapping[str, int] = {}


async def step(store: PerformingStore, operation: Operation) -> Step:
    """Act on the batch of a running operation, or plan the next one, or end it. Any number of processes may do that at once."""
    if operation.batch:
        done = await store.act(operation.id)
        if done is None:
            return Step(ended(operation, OperationState.STOPPED, store.now()), 0.0)
        return Step(done.operation, 0.0 if done.answers else AGAIN_AFTER, Counter(done.answers.values()))
    if awaits_canary(operation) and operation.spec.states:
        return await _judge(store, operation)
    wait = (operation.progress.next_at - store.now()) / SECOND
    if wait > 0 and not is_through(operation):
        return Step(operation, wait)
    after = await _planned(store, operation)
    if await store.save_operation(after):
        return Step(after, 0.0)
    return Step(await store.operation(operation.id) or after, 0.0)  # another process was faster


async def _judge(store: PerformingStore, operation: Operation) -> Step:
    """Look whether tasks of the canary have ended, and let that decide."""
    watched = operation.progress.watched[:BATCH]
    found = dict(zip(watched, await store.get(watched), strict=True))
    total = operation.count
    if not operation.progress.planned and operation.progress.stage == 0:
        page = replace(next_page(operation), limit=1, cursor=None)
        total = operation.count + (await store.count(page, MOST_COUNTED)).count
    after = judged(operation, found, total, store.now())
    moved = after.progress != operation.progress
    if moved and not await store.save_operation(after):
        return Step(await store.operation(operation.id) or after, 0.0)
    return Step(after if moved else operation, 0.0 if moved else LOOK_AT_CANARY)


async def _planned(store: PerformingStore, operation: Operation) -> Operation:
    """Return the next version of an operation: with its next batch, or ended."""
    after = operation
    try:
        for _ in range(MOST_PAGES):
            if after.batch or is_through(after):
                break
            page = await store.page(next_page(after))
            after = planned(after, page.items, page.next, store.now())
    except InvalidValue as error:
        after = ended(operation, OperationState.FAILED, store.now(), str(error))
    if is_through(after) and after.state is OperationState.RUNNING:
        after = ended(after, OperationState.DONE, store.now())
    return replace(after, version=operation.version + 1)


class Operations(Service):
    """Performs running operations, a batch of each in turn. One process at a time holds the lease of the duty, which only saves work:
    the version of an operation decides who has planned a batch, and its row who acts on it.
    """

    name = "operations"

    def __init__(self, store: DutyStore, alarms: Alarms) -> None:
        super().__init__(alarms)
        self._store = store
        self._holder = f"{socket.gethostname()}:{os.getpid()}:{token(4)}"
        self._held = False
        self._renew_at = 0.0
        self._counts: Counter[FigureKey] = Counter()

    def totals(self) -> Mapping[FigureKey, int]:
        """Return how many tasks operations have acted on here, by verb and answer."""
        return dict(self._counts)

    def on_hint(self, hint: Hint) -> None:
        if hint.kind is HintKind.OPERATIONS:
            self.wake()

    async def run_once(self) -> float | None:
        live = await self._store.operations(MOST, live=True)
        running = [each for each in live if each.state is OperationState.RUNNING]
        if not running:
            await self._leave()
            return LOOK_EVERY
        wait = await self._take_lease()
        if wait is not None:
            return wait
        pauses = [await self._perform(each) for each in running]
        return min(*pauses, LOOK_EVERY)

    async def _perform(self, operation: Operation) -> float:
        done = await step(self._store, operation)
        for answer, number in done.answers.items():
            self._counts[FigureKey(OPERATED, operation.spec.query.handler or "", f"{operation.spec.verb} {answer}")] += number
        return done.pause

    async def _take_lease(self) -> float | None:
        """Take or keep the lease; return how long to wait if another process has it."""
        asked_at = asyncio.get_running_loop().time()
        if self._held and asked_at < self._renew_at:
            return None
        lease = await self._store.take_duty(self.name, self._holder, LEASE)
        self._held, self._renew_at = lease.granted, asked_at + RENEW_EVERY
        return None if lease.granted else max(0.0, (lease.until_at - lease.now) / SECOND) + random.uniform(0.05, 0.25)

    async def _leave(self) -> None:
        if self._held:
            self._held = False
            with contextlib.suppress(StoreUnavailable):
                await self._store.leave_duty(self.name, self._holder)

    async def stop(self) -> None:
        await super().stop()
        await self._leave()
