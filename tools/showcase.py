"""A store that shows everything, for screenshots and for tests of pages: handlers, failures, schedules, gates, and tasks of every state."""

from __future__ import annotations

import asyncio
import math
import random
from datetime import UTC, datetime, timedelta

from duetime import App, Context, Fatal, RetryPolicy
from duetime.clock import SECOND, ManualClock, SystemClock
from duetime.model.figures import ATTEMPTS, BOUNDS, LATENESS, TASKS_FAILED, FigureKey
from duetime.model.series import Load, Sample
from duetime.store.sqlite.store import SqliteStore


def showcase(url: str) -> App:
    """Return an App whose handlers look like those of a shop."""
    app = App(url, user="mira@shop")

    @app.task(timeout=30, retry=RetryPolicy(tries=5, base=30, cap=300), concurrency=20, name="orders.expire")
    async def expire(ctx: Context, order_id: int, reason: str = "not paid in time") -> str:
        """Give the stock of an unpaid order back."""
        ctx.log.info("order %s: %s", order_id, reason)
        ctx.log.info("stock restored: 3 lines, 2 warehouses")
        return f"order {order_id} expired"

    @app.task(retry=RetryPolicy(tries=1), name="payments.charge", priority=8)
    async def charge(ctx: Context, order_id: int, cents: int) -> str:
        """Charge a customer's card."""
        print(f"charging order {order_id}: {cents / 100:.2f} EUR")
        print(f"POST https://pay.example/charges, attempt {ctx.attempt}")
        if order_id % 4 == 0:
            raise ConnectionError("payment gateway: connection reset by peer")
        if order_id % 7 == 0:
            raise Fatal("card expired")
        return f"ch_{order_id:06x}"

    @app.task(name="payments.refund", retry=RetryPolicy(tries=6, base=60, cap=600))
    async def refund(ctx: Context, order_id: int) -> None:
        """Send money back."""
        raise TimeoutError("bank did not answer within 10 s")

    @app.task(name="mail.send", concurrency=50)
    async def send(ctx: Context, to: str, template: str) -> str:
        """Send a mail."""
        print(f"250 OK queued for {to}")
        return "250 OK"

    @app.task(name="images.resize", concurrency=4)
    async def resize(ctx: Context, path: str, width: int = 1200) -> str:
        """Make a thumbnail."""
        for step in range(1, 400):
            ctx.progress(step / 400, f"tile {step} of 400")
            await asyncio.sleep(0.5)
        return path

    @app.task(name="search.reindex")
    async def reindex(ctx: Context, shard: int = 0) -> int:
        """Write the search index again."""
        return shard

    @app.task(name="devices.push", priority=9)
    async def push(ctx: Context, device: str, command: str = "wake") -> str:
        """Tell a device what to do."""
        return "ack"

    @app.schedule(cron="*/5 * * * *", tz="Europe/Berlin", name="sweep-carts")
    async def sweep_carts(ctx: Context) -> None:
        """Empty carts that nobody comes back to."""

    @app.schedule(cron="30 2 * * *", tz="Europe/Berlin", name="nightly-ledger")
    async def nightly_ledger(ctx: Context) -> None:
        """Close the day's books."""

    @app.schedule(every=45, name="heartbeat")
    async def heartbeat(ctx: Context) -> None:
        """Tell the monitoring that all is well."""

    @app.schedule(cron="0 7 * * 1-5", tz="America/New_York", name="wake-devices")
    async def wake_devices(ctx: Context) -> None:
        """Wake the devices of the office."""

    return app


