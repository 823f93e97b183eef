"""What is refused about schedules over HTTP, and whom; what was allowed is in the audit."""

from __future__ import annotations

from typing import Any

import pytest

from duetime import App
from tests.api.conftest import Client, new_app, served
from tests.api.test_schedules import GREET, SUNDRY
from tests.api.test_tokens import Bearer, acts, bearer  # noqa: F401  # a fixture

# ---- what is wrong ----

CALENDAR = {"rule": "calendar", "unit": "month"}
WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"cron": "0 0 31 2 *"}, "/cron", "cron: day of month 31 never comes in month 2"),
    ({"cron": "0 0 * *"}, "/cron", "cron must have 5 fields, or 6 with seconds first, got 4"),
    ({"cron": "61 * * * *"}, "/cron", "cron: minute"),
    ({"cron": "@never"}, "/cron", "cron: '@never' is unknown"),
    ({"cron": ""}, "/cron", "length >= 1"),
    ({"cron": "0 9 * * *", "tz": "Mars/Olympus"}, "/tz", "tz must be an IANA time zone"),
    ({"every": 60, "tz": "UTC"}, "/tz", "tz is the zone of cron and means nothing to every"),
    ({"every": 0}, "/every", ">= 1"),
    ({"every": 1.0001}, "/every", "every must be whole milliseconds"),
    ({"every": "10m"}, "/every", "expected a number or null, got a string"),
    ({"after_end": 0.5}, "/after_end", ">= 1"),
    ({"at": []}, "/at", "length >= 1"),
    ({"at": ["2030-01-01T00:00:00"]}, "/at/0", "timezone"),
    ({"at": ["1960-01-01T00:00:00Z"]}, "/at", "at must lie between 1970 and 9999"),
    ({"window": {"every": 60, "start": "25:00"}}, "/window/start", "start must be a time of day"),
    ({"window": {"every": 60, "start": "08:00", "end": "08:00"}}, "/window/end", "end must differ from start"),
    ({"window": {"every": 60, "days": "mon-moo"}}, "/window/days", "days must name weekdays"),
    ({"window": {"every": 60, "tz": "Nowhere"}}, "/window/tz", "tz must be an IANA time zone"),
    ({"rule": "sometimes"}, "/rule", "a rule must look like"),
    ({"rule": "0 0 30 2 *"}, "/rule", "never comes"),
    ({"rule": {"rule": "moon"}}, "/rule/rule", "must be one of after_end, at"),
    ({"rule": {**CALENDAR, "on": ["31st friday"]}}, "/rule/on", "on: for months say"),
    ({"rule": {**CALENDAR, "on": [0]}}, "/rule/on", "on: a day of the month is 1 to 31"),
    ({"rule": {**CALENDAR, "unit": "year", "on": ["02-30"]}}, "/rule/on", "on: February never has a day 30"),
    ({"rule": {**CALENDAR, "at": ["9 o'cl"]}}, "/rule/at", "at must be a time of day"),
    ({"rule": {**CALENDAR, "business": "holidays"}}, "/rule/business", "business says which days"),
    ({"rule": {**CALENDAR, "on": ["last business day"], "business": "none"}}, "/rule", "calendar 'none' is unknown"),
    ({"rule": {"rule": "union", "rules": [{"rule": "every", "interval": 60}, {"rule": "cron", "expression": "x"}]}},
     "/rule/rules/1/expression", "expression must have 5 fields"),
    ({}, "", "give exactly one of cron, every, at, after_end, window, rule, got none"),
    ({"every": 60, "cron": "0 9 * * *"}, "/every", "got cron and every"),
    ({"every": 60, "start": SUNDRY, "end": "2029-01-01T00:00:00Z"}, "/end", "end must not lie before start"),
    ({"every": 60, "start": "2030-01-01T00:00:00"}, "/start", "timezone"),
    ({"every": 60, "count": 0}, "/count", ">= 1"),
    ({"every": 60, "jitter": -1}, "/jitter", ">= 0"),
    ({"every": 60, "missed": "sometimes"}, "/missed", "missed must be skip, latest, earliest or all"),
    ({"every": 60, "missed": "all within 0s"}, "/missed", "missed: within must be between"),
    ({"every": 60, "overlap": "allow many"}, "/overlap", "overlap: allow"),
    ({"every": 60, "calendars": ["none"]}, "/calendars", "calendar 'none' is unknown"),
    ({"every": 60, "meta": {"duetime.zone": "x"}}, "/meta", "meta names that begin with 'duetime.'"),
    ({"every": 60, "priority": 10}, "/priority", "<= 9"),
    ({"every": 60, "timeout": 0}, "/timeout", "> 0"),
    ({"every": 60, "retry": {"tries": 0}}, "/retry/tries", ">= 1"),
    ({"every": 60, "payload": {"name": 7}}, "/payload/name", "name does not fit"),
    ({"every": 60, "payload": {}}, "/payload/name", "name"),
    ({"every": 60, "handler": "nobody"}, "/handler", "nobody"),
    ({"every": 60, "crom": "x"}, "/crom", "unknown field"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "pointer", "words"), WRONG, ids=[str(change)[:60] for change, _, _ in WRONG])
