"""The dashboard's pages in a store of two million tasks (ten million with --full) beside one of ten thousand; and what many viewers cost.

Both stores are filled as for `bench/listing.py`, in PostgreSQL. Requests alternate, and a page's figure is the 95th percentile of a round.
What a hundred open overviews cost is counted in committed transactions of the database, less those of the same server without viewers;
each statement of a look is one.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

import aiohttp

from bench.listing import AT_MOST, SMALL, fill_postgres
from bench.postgres.server import Server, running_server
from bench.rounds import ROOT, ROUNDS, Report, console, import_path, median, median_ratio

LARGE, FULL = 2_000_000, 10_000_000
VIEWERS = 100
WATCHED = 20.0  # seconds
QUERIES_A_SECOND = 5.0
FIRST_LOAD = 100_000  # bytes
FAR = 200  # pages that are walked to reach the one that is measured

PAGES = {
    "overview": "/",
    "tasks": "/tasks",
    "pending": "/tasks?q=state:pending",
    "succeeded": "/tasks?q=state:succeeded",
    "failed": "/tasks?q=state:failed",
    "a handler's tasks": "/tasks?q=handler:other",
    "a handler": "/handlers/other",
    "handlers": "/handlers",
    "workers": "/workers",
    "schedules": "/schedules",
    "calendar": "/calendar",
    "failures": "/failures",
    "operations": "/operations",
    "flows": "/flows",
    "alerts": "/alerts",
    "limits": "/limits",
}


async def serve(url: str) -> None:
    """Serve the dashboard until this process is ended."""
    from duetime import App
    from duetime.api.app import Api
    from duetime.api.server import Server as HttpServer
    from duetime.web.web import Web

    app = App(url)
    async with HttpServer(app, api=Api(app, extension=Web()), port=0).running() as server:
        print(server.url, flush=True)
        await asyncio.Event().wait()


@contextlib.contextmanager
def serving(url: str) -> Iterator[str]:
    """Start a server in a process of its own; return its address."""
    command = [sys.executable, "-m", "bench.dashboard", "serve", url]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env={**os.environ, **import_path(ROOT)})
    assert process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        if not address:
            raise RuntimeError("the server did not start")
        yield address
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


class Viewer:
    """A browser without a screen: one connection that asks for whole pages."""

    def __init__(self, address: str) -> None:
        host, _, port = address.removeprefix("http://").partition(":")
        self.connection = http.client.HTTPConnection(host, int(port), timeout=300)

    def get(self, path: str) -> tuple[int, str]:
        """Return the size of an answer and its text."""
        self.connection.request("GET", f"/ui{path}")
        response = self.connection.getresponse()
        body = response.read()
        if response.status != 200:
            raise RuntimeError(f"{path} was answered {response.status}: {body[:300]!r}")
        return len(body), body.decode()

    def timed(self, path: str) -> float:
        """Return the milliseconds of one page."""
        began = time.perf_counter()
        self.get(path)
        return (time.perf_counter() - began) * 1e3

    def far(self) -> str:
        """Walk to a page far from the first; return its address."""
        path = "/tasks?size=25"
        for _ in range(FAR):
            found = re.search(r'href="/ui(/tasks\?[^"]*cursor=[^"]*)" rel="next"', self.get(path)[1])
            if found is None:
                raise RuntimeError(f"{path} has no next page")
            path = found[1].replace("&amp;", "&")
        return path


def percentiles(cases: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Return the 95th percentile of each case in each round. What alternates shares the mood of the machine."""
    figures: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        waits: dict[str, list[float]] = {name: [] for name in cases}
        for _ in range(40):
            for name, case in cases.items():
                waits[name].append(case())
        for name, some in waits.items():
            figures[name].append(statistics.quantiles(some, n=20)[-1])
    return figures


