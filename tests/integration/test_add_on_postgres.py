"""Submitting inside the caller's own transaction on PostgreSQL (I8): committed means exactly one task, rolled back means none."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import AsyncExitStack, suppress
from typing import Any

import asyncpg
import psycopg
import psycopg.rows
import psycopg2  # type: ignore[import-untyped]
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.pool import NullPool

from duetime import App, DuplicateKey, Handler, InvalidPayload, InvalidValue, StoreUnavailable, TaskNotFound
from duetime.store.postgres.runner import failure, runner_for
from duetime.store.postgres.wakeups import channel_of
from tests.integration.callers import ASYNCHRONOUS, CALLERS, SYNCHRONOUS, Caller, bare
from tests.servers import running
from tests.servers.waiting import PATIENCE, wait_until

ExpireOrder = Handler[..., str, Any]
Stored = Callable[[], Awaitable[tuple[int, int]]]
Other = psycopg.Connection[Any]

every_caller = pytest.mark.parametrize("kind", CALLERS)
some_callers = pytest.mark.parametrize("kind", ["psycopg", "sqlalchemy-psycopg2", "asyncpg", "async-session"])
synchronous_callers = pytest.mark.parametrize("kind", SYNCHRONOUS)
asynchronous_callers = pytest.mark.parametrize("kind", ASYNCHRONOUS)


def server() -> str:
    return running.newest_postgres()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """One schema for all tests here, beside the table of the callers; each test has a handler of its own."""
    url = running.postgres_url(server(), schema="add_on")
    with psycopg.connect(bare(url), autocommit=True) as connection:
        connection.execute("drop schema if exists add_on cascade")
        connection.execute("create table if not exists orders (id bigint generated always as identity, note text)")
        yield url
        connection.execute("drop schema if exists add_on cascade")
        connection.execute("drop table orders")


@pytest.fixture
def other(url: str) -> Iterator[Other]:
    """Another connection, which sees what is committed."""
    with psycopg.connect(bare(url), autocommit=True) as connection:
        connection.execute("truncate orders")
        yield connection


@pytest.fixture
async def app(url: str) -> AsyncIterator[App]:
    async with App(url, user="anna@shop") as app:
        yield app


@pytest.fixture
def expire_order(app: App, request: pytest.FixtureRequest) -> ExpireOrder:
    async def expire_order(order_id: int, note: str = "") -> str:
        return f"order {order_id} expired{note}"

    handler: ExpireOrder = app.task(name=request.node.name)(expire_order)
    return handler


@pytest.fixture
async def caller(kind: str, url: str) -> AsyncIterator[Caller]:
    async with CALLERS[kind](url) as caller:
        yield caller


@pytest.fixture
def stored(app: App, expire_order: ExpireOrder, other: Other) -> Stored:
    """Return a function that counts what is committed: tasks of this test, and orders."""

    async def stored() -> tuple[int, int]:
        tasks = [task async for task in app.tasks(handler=expire_order)]
        return len(tasks), len(other.execute("select from orders").fetchall())

    return stored


# ---- the promise, for every kind of connection ----


@every_caller
@pytest.mark.covers("KBL.2")
async def test_committed_means_exactly_one_task(app: App, expire_order: ExpireOrder, caller: Caller, stored: Stored) -> None:
    await caller.begin()
    await caller.execute("insert into orders (note) values ('placed')")
    task = await expire_order.options(connection=caller.connection, key="order-7").after(60, order_id=7)
    with pytest.raises(TaskNotFound):
        await app.get(task)
    assert await stored() == (0, 0)
    await caller.commit()
    assert await stored() == (1, 1)
    seen = await app.get(task)
    assert (seen.payload, seen.key, seen.state, seen.submitted_by) == ({"order_id": 7}, "order-7", "pending", "anna@shop")


@every_caller
@pytest.mark.covers("KBL.2")
async def test_rolled_back_means_none(app: App, expire_order: ExpireOrder, caller: Caller, stored: Stored) -> None:
    await caller.begin()
    await caller.execute("insert into orders (note) values ('placed')")
    task = await expire_order.options(connection=caller.connection, key="order-7").after(60, order_id=7)
    await caller.rollback()
    assert await stored() == (0, 0)
    with pytest.raises(TaskNotFound):
        await app.get(task)
    await expire_order.options(key="order-7").after(60, order_id=7)  # the key is free
    assert await stored() == (1, 0)


@every_caller
async def test_several_calls_share_one_transaction(app: App, expire_order: ExpireOrder, caller: Caller, stored: Stored) -> None:
    expiry = expire_order.options(connection=caller.connection)
    await caller.begin()
    await expiry.after(60, order_id=1)
    await app.submit_many([expire_order.new(order_id=each) for each in range(2, 12)], connection=caller.connection)
    await expiry.now(order_id=12)
    assert await stored() == (0, 0)
    await caller.commit()
    assert await stored() == (12, 0)


@every_caller
async def test_keys_mean_the_same_inside_and_a_refusal_leaves_the_transaction_open(
    app: App, expire_order: ExpireOrder, caller: Caller, stored: Stored
) -> None:
    held = await expire_order.options(key="order-1").after(60, order_id=1)
    expiry = expire_order.options(connection=caller.connection)
    await caller.begin()
    await caller.execute("insert into orders (note) values ('placed')")
    with pytest.raises(DuplicateKey):
        await expiry.options(key="order-1").after(60, order_id=2)
    with pytest.raises(InvalidPayload):
        await expiry.after(60, order_id="no number")
    kept = await expiry.options(key="order-1", if_exists="keep").after(60, order_id=3)
    assert (kept.id, kept.payload) == (held.id, {"order_id": 1})
    replaced = await expiry.options(key="order-1", if_exists="replace").after(60, order_id=4)
    assert (replaced.id, replaced.payload) == (held.id, {"order_id": 4})
    new = await expiry.options(key="order-2").after(60, order_id=5)
    with pytest.raises(DuplicateKey) as taken:
        await expiry.options(key="order-2").after(60, order_id=6)
    assert taken.value.task_id == new.id
    assert (await app.get(held)).payload == {"order_id": 1}
    await caller.commit()
    assert (await app.get(held)).payload == {"order_id": 4}
    assert await stored() == (2, 1)


@every_caller
async def test_a_savepoint_of_the_callers_takes_its_tasks_back(app: App, expire_order: ExpireOrder, caller: Caller) -> None:
    expiry = expire_order.options(connection=caller.connection)
    await caller.begin()
    kept = await expiry.after(60, order_id=1)
    await caller.execute("savepoint maybe")
    await expiry.after(60, order_id=2)
    await caller.execute("rollback to savepoint maybe")
    await caller.commit()
    assert [task.id async for task in app.tasks(handler=expire_order)] == [kept.id]


@every_caller
async def test_a_connection_that_dies_before_its_commit_leaves_nothing(
    expire_order: ExpireOrder, kind: str, url: str, other: Other, stored: Stored
) -> None:
    async with AsyncExitStack() as stack:
        caller = await stack.enter_async_context(CALLERS[kind](url))
        await caller.begin()
        await caller.execute("insert into orders (note) values ('placed')")
        await expire_order.options(connection=caller.connection).after(60, order_id=1)
        [[pid]] = await runner_for(caller.connection).rows("select pg_backend_pid()")
        assert other.execute("select pg_terminate_backend(%s, 10000)", [pid]).fetchone() == (True,)
        with pytest.raises(StoreUnavailable, match="connection= to the store"):
            await expire_order.options(connection=caller.connection).after(60, order_id=2)
        with pytest.raises(Exception, match=r".*") as lost:
            await caller.commit()
        assert failure(lost.value) is not None
        stack.push(lambda *_: True)  # closing what is lost may fail, in each driver's own way
    assert await stored() == (0, 0)


@every_caller
async def test_text_of_all_languages_arrives(app: App, expire_order: ExpireOrder, caller: Caller) -> None:
    note = "Grüße 日本 🚀 'it''s' \"q\" \\ 100 % %(p1)s $1 {a,b} \u0000"
    key = "ключ \\ \"'% 🔑"
    await caller.begin()
    task = await expire_order.options(connection=caller.connection, key=key, collection="été", meta={"ü": "%s"}).now(order_id=1, note=note)
    await caller.commit()
    seen = await app.get(task)
    assert (seen.payload, seen.key, seen.collection, seen.meta) == ({"order_id": 1, "note": note}, key, "été", {"ü": "%s"})


@some_callers
async def test_a_worker_runs_what_was_committed(app: App, expire_order: ExpireOrder, caller: Caller) -> None:
    async with app.worker():
        await caller.begin()
        task = await expire_order.options(connection=caller.connection).now(order_id=1)
        await caller.commit()
        assert await app.result(task, timeout=PATIENCE) == "order 1 expired"


@every_caller
async def test_one_wake_up_goes_out_with_the_commit_and_none_without(
    app: App, expire_order: ExpireOrder, caller: Caller, other: Other
) -> None:
    channel = channel_of("add_on")
    other.execute(f"listen {channel}".encode())
    expiry = expire_order.options(connection=caller.connection)
    await caller.begin()
    await expiry.now(order_id=1)
    await caller.rollback()
    await caller.begin()
    await expiry.after(86_400, order_id=2)
    await caller.commit()
    for _ in range(2):
        await caller.begin()
        await app.submit_many([expire_order.new(order_id=each) for each in range(3)], connection=caller.connection)
        await expiry.now(order_id=4)
        await caller.commit()
    other.execute("select pg_notify(%s, 'end')", [channel])  # they arrive in the order of the commits
    heard = list(itertools.takewhile(lambda notice: notice.payload != "end", other.notifies(timeout=30)))
    assert len(heard) == 2


# ---- synchronous programs ----


@synchronous_callers
def test_synchronous_code_submits_through_app_sync(url: str, kind: str, request: pytest.FixtureRequest) -> None:
    app = App(url)
    handler = app.task(name=request.node.name)(_expire)

    def place_order(order_id: int, *, keep: bool) -> str:
        """Drive a program that suspends nowhere, in this thread, without an event loop."""

        async def program() -> str:
            async with CALLERS[kind](url) as caller:
                await caller.begin()
                task = app.sync(handler.options(connection=caller.connection).after(60, order_id=order_id))
                await (caller.commit() if keep else caller.rollback())
                return task.id

        steps: Generator[Any, Any, str] = program().__await__()
        with pytest.raises(StopIteration) as done:
            next(steps)
        assert isinstance(done.value.value, str)
        return done.value.value

    kept = place_order(1, keep=True)
    place_order(2, keep=False)

    async def ids() -> list[str]:
        return [task.id async for task in app.tasks(handler=handler)]

    assert app.sync(ids()) == [kept]
    app.sync(app.close())


async def _expire(order_id: int) -> None: ...


def test_every_statement_runs_in_the_thread_of_a_synchronous_caller(url: str, request: pytest.FixtureRequest) -> None:
    threads = set()

    class Watched(psycopg.Connection[Any]):
        def wait(self, *arguments: Any, **options: Any) -> Any:
            threads.add(threading.get_ident())
            return super().wait(*arguments, **options)

    app = App(url)
    handler = app.task(name=request.node.name)(_expire)
    with Watched.connect(bare(url)) as connection, connection.transaction():
        app.sync(handler.options(connection=connection).after(60, order_id=1))
    assert threads == {threading.get_ident()}
    app.sync(app.close())


@asynchronous_callers
def test_an_asynchronous_connection_is_refused_by_app_sync_and_stays_usable(url: str, kind: str, request: pytest.FixtureRequest) -> None:
    app = App(url)
    handler = app.task(name=request.node.name)(_expire)
    with asyncio.Runner() as loop:
        stack = AsyncExitStack()
        caller = loop.run(stack.enter_async_context(CALLERS[kind](url)))
        loop.run(caller.begin())
        with pytest.raises(InvalidValue, match="await the call in its event loop instead"):
            app.sync(handler.options(connection=caller.connection).after(60, order_id=1))
        loop.run(caller.commit())
        loop.run(stack.aclose())
    app.sync(app.close())


# ---- the ways in which people write it ----


class Tables(DeclarativeBase):
    pass


class Order(Tables):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(sqlalchemy.Identity(always=True), primary_key=True)
    note: Mapped[str]


class CardRefused(Exception):
    pass


async def test_an_error_after_submitting_rolls_back_what_a_block_of_the_driver_holds(
    expire_order: ExpireOrder, url: str, stored: Stored
) -> None:
    with psycopg.connect(bare(url), autocommit=True) as plain, suppress(CardRefused), plain.transaction():
        plain.execute("insert into orders (note) values ('placed')")
        await expire_order.options(connection=plain).after(60, order_id=1)
        raise CardRefused
    own = await asyncpg.connect(bare(url))
    with suppress(CardRefused):
        async with own.transaction():
            await own.execute("insert into orders (note) values ('placed')")
            await expire_order.options(connection=own).after(60, order_id=1)
            raise CardRefused
    await own.close()
    engine = sqlalchemy.create_engine(bare(url, "postgresql+psycopg"), poolclass=NullPool)
    with suppress(CardRefused), Session(engine) as session, session.begin():
        session.add(Order(note="placed"))
        await expire_order.options(connection=session).after(60, order_id=1)
        raise CardRefused
    assert await stored() == (0, 0)


async def test_objects_of_a_session_and_the_task_are_stored_together(expire_order: ExpireOrder, url: str, stored: Stored) -> None:
    """An object that was only added has opened the session's transaction already; it is flushed when the caller says so."""
    engine = sqlalchemy.create_engine(bare(url, "postgresql+psycopg"), poolclass=NullPool)
    with Session(engine) as session:
        session.add(Order(note="placed"))
        await expire_order.options(connection=session).after(60, order_id=1)
        session.commit()
    assert await stored() == (1, 1)
    with Session(engine) as session, session.begin():
        with session.begin_nested() as nested:
            session.add(Order(note="given up"))
            await expire_order.options(connection=session).after(60, order_id=2)
            nested.rollback()
        session.add(Order(note="placed"))
    assert await stored() == (1, 2)


