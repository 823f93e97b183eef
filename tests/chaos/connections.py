"""Many connections to one server: most of them say nothing, some of them work, and all of them are answered.

`make chaos` opens ten thousand, `make test` five hundred. The server is a process of its own, so that each side needs one descriptor for
a connection.
"""

import asyncio
import resource
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.servers.waiting import PATIENCE

OTHERS = 100  # descriptors of a process that are no connections of these
AT_ONCE = 200  # connections that are being opened or asked at a time
SERVE = """
import asyncio, sys
from duetime import App
from duetime.api import server as serving
from duetime.api.server import Server, loop_factory
serving.IDLE_FOR = 600  # the first ones must outlast the opening of the others, however slow the machine is
app = App(sys.argv[1])
@app.task
async def greet(name: str) -> str: ...
with asyncio.Runner(loop_factory=loop_factory()) as runner:
    runner.run(Server(app, port=0).run_until_stopped(lambda server: print(server.url, flush=True)))
"""
READY = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
BODY = b'{"handler": "greet", "payload": {"name": "Ada"}, "delay": 86400}'
SUBMIT = b"POST /v1/tasks HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY


@dataclass
class Crowd:
    """What came of it."""

    wanted: int
    opened: int = 0
    limit: int = 0
    before: int = 0  # bytes of memory of the server without connections
    during: int = 0  # and with all of them
    submitted: int = 0
    waits: list[float] = field(default_factory=list)  # of the submits of those that worked, in seconds
    answered: int = 0  # of the others, in the end

    @property
    def each(self) -> float:
        """Kilobytes of the server's memory for one connection."""
        return (self.during - self.before) / self.opened / 1_000

    def lines(self) -> list[tuple[str, str]]:
        fewer = "" if self.opened >= self.wanted else f" instead of {self.wanted:,}: the hard limit of files is {self.limit:,}"
        ordered = sorted(self.waits)
        return [
            ("connections", f"{self.opened:,}{fewer}; {self.answered:,} of them answered in the end"),
            ("memory of a connection", f"{self.each:.1f} kB in the server"),
            (
                "submits meanwhile",
                f"{self.submitted:,}; p50 {statistics.median(ordered) * 1e3:.1f} ms, p99 {ordered[int(len(ordered) * 0.99)] * 1e3:.1f} ms",
            ),
        ]


def allowed_connections(wanted: int) -> tuple[int, int]:
    """Raise the soft limit of files as far as needed and allowed; give how many connections there is room for, and the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted + OTHERS if hard == resource.RLIM_INFINITY else min(wanted + OTHERS, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return min(wanted, most - OTHERS), hard


def memory_of(process: int) -> int:
    """Give the bytes of memory that a process has now."""
    [line] = (line for line in Path(f"/proc/{process}/status").read_text().splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1_024


class Connection:
    """A connection that is kept."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def opened(cls, host: str, port: int) -> "Connection":
        return cls(*await asyncio.open_connection(host, port, limit=8_192))

    async def ask(self, request: bytes) -> int:
        """Send a request and give the status of the answer."""
        self._writer.write(request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        await self._reader.readexactly(int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]))
        return int(head.split(b" ", 2)[1])

    def close(self) -> None:
        self._writer.transport.abort()


@asynccontextmanager
async def a_server(url: str) -> AsyncIterator[tuple[int, str, int]]:
    """A server's process, with the limit of files of this one."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", SERVE, url, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE):
            address = (await process.stdout.readline()).decode().strip()
        host, _, port = address.removeprefix("http://").partition(":")
        yield process.pid, host, int(port)
    finally:
        process.terminate()
        async with asyncio.timeout(PATIENCE):
            await process.wait()


async def crowd(folder: Path, idle_ones: int, active: int, seconds: float) -> Crowd:
    """Open connections that each ask once and then say nothing; let some others submit all the while; then ask all of them again."""
    number, hard = allowed_connections(idle_ones + active)
    seen = Crowd(idle_ones + active, limit=hard)
    gate = asyncio.Semaphore(AT_ONCE)
    async with a_server(f"sqlite:///{folder}/crowd.db?synchronous=normal") as (process, host, port), AsyncExitStack() as stack:
        seen.before = memory_of(process)

        async def join() -> Connection:
            async with gate, asyncio.timeout(PATIENCE):
                connection = await Connection.opened(host, port)
                stack.callback(connection.close)
                assert await connection.ask(READY) == 200
                seen.opened += 1
                return connection

        async def ask_again(connection: Connection) -> None:
            async with gate, asyncio.timeout(PATIENCE):
                assert await connection.ask(READY) == 200
                seen.answered += 1

        async def work(connection: Connection, until: float) -> None:
            while (began := time.perf_counter()) < until:
                async with asyncio.timeout(PATIENCE):
                    assert await connection.ask(SUBMIT) == 201
                seen.waits.append(time.perf_counter() - began)
                seen.submitted += 1

        idle = await asyncio.gather(*(join() for _ in range(number - active)))
        busy = await asyncio.gather(*(join() for _ in range(active)))
        seen.during = memory_of(process)
        until = time.perf_counter() + seconds
        await asyncio.gather(*(work(connection, until) for connection in busy))
        await asyncio.gather(*(ask_again(connection) for connection in [*idle, *busy]))
    return seen
