"""Changes of stored schedules by compare-and-set: read, decide, write, and try again if somebody else has written first."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from duetime.client.schedules.info import plan_for
from duetime.clock import Instant
from duetime.errors import Conflict
from duetime.model.firing import Step
from duetime.model.gate import Gates
from duetime.model.occurrences import ends_of
from duetime.model.rules import DayCalendar
from duetime.model.schedule import ScheduleFacts, ScheduleRecord
from duetime.model.task import TaskRecord
from duetime.runtime.slices import off_loop
from duetime.store import Store
from duetime.store.schedules import ScheduleFilter, ScheduleWrite

MAX_RETRIES = 200
LONGEST_WAIT = 0.1
PAGE = 1_000


class Known(msgspec.Struct, frozen=True):
    """What a change is decided by: the stored schedules, the calendars, and the store's time."""

    records: Mapping[str, ScheduleRecord | None]
    calendars: Mapping[str, DayCalendar]
    now: Instant
    tasks: Mapping[str, TaskRecord | None] = {}  # of the runs that the schedules remember, if `look` was called with `with_runs`

    def facts(self, record: ScheduleRecord) -> ScheduleFacts:
        """Return what `model.firing` needs besides the record."""
        return ScheduleFacts(plan_for(record.spec, self.calendars), ends_of(record.state.runs, self.tasks, self.now))


Decide: TypeAlias = Callable[[Known], ScheduleWrite | None]


async def look(store: Store, names: Sequence[str], *, with_runs: bool = False) -> Known:
    """Read what a change of these schedules is decided by."""
    stored = dict(zip(names, await store.schedules(names), strict=True))
    runs = [run.task for record in stored.values() if record is not None for run in record.state.runs] if with_runs else []
    tasks = dict(zip(runs, await store.get(runs), strict=True)) if runs else {}
    return Known(stored, await store.calendars(), store.now(), tasks)


async def change(store: Store, name: str, decide: Decide, *, with_runs: bool = False) -> ScheduleRecord | None:
    """Write what `decide` returns for a schedule, and return the stored record.

    A write fails only if somebody else's write succeeded, so there is always progress. After MAX_RETRIES this raises Conflict.
    """
    for retry in range(MAX_RETRIES):
        known = await look(store, [name], with_runs=with_runs)
        write = await off_loop(decide, known)  # a rule within calendars may look at thousands of instants before it finds the next
        if write is None:
            return known.records[name]
        if all(await store.write_schedules([write])):
            return None if write.record is None else msgspec.structs.replace(write.record, version=write.expected + 1)
        await back_off(retry)
    raise given_up(name)


async def back_off(retries: int) -> None:
    """Wait a short random time, so that competing writers spread out."""
    await asyncio.sleep(random.random() * min(LONGEST_WAIT, 0.001 * 2 ** min(retries, 10)))


def given_up(what: str) -> Conflict:
    return Conflict(f"{what} was changed by others {MAX_RETRIES} times while this change was tried; try again")


async def every_schedule(store: Store, filter: ScheduleFilter | None = None) -> list[ScheduleRecord]:
    """Return all schedules that match."""
    rest = msgspec.structs.replace(filter or ScheduleFilter(), limit=PAGE)
    found: list[ScheduleRecord] = []
    while page := await store.list_schedules(rest):
        found += page
        rest = msgspec.structs.replace(rest, after=page[-1].name)
    return found


async def gates_and_calendars(store: Store) -> tuple[Gates, Mapping[str, DayCalendar]]:
    return await store.gates(), await store.calendars()


def write_of(old: ScheduleRecord | None, step: Step) -> ScheduleWrite | None:
    """Return what to write for a step; None if it changes nothing."""
    if step.record is old and not step.tasks and not step.skips:
        return None
    return ScheduleWrite(name=step.record.name, expected=old.version if old else 0, record=step.record, tasks=step.tasks, skips=step.skips)
