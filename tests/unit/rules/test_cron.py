"""Cron expressions: what they mean, and which are refused."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice

import pytest
from cronsim import CronSim
from hypothesis import given

from duetime.clock import Instant, to_datetime, to_instant
from duetime.errors import InvalidValue
from duetime.model.rules import Cron, plan_of
from tests.unit.rules.strategies import expressions, instants

START = datetime(2026, 1, 1, tzinfo=UTC)


def upcoming(expression: str, number: int, start: datetime = START) -> list[str]:
    found = plan_of(Cron(expression)).between(to_instant(start) - 1, to_instant(start.replace(year=2400)), number)
    return [to_datetime(instant).strftime("%Y-%m-%d %H:%M:%S").removesuffix(":00") for instant in found]


def simulated(expression: str, start: datetime) -> Iterator[Instant]:
    return (to_instant(when) for when in CronSim(expression, start))


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("*/20 * * * *", ["2026-01-01 00:00", "2026-01-01 00:20", "2026-01-01 00:40"]),
        ("5/20 12 * * *", ["2026-01-01 12:05", "2026-01-01 12:25", "2026-01-01 12:45"]),
        ("10-30/10,50 0 * * *", ["2026-01-01 00:10", "2026-01-01 00:20", "2026-01-01 00:30", "2026-01-01 00:50"]),
        ("*/30 * * * * *", ["2026-01-01 00:00", "2026-01-01 00:00:30", "2026-01-01 00:01"]),
        ("15 0 12 * * *", ["2026-01-01 12:00:15", "2026-01-02 12:00:15"]),
        ("0 9 * * mon-wed", ["2026-01-05 09:00", "2026-01-06 09:00", "2026-01-07 09:00", "2026-01-12 09:00"]),
        ("0 9 * * FRI-MON", ["2026-01-02 09:00", "2026-01-03 09:00", "2026-01-04 09:00", "2026-01-05 09:00", "2026-01-09 09:00"]),
        ("0 9 * * 7", ["2026-01-04 09:00", "2026-01-11 09:00"]),
        ("0 9 * * 6-7", ["2026-01-03 09:00", "2026-01-04 09:00", "2026-01-10 09:00"]),
        ("0 22-1 1 * *", ["2026-01-01 00:00", "2026-01-01 01:00", "2026-01-01 22:00", "2026-01-01 23:00", "2026-02-01 00:00"]),
        ("0 0 1 NOV-FEB *", ["2026-01-01 00:00", "2026-02-01 00:00", "2026-11-01 00:00", "2026-12-01 00:00"]),
        ("0 0 L * *", ["2026-01-31 00:00", "2026-02-28 00:00", "2026-03-31 00:00"]),
        ("0 0 L-3 * *", ["2026-01-28 00:00", "2026-02-25 00:00"]),
        ("0 0 LW * *", ["2026-01-30 00:00", "2026-02-27 00:00", "2026-03-31 00:00"]),
        ("0 0 15W * *", ["2026-01-15 00:00", "2026-02-16 00:00", "2026-03-16 00:00", "2026-04-15 00:00"]),
        ("0 0 1W 8,11 *", ["2026-08-03 00:00", "2026-11-02 00:00"]),
        ("0 0 31W 1,5 *", ["2026-01-30 00:00", "2026-05-29 00:00", "2027-01-29 00:00"]),
        ("0 0 * * FRI#2", ["2026-01-09 00:00", "2026-02-13 00:00"]),
        ("0 0 * * 5#5", ["2026-01-30 00:00", "2026-05-29 00:00"]),
        ("0 0 * * fril", ["2026-01-30 00:00", "2026-02-27 00:00"]),
        ("0 0 ? * 1L", ["2026-01-26 00:00", "2026-02-23 00:00"]),
        ("0 0 15 * ?", ["2026-01-15 00:00", "2026-02-15 00:00"]),
        ("@hourly", ["2026-01-01 00:00", "2026-01-01 01:00"]),
        ("@daily", ["2026-01-01 00:00", "2026-01-02 00:00"]),
        ("@Midnight", ["2026-01-01 00:00", "2026-01-02 00:00"]),
        ("@weekly", ["2026-01-04 00:00", "2026-01-11 00:00"]),
        ("@monthly", ["2026-01-01 00:00", "2026-02-01 00:00"]),
        ("@yearly", ["2026-01-01 00:00", "2027-01-01 00:00"]),
        ("@annually", ["2026-01-01 00:00", "2027-01-01 00:00"]),
        ("0 0 29 2 *", ["2028-02-29 00:00", "2032-02-29 00:00"]),
        ("0 0 * 2 MON#5", ["2044-02-29 00:00", "2072-02-29 00:00", "2112-02-29 00:00"]),
    ],
)
def test_an_expression_means(expression: str, expected: list[str]) -> None:
    assert upcoming(expression, len(expected)) == expected


def test_day_of_month_and_day_of_week_are_either_or_unless_one_begins_with_a_star() -> None:
    assert upcoming("0 0 13 * FRI", 4) == ["2026-01-02 00:00", "2026-01-09 00:00", "2026-01-13 00:00", "2026-01-16 00:00"]
    assert upcoming("0 0 */100,1-7 * MON", 2) == ["2026-01-05 00:00", "2026-02-02 00:00"]
    assert upcoming("0 0 1-7 * */7", 2) == ["2026-01-04 00:00", "2026-02-01 00:00"]
    assert upcoming("0 0 */2 * MON", 2) == ["2026-01-05 00:00", "2026-01-19 00:00"]
    assert upcoming("0 0 31 2 MON", 2) == ["2026-02-02 00:00", "2026-02-09 00:00"]


@pytest.mark.parametrize(
    ("expression", "field"),
    [
        ("60 * * * *", "minute"),
        ("* 24 * * *", "hour"),
        ("* * 0 * *", "day of month"),
        ("* * 32 * *", "day of month"),
        ("* * * 13 *", "month"),
        ("* * * * 8", "day of week"),
        ("60 * * * * *", "second"),
        ("*/0 * * * *", "minute"),
        ("1- * * * *", "minute"),
        ("1,,2 * * * *", "minute"),
        ("* * L-31 * *", "day of month"),
        ("* * 32W * *", "day of month"),
        ("* * LL * *", "day of month"),
        ("? * * * *", "minute"),
        ("* * * FOO *", "month"),
        ("* * * * MON#6", "day of week"),
        ("* * * * L", "day of week"),
        ("* * * * 5L-6", "day of week"),
        ("¹ * * * *", "minute"),
        ("1_0 * * * *", "minute"),
        ("* * * *", "5 fields"),
        ("* * * * * * *", "5 fields"),
        ("", "5 fields"),
        ("@fortnightly", "@weekly"),
        ("0 0 31 2 *", "day of month 31 never comes in month 2"),
        ("0 0 30 FEB *", "day of month 30 never comes in month FEB"),
        ("0 0 31 4,6,9,11 *", "day of month 31 never comes"),
        ("0 0 31W 2 *", "day of month 31W never comes"),
        ("* * */20 * 1L", "day of month */20 never comes on day of week 1L"),
    ],
)
def test_a_bad_expression_is_refused_with_its_field_and_an_example(expression: str, field: str) -> None:
    with pytest.raises(InvalidValue, match="expression") as refused:
        Cron(expression)
    assert field in str(refused.value)
    assert "for example" in str(refused.value) or "there are" in str(refused.value)


@pytest.mark.parametrize("zone", ["Mars/Olympus", "Europe", "", "../etc/passwd", "europe berlin"])
def test_an_unknown_zone_is_refused(zone: str) -> None:
    with pytest.raises(InvalidValue, match="tz must be an IANA time zone"):
        Cron("* * * * *", tz=zone)


@given(expressions, instants)
def test_cron_agrees_with_cronsim(expression: str, instant: Instant) -> None:
    ours = plan_of(Cron(expression)).between(instant, 2**62, 20)
    assert ours == list(islice(simulated(expression, to_datetime(instant)), len(ours)))
    assert len(ours) == 20
