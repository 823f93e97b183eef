"""The pruner: removes finished tasks, their output, skips, idempotency keys, operations, events, kinds of failures, former secrets and
audit entries after their time."""

from __future__ import annotations

import contextlib
import os
import socket
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TypeAlias

from duetime.clock import Instant, to_micros
from duetime.errors import StoreUnavailable
from duetime.ids import token
from duetime.model.task import FINAL, State
from duetime.runtime.service import Alarms, Service
from duetime.store import Store
from duetime.store.values import Declaration

BATCH = 1_000
LOOK_EVERY = 60.0
PAUSE = 0.05  # seconds between two batches, so that others can write
SKIPS_KEPT = timedelta(days=30)
SILENT_FOR = timedelta(hours=1)  # far longer than a process repeats a write; then its counters are added up
REQUESTS_KEPT = timedelta(hours=24)  # how long a request may be repeated under its Idempotency-Key
OPERATIONS_KEPT = timedelta(days=30)
EVENTS_KEPT = timedelta(hours=1)  # for streams that go on where they were; what a hook has not dealt with stays longer
LOCKS_KEPT = timedelta(days=1)  # of holders that are dead
EVENTS_LONGEST = timedelta(days=7)
AUDIT_KEPT = timedelta(days=400)  # over a year, for yearly reviews
LEASE = 60.0
RENEW_EVERY = 25.0

OwnRetention: TypeAlias = Mapping[State, Mapping[float, Sequence[str]]]  # the names of handlers, by state and seconds


def own_retention(declarations: Sequence[Declaration]) -> OwnRetention:
    """Return which handlers keep finished tasks of a state for other than the usual time, under all their names."""
    renamed: dict[str, str] = {}
    for each in sorted(declarations, key=lambda each: each.declared_at):
        if renamed.get(each.name) in each.aliases:  # it was renamed, and back again
            del renamed[each.name]
        renamed |= dict.fromkeys(each.aliases, each.name)
    names: defaultdict[str, set[str]] = defaultdict(set)
    for name in (*renamed, *(each.name for each in declarations)):
        names[_present(name, renamed)].add(name)
    own: defaultdict[State, defaultdict[float, list[str]]] = defaultdict(lambda: defaultdict(list))
    for each in declarations:
        if each.name in names:  # otherwise it is a former name of another handler, and what is declared for that counts
            for state, seconds in each.keep.items():
                own[state][seconds] += sorted(names[each.name])
    return own


def _present(name: str, renamed: Mapping[str, str]) -> str:
    """Return the latest name of a handler that may have been renamed several times."""
    for _ in renamed:
        name = renamed.get(name, name)
    return name


class Pruner(Service):
    """Removes finished tasks after the retention of their handler or else of their state, skips after 30 days, idempotency keys after
    24 hours, operations 30 days after their end, kinds of failures after 92 days, audit entries after 400, former versions of secrets at
    their end. Never removes a live task.

    Any process may do it. Where a handler has a retention of its own, somebody has to walk along all that has finished: then only
    the process that has the lease of this duty removes finished tasks, which saves the others the same walk.
    """

    name = "pruner"

    def __init__(self, store: Store, alarms: Alarms, retention: Mapping[State, timedelta]) -> None:
        super().__init__(alarms)
        self._store = store
        self._retention = {state: kept for state, kept in retention.items() if state in FINAL}
        self._holder = f"{socket.gethostname()}:{os.getpid()}:{token(4)}"
        self._own: OwnRetention = {}
        self._held = False
        self._round_at: Instant | None = None

    async def run_once(self) -> float | None:
        # A store may remove fewer than a batch although there are more, so a round lasts until nothing is left. All its batches
        # use the same instant, or a round would never end while tasks keep finishing.
        if self._round_at is None:
            self._round_at = self._store.now()
            self._own = own_retention(await self._store.declarations())
            await self._store.prune_failures()
        if await self._prune(self._round_at, tasks=not self._own or await self._take_lease()):
            return PAUSE
        self._round_at = None
        return RENEW_EVERY if self._own and self._held else LOOK_EVERY

    async def prune(self, now: Instant | None = None) -> int:
        """Remove one batch of each state, one of skips, one of requests and one of the audit; return the size of the largest."""
        self._own = own_retention(await self._store.declarations())
        await self._store.prune_failures()
        return await self._prune(self._store.now() if now is None else now, tasks=True)

    async def stop(self) -> None:
        await super().stop()
        if self._held:
            self._held = False
            with contextlib.suppress(StoreUnavailable):
                await self._store.leave_duty(self.name, self._holder)

    async def _take_lease(self) -> bool:
        self._held = (await self._store.take_duty(self.name, self._holder, LEASE)).granted
        return self._held

    async def _prune(self, now: Instant, *, tasks: bool) -> int:
        await self._store.fold_figures(now - to_micros(SILENT_FOR))
        await self._store.prune_secrets()
        largest = await self._store.prune_skips(now - to_micros(SKIPS_KEPT), BATCH)
        largest = max(largest, await self._store.prune_requests(now - to_micros(REQUESTS_KEPT), BATCH))
        largest = max(largest, await self._store.prune_operations(now - to_micros(OPERATIONS_KEPT), BATCH))
        # a flow is kept as long as the tasks of any state, so that all of it can be seen and retried as long as its members can
        longest = max(self._retention.values(), default=OPERATIONS_KEPT)
        largest = max(largest, await self._store.prune_flows(now - to_micros(longest), BATCH))
        largest = max(largest, await self._store.prune_events(now - to_micros(EVENTS_KEPT), now - to_micros(EVENTS_LONGEST), BATCH))
        await self._store.prune_locks(now - to_micros(LOCKS_KEPT))
        for state, kept in self._retention.items() if tasks else ():
            largest = max(largest, await self._prune_tasks(now, state, kept, self._own.get(state, {})))
        return max(largest, await self._store.prune_audit(now - to_micros(AUDIT_KEPT), BATCH))

    async def _prune_tasks(self, now: Instant, state: State, kept: timedelta, own: Mapping[float, Sequence[str]]) -> int:
        """Remove a batch of each retention; return the size of the largest. Those with one of their own come first: what is left of
        them in a table that goes has to be moved.
        """
        largest = 0
        for seconds, names in own.items():
            largest = max(largest, len(await self._store.prune(state, now - to_micros(seconds), BATCH, only=names)))
        before = now - to_micros(kept)
        # whole steps only: a store may keep the tasks of a step in one partition and drop it
        before -= before % self._store.traits.retention_step(state)
        but = [name for names in own.values() for name in names]
        return max(largest, len(await self._store.prune(state, before, BATCH, but=but)))
