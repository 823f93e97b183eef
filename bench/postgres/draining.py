"""Draining no-op tasks: from the first start until every completion is stored."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from bench.postgres.contestant import Contestant, Started
from bench.postgres.server import Server

LOOK_EVERY = 0.005
CLOCKS = 0.1  # seconds by which two processes may disagree about the time


def drain(server: Server, contestant: Contestant, database: str, tasks: int, *, processes: int, left: int) -> float:
    """Run worker processes on a database with tasks until only `left` are left; return the tasks completed a second.

    The processes are ready before the first one begins, so that starting them is not measured.
    """
    return asyncio.run(_drain(server, contestant, database, tasks, processes, left))


async def _drain(server: Server, contestant: Contestant, database: str, tasks: int, processes: int, left: int) -> float:
    with server.connect(database) as watcher:

        def value(query: str, *arguments: int) -> int:
            row = watcher.execute(query.encode(), arguments).fetchone()
            assert row is not None
            return int(row[0])

        async with contestant.started(server.url(database), "work", "count", number=processes) as workers:
            began = time.time()
            for worker in workers:
                worker.go()
            first = await _all_started(workers, tasks)
            while value(contestant.left) > left:  # noqa: ASYNC110  # only the database knows
                await asyncio.sleep(LOOK_EVERY)
            elapsed = time.time() - first
        if contestant.kept is not None and (kept := value(contestant.kept, int((began - CLOCKS) * 1e6))) != tasks:
            raise RuntimeError(f"{contestant.name} keeps {kept:,} of {tasks:,} finished tasks")
    return tasks / elapsed


async def _all_started(workers: Sequence[Started], tasks: int) -> float:
    """Wait until so many tasks have started in all; return the instant of the first start."""
    counts = [0] * len(workers)
    firsts: list[float] = []
    done = asyncio.Event()

    async def follow(number: int, worker: Started) -> None:
        while True:
            counts[number], first = await worker.read()
            firsts.append(first)
            if sum(counts) >= tasks:
                done.set()

    followers = [asyncio.create_task(follow(number, worker)) for number, worker in enumerate(workers)]
    waiting = asyncio.create_task(done.wait())
    try:
        await asyncio.wait([waiting, *followers], return_when=asyncio.FIRST_COMPLETED)
        for follower in followers:
            if follower.done():
                follower.result()  # it only ends by a failure
    finally:
        for task in (waiting, *followers):
            task.cancel()
        await asyncio.gather(waiting, *followers, return_exceptions=True)
    if sum(counts) > tasks:
        raise RuntimeError(f"{sum(counts):,} starts of {tasks:,} tasks: some ran twice")
    return min(firsts)
