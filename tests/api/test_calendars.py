"""Calendars over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from duetime import App
from tests.api.conftest import Client, new_app, served
from tests.api.test_tokens import Bearer, acts, bearer  # noqa: F401  # a fixture

HOLIDAYS = {"dates": ["2030-04-22"], "yearly": ["12-25", "12-26"], "tz": "Europe/Berlin"}


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_calendar_is_made_read_changed_used_and_removed(request: pytest.FixtureRequest, url: str, kind: str) -> None:
    async with served(new_app(url if kind == "sqlite" else request.getfixturevalue("postgres_url"))) as http:
        assert (await http("GET", "/v1/calendars")).json == {"items": [], "next": None}
        made = await http("PUT", "/v1/calendars/feast%2Fdays", HOLIDAYS, status=201)
        assert made.json == {
            "name": "feast/days",
            "mode": "exclude",
            "monthly": [],
            "weekdays": "",
            "times": [],
            "cron": "",
            "also": [],
            **HOLIDAYS,
        }
        assert (await http("GET", made.headers["location"])).json == made.json
        await http("PUT", "/v1/calendars/feast%2Fdays", {**HOLIDAYS, "mode": "exclude"})
        office = {"mode": "include", "weekdays": "mon-fri", "times": ["09:00-17:00"], "also": ["feast/days"]}
        await http("PUT", "/v1/calendars/office", office, status=201)
        assert [each["name"] for each in (await http("GET", "/v1/calendars")).json["items"]] == ["feast/days", "office"]
        body = {"handler": "greet", "payload": {"name": "Ada"}, "cron": "0 12 * * *", "calendars": ["office"]}
        await http("PUT", "/v1/schedules/lunch", body, status=201)
        planned = (await http("GET", "/v1/schedules/lunch/preview", count=3, after="2030-12-23T00:00:00Z")).json["items"]
        assert [each["planned_at"][:10] for each in planned] == ["2030-12-23", "2030-12-24", "2030-12-27"]
        for name in ("feast%2Fdays", "office"):
            problem = await http.problem("DELETE", f"/v1/calendars/{name}", status=409)
            assert "is used by" in problem["detail"]
        await http("DELETE", "/v1/schedules/lunch", status=204)
        await http("DELETE", "/v1/calendars/office", status=204)
        await http("DELETE", "/v1/calendars/feast%2Fdays", status=204)
        await http.problem("GET", "/v1/calendars/office", status=404)
        await http.problem("DELETE", "/v1/calendars/office", status=404)


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({}, "", "a calendar must say which time it means"),
    ({"dates": ["2030-02-30"]}, "/dates", "dates must be a date"),
    ({"dates": "2030-02-03"}, "/dates", "expected an array, got a string"),
    ({"yearly": ["02-30"]}, "/yearly", "yearly: February never has a day 30"),
    ({"weekdays": "moonday"}, "/weekdays", "weekdays must name weekdays"),
    ({"times": ["9-17"]}, "/times", "times must be a time of day"),
    ({"weekdays": "sat", "tz": "Mars"}, "/tz", "tz must be an IANA time zone"),
    ({"weekdays": "sat", "mode": "maybe"}, "/mode", "must be one of exclude, include, got 'maybe'"),
    ({"weekdays": "sat", "also": ["none"]}, "/also", "'none'"),
    ({"weekdays": "sat", "also": ["c"]}, "/also", "circle"),
    ({"weekday": "sat"}, "/weekday", "unknown field"),
]


@pytest.mark.parametrize(("body", "pointer", "words"), WRONG, ids=[str(body)[:60] for body, _, _ in WRONG])
async def test_what_is_wrong_is_pointed_at(http: Client, body: dict[str, Any], pointer: str, words: str) -> None:
    problem = await http.problem("PUT", "/v1/calendars/c", body, status=422)
    assert [fault["pointer"] for fault in problem["errors"]] == [pointer], problem
    assert words in problem["detail"], problem
    assert (await http("GET", "/v1/calendars")).json["items"] == []


async def test_calendars_are_changed_by_operators_of_all_handlers_only(app: App, bearer: Bearer) -> None:  # noqa: F811
    reader, shop = await bearer("reader", "read"), await bearer("shop", "operate", handlers=["gre*"])
    operator = await bearer("operator", "operate")
    await reader.problem("PUT", "/v1/calendars/c", HOLIDAYS, status=403)
    await shop.problem("PUT", "/v1/calendars/c", HOLIDAYS, status=403)
    await operator("PUT", "/v1/calendars/c", HOLIDAYS, status=201)
    await shop("GET", "/v1/calendars/c")
    await shop.problem("DELETE", "/v1/calendars/c", status=403)
    await operator("DELETE", "/v1/calendars/c", status=204)
    assert await acts(app) == [
        ("shop", "calendars.put", "c", "refused"),
        ("operator", "calendars.put", "c", "done"),
        ("shop", "calendars.delete", "c", "refused"),
        ("operator", "calendars.delete", "c", "done"),
    ]
