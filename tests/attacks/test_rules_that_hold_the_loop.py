"""Rules that are long to plan: they are planned beside the event loop, and a preview ends."""

from __future__ import annotations

import zoneinfo
from typing import Any

import pytest

from duetime.client.schedules import local
from tests.api.conftest import Client
from tests.attacks.meanwhile import SMALL, largest_share

# 50 years of hours, each refused: what these plan does not come, and that is known only at the end
NEVER = {"mode": "exclude", "times": [f"{hour:02}:10-{hour:02}:59" for hour in range(24)]}
CRON = "30 * * * *"
ZONES = [zone for zone in sorted(zoneinfo.available_timezones()) if zone.startswith("Europe/")][:20]
UNION = {"rule": "union", "rules": [{"rule": "cron", "expression": CRON, "tz": zone} for zone in ZONES]}

pytestmark = pytest.mark.slow


@pytest.fixture
async def hours(http: Client) -> None:
    await http("PUT", "/v1/calendars/hours", NEVER, status=201)


@pytest.mark.usefixtures("hours")
async def test_a_preview_that_looks_at_50_years_lets_others_be_served(http: Client) -> None:
    body: dict[str, Any] = {"rule": UNION, "calendars": ["hours"], "count": 1_000}
    answer, share = await largest_share(http("POST", "/v1/rules/preview", body))
    assert answer.json["items"] == []
    assert share < SMALL


@pytest.mark.usefixtures("hours")
async def test_a_schedule_that_looks_at_50_years_is_stored_while_others_are_served(http: Client) -> None:
    body: dict[str, Any] = {"handler": "anything", "rule": UNION, "calendars": ["hours"]}
    answer, share = await largest_share(http("PUT", "/v1/schedules/rare", body, status=201))
    assert answer.json["next_at"] is None
    assert share < SMALL
    _, share = await largest_share(http("GET", "/v1/schedules"))
    assert share < SMALL


async def test_a_preview_ends_after_so_much_work(http: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "LONGEST_PREVIEW", -1.0)
    problem = await http.problem("POST", "/v1/rules/preview", {"cron": CRON, "count": 1_000}, status=422)
    assert "1 of 1,000 instants were found" in problem["detail"]


async def test_ten_thousand_schedules_are_stored_and_listed_while_others_are_served(http: Client) -> None:
    schedules = [{"name": f"s{number}", "handler": "anything", "cron": CRON} for number in range(10_000)]
    _, share = await largest_share(http("PUT", "/v1/schedules", {"schedules": schedules}))
    assert share < SMALL
    _, share = await largest_share(http("GET", "/v1/schedules", limit=1_000))
    assert share < SMALL
