"""The dashboard in a real browser: it stays live, acts without reloads, keeps what a person is doing, and shuts nobody out."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, expect

from duetime import AlertRule, App, Backlog, Late, Limit, Mail, TaskFailed, Webhook
from duetime.duties.alert_facts import Memory
from duetime.duties.alerts import evaluate, submit_messages
from duetime.web.pages import PAGES
from tests.servers.waiting import PATIENCE
from tests.web.conftest import Reader, Watched, dashboard, fill

pytestmark = [pytest.mark.browser, pytest.mark.slow]

SHOTS = Path(__file__).resolve().parents[2] / "build" / "browser"
WIDTHS = {"desktop": 1280, "phone": 390}


async def addresses(app: App) -> dict[str, str]:
    """Return an address of every page, with a task, a handler and so on that exist."""
    running = await app.handler("images.resize").now(path="x.jpg")
    known = {"{id}": running.id, "{name}": "payments.charge", "{schedule}": "nightly-ledger"}
    known["{fingerprint}"] = await _a_failure(app)
    known["{flow}"] = (await app.flows.list(name="checkout")).items[0].id
    known["{worker}"] = next((each.id for each in await app.insight.workers()), "none")
    found = {}
    for page in PAGES:
        path = page.path
        for word, value in known.items():
            path = path.replace(word, value)
        found[page.template.removesuffix(".html")] = path
    return found


async def _operate(ui: Reader) -> None:
    """Do what the audit lists."""
    gate = {"do": "gate", "handler": "search.reindex", "action": "pause", "note": "the index is being moved", "lasting": "45m"}
    await ui("/handlers", form=gate, status=303)


async def _alert(app: App) -> None:
    """Let a rule fire, and have it told."""
    await app.channels.put("ops", Webhook(url="https://hooks.example.com/duetime"))
    people = ("ops@shop.example", "night@shop.example")
    await app.channels.put("mail", Mail(server="smtp://mail.example.com:587", sender="duetime@shop.example", to=people))
    await app.alerts.put(AlertRule(name="backlog", when=Backlog(due=1), channels=("ops", "mail"), note="The runbook is on the wiki."))
    quiet = ("00:00", "23:59")
    await app.alerts.put(AlertRule(name="late", when=Late(oldest_due=60, handler="payments.*"), channels=("mail",), quiet=quiet))
    while not await evaluate(app.store, Memory()):
        pass  # the worker was faster
    await submit_messages(app.store)
    assert await app.alerts.firing()


async def _a_failure(app: App) -> str:
    """Let a task fail, and return the fingerprint of its kind."""
    task = await app.handler("payments.charge").now(order_id=4, cents=100)
    with contextlib.suppress(TaskFailed):
        await app.result(task, timeout=PATIENCE)
    stored = await app.get(task.id)
    assert stored.error is not None
    return stored.error.fingerprint


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_no_page_shuts_anybody_out_or_breaks_its_own_rules(browser: Browser, app: App, width: str, scheme: str) -> None:

    @app.task(name="bank.book", limits=[Limit("bank", running=2)])
    async def book() -> None: ...

    async with dashboard(app) as ui, app.worker(grace=0.1):
        await ui("/events")  # from now on there are some
        await _operate(ui)
        await fill(app)
        await app.operations.start("cancel", handler="devices.push", rate=0.1)
        await _alert(app)
        context = await browser.new_context(
            viewport={"width": WIDTHS[width], "height": 900}, color_scheme="dark" if scheme == "dark" else "light"
        )
        page = await context.new_page()
        watched = Watched(page)
        for name, path in (await addresses(app) | {"sign_in": "/sign-in", "problem": "/nowhere"}).items():
            await page.goto(f"{ui.url}/ui{path}")
            await page.wait_for_selector("html.scripted")
            await page.screenshot(path=SHOTS / f"{name}-{width}-{scheme}.png", full_page=True)
            found = await Axe().run(page)
            assert found.violations_count == 0, f"{name}: {found.generate_report()}"
            scrolls = await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert scrolls <= 0, f"{name} scrolls sideways by {scrolls} px"
        watched.complaints = [each for each in watched.complaints if "404" not in each]
        assert not watched.complaints
        await context.close()


async def test_a_violation_of_the_policy_would_be_seen(browser: Browser, ui: Reader) -> None:
    page = await browser.new_page()
    watched = Watched(page)
    await page.goto(f"{ui.url}/ui/tasks")
    await page.evaluate("document.body.appendChild(document.createElement('div')).setAttribute('style', 'color: red')")
    refused = await page.evaluate("(() => { try { document.body.innerHTML = '<b>x</b>'; return false; } catch { return true; } })()")
    assert refused
    assert any("Content Security Policy" in each or "TrustedHTML" in each for each in watched.complaints)


async def test_a_list_shows_new_tasks_by_itself_and_keeps_what_a_person_is_doing(browser: Browser, ui: Reader, app: App) -> None:
    first = await app.handler("orders.expire").after(3_600, order_id=1)
    page = await browser.new_page()
    watched = Watched(page)
    await page.goto(f"{ui.url}/ui/tasks")
    await page.locator("#q").press_sequentially("state:fai")
    second = await app.handler("orders.expire").after(3_600, order_id=2)
    await expect(page.locator(f'[data-key="{second.id}"]')).to_be_visible()
    assert await page.locator("#q").input_value() == "state:fai"
    assert await page.evaluate("document.activeElement.id") == "q"

    box = page.get_by_label(f"Select task {first.id[:8]}…{first.id[-4:]}")
    await box.check()
    third = await app.handler("orders.expire").after(3_600, order_id=3)
    await expect(page.locator("[data-pill]")).to_have_text("1 new")
    await expect(page.locator(f'[data-key="{third.id}"]')).to_have_count(0)
    await app.cancel(second)
    await expect(page.locator(f'[data-key="{second.id}"] .badge')).to_have_text("cancelled")
    await expect(box).to_be_checked()
    await page.locator("[data-pill]").click()
    await expect(page.locator(f'[data-key="{third.id}"]')).to_be_visible()
    await expect(box).to_be_checked()
    assert not watched.complaints


async def test_an_action_shows_its_effect_without_a_reload_here_and_in_another_browser(browser: Browser, ui: Reader, app: App) -> None:
    task = await app.handler("orders.expire").after(3_600, order_id=1)
    here, there = await browser.new_page(), await browser.new_page()
    for page in (here, there):
        await page.goto(f"{ui.url}/ui/tasks/{task.id}")
        await page.evaluate("document.body.dataset.same = 'yes'")
    await here.get_by_role("button", name="Cancel").click()
    for page in (here, there):
        await expect(page.locator("h1 .badge")).to_have_text("cancelled")
        assert await page.evaluate("document.body.dataset.same") == "yes"
    await expect(here.locator("#said")).to_contain_text("it will not start")
    await here.keyboard.press("r")
    await expect(here.locator("h1 .badge")).to_have_text("pending")
    assert (await app.get(task.id)).state == "pending"


async def test_a_dialog_edits_a_task_and_gives_the_focus_back(browser: Browser, ui: Reader, app: App) -> None:
    task = await app.handler("orders.expire").after(3_600, order_id=1)
    page = await browser.new_page()
    await page.goto(f"{ui.url}/ui/tasks/{task.id}")
    button = page.get_by_role("button", name="Edit…")
    await button.click()
    await page.keyboard.press("Escape")
    await expect(button).to_be_focused()
    await button.click()
    await page.get_by_label("Priority").fill("9")
    await page.get_by_role("button", name="Save").click()
    await expect(page.locator("#said")).to_contain_text("priority 9")
    await expect(page.locator(".facts").first).to_contain_text("priority 9")
    assert (await app.get(task.id)).priority == 9


async def test_a_server_that_is_gone_is_told_and_comes_back_without_a_reload(browser: Browser, app: App) -> None:
    await app.open()
    async with dashboard(app) as ui:
        port = int(ui.url.rpartition(":")[2])
        page = await browser.new_page()
        await page.goto(f"{ui.url}/ui/tasks")
        await page.evaluate("document.body.dataset.same = 'yes'")
    await expect(page.locator("#banner")).to_contain_text("does not answer", timeout=15_000)
    from duetime.api.app import Api
    from duetime.api.server import Server
    from duetime.web.web import Web

    async with Server(app, api=Api(app, extension=Web()), port=port).running():
        await expect(page.locator("#banner")).to_be_hidden(timeout=30_000)
        assert await page.evaluate("document.body.dataset.same") == "yes"
    await app.close()


async def test_everything_needed_works_without_scripts(browser: Browser, app: App) -> None:
    async with app:
        token = (await app.tokens.create("anna", scopes=["operate"])).token
        task = await app.handler("orders.expire").options(key="order-7").after(3_600, order_id=7)
        async with dashboard(app) as ui:
            context = await browser.new_context(java_script_enabled=False, viewport={"width": 360, "height": 800})
            page = await context.new_page()
            await page.goto(f"{ui.url}/ui/tasks")
            await page.get_by_label("Token").fill(token)
            await page.get_by_role("button", name="Sign in").click()
            await page.get_by_label("Search tasks").fill("key:order-7")
            await page.get_by_role("button", name="Search").click()
            await page.get_by_role("link", name=task.id[:8]).click()
            await page.get_by_role("button", name="Cancel").click()
            await expect(page.locator("h1 .badge")).to_have_text("cancelled")
            await expect(page.locator("#said")).to_contain_text("it will not start")
            await page.get_by_role("button", name="Retry").click()
            await expect(page.locator("h1 .badge")).to_have_text("pending")
            await context.close()


async def test_a_chart_tells_the_values_of_a_step_by_pointer_and_by_keys(browser: Browser, ui: Reader, app: App) -> None:
    page = await browser.new_page()
    watched = Watched(page)
    await page.goto(f"{ui.url}/ui/")
    chart = page.locator("svg.chart").first
    times = (await chart.get_attribute("data-times") or "").split("|")
    await chart.focus()
    await page.keyboard.press("ArrowLeft")
    said = page.locator("figure output")
    await expect(said).to_contain_text(f"{times[-1]}  succeeded 0, failed")
    await page.keyboard.press("ArrowLeft")
    await expect(said).to_contain_text(times[-2])
    await page.keyboard.press("Tab")
    await expect(said).to_have_count(0)
    await chart.hover(position={"x": 3, "y": 40})
    await expect(said).to_contain_text(times[0])
    await page.mouse.move(2, 2)
    await expect(said).to_have_count(0)
    assert not watched.complaints


async def test_keys_lead_to_every_page_and_menus_close_again(browser: Browser, ui: Reader) -> None:
    page = await browser.new_page()
    for each in (page for page in PAGES if page.letter):
        await page.goto(f"{ui.url}/ui/settings")
        await page.wait_for_selector("html.scripted")
        await page.keyboard.press("g")
        await page.keyboard.press(each.letter)
        await page.wait_for_url(f"{ui.url}/ui{each.path}")
    menu = page.locator("header details.more")
    await menu.locator("summary").click()
    await expect(menu.get_by_role("link", name="Locks")).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(menu.get_by_role("link", name="Locks")).to_be_hidden()
    await expect(menu.locator("summary")).to_be_focused()
    await menu.locator("summary").click()
    await page.locator("h1").click()
    await expect(menu.get_by_role("link", name="Locks")).to_be_hidden()


async def test_on_a_phone_every_page_is_behind_a_button_of_the_bar(browser: Browser, ui: Reader) -> None:
    page = await browser.new_page(viewport={"width": 360, "height": 800})
    await page.goto(f"{ui.url}/ui/")
    await page.locator("nav.menus summary").click()
    for each in (page for page in PAGES if page.name):
        link = page.locator("nav.menus").get_by_role("link", name=each.name, exact=True)
        await expect(link).to_have_count(1)
        await expect(link).to_be_in_viewport(ratio=1)
