"""A dashboard that is open all day, in a real browser: eight tabs live, none asks while hidden or twice at once, and nothing piles up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from playwright.async_api import Browser, Page, Route, expect

from duetime import App
from tests.servers.waiting import PATIENCE
from tests.web.conftest import Reader, Watched, fill

pytestmark = [pytest.mark.browser, pytest.mark.slow]

TABS = 8
ASKS = 120


async def until(condition: Callable[[], bool], what: str) -> None:
    """Let the browser go on until a condition holds."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert condition(), what


def counted(page: Page) -> list[str]:
    """Return a list that grows with every request of a page for what has changed."""
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "duetime-parts" in request.headers else None)
    return asked


async def test_eight_tabs_are_live_and_a_hidden_one_asks_nothing(browser: Browser, ui: Reader, app: App) -> None:
    context = await browser.new_context()
    pages = [await context.new_page() for _ in range(TABS)]
    await pages[0].add_init_script("Object.defineProperty(Document.prototype, 'hidden', { get: () => window.away === true })")
    asked = [counted(page) for page in pages]
    for page in pages:
        await page.goto(f"{ui.url}/ui/tasks")
    task = await app.handler("orders.expire").after(3_600, order_id=1)
    for page in pages:
        await expect(page.locator(f'[data-key="{task.id}"]')).to_be_visible(timeout=1_000 * PATIENCE)

    await pages[0].evaluate("window.away = true; document.dispatchEvent(new Event('visibilitychange'))")
    await pages[0].evaluate("1")  # what it had sent before is counted now
    silent, others = len(asked[0]), len(asked[1])
    await until(lambda: len(asked[1]) >= others + 3, "a tab that is seen asks on")
    assert len(asked[0]) <= silent + 1, "one may have been under way"
    hidden = len(asked[0])
    others = len(asked[1])
    await until(lambda: len(asked[1]) >= others + 2, "a tab that is seen asks on")
    assert len(asked[0]) == hidden
    second = await app.handler("orders.expire").after(3_600, order_id=2)
    await pages[0].evaluate("window.away = false; document.dispatchEvent(new Event('visibilitychange'))")
    await expect(pages[0].locator(f'[data-key="{second.id}"]')).to_be_visible(timeout=1_000 * PATIENCE)
    await context.close()


async def test_a_slow_server_is_asked_once_at_a_time(browser: Browser, ui: Reader, app: App) -> None:
    page = await browser.new_page()
    under_way, most, answered = 0, 0, 0

    async def slowly(route: Route) -> None:
        nonlocal under_way, most, answered
        if "duetime-parts" not in route.request.headers:
            await route.continue_()
            return
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.5)  # longer than the next request would wait
        under_way -= 1
        answered += 1
        await route.continue_(headers={**route.request.headers, "duetime-parts": "none"})

    await page.route("**/ui/**", slowly)
    await page.goto(f"{ui.url}/ui/tasks")
    for _ in range(20):  # somebody who is impatient
        await page.evaluate("document.dispatchEvent(new CustomEvent('duetime:ask'))")
    await until(lambda: answered >= 3, "three answers")
    assert most == 1
    await page.locator("#q").fill("state:failed")
    assert await page.locator("#q").input_value() == "state:failed", "it can be used meanwhile"
    await page.unroute_all(behavior="ignoreErrors")
    await page.close()


async def _measured(page: Page, session: Any) -> tuple[int, int]:
    """Return the nodes of the page, and the bytes of its heap, after what is not used was given back."""
    await session.send("HeapProfiler.collectGarbage")
    metrics = {each["name"]: each["value"] for each in (await session.send("Performance.getMetrics"))["metrics"]}
    return await page.evaluate("document.querySelectorAll('*').length"), int(metrics["JSHeapUsedSize"])


@pytest.mark.system
async def test_a_list_that_changes_all_day_does_not_grow(browser: Browser, ui: Reader, app: App) -> None:
    await fill(app)
    page = await browser.new_page()
    watched = Watched(page)
    await page.goto(f"{ui.url}/ui/tasks")
    session = await page.context.new_cdp_session(page)
    await session.send("Performance.enable")

    async def ask(times: int) -> None:
        for number in range(times):
            await app.handler("orders.expire").after(3_600, order_id=number)
            async with page.expect_response(lambda response: "/ui/tasks" in response.url):
                await page.evaluate("document.dispatchEvent(new CustomEvent('duetime:ask'))")

    await ask(ASKS // 4)
    nodes, heap = await _measured(page, session)
    await ask(ASKS)
    later_nodes, later_heap = await _measured(page, session)
    assert later_nodes <= nodes * 1.1
    assert later_heap <= heap + 3_000_000
    assert later_heap < 100_000_000
    assert not watched.complaints
    await page.close()
