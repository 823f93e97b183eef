"""Targets that break, with real workers and a real server: one probe at a time, nothing lost, no try used while it is closed."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest

from duetime import App, DisableAfter, RetryPolicy
from duetime.app.handlers import AnyHandler
from duetime.client.gates import barrier
from tests.chaos.fleet import until
from tests.servers.http import Conversation, Server, serving
from tests.servers.waiting import PATIENCE

RULE = DisableAfter(3, lasting=0, probe_every=1)
WORKERS = 3


class Switch:
    """A server that refuses, or does not; it notes how many requests it serves at once."""

    def __init__(self) -> None:
        self.broken = True
        self.seen: Counter[str] = Counter()

    async def talk(self, conversation: Conversation) -> None:
        while (request := await conversation.request()) is not None:
            self.seen[request.headers["duetime-task"]] += 1
            await conversation.answer(503 if self.broken else 200)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'duetime.db'}"
    address: str = request.getfixturevalue("postgres_url")
    return address


def declared(url: str, server: Server) -> tuple[App, AnyHandler]:
    app = App(url, user="test")
    policy = RetryPolicy(tries=2, base=3_600, cap=3_600)
    return app, app.http("charge", server.url(), concurrency=2, retry=policy, disable_after=RULE)


async def in_force(app: App) -> bool:
    version = (await app.store.gates()).version
    return not (await barrier(app.store, version)).waiting


@pytest.mark.slow
@pytest.mark.timeout(1_800)
async def test_of_many_waiting_tasks_one_at_a_time_tries_and_all_run_when_it_succeeds(url: str, request: pytest.FixtureRequest) -> None:
    many = 100_000 if request.config.getoption("--scope") == "everything" else 300
    switch = Switch()
    async with serving(switch.talk) as server, AsyncExitStack() as stack:
        apps = [declared(url, server) for _ in range(WORKERS)]
        [app, charge] = apps[0]
        tasks = await app.submit_many([charge.new() for _ in range(many)])
        for each, _ in apps:
            await stack.enter_async_context(each.worker())

        async def closed() -> bool:
            return bool(await app.gates.list())

        await until("the gate is closed", closed)
        await until("all workers know it", partial(in_force, app))
        before = len(switch.seen)
        assert before < len(tasks)

        async def probed() -> bool:
            return len(switch.seen) >= before + 2 and len(await app.gates.list()) == 1

        await until("two probes have failed", probed)
        assert max(switch.seen.values()) == 1, "another task each time, and none of those that have failed"
        switch.broken = False

        async def went_on(seen: int) -> bool:
            return len(switch.seen) > seen or await drained()

        async def drained() -> bool:
            counts = await app.store.counts()
            return not sum(lane.due for lane in counts.lanes) and not any(worker.running for worker in await app.workers())

        while not await drained():
            await until("more of what waited has run", partial(went_on, len(switch.seen)))
        assert len(switch.seen) == many
        assert await app.gates.list() == []
        failed = [task async for task in app.tasks(handler="charge", state="pending")]
        assert len(failed) <= before, "they come again in an hour: they failed before the gate was closed"
        assert max(task.tries for task in failed) == 1
        spared = [task async for task in app.tasks(handler="charge", state="succeeded") if task.attempt > 1]
        assert spared, "the probes that failed"
        assert {task.tries for task in spared} == {0}
        actions = Counter(entry.action for entry in (await app.tokens.audit.list(by="duetime")).items)
        assert actions == {"gates.pause": 1, "gates.open": 1}


@pytest.mark.slow
async def test_a_probe_that_its_worker_cannot_end_is_not_the_last_one(url: str) -> None:
    """A worker that stops in the middle of a probe gives the task back; the next interval has another probe."""
    switch, hold, held = Switch(), asyncio.Event(), asyncio.Event()

    async def talk(conversation: Conversation) -> None:
        while (await conversation.request()) is not None:
            if not switch.broken:
                held.set()
                await hold.wait()
            await conversation.answer(503 if switch.broken else 200)

    async with serving(talk) as server:
        app, charge = declared(url, server)
        [other, _] = declared(url, server)
        await app.submit_many([charge.new() for _ in range(300)])

        async def closed() -> bool:
            return bool(await app.gates.list())

        async with app.worker(grace=0):
            await until("the gate is closed", closed)
            switch.broken = False
            await asyncio.wait_for(held.wait(), PATIENCE)
        hold.set()
        async with other.worker():

            async def opened() -> bool:
                return not await other.gates.list()

            await until("another probe has opened the gate", opened)
