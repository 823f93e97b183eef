"""The handlers that most people have, beside no-op coroutines in the same run: plain functions, functions that print, keys, sub-processes.

Every case is one process with a client and a worker (`bench.shop` has its handlers), on SQLite and on PostgreSQL. Rates are of durable
completions. On a busy machine CPU time says more than a rate, so each figure has it too: of the process and its children, without the
server. What was printed is in the store before it is taken.

Peers are Dramatiq, Celery, Huey and RQ in one worker process on Redis.
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
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from functools import partial
from pathlib import Path

from bench.peers.install import QUEUES_FOLDER, PeerMissing, queues
from bench.postgres.cases import Cases
from bench.postgres.contestant import DUETIME
from bench.postgres.server import Server, running_server
from bench.rounds import ROOT, ROUNDS, Report, answer, import_path, in_process, interleave, median, median_ratio
from duetime.runtime.processes import resident
from tests.servers.brokers import RedisServer

BATCH, THREADS, LONGEST = 1_000, 50, 120
ALREADY = 100  # tasks after which sub-processes have started
QUEUES = {"Dramatiq": 4_000, "Celery, threads": 3_000, "Huey": 4_000, "RQ, no forks": 600, "Celery, prefork": 3_000, "RQ": 100}
HANDLERS, COLLECTIONS, SCHEDULES = 1_000, 10_000, 100_000
MANY, FEW = 20, 2  # worker processes
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
    """Drain what was submitted before the worker starts; where sub-processes have to start first, from when they have."""
    from bench.shop import app, new

    async with app:
        for start in range(0, tasks, BATCH):
            await app.submit_many([new(name, number) for number in range(start, start + BATCH)])
        used, began, left = cpu(), time.perf_counter(), tasks
        async with app.worker() as worker:
            if name == "isolated":
                while worker.executor.finished < ALREADY:  # noqa: ASYNC110  # as below
                    await asyncio.sleep(0.002)
                used, began, left = cpu(), time.perf_counter(), tasks - worker.executor.finished
            while worker.executor.finished < tasks or len(worker.settler):  # noqa: ASYNC110  # an event would be measured too
                await asyncio.sleep(0.002)
            elapsed = time.perf_counter() - began
        return figures(left, elapsed, cpu() - used)


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


class Queue:
    """A peer on a Redis server."""

    def __init__(self, redis: RedisServer, folder: Path) -> None:
        self._redis = redis
        self._folder = folder
        self._runs = 0

    def drain(self, name: str) -> Figures:
        """Drain what was submitted before the worker starts, from when a twentieth of it is done: to start a worker does not count."""
        self._runs += 1
        tasks, marks = QUEUES[name], self._folder / f"marks-{self._runs}"
        environment = {**os.environ, **import_path(ROOT, QUEUES_FOLDER), "REDIS_URL": self._redis.url, "MARKS": str(marks)}
        submit, work = ([sys.executable, "-m", "bench.peers.queues", verb, name, str(tasks)] for verb in ("submit", "work"))
        subprocess.run(submit, check=True, env=environment, cwd=ROOT, capture_output=True)
        with (
            (self._folder / f"log-{self._runs}").open("w+") as log,
            subprocess.Popen(work, env=environment, cwd=ROOT, stdout=log, stderr=log) as worker,
        ):
            used, began, done = cpu(), time.perf_counter(), 0
            while (now := marks.stat().st_size) < tasks:
                if worker.poll() is not None or time.perf_counter() - began > LONGEST:
                    worker.kill()
                    log.seek(0)
                    raise RuntimeError(f"{name} has run {now} of {tasks} tasks:\n{log.read()[-2_000:]}")
                if not done and now >= tasks // 20:
                    began, done = time.perf_counter(), now
                time.sleep(0.002)
            elapsed = time.perf_counter() - began
            worker.terminate()
            try:
                worker.wait(10)
            except subprocess.TimeoutExpired:
                worker.kill()
        return figures(tasks - done, elapsed, cpu() - used)


async def memory(*, much: bool) -> Figures:
    """Return the bytes of a worker, idle and after it has run tasks: with much in its store and many handlers, or with neither."""
    from bench.shop import app, new

    if much:
        in_process("bench.everyday", "fill")
        for number in range(HANDLERS):
            app.task(noop_like(), name=f"handler-{number:04}")
    async with app.worker() as worker:
        await asyncio.sleep(5)
        idle = resident(os.getpid())
        used = []
        for finished in (TASKS["plain"], 2 * TASKS["plain"]):
            for start in range(0, TASKS["plain"], BATCH):
                await app.submit_many([new("noop", number) for number in range(start, start + BATCH)])
            while worker.executor.finished < finished or len(worker.settler):  # noqa: ASYNC110  # an event would be measured too
                await asyncio.sleep(0.01)
            used.append(resident(os.getpid()))
    return {"idle": idle, "then": used[0], "later": used[1]}


def noop_like() -> Callable[[], Awaitable[None]]:
    async def handler() -> None: ...

    return handler


async def fill() -> Figures:
    """Store tasks for later of as many collections, and schedules that are not due yet."""
    from bench import schedules
    from bench.shop import app, noop

    async with app:
        for start in range(0, COLLECTIONS, BATCH):
            later = [noop.options(collection=f"c{number}").new(number=number).after(86_400) for number in range(start, start + BATCH)]
            await app.submit_many(later)
        await schedules.fill_store(app.store, SCHEDULES)
    return {}


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
        compare(report, f"{store}: sub-processes", taken["isolated"], "no-op coroutines and a bare pipe to one child", bare, 0.8)


def run_peers(report: Report, rounds: int) -> None:
    """Measure plain functions and sub-processes beside other queues on Redis, which keeps nothing on disk."""
    try:
        queues()
    except PeerMissing as missing:
        report.lack("other queues of Python", str(missing))
        return
    redis = RedisServer("--appendonly", "no", "--save", "")
    redis.start()
    try:
        with tempfile.TemporaryDirectory() as folder:
            own, queue = Rounds(None, folder), Queue(redis, Path(folder))
            cases = {name: partial(own.case, "drain", name, str(TASKS[name])) for name in ("plain", "isolated")}
            cases |= {name: partial(queue.drain, name) for name in QUEUES}
            found: dict[str, list[Figures]] = {name: [] for name in cases}

            def one(name: str) -> float:
                found[name].append(cases[name]())
                return found[name][-1]["rate"]

            interleave({name: partial(one, name) for name in cases}, rounds)
    finally:
        redis.kill()
    for name in ("Dramatiq", "Celery, threads", "Huey", "RQ, no forks"):
        compare(report, "SQLite: `def` handlers", found["plain"], name, found[name], 1.0)
    for name in ("Celery, prefork", "RQ"):
        compare(report, "SQLite: sub-processes", found["isolated"], name, found[name], 1.0)


def run_memory(report: Report) -> None:
    with tempfile.TemporaryDirectory() as folder:
        rounds = Rounds(None, folder)
        little, much = rounds.case("memory", "little"), rounds.case("memory", "much")

    def megabytes(size: float) -> str:
        return f"{size / 1e6:,.0f} MB"

    figure = f"memory of an idle worker with {HANDLERS:,} handlers, {COLLECTIONS:,} collections, {SCHEDULES:,} schedules"
    report.add(
        figure,
        megabytes(much["idle"]),
        f"with one handler and an empty store {megabytes(little['idle'])}",
        much["idle"] / little["idle"],
        None,
    )
    figure = f"the same worker after {2 * TASKS['plain']:,} tasks"
    report.add(
        figure,
        megabytes(much["later"]),
        f"after {TASKS['plain']:,} tasks {megabytes(much['then'])}",
        much["later"] / much["then"],
        1.1,
        at_most=True,
    )


def run_processes(report: Report, server: Server, rounds: int) -> None:
    cases = Cases(server, TASKS["plain"])
    found = interleave({str(number): partial(cases.draining, DUETIME, number) for number in (FEW, MANY)}, rounds)
    many, few = found[str(MANY)], found[str(FEW)]
    beside = f"{FEW} processes {median(few):,.0f}/s"
    report.add(f"PostgreSQL: drain by {MANY} processes", f"{median(many):,.0f}/s", beside, median_ratio(many, few), 0.8)


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
    run_peers(report, rounds)
    run_memory(report)
    with running_server() as server:
        run_store(report, "PostgreSQL", server, rounds)
        run_processes(report, server, rounds)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["drain", name, count]:
            answer(**asyncio.run(draining(name, int(count))))
        case ["submit", kind]:
            answer(**asyncio.run(submitting(keyed=kind == "keyed")))
        case ["memory", amount]:
            answer(**asyncio.run(memory(much=amount == "much")))
        case ["fill"]:
            answer(**asyncio.run(fill()))
        case ["threads"]:
            answer(**asyncio.run(threads()))
        case ["pipe"]:
            answer(**pipe())
        case ["start", *command]:
            answer(**starting(*command))