def measure_pages(report: Report, small: str, large: str, number: int, rounds: int) -> None:
    first, second = Viewer(small), Viewer(large)
    pages: dict[str, tuple[str, str]] = {name: (path, path) for name, path in PAGES.items()}
    pages[f"tasks, page {FAR}"] = (first.far(), second.far())
    for name, (path, same) in pages.items():
        with console.status(name):
            figures = percentiles({"small": partial(first.timed, path), "large": partial(second.timed, same)}, rounds)
        ratio = median_ratio(figures["large"], figures["small"])
        beside = f"{SMALL:,}: {median(figures['small']):.1f} ms"
        report.add(f"{number:,} tasks: {name}, p95", f"{median(figures['large']):.1f} ms", beside, ratio, AT_MOST, at_most=True)


def measure_first_load(report: Report, address: str) -> None:
    viewer = Viewer(address)
    size, text = viewer.get("/")
    files = dict.fromkeys(re.findall(r'(?:href|src)="/ui(/assets/[^"]+)"', text))
    wanted = list(files)
    while wanted:  # scripts import each other
        path = wanted.pop()
        more, body = viewer.get(path)
        size += more
        for name in re.findall(r'(?:from|import) "\./([\w.]+)"', body) if path.endswith(".js") else ():
            found = f"{path.rpartition('/')[0]}/{name}"
            if found not in files:
                files[found] = None
                wanted.append(found)
    report.add("first load", f"{size:,} bytes", f"{len(files) + 1} requests", size / FIRST_LOAD, 1.0, at_most=True)


async def watch(address: str, viewers: int, seconds: float) -> int:
    """Keep overviews open as browsers do; return how many answers came."""
    answers = 0

    async def one(session: aiohttp.ClientSession, after: float) -> None:
        nonlocal answers
        await asyncio.sleep(after)
        known = "none"
        while True:
            async with session.get(f"{address}/ui/", headers={"duetime-parts": known}) as response:
                text, every = await response.text(), float(response.headers["duetime-next"])
                answers += 1
            tags = re.findall(r'data-part="(\w+)" data-tag="(\w+)"', text)
            if tags:
                known = ",".join(f"{name}={tag}" for name, tag in tags)
            await asyncio.sleep(every)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=viewers)) as session:
        tasks = [asyncio.create_task(one(session, 2.0 * number / viewers)) for number in range(viewers)]
        await asyncio.sleep(seconds)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return answers


def committed(server: Server, database: str) -> int:
    with server.connect("postgres") as connection:
        connection.execute("select pg_stat_force_next_flush()")
        row = connection.execute(b"select xact_commit from pg_stat_database where datname = %s", [database]).fetchone()
    assert row is not None
    return int(row[0])


def measure_viewers(report: Report, server: Server, database: str, address: str, seconds: float) -> None:
    def counted(viewers: int) -> tuple[float, int]:
        time.sleep(2)  # the server's own backends tell their counts after a second
        before, began = committed(server, database), time.perf_counter()
        answers = asyncio.run(watch(address, viewers, seconds))
        time.sleep(2)
        return (committed(server, database) - before) / (time.perf_counter() - began), answers

    Viewer(address).get("/")
    time.sleep(5)  # what a server does when it starts is over then
    idle, _ = counted(0)
    rate, answers = counted(VIEWERS)
    cost = rate - idle
    report.add(
        f"{VIEWERS} open overviews: queries a second", f"{cost:.1f}/s", f"{answers / seconds:.0f} answers/s, idle {idle:.1f}/s",
        cost / QUERIES_A_SECOND, 1.0, at_most=True,
    )  # fmt: skip


def run(report: Report, *, full: bool = False, rounds: int = ROUNDS, large: int | None = None, seconds: float = WATCHED) -> None:
    """Take the figures."""
    number = large or (FULL if full else LARGE)
    with running_server() as server:
        urls = {}
        for size in (SMALL, number):
            began = time.perf_counter()
            with console.status(f"filling PostgreSQL with {size:,} tasks"):
                urls[size] = fill_postgres(server, size, time.time())
            console.print(f"PostgreSQL: {size:,} tasks in {time.perf_counter() - began:.0f} s")
        with serving(urls[SMALL]) as small, serving(urls[number]) as big:
            measure_first_load(report, small)
            measure_pages(report, small, big, number, rounds)
        with serving(urls[number]) as address:
            measure_viewers(report, server, f"listing_{number}", address, seconds)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        asyncio.run(serve(sys.argv[2]))
