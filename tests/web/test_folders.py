"""Schedules in folders: walked into, copied, and acted on together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from duetime import App
from duetime.client.schedules.schedule import Schedule
from duetime.model.rules import Cron
from duetime.web.pages.schedules import counted
from tests.web.conftest import Reader

NAMES = ("reports/daily/sales", "reports/daily/stock", "reports/monthly", "sweep")


async def _put(app: App) -> None:
    for name in NAMES:
        payload = {"to": "ops@example.org", "template": name}
        await app.schedules.put(Schedule(name=name, handler="mail.send", rule=Cron("0 7 * * *", tz="Europe/Berlin"), payload=payload))


def test_a_folder_is_what_a_slash_ends() -> None:
    assert counted(NAMES, "") == {"reports/": 3}
    assert counted(NAMES, "reports/") == {"reports/daily/": 2}
    assert counted(NAMES, "reports/daily/") == {}


@pytest.mark.each_store
@pytest.mark.covers("CJO.9")
async def test_schedules_are_in_folders_and_are_copied_and_acted_on_together(ui: Reader, app: App) -> None:
    await _put(app)
    page = await ui("/schedules")
    assert "<span>reports/</span><b>3</b>" in page
    page = await ui("/schedules?q=reports/")
    assert "reports/monthly" in page
    assert ">sweep<" not in page
    assert "<span>daily/</span><b>2</b>" in page

    form = {"do": "copy", "to": "reports/daily/returns"}
    await ui("/schedules/reports%2Fdaily%2Fsales", form=form, status=303)
    copied = await app.schedules.get("reports/daily/returns")
    assert (copied.rule, copied.handler) == (Cron("0 7 * * *", tz="Europe/Berlin"), "mail.send")
    assert copied.schedule.payload["template"] == "reports/daily/sales"
    await ui("/schedules/reports%2Fdaily%2Fsales", form=form, status=303)
    assert 'class="toast bad"' in await ui("/schedules"), "that name is taken now"

    ticked = {f"schedule:{name}": "on" for name in NAMES[:3]}
    await ui("/schedules?q=reports/", form={"do": "many", "verb": "pause", **ticked}, status=303)
    assert "3 of 3 schedules paused" in await ui("/schedules")
    assert [info.name for info in await app.schedules.list(paused=True)] == sorted(NAMES[:3])
    await ui("/schedules", form={"do": "many", "verb": "delete", "schedule:no-such": "on", "schedule:sweep": "on"}, status=303)
    assert "1 of 2 schedules deleted" in await ui("/schedules")
    assert not await app.schedules.list(prefix="sweep")
    await ui("/schedules", form={"do": "many", "verb": "pause"}, status=303)
    assert "tick some schedules first" in await ui("/schedules")


async def test_schedules_of_other_handlers_are_neither_shown_in_folders_nor_changed(signed: Callable[..., Any], app: App) -> None:
    await _put(app)
    await app.schedules.put(Schedule(name="payments/nightly", handler="payments.refund", rule=Cron("0 3 * * *"), payload={"order_id": 1}))
    reader: Reader = await signed("paula", handlers=["payments.*"])
    page = await reader("/schedules")
    assert "payments/" in page
    assert "reports" not in page
    await reader("/schedules", form={"do": "many", "verb": "delete", "schedule:sweep": "on"}, status=303)
    assert "0 of 1 schedules deleted" in await reader("/schedules")
    await reader("/schedules/sweep", form={"do": "copy", "to": "payments/mine"}, status=303)
    assert {info.name for info in await app.schedules.list()} >= {"sweep"}
    assert not await app.schedules.list(prefix="payments/mine")
