"""Cancels and edits inside the caller's own transaction, through the App."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest

from duetime import App, CancelVerdict, ChangeVerdict, Context, InvalidPayload, InvalidValue, TaskCancelled, TaskNotFound
from duetime.api.duties import performing
from duetime.ids import new_id
from duetime.model.why import ReasonKind
from duetime.store.values import HintKind
from duetime.testing import using
from tests.conformance.connections import Connection, PsycopgConnection, SqliteConnection
from tests.integration.callers import CALLERS, Caller, bare
from tests.servers.waiting import PATIENCE


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'shop.db'}"
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.fixture
def connection(store_url: str, app: App, tmp_path: Path) -> Iterator[Connection]:
    own: Connection
    own = (
        SqliteConnection(tmp_path / "shop.db") if store_url.startswith("sqlite") else PsycopgConnection(bare(store_url), "shop_of_callers")
    )
    yield own
    own.close()


@pytest.fixture
async def app(store_url: str) -> AsyncIterator[App]:
    app = App(store_url)

    @app.task
    async def expire(order_id: int = 0) -> int:
        return order_id

    @app.task
    async def wait_for_cancel(ctx: Context) -> None:
        await asyncio.Event().wait()

    async with app:
        yield app


async def test_a_cancel_is_requested_and_then_done_by_a_worker(app: App, connection: Connection) -> None:
    task = await app.handler("expire").after(3600, order_id=7)
    async with app.worker():
        connection.begin()
        assert await app.cancel(task, connection=connection.own) is CancelVerdict.REQUESTED
        connection.commit()
        with pytest.raises(TaskCancelled):
            await app.result(task, timeout=PATIENCE)


async def test_a_running_attempt_is_told_to_stop(app: App, connection: Connection) -> None:
    task = await app.handler("wait_for_cancel").now()
    async with app.worker():
        while (await app.get(task)).state != "running":  # noqa: ASYNC110  its start is another process's business
            await asyncio.sleep(0.01)
        connection.begin()
        await app.cancel(task, connection=connection.own)
        connection.commit()
        with pytest.raises(TaskCancelled):
            await app.result(task, timeout=PATIENCE)


async def test_a_task_is_named_by_handler_and_key_as_usual(app: App, connection: Connection) -> None:
    expire = app.handler("expire")
    task = await expire.options(key="order-7").after(3600)
    connection.begin()
    own = await expire.options(key="order-8", connection=connection.own).after(3600)
    answers = [await app.cancel(handler=expire, key=f"order-{each}", connection=connection.own) for each in (7, 8, 9)]
    assert answers == ["requested", "requested", "unknown"]
    with pytest.raises(InvalidValue, match="together"):
        await app.cancel(handler=expire, connection=connection.own)
    connection.commit()
    assert await app.store.carry_out(10) == 2
    assert [(await app.get(each)).state for each in (task, own)] == ["cancelled", "cancelled"]


async def test_an_edit_is_requested_and_checked_as_usual(app: App, connection: Connection) -> None:
    task = await app.handler("expire").after(3600, order_id=7)
    at = datetime.now(UTC).replace(microsecond=0) + timedelta(days=3)
    connection.begin()
    assert await app.edit(task, priority=9, payload={"order_id": 8}, connection=connection.own) is ChangeVerdict.REQUESTED
    assert await app.reschedule(task, due_at=at, connection=connection.own) is ChangeVerdict.REQUESTED
    with pytest.raises(InvalidPayload):
        await app.edit(task, payload={"order": 8}, connection=connection.own)
    with pytest.raises(InvalidValue, match="nothing to change"):
        await app.edit(task, connection=connection.own)
    with pytest.raises(InvalidValue, match="priority"):
        await app.edit(task, priority=12, connection=connection.own)
    assert connection.in_transaction
    connection.commit()
    assert await app.store.carry_out(10) == 2
    changed = await app.get(task)
    assert (changed.priority, changed.payload, changed.due_at) == (9, {"order_id": 8}, at)


async def test_a_task_that_does_not_exist_is_an_error_that_leaves_the_transaction_open(app: App, connection: Connection) -> None:
    connection.begin()
    for call in (app.cancel(new_id(), connection=connection.own), app.edit(new_id(), priority=1, connection=connection.own)):
        with pytest.raises(TaskNotFound):
            await call
    assert connection.in_transaction
    connection.rollback()


async def test_why_says_what_is_not_carried_out_yet(app: App, connection: Connection) -> None:
    task = await app.handler("expire").after(3600)
    connection.begin()
    await app.edit(task, priority=9, connection=connection.own)
    await app.cancel(task, connection=connection.own)
    connection.commit()
    first, *others = await app.why(task)
    assert first.kind is ReasonKind.REQUESTED
    assert first.text.startswith("an edit and a cancel of it was committed in a caller's transaction")
    assert others
    await app.store.carry_out(10)
    assert [reason.kind for reason in await app.why(task)] == [ReasonKind.FINISHED]


@pytest.mark.slow
async def test_a_program_without_an_event_loop_asks_through_sync(app: App, connection: Connection, store_url: str) -> None:
    task = await app.handler("expire").after(3600, order_id=7)

    def pay() -> list[str]:
        other = App(store_url)
        path = store_url.removeprefix("sqlite:///")
        if store_url.startswith("sqlite"):
            own: Connection = SqliteConnection(Path(path))
        else:
            own = PsycopgConnection(bare(store_url), "shop_of_callers")
        other.sync(other.open())
        own.begin()
        try:
            return [
                other.sync(other.edit(task, payload={"order_id": 8}, connection=own.own)),
                other.sync(other.reschedule(task, delay=60, connection=own.own)),
                other.sync(other.cancel(task, connection=own.own)),
            ]
        finally:
            own.commit()
            own.close()
            other.sync(other.close())

    assert await asyncio.to_thread(pay) == ["requested"] * 3
    assert await app.store.carry_out(10) == 3
    ended = await app.get(task)
    assert (ended.state, ended.payload) == ("cancelled", {"order_id": 8})


async def test_over_a_server_it_is_refused_as_submitting_is(connection: Connection) -> None:
    remote = App("http://127.0.0.1:9", token="dt_x")
    for call in (
        remote.client.cancel_on(connection.own, new_id()),
        remote.client.edit_on(connection.own, new_id(), priority=1),
        remote.client.prepare_edit(new_id(), {}),
    ):
        with pytest.raises(InvalidValue, match=r"connection=, a part of your own transaction, needs a store"):
            await call


@pytest.mark.parametrize("kind", CALLERS)
async def test_every_kind_of_connection_to_postgres_is_taken(kind: str, postgres_url: str) -> None:
    app = App(postgres_url)
    expire = app.task(name="expire")(_expire)
    async with app, CALLERS[kind](postgres_url) as caller:
        kept, cancelled = await expire.after(3600, order_id=1), await expire.after(3600, order_id=2)
        await check_caller(app, caller, kept.id, cancelled.id)


async def check_caller(app: App, caller: Caller, kept: str, cancelled: str) -> None:
    await caller.begin()
    await app.cancel(kept, connection=caller.connection)
    await caller.rollback()
    await caller.begin()
    await app.edit(cancelled, priority=2, collection="eu", payload={"order_id": 3}, connection=caller.connection)
    await app.cancel(cancelled, connection=caller.connection)
    await caller.commit()
    assert await app.store.carry_out(10) == 2
    record = await app.get(cancelled)
    assert ((await app.get(kept)).state, record.state) == ("pending", "cancelled")
    assert (record.priority, record.collection, record.payload) == (2, "eu", {"order_id": 3})


async def _expire(order_id: int) -> int:
    return order_id


async def test_a_commit_on_postgres_wakes_listeners(postgres_url: str) -> None:
    app = App(postgres_url)
    expire = app.task(name="expire")(_expire)
    heard: list[HintKind] = []
    async with app, App(postgres_url) as other:
        task = await expire.after(3600, order_id=1)
        listener = other.store.listen(lambda hint: heard.append(hint.kind))
        own = await psycopg.AsyncConnection.connect(bare(postgres_url))
        # a listener may not be connected yet, and what was sent before is lost
        async with asyncio.timeout(PATIENCE):
            while HintKind.INTENTS not in heard:
                async with own.transaction():
                    await app.cancel(task, connection=own)
                await asyncio.sleep(0.02)
        await own.close()
        listener.close()


async def test_the_kit_carries_out_what_a_transaction_asked_for(tmp_path: Path) -> None:
    app = App("sqlite:///unused.db")
    ran: list[int] = []

    @app.task
    async def expire(order_id: int) -> None:
        ran.append(order_id)

    async with using(app, file=tmp_path / "shop.db") as t:
        cancelled, edited = await expire.after(60, order_id=1), await expire.after(60, order_id=2)
        own = sqlite3.connect(tmp_path / "shop.db", isolation_level=None)
        own.execute("begin immediate")
        await app.cancel(cancelled, connection=own)
        await app.edit(edited, payload={"order_id": 3}, connection=own)
        own.execute("commit")
        own.close()
        await t.advance(60)
        assert (ran, t.task(cancelled).state) == ([3], "cancelled")


async def test_a_worker_that_starts_does_not_run_what_was_cancelled_before(app: App, connection: Connection) -> None:
    cancelled, other = await app.handler("expire").now(order_id=1), await app.handler("expire").now(order_id=2)
    connection.begin()
    await app.cancel(cancelled, connection=connection.own)
    connection.commit()
    async with app.worker():
        assert await app.result(other, timeout=PATIENCE) == 2
    assert ((await app.get(cancelled)).state, await app.attempts(cancelled)) == ("cancelled", [])


async def test_a_server_carries_out_intents_too(app: App, connection: Connection) -> None:
    task = await app.handler("expire").after(3600)
    async with performing(app):
        connection.begin()
        await app.cancel(task, connection=connection.own)
        connection.commit()
        with pytest.raises(TaskCancelled):
            await app.result(task, timeout=PATIENCE)