async def test_rows_of_the_callers_own_shape_do_not_disturb(expire_order: ExpireOrder, url: str) -> None:
    await expire_order.options(key="held").after(60, order_id=1)
    with psycopg.connect(bare(url), row_factory=psycopg.rows.dict_row, cursor_factory=psycopg.ClientCursor) as connection:
        connection.execute("select 1")
        kept = await expire_order.options(connection=connection, key="held", if_exists="keep").after(60, order_id=2)
        assert kept.payload == {"order_id": 1}
        assert connection.execute("select 1 as one").fetchone() == {"one": 1}


# ---- what is refused ----


@every_caller
async def test_without_a_transaction_it_is_refused(expire_order: ExpireOrder, caller: Caller, stored: Stored) -> None:
    with pytest.raises(InvalidValue, match="no open transaction to be part of"):
        await expire_order.options(connection=caller.connection).after(60, order_id=1)
    await caller.begin()
    await caller.commit()
    assert await stored() == (0, 0)


async def test_a_connection_that_commits_by_itself_is_refused(expire_order: ExpireOrder, url: str, stored: Stored) -> None:
    async def refused(connection: object) -> None:
        with pytest.raises(InvalidValue, match=r"no open transaction to be part of; .*"):
            await expire_order.options(connection=connection).after(60, order_id=1)

    with psycopg.connect(bare(url), autocommit=True) as plain:
        await refused(plain)
        plain.execute("begin")
        await expire_order.options(connection=plain).after(60, order_id=1)
        plain.execute("commit")
    older = psycopg2.connect(bare(url))
    older.autocommit = True
    await refused(older)
    older.close()
    engine = sqlalchemy.create_engine(bare(url, "postgresql+psycopg"), poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection, connection.begin():
        await refused(connection)
    for driver in ("asyncpg", "psycopg"):
        async_engine = create_async_engine(bare(url, f"postgresql+{driver}"), poolclass=NullPool, isolation_level="AUTOCOMMIT")
        async with async_engine.connect() as async_connection, async_connection.begin():
            await refused(async_connection)
    assert await stored() == (1, 0)


@every_caller
async def test_a_transaction_that_has_failed_is_refused(expire_order: ExpireOrder, caller: Caller) -> None:
    await caller.begin()
    with pytest.raises(Exception, match="division by zero"):
        await caller.execute("select 1 / 0")
    with pytest.raises(InvalidValue, match="has failed already, by an earlier statement; roll it back"):
        await expire_order.options(connection=caller.connection).after(60, order_id=1)
    await caller.rollback()


@every_caller
async def test_a_transaction_that_may_not_write_is_refused(expire_order: ExpireOrder, caller: Caller) -> None:
    await caller.begin()
    await caller.execute("set transaction read only")
    with pytest.raises(InvalidValue, match="read-only transaction"):
        await expire_order.options(connection=caller.connection).after(60, order_id=1)
    await caller.execute("select 1")
    await caller.commit()


@pytest.fixture
def another_database(url: str) -> Iterator[str]:
    with psycopg.connect(bare(url), autocommit=True) as connection:
        connection.execute("drop database if exists add_on_elsewhere with (force)")
        connection.execute("create database add_on_elsewhere template template0")
        yield running.postgres_url(server(), database="add_on_elsewhere", schema="add_on")
        connection.execute("drop database add_on_elsewhere with (force)")


@every_caller
async def test_a_connection_to_another_database_is_refused(expire_order: ExpireOrder, kind: str, url: str, another_database: str) -> None:
    async with CALLERS[kind](another_database) as caller:
        await caller.begin()
        await caller.execute("create table own (id int)")
        with pytest.raises(InvalidValue, match="without the tables of the store"):
            await expire_order.options(connection=caller.connection).after(60, order_id=1)
        await caller.commit()
        await caller.begin()
        await caller.execute("drop table own")
        await caller.commit()


async def test_a_connection_to_another_store_or_a_copy_is_refused(expire_order: ExpireOrder, url: str, another_database: str) -> None:
    """A copy of the database has the same tables and the same identity, and yet its tasks would never run here."""
    async with App(another_database).worker():
        pass
    with psycopg.connect(bare(another_database)) as elsewhere, psycopg.connect(bare(url)) as here:
        elsewhere.execute("select 1")
        with pytest.raises(InvalidValue, match="is open on add_on_elsewhere, which holds another store"):
            await expire_order.options(connection=elsewhere).after(60, order_id=1)
        identity = here.execute("select identity from add_on.control").fetchone()
        elsewhere.execute("update add_on.control set identity = %s", identity)
        with pytest.raises(InvalidValue, match="perhaps a copy of it"):
            await expire_order.options(connection=elsewhere).after(60, order_id=1)
        elsewhere.rollback()


async def test_a_user_without_the_privileges_is_refused(expire_order: ExpireOrder, url: str, other: Other, stored: Stored) -> None:
    other.execute("drop role if exists add_on_stranger")
    other.execute("create role add_on_stranger")
    with psycopg.connect(bare(url)) as connection:
        connection.execute("insert into orders (note) values ('placed')")
        connection.execute("set local role add_on_stranger")
        with pytest.raises(InvalidValue, match="may not use the store's tables"):
            await expire_order.options(connection=connection).after(60, order_id=1)
    assert await stored() == (0, 1)
    other.execute("drop role add_on_stranger")


# ---- trouble in the middle ----


@every_caller
async def test_a_lock_that_is_not_had_in_time_leaves_the_transaction_open(
    expire_order: ExpireOrder, caller: Caller, url: str, stored: Stored
) -> None:
    await caller.begin()
    await caller.execute("insert into orders (note) values ('placed')")
    await caller.execute("set local lock_timeout = '20ms'")
    with psycopg.connect(bare(url)) as locker:
        locker.execute("lock table add_on.due in access exclusive mode")
        with pytest.raises(StoreUnavailable, match="lock timeout"):
            await expire_order.options(connection=caller.connection).after(60, order_id=1)
    await expire_order.options(connection=caller.connection).after(60, order_id=2)
    await caller.commit()
    assert await stored() == (1, 1)


@asynchronous_callers
async def test_a_call_that_is_cancelled_leaves_nothing(
    expire_order: ExpireOrder, caller: Caller, url: str, other: Other, stored: Stored
) -> None:
    await expire_order.now(order_id=0)
    await caller.begin()
    [[pid]] = await runner_for(caller.connection).rows("select pg_backend_pid()")
    with psycopg.connect(bare(url)) as locker:
        locker.execute("lock table add_on.due in access exclusive mode")
        call = asyncio.create_task(expire_order.options(connection=caller.connection).after(60, order_id=1))
        waits = "select wait_event_type = 'Lock' from pg_stat_activity where pid = %s"
        await asyncio.to_thread(wait_until, "the call waits for the lock", lambda: other.execute(waits, [pid]).fetchone() == (True,))
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    await caller.rollback()
    assert await stored() == (1, 0)


@some_callers
async def test_the_word_that_a_transaction_must_be_repeated_is_the_drivers_own(
    expire_order: ExpireOrder, caller: Caller, stored: Stored
) -> None:
    """Programs that repeat their transactions wait for that exception."""
    await expire_order.options(key="other").after(60, order_id=0)
    await caller.begin()
    await caller.execute("set transaction isolation level repeatable read")
    await caller.execute("select count(*) from orders")  # from here on it does not see what others commit
    await expire_order.options(key="order-1").after(60, order_id=1)
    with pytest.raises(Exception, match="could not serialize access") as caught:
        await expire_order.options(connection=caller.connection, key="order-1").after(60, order_id=2)
    failed = failure(caught.value)
    assert failed is not None
    assert failed.state == "40001"
    await caller.rollback()
    assert await stored() == (2, 0)
