"""Handlers, schedules and workers as the objects that other schedulers call job, trigger and executor."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest

from duetime import App, Every, Fatal, Handlers, Schedule, TaskFailed, UnknownHandler, Wheel
from tests.guide.waiting import until
from tests.servers.waiting import PATIENCE


@pytest.mark.covers("REQ.7")
async def test_a_job_tells_what_runs_how_it_went_last_where_and_what_comes_next(app: App) -> None:
    shop = Handlers(prefix="shop.")
    app.include(shop)
    held = asyncio.Event()

    @shop.task
    async def charge(order_id: int) -> None:
        if order_id == 1:
            raise Fatal("no such order")
        await held.wait()

    @shop.schedule(every=3600, name="hourly")
    async def sweep() -> None: ...

    async with app.worker() as worker:
        failed = await charge.now(order_id=1)
        with pytest.raises(TaskFailed):
            await app.result(failed)
        running = await until(app, await charge.now(order_id=2), lambda task: task.state == "running", "it runs")
        later = [await charge.after(timedelta(hours=hours), order_id=3) for hours in (2, 1)]
        job = (await app.handler("shop.charge").info()).activity
        assert (job.running, job.last_started_at, job.next_due_at) == (1, running.started_at, later[1].due_at)
        ended = await app.get(failed)
        assert (job.last_ended_at, job.last_outcome, job.last_worker, job.last_task) == (ended.finished_at, "fatal", worker.id, failed.id)
        assert [task.id for task in await charge.upcoming()] == [later[1].id, later[0].id]
        [executor] = await app.workers()
        assert (executor.id, executor.running) == (worker.id, 1)
        assert executor.beat_at is not None
        run = await app.schedules.trigger("shop.hourly")
        await app.result(run)
        trigger = await app.schedules.get("shop.hourly")
        while trigger.last is None:
            await asyncio.sleep(0.02)
            trigger = await app.schedules.get("shop.hourly")
        assert (trigger.running, trigger.last.task, trigger.last.worker) == ([], run.id, worker.id)
        assert trigger.next_at is not None
        held.set()
        await app.result(running)
    with pytest.raises(UnknownHandler):
        await app.handler("nobody").info()


@pytest.mark.covers("REQ.1", "DBS.1")
async def test_work_runs_now_or_at_a_time_once_or_again_and_again_and_all_of_it_is_listed_with_its_state(app: App) -> None:
    @app.schedule(every=1, name="declared")
    async def sweep(shop: int = 1) -> int:
        return shop

    async with app.worker():
        await app.schedules.put(Schedule("at run time", sweep, Every(1), payload={"shop": 2}))
        now = await sweep.now(shop=3)
        later = await sweep.at(datetime.now(UTC) + timedelta(hours=1), shop=4)
        assert await app.result(now) == 3
        deadline = time.monotonic() + PATIENCE
        while {each.schedule for each in [each async for each in app.tasks(state="succeeded")]} != {None, "declared", "at run time"}:
            assert time.monotonic() < deadline, "both schedules have made tasks that ran"
            await asyncio.sleep(0.05)
        states = {each.id: each.state for each in [each async for each in app.tasks()]}
        assert (states[now.id], states[later.id]) == ("succeeded", "pending")
        assert {each.name: each.health for each in await app.schedules.list()} == {"declared": "ok", "at run time": "ok"}


@pytest.mark.covers("WHL.1", "WHL.2")
def test_a_wheel_holds_timers_cancels_them_and_crosses_empty_ticks() -> None:
    wheel: Wheel[str] = Wheel(0)
    timers = {
        name: wheel.insert(deadline, name) for name, deadline in {"near": 7, "far": 10_000_000, "gone": 5_000, "distant": 2**50}.items()
    }
    assert wheel.remove(timers["gone"])
    assert not wheel.remove(timers["gone"])
    assert (len(wheel), wheel.next_deadline()) == (3, 7)
    assert wheel.advance(6) == []
    assert wheel.advance(9_999_999) == ["near"]
    assert wheel.advance(2**50) == ["far", "distant"]
    assert (len(wheel), wheel.next_deadline()) == (0, None)
