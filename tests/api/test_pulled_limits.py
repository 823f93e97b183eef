"""Pull workers and workers of Duetime under the same limits."""

from __future__ import annotations

import asyncio
from typing import Any

from duetime import App, Limit
from tests.api.conftest import served
from tests.api.pulling import PullWorker, register
from tests.servers.waiting import PATIENCE

ERP = Limit("erp", running=3)


def program(app: App) -> None:
    @app.task(limits=[ERP], name="sync")
    async def sync() -> None: ...

    @app.task(limits=[ERP], name="resize")
    async def resize() -> None: ...


async def declared(app: App) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await app.limits.list():  # noqa: ASYNC110  # a worker says it when it first asks for permits
            await asyncio.sleep(0.01)


async def test_pull_workers_never_run_more_than_a_limit_allows(app: App) -> None:
    program(app)
    async with app.worker():
        await declared(app)
    async with served(app) as http:
        await app.submit_many([app.handler("resize").new() for _ in range(8)])
        pullers = [await register(http, handlers={"resize": {"slots": 5}}) for _ in range(20)]
        claims = await asyncio.gather(*(puller.claim(limit=2) for puller in pullers))
        assert sum(map(len, claims)) == 3
        [pending, *_] = [task async for task in app.tasks(state="pending")]
        assert "the limit erp is reached: 3 of 3 are taken in the whole fleet" in (await app.why(pending))[0].text
        [first, *others] = [(puller, items) for puller, items in zip(pullers, claims, strict=True) if items]
        await http("DELETE", f"/v1/workers/{first[0].id}", status=204)  # what it ran goes back, and with it what that took
        fresh = await register(http, handlers={"resize": {"slots": 5}})
        assert len(await fresh.claim(limit=5)) == len(first[1])
        for puller, items in others:
            for item in items:
                await puller.complete(item, outcome="failed")
        assert len(await fresh.claim(limit=5)) == 3 - len(first[1])


async def test_pull_workers_share_a_limit_with_workers(app: App) -> None:
    program(app)
    async with app.worker(handlers=["sync", "resize"]):
        await declared(app)
    async with served(app) as http, app.worker(handlers=["sync"]):
        done = await app.submit_many([app.handler("sync").new() for _ in range(3)])
        for task in done:
            await app.result(task, timeout=PATIENCE)  # the worker keeps the permits for what comes, as long as nobody lacks them
        await app.submit_many([app.handler("resize").new() for _ in range(6)])
        pullers = [await register(http, handlers={"resize": {"slots": 5}}) for _ in range(3)]
        running: list[tuple[PullWorker, Any]] = []
        async with asyncio.timeout(PATIENCE):
            while len(running) < 2:
                for puller in pullers:
                    running += [(puller, item) for item in await puller.claim(limit=5, wait=0.5)]
        limit = await app.limits.get("erp")
        assert limit.out <= 3
        assert limit.accepted == len(running) <= 3
        waiting = await app.handler("sync").now()
        for puller, item in running:
            assert await puller.complete(item, outcome="succeeded") == ("accepted", "succeeded")
        await app.result(waiting, timeout=PATIENCE)
