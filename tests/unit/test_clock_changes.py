"""What a change of clocks does to a cron rule, in sentences that name the local times."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from duetime.clock import to_instant
from duetime.model.rules import Cron, Every, Rule
from duetime.model.rules.clock_changes import clock_changes

SPRING = "On Sun 28 Mar 2027 clocks go from 02:00 to 03:00"
HOUR = "02:00 to 02:59 (60 times)"
AUTUMN = "On Sun 31 Oct 2027 clocks go back from 03:00 to 02:00"


def told(rule: Rule) -> list[str]:
    return clock_changes(rule, to_instant(datetime(2027, 1, 1, tzinfo=UTC)), to_instant(datetime(2028, 1, 1, tzinfo=UTC)))


@pytest.mark.parametrize(
    ("expression", "sentences"),
    [
        ("30 2 * * *", ["02:30 does not exist; it runs at 03:00 instead.", "02:30 comes twice; it runs the first time only."]),
        ("0 2,3 * * *", ["02:00 does not exist, and is left out.", "02:00 comes twice; it runs the first time only."]),
        ("*/30 * * * *", ["02:00 and 02:30 do not exist, and are left out.", "02:00 and 02:30 come twice; it runs both times."]),
        ("* 2 * * *", [f"{HOUR} do not exist, and are left out.", f"{HOUR} come twice; it runs both times."]),
        ("30 9 * * *", []),
        ("30 2 * * 1-5", []),
    ],
)  # fmt: skip
def test_local_times_that_are_skipped_or_doubled_are_named(expression: str, sentences: list[str]) -> None:
    assert told(Cron(expression, tz="Europe/Berlin")) == [f"{day}: {said}" for day, said in zip((SPRING, AUTUMN), sentences, strict=False)]


def test_a_rule_that_leaves_gaps_out_says_so() -> None:
    assert told(Cron("30 2 * * *", tz="Europe/Berlin", gap="skip"))[0] == f"{SPRING}: 02:30 does not exist, and is left out."


def test_rules_without_local_times_and_zones_without_changes_have_nothing_to_tell() -> None:
    assert told(Every(60)) == []
    assert told(Cron("30 2 * * *")) == []
    assert told(Cron("30 2 * * *", tz="Asia/Tokyo")) == []
