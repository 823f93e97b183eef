"""Hooks: calls functions of the program with events, in the order in which they happened to each task, at least once.

Of all processes that declare a hook one at a time calls it; a lease decides which. Where the hook stands is moved after its function has
returned, so a process that dies in between leaves those events to the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

from duetime.clock import SECOND
from duetime.errors import StoreUnavailable
from duetime.ids import token
from duetime.model.event import Event, TaskEvent, by_subject, shown
from duetime.model.figures import HOOK_CALLS, FigureKey
from duetime.runtime.service import Alarms, Service
from duetime.store.events import EventStore
from duetime.store.schedules import ScheduleStore
from duetime.store.shard import LookingUp
from duetime.store.values import Hint
from duetime.targets.hooks import Hook, chain_of

logger = logging.getLogger("duetime.hooks")

REMEMBERED = 7 * 86_400.0  # seconds for which events are kept for a hook that no process declares any more
BATCH = 100
AT_ONCE = 16  # calls of one hook that run at the same time, each of another task
TRIES = 5
FIRST_PAUSE = 0.2  # seconds before a call that raised is repeated; twice as long each time
LEASE = 5.0
RENEW_EVERY = 1.5
LOOK_EVERY = 0.5
FOLLOW_EVERY = 600.0


class HookStore(EventStore, ScheduleStore, LookingUp, Protocol):
    """What calling hooks needs of a store."""


async def follow(store: EventStore, hook: Hook) -> str:
    """Have events kept for a hook; return where it stands."""
    return await store.follow_events(hook.follower, REMEMBERED, remember=True)


async def chains_of(store: LookingUp, events: Sequence[Event]) -> dict[str, list[str]]:
    """Return which hooks have led to the tasks of these events, of those to which any has."""
    tasks = list({event.task for event in events if isinstance(event, TaskEvent)})
    records = await store.get(tasks) if tasks else []
    return {record.id: chain for record in records if record is not None and (chain := chain_of(record.meta))}


async def deliver(store: HookStore, hook: Hook, cursor: str, counts: Counter[FigureKey], pause: float = FIRST_PAUSE) -> str | None:
    """Call a hook with the next events; return where it stands then, the same cursor if there was none, None if another was faster."""
    page = await store.events(cursor, BATCH)
    events = [shown(record) for record in page.items if hook.filter.takes(record)]
    if events:
        chains = await chains_of(store, events)
        together = asyncio.Semaphore(AT_ONCE)
        async with asyncio.TaskGroup() as calls:
            for group in by_subject(events):
                chain = chains.get(group[0].task, []) if isinstance(group[0], TaskEvent) else []
                if hook.name in chain:
                    counts[FigureKey(HOOK_CALLS, hook.name, "cycle")] += len(group)
                    logger.warning("the hook %s has led to %s and is not called for what happens to it", hook.name, group[0])
                    continue
                calls.create_task(_call(hook, group, chain, together, counts, pause))
    if page.next == cursor or await store.pass_events(hook.follower, cursor, page.next):
        return page.next
    return None


async def _call(
    hook: Hook, events: list[Event], chain: list[str], together: asyncio.Semaphore, counts: Counter[FigureKey], pause: float
) -> None:
    async with together:
        for event in events:
            for tried in range(1, TRIES + 1):
                try:
                    await hook.call(event, chain)
                    counts[FigureKey(HOOK_CALLS, hook.name, "returned")] += 1
                    break
                except Exception as error:
                    counts[FigureKey(HOOK_CALLS, hook.name, "raised")] += 1
                    if tried == TRIES:
                        counts[FigureKey(HOOK_CALLS, hook.name, "given up")] += 1
                        logger.exception("the hook %s raised %d times at %s; it goes on without that event", hook.name, TRIES, event)
                    else:
                        logger.warning("the hook %s raised at %s and is tried again: %r", hook.name, event.name, error)
                        await asyncio.sleep(pause * 2 ** (tried - 1))


class HookCalls(Service):
    """Calls one hook, as long as this process has the lease for it."""

    name = "hook"

    def __init__(self, store: HookStore, hook: Hook, alarms: Alarms) -> None:
        super().__init__(alarms)
        self.pulse.name = hook.follower
        self._store = store
        self._hook = hook
        self._holder = f"{socket.gethostname()}:{os.getpid()}:{token(4)}"
        self._held = False
        self._follow_at = 0.0
        self._counts: Counter[FigureKey] = Counter()

    def totals(self) -> Mapping[FigureKey, int]:
        """Return how often it was called here, and how that ended."""
        return dict(self._counts)

    def on_hint(self, hint: Hint) -> None:
        if self._held:
            self.wake()

    async def run_once(self) -> float | None:
        wait = await self._take_lease()
        if wait is not None:
            return wait
        # read again each time: another process may have moved it
        cursor = await follow(self._store, self._hook) if self._must_follow() else await self._cursor()
        after = await self._guarded(cursor)
        return LOOK_EVERY if after == cursor else 0.0

    def _must_follow(self) -> bool:
        now = asyncio.get_running_loop().time()
        if now < self._follow_at:
            return False
        self._follow_at = now + FOLLOW_EVERY
        return True

    async def _cursor(self) -> str:
        standing = {each.name: each.cursor for each in await self._store.followers()}
        return standing.get(self._hook.follower) or await follow(self._store, self._hook)

    async def _guarded(self, cursor: str) -> str | None:
        """Deliver the next events while the lease is kept; stop when it is lost."""
        calls = asyncio.ensure_future(deliver(self._store, self._hook, cursor, self._counts))
        try:
            while not calls.done():
                await asyncio.wait((calls,), timeout=RENEW_EVERY)
                if not calls.done() and await self._take_lease() is not None:
                    return None
                self.progressed()
            return calls.result()
        finally:
            if not calls.done():
                calls.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await calls

    async def _take_lease(self) -> float | None:
        """Take or keep the lease; return how long to wait if another process has it."""
        lease = await self._store.take_duty(self._hook.follower, self._holder, LEASE)
        self._held = lease.granted
        return None if lease.granted else min(LEASE, max(0.0, (lease.until_at - lease.now) / SECOND)) + random.uniform(0.05, 0.25)

    async def stop(self) -> None:
        await super().stop()
        if self._held:
            self._held = False
            with contextlib.suppress(StoreUnavailable):
                await self._store.leave_duty(self._hook.follower, self._holder)
