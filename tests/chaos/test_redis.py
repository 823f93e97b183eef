"""Workers on Valkey: they are killed, and the server is killed under them; nothing is lost, nothing runs twice at once."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.chaos.fleet import Fleet
from tests.servers.brokers import ValkeyServer

ROUNDS = 5
EACH = 40
OPTIONS = ("--lease", "2s", "--handler", "quick", "--handler", "threaded")  # others have limits that such a store refuses


@pytest.fixture
def server() -> Iterator[ValkeyServer]:
    with ValkeyServer("--appendfsync", "always") as server:
        yield server


@pytest.fixture
async def redis_fleet(tmp_path: Path, server: ValkeyServer) -> AsyncIterator[Fleet]:
    async with Fleet(tmp_path, url=f"{server.url}?control=sqlite:///{tmp_path / 'control.db'}") as fleet:
        yield fleet


@pytest.mark.slow
@pytest.mark.covers("RDB.1", "SCH.1", "REQ.3")
async def test_killed_workers_and_a_killed_server_lose_nothing_and_let_nothing_overlap(redis_fleet: Fleet, server: ValkeyServer) -> None:
    chance = random.Random()
    for _ in range(3):
        await redis_fleet.start(*OPTIONS)
    for number in range(ROUNDS):
        handlers = chance.choices(["quick", "threaded"], weights=[8, 4], k=EACH)
        tasks = [redis_fleet.new(handler, seconds=chance.uniform(0, 0.1)) for handler in handlers]
        await redis_fleet.submit(task.after(chance.uniform(0, 0.5)) for task in tasks)
        await asyncio.sleep(chance.uniform(0, 0.4))
        if number % 2:
            server.kill()
            server.start()
        chance.choice([worker for worker in redis_fleet.workers if worker.running]).kill()
        await redis_fleet.start(*OPTIONS)
    await redis_fleet.finish()
    await redis_fleet.check()
    states = await redis_fleet.states()
    assert len(states) == ROUNDS * EACH
    assert set(states.values()) == {"succeeded"}
