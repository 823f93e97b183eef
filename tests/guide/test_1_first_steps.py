"""Chapter 1: declare a handler, submit tasks to it, wait for results, change your mind."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from duetime import App, Context, State, TaskCancelled
from tests.guide.waiting import until
from tests.servers.waiting import PATIENCE


async def test_a_function_becomes_a_handler_and_its_calls_become_tasks(app: App) -> None:
    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    async with app.worker():
        task = await add.now(a=2, b=3)
        assert await app.result(task, timeout=PATIENCE) == 5
        assert (await app.get(task)).state is State.SUCCEEDED

    assert await add(2, 3) == 5  # still the function that it was


@pytest.mark.covers("ATF.5", "CEL.11")
async def test_a_task_can_be_looked_at_until_its_result_is_there(app: App) -> None:
    going_on = asyncio.Event()

    @app.task
    async def report(ctx: Context, month: int) -> dict[str, int]:
        ctx.progress(0.5, "half of the rows")
        await going_on.wait()
        return {"month": month, "rows": 1000}

    task = await report.after(0.05, month=7)
    assert (await app.get(task)).state is State.PENDING
    async with app.worker():
        info = await until(app, task, lambda task: task.progress is not None, "its first progress")
        assert (info.state, info.progress, info.progress_text, info.attempt) == (State.RUNNING, 0.5, "half of the rows", 1)
        going_on.set()
        assert await app.result(task, timeout=PATIENCE) == {"month": 7, "rows": 1000}


@pytest.mark.covers("RMQ.6", "YZ.1")
async def test_each_task_runs_when_it_is_due_and_none_waits_behind_another(app: App) -> None:
    started: dict[str, datetime] = {}

    @app.task
    async def remind(text: str) -> None:
        started[text] = datetime.now(UTC)

    async with app.worker():
        last = await remind.options(timeout=60).after(0.5, text="third")
        first = await remind.after(timedelta(milliseconds=100), text="first")
        second = await remind.at(datetime.now(UTC) + timedelta(milliseconds=200), text="second")
        assert (last.handler, last.timeout, last.payload) == ("remind", 60, {"text": "third"})
        assert len({last.id, first.id, second.id}) == 3
        for task in (last, first, second):
            await app.result(task, timeout=PATIENCE)
    assert [task.due_at - task.submitted_at for task in (first, last)] == [timedelta(seconds=0.1), timedelta(seconds=0.5)]
    by_due_time = sorted((last, first, second), key=lambda task: task.due_at)  # submitting may take its time between them
    assert list(started) == [task.payload["text"] for task in by_due_time]
    assert all(started[task.payload["text"]] >= task.due_at for task in by_due_time)


async def test_an_unpaid_order_expires_and_a_paid_one_does_not(app: App) -> None:
    expired = []

    @app.task
    async def expire_order(order_id: int) -> None:
        expired.append(order_id)

    unpaid = await expire_order.options(key="order-1").after(0.2, order_id=1)
    paid = await expire_order.options(key="order-2").after(0.2, order_id=2)
    assert await app.cancel(handler="expire_order", key="order-2") == "cancelled"
    async with app.worker():
        await app.result(unpaid, timeout=PATIENCE)
        with pytest.raises(TaskCancelled):
            await app.result(paid)
    assert expired == [1]


async def test_a_key_names_the_one_live_task_of_its_kind(app: App) -> None:
    @app.task
    async def remind(user: str, text: str) -> str:
        return text

    reminder = remind.options(key="user-7", if_exists="replace")
    first = await reminder.after(3600, user="7", text="in an hour")
    second = await reminder.after(0.05, user="7", text="now")
    assert first.id == second.id
    async with app.worker():
        assert await app.result(second, timeout=PATIENCE) == "now"


@pytest.mark.covers("DBS.7", "DYN.1")
async def test_many_tasks_are_submitted_listed_rescheduled_and_cancelled(app: App) -> None:
    ran = []

    @app.task
    async def push(device: int) -> None:
        ran.append(device)

    far = timedelta(days=1)
    tasks = await app.submit_many([push.options(priority=device % 10).new(device=device).after(far) for device in range(100)])
    assert len([task async for task in app.tasks(handler=push, state="pending")]) == 100
    await app.reschedule(tasks[3], due_at=datetime.now(UTC))
    async with app.worker():
        await app.result(tasks[3], timeout=PATIENCE)
    cancelled = await app.cancel_many(handler="push", state="pending")
    assert (ran, cancelled.answers) == ([3], {"cancelled": 99})


async def test_a_handler_can_be_used_by_name_from_another_program(app: App) -> None:
    @app.task
    async def double(number: int) -> int:
        return number * 2

    async with app.worker():
        web = App(app.config.url)  # it has not imported the handler
        async with web:
            task = await web.handler("double").now(number=21)
            assert await web.result(task, timeout=PATIENCE) == 42
