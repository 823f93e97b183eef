"""A handler that waits for a task which may need its own slot is warned about: nothing else tells why both stand still."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from duetime import App, Task
from tests.servers.waiting import PATIENCE

A_LOOK = 0.001  # seconds to wait for a task: it is looked at once


@pytest.fixture(params=["sqlite", "postgres"])
async def app(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[App]:
    url = f"sqlite:///{tmp_path}/duetime.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    async with App(url) as app:
        yield app


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    return lambda: [record.getMessage() for record in caplog.records if record.name == "duetime.client"]


async def test_waiting_for_a_task_of_the_same_handler_in_its_only_slot_is_warned_about_once(
    app: App, warnings: Callable[[], list[str]]
) -> None:
    looked = asyncio.Semaphore(0)

    @app.task(concurrency=1)
    async def walk(depth: int) -> int:
        if depth == 0:
            return 0
        child: Task[int] = await walk.now(depth=depth - 1)
        with pytest.raises(TimeoutError):
            await app.result(child, timeout=A_LOOK)
        looked.release()
        return 1 + await app.result(child)

    async with app.worker(), asyncio.timeout(PATIENCE):
        first = await walk.now(depth=1)
        await looked.acquire()
        [text] = warnings()
        assert text.startswith(f"walk waits inside its attempt (task {first.id}) for task ")
        assert "all slots of walk are taken: 1 run in 1 slot" in text
        await app.cancel(first)
        second = await walk.now(depth=1)
        await looked.acquire()
        await app.cancel(second)
    assert len(warnings()) == 1


async def test_waiting_for_another_handler_in_the_only_slot_of_the_worker_is_warned_about(
    app: App, warnings: Callable[[], list[str]]
) -> None:
    looked, loop = asyncio.Event(), asyncio.get_running_loop()

    @app.task
    async def part() -> int:
        return 1

    @app.task
    def whole() -> int:
        child = app.sync(part.now())
        with pytest.raises(TimeoutError):
            app.sync(app.result(child, timeout=A_LOOK))
        loop.call_soon_threadsafe(looked.set)
        return app.sync(app.result(child))

    async with app.worker(concurrency=1), asyncio.timeout(PATIENCE):
        task = await whole.now()
        await looked.wait()
        [text] = warnings()
        assert text.startswith(f"whole waits inside its attempt (task {task.id}) for task ")
        assert "all slots over all handlers are taken: 1 run in 1 slot (1 of whole)" in text
        assert "duetime worker --handler part" in text
        async with app.worker(handlers=["part"]):  # as the warning says
            assert await app.result(task) == 1


async def test_waiting_where_other_attempts_will_free_a_slot_is_not_warned_about(app: App, warnings: Callable[[], list[str]]) -> None:
    busy, looked, end = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @app.task(concurrency=1)
    async def part(hold: bool) -> int:
        if hold:
            busy.set()
            await end.wait()
        return 1

    @app.task(concurrency=1)
    async def whole() -> int:
        child: Task[int] = await part.now(hold=False)
        with pytest.raises(TimeoutError):
            await app.result(child, timeout=A_LOOK)
        looked.set()
        return await app.result(child)

    async with app.worker(), asyncio.timeout(PATIENCE):
        await part.now(hold=True)
        await busy.wait()
        task = await whole.now()
        await looked.wait()
        end.set()
        assert await app.result(task) == 1
    assert warnings() == []
