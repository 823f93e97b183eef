"""Instants, durations and clocks."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duetime.clock import EARLIEST, LATEST, SECOND, ManualClock, SystemClock, to_datetime, to_instant, to_micros, to_seconds
from duetime.errors import InvalidValue


def test_an_instant_is_microseconds_since_the_epoch() -> None:
    assert to_instant(datetime(1970, 1, 1, tzinfo=UTC)) == 0
    assert to_instant(datetime(1970, 1, 1, 0, 0, 1, 5, tzinfo=UTC)) == SECOND + 5
    assert to_instant(datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)) == -SECOND


def test_zones_name_the_same_instant() -> None:
    noon = datetime(2030, 6, 1, 12, tzinfo=UTC)
    assert to_instant(noon) == to_instant(noon.astimezone(ZoneInfo("Asia/Tokyo")))
    assert to_instant(noon) == to_instant(noon.astimezone(timezone(timedelta(hours=-3, minutes=-30))))


def test_both_sides_of_an_hour_that_comes_twice_are_told_apart() -> None:
    twice = datetime(2030, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))
    assert to_instant(twice.replace(fold=1)) - to_instant(twice.replace(fold=0)) == 3600 * SECOND


@given(st.datetimes(min_value=datetime(1, 1, 2), max_value=datetime(9999, 12, 30), timezones=st.timezones()))
def test_a_datetime_survives_the_way_through_an_instant(when: datetime) -> None:
    assert to_datetime(to_instant(when)) == when.astimezone(UTC)
    assert to_datetime(to_instant(when)).tzinfo is UTC


@given(st.integers(EARLIEST, LATEST))
def test_an_instant_survives_the_way_through_a_datetime(instant: int) -> None:
    assert to_instant(to_datetime(instant)) == instant


def test_a_naive_datetime_is_refused_with_advice() -> None:
    with pytest.raises(
        InvalidValue, match=r"expires_at must carry a time zone, got the naive 2030-01-01T00:00:00; use datetime.now\(UTC\)"
    ):
        to_instant(datetime(2030, 1, 1), "expires_at")


@pytest.mark.parametrize("wrong", ["2030-01-01T00:00:00Z", 1_800_000_000, None, 1.5, timedelta(1)])
def test_what_is_no_datetime_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidValue, match=f"due_at must be a datetime with a time zone, got {type(wrong).__name__}"):
        to_instant(wrong)


def test_the_latest_instant_can_be_shown() -> None:
    assert to_datetime(LATEST) == datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


@given(st.floats(-1e9, 1e9))
def test_seconds_and_timedeltas_mean_the_same(seconds: float) -> None:
    duration = timedelta(seconds=seconds)
    assert to_micros(duration) == round(duration.total_seconds() * SECOND)
    assert abs(to_micros(seconds) - to_micros(duration)) <= 1


def test_durations_are_seconds_or_timedeltas() -> None:
    assert to_seconds(5) == 5
    assert to_seconds(0.25) == 0.25
    assert to_seconds(timedelta(minutes=1, microseconds=1)) == 60.000001
    assert to_micros(timedelta(microseconds=1)) == 1
    assert to_micros(0.000001) == 1


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("1", "timeout must be seconds or a timedelta, got str"),
        (None, "timeout must be seconds or a timedelta, got NoneType"),
        (True, "timeout must be seconds or a timedelta, got bool"),
        (float("inf"), "timeout must be finite, got inf"),
        (float("-inf"), "timeout must be finite, got -inf"),
        (float("nan"), "timeout must be finite, got nan"),
    ],
)
def test_another_duration_is_refused_with_what_was_expected(wrong: Any, message: str) -> None:
    for convert in (to_seconds, to_micros):
        with pytest.raises(InvalidValue) as problem:
            convert(wrong, "timeout")
        assert message in str(problem.value)


def test_a_manual_clock_moves_only_when_told_to() -> None:
    clock = ManualClock(5 * SECOND)
    assert (clock.now(), clock.monotonic()) == (5 * SECOND, 5)
    assert clock.now() == 5 * SECOND
    assert clock.advance(1.5) == 6_500_000
    assert clock.advance(timedelta(minutes=1)) == clock.now() == 66_500_000
    clock.set(7)
    assert clock.now() == 7


def test_the_system_clock_tells_the_time_of_this_host() -> None:
    clock = SystemClock()
    assert abs(clock.now() - time.time_ns() // 1_000) < 5 * SECOND
    before = clock.monotonic()
    assert clock.monotonic() >= before
