"""One task per occurrence (promise 8), whatever happens to the processes that fire schedules."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import pairwise

import pytest
from msgspec.structs import replace

from duetime import Every, Schedule
from duetime.clock import SECOND, Instant
from duetime.duties.firing import Firing
from duetime.model.query import Query
from duetime.model.task import TaskRecord
from duetime.runtime.service import Alarms
from duetime.store import Store
from duetime.store.open import store_from_url
from duetime.store.schedules import ScheduleWrite
from tests.chaos.fleet import Fleet, until

NAMES = [f"second-{number}" for number in range(4)]


async def tasks_of(store: Store, schedule: str) -> list[TaskRecord]:
    tasks: list[TaskRecord] = []
    cursor = None
    while True:
        page = await store.page(Query(schedule=schedule, limit=1_000, cursor=cursor))
        tasks += page.items
        cursor = page.next
        if cursor is None:
            return tasks


async def occurrences(store: Store, schedule: str) -> list[Instant]:
    """Give the planned instants of all tasks of a schedule, in order."""
    return sorted(task.planned_at for task in await tasks_of(store, schedule) if task.planned_at is not None)


async def skipped(store: Store, schedule: str) -> list[Instant]:
    return [skip.planned_at for skip in await store.skips(schedule, 1_000)]


def whole(planned: list[Instant]) -> bool:
    """Tell whether there is one for each second from the first to the last."""
    return planned == list(range(planned[0], planned[-1] + 1, SECOND))


@pytest.mark.covers("AIR.11", "SPA.6", "RSQ.8")
async def test_every_occurrence_becomes_one_task_although_workers_are_killed_and_frozen(any_fleet: Fleet) -> None:
    fleet, chance = any_fleet, random.Random(11)
    await fleet.start_some(3, "--lease", "2s")
    for name in NAMES:
        await fleet.app.schedules.put(Schedule(name, "quick", Every(1), missed="all", overlap="allow"), allow_unknown=True)
    for _ in range(8):
        await asyncio.sleep(chance.uniform(0.3, 1.2))
        victim = chance.choice(fleet.alive)
        if chance.random() < 0.6 or any_fleet.path.exists():
            victim.kill()
        else:
            victim.freeze()
            await asyncio.sleep(2.5)
            victim.thaw()
        await fleet.start("--lease", "2s", ready=False)

    async def each_has_ten() -> bool:
        return all([len(await occurrences(fleet.store, name)) >= 10 for name in NAMES])

    await until("each schedule has fired ten times", each_has_ten)
    for name in NAMES:
        await fleet.app.schedules.pause(name, note="enough")
    await fleet.finish()
    for name in NAMES:
        planned = await occurrences(fleet.store, name)
        assert whole(planned), Counter(later - earlier for earlier, later in pairwise(planned))
        assert await skipped(fleet.store, name) == []
        for task in await tasks_of(fleet.store, name):
            fleet.journal.write("submitted", task=task.id, handler=task.handler)
    await fleet.check()


@asynccontextmanager
async def two_stores(url: str) -> AsyncIterator[tuple[Store, Store]]:
    one, two = store_from_url(url), store_from_url(url)
    await one.open()
    await two.open()
    try:
        yield one, two
    finally:
        await one.close()
        await two.close()


async def test_t14_a_scheduler_that_was_stopped_in_the_middle_fires_nothing_again(any_fleet: Fleet) -> None:
    """T14: A has decided and is stopped before it writes; its lease ends, B fires the same occurrences, A goes on."""
    fleet = any_fleet
    await fleet.app.schedules.put(Schedule("often", "quick", Every(1), overlap="allow"), allow_unknown=True)
    async with two_stores(fleet.url) as (one, two):
        alarms = Alarms()
        stopped, goes_on = asyncio.Event(), asyncio.Event()
        write = one.write_schedules

        async def write_later(writes: list[ScheduleWrite], *, together: bool = False) -> list[bool]:
            stopped.set()
            await goes_on.wait()
            return await write(writes, together=together)

        one.write_schedules = write_later  # type: ignore[method-assign,assignment]
        first, second = Firing(one, alarms), Firing(two, alarms)

        async def is_due() -> bool:
            return bool((await two.due_schedules(10)).records)

        await until("an occurrence is due", is_due)
        late = asyncio.create_task(first.fire_due())
        await stopped.wait()
        assert await second.fire_due() > 0
        planned = await occurrences(two, "often")
        goes_on.set()
        assert await late == 0, "what it had decided is another's by now"
        assert await occurrences(two, "often") == planned
        alarms.close()


async def test_t13_after_a_day_without_a_scheduler_one_occurrence_is_fired_and_all_others_are_accounted_for(any_fleet: Fleet) -> None:
    """T13: nobody fires for a day; then the rule is edited, and the schedule is paused and resumed, and nothing of the past is fired."""
    fleet = any_fleet
    await fleet.app.schedules.put(Schedule("hourly", "quick", Every(timedelta(hours=1))), allow_unknown=True)
    [record] = await fleet.store.schedules(["hourly"])
    assert record is not None
    a_day_ago = record.state.cursor - 24 * 3_600 * SECOND
    aged = replace(record, next_at=a_day_ago, state=replace(record.state, cursor=a_day_ago))
    assert await fleet.store.write_schedules([ScheduleWrite(name="hourly", expected=record.version, record=aged)]) == [True]
    alarms = Alarms()
    async with two_stores(fleet.url) as (one, _):
        assert await Firing(one, alarms).fire_due() == 1, "the latest one"
        assert len(await skipped(one, "hourly")) == 23
        before = await occurrences(one, "hourly")
        await fleet.app.schedules.put(Schedule("hourly", "quick", Every(timedelta(minutes=7))), allow_unknown=True)
        await fleet.app.schedules.pause("hourly")
        await fleet.app.schedules.resume("hourly")
        assert await Firing(one, alarms).fire_due() == 0
        assert await occurrences(one, "hourly") == before
    alarms.close()
