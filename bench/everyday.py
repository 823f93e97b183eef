"""The handlers that most people have, beside no-op coroutines in the same run: plain functions, functions that print, keys, sub-processes.

Every case is one process with a client and a worker (`bench.shop` has its handlers), on SQLite and on PostgreSQL. Rates are of durable
completions. On a busy machine CPU time says more than a rate, so each figure has it too: of the process and its children, without the
server. What was printed is in the store before it is taken.
"""

from __future__ import annotations

import asyncio
import os
import queue
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from pathlib import Path

from bench.postgres.server import Server, running_server
from bench.rounds import ROOT, ROUNDS, Report, answer, import_path, in_process, interleave, median, median_ratio

BATCH, THREADS = 1_000, 50
TASKS = {"noop": 40_000, "plain": 20_000, "prints": 10_000, "plain_prints": 10_000, "rich": 20_000, "isolated": 3_000}
SUBMITTED, CALLS, ORDERS = 20_000, 100_000, 20_000

Figures = dict[str, float]


def cpu() -> float:
    """Return the CPU seconds of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def figures(count: int, elapsed: float, used: float) -> Figures:
    return {"rate": count / elapsed, "cpu": used / count * 1e6}


# ---- cases, each in a process of its own ----


async def draining(name: str, tasks: int) -> Figures:
    """Drain what was submitted before the worker starts."""
    from bench.shop import app, new

    async with app:
        for start in range(0, tasks, BATCH):
            await app.submit_many([new(name, number) for number in range(start, start + BATCH)])
        used, began = cpu(), time.perf_counter()
        async with app.worker() as worker:
            while worker.executor.finished < tasks or len(worker.settler):  # noqa: ASYNC110  # an event would be measured too
                await asyncio.sleep(0.002)
            elapsed = time.perf_counter() - began
        return figures(tasks, elapsed, cpu() - used)


async def submitting(*, keyed: bool) -> Figures:
    from bench.shop import app, new

    async with app:
        used, began = cpu(), time.perf_counter()
        for start in range(0, SUBMITTED, BATCH):
            await app.submit_many([new("noop", number, keyed=keyed) for number in range(start, start + BATCH)])
        return figures(SUBMITTED, time.perf_counter() - began, cpu() - used)


async def threads() -> Figures:
    """Hand calls to threads and take their ends back in batches, with context variables: the least that a worker has to do."""
    loop = asyncio.get_running_loop()
    orders: queue.SimpleQueue[list[Callable[[], None]]] = queue.SimpleQueue()
    everything = loop.create_future()
    left = CALLS

    def serve() -> None:
        while batch := orders.get():
            loop.call_soon_threadsafe(note, [call() for call in batch])

    def note(ended: list[None]) -> None:
        nonlocal left
        left -= len(ended)
        if not left:
            everything.set_result(None)

    def plain(number: int) -> None: ...

    for _ in range(THREADS):
        threading.Thread(target=serve, daemon=True).start()
    used, began = cpu(), time.perf_counter()
    for start in range(0, CALLS, THREADS):
        orders.put([partial(copy_context().run, plain, number) for number in range(start, start + THREADS)])
    await everything
    return figures(CALLS, time.perf_counter() - began, cpu() - used)


ECHO = """
import sys
for line in sys.stdin.buffer:
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
"""


def pipe() -> Figures:
    """Send orders to one child process through a pipe, one after the other, and wait for each answer."""
    used, began = cpu(), time.perf_counter()
    with subprocess.Popen([sys.executable, "-c", ECHO], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        for number in range(ORDERS):
            child.stdin.write(b'{"id":"0192f7c1-0000-7000-8000-000000000000","payload":{"number":%d}}\n' % number)
            child.stdin.flush()
            child.stdout.readline()
        elapsed = time.perf_counter() - began
        child.stdin.close()
    return figures(ORDERS, elapsed, cpu() - used)


def starting(*command: str) -> Figures:
    """Run a program to its end; the rate is of starts a second."""
    used, began = cpu(), time.perf_counter()
    environment = {**os.environ, **import_path(ROOT), "PYTHONDONTWRITEBYTECODE": ""}  # compiled code is kept, as it is for users
    subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL, env=environment)
    return figures(1, time.perf_counter() - began, cpu() - used)


HELP = "import sys; sys.argv[1:] = ['--help']; from duetime.cli.main import main; main()"
CLAIM = """
import asyncio, time
from bench.shop import app
async def main():
    async with app.worker() as worker:
        task = await app.handler("noop").now(number=1)
        await app.result(task, timeout=60)
