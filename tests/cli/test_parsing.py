"""What people type, and how it is shown to them."""

from datetime import UTC, datetime, timedelta

import pytest

from duetime.cli import parsing, show
from duetime.errors import InvalidValue


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("0", 0), ("1.5", 1.5), ("30s", 30), ("10m", 600), ("1h30m", 5_400), ("2d", 172_800), ("1w", 604_800)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parsing.parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "-1", "-5m", "1x", "1h-5m", "nan", "inf", "1e999", "ten"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue):
        parsing.parse_seconds(text)


@pytest.mark.parametrize("text", ["2030-01-31T07:00:00Z", "2030-01-31T07:00+00:00", "20300131T070000Z", "2030-01-31 09:00+02:00"])
def test_instants(text: str) -> None:
    assert parsing.parse_instant(text) == datetime(2030, 1, 31, 7, tzinfo=UTC)


@pytest.mark.parametrize("text", ["07:00Z", "tomorrow", "", "2030-02-30T00:00Z"])
def test_what_is_no_instant_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue):
        parsing.parse_instant(text)


@pytest.mark.parametrize(("text", "forward"), [("1h", -1), ("-1h", -1), ("+1h", 1)])
def test_a_moment_of_the_past_counts_back_unless_its_sign_says_otherwise(text: str, forward: int) -> None:
    before = datetime.now(UTC)
    moment = parsing._moment(-1)(text) - forward * timedelta(hours=1)
    assert before <= moment <= datetime.now(UTC)


def test_a_moment_beyond_the_calendar_is_refused() -> None:
    with pytest.raises(InvalidValue):
        parsing._moment(1)("9999999w")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0123, "12 ms"), (5.25, "5.2 s"), (75, "1 min 15 s"), (3_700, "1 h 1 min"), (100_000, "27 h 46 min"), (864_000, "10 days")],
)
def test_lengths_of_time_are_shown_in_the_units_that_matter(seconds: float, text: str) -> None:
    assert show.span(timedelta(seconds=seconds)) == text


def test_a_narrow_terminal_gets_fewer_columns() -> None:
    columns = [show.Column("id", whole=True), show.Column("state"), show.Column("key", spare=1), show.Column("tries", spare=2)]
    row = ["x" * 36, "pending", "order-7", "3"]
    assert show._fitting(columns, [row], 80) == [0, 1, 2, 3]
    assert show._fitting(columns, [row], 56) == [0, 1, 2]
    assert show._fitting(columns, [row], 50) == [0, 1]
    assert show._fitting(columns, [row], 10) == [0, 1]


def test_spare_columns_that_hold_nothing_are_left_out() -> None:
    columns = [show.Column("handler"), show.Column("due", right=True), show.Column("expired", right=True, spare=1)]
    assert show._fitting(columns, [["a", "0", "0"], ["b", "0", "0"]], 80) == [0, 1]
    assert show._fitting(columns, [["a", "0", "0"], ["b", "0", "2"]], 80) == [0, 1, 2]
