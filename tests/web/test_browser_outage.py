"""A PostgreSQL server is killed under the dashboard, and comes back: open pages say so, show what they had, and recover."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from playwright.async_api import Browser, Page, expect

from duetime import App
from tests.servers.postgres import Postgres
from tests.servers.waiting import PATIENCE
from tests.web.conftest import dashboard, fill, showcase

pytestmark = [pytest.mark.browser, pytest.mark.slow]

PATHS = ("/", "/tasks", "/flows", "/events", "/locks")
LONG = 1_000 * PATIENCE


async def test_a_store_that_is_killed_is_told_on_open_pages_which_recover_without_a_reload(
    browser: Browser, new_postgres: Callable[[], Postgres]
) -> None:
    postgres = new_postgres()
    app: App = showcase(postgres.url())
    async with dashboard(app) as ui:
        await fill(app)
        pages = {path: await browser.new_page() for path in PATHS}
        statuses: list[int] = []
        for path, page in pages.items():
            page.on("response", lambda response: statuses.append(response.status))
            await page.goto(f"{ui.url}/ui{path}")
            await page.evaluate("document.body.dataset.same = 'yes'")
        before = {path: await _text(page) for path, page in pages.items()}

        await asyncio.to_thread(postgres.kill)
        for path, page in pages.items():
            await expect(page.locator("#banner")).to_contain_text("Not refreshed for", timeout=LONG)
            await expect(page.locator("[data-part].old").first, path).to_be_visible(timeout=LONG)
            assert await _text(page) >= before[path] / 2, f"{path} still shows what it had"
        text = await ui("/tasks", status=503)
        assert "store" in text
        assert "<!doctype html>" in text
        assert 'id="banner" role="alert">Not refreshed for' in await ui("/"), "who comes now is told too"

        await asyncio.to_thread(postgres.start)
        task = await _submitted(app)
        for path, page in pages.items():
            await expect(page.locator("#banner"), path).to_be_hidden(timeout=LONG)
            await expect(page.locator("[data-part].old")).to_have_count(0)
            assert await page.evaluate("document.body.dataset.same") == "yes"
        await expect(pages["/tasks"].locator(f'[data-key="{task}"]')).to_be_visible(timeout=LONG)
        assert set(statuses) <= {200, 204, 503}, "no page is broken by it"


async def _text(page: Page) -> int:
    return len(await page.locator("main").inner_text())


async def _submitted(app: App) -> str:
    """Submit a task as soon as the store is back."""
    from duetime.errors import StoreUnavailable

    while True:
        try:
            return (await app.handler("orders.expire").after(3_600, order_id=1)).id
        except StoreUnavailable:
            await asyncio.sleep(0.1)
