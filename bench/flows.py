"""Flows: what plain tasks pay beside them, how quick a chord is beside the same tasks alone, and beside the chords of others.

The first figure matters most. `beside` drains plain tasks in a store with a group of 100,000 tasks that waits for another node, 1,000
open flows whose members live, and as many edges between tasks, stored among the plain tasks, so that the ids of each batch enclose some
of them. Its CPU time, with that of the server, does not change with the mood of the machine; the rate does.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from bench.costs.cpu import family_microseconds
from bench.lanes import server_of
from bench.peers.install import CELERY_FOLDER, DBOS_FOLDER, PeerMissing, celery, dbos
from bench.postgres.server import running_server
from bench.rounds import ROOT, ROUNDS, Report, answer, import_path, in_process, interleave, median, median_ratio
from duetime import App, NewTask, Plan
from tests.servers.brokers import RedisServer

PLAIN, BLOCKED, OPEN = 20_000, 100_000, 1_000
CHORD, LARGE, PEERS, DBOS_STEPS = 10_000, 100_000, 10_000, 200
BATCH = 2_000
PARTS = ("flows.beside", "flows.chords", "flows.peers")


def declare(url: str) -> App:
    app = App(url)

    @app.task(concurrency=500)
    async def noop(number: int) -> int:
        return number

    @app.task
    async def total(numbers: list[int]) -> int:
        return sum(numbers)

    @app.task
    async def after_all() -> None: ...

    return app


class Meter:
    """Counts the CPU time of this process and of the server of its store."""

    def __init__(self, url: str) -> None:
        self._server = server_of(url)
        self._began = self._now()

    def _now(self) -> float:
        return time.process_time() * 1e6 + (family_microseconds(self._server) if self._server else 0.0)

    def microseconds(self) -> float:
        return self._now() - self._began


async def beside(url: str, flows: str) -> dict[str, float]:
    """Drain plain tasks, beside flows or alone."""
    app = declare(url)
    noop, after_all = app.handler("noop"), app.handler("after_all")
    async with app:
        if flows == "flows":
            plan = Plan("held")
            first = plan.add(after_all.new().after(3_600))
            plan.group([noop.new(number=number) for number in range(BLOCKED)], needs=[first])
            await app.submit_flow(plan.new_flow())
        for start in range(0, PLAIN, BATCH):
            await app.submit_many([noop.new(number=number) for number in range(start, start + BATCH)])
            for _ in range(OPEN * BATCH // PLAIN if flows == "flows" else 0):
                await app.chain(after_all.new().after(3_600), after_all.new())
        meter = Meter(url)
        began = time.perf_counter()
        async with app.worker() as worker:
            while worker.executor.finished < PLAIN or len(worker.settler):  # noqa: ASYNC110  # an event would be measured too
                await asyncio.sleep(0.002)
            elapsed = time.perf_counter() - began
            cpu = meter.microseconds()
    return {"rate": PLAIN / elapsed, "cpu": cpu / PLAIN}


async def chord(url: str, count: int, kind: str) -> dict[str, float]:
    """Run a group with a task that follows, or the same tasks alone."""
    app = declare(url)
    noop, total, after_all = (app.handler(name) for name in ("noop", "total", "after_all"))
    tasks: list[NewTask[int]] = [noop.new(number=number) for number in range(count)]
    ended = [0.0]
    async with app:
        began = time.perf_counter()
        if kind == "plain":
            for start in range(0, count, BATCH):
                await app.submit_many(tasks[start : start + BATCH])
        elif kind == "sum":
            plan = Plan("chord")
            plan.result(plan.add(total.new(numbers=plan.group(tasks).values)))
            flow = await app.submit_flow(plan.new_flow())
        else:
            flow = await app.group(tasks, succeeded=after_all.new())
        submitted = time.perf_counter() - began
        async with app.worker() as worker:
            began = time.perf_counter()
            while worker.executor.finished < count or len(worker.settler):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            ended[0] = time.perf_counter()
            if kind != "plain":
                await app.result(flow, timeout=600)
            elapsed = time.perf_counter() - began
    join = (began + elapsed - ended[0]) * 1e3
    return {"submitted": count / submitted, "rate": count / elapsed, "done": submitted + elapsed, "join": join}


async def steps(url: str, count: int) -> dict[str, float]:
    """Run many small flows of three steps."""
    app = declare(url)
    noop = app.handler("noop")
    async with app:
        flows = [await app.chain(*(noop.new(number=number) for number in range(3))) for _ in range(count // 3)]
        async with app.worker() as worker:
            began = time.perf_counter()
            while worker.executor.finished < 3 * len(flows) or len(worker.settler):  # noqa: ASYNC110
                await asyncio.sleep(0.002)
            return {"rate": 3 * len(flows) / (time.perf_counter() - began)}


def _celery() -> dict[str, float]:
    environment = {**os.environ, **import_path(ROOT, CELERY_FOLDER)}
    # Redis writes to the disk once a second, its own default, which is less than what the stores beside it do
    with RedisServer("--appendfsync", "everysec") as redis:
        environment["BENCH_URL"] = f"redis://127.0.0.1:{redis.port}/0"
        module = [sys.executable, "-m", "bench.peers.celery_chord"]
        worker = subprocess.Popen([*module, "worker", "2"], env=environment, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            return _said([*module, "chord", str(PEERS)], environment)
        finally:
            worker.terminate()
            worker.wait(60)


def _said(command: list[str], environment: dict[str, str]) -> dict[str, float]:
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False, timeout=900)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")
    figures: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


@contextlib.contextmanager
def new_stores() -> Iterator[dict[str, Callable[[str], str]]]:
    """Yield what makes an empty store, by engine."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(running_server())

        def sqlite(name: str) -> str:
            return f"sqlite:///{stack.enter_context(tempfile.TemporaryDirectory(prefix=name))}/bench.db"

        def postgres(name: str) -> str:
            server.fresh(name)
            return server.url(name)

        yield {"SQLite": sqlite, "PostgreSQL": postgres}


