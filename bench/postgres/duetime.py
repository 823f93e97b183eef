"""Duetime with the verbs of `bench.peers`; `work` is what `duetime worker` runs, which also reports its starts.

BENCH_CONCURRENCY is the handler's concurrency; without it Duetime's default.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import uvloop

from bench.peers.lines import BATCH, Starts, lines, read_line, say
from duetime import App
from duetime.targets.spec import DEFAULT_CONCURRENCY

app = App(os.environ["BENCH_URL"])
starts = Starts(sys.argv[2] if sys.argv[1] == "work" else "each")


@app.task(concurrency=int(os.environ.get("BENCH_CONCURRENCY", DEFAULT_CONCURRENCY)))
async def noop(reference: float) -> None:
    starts.note(reference)


async def setup() -> None:
    async with app:
        await app.store.tidy()  # otherwise the first ends in a new database wait for tables to be made


async def submit() -> None:
    tasks = int(sys.argv[2])
    async with app:
        began = time.perf_counter()
        for _ in range(0, tasks, BATCH):
            await app.submit_many([noop.new(reference=time.time()) for _ in range(BATCH)])
        say({"rate": tasks / (time.perf_counter() - began)})


async def due() -> None:
    instants = [datetime.fromtimestamp(instant, UTC) for instant in json.loads(read_line())]
    async with app:
        await app.submit_many([noop.new(reference=instant.timestamp()).at(instant) for instant in instants])


async def ping() -> None:
    async with app:
        say("ready")
        async for _ in lines():
            await noop.now(reference=time.time())


async def work() -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with app:
        say("ready")
        await asyncio.to_thread(read_line)
        reporting = asyncio.create_task(starts.report())
        async with app.worker():
            await stop.wait()
        reporting.cancel()


VERBS: dict[str, Callable[[], Awaitable[None]]] = {"setup": setup, "submit": submit, "due": due, "ping": ping, "work": work}


async def main() -> None:
    await VERBS[sys.argv[1]]()


if __name__ == "__main__":
    uvloop.run(main())
