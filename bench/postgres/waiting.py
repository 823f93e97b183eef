"""How long tasks wait for their start on an idle system: pickup of tasks that are due at once, lateness of those due later."""

from __future__ import annotations

import asyncio
import random
import time

from bench.lateness import LEAD, TASKS, WINDOW, instants, percentiles
from bench.postgres.contestant import PATIENCE, Contestant
from bench.postgres.server import Server

WARM_UPS, PICKUPS = 5, 150
PAUSE = 0.02, 0.06  # seconds between two, at random, so that each finds the system idle and no rhythm is met
SPAWNING = 3.0  # seconds that the submitting process has before the window's lead


def pickup(server: Server, contestant: Contestant, database: str) -> dict[str, float]:
    """Submit tasks one at a time; return the milliseconds from before the call of submitting to the start."""
    return asyncio.run(_pickup(server.url(database), contestant))


async def _pickup(url: str, contestant: Contestant) -> dict[str, float]:
    waits = []
    chance = random.Random(7)
    async with contestant.started(url, "work", "each") as [worker], contestant.started(url, "ping") as [client]:
        worker.go()
        await asyncio.sleep(1)
        for _ in range(WARM_UPS + PICKUPS):
            client.go()
            submitted, started = await worker.read()
            waits.append(started - submitted)
            await asyncio.sleep(chance.uniform(*PAUSE))
    return percentiles(waits[WARM_UPS:])


def lateness(server: Server, contestant: Contestant, database: str) -> dict[str, float]:
    """Submit tasks that are due at random within some seconds; return by how many milliseconds they start too late."""
    return asyncio.run(_lateness(server.url(database), contestant))


async def _lateness(url: str, contestant: Contestant) -> dict[str, float]:
    late = []
    async with contestant.started(url, "work", "each") as [worker]:
        worker.go()
        await asyncio.sleep(1)
        began = time.time() + SPAWNING
        dues = [began + offset for offset in instants()]
        await contestant.done(url, "due", line=dues)
        if time.time() > began + LEAD:
            raise RuntimeError("submitting took longer than the lead; the machine is too busy for this figure")
        async with asyncio.timeout(SPAWNING + LEAD + WINDOW + PATIENCE):
            for _ in range(TASKS):
                due, started = await worker.read()
                late.append(started - due)
    if min(late) < -0.0005:
        raise RuntimeError(f"a task started {-min(late) * 1e3:.2f} ms early")
    return percentiles(late)
