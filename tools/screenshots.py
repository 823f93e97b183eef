"""Takes the screenshots of the dashboard that README and docs show, with a store that has something to show: `make screenshots`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tempfile
from pathlib import Path

from playwright.async_api import async_playwright

from duetime import AlertRule, App, Deadline, Failing, Late, Mail, Webhook, WorkerLost
from duetime.api.app import Api
from duetime.api.server import Server
from duetime.duties.alert_facts import Memory
from duetime.duties.alerts import evaluate
from duetime.web.web import Web
from tests.browsers import chromium
from tools.showcase import fill, remember, showcase

ASSETS = Path(__file__).resolve().parents[1] / "docs" / "assets"
SHOTS = (  # file, address, width, height, scheme
    ("dashboard.png", "/", 1280, 900, "light"),
    ("dashboard-task.png", "TASK", 1280, 760, "light"),
    ("dashboard-flow.png", "FLOW", 1280, 640, "light"),
    ("dashboard-tasks.png", "/tasks", 1280, 760, "dark"),
    ("dashboard-alerts.png", "/alerts", 1280, 640, "light"),
    ("dashboard-handler.png", "/handlers/payments.charge", 1280, 900, "light"),
    ("dashboard-phone.png", "/", 390, 844, "dark"),
)


async def _alert(app: App) -> None:
    """Store some rules. One fires, and is muted, because there is no network to tell anybody."""
    await app.channels.put("pager", Webhook(url="https://pager.example.com/hooks/shop"))
    await app.channels.put("ops", Mail(server="smtp://mail.example.com:587", sender="duetime@example.com", to=("ops@example.com",)))
    books = Deadline(schedule="nightly-ledger", by="06:30", tz="Europe/Berlin")
    night = ("20:00", "07:00")
    for rule in (
        AlertRule(name="late", when=Late(oldest_due=60), channels=("pager", "ops"), repeat=900, note="More workers, or a gate."),
        AlertRule(name="failing", when=Failing(ratio=0.15, handler="payments.*"), channels=("pager", "ops"), note="The bank: 0123 456"),
        AlertRule(name="books", when=books, channels=("pager",)),
        AlertRule(name="worker lost", when=WorkerLost(), channels=("ops",), quiet=night, tz="Europe/Berlin"),
    ):
        await app.alerts.put(rule)
    await app.alerts.mute("failing", lasting=3_600)
    while not await evaluate(app.store, Memory()):
        pass  # a worker was faster


async def main() -> None:
    path = chromium()
    if path is None:
        raise SystemExit("there is no Chromium; `make browser` installs it")
    logging.disable(logging.CRITICAL)
    ASSETS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        await remember(f"{folder}/shop.db")
        app = showcase(f"sqlite:///{folder}/shop.db")
        async with contextlib.AsyncExitStack() as stack:
            server = await stack.enter_async_context(Server(app, api=Api(app, extension=Web()), port=0).running())
            for _ in range(3):
                await stack.enter_async_context(app.worker(grace=0.1))
            await fill(app)
            await _alert(app)
            await app.gates.pause("search.reindex", note="the index is being moved", lasting=2_700)
            playwright = await stack.enter_async_context(async_playwright())
            browser = await playwright.chromium.launch(executable_path=path)
            await asyncio.sleep(1)  # what is due at once has run then
            failed = await anext(app.tasks(state="failed", handler="payments.charge"))
            [flow] = (await app.flows.list(name="checkout")).items
            known = {"TASK": f"/tasks/{failed.id}", "FLOW": f"/flows/{flow.id}"}
            for name, address, width, height, scheme in SHOTS:
                context = await browser.new_context(
                    viewport={"width": width, "height": height}, color_scheme="dark" if scheme == "dark" else "light", device_scale_factor=1
                )
                page = await context.new_page()
                await page.goto(f"{server.url}/ui{known.get(address, address)}")
                await page.wait_for_selector("html.scripted")
                await page.screenshot(path=ASSETS / name)
                print(f"Written: docs/assets/{name}")
                await context.close()
            await browser.close()


if __name__ == "__main__":
    asyncio.run(main())
