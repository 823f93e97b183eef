"""Chapter 4: submit inside your own database transaction, and from synchronous code."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import aiosqlite
import psycopg
import pytest

from duetime import App, InvalidValue, TaskNotFound
from tests.servers.waiting import PATIENCE


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """The shop's own tables, in the same file as the tasks."""
    connection = sqlite3.connect(tmp_path / "duetime.db", isolation_level=None)
    connection.execute("create table orders (id integer primary key, paid int default 0)")
    yield connection
    connection.close()


@pytest.mark.covers("KBL.2")
async def test_an_order_and_its_expiry_are_stored_together_or_not_at_all(app: App, shop: sqlite3.Connection) -> None:
    @app.task
    async def expire_order(order_id: int) -> int:
        shop.execute("delete from orders where id = ? and not paid", (order_id,))
        return shop.total_changes

    expiry = expire_order.options(connection=shop)
    shop.execute("begin immediate")
    shop.execute("insert into orders (id) values (1)")
    kept = await expiry.after(0.05, order_id=1)
    shop.execute("commit")

    shop.execute("begin immediate")
    shop.execute("insert into orders (id) values (2)")
    taken_back = await expiry.after(0.05, order_id=2)
    shop.execute("rollback")

    async with app.worker():
        await app.result(kept, timeout=PATIENCE)
        with pytest.raises(TaskNotFound):
            await app.get(taken_back)
    assert shop.execute("select count(*) from orders").fetchone() == (0,)


async def test_the_same_with_an_asynchronous_connection(app: App, tmp_path: Path) -> None:
    @app.task
    async def expire_order(order_id: int) -> int:
        return order_id

    async with aiosqlite.connect(tmp_path / "duetime.db", isolation_level=None) as connection:
        await connection.execute("begin immediate")
        tasks = await app.submit_many([expire_order.new(order_id=number) for number in range(3)], connection=connection)
        await connection.commit()
    async with app.worker():
        assert [await app.result(task, timeout=PATIENCE) for task in tasks] == [0, 1, 2]


async def test_forgetting_to_begin_is_noticed(app: App, shop: sqlite3.Connection) -> None:
    @app.task
    async def expire_order(order_id: int) -> None: ...

    with pytest.raises(InvalidValue, match=r"(?i)begin immediate"):
        await expire_order.options(connection=shop).after(60, order_id=1)


def test_synchronous_code_uses_the_same_calls(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/duetime.db")

    @app.task
    async def expire_order(order_id: int) -> None: ...

    task = app.sync(expire_order.after(60, order_id=7))
    assert app.sync(app.get(task)).payload == {"order_id": 7}

    connection = sqlite3.connect(tmp_path / "duetime.db", isolation_level=None)
    connection.execute("begin immediate")
    app.sync(expire_order.options(connection=connection).after(60, order_id=8))
    connection.execute("commit")
    connection.close()

    async def orders() -> list[int]:
        return sorted([task.payload["order_id"] async for task in app.tasks(handler=expire_order)])

    assert app.sync(orders()) == [7, 8]
    app.sync(app.close())


async def test_on_postgresql_the_order_lives_in_the_same_database(postgres_database: str) -> None:
    app = App(postgres_database)

    @app.task
    async def expire_order(order_id: int) -> str:
        return f"order {order_id} expired"

    async with app.worker(), await psycopg.AsyncConnection.connect(postgres_database) as shop:
        await shop.execute("create table orders (id bigint primary key)")
        await shop.commit()

        async with shop.transaction():
            await shop.execute("insert into orders (id) values (1)")
            kept = await expire_order.options(connection=shop).now(order_id=1)

        async with shop.transaction(force_rollback=True):
            await shop.execute("insert into orders (id) values (2)")
            taken_back = await expire_order.options(connection=shop).now(order_id=2)

        assert await app.result(kept, timeout=PATIENCE) == "order 1 expired"
        with pytest.raises(TaskNotFound):
            await app.get(taken_back)


def test_on_postgresql_synchronous_code_uses_the_same_calls(postgres_database: str) -> None:
    app = App(postgres_database)

    @app.task
    async def expire_order(order_id: int) -> None: ...

    with psycopg.connect(postgres_database) as shop, shop.transaction():
        task = app.sync(expire_order.options(connection=shop).after(60, order_id=8))
    assert app.sync(app.get(task)).payload == {"order_id": 8}
    app.sync(app.close())