def _plain_beside(report: Report, engine: str, new: Callable[[str], str], rounds: int) -> None:
    found: dict[str, list[dict[str, float]]] = {"alone": [], "flows": []}

    def case(kind: str) -> float:
        found[kind].append(in_process("bench.flows", "beside", new("beside"), kind))
        return found[kind][-1]["rate"]

    interleave({f"{engine}: plain tasks, {kind}": partial(case, kind) for kind in found}, rounds)
    for name, goal, unit, at_most in (("cpu", 1.03, " µs", True), ("rate", 0.97, "/s", False)):
        beside_flows, alone = ([figures[name] for figures in found[kind]] for kind in ("flows", "alone"))
        what = "CPU time of a plain task" if at_most else "drain of plain tasks"
        figure = f"{engine}: {what} beside {BLOCKED:,} waiting members and {OPEN:,} open flows"
        ratio = median_ratio(beside_flows, alone)
        report.add(figure, f"{median(beside_flows):,.0f}{unit}", f"alone {median(alone):,.0f}{unit}", ratio, goal, at_most=at_most)


def _chords(report: Report, engine: str, new: Callable[[str], str], count: int, rounds: int) -> None:
    found: dict[str, list[dict[str, float]]] = {"plain": [], "group": []}

    def case(kind: str) -> float:
        found[kind].append(in_process("bench.flows", "chord", new("chord"), str(count), kind))
        return found[kind][-1]["rate"]

    interleave({f"{engine}: {count:,} tasks, {kind}": partial(case, kind) for kind in found}, rounds)
    for name, what, goal in (("rate", "chord of", 0.75), ("submitted", "submitting a group of", 0.6)):
        ours, plain = ([figures[name] for figures in found[kind]] for kind in ("group", "plain"))
        figure = f"{engine}: {what} {count:,}, tasks/s"
        report.add(figure, f"{median(ours):,.0f}/s", f"plain {median(plain):,.0f}/s", median_ratio(ours, plain), goal)
    join = median([figures["join"] for figures in found["group"]])
    report.add(f"{engine}: from the last end to that of what follows, {count:,}", f"{join:.0f} ms", "", join, None, unit="ms")


def _peers(report: Report, stores: dict[str, Callable[[str], str]], rounds: int) -> None:
    cases: dict[str, Callable[[], dict[str, float]]] = {}
    for name, install, run in (("Celery", celery, _celery), ("DBOS", dbos, partial(_dbos, stores["PostgreSQL"]))):
        try:
            install()
            cases[name] = run
        except PeerMissing as error:
            report.lack(f"everything beside {name}", str(error))
    for engine, new in stores.items():
        cases[engine] = lambda new=new: in_process("bench.flows", "chord", new("chord"), str(PEERS), "sum")  # type: ignore[misc]
    figures = interleave({name: (lambda run=run: run()["done"]) for name, run in cases.items()}, rounds)  # type: ignore[misc]
    for name, count in (("Celery", PEERS), ("DBOS", DBOS_STEPS)):
        for engine in stores if name in figures else ():
            theirs = [count / seconds for seconds in figures[name]]
            ours = [PEERS / seconds for seconds in figures[engine]]
            beside = f"{name}, {count:,}: {median(theirs):,.0f}/s"
            figure = f"{engine}: {PEERS:,} tasks and their sum, from submitting on, tasks/s"
            report.add(figure, f"{median(ours):,.0f}/s", beside, median_ratio(ours, theirs), 5)


def _dbos(new: Callable[[str], str]) -> dict[str, float]:
    environment = {**os.environ, **import_path(ROOT, DBOS_FOLDER), "BENCH_URL": new("dbos")}
    return _said([sys.executable, "-m", "bench.peers.dbos_steps", str(DBOS_STEPS)], environment)


def _small(report: Report, engine: str, new: Callable[[str], str], rounds: int) -> None:
    cases = {
        "flows": lambda: in_process("bench.flows", "steps", new("steps"), str(PEERS))["rate"],
        "plain": lambda: in_process("bench.flows", "chord", new("plain"), str(PEERS), "plain")["rate"],
    }
    found = interleave({f"{engine}: small flows, {name}": case for name, case in cases.items()}, rounds)
    ours, plain = found.values()
    figure = f"{engine}: {PEERS // 3:,} flows of three steps, steps/s"
    report.add(figure, f"{median(ours):,.0f}/s", f"plain {median(plain):,.0f}/s", median_ratio(ours, plain), 0.35)


def run(report: Report, parts: Sequence[str], *, rounds: int = ROUNDS, full: bool = False) -> None:
    """Take the figures on both stores; `full` with the large chord."""
    with new_stores() as stores:
        for engine, new in stores.items():
            if "flows.beside" in parts:
                _plain_beside(report, engine, new, rounds)
            if "flows.chords" in parts:
                _chords(report, engine, new, CHORD, rounds)
                _small(report, engine, new, rounds)
            if "flows.chords" in parts and full:
                _chords(report, engine, new, LARGE, 1)
        if "flows.peers" in parts:
            _peers(report, stores, rounds)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["beside", url, kind]:
            answer(**asyncio.run(beside(url, kind)))
        case ["chord", url, count, kind]:
            answer(**asyncio.run(chord(url, int(count), kind)))
        case ["steps", url, count]:
            answer(**asyncio.run(steps(url, int(count))))
