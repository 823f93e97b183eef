"""PgQueuer on asyncpg and uvloop. It keeps a row in its log for every change of a job's state."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from bench.peers.lines import BATCH, Starts, lines, read_line, say

BATCH_SIZE = 500  # the fastest of 100, 200, 500, 1,000 and 2,000 in one run of each, by less than the runs of one size differ
Verb = Callable[[AsyncpgDriver, Queries], Awaitable[None]]


async def setup(driver: AsyncpgDriver, queries: Queries) -> None:
    await queries.install()


async def submit(driver: AsyncpgDriver, queries: Queries) -> None:
    tasks = int(sys.argv[2])
    began = time.perf_counter()
    for _ in range(0, tasks, BATCH):
        await queries.enqueue(["noop"] * BATCH, [repr(time.time()).encode() for _ in range(BATCH)], [0] * BATCH)
    say({"rate": tasks / (time.perf_counter() - began)})


async def due(driver: AsyncpgDriver, queries: Queries) -> None:
    instants: list[float] = json.loads(read_line())
    now = time.time()
    delays: list[timedelta | None] = [timedelta(seconds=instant - now) for instant in instants]
    payloads: list[bytes | None] = [repr(instant).encode() for instant in instants]
    await queries.enqueue(["noop"] * len(instants), payloads, [0] * len(instants), delays)


async def ping(driver: AsyncpgDriver, queries: Queries) -> None:
    say("ready")
    async for _ in lines():
        await queries.enqueue("noop", repr(time.time()).encode())


async def work(driver: AsyncpgDriver, queries: Queries) -> None:
    worker = PgQueuer(driver)
    starts = Starts(sys.argv[2])

    @worker.entrypoint("noop")  # type: ignore[untyped-decorator]
    async def noop(job: Job) -> None:
        starts.note(float(job.payload or b"0"))

    say("ready")
    await asyncio.to_thread(read_line)
    reporting = asyncio.create_task(starts.report())
    await worker.run(batch_size=BATCH_SIZE)
    reporting.cancel()


async def main(verb: Verb) -> None:
    connection = await asyncpg.connect(os.environ["BENCH_URL"])
    driver = AsyncpgDriver(connection)
    await verb(driver, Queries(driver))
    await connection.close()


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    verbs: dict[str, Verb] = {"setup": setup, "submit": submit, "due": due, "ping": ping, "work": work}
    uvloop.run(main(verbs[sys.argv[1]]))
