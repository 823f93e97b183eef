"""Schedules over HTTP: making, changing, pausing, running, and what is wrong with them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import aiohttp
import msgspec
import pytest
from yarl import URL

from duetime import App, Every, Schedule
from duetime.errors import ChangedMeanwhile
from duetime.testing import using
from tests.api.conftest import Answer, Client, new_app, served

GREET = {"handler": "greet", "payload": {"name": "Ada"}}
SWEEP = {**GREET, "cron": "*/5 * * * *", "tz": "Europe/Berlin"}
SUNDRY = "2030-01-01T00:00:00Z"
NOON = datetime(2029, 1, 1, 12, 30, tzinfo=UTC)


# ---- making and reading ----


@pytest.mark.each_store
async def test_a_schedule_is_made_read_changed_and_removed(store_url: str) -> None:
    async with served(new_app(store_url)) as http:
        made = await http("PUT", "/v1/schedules/sweep", {**SWEEP, "note": "for Ada"}, status=201)
        assert (made.headers["location"], made.json["tag"]) == ("/v1/schedules/sweep", made.headers["etag"].strip('"'))
        info = made.json
        assert (info["name"], info["handler"], info["zone"], info["health"]) == ("sweep", "greet", "Europe/Berlin", "ok")
        assert info["schedule"]["rule"] == {"rule": "cron", "expression": "*/5 * * * *", "tz": "Europe/Berlin", "gap": "run"}
        assert info["changed_by"] == "anna@shop"
        assert info["next_at"].endswith("Z")
        assert (await http("GET", "/v1/schedules/sweep")).json == info
        changed = await http("PUT", "/v1/schedules/sweep", {**SWEEP, "jitter": 30, "missed": "all within 6h"})
        assert changed.json["revision"] == 2
        assert changed.headers["etag"] != made.headers["etag"]
        assert (changed.json["schedule"]["jitter"], changed.json["schedule"]["overlap"]) == (30, "queue all")
        await http("DELETE", "/v1/schedules/sweep", status=204)
        await http.problem("GET", "/v1/schedules/sweep", status=404)
        await http.problem("DELETE", "/v1/schedules/sweep", status=404)


FORMS: list[tuple[dict[str, Any], str]] = [
    ({"cron": "0 9 * * MON-FRI"}, "cron 0 9 * * MON-FRI UTC"),
    ({"every": 600}, "every 10 minutes"),
    ({"after_end": 90}, "1 minute 30 seconds after the end of the last run"),
    ({"at": ["2031-01-01T01:00:00+01:00", SUNDRY]}, "at 2030-01-01T00:00:00Z, 2031-01-01T00:00:00Z"),
    ({"window": {"every": 600, "start": "08:00", "end": "18:00", "days": "mon-fri"}}, "every 10 minutes from 08:00 to 18:00 mon-fri UTC"),
    ({"rule": "every 90s phase 5s"}, "every 1 minute 30 seconds, 5 seconds later"),
    ({"rule": {"rule": "calendar", "unit": "month", "on": ["last friday", -1], "at": ["09:00"], "tz": "Asia/Tokyo"}},
     "last friday and last day of the month at 09:00 Asia/Tokyo"),
    ({"rule": {"rule": "calendar", "every": 2, "unit": "week", "on": ["monday"], "since": "2030-01-07"}},
     "every 2 weeks on Monday at 00:00 UTC"),
    ({"rule": {"rule": "union", "rules": [{"rule": "cron", "expression": "0 9 * * *"}, {"rule": "every", "interval": 21600}]}},
     "cron 0 9 * * * UTC | every 6 hours"),
]  # fmt: skip


@pytest.mark.parametrize(("form", "description"), FORMS)
async def test_every_form_of_a_rule_can_be_sent_and_comes_back(http: Client, form: dict[str, Any], description: str) -> None:
    info = (await http("PUT", "/v1/schedules/one", {**GREET, **form}, status=201)).json
    assert info["description"] == description
    again = await http("PUT", "/v1/schedules/one", info["schedule"])
    assert again.json == info, "what is answered as `schedule` makes the same schedule again"


async def test_the_description_shows_all_forms_of_a_rule(http: Client) -> None:
    schemas = (await http("GET", "/openapi.json")).json["components"]["schemas"]
    fields = schemas["PutScheduleBody"]["properties"]
    assert "exactly one of" in schemas["PutScheduleBody"]["description"]
    assert fields["cron"]["anyOf"][0]["examples"] == ["30 9 * * MON-FRI"]
    described = str(fields["rule"])
    kinds = {
        "cron": "Cron",
        "every": "Every",
        "after_end": "AfterEnd",
        "calendar": "Calendar",
        "at": "At",
        "window": "Window",
        "union": "Union",
    }
    for kind, name in kinds.items():
        assert f"#/components/schemas/{name}Rule" in described
        assert schemas[f"{name}Rule"]["properties"]["rule"] == {"enum": [kind]}
        assert schemas[f"{name}Rule"]["description"]


async def test_a_program_says_which_schedule_it_has_seen(app: App) -> None:
    schedule = Schedule("s", "greet", Every(60), payload={"name": "Ada"})
    async with app:
        first = await app.schedules.put(schedule, seen=[])
        with pytest.raises(ChangedMeanwhile, match="there is a schedule 's' already"):
            await app.schedules.put(schedule, seen=[])
        await app.schedules.pause("s")
        for change in (app.schedules.put(schedule, seen=[first.tag]), app.schedules.delete("s", seen=[first.tag])):
            with pytest.raises(ChangedMeanwhile, match="changed by anna@shop since it was read"):
                await change
        second = await app.schedules.get("s")
        assert (await app.schedules.put(msgspec.structs.replace(schedule, note="x"), seen=[second.tag])).tag != second.tag
        await app.schedules.delete("s", seen=["*"])


async def test_all_options_come_back_as_they_were_sent(http: Client) -> None:
    await http("PUT", "/v1/calendars/weekend", {"weekdays": "sat,sun"}, status=201)
    options = {
        "calendars": ["weekend"],
        "start": SUNDRY,
        "end": "2031-01-01T00:00:00Z",
        "count": 10,
        "jitter": 1.5,
        "missed": "all at most 5 at 10/min",
        "overlap": "allow 3",
        "grace": 60,
        "pause_after": 3,
        "collection": "eu",
        "priority": 0,
        "timeout": 5,
        "retry": {"tries": 2, "base": 3},
        "expires": 3600,
        "meta": {"tenant": "x"},
        "note": "<b>'quoted' \"note\"</b>",
    }
    info = (await http("PUT", "/v1/schedules/all", {**GREET, "every": 60, **options}, status=201)).json
    stored = info["schedule"]
    numbers = stored.pop("retry")
    assert (numbers["tries"], numbers["base"]) == (2, 3)
    assert {name: stored[name] for name in options if name != "retry"} == {
        name: value for name, value in options.items() if name != "retry"
    }


@pytest.mark.parametrize("name", ["a/b", "50% off?", "Ünïcode ☃", "'; drop table x; --", '<i>"q"</i>', "..", "a#b&c=d", "run", "x" * 200])
@pytest.mark.each_store
async def test_any_printable_name_works_in_an_address(store_url: str, name: str) -> None:
    async with served(new_app(store_url)) as http:
        body = {**GREET, "every": 60}
        raw = quote(name, safe="").replace(".", "%2E")
        made = await _raw(http, "PUT", f"/v1/schedules/{raw}", body)
        assert made.json["name"] == name
        assert [each["name"] for each in (await http("GET", "/v1/schedules")).json["items"]] == [name]
        assert (await _raw(http, "GET", f"/v1/schedules/{raw}/preview")).status == 200
        assert (await _raw(http, "POST", f"/v1/schedules/{raw}/pause")).json["health"] == "paused"
        assert (await _raw(http, "DELETE", f"/v1/schedules/{raw}")).status == 204


async def _raw(http: Client, method: str, path: str, body: Any = None) -> Answer:
    """Send an address as it is written: some clients would tidy it up."""
    data = None if body is None else msgspec.json.encode(body)
    headers = {} if body is None else {"content-type": "application/json"}
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, URL(f"{http.url}{path}", encoded=True), data=data, headers=headers) as response,
    ):
        return Answer(response.status, response.headers, await response.read())


@pytest.mark.each_store
async def test_lists_are_filtered_and_paged(store_url: str) -> None:
    app = new_app(store_url)
    async with served(app) as http:
        for number in range(5):
            await http("PUT", f"/v1/schedules/eu-{number}", {**GREET, "every": 60}, status=201)
        await http("PUT", "/v1/schedules/us-0", {"handler": "anything", "every": 60}, status=201)
        await http("POST", "/v1/schedules/eu-3/pause")

        async def names(**filters: Any) -> list[str]:
            return [each["name"] for each in (await http("GET", "/v1/schedules", **filters)).json["items"]]

        everything = [*(f"eu-{number}" for number in range(5)), "us-0"]
        assert await names() == everything
        assert await names(prefix="us") == await names(handler="anything") == ["us-0"]
        assert await names(paused="true") == ["eu-3"]
        assert await names(declared="true") == []
        assert await names(declared="false", paused="false", prefix="eu-") != []
        met: list[str] = []
        cursor: dict[str, Any] = {}
        while True:
            page = (await http("GET", "/v1/schedules", limit=2, **cursor)).json
            met += [each["name"] for each in page["items"]]
            if page["next"] is None:
                break
            cursor = {"cursor": page["next"]}
        assert met == everything


# ---- conditions ----


@pytest.mark.each_store
async def test_of_two_servers_that_change_the_same_schedule_exactly_one_wins(store_url: str) -> None:
    async with served(new_app(store_url)) as one, served(new_app(store_url)) as other:
        tag = (await one("PUT", "/v1/schedules/s", {**GREET, "every": 60}, status=201)).headers["etag"]
        for _ in range(5):
            changes = [
                client("PUT", "/v1/schedules/s", {**GREET, "every": 60, "note": f"{number} {tag}"}, status=None, headers={"If-Match": tag})
                for number, client in enumerate([one, other] * 3)
            ]
            answers = await asyncio.gather(*changes)
            assert sorted(answer.status for answer in answers) == [200, 412, 412, 412, 412, 412]
            [won] = [answer for answer in answers if answer.status == 200]
            now = await other("GET", "/v1/schedules/s")
            assert (now.json["schedule"]["note"], now.headers["etag"]) == (won.json["schedule"]["note"], won.headers["etag"])
            tag = won.headers["etag"]


@pytest.mark.each_store
async def test_of_two_servers_that_make_the_same_schedule_exactly_one_does(store_url: str) -> None:
    async with served(new_app(store_url)) as one, served(new_app(store_url)) as other:
        headers = {"If-None-Match": "*"}
        answers = await asyncio.gather(
            *(client("PUT", "/v1/schedules/s", {**GREET, "every": 60}, status=None, headers=headers) for client in (one, other, one, other))
        )
        assert sorted(answer.status for answer in answers) == [201, 412, 412, 412]


@pytest.mark.each_store
async def test_of_two_servers_that_change_the_same_task_exactly_one_wins(store_url: str) -> None:
    async with served(new_app(store_url)) as one, served(new_app(store_url)) as other:
        path = f"/v1/tasks/{(await one.submit(delay=600))['id']}"
        tag = (await other("GET", path)).headers["etag"]
        for round_ in range(5):
            changes = [
                client("PATCH", path, {"delay": 1000 + 10 * round_ + number}, status=None, headers={"If-Match": tag})
                for number, client in enumerate([one, other] * 3)
            ]
            answers = await asyncio.gather(*changes)
            assert sorted(answer.status for answer in answers) == [200, 412, 412, 412, 412, 412]
            tag = next(answer.headers["etag"] for answer in answers if answer.status == 200)
            assert {answer.headers["etag"] for answer in answers} == {tag}


async def test_a_condition_that_does_not_hold_changes_nothing(http: Client) -> None:
    path, body = "/v1/schedules/s", {**GREET, "every": 60}
    problem = await http.problem("PUT", path, body, status=412, headers={"If-Match": "*"})
    assert problem["type"] == "urn:duetime:problem:precondition-failed"
    assert "there is no schedule" in problem["detail"]
    tag = (await http("PUT", path, body, status=201, headers={"If-None-Match": "*"})).headers["etag"]
    await http.problem("PUT", path, body, status=412, headers={"If-None-Match": "*"})
    await http.problem("DELETE", path, status=412, headers={"If-Match": '"x", "y"'})
    paused = await http("POST", f"{path}/pause", {"note": "stocktaking"})
    await http.problem("PUT", path, body, status=412, headers={"If-Match": tag})
    await http("PUT", path, {**body, "note": "x"}, headers={"If-Match": f'"x", {paused.headers["etag"]}'})
    await http.problem("PUT", path, body, status=400, headers={"If-Match": "*", "If-None-Match": "*"})
    await http.problem("PUT", path, body, status=422, headers={"If-None-Match": '"x"'})
    await http.problem("DELETE", path, status=400, headers={"If-None-Match": "*"})
    await http("DELETE", path, status=204, headers={"If-Match": "*"})


async def test_firing_does_not_change_the_tag() -> None:
    app = new_app("sqlite:///:memory:")
    async with using(app, now=NOON) as kit, served(app) as http:
        tag = (await http("PUT", "/v1/schedules/s", {**GREET, "every": 60, "overlap": "allow"}, status=201)).headers["etag"]
        await kit.advance(minutes=5)
        now = await http("GET", "/v1/schedules/s")
        assert (now.json["fired"], now.headers["etag"]) == (5, tag)
        await http("PUT", "/v1/schedules/s", {**GREET, "every": 30}, headers={"If-Match": tag})


# ---- operating ----


@pytest.mark.each_store
async def test_a_schedule_is_paused_resumed_run_and_previewed(store_url: str) -> None:
    app = new_app(store_url)
    async with served(app) as http:
        await http("PUT", "/v1/schedules/s", {**GREET, "cron": "30 9 * * *", "tz": "Europe/Berlin"}, status=201)
        paused = (await http("POST", "/v1/schedules/s/pause", {"note": "stocktaking"})).json["paused"]
        assert (paused["note"], paused["by"], paused["automatic"]) == ("stocktaking", "anna@shop", False)
        task = await http("POST", "/v1/schedules/s/trigger", {"payload": {"name": "Grace"}}, status=201)
        assert task.headers["location"] == f"/v1/tasks/{task.json['id']}"
        assert (task.json["schedule"], task.json["payload"], task.json["submitted_by"]) == ("s", {"name": "Grace"}, "anna@shop")
        await http.problem("POST", "/v1/schedules/s/trigger", {"overlap": "skip"}, status=409)
        assert [each["id"] for each in (await http("GET", "/v1/tasks", schedule="s")).json["items"]] == [task.json["id"]]
        resumed = (await http("POST", "/v1/schedules/s/resume")).json
        assert (resumed["paused"], resumed["running"]) == (None, [task.json["id"]])
        planned = (await http("GET", "/v1/schedules/s/preview", count=2, after="2030-03-30T00:00:00Z")).json["items"]
        assert planned == [
            {"planned_at": "2030-03-30T08:30:00Z", "local": "2030-03-30T09:30:00+01:00"},
            {"planned_at": "2030-03-31T07:30:00Z", "local": "2030-03-31T09:30:00+02:00"},
        ]
        await http.problem("GET", "/v1/schedules/s/preview", status=422, after="12")
        for verb in ("pause", "resume", "trigger"):
            await http.problem("POST", f"/v1/schedules/none/{verb}", status=404)


@pytest.mark.each_store
async def test_a_schedule_is_copied_under_another_name(store_url: str) -> None:
    app = new_app(store_url)
    async with served(app) as http:
        await http("PUT", "/v1/schedules/reports%2Fdaily", {**GREET, "cron": "30 9 * * *", "tz": "Europe/Berlin", "jitter": 5}, status=201)
        await http("POST", "/v1/schedules/reports%2Fdaily/pause")
        copied = await http("POST", "/v1/schedules/reports%2Fdaily/copy", {"to": "reports/us"}, status=201)
        assert copied.headers["location"] == "/v1/schedules/reports%2Fus"
        first = (await http("GET", "/v1/schedules/reports%2Fdaily")).json
        assert (copied.json["zone"], copied.json["paused"]) == ("Europe/Berlin", None)
        assert copied.json["schedule"] == first["schedule"]
        await http.problem("POST", "/v1/schedules/reports%2Fdaily/copy", {"to": "reports/us"}, status=412)
        await http.problem("POST", "/v1/schedules/reports%2Fdaily/copy", {"to": " "}, status=422)
        await http.problem("POST", "/v1/schedules/none/copy", {"to": "x"}, status=404)
        assert [each["name"] for each in (await http("GET", "/v1/schedules", prefix="reports/")).json["items"]] == [
            "reports/daily",
            "reports/us",
        ]


@pytest.mark.each_store
@pytest.mark.covers("AIR.3")
async def test_skips_are_listed_and_the_past_is_run(store_url: str) -> None:
    app = new_app(store_url)
    async with using(app, url=store_url, now=NOON) as kit, served(app) as http:
        await http("PUT", "/v1/schedules/s", {**GREET, "every": 3600, "overlap": "allow"}, status=201)
        for _ in range(3):
            await http("POST", "/v1/schedules/s/pause")
            await kit.advance(hours=2)
            await http("POST", "/v1/schedules/s/resume")
            await kit.advance(hours=1)
        first = (await http("GET", "/v1/schedules/s/skips", limit=2)).json
        rest = (await http("GET", "/v1/schedules/s/skips", limit=2, cursor=first["next"])).json
        found = [*first["items"], *rest["items"]]
        assert [(each["count"], each["reason"]) for each in found] == [(2, "paused")] * 3
        assert rest["next"] is None
        assert (await http("GET", "/v1/schedules/s/skips", before=first["items"][1]["planned_at"])).json["items"] == rest["items"]
        span = {"start": found[-1]["planned_at"], "end": found[0]["until_at"], "concurrency": 3}
        plan = (await http("POST", "/v1/schedules/s/backfill", {**span, "dry_run": True})).json
        assert (plan["occurrences"], plan["existing"], len(plan["tasks"]), plan["dry_run"]) == (8, 2, 6, True)
        done = (await http("POST", "/v1/schedules/s/backfill", span)).json
        assert done["tasks"] == plan["tasks"]
        assert done["planned"][0] == found[-1]["planned_at"]
        assert len(await kit.drain()) == 6
        assert (await http("POST", "/v1/schedules/s/backfill", span)).json["tasks"] == []
        wrong = await http.problem("POST", "/v1/schedules/s/backfill", {"start": span["end"], "end": span["start"]}, status=422)
        assert wrong["errors"][0]["pointer"] == "/end"
        wide = await http.problem(
            "POST", "/v1/schedules/s/backfill", {"start": "2000-01-01T00:00:00Z", "end": "2010-01-01T00:00:00Z"}, status=422
        )
        assert "more than 10,000" in wide["detail"]


async def test_catching_up_fires_what_fell_into_the_pause() -> None:
    app = new_app("sqlite:///:memory:")
    async with using(app, now=NOON) as kit, served(app) as http:
        await http("PUT", "/v1/schedules/s", {**GREET, "every": 3600, "missed": "all"}, status=201)
        await http("POST", "/v1/schedules/s/pause")
        await kit.advance(hours=3)
        await http("POST", "/v1/schedules/s/resume", {"catch_up": True})
        await kit.advance(minutes=1)
        assert (await http("GET", "/v1/schedules/s")).json["fired"] == 3


async def test_a_rule_is_previewed_without_being_stored(http: Client) -> None:
    rule = {"cron": "0 12 * * *", "tz": "America/New_York", "after": "2030-03-09T00:00:00Z", "count": 2}
    found = (await http("POST", "/v1/rules/preview", rule)).json["items"]
    assert [each["local"] for each in found] == ["2030-03-09T12:00:00-05:00", "2030-03-10T12:00:00-04:00"]
    bounded = {"every": 60, "start": SUNDRY, "end": "2030-01-01T00:02:00Z"}
    assert len((await http("POST", "/v1/rules/preview", bounded)).json["items"]) == 3
    unknown = await http.problem("POST", "/v1/rules/preview", {"every": 60, "calendars": ["none"]}, status=422)
    assert unknown["errors"][0]["pointer"] == "/calendars"
    assert (await http("GET", "/v1/schedules")).json["items"] == []


async def test_the_load_ahead_is_told(http: Client) -> None:
    await http("PUT", "/v1/schedules/s", {**GREET, "every": 3600}, status=201)
    await http("PUT", "/v1/schedules/p", {**GREET, "every": 1}, status=201)
    await http("POST", "/v1/schedules/p/pause")
    ahead = (await http("GET", "/v1/forecast", days=2)).json
    assert (ahead["runs"], ahead["paused"], ahead["cut"]) == (48, ["p"], False)
    assert [(each["schedule"], each["runs"]) for each in ahead["schedules"]] == [("s", 48)]
    await http("POST", "/v1/schedules/p/resume")
    assert (await http("GET", "/v1/forecast", days=300)).json["cut"]
    await http.problem("GET", "/v1/forecast", status=422, days=0)


# ---- as code ----


@pytest.mark.each_store
async def test_a_program_declares_its_schedules(store_url: str) -> None:
    async with served(new_app(store_url)) as http:
        await http("PUT", "/v1/schedules/by-hand", {**GREET, "every": 60}, status=201)
        first = {"name": "shop.a", **GREET, "every": 60}
        second = {"name": "shop.b", **GREET, "cron": "0 9 * * *"}
        body: dict[str, Any] = {"schedules": [first, second], "revision": 3}

        async def done(**changes: Any) -> dict[str, str]:
            answer = (await http("PUT", "/v1/schedules", {**body, **changes})).json
            assert answer["dry_run"] == changes.get("dry_run", False)
            assert sum(answer["counts"].values()) == len(answer["items"])
            return {each["name"]: each["action"] for each in answer["items"]}

        assert await done(dry_run=True) == {"shop.a": "add", "shop.b": "add"}
        assert [each["name"] for each in (await http("GET", "/v1/schedules")).json["items"]] == ["by-hand"]
        assert await done() == {"shop.a": "add", "shop.b": "add"}
        assert await done() == {"shop.a": "keep", "shop.b": "keep"}
        assert await done(revision=2) == {"shop.a": "older", "shop.b": "older"}
        fewer = [{**first, "every": 30}]
        assert await done(schedules=fewer, revision=4) == {"shop.a": "change"}
        assert await done(schedules=fewer, revision=4, remove=True, prefix="other", dry_run=True) == {"shop.a": "keep"}
        plan = {"schedules": fewer, "revision": 4, "remove": True, "prefix": "shop."}
        assert await done(**plan, dry_run=True) == await done(**plan) == {"shop.a": "keep", "shop.b": "remove"}
        names = {each["name"]: each["declared"] for each in (await http("GET", "/v1/schedules")).json["items"]}
        assert names == {"by-hand": None, "shop.a": 4}


async def test_all_that_is_wrong_with_a_program_is_told_and_nothing_is_stored(http: Client) -> None:
    good = {"name": "good", **GREET, "every": 60}
    wrong = [good, {"name": "a", **GREET, "cron": "0 0 31 2 *"}, {"name": "b", **GREET, "every": 60, "missed": "often"}]
    problem = await http.problem("PUT", "/v1/schedules", {"schedules": wrong}, status=422)
    assert [fault["pointer"] for fault in problem["errors"]] == ["/schedules/1/cron", "/schedules/2/missed"]
    wrong = [
        good,
        {"name": "a", "handler": "nobody", "every": 60},
        {"name": "b", "handler": "greet", "payload": {"name": 7}, "every": 60},
        {"name": "c", **GREET, "every": 60, "calendars": ["none"]},
    ]
    problem = await http.problem("PUT", "/v1/schedules", {"schedules": wrong}, status=422)
    pointers = [fault["pointer"] for fault in problem["errors"]]
    assert pointers == ["/schedules/1/handler", "/schedules/2/payload/name", "/schedules/3/calendars"]
    twice = await http.problem("PUT", "/v1/schedules", {"schedules": [good, good]}, status=422)
    assert "declared twice" in twice["detail"]
    assert (await http("GET", "/v1/schedules")).json["items"] == []
