"""The measured program: `python -P -m bench.costs.program submit|run URL CASE TASKS [count]`, or `prepare URL`.

It is written against the public API alone, so that PYTHONPATH can choose another version of Duetime. It says "ready", waits for a line,
performs its phase, says what that cost, and waits for another line: until then its server is not disturbed by the end of the program.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
from datetime import UTC, datetime, timedelta

import uvloop

from bench.costs.sqlite_meter import SqliteMeter
from duetime import App, At, Context, Limit, Rate, RetryPolicy, Schedule

BATCH = 1_000  # tasks of one submit_many
SLOTS = 1_000  # whole batches fit into memory, so that the number of claims depends less on timing
WARM_UPS = 100
PATIENCE = 300.0
LIMITS = {
    "by_key": Limit("per-number", running=1_000, by="number"),
    "by_rate": Limit("rate", rate=[Rate(1_000_000, per=1, burst=100_000)], by="number"),
}


class Ends:
    """Waits until so many tasks have succeeded."""

    def __init__(self, expected: int) -> None:
        self._left = expected
        self._all = asyncio.Event()

    def note(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._all.set()

    async def wait(self) -> None:
        async with asyncio.timeout(PATIENCE):
            await self._all.wait()


def make_app(url: str, ends: Ends, case: str = "") -> App:
    app = App(url)
    if case in LIMITS:  # or a claim of any handler would count

        @app.task(concurrency=SLOTS, limits=[LIMITS[case]])
        async def limited(number: int) -> None:
            ends.note()

    @app.task(concurrency=SLOTS)
    async def succeed(number: int) -> None:
        ends.note()

    @app.task(concurrency=SLOTS, retry=RetryPolicy(delays=(0.0,), jitter=0.0))
    async def fail_once(ctx: Context, number: int) -> None:
        if ctx.attempt == 1:
            raise RuntimeError("not yet")
        ends.note()

    return app


async def submit_batches(app: App, case: str, tasks: int) -> None:
    handler = app.handler("fail_once" if case == "retried" else "limited" if case in LIMITS else "succeed")
    for start in range(0, tasks, BATCH):
        numbers = range(start, min(start + BATCH, tasks))
        if case == "keyed":
            await app.submit_many([handler.options(key=f"order-{number}").new(number=number) for number in numbers])
        else:
            await app.submit_many([handler.new(number=number) for number in numbers])


async def submit_singly(app: App, tasks: int) -> None:
    handler = app.handler("succeed")
    for number in range(tasks):
        await handler.now(number=number)


async def put_schedules(app: App, tasks: int) -> None:
    """Store schedules that each have one occurrence, which the next worker fires at once."""
    handler = app.handler("succeed")
    planned = datetime.now(UTC) - timedelta(seconds=5)
    for number in range(tasks):
        schedule = Schedule(f"schedule-{number}", handler, At(planned), payload={"number": number}, start=planned)
        await app.schedules.put(schedule, catch_up=True)


async def submit(app: App, case: str, tasks: int) -> None:
    if case == "scheduled":
        await put_schedules(app, tasks)
    elif case == "single":
        await submit_singly(app, tasks)
    else:
        await submit_batches(app, case, tasks)


async def run(app: App, ends: Ends) -> None:
    """Run a worker until all tasks have succeeded; its end writes the outcomes that are not stored yet."""
    async with app.worker():
        await ends.wait()


async def prepare(url: str) -> None:
    """Make the tables and run some tasks, so that what is done once per store is not measured."""
    ends = Ends(WARM_UPS)
    app = make_app(url, ends)
    async with app:
        await submit_batches(app, "plain", WARM_UPS)
        await run(app, ends)


async def measure(verb: str, url: str, case: str, tasks: int, meter: SqliteMeter | None) -> None:
    ends = Ends(tasks)
    app = make_app(url, ends, case)
    async with app:
        await _in_step("ready")
        before, counts = _cpu_microseconds(), meter.read() if meter else {}
        if verb == "submit":
            await submit(app, case, tasks)
        else:
            await run(app, ends)
        costs: dict[str, float] = {"program": _cpu_microseconds() - before}
        if meter:
            costs |= meter.since(counts)
        await _in_step(costs)
        if verb == "run":
            await _check(app, tasks)


async def _check(app: App, tasks: int) -> None:
    states = {str(state): count for state, count in (await app.stats()).states.items() if count}
    if states != {"succeeded": tasks + WARM_UPS}:
        raise RuntimeError(f"expected {tasks + WARM_UPS} succeeded tasks, found {states}")


async def _in_step(word: object) -> None:
    """Say something and wait until the measuring program has read it and looked around."""
    os.write(1, json.dumps(word).encode() + b"\n")
    await asyncio.to_thread(sys.stdin.readline)


def _cpu_microseconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return (usage.ru_utime + usage.ru_stime) * 1e6


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["prepare", url]:
            uvloop.run(prepare(url))
        case ["submit" | "run" as verb, url, case, tasks]:
            uvloop.run(measure(verb, url, case, int(tasks), None))
        case ["submit" | "run" as verb, url, case, tasks, "count"]:
            uvloop.run(measure(verb, url, case, int(tasks), SqliteMeter.install()))
