"""Limits: the same drain with limits and without, in one round; and how soon a parked task starts when one ends.

`python -m bench limits`; `--tasks 5000 --rounds 2` is a look. Each case is one process that drains no-op tasks from a new store. A bound is
what the handlers themselves have seen.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

from bench.flows import new_stores
from bench.rounds import Report, answer, in_process, interleave, median, median_ratio
from duetime import App, Limit, Rate

TASKS, KEYS, SLOTS = 30_000, 10_000, 50
BINDING, SLOW = 40, 0.005
CHAIN = 400
TIMED, BESIDE, WINDOW, LEAD = 1_000, 200, 5.0, 1.0  # tasks of which the lateness is taken, others a second, seconds
PLAIN = "without limits"
BUSY: dict[str, list[Limit]] = {
    PLAIN: [],
    "one at a time by key": [Limit("per-key", running=1, by="key")],
    "under a limit of 5": [Limit("pool", running=5)],
}

LIMITS: dict[str, tuple[list[Limit], float | None]] = {  # and the goal of the ratio to the drain without
    "without a key, not binding": ([Limit("pool", running=100_000)], 0.98),
    f"by key, {KEYS:,} keys, not binding": ([Limit("per-key", running=1_000, by="key")], 0.93),
    f"rate by key, {KEYS:,} keys, not binding": ([Limit("vendor", rate=[Rate(1_000_000, per=1, burst=100_000)], by="key")], 0.90),
    f"one at a time by key, {KEYS:,} keys": ([Limit("per-key", running=1, by="key")], None),
}


async def drain(url: str, name: str, tasks: int) -> dict[str, float]:
    """Drain no-op tasks; return how many a second."""
    app, ended, done = App(url), 0, asyncio.Event()

    @app.task(limits=LIMITS[name][0] if name in LIMITS else [], concurrency=SLOTS)
    async def noop(key: int) -> None:
        nonlocal ended
        ended += 1
        if ended == tasks:
            done.set()

    async with app:
        for first in range(0, tasks, 2_000):
            await app.submit_many([noop.new(key=number % KEYS) for number in range(first, min(first + 2_000, tasks))])
        began = time.perf_counter()
        async with app.worker() as worker:
            await done.wait()
            while len(worker.settler):  # noqa: ASYNC110  # an event would be measured too
                await asyncio.sleep(0.002)
            elapsed = time.perf_counter() - began
    return {"rate": tasks / elapsed}


async def bind(url: str, tasks: int) -> dict[str, float]:
    """Drain slow tasks under a limit without a key that binds; return how many ran on average from the first start on, and the most."""
    app, running, most, busy, ended, first, done = App(url), 0, 0, 0.0, 0, 0.0, asyncio.Event()

    @app.task(limits=[Limit("pool", running=BINDING)], concurrency=200)
    async def slow() -> None:
        nonlocal running, most, busy, ended, first
        running, began = running + 1, time.perf_counter()
        first = first or began
        most = max(most, running)
        await asyncio.sleep(SLOW)
        running, busy, ended = running - 1, busy + time.perf_counter() - began, ended + 1
        if ended == tasks:
            done.set()

    async with app:
        await app.submit_many([slow.new() for _ in range(tasks)])
        async with app.worker():
            await done.wait()
            elapsed = time.perf_counter() - first
    return {"mean": busy / elapsed, "most": most}


async def hand_over(url: str, chain: int) -> dict[str, float]:
    """Run tasks of one key one after another; return the milliseconds from the end of one to the start of the next."""
    app, waits, ended_at, done = App(url), list[float](), 0.0, asyncio.Event()

    @app.task(limits=[Limit("per-key", running=1, by="key")])
    async def link(key: int) -> None:
        nonlocal ended_at
        if ended_at:
            waits.append((time.perf_counter() - ended_at) * 1e3)
        await asyncio.sleep(SLOW)
        ended_at = time.perf_counter()
        if len(waits) == chain - 1:
            done.set()

    async with app:
        await app.submit_many([link.new(key=7) for _ in range(chain)])
        async with app.worker():
            await done.wait()
    waits.sort()
    return {"median": waits[len(waits) // 2], "p99": waits[len(waits) * 99 // 100]}


async def lateness(url: str, name: str) -> dict[str, float]:
    """Start tasks of a plain handler at random instants, beside tasks of another handler; return how late the plain ones are."""
    app, late, ends, done = App(url), list[float](), 0, asyncio.Event()
    busy = round(BESIDE * WINDOW)

    def note() -> None:
        if len(late) == TIMED and ends == busy:
            done.set()

    @app.task
    async def ring(due: float) -> None:
        late.append((time.time() - due) * 1e3)
        note()

    @app.task(limits=BUSY[name], concurrency=SLOTS)
    async def load(key: int) -> None:
        nonlocal ends
        await asyncio.sleep(2 * SLOW)
        ends += 1
        note()

    chance = random.Random(7)
    async with app.worker():
        began = time.time() + LEAD
        dues = [began + chance.random() * WINDOW for _ in range(TIMED)]
        await app.submit_many([ring.new(due=due).at(datetime.fromtimestamp(due, UTC)) for due in dues])
        others = [began + chance.random() * WINDOW for _ in range(busy)]
        await app.submit_many([load.new(key=number % 5).at(datetime.fromtimestamp(due, UTC)) for number, due in enumerate(others)])
        async with asyncio.timeout(LEAD + WINDOW + 60):
            await done.wait()
    late.sort()
    return {"median": late[len(late) // 2], "p99": late[len(late) * 99 // 100]}


def compare(report: Report, engine: str, new_store: Callable[[str], str], *, rounds: int, tasks: int) -> None:
    def case(name: str) -> float:
        return in_process("bench.limits", "drain", new_store("limits"), name, str(tasks))["rate"]

    figures = interleave({name: partial(case, name) for name in ("without limits", *LIMITS)}, rounds)
    plain = figures["without limits"]
    for name, (_, goal) in LIMITS.items():
        beside = f"without limits {median(plain):,.0f}/s"
        report.add(f"{engine}: drain, {name}", f"{median(figures[name]):,.0f}/s", beside, median_ratio(figures[name], plain), goal)
    found = in_process("bench.limits", "bind", new_store("limits"), str(tasks // 2))
    name = f"{engine}: limit {BINDING} that binds, tasks of {SLOW * 1e3:g} ms: mean running"
    report.add(name, f"{found['mean']:.1f}", f"most {found['most']:.0f} of {BINDING}", found["mean"] / BINDING, 0.95)
    found = in_process("bench.limits", "hand_over", new_store("limits"), str(CHAIN))
    name = f"{engine}: one ends → the next of its key starts"
    report.add(name, f"{found['median']:.1f} ms", f"p99 {found['p99']:.1f} ms", found["median"], 5, at_most=True, unit="ms")

    def late_beside(name: str) -> float:
        return in_process("bench.limits", "lateness", new_store("limits"), name)["p99"]

    late = interleave({name: partial(late_beside, name) for name in BUSY}, rounds)
    for name in list(BUSY)[1:]:
        what = f"{engine}: lateness p99 of plain tasks beside tasks {name}"
        other = f"beside such without limits {median(late[PLAIN]):.1f} ms"
        report.add(what, f"{median(late[name]):.1f} ms", other, median_ratio(late[name], late[PLAIN]), 1.2, at_most=True)


def run(report: Report, *, rounds: int, tasks: int | None = None) -> None:
    """Take the figures on both stores."""
    with new_stores() as stores:
        for engine, new_store in stores.items():
            compare(report, engine, new_store, rounds=rounds, tasks=tasks or TASKS)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["drain", url, name, tasks]:
            answer(**asyncio.run(drain(url, name, int(tasks))))
        case ["bind", url, tasks]:
            answer(**asyncio.run(bind(url, int(tasks))))
        case ["lateness", url, name]:
            answer(**asyncio.run(lateness(url, name)))
        case ["hand_over", url, chain]:
            answer(**asyncio.run(hand_over(url, int(chain))))
