"""Many handlers in one worker, most of them idle: how late tasks start beside the same tasks of a single handler.

Each case is one process with a client and a worker of 1,000 handlers or of one. *Together*: 1,000 tasks, of all handlers alike, are due
at the same instant. *Of one*: only one handler has tasks, due at random instants. *Submitted*: tasks of one handler after the other
are submitted one at a time, measured from before the call to the start. CPU time tells what waits hide on a busy machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

from bench.rounds import ROUNDS, Report, answer, in_process, interleave, median, median_ratio
from duetime import App

HANDLERS, TASKS, SINGLES = 1_000, 1_000, 200
LEAD, WINDOW, PAUSE = 2.0, 4.0, 0.01
GOAL = 3.0
CASES = {
    "together": f"start of {TASKS:,} tasks due together, p95",
    "of_one": "start of one handler's tasks, p95",
    "submitted": "submit to start, one at a time, p95",
    "cpu": "the same, CPU time a task",
}


class Waits:
    """The waits of tasks, and an event when as many as are expected have started."""

    def __init__(self) -> None:
        self._waits: list[float] = []
        self._expected = 0
        self._all = asyncio.Event()

    def note(self, since: float) -> None:
        self._waits.append(time.time() - since)
        if len(self._waits) == self._expected:
            self._all.set()

    async def p95(self, number: int) -> float:
        """Wait until so many tasks have started; return the milliseconds that 95% of them waited at most, and begin again."""
        self._expected = number
        if len(self._waits) < number:
            async with asyncio.timeout(120):
                await self._all.wait()
        self._all.clear()
        ordered, self._waits = sorted(self._waits), []
        return ordered[int(number * 0.95)] * 1e3


async def measure(url: str, handlers: int) -> dict[str, float]:
    app = App(url)
    waits = Waits()

    async def noop(since: float) -> None:
        waits.note(since)

    all_of_them = [app.task(noop, name=f"handler-{number}") for number in range(handlers)]
    figures = {}
    async with app.worker():
        due = time.time() + LEAD
        when = datetime.fromtimestamp(due, UTC)
        await app.submit_many([all_of_them[number % handlers].new(since=due).at(when) for number in range(TASKS)])
        figures["together"] = await waits.p95(TASKS)

        chance, [one, *_] = random.Random(7), all_of_them
        dues = [time.time() + LEAD + chance.random() * WINDOW for _ in range(SINGLES)]
        await app.submit_many([one.new(since=due).at(datetime.fromtimestamp(due, UTC)) for due in dues])
        figures["of_one"] = await waits.p95(SINGLES)

        began = time.process_time()
        for number in range(SINGLES):
            await all_of_them[number % handlers].now(since=time.time())
            await asyncio.sleep(PAUSE)
        figures["submitted"] = await waits.p95(SINGLES)
        figures["cpu"] = (time.process_time() - began) / SINGLES * 1e3
    return figures


def compare(report: Report, new_store: Callable[[str], str], *, rounds: int = ROUNDS) -> None:
    """Measure with many handlers and with one in each round, each in a new store."""
    found: dict[int, list[dict[str, float]]] = {1: [], HANDLERS: []}

    def case(handlers: int) -> float:
        found[handlers].append(in_process("bench.many_handlers", new_store("handlers"), str(handlers)))
        return found[handlers][-1]["together"]

    interleave({f"{handlers:,} handlers": partial(case, handlers) for handlers in found}, rounds)
    for name, what in CASES.items():
        many, single = ([figures[name] for figures in found[handlers]] for handlers in (HANDLERS, 1))
        measured, beside = f"{median(many):.2f} ms", f"one handler {median(single):.2f} ms"
        report.add(f"{what}, {HANDLERS:,} handlers", measured, beside, median_ratio(many, single), GOAL, at_most=True)


def run(report: Report) -> None:
    """Take the figures on SQLite."""
    with contextlib.ExitStack() as folders:
        compare(report, lambda name: f"sqlite:///{folders.enter_context(tempfile.TemporaryDirectory(prefix=name))}/bench.db")


if __name__ == "__main__":
    answer(**asyncio.run(measure(sys.argv[1], int(sys.argv[2]))))
