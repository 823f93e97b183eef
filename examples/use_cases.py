"""Four things that people build first, in one program that runs for a few seconds: python examples/use_cases.py [BROKER]

An unpaid order expires and its stock returns. A device gets a command at a given time, over HTTP, or over MQTT or another broker if its
URL is given (mqtt://broker.example). A connection is closed unless packets keep it alive: as a task, which outlives the program, and as
one of many timers of a `Wheel` in memory, for connections that end with the program anyway. A report is made by cron.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from duetime import App, Wheel
from duetime.app.handlers import AnyHandler

stock = {"lamp": 7}
unpaid = {"order-1": ("lamp", 2), "order-2": ("lamp", 3)}
happened: dict[str, asyncio.Future[str]] = {}


def tell(event: str, text: str) -> None:
    """Note what has happened, once. What a handler prints is its task's output (`duetime logs`), so `main` prints it."""
    if not happened[event].done():
        happened[event].set_result(text)


def declare(app: App, device_url: str) -> tuple[AnyHandler, AnyHandler, AnyHandler]:
    @app.task
    async def expire_order(order: str) -> None:
        if order in unpaid:  # also if it runs twice: the stock returns once
            item, number = unpaid.pop(order)
            stock[item] += number
            tell("expired", f"{order}, {stock[item]} of {item} in stock")

    @app.task
    async def close_connection(name: str) -> None:
        tell("closed", f"{name}, no packet for a second")

    @app.schedule(cron="* * * * * *")
    async def report() -> None:
        tell("reported", "the report was made")

    if device_url.startswith("http"):
        push = app.http("push", device_url + "/devices/{payload.device}/commands", disable_after=20, disable="collection")
    else:
        push = app.publish("push", device_url, to="devices/{payload.device}/commands")
    return expire_order, close_connection, push


async def serve_devices(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Stand for the devices: take one command over HTTP."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head.split("\r\n")[1:])}
    body = await reader.readexactly(int(headers["content-length"]))
    early = datetime.now(UTC) < datetime.fromisoformat(headers["duetime-due-at"])
    tell("pushed", f"{head.split()[1]} {body.decode()} {'too early' if early else 'at its time'}")
    writer.write(b"HTTP/1.1 204 Done\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    await writer.drain()
    writer.close()


async def watch_connections() -> None:
    """Close connections on which no packet comes for half a second: the timer of each is moved by every packet, in constant time."""
    wheel: Wheel[str] = Wheel(0)  # in milliseconds
    began = time.monotonic()
    timers = {name: wheel.insert(500, name) for name in ("c2", "c3")}
    for number in range(5):
        await asyncio.sleep(0.2)
        now = round((time.monotonic() - began) * 1_000)
        if number < 3 and wheel.remove(timers["c3"]):  # packets of c3 only
            timers["c3"] = wheel.insert(now + 500, "c3")
        for name in wheel.advance(now):
            tell("timed out", f"{name}, of {len(timers)} connections the one without packets")


async def main(broker: str | None) -> None:
    loop = asyncio.get_running_loop()
    happened.update({event: loop.create_future() for event in ("expired", "pushed", "closed", "timed out", "reported")})
    devices = await asyncio.start_server(serve_devices, "127.0.0.1", 0)
    url = broker or f"http://127.0.0.1:{devices.sockets[0].getsockname()[1]}"
    with tempfile.TemporaryDirectory() as folder:
        app = App(f"sqlite:///{Path(folder) / 'duetime.db'}")
        expire_order, close_connection, push = declare(app, url)
        async with app.worker():
            for order in list(unpaid):  # half an hour, in a real shop
                await expire_order.options(key=order).after(1, order=order)
            unpaid.pop("order-1")  # it is paid: the task may run, or be cancelled
            await app.cancel(handler="expire_order", key="order-1")
            tonight = datetime.now(UTC) + timedelta(seconds=1)
            command = await push.options(collection="d7").at(tonight, device="d7", action="restart")
            for _ in range(3):  # each packet gives the connection another second
                await close_connection.options(key="c1", if_exists="replace").after(1, name="c1")
                await asyncio.sleep(0.2)
            await watch_connections()
            await app.result(command, timeout=60)
            if broker is not None:
                tell("pushed", "the broker has confirmed the command")
            for event, text in happened.items():
                print(f"{event}: {await asyncio.wait_for(text, 60)}")
    devices.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else None))
