"""What each page shows and does, without a browser."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import escape
from typing import Any
from urllib.parse import quote

import pytest

from duetime import App, RetryPolicy
from duetime.client.schedules.schedule import Schedule
from duetime.model.rules import Cron
from duetime.web.pages import PAGES
from tests.servers.waiting import PATIENCE
from tests.web.conftest import Reader, dashboard, fill, ids_in

NAME = "<img src=x onerror=alert(1)></script>{{7*7}}'\"&"
HOSTILE = f"{NAME}\u202e\x00\ud800"  # what payloads, errors and output can contain


async def test_the_overview_of_an_empty_store_says_how_to_begin(url: str) -> None:
    async with dashboard(App(url)) as reader:
        page = await reader("/")
    assert "All is well." in page
    assert "duetime submit greet" in page


async def test_the_overview_says_what_is_wrong_and_leads_there(ui: Reader, app: App) -> None:
    await app.handler("mail.send").now(to="a", template="b")
    page = await ui("/")
    assert "needs you" in page
    assert "no live worker runs" in page.lower() or "no live worker" in page
    assert 'href="/ui/handlers/mail.send"' in page


async def test_a_list_is_searched_paged_and_never_shows_whole_payloads(ui: Reader, app: App) -> None:
    await app.submit_many([app.handler("mail.send").new(to="x" * 5_000, template=str(number)).after(3_600) for number in range(60)])
    kept = await app.handler("orders.expire").options(key="order-7", collection="eu").after(3_600, order_id=7)
    page = await ui("/tasks")
    assert len(ids_in(page)) == 50
    assert "x" * 200 not in page
    older = re.search(r'href="(/ui/tasks\?[^"]*cursor=[^"]*)" rel="next"', page)
    assert older is not None
    assert len(ids_in(await ui(older[1].removeprefix("/ui").replace("&amp;", "&")))) == 11
    for search in (
        "key:order-7",
        f"id:{kept.id}",
        "handler:orders.expire collection:eu",
        "state:pending handler:orders.expire",
    ):
        assert ids_in(await ui(f"/tasks?q={search}")) == [kept.id], search
    assert "Nothing matches" in await ui("/tasks?q=state:failed")
    assert "colour" in await ui("/tasks?q=colour:red")
    assert 'role="alert"' in await ui("/tasks?q=state:red")


async def test_only_what_has_changed_is_sent_again(ui: Reader, app: App) -> None:
    task = await app.handler("orders.expire").after(3_600, order_id=7)
    page = await ui("/tasks")
    parts = dict(re.findall(r'data-part="(\w+)" data-tag="(\w+)"', page))
    known = ",".join(f"{name}={tag}" for name, tag in parts.items())
    headers, text = await ui.whole("/tasks", headers={"Duetime-Parts": known}, status=204)
    assert (text, headers["duetime-next"]) == ("", "2")
    await app.edit(task, priority=9)
    text = await ui("/tasks", headers={"Duetime-Parts": known})
    assert "<!doctype" not in text
    assert re.findall(r'data-part="(\w+)"', text) == ["rows"]


async def test_a_gate_is_closed_with_a_reason_and_opened_again(ui: Reader, app: App) -> None:
    await ui(
        "/handlers", form={"do": "gate", "handler": "mail.send", "action": "pause", "lasting": "15min", "note": "provider down"}, status=303
    )
    [gate] = await app.gates.list()
    assert (gate.handler, gate.note, gate.set_by) == ("mail.send", "provider down", app.user)
    assert gate.until_at is not None
    for address in ("/handlers", "/handlers/mail.send"):
        assert "provider down" in await ui(address)
    await ui("/handlers/mail.send", form={"do": "open", "handler": "mail.send"}, status=303)
    assert await app.gates.list() == []
    await ui("/handlers", form={"do": "gate", "handler": "mail.send", "action": "drop"}, status=303)
    assert "say in the note why" in await ui("/handlers")
    assert await app.gates.list() == []


async def test_all_that_match_are_cancelled_by_an_operation_after_its_effect_was_told(ui: Reader, app: App) -> None:
    await app.submit_many([app.handler("mail.send").new(to="a", template="b").after(3_600) for _ in range(7)])
    other = await app.handler("orders.expire").after(3_600, order_id=7)
    page = await ui("/operations/new?verb=cancel&q=handler:mail.send")
    assert "Cancel 7 tasks?" in page
    await ui("/operations/new", form={"do": "start", "verb": "cancel", "q": "handler:mail.send"}, status=303)
    [begun] = (await app.client.operations.page()).items
    done = await app.client.operations.wait(begun.id, timeout=PATIENCE)
    assert dict(done.answers) == {"cancelled": 7}
    assert (await app.get(other.id)).state == "pending"
    page = await ui("/operations")
    assert "handler mail.send" in page
    assert "done" in page
    await ui("/operations", form={"do": "stop", "operation": begun.id}, status=303)
    assert 'class="toast bad"' in await ui("/operations"), "it had ended"
    await ui("/operations/new?verb=retry&q=state:pending", status=422)


async def test_a_schedule_runs_pauses_resumes_and_changes_its_rule(ui: Reader, app: App) -> None:
    await app.schedules.put(Schedule(name="weekly", handler="mail.send", rule=Cron("0 7 * * 1"), payload={"to": "a", "template": "b"}))
    await ui("/schedules/weekly", form={"do": "trigger"}, status=303)
    assert "weekly runs now" in await ui("/schedules/weekly")
    await ui("/schedules", form={"do": "pause", "schedule": "weekly", "note": "holidays"}, status=303)
    assert "holidays" in await ui("/schedules/weekly")
    await ui("/schedules/weekly", form={"do": "resume"}, status=303)
    page = await ui("/schedules/weekly?cron=30+2+*+*+*&tz=Europe/Berlin")
    instants = [at.strftime("%a %d %b %H:%M:%S %Z") for at in await app.schedules.preview(Cron("30 2 * * *", tz="Europe/Berlin"), count=10)]
    assert all(at in page for at in instants)
    tag = re.search(r'name="tag" value="([^"]+)"', page)
    assert tag is not None
    form = {"do": "change", "cron": "30 2 * * *", "tz": "Europe/Berlin", "tag": tag[1]}
    await ui("/schedules/weekly", form=form, status=303)
    assert (await app.schedules.get("weekly")).rule == Cron("30 2 * * *", tz="Europe/Berlin")
    await ui("/schedules/weekly", form=form, status=303)
    assert "bad" in await ui("/schedules/weekly"), "the schedule has changed since that form was shown"
    assert "five fields" in await ui("/schedules/weekly?cron=30+2") or "cron" in await ui("/schedules/weekly?cron=30+2")


async def test_the_palette_finds_things_of_every_sort(ui: Reader) -> None:
    for text, address in (("charge", "/ui/handlers/payments.charge"), ("sweep", "/ui/handlers/sweep-carts"), ("sched", "/ui/schedules")):
        assert f'href="{address}"' in await ui(f"/find?q={text}")


async def test_settings_are_kept_in_the_browser_and_change_the_page(ui: Reader) -> None:
    form = {"do": "save", "theme": "dark", "density": "compact", "zone": "Asia/Tokyo"}
    await ui("/settings", form=form, status=303)
    page = await ui("/settings")
    assert 'data-theme="dark" data-density="compact"' in page
    assert 'data-keys="off"' in page
    assert "Saved in this browser." in page
    assert "Saved in this browser." not in await ui("/settings"), "it is said once"
    await ui("/settings", form={**form, "zone": "../../etc/passwd"}, status=303)
    assert "is not a time zone" in await ui("/settings")


async def test_tokens_are_listed_and_revoked_by_those_who_may(signed: Callable[..., Any], app: App) -> None:
    admin, operator = await signed("root", scopes=["admin"]), await signed("olga")
    assert "olga" in await admin("/settings")
    assert "keeper" not in await operator("/settings")
    await operator("/settings", form={"do": "revoke", "name": "root"}, status=403)
    await admin("/settings", form={"do": "revoke", "name": "olga"}, status=303)
    await operator("/settings", status=303)
    assert "tokens.revoke" in await admin("/audit")
    await operator("/audit", status=303)


async def test_markup_is_text_everywhere(url: str) -> None:
    app = App(url, user=NAME)

    @app.task(name=f"h {NAME}")
    async def work(text: str) -> None:
        """<script>alert(2)</script>"""
        print(f"{NAME}\u202e\x1b[31mred\x1b[0m")
        raise ValueError(HOSTILE)

    async with dashboard(app) as ui, app.worker(grace=0.1):
        await ui("/events")  # from now on they are written
        task = await work.options(key=NAME, collection=NAME, meta={NAME: NAME}, retry=RetryPolicy(tries=1)).now(NAME)
        await app.client.wait(task.id, timeout=PATIENCE)
        await app.schedules.put(Schedule(name=f"s {NAME}", handler=work.name, rule=Cron("0 0 1 1 *"), payload={"text": NAME}))
        await app.gates.pause(work.name, note=NAME)
        worker = (await app.insight.workers())[0].id
        [kind] = await app.failures.list()
        flow = await app.chain(work.new(NAME), work.new(NAME), name=f"f {NAME}")
        await app.store.take_lock(f"l {NAME}", "0123456789abcdef", NAME, 3_600.0, None)
        known = {"{fingerprint}": kind.fingerprint, "{id}": task.id, "{name}": work.name, "{schedule}": f"s {NAME}", "{worker}": worker}
        known["{flow}"] = flow.id
        await ui(
            "/settings", form={"do": "save", "theme": "auto", "density": "comfortable", "zone": "UTC"}, status=303
        )  # all is read again
        for page in PAGES:
            text = await ui(_filled(page.path, known))
            assert "<img" not in text, page.path
            assert "onerror=alert(1)>" not in text.replace(escape("onerror=alert(1)>"), ""), page.path
            assert "<script>" not in text, page.path
            assert "\x1b" not in text
        for path in ("/tasks", "/flows", "/locks", "/events"):
            assert "&lt;img" in await ui(path), path
        assert "&lt;img" in await ui("/find?q=%3Cimg")


def _filled(path: str, known: dict[str, str]) -> str:
    for word, value in known.items():
        path = path.replace(word, quote(value, safe=""))
    return path


@pytest.mark.parametrize("page", [page.path for page in PAGES if "{" not in page.path])
async def test_pages_of_a_busy_store_are_small(ui: Reader, app: App, page: str) -> None:
    await fill(app)
    assert len(await ui(page)) < 100_000


async def test_retry_policies_are_told_in_words(ui: Reader, app: App) -> None:
    words = "5 tries, the second after 30 seconds, doubling up to 4 minutes, each up to 50 % sooner"
    async with app.worker(grace=0.1):
        assert words in await ui("/handlers/orders.expire")
    task = await app.handler("orders.expire").options(retry=RetryPolicy.fixed(10)).after(3_600, order_id=1)
    assert "5 tries, each after 10 seconds" in await ui(f"/tasks/{task.id}")
