"""A stage for `why`: an App with handlers that run until the test lets them end, and workers that come and go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

from duetime import App, Context, Fatal, Limit, RetryLater, RetryPolicy, Task
from duetime.model.task import FINAL
from duetime.worker.worker import Worker
from tests.integration import dying
from tests.servers.waiting import PATIENCE

HOUR = 3_600
WHOLE, SHARED = 2, 3  # slots of `job` and of `other`


class Scene:
    """Handlers by what they do: `job` and `other` run until the end of the test, the others are named after their ends."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.app = app = App(url, user="anna")
        self.stack = AsyncExitStack()
        self.end = asyncio.Event()
        self.told_to_stop = asyncio.Event()
        self.started = asyncio.Semaphore(0)

        @app.task(concurrency=WHOLE)
        async def job() -> None:
            await self._run()

        @app.task(concurrency=SHARED)
        async def other() -> None:
            await self._run()

        @app.task(limits=[Limit("erp", running=1)])
        async def limited() -> None:
            await self._run()

        @app.task
        async def stubborn() -> None:
            try:
                await self._run()
            except asyncio.CancelledError:
                self.told_to_stop.set()
                await self.end.wait()
                raise

        @app.task(retry=RetryPolicy(tries=3, base=HOUR, jitter=0))
        async def unlucky() -> None:
            raise ValueError("no stock")

        @app.task
        async def asks_for_later() -> None:
            raise RetryLater(HOUR)

        @app.task
        async def hopeless() -> None:
            raise Fatal("van broken")

        @app.task
        async def quick() -> None: ...

        @app.task
        async def changed(number: int) -> None: ...

        @app.task
        async def patient(ctx: Context) -> bool:
            return await ctx.wait("approval", "nobody-says-it", bool)

        app.task(name="die", isolation="process")(dying.die)

    async def _run(self) -> None:
        self.started.release()
        await self.end.wait()

    async def __aenter__(self) -> Scene:
        await self.stack.enter_async_context(self.app)
        return self

    async def __aexit__(self, *error: object) -> None:
        self.end.set()
        await self.stack.aclose()

    async def hire(self, *handlers: str, concurrency: int | None = None) -> Worker:
        """Start a worker of these handlers, or of all."""
        path = f"{dying.__name__}:app"
        return await self.stack.enter_async_context(self.app.worker(handlers=handlers or None, concurrency=concurrency, path=path))

    async def submit(self, handler: str, **options: Any) -> Task[Any]:
        return await self.app.handler(handler).options(**options).now()

    async def run(self, handler: str, number: int = 1) -> list[Task[Any]]:
        """Submit tasks and return when all of them run."""
        tasks = [await self.submit(handler) for _ in range(number)]
        async with asyncio.timeout(PATIENCE):
            for _ in range(number):
                await self.started.acquire()
        return tasks

    async def until(self, task: Task[Any], holds: Callable[[Task[Any]], bool]) -> Task[Any]:
        """Return a task as soon as it is as described: the worker stores it after the attempt."""
        async with asyncio.timeout(PATIENCE):
            while not holds(found := await self.app.get(task)):  # noqa: ASYNC110  nothing tells of tasks that are not final
                await asyncio.sleep(0.005)
        return found

    async def finished(self, handler: str, **options: Any) -> Task[Any]:
        return await self.until(await self.submit(handler, **options), lambda task: task.state in FINAL)
