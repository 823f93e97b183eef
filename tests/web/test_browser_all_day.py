"""A dashboard that is open all day, in a real browser: eight tabs live, none asks while hidden or twice at once, and nothing piles up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page, Response, Route, expect

from duetime import App
from duetime.client.schedules.schedule import Schedule
from duetime.clock import to_instant
from duetime.model.rules import Every
from duetime.web.words import Words
from tests.servers.waiting import PATIENCE
from tests.web.conftest import Reader, Watched, dashboard, fill

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


async def test_a_task_that_prints_much_is_followed_and_the_browser_does_not_grow(browser: Browser, tmp_path: Path) -> None:
    await follow_a_talker(browser, tmp_path, megabytes=12, rounds=6)


@pytest.mark.system
@pytest.mark.timeout(3_600)
async def test_a_log_of_a_hundred_megabytes_is_followed_and_the_browser_does_not_grow(browser: Browser, tmp_path: Path) -> None:
    await follow_a_talker(browser, tmp_path, megabytes=100, rounds=120)


async def follow_a_talker(browser: Browser, folder: Path, *, megabytes: int, rounds: int) -> None:
    """Look at a task while it prints: a line, then so much, then a thousand lines between one look of the page and the next."""
    app, said, goes_on, over = App(f"sqlite:///{folder}/store.db", output_cap="200MB"), [0], asyncio.Semaphore(0), [False]

    def say(lines: int) -> None:
        said[0] += lines
        print("\n".join(f"{number} {'x' * 90}" for number in range(said[0] - lines, said[0])))

    @app.task(timeout=3_600)
    async def talk() -> None:
        say(1)
        await goes_on.acquire()
        for _ in range(megabytes):
            say(10_000)
            await asyncio.sleep(0)
        while not over[0]:
            await goes_on.acquire()
            say(1_000)

    async with dashboard(app) as ui, app.worker(grace=0.1):
        task = await talk.now()
        await until(lambda: said[0] == 1, "something is said")
        page = await browser.new_page()
        watched = Watched(page)
        largest = 0

        async def weigh(response: Response) -> None:
            nonlocal largest
            if f"/ui/tasks/{task.id}" in response.url and response.status == 200:
                largest = max(largest, len(await response.body()))

        page.on("response", weigh)
        await page.goto(f"{ui.url}/ui/tasks/{task.id}", timeout=1_000 * PATIENCE)
        goes_on.release()
        await until(lambda: said[0] == 1 + megabytes * 10_000, "all is said")
        session = await page.context.new_cdp_session(page)
        await session.send("Performance.enable")
        log = page.locator("pre.log")
        sizes: list[tuple[int, int]] = []
        for _ in range(rounds):
            last = said[0] + 999
            goes_on.release()
            await expect(log).to_contain_text(f"\n{last} xxx", timeout=1_000 * PATIENCE)
            assert await log.evaluate("each => each.scrollTop + each.clientHeight >= each.scrollHeight - 4"), "it is followed"
            sizes.append(await _measured(page, session))
        await log.evaluate("each => { each.scrollTop = 0; }")
        last = said[0] + 999
        goes_on.release()
        await expect(log).to_contain_text(f"\n{last} xxx", timeout=1_000 * PATIENCE)
        assert await log.evaluate("each => each.scrollTop") == 0, "who reads further up is left there"
        await expect(log.locator("..")).to_contain_text("MB before it are in the file")
        assert 0 < largest < 1_000_000
        assert sizes[-1][0] <= sizes[0][0] * 1.1
        assert max(heap for _, heap in sizes) < 100_000_000
        assert not watched.complaints
        over[0] = True
        goes_on.release()
        await app.client.wait(task.id, timeout=PATIENCE)
        await page.close()


CLOCK = """
(() => {  // a clock that stands still until a test moves it; `planned` answers when the page has set its next request
  const timers = new Map(), real = performance.timeOrigin + performance.now();
  let now = real, last = 0, waiting = null;
  const set = (run, after, every) => {
    timers.set(++last, { run, at: now + Math.max(1, after ?? 0), every });
    if (every === null && waiting !== null) { waiting(); waiting = null; }
    return last;
  };
  window.setTimeout = (run, after) => set(run, after, null);
  window.setInterval = (run, every) => set(run, every, every);
  window.clearTimeout = window.clearInterval = (id) => timers.delete(id);
  Date.now = () => now;
  const ask = window.fetch.bind(window);
  window.asked = 0;
  window.fetch = (address, options) => {  // each answer has all parts, as if everything had changed
    if (options?.headers?.["duetime-parts"]) window.asked += 1;
    return ask(address, { ...options, headers: { ...options?.headers, "duetime-parts": "none" } });
  };
  window.pass = async (seconds) => {
    const until = now + 1000 * seconds;
    for (;;) {
      const [id, next] = [...timers].reduce((best, each) => (each[1].at < best[1].at ? each : best), [0, { at: Infinity }]);
      if (next.at > until) break;
      now = next.at;
      if (next.every === null) timers.delete(id);
      else next.at += next.every;
      const planned = next.every === null && new Promise((resolve) => { waiting = resolve; });
      next.run();
      if (planned) await planned;
    }
    now = until;
    return [window.asked, timers.size];
  };
})();
"""


async def test_an_overview_is_open_for_ten_minutes(browser: Browser, ui: Reader, app: App) -> None:
    await leave_open(browser, ui, app, seconds=600, rounds=3)


@pytest.mark.system
@pytest.mark.timeout(3_600)
async def test_an_overview_is_open_for_eight_hours(browser: Browser, ui: Reader, app: App) -> None:
    await leave_open(browser, ui, app, seconds=8 * 3_600, rounds=16)


async def leave_open(browser: Browser, ui: Reader, app: App, *, seconds: int, rounds: int) -> None:
    """Let an overview live on a clock that is moved: it asks as often as it should, and neither nodes, heap nor timers grow."""
    await fill(app)
    await app.schedules.put(Schedule(name="hourly", handler="search.reindex", rule=Every(3_600)))
    page = await browser.new_page()
    page.set_default_timeout(0)
    watched = Watched(page)
    await page.add_init_script(CLOCK)
    await page.goto(f"{ui.url}/ui/")
    await page.wait_for_function("document.documentElement.classList.contains('scripted')", polling=50)
    session = await page.context.new_cdp_session(page)
    await session.send("Performance.enable")
    found = [(*await page.evaluate("window.pass(60)"), *await _measured(page, session))]
    for number in range(rounds):
        await app.handler("orders.expire").now(order_id=number)
        found.append((*await page.evaluate(f"window.pass({seconds / rounds})"), *await _measured(page, session)))
    asked, timers, nodes, heap = zip(*found, strict=True)
    assert asked[-1] - asked[0] == seconds // 2, "each two seconds, neither more often nor, because timers drift, less often"
    assert set(timers) == {timers[0]}, "one timer of each kind"
    assert nodes[-1] <= nodes[0] * 1.1
    assert heap[-1] <= heap[0] + 3_000_000
    shown = await page.evaluate("[...document.querySelectorAll('time[data-rel]')].map(each => [each.dateTime, each.textContent])")
    assert shown
    assert not [each for each in shown if not _is_right(*each)], "what is relative is relative to the server's clock"
    assert not watched.complaints
    await page.close()


def _is_right(at: str, text: str) -> bool:
    """Return whether a relative instant is what it should be now, within a minute: the page and the test look one after the other."""
    delta = (datetime.fromisoformat(at) - datetime.now(UTC)).total_seconds()
    return text in {relative_text(delta + error) for error in range(-60, 61)}


def relative_text(delta: float) -> str:
    now = datetime.now(UTC)
    return Words(to_instant(now), UTC, "UTC").text(now + timedelta(seconds=delta))


@pytest.mark.system
@pytest.mark.timeout(3_600)
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
