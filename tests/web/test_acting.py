"""What pages promise about acts: previews equal what then happens, changes of others are told, and long logs stay small."""

from __future__ import annotations

import asyncio
import html
import random
import re
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import aiohttp
import pytest

from duetime import App, Fatal
from duetime.client.schedules.schedule import Schedule
from duetime.clock import ManualClock, to_instant
from duetime.model.rules import Cron, Every
from duetime.store.sqlite.store import SqliteStore
from duetime.store.values import NewWorker
from duetime.web.pages import gating
from duetime.web.pages.task import MOST_CHARACTERS, plain_lines
from tests.servers.waiting import PATIENCE
from tests.web.conftest import Reader, dashboard

ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Sao_Paulo", "Asia/Kathmandu", "UTC", "Africa/Casablanca")


@pytest.fixture
async def before_summer_time() -> AsyncIterator[tuple[App, Reader]]:
    app = App("sqlite:///:memory:")

    @app.task
    async def sweep() -> None: ...

    clock = ManualClock(to_instant(datetime(2030, 3, 29, 20, 7, tzinfo=UTC)))
    async with app.using_store(SqliteStore(":memory:", clock=clock)), dashboard(app) as reader:
        await app.schedules.put(Schedule(name="s", handler="sweep", rule=Cron("0 7 * * *", tz="Europe/Berlin")))
        yield app, reader


@pytest.mark.slow
async def test_the_preview_of_a_rule_is_that_of_the_schedules(before_summer_time: tuple[App, Reader]) -> None:
    app, ui = before_summer_time
    chance = random.Random(2030)
    for _ in range(200):
        minute, hour, weekday = (chance.choice(words.split()) for words in ("0 30 */15 5,35", "2 1-3 * 23 */6", "* 0 1-5"))
        cron = f"{minute} {hour} * * {weekday}"
        zone = chance.choice(ZONES)
        page = await ui(f"/schedules/s?cron={cron.replace(' ', '+')}&tz={zone}")
        listed = re.findall(r"<li><span>([^<]+)</span><span class=\"soft\">(?:as now|new)</span></li>", page)
        expected = [at.strftime("%a %d %b %H:%M:%S %Z") for at in await app.schedules.preview(Cron(cron, tz=zone), count=10)]
        assert listed == expected, f"{cron} {zone}"


async def test_a_span_of_the_past_is_counted_and_then_run(app: App, signed: Callable[..., Any]) -> None:
    await app.schedules.put(Schedule(name="past", handler="mail.send", rule=Every(hours=1), payload={"to": "a", "template": "b"}))
    begun = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(days=2)
    span = {"since": f"{begun:%Y-%m-%dT%H:%M}", "until": f"{begun + timedelta(hours=4):%Y-%m-%dT%H:%M}"}
    olga, reader = await signed("olga"), await signed("rita", scopes=["read"])
    told = await reader(f"/schedules/past?{urlencode(span)}")
    assert "5 of 5 occurrences would run." in told
    assert 'value="backfill"' not in told
    assert 'value="backfill"' in await olga(f"/schedules/past?{urlencode(span)}")
    await olga("/schedules/past", form={"do": "backfill", **span, "concurrency": "2"}, status=303)
    assert "5 occurrences of the past run now." in await olga("/schedules/past")
    made = [task async for task in app.tasks(schedule="past")]
    assert sorted(task.planned_at for task in made if task.planned_at) == [begun + timedelta(hours=hour) for hour in range(5)]
    assert "0 of 5 occurrences would run; 5 have a task already." in await olga(f"/schedules/past?{urlencode(span)}")
    for wrong, said in (({**span, "since": "soon"}, "from must be a date and a time"), ({**span, "concurrency": "0"}, "from 1 to 1,000")):
        assert said in await olga(f"/schedules/past?{urlencode(wrong)}")
    acts = [(each.by, each.detail) for each in (await app.tokens.audit.list()).items if each.action == "schedules.backfill"]
    assert acts == [("olga", f"5 tasks from {span['since']} until {span['until']}")]


async def test_saving_over_the_change_of_somebody_else_tells_both_rules(before_summer_time: tuple[App, Reader]) -> None:
    app, ui = before_summer_time
    page = await ui("/schedules/s?every=15min")
    tag = re.search(r'name="tag" value="([^"]+)"', page)
    assert tag is not None
    await app.schedules.on_behalf_of("olga").put(Schedule(name="s", handler="sweep", rule=Every(hours=2)))
    await ui("/schedules/s", form={"do": "change", "every": "15min", "tag": tag[1]}, status=303)
    said = html.unescape(await ui("/schedules/s"))
    assert "olga has changed s meanwhile: it is every 2 hours now, and you wrote every 15 minutes" in said
    assert (await app.schedules.get("s")).rule == Every(hours=2)


