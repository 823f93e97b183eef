"""The kinds of rules: how they are written, what they plan, how they travel, what is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given

from duetime.clock import LATEST, to_datetime, to_instant
from duetime.errors import InvalidValue
from duetime.model.rules import AfterEnd, At, Calendar, Cron, DayCalendar, Every, Rule, Union, Window, plan_of
from tests.unit.rules.strategies import any_rules

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def upcoming(rule: Rule, number: int, start: datetime = NOON, calendars: Mapping[str, DayCalendar] | None = None) -> list[str]:
    plan = plan_of(rule, calendars=calendars or {})
    found = plan.between(to_instant(start), LATEST, number)
    return [to_datetime(instant).astimezone(ZoneInfo(plan.zone)).strftime("%Y-%m-%d %H:%M") for instant in found]


def test_a_fixed_rate_counts_from_the_epoch() -> None:
    assert upcoming(Every(minutes=25), 3) == ["2026-01-01 12:20", "2026-01-01 12:45", "2026-01-01 13:10"]
    assert upcoming(Every(hours=2, phase=timedelta(minutes=5)), 2) == ["2026-01-01 12:05", "2026-01-01 14:05"]
    plan = plan_of(Every(1.5, phase=0.25))
    assert plan.between(0, 5_000_000, 9) == [250_000, 1_750_000, 3_250_000, 4_750_000]
    assert plan.after(-1) == 250_000


def test_an_interval_is_written_in_seconds_as_a_timedelta_or_in_units() -> None:
    assert Every(5400) == Every(timedelta(minutes=90)) == Every(hours=1, minutes=30) == Every(interval=5400.0)
    assert Every(60, phase=65) == Every(60, phase=5) == Every(60, -55)
    assert AfterEnd(timedelta(minutes=1)) == AfterEnd(60)
    assert Window(timedelta(minutes=10), "08:00", "18:00") == Window(600, "8:00", "18:00")


def test_a_fixed_delay_is_counted_from_the_end_of_the_last_run() -> None:
    plan = plan_of(AfterEnd(60))
    assert plan.waits
    assert plan.after(0) is None
    assert plan.after(0, ended_at=5) == 60_000_005
    assert plan.after(60_000_005, ended_at=5) is None
    assert plan.between(0, LATEST, 10, ended_at=5) == [60_000_005]


def test_a_delay_joined_with_a_rate_gives_whichever_comes_first() -> None:
    plan = plan_of(AfterEnd(60) | Every(100))
    assert plan.after(0) == 100_000_000
    assert plan.after(0, ended_at=10_000_000) == 70_000_000
    assert plan.after(70_000_000, ended_at=10_000_000) == 100_000_000
    assert not plan_of(Every(100)).waits
    assert plan_of(AfterEnd(60) | AfterEnd(30)).between(0, LATEST, 5, ended_at=5) == [30_000_005, 60_000_005]
    assert plan_of(AfterEnd(60), start_at=100_000_000).after(0, ended_at=5) == 100_000_000


def test_every_two_weeks_on_monday() -> None:
    rule = Calendar(2, "weeks", on="monday", at="09:00", tz="Europe/Berlin", since=date(2026, 1, 5))
    assert upcoming(rule, 3) == ["2026-01-05 09:00", "2026-01-19 09:00", "2026-02-02 09:00"]
    assert upcoming(Calendar(2, "week", on="monday", since="2026-01-12"), 1) == ["2026-01-12 00:00"]  # type: ignore[arg-type]
    assert upcoming(Calendar(1, "week", on=["Tue", "sat"]), 3) == ["2026-01-03 00:00", "2026-01-06 00:00", "2026-01-10 00:00"]
    assert upcoming(Calendar(3, "weeks", on="fri-sat", since=date(2025, 12, 29)), 3) == [
        "2026-01-02 00:00",
        "2026-01-03 00:00",
        "2026-01-23 00:00",
    ]
    assert upcoming(Calendar(unit="week"), 1) == ["2026-01-05 00:00"]


def test_every_so_many_days() -> None:
    assert upcoming(Calendar(at=["18:00", "09:00"]), 3) == ["2026-01-01 18:00", "2026-01-02 09:00", "2026-01-02 18:00"]
    assert upcoming(Calendar(10, "days", since=date(2026, 1, 3)), 2) == ["2026-01-03 00:00", "2026-01-13 00:00"]
    assert upcoming(Calendar(10, "days", since=date(2036, 1, 3)), 1) == ["2026-01-05 00:00"]


@pytest.mark.parametrize(
    ("on", "expected"),
    [
        (15, ["2026-01-15", "2026-02-15"]),
        (31, ["2026-01-31", "2026-03-31", "2026-05-31"]),
        (-1, ["2026-01-31", "2026-02-28"]),
        (-31, ["2026-03-01", "2026-05-01"]),
        ("last", ["2026-01-31", "2026-02-28"]),
        ("last day", ["2026-01-31", "2026-02-28"]),
        ("first monday", ["2026-01-05", "2026-02-02"]),
        ("third friday", ["2026-01-16", "2026-02-20"]),
        ("last Friday", ["2026-01-30", "2026-02-27"]),
        ("fifth fri", ["2026-01-30", "2026-05-29"]),
        ("first business day", ["2026-02-02", "2026-03-02"]),
        ("last business day", ["2026-01-30", "2026-02-27"]),
        ("third business day", ["2026-01-05", "2026-02-04"]),
        ("10th business day", ["2026-01-14", "2026-02-13"]),
        ([1, "last friday"], ["2026-01-30", "2026-02-01", "2026-02-27"]),
    ],
)
def test_days_of_the_month(on: Any, expected: list[str]) -> None:
    found = upcoming(Calendar(unit="month", on=on), len(expected))
    assert found == [f"{day} 00:00" for day in expected]


def test_a_day_that_a_month_lacks_is_skipped_or_its_last() -> None:
    assert upcoming(Calendar(unit="month", on=31, missing="last"), 3) == ["2026-01-31 00:00", "2026-02-28 00:00", "2026-03-31 00:00"]
    assert upcoming(Calendar(unit="month", on="fifth friday", missing="last"), 2) == ["2026-01-30 00:00", "2026-02-27 00:00"]
    assert upcoming(Calendar(unit="year", on="02-29"), 2) == ["2028-02-29 00:00", "2032-02-29 00:00"]
    assert upcoming(Calendar(unit="year", on="02-29", missing="last"), 2) == ["2026-02-28 00:00", "2027-02-28 00:00"]
    assert upcoming(Calendar(2, "months", on=31, since=date(2026, 2, 1)), 2) == ["2026-08-31 00:00", "2026-10-31 00:00"]


def test_days_of_the_year() -> None:
    rule = Calendar(unit="year", on=["12-24", "last friday of november", "15 of march"], at="08:00", tz="Asia/Tokyo")
    assert upcoming(rule, 4) == ["2026-03-15 08:00", "2026-11-27 08:00", "2026-12-24 08:00", "2027-03-15 08:00"]
    assert upcoming(Calendar(4, "years", on="07-01", since=date(2024, 1, 1)), 2) == ["2028-07-01 00:00", "2032-07-01 00:00"]
    assert upcoming(Calendar(unit="year", on="last business day of december"), 2) == ["2026-12-31 00:00", "2027-12-31 00:00"]


def test_business_days_leave_out_what_a_calendar_does_not_permit() -> None:
    holidays = {
        "holidays": DayCalendar(dates=["2026-01-30", "2026-02-27"], yearly="01-05", also=["bridge"]),
        "bridge": DayCalendar(dates="2026-01-29"),
    }
    last = Calendar(unit="month", on="last business day", at="18:00", business="holidays")
    assert upcoming(last, 3, calendars=holidays) == ["2026-01-28 18:00", "2026-02-26 18:00", "2026-03-31 18:00"]
    daily = Calendar(on="business day", business="holidays")
    assert upcoming(daily, 3, calendars=holidays) == ["2026-01-02 00:00", "2026-01-06 00:00", "2026-01-07 00:00"]
    hours = {"holidays": DayCalendar(mode="include", weekdays="mon-thu", times="09:00-17:00")}
    assert upcoming(last, 1, calendars=hours) == ["2026-01-29 18:00"]
    partly = {"holidays": DayCalendar(dates="2026-01-30", times="12:00-24:00")}
    assert upcoming(last, 1, calendars=partly) == ["2026-01-30 18:00"]
    with pytest.raises(InvalidValue, match="calendar 'holidays' is unknown"):
        plan_of(last)


def test_explicit_instants_are_sorted_and_distinct() -> None:
    early, late = NOON + timedelta(hours=1), NOON + timedelta(days=400)
    assert At(late, early, early) == At([early, late]) == At(to_instant(late), early)
    assert upcoming(At(late, early), 5) == ["2026-01-01 13:00", "2027-02-05 12:00"]
    assert msgspec.json.decode(b'{"rule":"at","instants":["2026-01-01T13:00:00Z"]}', type=Rule) == At(early)


def test_a_window_of_the_day() -> None:
    rule = Window(timedelta(minutes=10), "08:00", "08:25", days="mon-fri", tz="Europe/Berlin")
    assert upcoming(rule, 4) == ["2026-01-02 08:00", "2026-01-02 08:10", "2026-01-02 08:20", "2026-01-05 08:00"]
    assert upcoming(Window(3600, "13:00", "14:00"), 3) == ["2026-01-01 13:00", "2026-01-01 14:00", "2026-01-02 13:00"]
    assert upcoming(Window(36_000), 4) == ["2026-01-01 20:00", "2026-01-02 00:00", "2026-01-02 10:00", "2026-01-02 20:00"]


def test_a_window_over_midnight_belongs_to_the_day_it_starts_on() -> None:
    rule = Window(4 * 3600, "22:00", "06:00", days="thu")
    assert upcoming(rule, 4) == ["2026-01-01 22:00", "2026-01-02 02:00", "2026-01-02 06:00", "2026-01-08 22:00"]


def test_rules_are_joined() -> None:
    noon, rate, end = Cron("0 12 * * *", tz="Asia/Tokyo"), Every(hours=6), AfterEnd(60)
    joined = noon | rate | end
    assert joined == Union(rules=(noon, rate, end)) == noon | (rate | end)
    assert hash(joined) == hash(Union(rules=[Union(rules=[noon, rate]), end]))
    assert joined.rules == (noon, rate, end)
    assert plan_of(rate | noon).zone == "Asia/Tokyo"
    assert plan_of(rate).zone == "UTC"
    with pytest.raises(TypeError):
        noon | 5


@given(any_rules)
def test_a_rule_survives_json(rule: Rule) -> None:
    encoded = msgspec.json.encode(rule)
    decoded = msgspec.json.decode(encoded, type=Rule)
    assert decoded == rule
    assert hash(decoded) == hash(rule)
    assert type(decoded) is type(rule)
    assert msgspec.json.encode(decoded) == encoded


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (b'{"rule":"cron","expression":"0 9 * * *"}', Cron),
        (b'{"rule":"every","interval":60}', Every),
        (b'{"rule":"after_end","delay":60}', AfterEnd),
        (b'{"rule":"calendar","unit":"months","on":"last friday","at":"09:00"}', Calendar),
        (b'{"rule":"window","every":600,"start":"08:00","end":"18:00"}', Window),
        (b'{"rule":"union","rules":[{"rule":"every","interval":60},{"rule":"after_end","delay":60}]}', Union),
    ],
)
def test_json_is_tagged_by_rule(text: bytes, kind: type) -> None:
    assert type(msgspec.json.decode(text, type=Rule)) is kind
    with pytest.raises(msgspec.ValidationError, match="unknown field `colour`"):
        msgspec.json.decode(text[:-1] + b',"colour":1}', type=Rule)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Every(0.5), "interval must be at least 1 second"),
        (lambda: Every(-5), "interval must be at least 1 second"),
        (lambda: Every(1.0005), "interval must be whole milliseconds"),
        (lambda: Every(1e12), "interval must be at most 100 years"),
        (lambda: Every(float("nan")), "interval must be finite"),
        (lambda: Every("10"), "interval must be seconds or a timedelta"),  # type: ignore[arg-type]
        (lambda: Every(), r"interval must be given once.*Every\(minutes=10\)"),
        (lambda: Every(5, minutes=5), "interval must be given once"),
        (lambda: Every(fortnights=1), "interval: no unit 'fortnights'"),  # type: ignore[call-arg]
        (lambda: Every(60, phase=0.0001), "phase must be whole milliseconds"),
        (lambda: AfterEnd(0), r"delay must be at least 1 second.*AfterEnd\(60\)"),
        (lambda: Cron(5), "expression must be text"),  # type: ignore[arg-type]
        (lambda: Cron("* * * * *", gap="jump"), "gap must be 'run' or 'skip', got 'jump'"),  # type: ignore[arg-type]
        (lambda: Calendar(0), "every must be 1 to 18262 days"),
        (lambda: Calendar(True), "every must be 1 to"),
        (lambda: Calendar(51, "years"), "every must be 1 to 50 years"),
        (lambda: Calendar(unit="decade"), "unit must be 'day' or 'week'"),  # type: ignore[arg-type]
        (lambda: Calendar(at="25:00"), 'at must be a time of day such as "09:00"'),
        (lambda: Calendar(at=[]), "at must name at least one time"),
        (lambda: Calendar(on="monday"), 'on: for days only on="business day"'),
        (lambda: Calendar(unit="week", on="someday"), "on must name weekdays"),
        (lambda: Calendar(unit="month", on=0), "on: a day of the month is 1 to 31"),
        (lambda: Calendar(unit="month", on=32), "on: a day of the month is 1 to 31"),
        (lambda: Calendar(unit="month", on="sixth friday"), "on: for months say"),
        (lambda: Calendar(unit="month", on=[]), "on must name at least one day"),
        (lambda: Calendar(12, "months", on=30, since=date(2026, 2, 1)), "on: day 30 never comes in February"),
        (lambda: Calendar(unit="year", on="02-30"), "on: February never has a day 30"),
        (lambda: Calendar(unit="year", on="31 of april"), "on: April never has a day 31"),
        (lambda: Calendar(unit="year", on="friday"), "on: for years say"),
        (lambda: Calendar(missing="next"), "missing must be"),  # type: ignore[arg-type]
        (lambda: Calendar(since="soon"), 'since must be a date such as "2030-12-24"'),  # type: ignore[arg-type]
        (lambda: Calendar(unit="month", on=1, business="holidays"), "business says which days are no business days"),
        (lambda: At(), "instants must be 1 to 10,000"),
        (lambda: At(datetime(2026, 1, 1)), "instants must carry a time zone"),
        (lambda: At("2026-01-01"), "instants must be a datetime"),  # type: ignore[arg-type]
        (lambda: At(-1), "instants must lie between 1970 and 9999"),
        (lambda: Window(0.1), "every must be at least 1 second"),
        (lambda: Window(60, "8", "18:00"), "start must be a time of day"),
        (lambda: Window(60, "08:00", "08:00"), "end must differ from start"),
        (lambda: Window(60, days=""), "days must name at least one weekday"),
        (lambda: Window(60, days="mon-x"), "days must name weekdays"),
        (lambda: Union(rules=()), "rules must be 1 to 100"),
        (lambda: Union(rules=(5,)), "rules must be rules"),  # type: ignore[arg-type]
        (lambda: plan_of(Every(60), start_at=5, end_at=4), "end_at must not lie before start_at"),
    ],
)
def test_bad_input_is_refused_with_its_field(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        make()
