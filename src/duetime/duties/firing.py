"""The firing of schedules: turns occurrences into tasks at their instant.

One process at a time has the turn, which only spares work: the version of a schedule decides who has fired an occurrence.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import secrets
import socket
from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from duetime.clock import SECOND, Instant
from duetime.errors import StoreUnavailable
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

TURN = 5.0  # seconds for which the turn is taken
SOON = 1.0  # seconds before an occurrence at which it is taken
LOOK_EVERY = 15.0  # seconds after which to look again although no hint came
RENEW_EVERY = 1.5
BATCH = 2_000  # schedules that are read at once
PORTION = 1_000  # and written at once
SLICE = 100  # and decided at once, before the event loop serves others
AT_ONCE = 3  # portions under way: one is decided while others are written
MOST_BATCHES = 10  # in one go, then others have their turn; the next one is read while portions of the last one are written
MOST_TASKS = 2_000  # tasks in one write; after an outage each schedule may have hundreds
CALENDARS_EVERY = 30.0  # seconds after which calendars are read again although nobody said that they have changed
GATES_EVERY = 5.0
AGAIN_AFTER = 60 * SECOND  # when to look again at a schedule that cannot be fired
MOST_PLANS = 20_000
LONG_AGO = 6 * 3_600 * SECOND  # so much may have been missed since then that counting it is left to a thread


class Firing(Service):
    """Sleeps until the next occurrence of any schedule, and fires all that are due in batches."""

    name = "firing"

    def __init__(self, store: Store, alarms: Alarms) -> None:
        super().__init__(alarms)
        self._store = store
        self._holder = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._held = False
        self._renew_at = 0.0  # of the event loop's clock, as the next four
        self._look_at = 0.0
        self._beaten_until = 0.0  # somebody else has the turn until then, and hints are for them
        self._calendars_at = 0.0
        self._gates_at = 0.0
        self._next_at: Instant | None = None  # when the next schedule is to be looked at; None: not known
        self._heard: list[Instant] | None = None  # what hints say while the store is asked or written to; our own writes' are among them
        self._calendars: Mapping[str, DayCalendar] = {}
        self._plans: dict[tuple[Rule, tuple[str, ...], Instant | None, Instant | None], Plan] = {}
        self._closed: list[tuple[str, str | None]] = []
        self._opens_at: Instant | None = None  # when the next gate opens by itself
        self._complained: set[tuple[str, int, str]] = set()

    # ---- when ----

    def on_hint(self, hint: Hint) -> None:
        """Note what a hint is about; look at once if it may be due before what is known, unless somebody else has the turn."""
        at = hint.at
        if hint.kind is HintKind.GATES:
            self._gates_at, at = 0.0, None
        elif hint.kind is not HintKind.SCHEDULES:
            return
        elif at is None:
            self._calendars_at = 0.0
        if self._heard is not None:
            self._heard.append(at or 0)
            return
        if at is not None and self._next_at is not None and at >= self._next_at:
            return
        self._next_at = None
        if asyncio.get_running_loop().time() >= self._beaten_until:
            self.wake()

    async def run_once(self) -> float | None:
        """Look, and take the turn only when something is about to be due: a store in which nothing happens is not written to."""
        clock = asyncio.get_running_loop().time
        if self._next_at is None or clock() >= self._look_at:
            await self._look()
        pause = LOOK_EVERY if self._next_at is None else (self._next_at - self._store.now()) / SECOND
        if pause > SOON:
            return min(pause - SOON, LOOK_EVERY)
        asked_at = clock()
        if asked_at >= self._renew_at:
            turn = await self._store.take_duty(self.name, self._holder, TURN)
            self._held = turn.granted
            if not turn.granted:
                pause = max(0.0, (turn.until_at - turn.now) / SECOND) + random.uniform(0.05, 0.25)
                self._next_at, self._beaten_until = None, asked_at + pause
                return pause
            self._renew_at = asked_at + RENEW_EVERY
        if self._next_at is not None and self._store.now() >= self._next_at:
            await self._fire()
            return 0.0
        return max(0.0, pause)

    async def _look(self) -> None:
        """Learn when the next schedule's time comes."""
        with self._hearing() as heard:
            await self._learn()
            self._look_at = asyncio.get_running_loop().time() + LOOK_EVERY
            due = await self._store.due_schedules(0, self._closed)
        self._next_at = _earliest([self._opens_at, due.next_at, *heard])

    @contextlib.contextmanager
    def _hearing(self) -> Iterator[list[Instant]]:
        """Gather what hints say meanwhile: an answer of the store may be older than they are."""
        self._heard = heard = list[Instant]()
        try:
            yield heard
        finally:
            self._heard = None

    async def stop(self) -> None:
        await super().stop()
        if self._held:
            self._held = False
            with contextlib.suppress(StoreUnavailable):
                await self._store.leave_duty(self.name, self._holder)

    @property
    def next_at(self) -> Instant | None:
        """When the next schedule is to be looked at, as far as the last look has shown."""
        return self._next_at

    # ---- what ----

    async def fire_due(self) -> int:
        """Fire one batch of schedules that are due, by what calendars and gates say now; return how many tasks came of it."""
        self._calendars_at = self._gates_at = 0.0
        return await self._fire()

    async def _fire(self) -> int:
        self._next_at = None
        with self._hearing() as heard:
            await self._learn()
            in_sight = [self._opens_at]
            portions: list[asyncio.Task[int]] = []
            try:
                await self._fire_batches(portions, in_sight)
            finally:
                # all of them, also when one fails: nothing may be under way any more when the turn is over
                fired = await asyncio.gather(*portions, return_exceptions=True)
        self._next_at = _earliest([*in_sight, *heard])
        for failure in fired:
            if isinstance(failure, BaseException):
                self._next_at = None
                raise failure
        return sum(number for number in fired if isinstance(number, int))

    async def _fire_batches(self, portions: list[asyncio.Task[int]], in_sight: list[Instant | None]) -> None:
        """Read schedules that are due and begin to fire them, portion by portion."""
        turns = asyncio.Semaphore(AT_ONCE)
        after: ScheduleCursor | None = None
        for _ in range(MOST_BATCHES):
            due = await self._store.due_schedules(BATCH, self._closed, after=after)
            tasks = await self._runs_of(due.records)
            for start in range(0, len(due.records), PORTION):
                await turns.acquire()
                firing = self._fire_portion(due.records[start : start + PORTION], tasks, due.now, in_sight)
                portions.append(asyncio.create_task(firing))
                portions[-1].add_done_callback(lambda _: turns.release())
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
        """Decide and write; note in `in_sight` when to look again. Give how many tasks came of it."""
        if any(record.next_at is not None and now - record.next_at > LONG_AGO for record in records):
            steps = await asyncio.to_thread(self._steps, records, tasks, now)
        else:
            steps = await self._steps_in_slices(records, tasks, now)
        written = await self._write([_write(record, chosen) for record, chosen in zip(records, steps, strict=False)])
        in_sight += [chosen.record.next_at for chosen in steps]
        if not all(written) or len(steps) < len(records):
            in_sight.append(now)  # somebody else has written some of them meanwhile, or some are left; they are looked at again
        return sum(len(chosen.tasks) for chosen, done in zip(steps, written, strict=True) if done)

    async def _steps_in_slices(self, records: Sequence[ScheduleRecord], tasks: Mapping[str, TaskRecord], now: Instant) -> list[Step]:
        """Decide a few at a time, so that what is written meanwhile goes on."""
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
        """Decide for each schedule, from the first on, until so many tasks have come together that they should be written."""
        steps: list[Step] = []
        fired = 0
        for record in records:
            chosen = self._step(record, tasks, now)
            steps.append(chosen)
            fired += len(chosen.tasks)
            if fired >= MOST_TASKS:
                break
        return steps

    async def _learn(self) -> None:
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
        """Tell the runs to stop that are given up, and read all runs that had not ended."""
        given_up = [task for record in records for task in record.state.cancel]
        if given_up:
            await self._store.cancel(given_up)
        ids = [run.task for record in records for run in record.state.runs]
        found = await self._store.get(ids) if ids else []
        return {task.id: task for task in found if task is not None}

    def _step(self, record: ScheduleRecord, tasks: Mapping[str, TaskRecord], now: Instant) -> Step:
        try:
            plan = self._plan_of(record.spec)
            runs = record.state.runs
            return step(record, ScheduleFacts(plan, ends_of(runs, tasks, now)) if runs else ScheduleFacts(plan), now)
        except Exception as error:
            return self._put_off(record, error, now)

    def _plan_of(self, spec: ScheduleSpec) -> Plan:
        key = (spec.rule, spec.calendars, spec.start_at, spec.end_at)
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= MOST_PLANS:
                self._plans.clear()
            plan = plan_of(spec.rule, calendars=self._calendars, within=spec.calendars, start_at=spec.start_at, end_at=spec.end_at)
            self._plans[key] = plan
        return plan

    def _put_off(self, record: ScheduleRecord, error: Exception, now: Instant) -> Step:
        """Leave a schedule as it is for a while, so that it does not hold up the others; say why, once."""
        complaint = (record.id, record.revision, str(error))
        if complaint not in self._complained:
            if len(self._complained) >= MOST_PLANS:
                self._complained.clear()
            self._complained.add(complaint)
            logger.error("schedule %r cannot be fired and is looked at again every minute: %s", record.name, error)
        return Step(record=replace(record, next_at=now + AGAIN_AFTER))

    async def _write(self, writes: Sequence[ScheduleWrite]) -> list[bool]:
        """Write all at once; if one of them cannot be stored, write each on its own, so that only that one is left behind."""
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
            put_off = self._put_off(stored, error, self._store.now())
            await self._store.write_schedules([_write(stored, put_off)])
            return [False]


def _write(record: ScheduleRecord, chosen: Step) -> ScheduleWrite:
    return ScheduleWrite(
        name=record.name, expected=record.version, record=chosen.record, tasks=chosen.tasks, skips=chosen.skips, moves=True
    )


def _earliest(instants: Sequence[Instant | None]) -> Instant | None:
    return min((instant for instant in instants if instant is not None), default=None)