async def test_what_is_wrong_is_pointed_at(http: Client, change: dict[str, Any], pointer: str, words: str) -> None:
    unknown = change.get("handler") == "nobody"
    problem = await http.problem("PUT", "/v1/schedules/s", {**GREET, **change}, status=404 if unknown else 422)
    assert [fault["pointer"] for fault in problem["errors"]] == [pointer], problem
    assert words in problem["detail"], problem
    await http.problem("GET", "/v1/schedules/s", status=404)
    if not change.keys() - {"cron", "every", "at", "after_end", "window", "rule", "tz"}:
        again = await http.problem("POST", "/v1/rules/preview", change, status=422)
        assert [fault["pointer"] for fault in again["errors"]] == [pointer], "a preview says the same"


@pytest.mark.parametrize("text", ["'; drop table duetime_schedule; --", "<script>alert(1)</script>", '"quoted"', "Ü☃", "a\x00b", "\n\r\t"])
@pytest.mark.each_store
async def test_hostile_text_is_stored_as_it_is_or_refused(store_url: str, text: str) -> None:
    async with served(new_app(store_url)) as http:
        body = {"handler": "anything", "payload": {"value": text}, "every": 60, "note": text, "meta": {"x": text}}
        answer = await http("PUT", "/v1/schedules/s", body, status=None)
        assert answer.status in (201, 422), answer
        if answer.status == 201:
            stored = (await http("GET", "/v1/schedules/s")).json["schedule"]
            assert (stored["note"], stored["meta"]["x"], stored["payload"]["value"]) == (text, text, text)
            task = (await http("POST", "/v1/schedules/s/trigger", status=201)).json
            assert (task["payload"]["value"], task["meta"]["x"]) == (text, text)
            assert (await http("POST", "/v1/schedules/s/pause", {"note": text})).json["paused"]["note"] == text
        assert (await http("GET", "/v1/schedules", prefix=text.replace("\x00", ""))).json["items"] == []


# ---- who may ----


@pytest.fixture
async def shop(bearer: Bearer) -> Client:  # noqa: F811
    return await bearer("shop", "operate", handlers=["gre*"])


async def test_a_reader_changes_nothing(bearer: Bearer) -> None:  # noqa: F811
    reader, operator = await bearer("reader", "read"), await bearer("operator", "operate")
    await operator("PUT", "/v1/schedules/s", {**GREET, "every": 60}, status=201)
    for path in ("", "/s", "/s/preview", "/s/skips"):
        await reader("GET", f"/v1/schedules{path}")
    await reader("POST", "/v1/rules/preview", {"every": 60})
    await reader("GET", "/v1/forecast")
    await reader.problem("PUT", "/v1/schedules/s", {**GREET, "every": 30}, status=403)
    await reader.problem("PUT", "/v1/schedules", {"schedules": [], "dry_run": True}, status=403)
    await reader.problem("DELETE", "/v1/schedules/s", status=403)
    for verb in ("pause", "resume", "trigger"):
        await reader.problem("POST", f"/v1/schedules/s/{verb}", status=403)
    await reader.problem("POST", "/v1/schedules/s/backfill", {"start": SUNDRY, "end": SUNDRY}, status=403)


