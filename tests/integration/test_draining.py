"""A worker that an operator drains: it finishes what runs, gives back what waits, starts nothing, and goes on when that is undone."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from duetime import App, State, Task, WorkerNotFound
from duetime.worker.worker import Worker
from tests.chaos.fleet import until
from tests.servers.waiting import PATIENCE

LEASE = 2.0  # renewed five times in it


@pytest.fixture(params=["sqlite", "postgres"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> App:
    url = f"sqlite:///{tmp_path}/duetime.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    return App(url)


async def ended(app: App, task: Task[Any]) -> Task[Any]:
    await app.result(task, timeout=PATIENCE)
    return await app.get(task)


async def told(worker: Worker, draining: bool) -> None:
    await until("the worker is told", lambda: worker.draining is draining)


async def test_a_drained_worker_finishes_what_runs_starts_nothing_and_goes_on_when_it_is_undone(app: App) -> None:
    go_on = asyncio.Event()
    started: list[int] = []

    @app.task(concurrency=2)
    async def job(number: int) -> None:
        started.append(number)
        await go_on.wait()

    async with app, app.worker(lease=LEASE) as worker:
        first = await job.now(number=1)
        await until("it runs", lambda: started == [1])
        assert (await app.drain_worker(worker.id)).draining
        await told(worker, True)
        second = await job.now(number=2)
        [reason] = await app.why(second)
        assert "drains" in reason.text
        go_on.set()
        assert (await ended(app, first)).state is State.SUCCEEDED
        assert (await app.get(second)).state is State.PENDING
        [info] = await app.workers()
        assert (info.id, info.draining, info.running) == (worker.id, True, 0)
        assert not (await app.drain_worker(worker.id, undo=True)).draining
        assert (await ended(app, second)).state is State.SUCCEEDED
        assert started == [1, 2]


async def test_what_waits_in_a_drained_worker_goes_to_others_and_uses_up_no_try(app: App) -> None:
    go_on, running = asyncio.Event(), asyncio.Event()

    @app.task(concurrency=1)
    async def job(wait: bool) -> None:
        running.set()
        if wait:
            await go_on.wait()

    async with app, app.worker(lease=LEASE) as worker:
        held = await job.now(wait=True)
        await running.wait()
        rest = await app.submit_many([job.new(wait=False) for _ in range(5)])
        await app.drain_worker(worker.id)
        await told(worker, True)
        async with app.worker(lease=LEASE):
            for task in rest:
                assert (await ended(app, task)).tries == 0
        assert (await app.get(held)).state is State.RUNNING
        go_on.set()
        assert (await ended(app, held)).tries == 0


async def test_a_drained_worker_that_was_taken_for_dead_registers_again_as_draining(app: App) -> None:
    @app.task
    async def job() -> None: ...

    async with app, app.worker(lease=LEASE) as worker:
        await app.drain_worker(worker.id)
        await told(worker, True)
        await app.store.unregister(worker.id)  # as a reaper would

        async def back() -> bool:
            return [info.draining for info in await app.workers()] == [True]

        await until("it is registered again", back)
        task = await job.now()
        assert (await app.get(task)).state is State.PENDING
        await app.drain_worker(worker.id, undo=True)
        assert (await ended(app, task)).state is State.SUCCEEDED


async def test_a_worker_is_shown_with_its_versions_and_what_it_runs(app: App) -> None:
    go_on, running = asyncio.Event(), asyncio.Event()

    @app.task
    async def job() -> None:
        running.set()
        await go_on.wait()

    async with app, app.worker() as worker:
        task = await job.now()
        await running.wait()
        found = await app.get_worker(worker.id)
        assert [(each.id, each.handler, each.attempt) for each in found.tasks] == [(task.id, "job", 1)]
        assert found.worker.version
        assert found.worker.python is not None
        assert found.worker.python.startswith("3.")
        go_on.set()
        with pytest.raises(WorkerNotFound, match="duetime workers"):
            await app.get_worker("nobody")
        with pytest.raises(WorkerNotFound):
            await app.drain_worker("nobody")
