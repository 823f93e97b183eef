"""SQLAlchemy on a SQLite store: a connection or a session is `connection=`, and committed means exactly one task, rolled back none."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import create_engine, event
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

from duetime import App, DuplicateKey, Handler, InvalidPayload, InvalidValue, StoreUnavailable
from tests.integration.callers import Alchemy, AsyncAlchemy, Caller

ExpireOrder = Handler[..., str, Any]
Open = Callable[[Path], AbstractAsyncContextManager[Caller]]


class Tables(DeclarativeBase):
    pass


class Order(Tables):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)


def begin_immediate(engine: sqlalchemy.Engine) -> None:
    """Let SQLAlchemy itself begin each transaction, as its documentation advises for SQLite."""

    @event.listens_for(engine, "connect")
    def leave_to_us(connection: Any, _record: object) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def begin(connection: sqlalchemy.Connection) -> None:
        connection.exec_driver_sql("begin immediate")


def engine_on(file: Path, **options: Any) -> sqlalchemy.Engine:
    return create_engine(f"sqlite:///{file}", poolclass=NullPool, **options)


@asynccontextmanager
async def connection(file: Path) -> AsyncIterator[Caller]:
    with engine_on(file).connect() as own:
        yield Alchemy(own)


@asynccontextmanager
async def connection_that_begins(file: Path) -> AsyncIterator[Caller]:
    engine = engine_on(file)
    begin_immediate(engine)
    with engine.connect() as own:
        yield Alchemy(own)


@asynccontextmanager
async def session(file: Path) -> AsyncIterator[Caller]:
    with Session(engine_on(file)) as own:
        yield Alchemy(own)


@asynccontextmanager
async def session_that_begins(file: Path) -> AsyncIterator[Caller]:
    engine = engine_on(file)
    begin_immediate(engine)
    with Session(engine) as own:
        yield Alchemy(own)


@asynccontextmanager
async def session_always_in_a_transaction(file: Path) -> AsyncIterator[Caller]:
    with Session(engine_on(file, connect_args={"autocommit": False})) as own:
        yield Alchemy(own)


@asynccontextmanager
async def a_scoped_session(file: Path) -> AsyncIterator[Caller]:
    scope = scoped_session(sessionmaker(engine_on(file)))
    yield Alchemy(scope)
    scope.remove()


@asynccontextmanager
async def async_connection(file: Path) -> AsyncIterator[Caller]:
    async with create_async_engine(f"sqlite+aiosqlite:///{file}", poolclass=NullPool).connect() as own:
        yield AsyncAlchemy(own)


@asynccontextmanager
async def async_session(file: Path) -> AsyncIterator[Caller]:
    async with AsyncSession(create_async_engine(f"sqlite+aiosqlite:///{file}", poolclass=NullPool)) as own:
        yield AsyncAlchemy(own)


@asynccontextmanager
async def async_session_that_begins(file: Path) -> AsyncIterator[Caller]:
    engine = create_async_engine(f"sqlite+aiosqlite:///{file}", poolclass=NullPool)
    begin_immediate(engine.sync_engine)
    async with AsyncSession(engine) as own:
        yield AsyncAlchemy(own)


@asynccontextmanager
async def an_async_scoped_session(file: Path) -> AsyncIterator[Caller]:
    maker = async_sessionmaker(create_async_engine(f"sqlite+aiosqlite:///{file}", poolclass=NullPool))
    scope = async_scoped_session(maker, scopefunc=lambda: None)
    yield AsyncAlchemy(scope)
    await scope.remove()


SYNCHRONOUS: dict[str, Open] = {
    "connection": connection,
    "connection-that-begins": connection_that_begins,
    "session": session,
    "session-that-begins": session_that_begins,
    "scoped-session": a_scoped_session,
}
ASYNCHRONOUS: dict[str, Open] = {
    "async-connection": async_connection,
    "async-session": async_session,
    "async-session-that-begins": async_session_that_begins,
    "async-scoped-session": an_async_scoped_session,
}
# Ways to have each statement committed at once.
AUTOCOMMIT: list[dict[str, Any]] = [{"isolation_level": "AUTOCOMMIT"}]
if sys.version_info >= (3, 12):
    SYNCHRONOUS["session-always-in-a-transaction"] = session_always_in_a_transaction
    AUTOCOMMIT.append({"connect_args": {"autocommit": True}})
CALLERS = SYNCHRONOUS | ASYNCHRONOUS
THAT_BEGIN = [kind for kind in CALLERS if kind.endswith("that-begins")]
every_caller = pytest.mark.parametrize("kind", CALLERS)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


@pytest.fixture
async def app(file: Path) -> AsyncIterator[App]:
    app = App(f"sqlite:///{file}", user="anna@shop")

    @app.task
    async def expire_order(order_id: int) -> str:
        return f"order {order_id} expired"

    async with app:
        Tables.metadata.create_all(engine_on(file))
        yield app


@pytest.fixture
def expire_order(app: App) -> ExpireOrder:
    return app.handler("expire_order")


@pytest.fixture
async def caller(kind: str, app: App, file: Path) -> AsyncIterator[Caller]:
    async with CALLERS[kind](file) as caller:
        yield caller


async def stored(app: App, file: Path) -> tuple[list[int], list[int]]:
    """Return what is committed: the orders of the tasks, and the orders."""
    with engine_on(file).connect() as other:
        orders = other.execute(sqlalchemy.text("select id from orders order by id"))
        return sorted([task.payload["order_id"] async for task in app.tasks()]), [row[0] for row in orders]


# ---- the promise, for every kind of connection ----


@every_caller
@pytest.mark.covers("KBL.2")
async def test_committed_means_exactly_one_task(app: App, expire_order: ExpireOrder, caller: Caller, file: Path) -> None:
    await caller.begin()
    await caller.execute("insert into orders values (7)")
    task = await expire_order.options(connection=caller.connection, key="order-7").after(60, order_id=7)
    assert await stored(app, file) == ([], [])
    await caller.commit()
    assert await stored(app, file) == ([7], [7])
    seen = await app.get(task)
    assert (seen.payload, seen.key, seen.state, seen.submitted_by) == ({"order_id": 7}, "order-7", "pending", "anna@shop")


@every_caller
async def test_rolled_back_means_none(app: App, expire_order: ExpireOrder, caller: Caller, file: Path) -> None:
    await caller.begin()
    await caller.execute("insert into orders values (7)")
    await expire_order.options(connection=caller.connection, key="order-7").after(60, order_id=7)
    await caller.rollback()
    assert await stored(app, file) == ([], [])
    await expire_order.options(key="order-7").after(60, order_id=7)  # the key is free


@every_caller
async def test_submitting_may_come_first(app: App, expire_order: ExpireOrder, caller: Caller, file: Path) -> None:
    """SQLAlchemy has begun, but its driver begins only before the first write of its own: so does ours."""
    await caller.begin()
    await expire_order.options(connection=caller.connection).after(60, order_id=1)
    await caller.execute("insert into orders values (1)")
    await caller.rollback()
    assert await stored(app, file) == ([], [])
    await caller.begin()
    await caller.execute("select id from orders")
    await app.submit_many([expire_order.new(order_id=each) for each in (2, 3)], connection=caller.connection)
    await caller.execute("insert into orders values (2)")
    assert await stored(app, file) == ([], [])
    await caller.commit()
    assert await stored(app, file) == ([2, 3], [2])


@every_caller
async def test_a_refusal_leaves_the_transaction_open(app: App, expire_order: ExpireOrder, caller: Caller, file: Path) -> None:
    held = await expire_order.options(key="order-1").after(60, order_id=1)
    expiry = expire_order.options(connection=caller.connection)
    await caller.begin()
    await caller.execute("insert into orders values (1)")
    with pytest.raises(DuplicateKey):
        await expiry.options(key="order-1").after(60, order_id=2)
    with pytest.raises(InvalidPayload):
        await expiry.after(60, order_id="no number")
    kept = await expiry.options(key="order-1", if_exists="keep").after(60, order_id=3)
    assert kept.id == held.id
    await caller.commit()
    assert await stored(app, file) == ([1], [1])


@pytest.mark.parametrize("kind", THAT_BEGIN)
async def test_a_savepoint_takes_its_tasks_back(app: App, expire_order: ExpireOrder, caller: Caller, file: Path) -> None:
    expiry = expire_order.options(connection=caller.connection)
    await caller.begin()
    await expiry.after(60, order_id=1)
    await caller.execute("savepoint maybe")
    await expiry.after(60, order_id=2)
    await caller.execute("rollback to savepoint maybe")
    await caller.commit()
    assert await stored(app, file) == ([1], [])


async def test_what_a_session_has_not_written_yet_is_committed_with_the_task(app: App, expire_order: ExpireOrder, file: Path) -> None:
    with Session(engine_on(file)) as own:
        own.add(Order(id=5))
        await expire_order.options(connection=own).after(60, order_id=5)
        own.commit()
    assert await stored(app, file) == ([5], [5])


# ---- synchronous programs ----


@pytest.mark.parametrize("kind", ["connection", "session"])
def test_synchronous_code_submits_through_app_sync_in_its_own_thread(file: Path, kind: str) -> None:
    app = App(f"sqlite:///{file}")
    handler = app.task(_expire)
    app.sync(app.open())
    own: Any = engine_on(file, connect_args={"check_same_thread": True}).connect()
    if kind == "session":
        own = Session(own)
    with own.begin():
        app.sync(handler.options(connection=own).after(60, order_id=1))
    with own.begin() as transaction:
        app.sync(handler.options(connection=own).after(60, order_id=2))
        transaction.rollback()
    own.close()

    async def orders() -> list[int]:
        return [task.payload["order_id"] async for task in app.tasks()]

    assert app.sync(orders()) == [1]
    app.sync(app.close())


async def _expire(order_id: int) -> None: ...


@pytest.mark.parametrize("kind", ["async-connection", "async-session"])
def test_an_asynchronous_connection_is_refused_by_app_sync_and_stays_usable(file: Path, kind: str) -> None:
    app = App(f"sqlite:///{file}")
    handler = app.task(_expire)
    app.sync(app.open())
    with asyncio.Runner() as loop:
        opened = ASYNCHRONOUS[kind](file)
        caller = loop.run(opened.__aenter__())
        loop.run(caller.begin())
        with pytest.raises(InvalidValue, match="await the call in its event loop instead"):
            app.sync(handler.options(connection=caller.connection).after(60, order_id=1))
        loop.run(caller.execute("select 1"))
        loop.run(caller.commit())
        loop.run(opened.__aexit__(None, None, None))
    app.sync(app.close())


# ---- what is refused ----


@every_caller
async def test_without_a_transaction_it_is_refused(app: App, expire_order: ExpireOrder, caller: Caller, file: Path) -> None:
    with pytest.raises(InvalidValue, match=r"no open transaction to be part of; begin one first: .*\.begin\(\)"):
        await expire_order.options(connection=caller.connection).after(60, order_id=1)
    assert await stored(app, file) == ([], [])


@pytest.mark.parametrize("options", AUTOCOMMIT, ids=str)
async def test_a_connection_that_commits_every_statement_is_refused(
    app: App, expire_order: ExpireOrder, file: Path, options: dict[str, Any]
) -> None:
    with (
        engine_on(file, **options).begin() as own,
        pytest.raises(InvalidValue, match=r"(?s)autocommit.*BEGIN IMMEDIATE.*docs/transactions\.md"),
    ):
        await expire_order.options(connection=own).after(60, order_id=1)
    assert await stored(app, file) == ([], [])


async def test_a_connection_to_another_file_is_refused(app: App, expire_order: ExpireOrder, tmp_path: Path) -> None:
    with (
        engine_on(tmp_path / "other.db").begin() as own,
        pytest.raises(InvalidValue, match=r"is open on .*other\.db, but the store is .*shop\.db"),
    ):
        await expire_order.options(connection=own).after(60, order_id=1)


async def test_a_connection_to_another_kind_of_database_is_refused(app: App, expire_order: ExpireOrder) -> None:
    engine = create_engine("postgresql+psycopg://nobody@127.0.0.1:1/nothing")
    refused = r"SQLAlchemy connection to postgresql by psycopg, but a SQLite store takes .*pysqlite"
    with Session(engine) as own, own.begin(), pytest.raises(InvalidValue, match=refused):
        await expire_order.options(connection=own).after(60, order_id=1)


async def test_a_write_lock_that_somebody_else_holds_is_explained(app: App, expire_order: ExpireOrder, file: Path) -> None:
    """The driver's own wait is short here, so that the test is."""
    holder = sqlite3.connect(file, isolation_level=None)
    holder.execute("begin immediate")
    for kind in ("plain", "that-begins"):
        engine = engine_on(file, connect_args={"timeout": 0})
        if kind == "that-begins":
            begin_immediate(engine)
        with Session(engine) as own:
            own.begin()
            with pytest.raises(StoreUnavailable, match="could not take the write lock"):
                await expire_order.options(connection=own).after(60, order_id=1)
    holder.execute("rollback")
    holder.close()
    assert await stored(app, file) == ([], [])


def test_the_thread_of_the_test_is_the_only_one_that_touches_the_connection(file: Path) -> None:
    """Watch the driver itself: a step of ours in another thread would be seen."""
    threads: set[int] = set()

    class Watched(sqlite3.Connection):
        def cursor(self, *arguments: Any, **options: Any) -> Any:
            threads.add(threading.get_ident())
            return super().cursor(*arguments, **options)

    app = App(f"sqlite:///{file}")
    handler = app.task(_expire)
    app.sync(app.open())
    with engine_on(file, connect_args={"factory": Watched}).begin() as own:
        threads.clear()
        app.sync(handler.options(connection=own).after(60, order_id=1))
    assert threads == {threading.get_ident()}
    app.sync(app.close())
