"""Limits by key and by rate in simulated worlds: their handlers, and what clients submit. `keyed_checker` says what must hold."""

import asyncio
import random

from duetime import Context, Handlers, Limit, Rate, RetryPolicy
from duetime.testing.simulation.faults import Fault, Kind
from tests.simulation.journal import attempt
from tests.simulation.workload import Operation

PER_USER = Limit("per-user", running=2, by="user")
VENDOR = Limit("vendor", rate=[Rate(10, per=1, burst=2)])
TAKES = {"serial": 1, "double": 2}  # of PER_USER
SLOTS = {"serial": 3, "double": 2, "paced": 20}
USERS = ("ada", "bob")
VERBS = ("claim", "settle", "look_at_limits", "look_at_limits", "reap", "cancel")
KINDS: tuple[Kind, ...] = ("crash", "kill", "lose", "fail")


def handlers() -> Handlers:
    """Return handlers with limits by key and by rate."""
    group = Handlers()
    retry = RetryPolicy(tries=3, base=0.5, cap=2)

    async def work(ctx: Context, seconds: float, how: str) -> None:
        with attempt(ctx):
            await asyncio.sleep(seconds)
            if how == "stumbles" and ctx.task.tries < 1:
                raise RuntimeError("it stumbles")

    @group.task(concurrency=SLOTS["serial"], timeout=20, retry=retry, limits=[PER_USER.take(TAKES["serial"])])
    async def serial(ctx: Context, user: str, seconds: float = 0.0, how: str = "works") -> None:
        await work(ctx, seconds, how)

    @group.task(concurrency=SLOTS["double"], timeout=20, retry=retry, limits=[PER_USER.take(TAKES["double"])])
    async def double(ctx: Context, user: str, seconds: float = 0.0, how: str = "works") -> None:
        await work(ctx, seconds, how)

    @group.task(concurrency=SLOTS["paced"], timeout=20, retry=retry, limits=[VENDOR])
    async def paced(ctx: Context) -> None:
        await work(ctx, 0.0, "works")

    return group


def operations(chance: random.Random, *, seconds: float, most: int) -> list[Operation]:
    """Return submissions for so many seconds: some one by one, and some of the rate's all at once."""
    more = []
    for _ in range(chance.randint(6, max(10, most // 4))):
        at = round(chance.uniform(0.0, seconds), 3)
        if chance.random() < 0.3:
            more += [Operation(kind="submit", at=at, handler="paced", payload={}) for _ in range(chance.randint(1, 6))]
            continue
        payload = {
            "user": chance.choice(USERS),
            "seconds": chance.choice((0.0, 0.3, 1.0)),
            "how": chance.choice(("works",) * 3 + ("stumbles",)),
        }
        options = {"priority": chance.choice((1, 5, 5, 9))}
        handler = chance.choice(("serial", "serial", "double"))
        more.append(Operation(kind="submit", at=at, handler=handler, payload=payload, options=options))
    return more


def faults(chance: random.Random, *, workers: int, seconds: float, most: int) -> list[Fault]:
    """Return more faults, at the verbs of such limits."""
    return [
        Fault(
            kind=chance.choice(KINDS),
            at=round(chance.uniform(0.0, seconds), 3),
            process=chance.randrange(workers),
            verb=chance.choice(VERBS),
        )
        for _ in range(chance.randint(0, most))
    ]
