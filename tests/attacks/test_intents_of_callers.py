"""Callers that die, keep their transaction open, or ask for very much, while they cancel and edit inside their transaction."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psycopg
import pytest

from duetime import App
from duetime.clock import ManualClock
from duetime.errors import DuetimeError
from duetime.model.outcome import SettleVerdict
from duetime.model.task import State
from duetime.store import Store
from duetime.store.intents import Intent
from duetime.store.open import store_from_url
from duetime.store.postgres.address import Address
from duetime.store.postgres.intents import CarryingOut, read_intent
from duetime.store.postgres.store import PostgresStore
from duetime.store.values import Edit, NewWorker
from tests.conformance.build import PLENTY, Worker, add, get, new_task, state_of
from tests.conformance.connections import Connection, PsycopgConnection, SqliteConnection
from tests.integration.callers import bare
from tests.servers.waiting import PATIENCE


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'shop.db'}"
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    store = store_from_url(url, clock=ManualClock())
    await store.open()
    yield store
    assert await store.inspect(repair=False) == []
    await store.close()


@pytest.fixture
async def worker(store: Store) -> AsyncIterator[Worker]:
    lease = await store.register(NewWorker(id="worker", host="here", pid=1, slots={"work": PLENTY}))
    yield Worker(store, "worker", lease)
    lease.close()


@pytest.fixture
def connection(store: Store, url: str, tmp_path: Path) -> Iterator[Connection]:
    own: Connection = SqliteConnection(tmp_path / "shop.db") if url.startswith("sqlite") else PsycopgConnection(bare(url), "of_callers")
    yield own
    own.close()


DYING = """
import asyncio, os, signal, sqlite3, sys
import psycopg
from duetime import App

url, bare, task, when = sys.argv[1:]

async def main():
    app = App(url)
    own = sqlite3.connect(bare, isolation_level=None) if url.startswith("sqlite") else psycopg.connect(bare, autocommit=True)
    await app.open()
    own.execute("begin immediate" if url.startswith("sqlite") else "begin")
    await app.cancel(task, connection=own)
    if when == "after":
        own.execute("commit")
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_caller_that_dies_right_after_its_commit_has_cancelled_and_one_that_dies_before_has_not(url: str, when: str) -> None:
    app = App(url)

    @app.task
    async def expire(order_id: int) -> int:
        return order_id

    async with app:
        task = await expire.now(order_id=7)
        own = url.removeprefix("sqlite:///") if url.startswith("sqlite") else bare(url)
        dying = await asyncio.to_thread(
            subprocess.run, [sys.executable, "-c", DYING, url, own, task.id, when], capture_output=True, text=True, timeout=PATIENCE
        )
        assert dying.returncode == -signal.SIGKILL, dying.stderr
        other = await expire.now(order_id=8)
        async with app.worker():
            assert await app.result(other, timeout=PATIENCE) == 8
            if when == "before":
                assert await app.result(task, timeout=PATIENCE) == 7
        ended = await app.get(task)
        assert (ended.state, len(await app.attempts(task))) == (("succeeded", 1) if when == "before" else ("cancelled", 0))


async def test_nobody_waits_for_a_transaction_that_has_asked_and_stays_open(postgres_url: str) -> None:
    """With a lock on a task or a claim, every statement below would wait for the caller, and the store's lock_timeout would end it."""
    store = store_from_url(postgres_url, clock=ManualClock())
    await store.open()
    lease = await store.register(NewWorker(id="worker", host="here", pid=1, slots={"work": PLENTY}))
    worker = Worker(store, "worker", lease)
    running, waiting, keyed = (
        await add(store, key="a"),
        await add(store, due_at=store.now() + 1, key="b"),
        await add(store, "other", key="c"),
    )
    claimed = await worker.take_one()
    assert claimed.id == running.id
    own = PsycopgConnection(bare(postgres_url), "of_callers")
    own.begin()
    for task in (running, waiting, keyed):
        await store.get_on(own.own, [task.id])
        await store.intend(own.own, [Intent(task.id, Edit(id=task.id, priority=9, payload=b'{"n":1}')), Intent(task.id)])
    assert await worker.end(claimed, State.SUCCEEDED) is SettleVerdict.ACCEPTED
    assert await store.edit([Edit(id=waiting.id, due_at=store.now())])
    taken = await worker.take_one()
    assert taken.id == waiting.id
    assert await worker.end(taken, State.SUCCEEDED) is SettleVerdict.ACCEPTED
    await store.cancel([keyed.id])
    await add(store, key="a")
    assert await store.carry_out(PLENTY) == 0
    before = [await get(store, task) for task in (running, waiting, keyed)]
    own.commit()
    assert await store.carry_out(PLENTY) == 6
    after = [await get(store, task) for task in (running, waiting, keyed)]
    assert [task.state for task in after] == [State.SUCCEEDED, State.SUCCEEDED, State.CANCELLED]
    assert after[:2] == before[:2]
    own.close()
    lease.close()
    await store.close()


