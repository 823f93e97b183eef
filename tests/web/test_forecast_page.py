"""The page of the forecast: its cells are those of the forecast, in local time, for those who may see them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from duetime import App
from duetime.client.schedules.schedule import Schedule
from duetime.clock import ManualClock, to_datetime, to_instant
from duetime.model.forecast import QUARTER, Quarter
from duetime.model.rules import Cron
from duetime.store.sqlite.store import SqliteStore
from duetime.web.heat_map import columns, heat_map, levels, shade
from tests.web.conftest import Reader, dashboard

BERLIN = ZoneInfo("Europe/Berlin")


def hours_of(start: datetime, tz: str, quarters: list[Quarter] | None = None, hours: int = 24) -> list[tuple[str, list[int]]]:
    start_at = to_instant(start)
    found = columns(quarters or [], start_at, start_at + hours * 4 * QUARTER, ZoneInfo(tz))
    return [(f"{column.at:%H%z}", [cell.row for cell in column.cells]) for column in found]


def test_the_hour_that_occurs_twice_has_two_columns_and_the_one_left_out_has_none() -> None:
    autumn = hours_of(datetime(2030, 10, 26, 22, tzinfo=UTC), "Europe/Berlin", hours=4)
    assert [name for name, _ in autumn] == ["00+0200", "01+0200", "02+0200", "02+0100", "03+0100"]
    spring = hours_of(datetime(2030, 3, 30, 23, tzinfo=UTC), "Europe/Berlin", hours=4)
    assert [name for name, _ in spring] == ["00+0100", "01+0100", "03+0200", "04+0200", "05+0200"]


def test_quarters_lie_in_the_row_of_their_local_time() -> None:
    assert hours_of(datetime(2030, 1, 7, tzinfo=UTC), "Asia/Kathmandu", hours=1) == [("05+0545", [3]), ("06+0545", [0, 1, 2, 3])]
    back = hours_of(datetime(2030, 4, 6, 14, tzinfo=UTC), "Australia/Lord_Howe", hours=2)  # by half an hour at 02:00
    assert back == [("01+1100", [0, 1, 2, 3]), ("01+1030", [2, 3]), ("02+1030", [0, 1, 2])]


@pytest.mark.parametrize("least", [1, 2, 20, 99])
@pytest.mark.parametrize("further", [0, 1, 2, 3, 4, 5, 6, 99, 1_234])
def test_every_number_has_one_shade_and_more_is_never_lighter(least: int, further: int) -> None:
    start, most = to_instant(datetime(2030, 1, 7, tzinfo=UTC)), least + further
    quarters = [Quarter(start + step * QUARTER, runs, ()) for step, runs in enumerate((1, least, most, 1))]
    shades = levels(columns(quarters, start, start + 3 * QUARTER, UTC))
    assert len(shades) == min(5, further + 1)
    found = [shade(runs, shades) for runs in range(most + 1)]
    assert found == sorted(found)
    assert (found[0], found[-1]) == (0, 5)
    assert 0 not in found[1:]


@pytest.fixture
async def berlin() -> AsyncIterator[tuple[App, Reader]]:
    """A store in the evening before clocks are set back in Berlin, seen by somebody there."""
    app = App("sqlite:///:memory:")

    @app.task(concurrency=1)
    async def sweep() -> None: ...

    @app.task
    async def mail() -> None: ...

    clock = ManualClock(to_instant(datetime(2030, 10, 26, 20, 7, tzinfo=UTC)))
    async with app.using_store(SqliteStore(":memory:", clock=clock)), dashboard(app) as reader:
        await reader("/settings", form={"do": "save", "theme": "auto", "density": "compact", "zone": "Europe/Berlin"}, status=303)
        yield app, reader


async def test_cells_and_table_are_those_of_the_forecast_on_a_day_of_25_hours(berlin: tuple[App, Reader]) -> None:
    app, ui = berlin
    await app.schedules.put(Schedule(name="often", handler="sweep", rule=Cron("*/10 * * * *", tz="Europe/Berlin")))
    await app.schedules.put(Schedule(name="at-night", handler="mail", rule=Cron("31,32 2 * * *", tz="Europe/Berlin")))
    found = (await app.schedules.forecast(days=1)).forecast
    page = await ui("/forecast")
    drawn = re.findall(r'<rect class="s\d" x="([\d.]+)%" y="(\d+)"[^>]*><title>(\w+ \d\d:\d\d): (\d+)</title>', page)
    expected = [(f"{to_datetime(each.at).astimezone(BERLIN):%a %H:%M}", each.runs) for each in found.quarters]
    assert [(name, int(runs)) for _, _, name, runs in drawn if runs != "0"] == expected
    assert len({(x, y) for x, y, _, _ in drawn}) == len(drawn) == 97
    assert sum(runs for _, runs in expected) == found.runs
    assert f"{found.runs} planned tasks" in page
    rows = re.findall(r"<tr><th scope=\"row\">([^<]+)</th>(.*?)</tr>", page)
    table = {name: [int(cell) for cell in re.findall(r">(\d+)</td>", cells)] for name, cells in rows}
    assert sum(cells[-1] for cells in table.values()) == found.runs
    for name in ("CEST", "CET"):
        at = [each.runs for each in found.quarters if f"{to_datetime(each.at).astimezone(BERLIN):%d %H %Z}" == f"27 02 {name}"]
        assert table[f"Sun 27 Oct 02:00 {name}"] == [*at, sum(at)], name
    [darkest] = re.findall(r"<tbody>(<tr data-key.*?)</tbody>", page, re.DOTALL)
    first = darkest.partition("</tr>")[0]
    assert "Sun 02:30" in first
    assert ">at-night</a>" in first
    assert ">often</a>" in first
    assert 'aria-label="Planned tasks by quarter of an hour: ' in page
    assert "style=" not in page


async def test_runs_that_will_need_more_slots_than_there_are_are_told(berlin: tuple[App, Reader]) -> None:
    app, ui = berlin
    for name in ("one", "two"):
        await app.schedules.put(Schedule(name=name, handler="sweep", rule=Cron("0 4 * * *")))
    assert "2 runs, 1 slot" in await ui("/forecast")


async def test_without_anything_planned_it_says_so_and_names_what_is_paused(berlin: tuple[App, Reader]) -> None:
    app, ui = berlin
    await app.schedules.put(Schedule(name="resting", handler="sweep", rule=Cron("0 4 * * *")))
    await app.schedules.pause("resting")
    page = await ui("/forecast")
    assert "Nothing is planned in the next 24 hours" in page
    assert "1 schedule is paused" in page
    assert ">resting</a>" in page


async def test_somebody_with_some_handlers_sees_the_forecast_of_those_only(signed: Callable[..., Any], app: App) -> None:
    everybody, paula = await signed("olga"), await signed("paula", handlers=["payments.*"])
    refund = Schedule(name="refunds", handler="payments.refund", rule=Cron("*/15 * * * *"), payload={"order_id": 1})
    await app.schedules.put(refund)
    await app.schedules.put(Schedule(name="reindex", handler="search.reindex", rule=Cron("* * * * *")))
    whole = await everybody("/forecast")
    assert "reindex" in whole
    part = await paula("/forecast")
    assert "refunds" in part
    assert "reindex" not in part
    assert "96 planned tasks" in part


def test_the_drawing_says_in_words_what_it_shows() -> None:
    start = to_instant(datetime(2030, 1, 7, 9, tzinfo=UTC))
    drawing = heat_map(columns([Quarter(start + QUARTER, 12, ("a",))], start, start + 3 * QUARTER, UTC))
    assert 'aria-label="Planned tasks by quarter of an hour: 12 in 24 hours, most at Mon 09:15 with 12"' in drawing
