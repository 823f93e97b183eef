"""What an acknowledgement is worth at each level of `durable=`, and how long a server that forgets stays closed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from duetime.clock import SECOND, ManualClock
from duetime.errors import StoreUnavailable
from duetime.ids import new_id
from duetime.model.task import State
from duetime.store.open import store_from_url
from duetime.store.values import AddVerdict, NewWorker
from tests.conformance.build import Worker, add, get, new_task, state_of
from tests.integration.test_redis_store import hired, opened, repeated, url_of
from tests.servers.brokers import ValkeyServer
from tests.servers.proxy import Proxy
from tests.servers.valkeys import REPLICATED, ask, feeds
from tests.servers.waiting import wait_until


@pytest.fixture
def server() -> Iterator[ValkeyServer]:
    with ValkeyServer(*REPLICATED) as server:
        yield server


@pytest.fixture
def wire(server: ValkeyServer) -> Iterator[Proxy]:
    """What lies between the server and its replica."""
    with Proxy(server.port) as wire:
        yield wire


@pytest.fixture
def replica(wire: Proxy) -> Iterator[ValkeyServer]:
    with ValkeyServer("--replicaof", "127.0.0.1", str(wire.port)) as replica:
        wait_until("the replica is fed", lambda: feeds(wire.port, replica.port))
        yield replica


# ---- disk ----


async def test_what_is_acknowledged_as_on_disk_survives_a_kill_right_then(server: ValkeyServer, tmp_path: Path) -> None:
    async with opened(url_of(server.port, tmp_path) + "&durable=disk") as store:
        assert "(durable=disk)" in store.traits.durability
        records = await asyncio.gather(*[add(store) for _ in range(50)])  # they share a few waits
        server.kill()
        server.start()
        await repeated(store)
        assert {await state_of(store, record) for record in records} == {State.PENDING}


@pytest.mark.slow
async def test_what_the_server_does_not_flush_is_not_acknowledged_as_on_disk(server: ValkeyServer, tmp_path: Path) -> None:
    async with opened(url_of(server.port, tmp_path).replace("timeout=5", "timeout=1") + "&durable=disk") as store:
        record = await add(store)
        ask(server.port, "CONFIG", "SET", "appendfsync", "no")
        task = new_task()
        with pytest.raises(StoreUnavailable, match=r"was stored, but it is not on the server's disk yet, .* repeating the call is safe"):
            await store.add([task])
        with pytest.raises(StoreUnavailable, match="not on the server's disk yet"):
            await store.cancel([record.id])
        ask(server.port, "CONFIG", "SET", "appendfsync", "everysec")
        assert [added.verdict for added in await store.add([task])] == [AddVerdict.REPEATED]


# ---- replica ----


@pytest.mark.slow
@pytest.mark.parametrize("level", ["replica", "both"])
async def test_nothing_is_acknowledged_while_the_replica_is_cut_off(
    server: ValkeyServer, wire: Proxy, replica: ValkeyServer, level: str, tmp_path: Path
) -> None:
    async with opened(url_of(server.port, tmp_path).replace("timeout=5", "timeout=2") + f"&durable={level}") as store:
        sure = await add(store)
        wire.hold()
        task = new_task()
        with pytest.raises(StoreUnavailable, match=r"this was stored, but .* repeating the call is safe"):
            await store.add([task])
        with pytest.raises(StoreUnavailable, match="this was stored, but"):
            await store.add([task])  # that it is stored already does not make it safe
        wire.refuse()
        server.kill()
        ask(replica.port, "REPLICAOF", "NO", "ONE")
        async with opened(url_of(replica.port, tmp_path)) as promoted:
            assert (await get(promoted, sure)).id == sure.id
            assert await promoted.get([task.id]) == [None]


@pytest.mark.slow
async def test_a_promoted_replica_stays_closed_although_it_flushes_each_write(tmp_path: Path) -> None:
    """It has all that it was told, but not all that the primary said."""
    always = ("--appendfsync", "always")
    clock = ManualClock()
    with ValkeyServer(*REPLICATED, *always) as server, ValkeyServer(*always, "--replicaof", "127.0.0.1", str(server.port)) as replica:
        wait_until("the replica is fed", lambda: feeds(server.port, replica.port))
        async with opened(url_of(server.port, tmp_path) + "&durable=both", clock) as store:
            id = f"worker-{new_id()}"
            lease = await store.register(NewWorker(id=id, host="here", pid=1, slots={"work": 1}))
            lease.close()
            await add(store)
            ask(replica.port, "REPLICAOF", "127.0.0.1", 1)
            lost = await Worker(store, id, lease).take_one()
            server.kill()
        ask(replica.port, "REPLICAOF", "NO", "ONE")
        async with opened(url_of(replica.port, tmp_path), clock) as store, hired(store) as worker:
            claim = await worker.claim()
            assert claim.tasks == []
            assert claim.next_at == clock.now() + 18 * SECOND
            clock.set(claim.next_at)
            again = await worker.take_one()
            assert (again.id, again.attempt) == (lost.id, lost.attempt)
            assert again.fence > lost.fence


# ---- what cannot be had ----


@pytest.mark.parametrize(
    ("settings", "level", "said"),
    [
        (("--appendonly", "no"), "disk", "durable=disk needs a server with appendonly yes"),
        (("--appendonly", "no"), "both", "durable=both needs a server with appendonly yes"),
        (("--appendfsync", "no"), "disk", "durable=disk needs a server that flushes its file by itself"),
        ((), "replica", "durable=replica needs a replica, and none is connected"),
        ((), "both", "durable=both needs a replica, and none is connected"),
        (("--rename-command", "WAITAOF", ""), "both", "needs WAITAOF, .* use Valkey, or Redis 7.2 or newer"),
        (("--rename-command", "WAITAOF", ""), "disk", "needs WAITAOF, .* set appendfsync always, or use Valkey"),
    ],
)
async def test_a_level_that_the_server_cannot_reach_is_refused(settings: tuple[str, ...], level: str, said: str, tmp_path: Path) -> None:
    with ValkeyServer(*settings) as server, pytest.raises(StoreUnavailable, match=said):
        await store_from_url(url_of(server.port, tmp_path) + f"&durable={level}").open()


@pytest.mark.slow
async def test_a_replica_that_was_there_before_and_is_away_stops_only_what_must_be_safe(
    server: ValkeyServer, wire: Proxy, replica: ValkeyServer, tmp_path: Path
) -> None:
    url = url_of(server.port, tmp_path).replace("timeout=5", "timeout=1") + "&durable=replica"
    async with opened(url) as store:
        await add(store)
    wire.refuse()
    wire.cut()
    async with opened(url) as store:
        assert await store.upcoming("work", 10) != []
        with pytest.raises(StoreUnavailable, match="no replica has it yet"):
            await store.add([new_task()])


# ---- leases ----


@pytest.mark.parametrize(("lease", "closed"), [(60.0, 72.0), (2.0, 2.4)])
async def test_a_server_that_may_have_forgotten_stays_closed_for_as_long_as_the_longest_lease(
    server: ValkeyServer, tmp_path: Path, lease: float, closed: float
) -> None:
    clock = ManualClock()
    async with opened(url_of(server.port, tmp_path), clock) as store:
        id = f"worker-{new_id()}"
        own = await store.register(NewWorker(id=id, host="here", pid=1, slots={"work": 1}, lease=lease))
        own.close()
        await add(store)
        server.kill()
        server.start()
        await repeated(store)
        assert (await Worker(store, id, own).claim()).next_at == clock.now() + closed * SECOND


@pytest.mark.slow
async def test_a_lease_does_not_count_before_a_replica_knows_how_long_it_is(
    server: ValkeyServer, wire: Proxy, replica: ValkeyServer, tmp_path: Path
) -> None:
    async with opened(url_of(server.port, tmp_path).replace("timeout=5", "timeout=1")) as store:
        wire.hold()
        worker = NewWorker(id=f"worker-{new_id()}", host="here", pid=1, slots={"work": 1}, lease=60.0)
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="no replica has it yet"):
                await store.register(worker)
        wire.heal()
        (await store.register(worker)).close()
