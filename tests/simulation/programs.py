"""The programs of the simulated processes, in versions: their handlers write down what they do in the world that is simulated now."""

import asyncio
from functools import cache
from typing import Any

from duetime import App, Context, Fatal, Handlers, Limit, RetryLater, RetryPolicy
from tests.simulation import keyed as keyed_limits
from tests.simulation import stories as stories_of_clients
from tests.simulation.journal import attempt, journal

VERSIONS = 3
TICK = 3  # seconds between two occurrences of the schedule
TRIES = 3
SLOTS = {"quick": 3, "stumbles": 2, "odd": 2, "hangs": 2, "parent": 2, "tick": 4, "versioned": 2}
SLOTS |= {"capped": 3, "heavy": 2, "member": 3, "locking": 3}
SLOTS |= stories_of_clients.SLOTS | keyed_limits.SLOTS
ERP = Limit("erp", running=3)
TAKES = {"capped": 1, "heavy": 2, "billed": 1}  # of the limit


class Unfit:
    """Nothing that JSON could express."""


def handlers(version: int) -> Handlers:
    """Return the handlers of a version of the program."""
    group = Handlers()
    retry = RetryPolicy(tries=TRIES, base=0.5, cap=2)

    @group.task(concurrency=SLOTS["quick"], timeout=20, retry=retry)
    async def quick(ctx: Context, seconds: float = 0.0) -> float:
        with attempt(ctx):
            if seconds:
                await asyncio.sleep(seconds)
            return seconds

    @group.task(concurrency=SLOTS["stumbles"], timeout=20, retry=retry)
    async def stumbles(ctx: Context, times: int, seconds: float = 0.0) -> None:
        with attempt(ctx):
            await asyncio.sleep(seconds)
            if ctx.task.tries < times:
                raise RuntimeError("it stumbles")

    @group.task(concurrency=SLOTS["odd"], timeout=20, retry=retry)
    async def odd(ctx: Context, how: str) -> Any:
        with attempt(ctx):
            if ctx.attempt % 2:
                await asyncio.sleep(0.1)
            match how:
                case "fatal":
                    raise Fatal("that is final")
                case "later" if ctx.attempt < 3:
                    raise RetryLater(0.7)
                case "cancelled" if ctx.attempt < 2:
                    raise asyncio.CancelledError
                case "stop" if ctx.attempt < 2:
                    raise StopAsyncIteration
                case "exit" if ctx.attempt < 2:
                    raise SystemExit(3)
                case "unfit":
                    journal.unfit(ctx)
                    return Unfit()
        return how

    @group.task(concurrency=SLOTS["hangs"], timeout=1.5, retry=RetryPolicy(tries=2, base=0.5))
    async def hangs(ctx: Context, stubborn: bool) -> None:
        with attempt(ctx):
            try:
                await asyncio.sleep(60.0)
            except asyncio.CancelledError:
                if stubborn:
                    await asyncio.sleep(0.8)
                raise

    @group.task(concurrency=SLOTS["parent"], timeout=20, retry=retry)
    async def parent(ctx: Context, children: int) -> list[str]:
        with attempt(ctx):
            made = []
            for number in range(children):
                child = quick.options(key=f"{ctx.task.id} {number}", if_exists="keep").new(seconds=0.1)
                journal.perhaps(child.id)
                made.append((await group.submit(child)).id)
                journal.perhaps(made[-1])
            return made

    @group.schedule(every=TICK, missed="all within 30s", overlap="allow", concurrency=SLOTS["tick"], retry=retry)
    async def tick(ctx: Context) -> None:
        with attempt(ctx):
            await asyncio.sleep(0.05)

    if version == 0:

        @group.task(concurrency=SLOTS["versioned"], retry=retry)
        async def versioned(ctx: Context, size: int) -> int:
            with attempt(ctx):
                return size

    else:

        @group.task(name="versioned", concurrency=SLOTS["versioned"], retry=retry)
        async def versioned_with_color(ctx: Context, size: int, color: str = "red") -> int:
            with attempt(ctx):
                await asyncio.sleep(0.05)
                return size

    return group


def fleet_handlers(app: App) -> Handlers:
    """Return handlers with limits, those of flows, and one that takes locks."""
    group = Handlers()
    retry = RetryPolicy(tries=TRIES, base=0.5, cap=2)

    @group.task(concurrency=SLOTS["capped"], timeout=20, retry=retry, limits=[ERP.take(TAKES["capped"])])
    async def capped(ctx: Context, seconds: float = 0.0) -> None:
        with attempt(ctx):
            await asyncio.sleep(seconds)

    @group.task(concurrency=SLOTS["heavy"], timeout=20, retry=retry, limits=[ERP.take(TAKES["heavy"])])
    async def heavy(ctx: Context, seconds: float = 0.0) -> None:
        with attempt(ctx):
            await asyncio.sleep(seconds)

    @group.task(concurrency=SLOTS["member"], timeout=20, retry=retry)
    async def member(ctx: Context, number: int, how: str = "works", seconds: float = 0.0, given: Any = None) -> int:
        with attempt(ctx):
            journal.given[ctx.task.id] = given
            await asyncio.sleep(seconds)
            if how == "fatal":
                raise Fatal("that is final")
            if how == "stumbles" and ctx.task.tries < 1:
                raise RuntimeError("it stumbles")
            return number

    @group.task(concurrency=SLOTS["locking"], timeout=20, retry=retry)
    async def locking(ctx: Context, name: str, seconds: float, max_hold: float | None, wait: float) -> bool:
        with attempt(ctx) as process:
            lock = await app.locks.take(name, wait=wait, max_hold=max_hold)
            if lock is None:
                return False
            journal.took(lock, process)
            try:
                await asyncio.sleep(seconds)
            finally:
                await lock.release()
            return True

    app.http("billed", "http://outside.example/bill", timeout=20, retry=retry, limits=[ERP.take(TAKES["billed"])])
    return group


@cache
def program(version: int, fleet: bool = False, stories: bool = False, keyed: bool = False) -> App:
    """Return a version of the program; made once, because binding the parameters of handlers takes longer than a simulation."""
    app = App("sqlite:///:memory:", user=f"version {version}")
    app.include(handlers(min(version, VERSIONS - 1)))
    app.http("handed", "http://outside.example/work", timeout=20, retry=RetryPolicy(tries=TRIES, base=0.5, cap=2))
    if fleet:
        app.include(fleet_handlers(app))
    if stories:
        app.include(stories_of_clients.handlers())
    if keyed:
        app.include(keyed_limits.handlers())
    return app
