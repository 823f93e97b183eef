"""Promise 3: a worker that lost an attempt and claims the same task again does not begin it before the old code has ended."""

import asyncio
from pathlib import Path

import pytest

from duetime import App, Context, RetryPolicy, State
from duetime.model.lifecycle import conclude
from duetime.model.outcome import Ended, Outcome, Running
from tests.chaos.fleet import until
from tests.servers.waiting import PATIENCE


@pytest.fixture
def app(tmp_path: Path) -> App:
    return App(f"sqlite:///{tmp_path / 'duetime.db'}", user="test")


class Stubborn:
    """Code that goes on although it is cancelled, until it is let go."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.starts: list[int] = []
        self.running = self.most = 0

    async def __call__(self, ctx: Context) -> int:
        self.starts.append(ctx.attempt)
        self.running += 1
        self.most = max(self.most, self.running)
        while not self.go.is_set():
            try:
                await self.go.wait()
            except asyncio.CancelledError:
                continue
        self.running -= 1
        return ctx.attempt


async def take_away(app: App, worker: str, task: str) -> None:
    """Take the first attempt of a task from its worker, which is not told; as a store does that was restored from a backup."""
    now = app.store.now()
    ended = conclude(Running(task, "", 1, 0, 0, now, None), Ended(Outcome.RELEASED), RetryPolicy(), started_at=None, now=now, chance=0.0)
    await app.store.settle(worker, [ended])


async def test_promise_3_the_same_worker_waits_for_its_own_old_attempt(app: App) -> None:
    code = Stubborn()

    @app.task(concurrency=4)
    async def stubborn(ctx: Context) -> int:
        return await code(ctx)

    @app.task
    async def bystander() -> None: ...

    async with app.worker() as worker:
        task = await stubborn.now()
        await until("it runs", lambda: code.starts)
        await take_away(app, worker.id, task.id)
        worker.feeder.wake()
        await until("it was claimed again", lambda: worker.executor.attempts()[task.id] == 2)
        await app.result(await bystander.now(), timeout=PATIENCE)
        assert code.starts == [1]
        assert (await app.get(task)).state is State.RUNNING
        code.go.set()
        assert await app.result(task, timeout=PATIENCE) == 2
    assert (code.most, code.starts) == (1, [1, 2])
