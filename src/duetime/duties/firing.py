"""The firing duty: makes tasks of occurrences at their instant.

One process at a time holds the duty's lease. That only saves work: the version of a schedule decides who has fired an occurrence.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import socket
from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from duetime.clock import SECOND, Instant
from duetime.errors import StoreUnavailable
from duetime.ids import token
from duetime.model.firing import Step, step
from duetime.model.occurrences import ends_of
from duetime.model.rules import DayCalendar, Plan, Rule, plan_of
from duetime.model.schedule import ScheduleFacts, ScheduleRecord, ScheduleSpec
from duetime.model.task import TaskRecord
from duetime.runtime.service import Alarms, Service
from duetime.store import Store
from duetime.store.schedules import ScheduleCursor, ScheduleWrite
from duetime.store.values import Hint, HintKind

logger = logging.getLogger("duetime.duties")

LEASE = 5.0  # seconds
SOON = 1.0  # seconds before an occurrence at which the lease is taken
LOOK_EVERY = 15.0  # seconds until the next look if no hint comes
RENEW_EVERY = 1.5
BATCH = 2_000  # schedules that are read at once
PORTION = 1_000  # and written at once
SLICE = 100  # and decided at once, before the event loop serves others
AT_ONCE = 3  # portions in progress: one is decided while others are written
MOST_BATCHES = 10  # per pass; the next batch is read while portions of the last one are written
MOST_TASKS = 2_000  # tasks in one write; after an outage each schedule may have hundreds
CALENDARS_EVERY = 30.0  # seconds after which calendars are read again if no hint comes
GATES_EVERY = 5.0
AGAIN_AFTER = 60 * SECOND  # when to look again at a schedule that cannot be fired
MOST_PLANS = 20_000
LONG_AGO = 6 * 3_600 * SECOND  # so much may have been missed since then that a thread decides


class Firing(Service):
    """Sleeps until the next occurrence of any schedule, and fires all due ones in batches."""

    name = "firing"

    def __init__(self, store: Store, alarms: Alarms) -> None:
        super().__init__(alarms)
        self._store = store
        self._holder = f"{socket.gethostname()}:{os.getpid()}:{token(4)}"
        self._held = False
        self._renew_at = 0.0  # by the event loop's clock, like the next four
        self._look_at = 0.0
        self._lease_taken_until = 0.0  # another process holds the lease until then and acts on the hints
        self._calendars_at = 0.0
        self._gates_at = 0.0
        self._next_at: Instant | None = None  # when to look at the next schedule; None: not known
        self._hinted: list[Instant] | None = None  # instants of hints during a call of the store; those of our own writes are among them
        self._calendars: Mapping[str, DayCalendar] = {}
        self._plans: dict[tuple[Rule, tuple[str, ...], Instant | None, Instant | None], Plan] = {}
        self._closed: list[tuple[str, str | None]] = []
        self._opens_at: Instant | None = None  # when the next gate opens by itself
        self._logged: set[tuple[str, int, str]] = set()

    # ---- when to fire ----

    def on_hint(self, hint: Hint) -> None:
        """Look at once if the hint is about something earlier than `_next_at`, unless another process holds the lease."""
        at = hint.at
        if hint.kind is HintKind.GATES:
            self._gates_at, at = 0.0, None
        elif hint.kind is not HintKind.SCHEDULES:
            return
        elif at is None:
            self._calendars_at = 0.0
        if self._hinted is not None:
            self._hinted.append(at or 0)
            return
        if at is not None and self._next_at is not None and at >= self._next_at:
            return
        self._next_at = None
        if asyncio.get_running_loop().time() >= self._lease_taken_until:
            self.wake()

    async def run_once(self) -> float | None:
        """Look, and take the lease only when something is about to be due, so that an idle store is not written to."""
        clock = asyncio.get_running_loop().time
        if self._next_at is None or clock() >= self._look_at:
            await self._find_next()
        pause = LOOK_EVERY if self._next_at is None else (self._next_at - self._store.now()) / SECOND
        if pause > SOON:
            return min(pause - SOON, LOOK_EVERY)
        asked_at = clock()
        if asked_at >= self._renew_at:
            lease = await self._store.take_duty(self.name, self._holder, LEASE)
            self._held = lease.granted
            if not lease.granted:
                pause = max(0.0, (lease.until_at - lease.now) / SECOND) + random.uniform(0.05, 0.25)
                self._next_at, self._lease_taken_until = None, asked_at + pause
                return pause
            self._renew_at = asked_at + RENEW_EVERY
        if self._next_at is not None and self._store.now() >= self._next_at:
            await self._fire()
            return 0.0
        return max(0.0, pause)

    async def _find_next(self) -> None:
        """Find out when the next schedule is due."""
        with self._collecting_hints() as hinted:
            await self._refresh_calendars_and_gates()
            self._look_at = asyncio.get_running_loop().time() + LOOK_EVERY
            due = await self._store.due_schedules(0, self._closed)
        self._next_at = _earliest([self._opens_at, due.next_at, *hinted])

    @contextlib.contextmanager
    def _collecting_hints(self) -> Iterator[list[Instant]]:
        """Collect the instants of hints meanwhile: the store's answer may be older than they are."""
        self._hinted = hinted = list[Instant]()
        try:
            yield hinted
        finally:
            self._hinted = None

    async def stop(self) -> None:
        await super().stop()
        if self._held:
            self._held = False
            with contextlib.suppress(StoreUnavailable):
                await self._store.leave_duty(self.name, self._holder)

    @property
    def next_at(self) -> Instant | None:
        """When to look at the next schedule, as of the last look."""
        return self._next_at

    # ---- firing ----

    async def fire_due(self) -> int:
        """Fire the due schedules once, with calendars and gates read now; return how many tasks were made."""
        self._calendars_at = self._gates_at = 0.0
        return await self._fire()

    async def _fire(self) -> int:
        self._next_at = None
        with self._collecting_hints() as hinted:
            await self._refresh_calendars_and_gates()
            in_sight = [self._opens_at]
            portions: list[asyncio.Task[int]] = []
            try:
                await self._fire_batches(portions, in_sight)
            finally:
                # all of them, also when one fails: nothing may be in progress when this returns
                fired = await asyncio.gather(*portions, return_exceptions=True)
        self._next_at = _earliest([*in_sight, *hinted])
        for failure in fired:
            if isinstance(failure, BaseException):
                self._next_at = None
                raise failure
        return sum(number for number in fired if isinstance(number, int))

    async def _fire_batches(self, portions: list[asyncio.Task[int]], in_sight: list[Instant | None]) -> None:
        """Read due schedules and start firing them, portion by portion."""
        free = asyncio.Semaphore(AT_ONCE)
        after: ScheduleCursor | None = None
        for _ in range(MOST_BATCHES):
            due = await self._store.due_schedules(BATCH, self._closed, after=after)
            tasks = await self._runs_of(due.records)
            for start in range(0, len(due.records), PORTION):
                await free.acquire()
                firing = self._fire_portion(due.records[start : start + PORTION], tasks, due.now, in_sight)
                portions.append(asyncio.create_task(firing))
                portions[-1].add_done_callback(lambda _: free.release())
            if len(due.records) < BATCH or any(portion.done() and portion.exception() for portion in portions):
                break
            after = (due.records[-1].next_at or 0, due.records[-1].name)
        in_sight.append(due.next_at)

    async def _fire_portion(
        self,
        records: Sequence[ScheduleRecord],
        tasks: Mapping[str, TaskRecord],
        now: Instant,
        in_sight: list[Instant | None],
    ) -> int:
        """Decide and write, and add to `in_sight` when to look again. Return how many tasks were made."""
        # calendars may refuse thousands of instants before the next occurrence is found
        if any((record.next_at is not None and now - record.next_at > LONG_AGO) or record.spec.calendars for record in records):
            steps = await asyncio.to_thread(self._steps, records, tasks, now)
        else:
            steps = await self._steps_in_slices(records, tasks, now)
        written = await self._write([_write(record, chosen) for record, chosen in zip(records, steps, strict=False)])
        in_sight += [chosen.record.next_at for chosen in steps]
        if not all(written) or len(steps) < len(records):
            in_sight.append(now)  # another process has written some of them meanwhile, or some are left: look at them again
        return sum(len(chosen.tasks) for chosen, done in zip(steps, written, strict=True) if done)

    async def _steps_in_slices(self, records: Sequence[ScheduleRecord], tasks: Mapping[str, TaskRecord], now: Instant) -> list[Step]:
        """Decide a few at a time, so that concurrent writes make progress."""
        steps: list[Step] = []
        fired = 0
        for start in range(0, len(records), SLICE):
            portion = records[start : start + SLICE]
            decided = self._steps(portion, tasks, now)
            steps += decided
            fired += sum([len(chosen.tasks) for chosen in decided])
            if len(decided) < len(portion) or fired >= MOST_TASKS:
                break
            await asyncio.sleep(0)
        return steps

    def _steps(self, records: Sequence[ScheduleRecord], tasks: Mapping[str, TaskRecord], now: Instant) -> list[Step]:
        """Decide for each schedule in order, and stop at MOST_TASKS tasks."""
        steps: list[Step] = []
        fired = 0
        for record in records:
            chosen = self._step(record, tasks, now)
            steps.append(chosen)
            fired += len(chosen.tasks)
            if fired >= MOST_TASKS:
                break
        return steps

    async def _refresh_calendars_and_gates(self) -> None:
        """Read calendars and gates again if they may have changed."""
        now = asyncio.get_running_loop().time()
        if now >= self._calendars_at:
            self._calendars_at = now + CALENDARS_EVERY
            calendars = await self._store.calendars()
            if calendars != self._calendars:
                self._calendars = calendars
                self._plans.clear()
        if now >= self._gates_at or (self._opens_at is not None and self._store.now() >= self._opens_at):
            self._gates_at = now + GATES_EVERY
            present = self._store.now()
            gates = [gate for gate in await self._store.gates() if gate.closed(present)]
            self._closed = [(gate.handler, gate.collection) for gate in gates]
            self._opens_at = _earliest([gate.until_at for gate in gates])

    async def _runs_of(self, records: Sequence[ScheduleRecord]) -> Mapping[str, TaskRecord]:
        """Cancel the runs that the overlap policy ends, and read all live runs."""
        cancelled = [task for record in records for task in record.state.cancel]
        if cancelled:
            await self._store.cancel(cancelled)
        ids = [run.task for record in records for run in record.state.runs]
        found = await self._store.get(ids) if ids else []
        return {task.id: task for task in found if task is not None}

    def _step(self, record: ScheduleRecord, tasks: Mapping[str, TaskRecord], now: Instant) -> Step:
        try:
            plan = self._plan_of(record.spec)
            runs = record.state.runs
            return step(record, ScheduleFacts(plan, ends_of(runs, tasks, now)) if runs else ScheduleFacts(plan), now)
        except Exception as error:
            return self._postpone(record, error, now)

    def _plan_of(self, spec: ScheduleSpec) -> Plan:
        key = (spec.rule, spec.calendars, spec.start_at, spec.end_at)
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= MOST_PLANS:
                self._plans.clear()
            plan = plan_of(spec.rule, calendars=self._calendars, within=spec.calendars, start_at=spec.start_at, end_at=spec.end_at)
            self._plans[key] = plan
        return plan

    def _postpone(self, record: ScheduleRecord, error: Exception, now: Instant) -> Step:
        """Postpone a schedule that cannot be fired, so that it does not delay the others. Log the reason once."""
        logged = (record.id, record.revision, str(error))
        if logged not in self._logged:
            if len(self._logged) >= MOST_PLANS:
                self._logged.clear()
            self._logged.add(logged)
            logger.error("schedule %r cannot be fired and is looked at again every minute: %s", record.name, error)
        return Step(record=replace(record, next_at=now + AGAIN_AFTER))

    async def _write(self, writes: Sequence[ScheduleWrite]) -> list[bool]:
        """Write all at once. If one of them cannot be stored, write each on its own, so that only that one fails."""
        try:
            return await self._store.write_schedules(writes)
        except StoreUnavailable:
            raise
        except Exception as error:
            if len(writes) > 1:
                return [done for write in writes for done in await self._write([write])]
            [write] = writes
            assert write.record is not None
            [stored] = await self._store.schedules([write.name])
            if stored is None or stored.version != write.expected:
                return [False]
            postponed = self._postpone(stored, error, self._store.now())
            await self._store.write_schedules([_write(stored, postponed)])
            return [False]


def _write(record: ScheduleRecord, chosen: Step) -> ScheduleWrite:
    return ScheduleWrite(
        name=record.name, expected=record.version, record=chosen.record, tasks=chosen.tasks, skips=chosen.skips, moves=True
    )


def _earliest(instants: Sequence[Instant | None]) -> Instant | None:
    return min((instant for instant in instants if instant is not None), default=None)
