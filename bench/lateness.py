"""Lateness: 2,000 tasks due at random within 10 s, against bare `loop.call_at` timers at the same instants.

Both run in one worker process; the tasks are stored before the window opens. With a backlog, a million tasks of the same
handler that are due next year lie in the same lane.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import resource
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from bench.rounds import Report, answer, in_process, interleave, median
from bench.submitting import rows
from duetime import App, Context
from duetime.store.sqlite.connection import connect
from duetime.store.sqlite.statements import SQL

TASKS, WINDOW, LEAD = 2_000, 10.0, 2.0
BACKLOG = 1_000_000
YEAR = 365 * 86_400 * 1_000_000


def instants() -> list[float]:
    chance = random.Random(7)
    return [LEAD + chance.random() * WINDOW for _ in range(TASKS)]


def percentiles(lateness: list[float]) -> dict[str, float]:
    ordered = sorted(lateness)
    return {"p50": ordered[len(ordered) // 2] * 1e3, "p99": ordered[int(len(ordered) * 0.99)] * 1e3, "max": ordered[-1] * 1e3}


async def bare() -> dict[str, float]:
    loop = asyncio.get_running_loop()
    began = loop.time()
    lateness: list[float] = []
    done = asyncio.Event()

    def ring(at: float) -> None:
        lateness.append(loop.time() - at)
        if len(lateness) == TASKS:
            done.set()

    for offset in instants():
        loop.call_at(began + offset, ring, began + offset)
    await done.wait()
    return percentiles(lateness)


async def duetime(path: str) -> dict[str, float]:
    app = App(f"sqlite:///{path}")
    lateness: list[float] = []
    done = asyncio.Event()

    @app.task
    async def ring(ctx: Context, due: float) -> None:
        lateness.append(time.time() - due)
        if len(lateness) == TASKS:
            done.set()

    async with app.worker():
        await asyncio.sleep(0.2)
        memory = resident()
        began = time.time()
        for start in range(0, TASKS, 500):
            dues = [began + offset for offset in instants()[start : start + 500]]
            await app.submit_many([ring.new(due=due).at(datetime.fromtimestamp(due, UTC)) for due in dues])
        async with asyncio.timeout(LEAD + WINDOW + 60):
            await done.wait()
        assert min(lateness) > -0.0005, f"a task started {-min(lateness) * 1e3:.2f} ms early"
        grown = resident() - memory
    return {**percentiles(lateness), "grown": grown}


def resident() -> float:
    """Megabytes that this process holds in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1]) if Path("/proc/self/statm").exists() else 0
    return pages * resource.getpagesize() / 1e6


def fill(path: str) -> None:
    """Put the backlog into the lane of the measured handler, by bare inserts: only where it lies matters here."""

    async def prepare() -> None:
        app = App(f"sqlite:///{path}")
        app.task(_ring, name="ring")
        async with app:
            pass

    asyncio.run(prepare())
    with contextlib.closing(connect(path, synchronous="normal", writes=True)) as connection:
        found = connection.execute(SQL.find_lane, ("ring", "", 5)).fetchall()
        ((lane, _),) = found or connection.execute(SQL.add_lane, ("ring", "", 5)).fetchall()
        for start in range(0, BACKLOG, 10_000):
            tasks, due = rows(start + 1, 10_000, lane)
            connection.execute("begin immediate")
            connection.executemany(SQL.insert_task, [(*task[:5], task[5] + YEAR, *task[6:]) for task in tasks])
            connection.executemany(SQL.insert_due, [(row[0], row[1] + YEAR, row[2], row[3] + YEAR, 0, 0, 0) for row in due])
            connection.execute("commit")
        connection.execute(SQL.raise_lanes, (f"[{lane}]",))


async def _ring(due: float) -> None: ...


def run(report: Report) -> None:
    with tempfile.TemporaryDirectory() as folder:
        backlog = f"{folder}/backlog.db"
        in_process("bench.lateness", "fill", backlog)
        detail: dict[str, list[dict[str, float]]] = {"bare": [], "duetime": [], "backlog": []}

        def case(name: str, *arguments: str) -> float:
            detail[name].append(in_process("bench.lateness", *arguments))
            return detail[name][-1]["p99"]

        figures = interleave(
            {
                "bare": lambda: case("bare", "bare"),
                "duetime": lambda: case("duetime", "duetime", f"{folder}/{time.monotonic_ns()}.db"),
                "backlog": lambda: case("backlog", "duetime", backlog),
            }
        )
    above = median([ours - timer for ours, timer in zip(figures["duetime"], figures["bare"], strict=True)])
    name = f"lateness p99 of {TASKS:,} tasks in {WINDOW:g} s"
    report.add(
        f"{name}, above a bare timer",
        f"{median(figures['duetime']):.2f} ms",
        f"loop.call_at {median(figures['bare']):.2f} ms",
        *(above, 4.0),
        at_most=True,
        unit="ms",
    )
    ratio = median([full / empty for full, empty in zip(figures["backlog"], figures["duetime"], strict=True)])
    report.add(
        f"the same with {BACKLOG:,} far-future tasks",
        f"{median(figures['backlog']):.2f} ms",
        f"without {median(figures['duetime']):.2f} ms",
        *(ratio, 1.2),
        at_most=True,
    )
    grown = median([full["grown"] - empty["grown"] for full, empty in zip(detail["backlog"], detail["duetime"], strict=True)])
    report.add("worker memory more because of them", f"{grown:.1f} MB", "without", *(grown, 10.0), at_most=True, unit="MB")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["bare"]:
            answer(**asyncio.run(bare()))
        case ["duetime", path]:
            answer(**asyncio.run(duetime(path)))
        case ["fill", path]:
            fill(path)
            answer()