asyncio.run(main())
"""


# ---- the table ----


class Rounds:
    """Takes the figures of cases in interleaved rounds, on one store."""

    def __init__(self, server: Server | None, folder: str) -> None:
        self._server = server
        self._folder = Path(folder)
        self._stores = 0

    def case(self, *arguments: str) -> Figures:
        self._stores += 1
        url = f"sqlite:///{self._folder}/{self._stores}.db"
        if self._server is not None:
            self._server.fresh("everyday")
            url = self._server.url("everyday")
        os.environ |= {"DUETIME_URL": url, "DUETIME_OUTPUT": str(self._folder / f"output-{self._stores}")}
        return in_process("bench.everyday", *arguments)

    def take(self, cases: dict[str, tuple[str, ...]], rounds: int) -> dict[str, list[Figures]]:
        found: dict[str, list[Figures]] = {name: [] for name in cases}

        def one(name: str) -> float:
            found[name].append(self.case(*cases[name]))
            return found[name][-1]["rate"]

        interleave({name: partial(one, name) for name in cases}, rounds)
        return found


def after(one: Figures, other: Figures) -> Figures:
    """Return what both cases would make of a task, one after the other: what a bare executor does not do is to claim and to settle."""
    return {"rate": 1 / (1 / one["rate"] + 1 / other["rate"]), "cpu": one["cpu"] + other["cpu"]}


def shown(taken: list[Figures]) -> str:
    return f"{median([each['rate'] for each in taken]):,.0f}/s, {median([each['cpu'] for each in taken]):,.0f} µs"


def compare(report: Report, figure: str, of: list[Figures], name: str, to: list[Figures], goal: float | None) -> None:
    """Enter two cases beside each other: the ratio of their rates, with that of their CPU times."""
    rates = median_ratio([each["rate"] for each in of], [each["rate"] for each in to])
    spent = median_ratio([each["cpu"] for each in to], [each["cpu"] for each in of])
    report.add(f"{figure} (by CPU time {spent:.2f} ×)", shown(of), f"{name} {shown(to)}", rates, goal)


def run_store(report: Report, store: str, server: Server | None, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        names = {name: ("drain", name, str(count)) for name, count in TASKS.items() if server is None or name != "isolated"}
        taken = Rounds(server, folder).take(
            {**names, "threads": ("threads",), "pipe": ("pipe",), "keys": ("submit", "keyed"), "no keys": ("submit", "plain")}, rounds
        )
    bare = [after(*each) for each in zip(taken["noop"], taken["threads"], strict=True)]
    compare(report, f"{store}: `def` handlers", taken["plain"], "no-op coroutines and a bare batched thread executor", bare, 0.5)
    compare(report, f"{store}: coroutines that print a line", taken["prints"], "silent", taken["noop"], 0.4)
    compare(report, f"{store}: `def` handlers that print a line", taken["plain_prints"], "silent", taken["plain"], 0.4)
    compare(report, f"{store}: drain of rich tasks", taken["rich"], "plain ones", taken["noop"], 0.5)
    compare(report, f"{store}: submitting with keys", taken["keys"], "without", taken["no keys"], 0.6)
    if "isolated" in taken:
        bare = [after(*each) for each in zip(taken["noop"], taken["pipe"], strict=True)]
        compare(report, f"{store}: sub-processes", taken["isolated"], "no-op coroutines and a bare pipe to one child", bare, None)


def run_starting(report: Report, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"DUETIME_OUTPUT": f"{folder}/output"}
        taken = Rounds(None, folder).take(
            {
                "asyncio": ("start", "-c", "import asyncio"),
                "import": ("start", "-c", "import duetime"),
                "help": ("start", "-c", HELP),
                "claim": ("start", "-c", CLAIM),
            },
            rounds,
        )
    base = [each["cpu"] for each in taken["asyncio"]]
    for name, figure, goal in (
        ("import", "`import duetime`, ms of CPU time", 120),
        ("help", "`duetime --help`, ms of CPU time", 250),
        ("claim", "a worker's first task from the start of Python, and its end, ms of CPU time", 1_000),
    ):
        spent = [each["cpu"] for each in taken[name]]
        beside = f"import asyncio {median(base) / 1e3:,.0f} ms, {median_ratio(spent, base):.1f} ×"
        elapsed = f"{median([1e3 / each['rate'] for each in taken[name]]):,.0f} ms"
        report.add(figure, elapsed, beside, median(spent) / 1e3, goal, at_most=True, unit="ms")


def run(report: Report, rounds: int = ROUNDS) -> None:
    run_starting(report, rounds)
    run_store(report, "SQLite", None, rounds)
    with running_server() as server:
        run_store(report, "PostgreSQL", server, rounds)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["drain", name, count]:
            answer(**asyncio.run(draining(name, int(count))))
        case ["submit", kind]:
            answer(**asyncio.run(submitting(keyed=kind == "keyed")))
        case ["threads"]:
            answer(**asyncio.run(threads()))
        case ["pipe"]:
            answer(**pipe())
        case ["start", *command]:
            answer(**starting(*command))