async def fill(app: App, *, scale: int = 1) -> None:
    """Submit tasks of all sorts; a worker of the same App runs those that are due."""
    chance = random.Random(7)
    people = ["ada@example.org", "grace@example.org", "edsger@example.org", "barbara@example.org"]
    handler = app.handler
    many = []
    for order in range(1_001, 1_001 + 60 * scale):
        many.append(
            handler("payments.charge")
            .options(collection=chance.choice(["eu", "us", "apac"]))
            .new(order_id=order, cents=chance.randrange(900, 90_000))
        )
        many.append(handler("mail.send").new(to=chance.choice(people), template=chance.choice(["receipt", "reminder", "welcome"])))
        many.append(handler("orders.expire").options(key=f"order-{order}").new(order_id=order).after(60 * chance.randrange(1, 40)))
        if order % 3 == 0:
            many.append(handler("search.reindex").new(shard=order % 16))
            many.append(
                handler("devices.push")
                .options(collection="office")
                .new(device=f"lamp-{order % 40}")
                .after(timedelta(hours=chance.randrange(1, 20)))
            )
        if order % 12 == 0:
            many.append(handler("payments.refund").options(key=f"refund-{order}").new(order_id=order))
    many += [handler("images.resize").new(path=f"products/{number}.jpg") for number in range(7)]
    many.append(handler("devices.push").options(expires=1).new(device="lamp-1").at(datetime(2020, 1, 1, tzinfo=UTC)))
    await app.submit_many(many)
    await weave(app)


async def weave(app: App) -> None:
    """Submit flows of several shapes, and take a lock for an hour."""
    handler = app.handler
    thumbnails = [handler("images.resize").new(path=f"campaign/{number}.jpg") for number in range(3)]
    await app.group(thumbnails, succeeded=handler("mail.send").new(to="ada@example.org", template="gallery"), name="gallery")
    orders = [handler("payments.charge").new(order_id=order, cents=4_200) for order in (1_201, 1_204, 1_206)]
    await app.group(orders, failed=handler("mail.send").new(to="grace@example.org", template="unpaid"), name="checkout")
    steps = [handler("search.reindex").new(shard=shard) for shard in (1, 2)]
    await app.chain(*steps, handler("mail.send").new(to="ada@example.org", template="indexed"), name="reindex")
    await app.store.take_lock("ledger", "0123456789abcdef", "books-2, process 4711", 3_600.0, None)


async def remember(path: str, *, minutes: int = 15) -> None:
    """Write a quarter of an hour of history into a store's file: what charts show is counted over time, and the store is new."""
    now = SystemClock().now()
    clock = ManualClock(now - minutes * 60 * SECOND)
    store = SqliteStore(path, clock=clock)
    await store.open()
    chance = random.Random(11)
    for number in range(minutes * 6 + 3):  # and a little ahead, so that there is no gap until the screenshot
        wave = 1 + 0.4 * math.sin(number / 9) + 0.15 * chance.random()
        counts = {"mail.send": 420 * wave, "payments.charge": 160 * wave, "orders.expire": 240 * (2 - wave), "devices.push": 60 * wave}
        figures: dict[FigureKey, int] = {}
        for handler, count in counts.items():
            share = 0.02 + (0.35 if handler == "payments.charge" and number > minutes * 5 else 0.0)
            failed = int(count * share) if handler == "payments.charge" else int(count * 0.004)
            figures[FigureKey(ATTEMPTS, handler, "succeeded")] = int(count) - failed
            figures[FigureKey(ATTEMPTS, handler, "failed")] = failed
            figures[FigureKey(TASKS_FAILED, handler)] = failed // 2
            slow = chance.randrange(1, 9)
            for bound, part in ((BOUNDS[1], 0.6), (BOUNDS[2], 0.3), (BOUNDS[4], 0.08), (BOUNDS[5 + slow % 3], 0.02)):
                figures[FigureKey(LATENESS, handler, str(bound))] = int(count * part) + 1
        await store.add_figures("history", number + 1, figures)
        loads = {
            handler: Load(due=int(count / 30), running=int(count / 20), oldest_due=int(2e5 * wave)) for handler, count in counts.items()
        }
        await store.keep_sample(Sample(clock.now(), loads))
        clock.advance(10)
    await store.close()
