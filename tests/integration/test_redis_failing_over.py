"""Valkey under Sentinels and as a cluster: primaries die, slots are moved; nothing is lost, and nothing runs under one fence twice."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import signal
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from duetime import App, Context, State
from duetime.errors import StoreUnavailable
from duetime.store.open import store_from_url
from tests.chaos.processes import until
from tests.cli.conftest import Program, RunningWorker
from tests.conformance.build import Worker, add, state_of
from tests.integration.test_redis_store import hired, opened
from tests.servers.brokers import ValkeyServer
from tests.servers.valkeys import Cluster, Watched, ask

TASKS = 1_500  # more than workers claim at once
LEASE = 2.0  # so that a new server is closed for 2.4 s, and not for 18


@pytest.fixture
def watched() -> Iterator[Watched]:
    with Watched() as servers:
        yield servers


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster() as servers:
        yield servers


def url_of(servers: Watched | Cluster, folder: Path, options: str = "") -> str:
    return f"{servers.url}?control=sqlite:///{folder / 'control'}.db&timeout=5{options}"


class Attempt(NamedTuple):
    """One call of the handler, from when to when."""

    task: str
    fence: int
    began: float
    ended: float


class Draining:
    """Two workers that run many tasks in parts, and the journal of what their handler was called with."""

    def __init__(self, url: str) -> None:
        self.journal: list[Attempt] = []
        self.began = self.allowed = 0
        self._more = asyncio.Condition()
        self.apps = [App(url), App(url)]
        self.ids: list[str] = []
        for app in self.apps:
            app.task(self.step, name="step", concurrency=20)

    async def step(self, ctx: Context) -> None:
        self.began += 1
        number, began = self.began, time.monotonic()
        try:
            async with self._more:
                await self._more.wait_for(lambda: number <= self.allowed)
        finally:
            self.journal.append(Attempt(ctx.task.id, ctx.fence, began, time.monotonic()))

    async def begin(self, runs: AsyncExitStack) -> None:
        """Submit the tasks, and return when a few have run and others run."""
        for app in self.apps:
            await runs.enter_async_context(app)
        stored = await self.apps[0].submit_many([self.apps[0].handler("step").new() for _ in range(TASKS)])
        self.ids = [task.id for task in stored]
        for app in self.apps:
            await runs.enter_async_context(app.worker(lease=LEASE))
        await self.go_on(10)

    async def go_on(self, count: int) -> None:
        """Let so many more attempts run, and return when others than these have begun and wait."""
        async with self._more:
            self.allowed = self.began + count
            self._more.notify_all()
        await until("a part has run", lambda: self.began > self.allowed)

    async def finish(self) -> None:
        async with self._more:
            self.allowed = 10**9
            self._more.notify_all()

        async def all_ended() -> bool:
            with contextlib.suppress(StoreUnavailable):
                return set(await self.states()) == {State.SUCCEEDED}
            return False

        await until("all have ended", all_ended)

    async def states(self) -> list[State]:
        return [(await self.apps[0].get(id)).state for id in self.ids]

    def check(self) -> None:
        """No task was forgotten, no attempt ran twice under one fence, and no two of a task at once."""
        attempts: dict[str, list[Attempt]] = {}
        for attempt in sorted(self.journal, key=lambda attempt: attempt.began):
            attempts.setdefault(attempt.task, []).append(attempt)
        assert attempts.keys() == set(self.ids)
        for first, second in itertools.chain.from_iterable(map(itertools.pairwise, attempts.values())):
            assert first.fence < second.fence
            assert first.ended <= second.began


@asynccontextmanager
async def draining(url: str) -> AsyncIterator[Draining]:
    async with AsyncExitStack() as runs:
        drained = Draining(url)
        await drained.begin(runs)
        yield drained
        await drained.finish()
        drained.check()


# ---- fail-over ----


@pytest.mark.slow
async def test_workers_go_on_with_a_promoted_replica_that_lacks_their_last_claims_and_ends(watched: Watched, tmp_path: Path) -> None:
    async with draining(url_of(watched, tmp_path, "&durable=replica")) as drained:
        primary = watched.primary
        [replica] = [server for server in watched.servers if server is not primary]
        ask(replica.port, "REPLICAOF", "127.0.0.1", 1)  # from here on it hears nothing
        await drained.go_on(TASKS // 3)
        assert _waiting(primary) < _waiting(replica)  # it does not know what was claimed
        await asyncio.to_thread(primary.kill)
        assert await asyncio.to_thread(watched.await_another, primary) is replica
    again = [task for task, count in Counter(attempt.task for attempt in drained.journal).items() if count > 1]
    assert again  # what only the dead primary knew has run again


def _waiting(server: ValkeyServer) -> int:
    count: int = ask(server.port, "ZCARD", "{duetime}:due:5step\0")
    return count


@pytest.mark.slow
@pytest.mark.long
async def test_workers_go_on_with_the_replica_that_a_cluster_promotes(tmp_path: Path) -> None:
    with Cluster(replicas=1) as cluster:
        async with draining(url_of(cluster, tmp_path, "&durable=replica")):
            owner = cluster.owner()
            await asyncio.to_thread(owner.kill)
            await asyncio.to_thread(cluster.await_another, owner)


@pytest.mark.slow
async def test_a_beat_that_most_sentinels_do_not_stand_behind_proves_nothing(watched: Watched, tmp_path: Path) -> None:
    async with opened(url_of(watched, tmp_path)) as store, hired(store) as worker:
        assert worker.lease.renew().known
        watched.sentinels[0].kill()
        assert worker.lease.renew().known
        watched.sentinels[1].kill()  # as for a worker that is cut off together with the primary
        with pytest.raises(StoreUnavailable, match="fewer than 2 of 3 Sentinels name the same primary"):
            worker.lease.renew()
        watched.sentinels[0].start()
        await until("the Sentinel knows the primary", partial(_renews, worker))


def _renews(worker: Worker) -> bool:
    with contextlib.suppress(StoreUnavailable):
        return worker.lease.renew().known
    return False


# ---- a slot that is moved ----


@pytest.mark.slow
async def test_workers_follow_their_slot_to_another_server_and_back(cluster: Cluster, tmp_path: Path) -> None:
    first = cluster.owner()
    second = next(server for server in cluster.primaries if server is not first)
    async with draining(url_of(cluster, tmp_path)) as drained:
        await asyncio.to_thread(cluster.move, second)
        await drained.go_on(TASKS // 3)
        for server in cluster.primaries:
            ask(server.port, "SCRIPT", "FLUSH")
        await asyncio.to_thread(cluster.move_at_once, first)
        assert cluster.owner() is first


@pytest.mark.slow
async def test_a_call_waits_while_its_slot_is_on_the_way(cluster: Cluster, tmp_path: Path) -> None:
    first = cluster.owner()
    second = next(server for server in cluster.primaries if server is not first)
    async with opened(url_of(cluster, tmp_path)) as store:
        record = await add(store)
        with cluster.moving(second) as move:
            move.some_keys()  # each server has a part of them now
            calls = asyncio.gather(add(store), state_of(store, record))
            await asyncio.sleep(0)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(calls), 0.2)
        added, state = await calls
        assert state is State.PENDING
        assert await state_of(store, added) is State.PENDING


# ---- wrong URLs ----


@pytest.mark.slow
async def test_a_url_of_the_wrong_kind_says_what_to_write(watched: Watched, cluster: Cluster, tmp_path: Path) -> None:
    owner, sentinel, primary = cluster.owner(), watched.sentinels[0], watched.primary
    other = next(server for server in cluster.primaries if server is not owner)
    [replica] = [server for server in watched.servers if server is not primary]
    service = "redis+sentinel://127.0.0.1"
    for url, said in [
        (f"redis://127.0.0.1:{other.port}", "is a node of a cluster, and another one has our keys: write redis[+]cluster://"),
        (f"redis://127.0.0.1:{sentinel.port}", "is a Sentinel: write redis[+]sentinel://"),
        (f"redis+cluster://127.0.0.1:{primary.port}", "belongs to no cluster: write redis://"),
        (f"{service}:{primary.port}/main", "is no Sentinel; write redis://"),
        (f"{service}:{sentinel.port}/other", "watches no 'other', it watches main"),
        (f"redis://127.0.0.1:{replica.port}", "is a replica, which takes no writes; name the primary"),
    ]:
        with pytest.raises(StoreUnavailable, match=said):
            await store_from_url(f"{url}?control=sqlite:///{tmp_path / 'control'}.db").open()


# ---- the command line ----


@pytest.mark.slow
def test_the_command_line_takes_these_urls(watched: Watched, tmp_path: Path) -> None:
    program = Program(url_of(watched, tmp_path))
    with program.start("dev", "--port", "0", stdout=subprocess.DEVNULL) as process:
        dev = RunningWorker(process)
        dev.until_said(r"\^C ends it\.$")
        report = json.loads(program.run("doctor", "--json").stdout)
        assert report["healthy"]
        assert report["store"] == f"{watched.url}/0"
        assert "replica that takes over may lack the last ones" in report["durability"]
        dev.signal(signal.SIGINT)
        assert dev.ended() == 0
