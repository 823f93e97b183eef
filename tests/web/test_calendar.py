"""The calendar of a day: runs where they began and as wide as they took, skips with their reason, and what is planned."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from duetime import App
from duetime.client.schedules.info import SkipInfo
from duetime.client.schedules.schedule import Schedule
from duetime.clock import ManualClock, to_instant
from duetime.model.rules import Cron, Every
from duetime.model.schedule import SkipReason
from duetime.model.task import State, Task
from duetime.store.sqlite.store import SqliteStore
from duetime.web.day import THINNEST, Mark, day_of, hours, marks, row, summary
from tests.web.conftest import Reader, dashboard

BERLIN = ZoneInfo("Europe/Berlin")
MIDNIGHT = datetime(2030, 5, 6, tzinfo=UTC)
DAY = day_of(date(2030, 5, 6), UTC)


def run(hour: float, minutes: float, state: State = State.SUCCEEDED) -> Task[object]:
    begun = MIDNIGHT + timedelta(hours=hour)
    ended = None if state is State.RUNNING else begun + timedelta(minutes=minutes)
    return Task(
        id="01a1ee76-a8ef-74c3-83ad-6a657b63f2ce", handler="h", state=state, payload={}, due_at=begun, submitted_at=begun, planned_at=begun,
        started_at=begun, finished_at=ended,
    )  # fmt: skip


def drawn(*runs: Task[object], now: float = 24) -> list[Mark]:
    return marks(runs, [], [], day=DAY, now=MIDNIGHT + timedelta(hours=now), lasting=None)


def test_a_run_lies_where_it_began_and_is_as_wide_as_it_took() -> None:
    [mark] = drawn(run(6, 72))
    assert (mark.start, mark.end, mark.kind) == (25.0, 30.0, "succeeded")
    [mark] = drawn(run(6, 0, State.RUNNING), now=12)
    assert (mark.start, mark.end, mark.kind) == (25.0, 50.0, "running")


def test_a_run_that_begins_before_the_last_has_ended_is_told() -> None:
    assert [mark.overlapping for mark in drawn(run(6, 120), run(7, 10), run(9, 10))] == [False, True, False]
    text = str(row(drawn(run(6, 120), run(7, 10)), now=None, name="s"))
    assert text.count("overlapping") == 1


def test_many_runs_are_drawn_as_one_with_their_number_and_a_failed_one_among_them_is_seen() -> None:
    often = [run(step / 100, 0.1, State.FAILED if step == 150 else State.SUCCEEDED) for step in range(300)]
    found = drawn(*often)
    assert [(mark.kind, mark.count) for mark in found] == [("succeeded", 150), ("failed", 1), ("succeeded", 149)]
    assert "150 succeeded" in found[0].said
    assert summary(found) == "299 succeeded, 1 failed"


def test_what_lies_outside_of_the_day_is_not_drawn_and_everything_stays_in_the_row() -> None:
    assert drawn(run(-3, 60), run(25, 60)) == []
    text = str(row(drawn(run(-1, 120), run(23.99, 600)), now=50.0, name="<s>"))
    for x, width in re.findall(r'<rect [^>]*x="([\d.-]+)%"[^>]*width="([\d.]+)%"', text):
        assert float(x) >= 0
        assert float(x) + float(width) <= 100.01
        assert float(width) >= THINNEST
    assert "&lt;s&gt;: 2 succeeded" in text


def test_skips_are_drawn_with_their_reason() -> None:
    at = MIDNIGHT + timedelta(hours=3)
    skip = SkipInfo(schedule="s", planned_at=at, until_at=at, count=1, reason=SkipReason.OVERLAP, at=at, note="task 7 still runs")
    [mark] = marks([], [skip], [], day=DAY, now=at, lasting=None)
    assert (mark.kind, mark.said) == ("skipped", "03:00:00 skipped: overlap, task 7 still runs")


def test_a_planned_run_is_as_wide_as_runs_usually_take() -> None:
    [mark] = marks([], [], [MIDNIGHT + timedelta(hours=12)], day=DAY, now=MIDNIGHT, lasting=3_600)
    assert (mark.start, round(mark.end, 3)) == (50.0, round(50 + 100 / 24, 3))


def test_a_day_has_as_many_hours_as_clocks_give_it() -> None:
    for on, length in ((date(2030, 3, 31), 23), (date(2030, 10, 27), 25), (date(2030, 5, 6), 24)):
        day = day_of(on, BERLIN)
        assert day.end.astimezone(UTC) - day.start.astimezone(UTC) == timedelta(hours=length)
        assert [name for _, name in hours(day)] == ["00", "03", "06", "09", "12", "15", "18", "21"]
        six = next(at for at, name in hours(day) if name == "06")
        assert round(six * length / 100, 6) == 6 + length - 24


@pytest.fixture
async def noon() -> AsyncIterator[tuple[App, Reader, ManualClock]]:
    app = App("sqlite:///:memory:")

    @app.task
    async def sweep() -> None: ...

    clock = ManualClock(to_instant(MIDNIGHT + timedelta(hours=12)))
    async with app.using_store(SqliteStore(":memory:", clock=clock)), dashboard(app) as reader:
        yield app, reader, clock


async def test_the_page_shows_what_is_planned_and_another_day(noon: tuple[App, Reader, ManualClock]) -> None:
    app, ui, _ = noon
    await app.schedules.put(Schedule(name="hourly", handler="sweep", rule=Cron("0 * * * *")))
    await app.schedules.put(Schedule(name="often", handler="sweep", rule=Every(60)))
    await app.schedules.put(Schedule(name="paused", handler="sweep", rule=Cron("0 * * * *")))
    await app.schedules.pause("paused")
    page = await ui("/calendar")
    assert "Monday 06 May 2030" in page
    assert "hourly: 11 planned" in page
    assert "paused: nothing on this day" in page
    assert re.search(r"often: 7\d\d planned", page)
    assert len(page) < 60_000
    assert "hourly: 24 planned" in await ui("/calendar?day=2030-05-07")
    assert "a day is written such as" in await ui("/calendar?day=tomorrow", status=422)
    await ui("/calendar?day=9999-12-31", status=422)


async def test_a_run_is_on_the_calendar(noon: tuple[App, Reader, ManualClock]) -> None:
    app, ui, _ = noon
    await app.schedules.put(Schedule(name="hourly", handler="sweep", rule=Cron("0 * * * *")))
    await app.schedules.trigger("hourly")
    assert "hourly: 1 pending" in await ui("/calendar")


async def test_the_page_is_whole_at_every_odd_hour_in_every_zone(noon: tuple[App, Reader, ManualClock]) -> None:
    app, ui, clock = noon
    await app.schedules.put(Schedule(name="often", handler="sweep", rule=Every(60)))
    last_second = (datetime(2030, 5, 6, 23, 59, 59, 999_999), datetime(2030, 12, 31, 23, 59, 59), datetime(2032, 2, 29, 23, 59, 59))
    clocks_change = (
        datetime(2030, 3, 31, 0, 59, 59),
        datetime(2030, 10, 27, 1),
        datetime(2030, 3, 10, 7),
        datetime(2030, 11, 3, 5, 59, 59),
    )
    for at in (*last_second, datetime(2031, 1, 1), *clocks_change):
        clock.set(to_instant(at.replace(tzinfo=UTC)))
        for zone in ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu", "Pacific/Apia"):
            page = await ui("/calendar", headers={"Cookie": f"duetime-zone={zone}"})
            local = at.replace(tzinfo=UTC).astimezone(ZoneInfo(zone))
            assert f"<h1>{local:%A %d %B %Y}</h1>" in page, (at, zone)
            assert 'aria-label="often: ' in page
