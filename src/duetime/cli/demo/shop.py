"""The shop of `duetime demo`: its tables, its two transactions, and the handler that expires unpaid orders.

Read it as an example. The shop keeps its tables in the same SQLite file as Duetime, so an order and its expiry are one
transaction. The workers of the demo are `duetime worker duetime.cli.demo.shop:app`.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from urllib.parse import quote

import msgspec

from duetime import App, Context

FOLDER = Path(os.environ.get("DUETIME_DEMO_FOLDER", "."))
SYNCHRONOUS = os.environ.get("DUETIME_DEMO_SYNCHRONOUS", "full")
DATABASE = FOLDER / "shop.db"
JOURNAL = FOLDER / "journal.jsonl"
PROVIDER_ANSWERS_IN = 0.05  # seconds; long enough for a kill to find attempts in the middle of their work

TABLES = """
create table products (id integer primary key, delivered integer not null, stock integer not null check (stock >= 0));
create table orders (
    id integer primary key,
    product integer not null references products,
    quantity integer not null,
    state text not null check (state in ('open', 'paid', 'expired')),
    placed_at integer not null,  -- instants are microseconds since 1970
    expires_at integer not null,
    paid_at integer,
    expired_at integer
);
"""

app = App(f"sqlite:///{quote(str(DATABASE))}?synchronous={SYNCHRONOUS}")


@app.task(concurrency=32, timeout=30)
def expire_order(ctx: Context, order_id: int) -> str:
    """Return the goods of an unpaid order to the stock.

    A worker may die after the commit and before it tells Duetime; then another attempt runs. The order's own state makes that
    harmless: it leaves `open` exactly once.
    """
    with journal(ctx, order_id) as entry:
        time.sleep(PROVIDER_ANSWERS_IN)  # a last question to the payment provider: is money on its way?
        with transaction(own_connection()) as db:
            goods = db.execute(
                "update orders set state = 'expired', expired_at = ? where id = ? and state = 'open' returning product, quantity",
                (now(), order_id),
            ).fetchone()
            if goods is None:
                (entry.result,) = db.execute("select state from orders where id = ?", (order_id,)).fetchone()
            else:
                db.execute("update products set stock = stock + ? where id = ?", (goods[1], goods[0]))
                entry.result = "restored"
    return entry.result


async def place_order(db: sqlite3.Connection, order_id: int, product: int, quantity: int, pay_within: float) -> None:
    """Take the goods from the stock, write the order and submit its expiry: all of it or nothing."""
    with transaction(db):
        db.execute("update products set stock = stock - ? where id = ?", (quantity, product))
        expiry = await expire_order.options(key=f"order-{order_id}", connection=db).after(pay_within, order_id=order_id)
        db.execute(
            "insert into orders (id, product, quantity, state, placed_at, expires_at) values (?, ?, ?, 'open', ?, ?)",
            (order_id, product, quantity, now(), micros(expiry.due_at)),
        )


async def pay_order(db: sqlite3.Connection, order_id: int) -> str:
    """Mark an order as paid and cancel its expiry. Return the answer to the cancel, or that the payment came too late."""
    with transaction(db):
        paid = db.execute("update orders set state = 'paid', paid_at = ? where id = ? and state = 'open'", (now(), order_id)).rowcount
    if not paid:
        return "too late"
    return await app.cancel(handler=expire_order, key=f"order-{order_id}")


# ---- the database ----


def connect() -> sqlite3.Connection:
    """Open the shop's file. Transactions are begun explicitly, so that they can be IMMEDIATE."""
    connection = sqlite3.connect(DATABASE, timeout=30, isolation_level=None)
    connection.execute("pragma journal_mode = wal")
    connection.execute(f"pragma synchronous = {SYNCHRONOUS}")
    return connection


_of_this_thread = threading.local()


def own_connection() -> sqlite3.Connection:
    """Return the connection of this thread; a `def` handler runs in one of the worker's threads."""
    if not hasattr(_of_this_thread, "connection"):
        _of_this_thread.connection = connect()
    connection: sqlite3.Connection = _of_this_thread.connection
    return connection


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Take the write lock at once: a plain BEGIN could fail at its first write."""
    connection.execute("begin immediate")
    try:
        yield connection
    except BaseException:
        connection.execute("rollback")
        raise
    connection.execute("commit")


def now() -> int:
    return time.time_ns() // 1_000


def micros(when: datetime) -> int:
    return round(when.timestamp() * 1_000_000)


# ---- the journal ----


class Entry(msgspec.Struct):
    """A line of the journal: the start of an attempt, or its end, which repeats the start."""

    order: int
    task: str
    attempt: int
    pid: int
    due_at: int
    started_at: int
    ended_at: int | None = None
    result: str = ""


@contextmanager
def journal(ctx: Context, order_id: int) -> Iterator[Entry]:
    """Write a line before and after an attempt: what really ran, whatever Duetime believes."""
    entry = Entry(order_id, ctx.task.id, ctx.attempt, os.getpid(), micros(ctx.task.due_at), now())
    _append(entry)
    try:
        yield entry
    except BaseException as error:
        entry.result = f"failed: {error!r}"
        raise
    finally:
        entry.ended_at = now()
        _append(entry)


def _append(entry: Entry) -> None:
    # one write to a file opened for appending is never torn by those of other processes
    descriptor = os.open(JOURNAL, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, msgspec.json.encode(entry) + b"\n")
    finally:
        os.close(descriptor)
