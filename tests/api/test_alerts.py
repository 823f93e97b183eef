"""Alerts and channels over HTTP and through a remote client."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args
from urllib.parse import quote

import msgspec
import pytest

from duetime import (
    AlertNotFound,
    AlertRule,
    App,
    Backlog,
    Certificate,
    ChannelNotFound,
    Conflict,
    Deadline,
    Disabled,
    Failing,
    Fatal,
    InvalidValue,
    Late,
    Mail,
    Missed,
    Running,
    Slo,
    Webhook,
    WorkerLost,
)
from duetime.duties.alert_facts import Memory
from duetime.duties.alerts import evaluate
from duetime.model.alerts.conditions import Condition
from tests.api.conftest import Client, served, until
from tests.servers.http import Conversation, serving

WHEN = {"kind": "backlog", "due": 1, "handler": "shop.*"}


async def test_rules_and_channels_are_put_listed_and_deleted(http: Client) -> None:
    channel = {"kind": "mail", "server": "smtp://mail.example:587", "sender": "a@b.example", "to": ["c@d.example"]}
    put = (await http("PUT", "/v1/channels/ops", channel)).json
    assert (put["name"], put["channel"]) == ("ops", channel)
    rule = {"when": WHEN, "channels": ["ops"], "sustained": 60.0, "quiet": ["22:00", "07:00"], "tz": "Europe/Berlin"}
    info = (await http("PUT", "/v1/alert-rules/shop.late", rule)).json
    assert (info["rule"]["name"], info["rule"]["when"]["due"], info["firing"]) == ("shop.late", 1, 0)
    assert (await http("GET", "/v1/alert-rules")).json["items"] == [info]
    assert (await http("GET", "/v1/channels/ops")).json["rules"] == ["shop.late"]
    await http.problem("DELETE", "/v1/channels/ops", status=409)
    assert (await http("POST", "/v1/alert-rules/shop.late/mute", {"lasting": 60})).json["muted_until"] is not None
    assert (await http("GET", "/v1/alerts?state=all")).json["items"] == []
    assert (await http("GET", "/v1/alerts/suggested")).json["items"][0]["name"] == "late"
    await http("DELETE", "/v1/alert-rules/shop.late", status=204)
    await http("DELETE", "/v1/channels/ops", status=204)
    for method, path in (("GET", "/v1/alert-rules/shop.late"), ("DELETE", "/v1/alert-rules/x"), ("GET", "/v1/channels/ops")):
        await http.problem(method, path, status=404)


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/v1/alert-rules/r", {"when": {"kind": "late"}, "channels": ["ops"]}, "oldest_due"),
        ("/v1/alert-rules/r", {"when": {"kind": "later"}, "channels": ["ops"]}, "kind"),
        ("/v1/alert-rules/r", {"when": {"kind": "slo", "burn": 500}, "channels": ["ops"]}, "never be reached"),
        ("/v1/alert-rules/r", {"when": WHEN, "channels": []}, "channels"),
        ("/v1/alert-rules/r", {"when": WHEN, "channels": ["nobody"]}, "there is no channel"),
        ("/v1/alert-rules/_r", {"when": WHEN, "channels": ["ops"]}, "name of a rule"),
        ("/v1/channels/ops", {"kind": "pigeon"}, "kind"),
        ("/v1/channels/ops", {"kind": "mail", "server": "x", "sender": "a@b.c", "to": ["c@d.e"]}, "smtp://"),
        ("/v1/channels/ops", {"kind": "webhook", "url": "https://example.com", "color": 1}, "color"),
    ],
)
async def test_what_cannot_be_meant_is_refused(http: Client, path: str, body: dict[str, Any], said: str) -> None:
    problem = await http.problem("PUT", path, body, status=422)
    assert said in str(problem)


async def test_a_remote_program_has_the_same_verbs(app: App, http: Client) -> None:
    async with App(http.url) as remote:
        mail = Mail(server="smtps://mail.example", sender="a@b.example", to=("c@d.example",))
        assert (await remote.channels.put("ops", mail)).channel == mail
        rule = AlertRule(name="on time", when=Slo(handler="shop.*"), channels=("ops",), repeat=600)
        assert (await remote.alerts.put(rule)).rule == rule
        assert await remote.alerts.list() == await app.alerts.list()
        assert await remote.channels.list() == await app.channels.list()
        assert (await remote.alerts.mute("on time", lasting=60)).muted_until is not None
        assert (await remote.alerts.firing(state=None, rule="on time"), await remote.alerts.acknowledge("on time")) == ([], 0)
        assert await remote.alerts.suggest() == await app.alerts.suggest()
        assert (await remote.channels.test("ops")).handler == "duetime.notify"
        with pytest.raises(Conflict):
            await remote.channels.delete("ops")
        await remote.alerts.delete("on time")
        await remote.channels.delete("ops")
        with pytest.raises(AlertNotFound):
            await remote.alerts.get("on time")
        with pytest.raises(ChannelNotFound):
            await remote.channels.get("ops")


EVERY_CONDITION: list[Condition] = [
    Failing(in_a_row=3),
    Failing(ratio=0.2, within=600.0, least=5, handler="shop.*"),
    Disabled(handler="shop.*"),
    Late(oldest_due=60.0),
    Slo(start_within=2.5, ratio=0.99, window=86_400.0, burn=2.0, least=100, handler="shop.charge"),
    Running(longer_than=600.0),
    Backlog(due=1_000),
    Certificate(days=(30, 7)),
    Missed(schedule="nightly", within=7_200.0),
    Deadline(schedule="nightly", by="07:00", tz="Europe/Berlin"),
    WorkerLost(within=600.0),
]


async def test_every_condition_is_the_same_in_python_and_over_http(app: App, http: Client) -> None:
    assert {type(each) for each in EVERY_CONDITION} == set(get_args(Condition))
    await app.channels.put("ops", Webhook(url="https://example.com/"))
    async with App(http.url) as remote:
        for condition in EVERY_CONDITION:
            sent = msgspec.json.decode(msgspec.json.encode(condition))
            info = (await http("PUT", "/v1/alert-rules/rule", {"when": sent, "channels": ["ops"]})).json
            assert info["rule"]["when"] == sent
            assert (await app.alerts.get("rule")).rule.when == (await remote.alerts.get("rule")).rule.when == condition
            await remote.alerts.delete("rule")


async def test_a_token_for_some_handlers_sees_their_alerts_only_and_all_are_counted(app: App) -> None:
    for name in ("shop.a", "other"):

        @app.task(name=name)
        async def handler() -> None:
            raise Fatal("no")

        await app.submit_many([handler.new() for _ in range(3)])
    await app.channels.put("ops", Webhook(url="https://example.com/"))
    await app.alerts.put(AlertRule(name="backlog", when=Backlog(due=1), channels=("ops",)))
    await app.alerts.put(AlertRule(name="late", when=Late(oldest_due=3_600), channels=("ops",)))
    assert await evaluate(app.store, Memory())
    token = (await app.tokens.create("shop", scopes=["operate"], handlers=["shop.*"])).token
    admin = (await app.tokens.create("boss", scopes=["admin"])).token
    async with served(app) as http:
        shop, boss = http.bearing(token), http.bearing(admin)
        assert [each["subject"] for each in (await shop("GET", "/v1/alerts")).json["items"]] == ["shop.a"]
        assert {each["subject"] for each in (await boss("GET", "/v1/alerts")).json["items"]} == {"shop.a", "other"}
        for path in ("/v1/alert-rules", "/v1/channels", "/v1/channels/ops"):
            await shop.problem("GET", path, status=403)
        await shop.problem("POST", "/v1/alerts/acknowledge", {"rule": "backlog"}, status=403)
        assert (await boss("POST", "/v1/alerts/acknowledge", {"rule": "backlog", "subject": "other"})).json == {"acknowledged": 1}
        text = (await boss("GET", "/metrics")).data.decode()
        assert 'duetime_alerts{state="firing"} 2.0' in text


# ---- for everybody ----


@pytest.mark.each_store
@pytest.mark.covers("CJO.10")
async def test_status_pages_show_what_is_chosen_to_everybody_and_nothing_else(store_url: str) -> None:
    app = App(store_url, public_status="shop.*, nightly")

    @app.task(name="shop.<b>charge")
    async def charge() -> None: ...

    @app.schedule(cron="0 3 * * *", name="nightly")
    async def nightly() -> None: ...

    @app.task
    async def secret() -> None: ...

    async with app:
        await app.schedules.declare()
        await app.tokens.create("boss", scopes=["admin"])
        await charge.at(datetime(2020, 1, 1, tzinfo=UTC))
        async with served(app) as http:
            page = await http("GET", f"/status/{quote('shop.<b>charge')}", headers={"accept": "text/html"})
            text = page.data.decode()
            assert "shop.&lt;b&gt;charge" in text
            assert "It does not work at present." in text, "its task has waited since 2020, and no worker is there"
            assert page.headers["cache-control"] == "public, max-age=30"
            answer = await http("GET", "/status/nightly", headers={"accept": "application/json"})
            assert answer.json == {"name": "nightly", "state": "well", "text": "All is well."}
            badge = await http("GET", "/status/nightly/badge.svg")
            assert badge.headers["content-type"] == "image/svg+xml"
            assert b"well" in badge.data
            for hidden in ("secret", "unknown", "shop.unknown"):
                await http.problem("GET", f"/status/{hidden}", status=404)
                await http.problem("GET", f"/status/{hidden}/badge.svg", status=404)


async def test_a_monitor_outside_hears_a_heartbeat_from_one_process(tmp_path: Path) -> None:
    async def talk(conversation: Conversation) -> None:
        while await conversation.request() is not None:
            await conversation.answer(200)

    async with serving(talk) as server:
        app = App(f"sqlite:///{tmp_path}/store.db", heartbeat_url=server.url("/ping/secret"))
        async with app, app.worker(handlers=[]), app.worker(handlers=[]):

            async def heard() -> bool:
                return bool(server.received)

            await until(heard, "a heartbeat")
            assert "heartbeat" in await app.store.duties()
    assert {each.path for each in server.received} == {"/ping/secret"}
    assert len(server.received) == 1
    with pytest.raises(InvalidValue, match="heartbeat_url must be a URL"):
        App(heartbeat_url="ftp://x")
