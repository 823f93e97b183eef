"""The worker's own cost per task: a drain of the real worker over an object that does nothing.

The object answers only the verbs that a worker calls, from tasks that were made beforehand. What is measured is therefore
feeder, executor and settler, and no store: the ceiling of what any store can reach in one process. With `--round-trip` it
answers only after a while, as a server would, so that the figure shows how well claims, work and settles overlap.

    python -m bench.ceiling                      all kinds of handlers, both event loops
    python -m bench.ceiling --against FOLDER     beside another copy of the package, in interleaved rounds
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from rich.table import Table

from bench.rounds import ROUNDS, answer, console, interleave, median, median_ratio
from duetime import App, Context, Next
from duetime.ids import new_id
from duetime.model.figures import FigureKey
from duetime.model.gate import Gates
from duetime.model.outcome import Settlement, SettleVerdict
from duetime.store import Store
from duetime.store.shard import AsTheyCome
from duetime.store.traits import Traits
from duetime.store.values import Claim, ClaimedTask, Hint, NewWorker, Progress, Renewal
from duetime.worker.worker import Worker, WorkerSettings

TASKS = 100_000
ROUND_TRIP = 5.0  # milliseconds; a claim or settle of 500 tasks takes about that on PostgreSQL
KINDS = ("plain", "ctx", "result", "yields", "middleware", "output", "several")


class NoStore:
    """Hands out tasks that were made beforehand, accepts every settlement and keeps nothing."""

    url = "nowhere"
    traits = Traits(atomic="call", durability="Nothing is kept.", liveness="lock")

    def __init__(self, tasks: list[ClaimedTask], batch: int, round_trip: float, output_folder: str | None) -> None:
        self._tasks = tasks
        self._batch = batch
        self._round_trip = round_trip
        self._claimed = 0
        self.output_folder = output_folder
        self.settled = 0
        self.claims = self.settles = 0
        self.done = asyncio.Event()

    def now(self) -> int:
        return time.time_ns() // 1_000

    async def claim(self, worker: str, claim: int, wants: Mapping[str, int], total: int, *, ahead: int = 0) -> Claim:
        begin = self._claimed
        self._claimed = end = min(begin + min(total, self._batch), len(self._tasks))
        self.claims += begin < end
        await asyncio.sleep(self._round_trip)
        now = self.now()
        return Claim(self._tasks[begin:end], now, now if end < len(self._tasks) else None)

    async def settle(self, worker: str, settlements: Sequence[Settlement]) -> list[SettleVerdict]:
        self.settles += 1
        await asyncio.sleep(self._round_trip)
        self.settled += len(settlements)
        if self.settled == len(self._tasks):
            self.done.set()
        return [SettleVerdict.ACCEPTED] * len(settlements)

    def grouping(self, worker: str) -> AsTheyCome:
        return AsTheyCome()

    async def progress(self, worker: str, marks: Sequence[Progress]) -> None: ...

    async def carry_out(self, limit: int) -> int:
        return 0

    async def add_figures(self, source: str, number: int, increments: Mapping[FigureKey, int]) -> None: ...

    async def register(self, worker: NewWorker) -> NoLease:
        return NoLease()

    async def unregister(self, worker: str) -> None: ...

    async def gates(self) -> Gates:
        return Gates()

    async def confirm_gates(self, worker: str, version: int) -> None: ...

    def listen(self, on_hint: Callable[[Hint], None]) -> NoLease:
        return NoLease()


class NoLease:
    """A lease that cannot be lost, and a subscription to nothing."""

    def renew(self) -> Renewal:
        return Renewal(True, 0, [])  # only once: with leases of an hour the worker never compares two in a row

    def inheritable(self) -> Sequence[int]:
        return ()

    def close(self) -> None: ...


def declare(app: App, kind: str) -> list[str]:
    """Declare the handlers of one kind; return their names."""

    @app.task
    async def plain(number: int) -> None: ...

    @app.task
    async def ctx(ctx: Context, number: int) -> None:
        assert ctx.attempt == 1

    @app.task
    async def result(number: int) -> dict[str, int]:
        return {"number": number}

    @app.task
    async def yields(number: int) -> None:
        await asyncio.sleep(0)

    if kind == "middleware":

        @app.middleware
        async def around(ctx: Context, call_next: Next) -> object:
            return await call_next()

    if kind == "several":
        for number in range(8):

            async def handler(number: int) -> None: ...

            app.task(name=f"several-{number}")(handler)
        return [f"several-{number}" for number in range(8)]
    return [kind if kind in ("ctx", "result", "yields") else "plain"]


def make_tasks(names: Sequence[str], count: int) -> list[ClaimedTask]:
    now = time.time_ns() // 1_000
    return [
        ClaimedTask(
            id=new_id(),
            handler=names[number % len(names)],
            payload=f'{{"number":{number}}}',
            attempt=1,
            tries=0,
            crashes=0,
            due_at=now,
            since_at=now,
            submitted_at=now,
            submitted_by="bench",
            expires_at=None,
            timeout=None,
            retry=None,
            extras=None,
            key=None,
            collection=None,
            priority=5,
            schedule=None,
            planned_at=None,
        )
        for number in range(count)
    ]


async def drain(kind: str, tasks: int, batch: int, round_trip: float, concurrency: int | None) -> dict[str, float]:
    app = App("sqlite:///:memory:")
    names = declare(app, kind)
    claimed = make_tasks(names, tasks)
    with tempfile.TemporaryDirectory() as folder:
        store = NoStore(claimed, batch, round_trip, folder if kind == "output" else None)
        specs = {name: app.specs[name] for name in names}
        worker = Worker(
            cast(Store, store), specs, middleware=app.middlewares, settings=WorkerSettings(concurrency=concurrency, lease=3_600.0)
        )
        await worker.start()
        began, cpu = time.perf_counter(), time.process_time()
        await store.done.wait()
        elapsed, cpu = time.perf_counter() - began, time.process_time() - cpu
        await worker.stop()
    return {
        "rate": tasks / elapsed,
        "micros": elapsed / tasks * 1e6,
        "cpu": cpu / tasks * 1e6,
        "claimed": tasks / store.claims,
        "settled": tasks / store.settles,
    }


def in_folder(folder: str | None, *arguments: str) -> dict[str, float]:
    """Run one case in a process of its own, with the package of a folder if one is named."""
    environment = {**os.environ, **({"PYTHONPATH": folder} if folder else {})}
    done = subprocess.run(
        [sys.executable, "-m", "bench.ceiling", "--one", *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env=environment,
    )
    if done.returncode != 0:
        raise RuntimeError(f"bench.ceiling {' '.join(arguments)} failed:\n{done.stderr[-4_000:]}")
    figures: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def cases(options: argparse.Namespace) -> dict[str, list[str]]:
    """Return what to measure: a name and the arguments of its process."""
    found: dict[str, list[str]] = {}
    for kind in options.kinds:
        for loop in ("asyncio", "uvloop"):
            common = ["--kinds", kind, "--tasks", str(options.tasks), "--batch", str(options.batch)]
            common += [] if options.concurrency is None else ["--concurrency", str(options.concurrency)]
            common += ["--uvloop"] if loop == "uvloop" else []
            found[f"{kind}, {loop}"] = common
            if kind == "plain":
                found[f"{kind}, {loop}, answers after {ROUND_TRIP:g} ms"] = [*common, "--round-trip", str(ROUND_TRIP)]
    return found


def show(options: argparse.Namespace) -> None:
    table = Table(title="The worker over a store that does nothing, one process", title_justify="left")
    for column in ("case", "tasks/s", "µs/task", "CPU µs/task", "a claim", "a settle"):
        table.add_column(column, justify="left" if column == "case" else "right")
    for name, arguments in cases(options).items():
        figures = in_folder(None, *arguments)
        rounded = (f"{figures['claimed']:,.0f}", f"{figures['settled']:,.0f}")
        table.add_row(name, f"{figures['rate']:,.0f}", f"{figures['micros']:.1f}", f"{figures['cpu']:.1f}", *rounded)
    console.print(table)


def compare(options: argparse.Namespace) -> None:
    table = Table(title=f"Here and there, medians of {ROUNDS} interleaved rounds", title_justify="left")
    for column in ("case", "µs/task", "ratio", "CPU µs/task", "ratio", "a claim", "a settle"):
        table.add_column(column, justify="left" if column == "case" else "right")
    for name, arguments in cases(options).items():
        seen: dict[str, list[dict[str, float]]] = {"here": [], "there": []}

        def measure(
            where: str, folder: str | None, seen: dict[str, list[dict[str, float]]] = seen, arguments: list[str] = arguments
        ) -> Callable[[], float]:
            def run() -> float:
                seen[where].append(in_folder(folder, *arguments))
                return seen[where][-1]["micros"]

            return run

        interleave({"here": measure("here", None), "there": measure("there", options.against)})
        columns = []
        for figure in ("micros", "cpu"):
            here, there = ([each[figure] for each in seen[where]] for where in seen)
            columns += [f"{median(here):.1f} / {median(there):.1f}", f"{median_ratio(here, there):.2f}"]
        for figure in ("claimed", "settled"):
            here, there = ([each[figure] for each in seen[where]] for where in seen)
            columns.append(f"{median(here):,.0f} / {median(there):,.0f}")
        table.add_row(name, *columns)
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.ceiling", description=__doc__)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="which kinds of handlers")
    parser.add_argument("--tasks", type=int, default=TASKS)
    parser.add_argument("--batch", type=int, default=500, help="the most that one claim hands out")
    parser.add_argument("--round-trip", type=float, default=0.0, metavar="MS", help="answer after so many milliseconds")
    parser.add_argument("--concurrency", type=int, help="slots of the process")
    parser.add_argument("--uvloop", action="store_true")
    parser.add_argument("--against", metavar="FOLDER", help="the folder that holds another copy of the package")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.one:
        (compare if options.against else show)(options)
        return
    runner: Callable[[Any], dict[str, float]] = asyncio.run
    if options.uvloop:
        import uvloop

        runner = uvloop.run
    answer(**runner(drain(options.kinds[0], options.tasks, options.batch, options.round_trip / 1_000, options.concurrency)))


if __name__ == "__main__":
    main()
