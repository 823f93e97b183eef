"""The calendar of a month, what a change of clocks does to a rule, and the files of the audit."""

from __future__ import annotations

import csv
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import msgspec

from duetime import App
from duetime.client.schedules.schedule import Schedule
from duetime.clock import to_datetime
from duetime.model.rules import Cron
from duetime.model.task import State, Task
from duetime.web.downloads import csv_line
from duetime.web.month import cells, labels, month_of, month_row
from tests.web.conftest import Reader

MAY = month_of(date(2030, 5, 1), UTC)


def run(day: int, state: State = State.SUCCEEDED) -> Task[object]:
    at = datetime(2030, 5, day, 7, tzinfo=UTC)
    return Task(id="01a1ee76-a8ef-74c3-83ad-6a657b63f2ce", handler="h", state=state, payload={}, due_at=at, submitted_at=at, planned_at=at)


def test_a_day_has_the_colour_of_the_worst_and_the_number_of_all() -> None:
    planned = [datetime(2030, 5, 31, hour, tzinfo=UTC) for hour in (7, 8, 23)]
    found = cells([run(1), run(2), run(2, State.FAILED)], [], planned, month=MAY)
    assert [(cell.day, cell.kind, cell.count) for cell in found] == [(1, "succeeded", 1), (2, "failed", 2), (31, "planned", 3)]
    assert found[1].said == "Thu 02 May: 1 failed, 1 succeeded"
    text = str(month_row(found, month=MAY, today=3, name="nightly"))
    assert 'aria-label="nightly: 1 day succeeded, 1 day failed, 1 day planned"' in text
    assert text.count("<rect") == 4


def test_days_that_are_not_looked_at_are_told() -> None:
    at = datetime(2030, 5, 2, 7, tzinfo=UTC)
    found = cells([run(2), run(3)], [], [], month=MAY, known_from=at)
    assert [(cell.day, cell.count, "not looked at" in cell.said or "too many" in cell.said) for cell in found] == [
        (1, 0, True),
        (2, 0, True),
        (3, 1, False),
    ]


def test_a_month_has_its_own_days_in_its_zone() -> None:
    october = month_of(date(2027, 10, 9), ZoneInfo("Europe/Berlin"))
    lengths = [day.end.astimezone(UTC) - day.start.astimezone(UTC) for day in october.days]
    assert (len(lengths), lengths[30], lengths[0]) == (31, timedelta(hours=25), timedelta(hours=24))
    late = datetime(2027, 9, 30, 22, 30, tzinfo=UTC)  # half past midnight in Berlin
    assert [cell.day for cell in cells([], [], [late], month=october)] == [1]
    assert [off for _, _, off in labels(october)][:3] == [False, True, True]


async def test_the_month_shows_what_is_planned_and_leads_on(ui: Reader, app: App) -> None:
    await app.schedules.put(Schedule(name="monthly", handler="search.reindex", rule=Cron("0 7 15 * *")))
    now = to_datetime(app.store.now())
    after = (now.replace(day=1) + timedelta(days=32)).strftime("%Y-%m")
    page = await ui(f"/calendar/month?month={after}")
    assert f"{after}-15" in page
    assert "1 planned" in page
    assert "This month" in page
    assert "This month" not in await ui("/calendar/month")
    assert "a month is written such as" in await ui("/calendar/month?month=soon", status=422)


async def test_instants_that_are_skipped_or_doubled_are_named_in_the_preview(ui: Reader, app: App) -> None:
    await app.schedules.put(Schedule(name="weekly", handler="search.reindex", rule=Cron("0 7 * * *", tz="Europe/Berlin")))
    page = await ui("/schedules/weekly?cron=30+2+*+*+*&tz=Europe/Berlin")
    assert "02:30 does not exist; it runs at 03:00 instead." in page
    assert "02:30 comes twice; it runs the first time only." in page
    assert "does not exist" not in await ui("/schedules/weekly")


async def test_the_audit_is_downloaded_by_those_who_may_as_lines_and_as_a_table(signed: Callable[..., Any], app: App) -> None:
    admin, operator = await signed("root", scopes=["admin"]), await signed("olga")
    await app.tokens.audit.record("gates.pause", "=cmd()", detail='says "no"')
    headers, text = await admin.whole("/audit.csv?action=gates.pause")
    assert headers["content-disposition"].startswith("attachment")
    head, row = list(csv.reader(text.splitlines()))
    assert head[:4] == ["at", "by", "action", "subject"]
    assert row[2:6] == ["gates.pause", "'=cmd()", "done", 'says "no"'], "what a spreadsheet would take for a formula is text"
    entries = [msgspec.json.decode(line) for line in (await admin("/audit.ndjson?action=gates.pause")).splitlines()]
    assert [entry["subject"] for entry in entries] == ["=cmd()"]
    assert "audit.csv?action=gates.pause" in await admin("/audit?action=gates.pause")
    for path in ("/audit.csv", "/audit.ndjson"):
        await operator(path, status=403)


def test_a_line_of_a_table_cannot_be_a_formula() -> None:
    for text in ("=1+1", "+1", "-1", "@SUM(A1)", "\t=1"):
        assert csv_line([text]).lstrip(b'"').startswith(b"'")