async def test_what_a_gate_will_hold_is_told_before_and_is_what_then_waits(app: App) -> None:
    async with dashboard(app) as ui:
        async with app.worker(grace=0.1):
            pass  # handlers are declared now
        await app.submit_many([app.handler("mail.send").new(to="a", template="b") for _ in range(5)])
        await app.submit_many([app.handler("mail.send").new(to="a", template="b").after(3_600) for _ in range(3)])
        page = await ui("/handlers/mail.send")
        assert "5 due tasks wait, 3 more come due later; 0 running go on." in page
        await ui("/handlers/mail.send", form={"do": "gate", "handler": "mail.send", "action": "pause"}, status=303)
        async with app.worker(grace=0.1):
            other = await app.handler("payments.charge").now(order_id=1, cents=5)
            await app.client.wait(other.id, timeout=PATIENCE)
        tasks = [task async for task in app.tasks(handler="mail.send")]
        assert [task.state for task in tasks] == ["pending"] * 8
        assert "5 due tasks start when it opens, in 0 slots." in await ui("/handlers/mail.send")
        assert sum(task.due_at <= datetime.now(UTC) for task in tasks) == 5


async def test_a_worker_that_has_not_confirmed_a_gate_is_named(ui: Reader, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gating, "CONFIRMED_WITHIN", 0.05)
    async with app.worker(grace=0.1):
        pass  # handlers are declared now
    lease = await app.store.register(NewWorker(id="frozen-worker", host="far", pid=1, slots={"mail.send": 5}))
    try:
        await ui("/handlers", form={"do": "gate", "handler": "mail.send", "action": "pause"}, status=303)
        assert "only 0 of 1 workers have confirmed it. Missing: frozen-worker." in await ui("/handlers")
    finally:
        lease.close()
        await app.store.unregister("frozen-worker")


def test_a_page_has_the_end_of_a_long_log_and_says_how_much_is_before() -> None:
    lines, left_out = plain_lines("".join(f"line {number}\n" for number in range(1_000_000)))
    assert (lines[-1], len(lines) + left_out) == ("line 999999", 1_000_000)
    lines, left_out = plain_lines("x" * 5_000_000)
    assert (len(lines), left_out) == (1, 0)
    assert len(lines[0]) < MOST_CHARACTERS
    lines, left_out = plain_lines("\n".join("y" * 9_000 for _ in range(500)))
    assert sum(map(len, lines)) <= MOST_CHARACTERS
    assert len(lines) + left_out == 500


@pytest.mark.slow
async def test_the_page_of_a_task_that_printed_much_is_small_and_the_file_is_whole(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/store.db", output_cap="20MB")

    @app.task
    async def talk() -> None:
        for number in range(12_000):
            print(f"{number} {'xä' * 350}")

    async with dashboard(app) as ui, app.worker(grace=0.1):
        task = await talk.now()
        await app.client.wait(task.id, timeout=PATIENCE)
        page = await ui(f"/tasks/{task.id}")
        assert len(page) < 200_000
        assert "11999 xäx" in page
        assert re.search(r"its end; 12\.\d MB before it are", page)
        whole = await ui(f"/tasks/{task.id}/log?attempt=1")
        [end] = await app.output.ends(task, attempts=5, size=100_001)
        assert whole.endswith(end.text)
        assert end.before + len(end.text.encode()) == len(whole.encode()) > 12_000_000
        assert 100_001 <= len(end.text.encode()) <= 200_005  # at most two pieces of this size, and the rest of a character
        async with App(ui.url) as remote:
            [there] = await remote.output.ends(task.id, attempts=1, size=1_000)
        assert whole.endswith(there.text)
        assert there.before + len(there.text.encode()) >= len(whole.encode()) - 1


async def _logged(session: aiohttp.ClientSession, url: str, words: str) -> list[str]:
    async with session.get(f"{url}/v1/logs", params={"q": words}) as response:
        return [hit["task"] for hit in (await response.json())["items"]]


@pytest.mark.covers("RSQ.5")
async def test_a_failure_is_kept_counted_and_searched_in_several_ways_and_run_again_from_the_web(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/store.db")
    broken = [True]

    @app.task
    async def charge(order: int) -> str:
        print(f"charging order {order}")
        if broken[0]:
            raise Fatal("card expired")
        return "paid"

    async with dashboard(app) as ui, app.worker(grace=0.1), aiohttp.ClientSession() as session:
        task = await charge.now(order=7)
        await app.client.wait(task.id, timeout=PATIENCE)
        [kind] = await app.failures.list()
        assert "card expired" in await ui("/failures")
        assert task.id in await ui(f"/failures/{kind.fingerprint}")
        assert task.id in await ui('/tasks?q=error:"card+expired"')
        async with asyncio.timeout(PATIENCE):  # what it printed is brought into the store a little later
            while not (found := await _logged(session, ui.url, "charging")):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert found == [task.id]
        broken[0] = False
        await ui(f"/failures/{kind.fingerprint}", form={"do": "try"}, status=303)
        await app.client.wait(task.id, timeout=PATIENCE)
        assert await app.result(task, timeout=PATIENCE) == "paid"
        assert "succeeded" in await ui(f"/tasks/{task.id}")
