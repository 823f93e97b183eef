"""Attack: connections that say nothing, or one byte at a time, or do not read, until the server has no descriptor left."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from duetime import App
from tests.api.conftest import Client, served, until
from tests.attacks.raw import GET, Raw
from tests.servers.waiting import PATIENCE

FILES = 256
SILENT = 400
SERVE = """
import asyncio, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[2]), int(sys.argv[2])))
from duetime import App
from duetime.api.server import Server, loop_factory
factory = loop_factory() if sys.argv[3] == "uvloop" else None
with asyncio.Runner(loop_factory=factory) as runner:
    runner.run(Server(App(sys.argv[1]), port=0).run_until_stopped(lambda server: print(server.url, flush=True)))
"""


async def closed(raw: Raw) -> bool:
    return (await raw.rest()) == b""


async def asked(raw: Raw) -> bytes:
    """Send a request on a connection that is kept; return the status."""
    await raw.send(GET + b"\r\n")
    head = await raw.head()
    await raw.reader.readexactly(int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]))
    return head[9:12]


@asynccontextmanager
async def process_with_few_files(url: str, loop: str, log: Path) -> AsyncIterator[str]:
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", SERVE, url, str(FILES), loop, stdout=asyncio.subprocess.PIPE, stderr=errors
        )
        assert process.stdout is not None
        try:
            async with asyncio.timeout(PATIENCE):
                yield (await process.stdout.readline()).decode().strip()
        finally:
            process.terminate()
            async with asyncio.timeout(PATIENCE):
                await process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
async def test_more_silent_connections_than_files_keep_nobody_out(tmp_path: Path, loop: str) -> None:
    log = tmp_path / "log"
    async with process_with_few_files(f"sqlite:///{tmp_path}/store.db", loop, log) as url:
        worker = await Raw.connect(url)
        silent = []
        for number in range(SILENT):
            silent.append(await Raw.connect(url))
            await silent[-1].send(b"G" if number % 2 else b"")
            if number % 50 == 0:
                assert await asked(worker) == b"200"  # a connection that is used is not closed
        for _ in range(20):
            new = await Raw.connect(url)
            assert await asked(new) == b"200"
            silent.append(new)
        # all at once, as fast as they can be opened
        silent += await asyncio.gather(*(Raw.connect(url) for _ in range(SILENT)))
        silent += [worker, await Raw.connect(url)]
        assert await asked(silent[-1]) == b"200"
        for each in silent:
            each.close()
    assert log.read_text() == ""


async def test_the_connection_that_was_silent_for_longest_makes_way(app: App) -> None:
    async with served(app, connections=3) as http:
        first, second, third = [await Raw.connect(http.url) for _ in range(3)]
        assert [await asked(each) for each in (first, second, third)] == [b"200"] * 3
        await second.send(GET[:10])  # half a request is none
        assert await asked(first) == b"200"
        fourth = await Raw.connect(http.url)
        assert await closed(second)
        fifth = await Raw.connect(http.url)
        assert await closed(third)
        assert [await asked(each) for each in (first, fourth, fifth)] == [b"200"] * 3
        for each in (first, second, third, fourth, fifth):
            each.close()


async def test_connections_at_work_are_not_closed_for_new_ones(app: App) -> None:
    async with served(app, connections=3) as http:
        task = await http.submit(delay=60)
        waiting = [asyncio.create_task(http("GET", f"/v1/tasks/{task['id']}", wait=60)) for _ in range(3)]

        async def all_wait() -> bool:
            return len(http.server.server_state.tasks) == 3

        await until(all_wait, "three requests are at work")
        late = await Raw.connect(http.url)
        answer = await late.rest()
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1" in answer
        assert b"urn:duetime:problem:busy" in answer
        late.close()
        http.server.api.stop()
        for each in waiting:
            assert (await each).json == task


async def test_a_slow_head_is_refused_in_time(app: App) -> None:
    async with served(app, arrive_within=0.5) as http:
        raw = await Raw.connect(http.url)
        answered = asyncio.create_task(raw.rest())
        for byte in GET + b"X-Slow: " + b"x" * 10_000:
            if answered.done():
                break
            await raw.send(bytes([byte]))
            await asyncio.wait([answered], timeout=0.01)
        assert (await answered).startswith(b"HTTP/1.1 408 ")
        raw.close()


@pytest.mark.parametrize("how", ["many answers", "one answer and then no more"])
async def test_a_client_that_does_not_read_is_not_waited_for(app: App, how: str) -> None:
    async with served(app, read_within=0.2) as http:
        [host, port] = http.url.removeprefix("http://").split(":")
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        listener.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(listener, (host, int(port)))
        request = b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        if how == "many answers":
            await loop.sock_sendall(listener, (request + b"\r\n") * 200)
        else:
            await loop.sock_sendall(listener, (request + b"\r\n") * 199 + request + b"Connection: close\r\n\r\n")

        async def alone() -> bool:
            return http.server.server_state.total_requests > 0 and not http.server.server_state.connections

        await until(alone, "the server has let go of the connection")
        listener.close()


async def test_a_client_that_reads_slowly_gets_all_of_its_answer(http: Client) -> None:
    raw = await Raw.connect(http.url)
    await raw.send(b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
    parts = b""
    while part := await raw.reader.read(4_096):
        parts += part
        await asyncio.sleep(0)
    assert parts.endswith(b"}")
    raw.close()
