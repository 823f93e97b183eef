"""Rules in words: read from a command line, described in one line."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import msgspec
import pytest
from hypothesis import given

from duetime.errors import InvalidValue
from duetime.model.rules import AfterEnd, At, Calendar, Cron, Every, Rule, Window, describe, read_rule
from tests.unit.rules.strategies import any_rules

NEW_YEAR = datetime(2030, 1, 1, tzinfo=UTC)
DAYS_AFTER = [NEW_YEAR + timedelta(days=day) for day in range(1, 5)]
LAST_BUSINESS_DAY = Calendar(unit="month", on="last business day", at="18:00", tz="Europe/Berlin", business="bank")


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("*/5 * * * *", Cron("*/5 * * * *")),
        (" 30  9 * * MON-FRI ", Cron("30 9 * * MON-FRI")),
        ("*/15 * * * * *", Cron("*/15 * * * * *")),
        ("@daily", Cron("@daily")),
        ("every 10m", Every(600)),
        ("Every 90s phase 5s", Every(90, phase=5)),
        ("every 1h30m", Every(5400)),
        ("every 10 minutes", Every(600)),
        ("every 1 hour 5 min", Every(3900)),
        ("every 45", Every(45)),
        ("every 1500ms", Every(1.5)),
        ("after end 60s", AfterEnd(60)),
        ("after end 2 days", AfterEnd(172_800)),
        ("2030-01-01T00:00:00Z", At(NEW_YEAR)),
        ("2030-01-01T02:00+01:00, 2030-01-01T00:00:00Z", At(NEW_YEAR, NEW_YEAR + timedelta(hours=1))),
        ('{"rule":"every","interval":60}', Every(60)),
    ],
)
def test_text_is_read_as_a_rule(text: str, rule: Rule) -> None:
    assert read_rule(text) == rule


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"a rule must look like .*@daily"),
        ("now and then", "a rule must look like"),
        ("every", "a rule must look like"),
        ("every blue moon", "every must be a duration such as 90s"),
        ("every 10m phase x", "phase must be a duration"),
        ("every 10ms", "interval must be at least 1 second"),
        ("61 * * * *", "minute must be 0–59"),
        ("2030-01-01T00:00:00", "does not say its time zone"),
        ("2030-13-01T00:00:00Z", "an instant must look like"),
        ('{"rule":"cron","expression":"61 * * * *"}', "^expression: minute must be 0–59"),
        ('{"rule":"cron"}', "a rule as JSON must look like .*expression"),
        ('{"rule":"moon"}', "a rule as JSON must look like"),
        ("{", "a rule as JSON must look like"),
    ],
)
def test_other_text_is_refused_with_examples(text: str, message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        read_rule(text)


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (Cron("0 9 * * 1-5", tz="Europe/Berlin"), "cron 0 9 * * 1-5 Europe/Berlin"),
        (Every(minutes=10), "every 10 minutes"),
        (Every(60), "every minute"),
        (Every(5400, phase=5), "every 1 hour 30 minutes, 5 seconds later"),
        (AfterEnd(60), "1 minute after the end of the last run"),
        (Calendar(at="09:00"), "every day at 09:00 UTC"),
        (Calendar(on="business day", at="09:00"), "every business day at 09:00 UTC"),
        (Calendar(2, "weeks", on="mon", at="09:00", tz="Europe/Berlin"), "every 2 weeks on Monday at 09:00 Europe/Berlin"),
        (LAST_BUSINESS_DAY, "last business day of the month at 18:00 Europe/Berlin, business days by bank"),
        (Calendar(3, "months", on=[1, -1, -2]), "day 1, last day and day 2 from the end every 3 months at 00:00 UTC"),
        (Calendar(unit="year", on=["12-24", "last fri of nov"]), "every year on 24 December and last friday of november at 00:00 UTC"),
        (Calendar(unit="year", since=date(2024, 7, 4)), "every year on 4 July at 00:00 UTC"),
        (At(NEW_YEAR), "at 2030-01-01T00:00:00Z"),
        (At([NEW_YEAR, *DAYS_AFTER]), "at 2030-01-01T00:00:00Z, 2030-01-02T00:00:00Z, 2030-01-03T00:00:00Z and 2 more"),
        (Window(600, "08:00", "18:00", days="mon-fri"), "every 10 minutes from 08:00 to 18:00 mon-fri UTC"),
        (Every(60) | Cron("@daily"), "every minute | cron @daily UTC"),
    ],
)
def test_a_rule_is_told_in_one_line(rule: Rule, text: str) -> None:
    assert describe(rule) == text


@given(any_rules)
def test_every_rule_can_be_told_and_read_back_from_json(rule: Rule) -> None:
    text = describe(rule)
    assert text
    assert "\n" not in text
    assert read_rule(msgspec.json.encode(rule).decode()) == rule
