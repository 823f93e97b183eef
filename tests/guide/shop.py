"""The program that the chapters about testing test.

Its store is a file in a folder that does not exist here, so a test that touched it would fail.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from duetime import (
    App,
    Context,
    RetryPolicy,
    current,
)


class Stock:
    """What the shop has in store; in a real program, a connection pool."""

    def __init__(self) -> None:
        self.items = 0
        self.closed = False


@asynccontextmanager
async def resources() -> AsyncIterator[Stock]:
    stock = Stock()
    opened.append(stock)
    try:
        yield stock
    finally:
        stock.closed = True


app = App("sqlite:////nowhere/to/be/found/shop.db", lifespan=resources)
orders: dict[int, str] = {}
opened: list[Stock] = []
seen: list[object] = []


@app.task(retry=RetryPolicy(tries=4, base=10))
async def expire_order(ctx: Context, order_id: int) -> str:
    orders[order_id] = "expired"
    ctx.get(Stock).items += 1
    return f"order {order_id} expired"


@app.task
async def note(what: str, urgent: bool = False) -> str:
    seen.append(what)
    return what


@app.task(retry=RetryPolicy(tries=3, base=10, factor=2, jitter=0.5))
async def flaky(failures: int) -> str:
    ctx = current()
    seen.append(ctx.attempt)
    if ctx.attempt <= failures:
        raise ConnectionError(f"attempt {ctx.attempt} failed")
    return "done"


async def place_order(order_id: int) -> None:
    orders[order_id] = "unpaid"
    await expire_order.options(key=f"order-{order_id}").after(timedelta(minutes=30), order_id=order_id)


async def pay_order(order_id: int) -> None:
    orders[order_id] = "paid"
    await app.cancel(handler=expire_order, key=f"order-{order_id}")
