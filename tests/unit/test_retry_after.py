"""Retry-After as servers really send it."""

import pytest

from duetime.clock import SECOND
from duetime.model.retry_after import read_retry_after

NOW = 1_800_000_000 * SECOND  # Fri, 15 Jan 2027 08:00:00 GMT


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0),
        ("120", 120),
        (" 120 ", 120),
        ("1.5", 1.5),
        ("99999999999", 86_400),
        ("9" * 400, 86_400),
        ("Fri, 15 Jan 2027 08:01:30 GMT", 90),
        ("Fri, 15 Jan 2027 09:01:30 +0100", 90),
        ("Friday, 15-Jan-27 08:01:30 GMT", 90),
        ("Fri, 15 Jan 2027 07:59:00 GMT", 0),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 86_400),
    ],
)
def test_seconds_and_dates_are_read_and_bounded(value: str, seconds: float) -> None:
    assert read_retry_after(value, NOW) == seconds


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        " ",
        "-1",
        "soon",
        "nan",
        "inf",
        "1e9",
        "0x10",
        "1,5",
        "١٢",
        "9" * 401,
        "Fri, 99 Jan 2027 08:01:30 GMT",
        "Fri, 15 Jan 99999 08:01:30 GMT",
        "Fri, 15 Jan 2027",
        "2027-01-15T08:01:30Z",
        "\x00",
        "Fri, 15 Jan 2027 08:01:30",
    ],
)
def test_what_means_nothing_is_none(value: str | None) -> None:
    assert read_retry_after(value, NOW) is None