async def test_effect_and_removal_of_an_intent_are_one_step(store: Store, connection: Connection, worker: Worker, url: str) -> None:
    """A process that dies in between is a transaction that fails in between: here the removal is refused."""
    waiting, edited = await add(store), await add(store, "other")
    running = await worker.take_one()
    pending = await add(store)
    intents = [Intent(running.id), Intent(pending.id), Intent(edited.id, Edit(id=edited.id, priority=9))]
    assert waiting.id == running.id
    connection.begin()
    await store.intend(connection.own, intents)
    connection.commit()
    refuse_removal(connection, url)
    for _ in range(2):
        with pytest.raises(DuetimeError, match="stays"):
            await store.carry_out(PLENTY)
        assert await state_of(store, pending) is State.PENDING
        assert (await get(store, edited)).priority == edited.priority
        assert [attempt.cancelling for attempt in await store.attempts_of(worker.id)] == [False]
    allow_removal(connection, url)
    assert await store.carry_out(PLENTY) == 3
    assert await state_of(store, pending) is State.CANCELLED
    assert (await get(store, edited)).priority == 9
    assert [attempt.cancelling for attempt in await store.attempts_of(worker.id)] == [True]


def refuse_removal(connection: Connection, url: str) -> None:
    if url.startswith("sqlite"):
        connection.execute("create trigger stays before delete on duetime_intent begin select raise(abort, 'stays'); end")
        return
    schema = Address.from_url(url).schema
    connection.execute(f"create function {schema}.stays() returns trigger language plpgsql as $$ begin raise 'stays'; end $$")
    connection.execute(f"create trigger stays before delete on {schema}.intent for each row execute function {schema}.stays()")


def allow_removal(connection: Connection, url: str) -> None:
    on = "" if url.startswith("sqlite") else f" on {Address.from_url(url).schema}.intent"
    connection.execute(f"drop trigger stays{on}")


@pytest.mark.slow
async def test_ten_thousand_intents_of_one_transaction_are_carried_out_in_batches(
    store: Store, connection: Connection, worker: Worker
) -> None:
    tasks = [added.record.id for added in await store.add([new_task() for _ in range(10_000)])]
    running = {claimed.id for claimed in await worker.take(wants={"work": 500}, total=500)}
    connection.begin()
    edits = [Intent(task, Edit(id=task, priority=9)) for task in tasks[5_000:]]
    await store.intend(connection.own, [Intent(task) for task in tasks[:5_000]] + edits)
    connection.commit()
    calls = []
    while done := await store.carry_out(1_000):
        calls.append(done)
    assert calls == [1_000] * 10
    records = [
        record for start in range(0, 10_000, 1_000) for record in await store.get(tasks[start : start + 1_000]) if record is not None
    ]
    assert len(records) == 10_000
    cancelled = {record.id for record in records if record.state is State.CANCELLED or record.cancelling}
    assert cancelled == set(tasks[:5_000])
    edited = {record.id for record in records if record.priority == 9}
    assert edited == set(tasks[5_000:]) - running


async def test_an_edit_that_no_store_would_accept_does_not_stop_the_others(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler may have only so many collections; of two edits that bring it there, both in one batch, one is refused."""
    monkeypatch.setattr("duetime.store.postgres.lanes.MAX_COLLECTIONS", 2)
    store = store_from_url(postgres_url, clock=ManualClock())
    await store.open()
    one, two, three = await add(store, collection="a"), await add(store, collection="b"), await add(store, "other")
    with psycopg.connect(bare(postgres_url)) as own:
        own.execute("select 1")
        intents = [Intent(one.id, Edit(id=one.id, collection="c")), Intent(two.id), Intent(three.id, Edit(id=three.id, priority=1))]
        await store.intend(own, intents)
        own.commit()
    assert await store.carry_out(PLENTY) == 3
    assert (await get(store, one)).collection == "a"
    assert await state_of(store, two) is State.CANCELLED
    assert (await get(store, three)).priority == 1
    await store.close()


async def test_an_intent_that_another_process_deals_with_is_left_to_it(postgres_url: str) -> None:
    store = store_from_url(postgres_url, clock=ManualClock())
    await store.open()
    first, second = await add(store), await add(store)
    schema = Address.from_url(postgres_url).schema
    with psycopg.connect(bare(postgres_url)) as own:
        own.execute("select 1")
        await store.intend(own, [Intent(first.id), Intent(second.id)])
        own.commit()
        own.execute(f"select from {schema}.intent where task = '{first.id}' for update".encode())
        assert await store.carry_out(PLENTY) == 1
        assert [await state_of(store, task) for task in (first, second)] == [State.PENDING, State.CANCELLED]
        own.rollback()
    assert await store.carry_out(PLENTY) == 1
    assert await state_of(store, first) is State.CANCELLED
    await store.close()


async def test_a_process_that_comes_late_to_an_intent_does_not_repeat_it(postgres_url: str) -> None:
    """It has read the intents, stood still while another carried them out, and goes on after an operator's retry."""
    store = PostgresStore.from_url(postgres_url, clock=ManualClock())
    await store.open()
    cancelled, edited = await add(store), await add(store, priority=1)
    with psycopg.connect(bare(postgres_url)) as own:
        own.execute("select 1")
        await store.intend(own, [Intent(cancelled.id), Intent(edited.id, Edit(id=edited.id, priority=9))])
        own.commit()
    read = [read_intent(row) for row in await store._opened.rows(store._sql.first_intents, [10])]
    assert await store.carry_out(PLENTY) == 2
    await store.retry([cancelled.id])
    await store.edit([Edit(id=edited.id, priority=5)])
    late = CarryingOut(store._opened.transaction, store._sql, store.now(), store._lane_id)
    await late.run(read)
    assert late.count == 0
    assert await state_of(store, cancelled) is State.PENDING
    assert (await get(store, edited)).priority == 5
    await store.close()
