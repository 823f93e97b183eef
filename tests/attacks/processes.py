"""A server in a process of its own, whose memory can be looked at."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.servers.waiting import PATIENCE

SERVE = """
import asyncio, sys
from duetime import App
from duetime.api.server import Server, loop_factory
with asyncio.Runner(loop_factory=loop_factory()) as runner:
    runner.run(Server(App(sys.argv[1]), port=0).run_until_stopped(lambda server: print(server.url, flush=True)))
"""


@asynccontextmanager
async def server_process(url: str) -> AsyncIterator[tuple[int, str]]:
    """Start a server; yield its process id and its address."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", SERVE, url, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE):
            address = (await process.stdout.readline()).decode().strip()
        yield process.pid, address
    finally:
        process.terminate()
        async with asyncio.timeout(PATIENCE):
            await process.wait()


def peak_memory_of(process: int) -> int:
    """Return the most bytes of memory that a process has had."""
    with open(f"/proc/{process}/status") as status:
        [line] = [line for line in status if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1_024
