"""Running occurrences of the past: which ones, how many at once, and what about those that have run already."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from duetime import AfterEnd, App, Context, Every, InvalidValue, Occurrence, RetryPolicy, Schedule, State
from duetime.clock import ManualClock, to_instant
from duetime.store.open import store_from_url
from tests.integration.test_app_schedules import fire
from tests.servers.waiting import PATIENCE

NOON = datetime(2030, 1, 7, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(to_instant(NOON))


@pytest.fixture
async def app(store_url: str, clock: ManualClock) -> AsyncIterator[App]:
    app = App(store_url, user="anna@shop")

    @app.task
    async def count(day: int = 0) -> None: ...

    async with app.using_store(store_from_url(store_url, clock=clock)):
        await app.schedules.put(Schedule("hourly", "count", Every(hours=1), payload={"day": 7}, missed="skip", collection="eu"))
        yield app


async def state_of(app: App, tasks: list[str]) -> list[State]:
    return [(await app.get(task)).state for task in tasks]


async def test_the_occurrences_of_a_range_become_tasks_that_carry_their_planned_instants(app: App) -> None:
    done = await app.schedules.backfill("hourly", NOON - 3 * HOUR, NOON)
    assert (done.occurrences, done.existing, done.ahead, len(done.tasks)) == (4, 0, 0, 4)
    assert done.planned == [NOON - 3 * HOUR, NOON - 2 * HOUR, NOON - HOUR, NOON]
    task = await app.get(done.tasks[0])
    assert (task.planned_at, task.due_at, task.schedule) == (NOON - 3 * HOUR, NOON, "hourly")
    assert (task.payload, task.collection, task.submitted_by) == ({"day": 7}, "eu", "anna@shop")
    assert task.meta["duetime.kind"] == "backfill"
    info = await app.schedules.get("hourly")
    assert (info.fired, info.next_at, info.running) == (0, NOON + HOUR, [])


async def test_a_dry_run_tells_and_does_nothing(app: App) -> None:
    told = await app.schedules.backfill("hourly", NOON - 3 * HOUR, NOON, dry_run=True)
    assert (len(told.planned), told.dry_run) == (4, True)
    assert [task async for task in app.tasks(handler="count")] == []
    done = await app.schedules.backfill("hourly", NOON - 3 * HOUR, NOON)
    assert done.tasks == told.tasks


@pytest.mark.each_store
@pytest.mark.covers("AIR.3")
@pytest.mark.parametrize("concurrency", [1, 2, 10])
async def test_each_task_waits_for_the_end_of_the_one_that_many_before(app: App, concurrency: int) -> None:
    done = await app.schedules.backfill("hourly", NOON - 5 * HOUR, NOON, concurrency=concurrency)
    free = min(concurrency, 6)
    assert await state_of(app, done.tasks) == [State.PENDING] * free + [State.BLOCKED] * (6 - free)
    await app.cancel(done.tasks[0])
    if free < 6:
        assert (await app.get(done.tasks[free])).state is State.PENDING


@pytest.mark.each_store
@pytest.mark.covers("AIR.3")
async def test_what_has_a_task_is_skipped_or_run_again_as_asked(app: App, clock: ManualClock) -> None:
    clock.advance(HOUR)
    assert await fire(app) == 1  # 13:00, by the rule
    clock.advance(10)
    one = NOON + HOUR
    assert (await app.schedules.backfill("hourly", one, one)).tasks == []
    assert (await app.schedules.backfill("hourly", one, one, existing="all")).tasks == [], "it has not ended"
    [task] = [task async for task in app.tasks(handler="count")]
    await app.cancel(task)
    assert (await app.schedules.backfill("hourly", one, one)).existing == 1
    [again] = (await app.schedules.backfill("hourly", one, one, existing="failed")).tasks
    assert again != task.id
    assert (await app.schedules.backfill("hourly", one, one, existing="failed")).existing == 1, "the second one has not ended"
    await app.cancel(again)
    [third] = (await app.schedules.backfill("hourly", one, one, existing="all")).tasks
    assert len({task.id, again, third}) == 3


async def test_occurrences_that_the_schedule_has_still_to_account_for_are_left_to_it(app: App, clock: ManualClock) -> None:
    await app.schedules.pause("hourly")
    clock.advance(3 * HOUR)
    done = await app.schedules.backfill("hourly", NOON - HOUR, NOON + 3 * HOUR)
    assert (done.occurrences, done.ahead, done.planned) == (5, 3, [NOON - HOUR, NOON])


async def test_a_backfill_is_bounded_and_checked(app: App) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"start": NOON, "end": NOON - HOUR}, "end must not lie before start"),
        ({"existing": "some"}, "existing must be one of skip, failed, all"),
        ({"concurrency": 0}, "concurrency must be 1 to 1,000"),
        ({"start": NOON - 10_001 * HOUR}, "more than 10,000 occurrences in this range; backfill it in parts"),
        ({"start": datetime(2030, 1, 1)}, "start must carry a time zone"),
    ]
    for change, message in cases:
        with pytest.raises(InvalidValue, match=message):
            await app.schedules.backfill("hourly", **{"start": NOON - HOUR, "end": NOON, **change})
    await app.schedules.put(Schedule("after", "count", AfterEnd(60)))
    with pytest.raises(InvalidValue, match="use trigger"):
        await app.schedules.backfill("after", NOON - HOUR, NOON)


async def test_ten_thousand_are_stored_in_order(app: App) -> None:
    done = await app.schedules.backfill("hourly", NOON - 9_999 * HOUR, NOON, concurrency=100)
    assert len(set(done.tasks)) == 10_000
    assert (await app.get(done.tasks[-1])).state is State.BLOCKED


async def test_a_worker_runs_them_one_after_the_other(tmp_path: object) -> None:
    app = App(f"sqlite:///{tmp_path}/duetime.db")
    seen: list[tuple[str, datetime]] = []

    @app.task(retry=RetryPolicy(tries=1))
    async def count(ctx: Context) -> None:
        occurrence = ctx.occurrence
        assert isinstance(occurrence, Occurrence)
        seen.append(("begins", occurrence.planned_at))
        await asyncio.sleep(0)
        seen.append(("ends", occurrence.planned_at))
        if occurrence.planned_at.hour % 2:
            raise ValueError("odd hours fail, and the others go on")

    async with app.worker():
        await app.schedules.put(Schedule("hourly", count, Every(hours=1)))
        done = await app.schedules.backfill("hourly", NOON - timedelta(days=2_000, hours=4), NOON - timedelta(days=2_000))
        await app.client.wait(done.tasks[-1], timeout=PATIENCE)
    assert [what for what, _ in seen] == ["begins", "ends"] * 5
    assert [when for what, when in seen if what == "ends"] == done.planned
