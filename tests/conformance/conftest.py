"""Fixtures of the suite: a store of each kind with a clock that moves only when told to, and workers."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TypeAlias

import pytest

from duetime.clock import ManualClock
from duetime.ids import new_id
from duetime.store import Store
from duetime.store.values import NewWorker
from tests.conformance.build import PLENTY, Worker
from tests.conformance.connections import Connection
from tests.conformance.stores import CAPABILITIES, KINDS, StoreKind

Hire: TypeAlias = Callable[..., Awaitable[Worker]]
Another: TypeAlias = Callable[[], Awaitable[Store]]
Dead: TypeAlias = Callable[..., Awaitable[str]]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test on the kinds of store that `stores` names for it."""
    if "kind" in metafunc.fixturenames:
        asked = CAPABILITIES & set(metafunc.fixturenames)
        module, scope = metafunc.module.__name__.rpartition(".")[2], metafunc.config.getoption("--scope")
        kinds = [pytest.param(kind, id=kind.name) for kind in KINDS if kind.runs(module, metafunc.function.__name__, asked, scope)]
        metafunc.parametrize("kind", kinds, indirect=True)


def pytest_sessionfinish() -> None:
    for kind in KINDS:
        kind.databases.close()


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> Iterator[StoreKind]:
    """The kind of store that the test runs on; what the test made there is gone afterwards."""
    kind: StoreKind = request.param
    yield kind
    kind.databases.clear()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(kind: StoreKind, clock: ManualClock, tmp_path: Path) -> AsyncIterator[Store]:
    """An open store. Whatever a test did to it, nothing impossible may be found in it afterwards."""
    kind.prepare(tmp_path)
    store = kind.store(tmp_path, clock)
    await store.open()
    yield store
    problems = await kind.inspect(tmp_path, store)
    await store.close()
    assert problems == []


@pytest.fixture
async def hire(store: Store) -> AsyncIterator[Hire]:
    """Registers workers, and lets them go after the test."""
    workers: list[Worker] = []

    async def hire(at: Store = store, slots: int = 100) -> Worker:
        worker = NewWorker(id=f"worker-{new_id()}", host="here", pid=os.getpid(), slots={"work": slots})
        workers.append(Worker(at, worker.id, await at.register(worker)))
        return workers[-1]

    yield hire
    for worker in workers:
        worker.lease.close()
        await store.unregister(worker.id)


@pytest.fixture
async def worker(hire: Hire) -> Worker:
    return await hire()


@pytest.fixture
async def another(kind: StoreKind, store: Store, clock: ManualClock, tmp_path: Path) -> AsyncIterator[Another]:
    """Opens further store objects on the same data, as other processes would."""
    async with AsyncExitStack() as stack:

        async def another() -> Store:
            other = kind.store(tmp_path, clock)
            stack.push_async_callback(other.close)
            await other.open()
            return other

        yield another


@pytest.fixture
async def dead_worker(kind: StoreKind, store: Store, clock: ManualClock, tmp_path: Path) -> Dead:
    """Makes a worker that claims all due tasks of a handler, or `limit` of them, and dies. Gives its id."""

    async def dead_worker(handler: str = "work", *, holding: int, limit: int = PLENTY) -> str:
        id = f"dead-{new_id()}"
        assert kind.die(kind.url(tmp_path), clock.now(), id, {handler: limit}) == holding
        return id

    return dead_worker


@pytest.fixture
def newer_tables(kind: StoreKind, store: Store, tmp_path: Path) -> Callable[[], None]:
    """Makes the store's schema look like that of a later version."""
    return lambda: kind.databases.make_newer(tmp_path)


@pytest.fixture
def connection(kind: StoreKind, store: Store, tmp_path: Path) -> Iterator[Connection]:
    """A connection of the caller's own to the store's database, in which it has a table of orders."""
    connection = kind.databases.connect(tmp_path)
    connection.execute("create table orders (id integer primary key, state text)")
    yield connection
    connection.close()
