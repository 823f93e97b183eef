"""Charts equal the series: values, gaps, sums of days with 23 to 25 hours, and buckets that were folded."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from duetime import App
from duetime.client.series import Series
from duetime.clock import ManualClock, to_datetime, to_instant
from duetime.model.figures import ATTEMPTS, FigureKey
from duetime.model.series import SeriesName
from duetime.store.sqlite.store import SqliteStore
from duetime.web.charts import HEIGHT, TOP
from duetime.web.courses import NAMES, RANGES, Course, by_day, courses, days
from tests.web.conftest import dashboard

BERLIN = ZoneInfo("Europe/Berlin")
INNER = HEIGHT - TOP - 22


def drawn_values(course: Course, kind: str) -> list[list[float]]:
    """Read the values of a line back from its drawing: the stretches between gaps."""
    top = float(
        re.findall(r'class="grid"[^>]*y1="([\d.]+)"[^>]*/><text[^>]*>([\d.,\s\u202f]+)<', str(course.drawing))[-1][1].replace("\u202f", "")
    )
    lines = re.findall(rf'<polyline class="{kind}" points="([^"]*)"', str(course.drawing))
    return [[top * (1 - (float(pair.split(",")[1]) - TOP) / INNER) for pair in line.split()] for line in lines]


def some_series(values: dict[str, list[float | None]], since: datetime, step: int) -> Series:
    size = len(next(iter(values.values())))
    whole = {SeriesName(name): values.get(name, [None] * size) for name in NAMES}
    return Series(handler=None, step=step, since=since, until=since + timedelta(seconds=step * size), values=whole)


def test_a_line_has_the_values_of_the_series_and_its_gaps() -> None:
    values: list[float | None] = [3, 7, None, None, 5, 8, 1, 100]
    series = some_series({"due": values}, datetime(2030, 5, 6, tzinfo=UTC), 10)
    load = courses(series, UTC, "15min")[2]
    first, second = drawn_values(load, "expired")
    assert first == pytest.approx([3, 7], abs=0.1)
    assert second == pytest.approx([5, 8, 1], abs=0.1), "the last step is not over, and left out"
    assert [row[1][0] for row in load.rows] == ["1", "8", "5", "–", "–", "7", "3"]


async def test_charts_of_a_store_show_what_was_counted_also_after_a_fold_and_a_clock_that_was_set() -> None:
    app = App("sqlite:///:memory:")
    clock = ManualClock(to_instant(datetime(2030, 5, 6, 9, tzinfo=UTC)))
    store = SqliteStore(":memory:", clock=clock)
    async with app.using_store(store), dashboard(app) as ui:
        counted = []
        for number in range(1, 13):
            await store.add_figures("worker", number, {FigureKey(ATTEMPTS, "h", "succeeded"): number})
            counted.append(number)
            clock.advance(300 if number != 6 else 900)  # a pause, as after a clock that was set forward
        await store.fold_series()
        series = await app.insight.series(NAMES, since=to_datetime(clock.now()) - RANGES["24h"][0], step=300)
        assert [value for value in series["succeeded"] if value] == counted
        chart = courses(series, UTC, "24h")[0]
        stretches = drawn_values(chart, "succeeded")
        shown = [round(value) for stretch in stretches for value in stretch if round(value)]
        assert shown == counted
        page = await ui("/?range=24h")
        assert str(chart.drawing).partition("points=")[2][:200] in page


@pytest.mark.parametrize(("day", "hours"), [(datetime(2030, 3, 31), 23), (datetime(2030, 10, 27), 25), (datetime(2030, 5, 6), 24)])
def test_a_day_of_a_report_has_the_hours_that_clocks_give_it(day: datetime, hours: int) -> None:
    since = day.replace(tzinfo=BERLIN).astimezone(UTC)
    count = hours + 24
    series = some_series({"succeeded": [1.0] * count, "lateness_p99": [float(n) for n in range(count)]}, since, 3600)
    folded = by_day(series, BERLIN)
    assert [f"{at:%d}" for at in days(series, BERLIN)] == [f"{day:%d}", f"{day + timedelta(days=1):%d}"]
    assert folded["succeeded"][:-1] == [hours, 24]
    assert folded["lateness_p99"][:-1] == [hours - 1, count - 1], "of latenesses the worst"
    assert courses(series, BERLIN, "30d")[0].rows[-1] == (f"{day:%a %d %b}", [str(hours), "–", "–"])


async def _nothing() -> None: ...


@pytest.mark.covers("XXL.11")
async def test_reports_by_day_are_of_the_handlers_of_a_token_and_what_people_do_is_recorded() -> None:
    app = App("sqlite:///:memory:", user="mira")
    for name in ("payments", "mail"):
        app.task(_nothing, name=name)
    clock = ManualClock(to_instant(datetime(2030, 5, 4, 12, tzinfo=UTC)))
    store = SqliteStore(":memory:", clock=clock)
    async with app.using_store(store):
        for number in range(1, 4):
            figures = {FigureKey(ATTEMPTS, "payments", "succeeded"): 10 * number, FigureKey(ATTEMPTS, "mail", "succeeded"): 1_000}
            await store.add_figures("worker", number, figures)
            clock.advance(86_400)
        await store.fold_series()
        tokens = {name: await app.tokens.create(name, scopes=scopes, handlers=handlers) for name, scopes, handlers in (
            ("root", ["admin"], []), ("paula", ["read"], ["payments"]), ("olga", ["operate"], []))}  # fmt: skip
        async with dashboard(app) as admin:
            await admin.sign_in(tokens["root"].token)
            table = (await admin("/?range=30d&as=table")).split("<figcaption>Attempts per day")[1].partition("</table>")[0]
            assert re.findall(r'row">(\w+ \d\d \w+)</th><td class="num">([\d\u202f]+)<', table)[:4] == [
                ("Tue 07 May", "0"),
                ("Mon 06 May", "1\u202f030"),
                ("Sun 05 May", "1\u202f020"),
                ("Sat 04 May", "1\u202f010"),
            ]
        async with dashboard(app) as restricted:
            await restricted.sign_in(tokens["paula"].token)
            table = (await restricted("/?range=30d&as=table")).split("<figcaption>Attempts per day")[1].partition("</table>")[0]
            assert re.findall(r'row">\w+ \d\d \w+</th><td class="num">([\d\u202f]+)<', table)[:4] == ["0", "30", "20", "10"]
            await restricted("/handlers/mail", status=404)
            await restricted("/handlers", form={"do": "gate", "handler": "payments", "action": "pause"}, status=403)
        async with dashboard(app) as operator:
            await operator.sign_in(tokens["olga"].token)
            await operator("/handlers", form={"do": "gate", "handler": "mail", "action": "pause", "note": "moving"}, status=303)
            await operator("/audit", status=403)
        async with dashboard(app) as admin:
            await admin.sign_in(tokens["root"].token)
            page = await admin("/audit?by=olga")
            assert "gates.pause" in page
            assert "moving" in page