async def test_a_restricted_token_reaches_schedules_of_its_handlers_only(bearer: Bearer, shop: Client) -> None:  # noqa: F811
    operator = await bearer("operator", "operate")
    other = {"handler": "anything", "every": 60}
    await operator("PUT", "/v1/schedules/other", other, status=201)
    own = (await shop("PUT", "/v1/schedules/own", {**GREET, "every": 60}, status=201)).json
    assert own["changed_by"] == "shop"
    assert [each["name"] for each in (await shop("GET", "/v1/schedules", limit=1)).json["items"]] == ["own"]
    await shop.problem("GET", "/v1/schedules", status=403, handler="anything")
    assert [each["schedule"] for each in (await shop("GET", "/v1/forecast")).json["schedules"]] == ["own"]
    for path in ("", "/preview", "/skips"):
        await shop.problem("GET", f"/v1/schedules/other{path}", status=404)
    for verb in ("pause", "resume", "trigger"):
        await shop.problem("POST", f"/v1/schedules/other/{verb}", status=404)
    await shop.problem("POST", "/v1/schedules/other/backfill", {"start": SUNDRY, "end": SUNDRY}, status=404)
    await shop.problem("PUT", "/v1/schedules/other", {**GREET, "every": 60}, status=403)
    await shop.problem("PUT", "/v1/schedules/own", other, status=403)
    await shop.problem("DELETE", "/v1/schedules/other", status=404)
    await shop.problem("PUT", "/v1/schedules", {"schedules": [{"name": "x", **other}]}, status=403)
    await shop.problem("PUT", "/v1/schedules", {"schedules": [{"name": "other", **GREET, "every": 60}]}, status=403)
    await operator("PUT", "/v1/schedules", {"schedules": [{"name": "theirs", **other}]})
    assert (await shop("PUT", "/v1/schedules", {"schedules": [], "remove": True})).json["items"] == []
    assert (await shop("POST", "/v1/schedules/own/trigger", status=201)).json["submitted_by"] == "shop"
    assert (await operator("GET", "/v1/schedules/other")).json["schedule"]["handler"] == "anything"


async def test_every_change_of_a_schedule_is_in_the_audit(app: App, bearer: Bearer) -> None:  # noqa: F811
    operator = await bearer("operator", "operate")
    path = "/v1/schedules/s"
    await operator("PUT", path, {**GREET, "every": 60}, status=201)
    await operator.problem("PUT", path, {**GREET, "every": 30}, status=412, headers={"If-None-Match": "*"})
    await operator("POST", f"{path}/pause", {"note": "stocktaking"})
    await operator("POST", f"{path}/resume")
    await operator("POST", f"{path}/trigger", status=201)
    span = {"start": "2020-01-01T00:00:00Z", "end": "2020-01-01T00:05:00Z"}
    await operator("POST", f"{path}/backfill", {**span, "dry_run": True})
    await operator("POST", f"{path}/backfill", span)
    await operator("PUT", "/v1/schedules", {"schedules": [], "remove": True, "dry_run": True})
    await operator("PUT", "/v1/schedules", {"schedules": [], "remove": True, "prefix": "shop."})
    await operator("DELETE", path, status=204)
    await operator.problem("DELETE", path, status=404)
    assert await acts(app) == [
        ("operator", "schedules.put", "s", "done"),
        ("operator", "schedules.put", "s", "refused"),
        ("operator", "schedules.pause", "s", "done"),
        ("operator", "schedules.resume", "s", "done"),
        ("operator", "schedules.trigger", "s", "done"),
        ("operator", "schedules.backfill", "s", "done"),
        ("operator", "schedules.apply", "0 schedules of revision 0, prefix shop.", "done"),
        ("operator", "schedules.delete", "s", "done"),
        ("operator", "schedules.delete", "s", "refused"),
    ]
