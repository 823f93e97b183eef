"""HTTP handlers beside a bare client loop: one worker process that sends its tasks to a local sink, and one aiohttp session that does.

Both send the same number of POST requests with the same body and as many at once, over kept connections. The sink is a process of
its own that reads no more of a request than it must. The worker also claims each task, settles it, and keeps its detail.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import cast

import uvloop

from bench.rounds import ROOT, ROUNDS, Report, answer, import_path, in_process, interleave, median, median_ratio

REQUESTS = 6_000
AT_ONCE = 50
GOAL = 0.6


class _Sink(asyncio.Protocol):
    """Answers each request with 204. Head and body of ours come in one piece or two; a body ends with a brace."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._data = b""

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, end, body = self._data.partition(b"\r\n\r\n")
        if not end:
            return
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or b"0")
        if len(body) >= length:
            self._data = body[length:]
            self._transport.write(b"HTTP/1.1 204 No Content\r\n\r\n")


async def serve() -> None:
    server = await asyncio.get_running_loop().create_server(_Sink, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def bare(port: int) -> None:
    import aiohttp

    numbers = iter(range(REQUESTS))

    async def loop(client: aiohttp.ClientSession) -> None:
        for number in numbers:
            async with client.post(f"http://127.0.0.1:{port}/charges/{number}", json={"order_id": number, "amount": 12}) as response:
                await response.read()
                assert response.status == 204

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=AT_ONCE)) as client:
        began, used = time.perf_counter(), time.thread_time()
        await asyncio.gather(*(loop(client) for _ in range(AT_ONCE)))
        answer(rate=REQUESTS / (time.perf_counter() - began), cpu=(time.thread_time() - used) / REQUESTS)


async def worker(port: int, *, as_function: bool) -> None:
    """Drain requests with one worker; `as_function`: an `async def` of the user sends them, with a session of its own."""
    import aiohttp

    from duetime import App, State
    from duetime.app.handlers import AnyHandler

    url = f"http://127.0.0.1:{port}/charges"
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=AT_ONCE)) as client:
        with tempfile.TemporaryDirectory() as folder:
            app = App(f"sqlite:///{folder}/duetime.db")
            warm = app.http("warm", url)
            charge: AnyHandler = app.http("charge", f"{url}/{{payload.order_id}}", concurrency=AT_ONCE)

            @app.task(concurrency=AT_ONCE)
            async def call(order_id: int, amount: int) -> None:
                async with client.post(f"{url}/{order_id}", json={"order_id": order_id, "amount": amount}) as response:
                    await response.read()
                    assert response.status == 204

            used = call if as_function else charge
            await app.gates.pause(used.name)
            await app.submit_many([used.new(order_id=number, amount=12) for number in range(REQUESTS)])
            async with app.worker() as running:
                await app.result(await warm.now(), timeout=60)  # all is imported and started
                began, used_cpu = time.perf_counter(), time.thread_time()
                await app.gates.open(used.name)
                while running.executor.finished <= REQUESTS:  # noqa: ASYNC110
                    await asyncio.sleep(0.002)
                took, cpu = time.perf_counter() - began, time.thread_time() - used_cpu
            states = [task.state async for task in app.tasks(handler=used)]
            await app.close()
    assert states.count(State.SUCCEEDED) == REQUESTS
    answer(rate=REQUESTS / took, cpu=cpu / REQUESTS)


def _measured(case: str, port: int, cpu: dict[str, list[float]]) -> float:
    figures = in_process("bench.http_target", case, str(port))
    cpu.setdefault(case, []).append(figures["cpu"])
    return figures["rate"]


def run(report: Report, rounds: int = ROUNDS) -> None:
    command = [sys.executable, "-m", "bench.http_target", "sink"]
    sink = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **import_path(Path(ROOT))}, stdout=subprocess.PIPE, text=True)
    try:
        assert sink.stdout is not None
        port = int(sink.stdout.readline())
        cpu: dict[str, list[float]] = {}
        rates = interleave({case: partial(_measured, case, port, cpu) for case in ("bare", "function", "worker")}, rounds)
    finally:
        sink.kill()
        sink.wait()
    beside = f"bare aiohttp loop {median(rates['bare']):,.0f}/s, an async def that uses aiohttp {median(rates['function']):,.0f}/s"
    ratio = median_ratio(rates["worker"], rates["bare"])
    report.add(f"HTTP handler to a local sink, {AT_ONCE} at once", f"{median(rates['worker']):,.0f}/s", beside, ratio, GOAL)
    loop = {case: median(each) * 1e6 for case, each in cpu.items()}
    others = f"bare aiohttp loop {loop['bare']:.0f} µs, an async def that uses aiohttp {loop['function']:.0f} µs"
    per_request = median_ratio(cpu["bare"], cpu["worker"])  # of the same kind as the rates: less time is more
    report.add("the same, CPU time of the event loop's thread per request", f"{loop['worker']:.0f} µs", others, per_request, GOAL)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["sink"]:
            uvloop.run(serve())
        case ["bare", port]:
            uvloop.run(bare(int(port)))
        case ["worker" | "function" as case, port]:
            uvloop.run(worker(int(port), as_function=case == "function"))
