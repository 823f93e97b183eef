"""Alerts and channels on the command line."""

from __future__ import annotations

import msgspec
import pytest

from duetime.duties.alert_facts import Memory
from duetime.duties.alerts import evaluate
from duetime.model.alerts.conditions import Condition, written
from tests.api.test_alerts import EVERY_CONDITION
from tests.cli.conftest import CommandLine, Program, Shop
from tests.servers.mail import MailServer

MAIL = ("--server", "smtp://mail.example", "--from", "a@b.example", "--to", "c@d.example")


def test_every_condition_is_put_as_it_is_listed(duetime: CommandLine, shop: Shop) -> None:
    duetime("channels", "put", "mail", "ops", *MAIL)
    for condition in EVERY_CONDITION:
        duetime("alerts", "put", "rule", *written(condition).split(" "), "--channel", "ops")
        shown = duetime.json("alerts", "show", "rule")["rule"]["when"]
        assert msgspec.convert(shown, Condition) == condition
        assert written(condition) in duetime("alerts", "show", "rule").stdout


def test_what_fires_is_listed_and_acknowledged(duetime: CommandLine, shop: Shop) -> None:
    duetime("channels", "put", "mail", "ops", *MAIL)
    duetime("alerts", "put", "backlog", "backlog", "due=1", "--channel", "ops")
    for name in "abc":
        duetime.submit("greet", f"name={name}")

    async def look() -> None:
        async with shop.app:
            assert await evaluate(shop.app.store, Memory())

    shop.do(look())
    [alert] = duetime.json("alerts", "firing")["items"]
    assert (alert["rule"], alert["subject"], alert["state"]) == ("backlog", "greet", "firing")
    assert "greet has 3 due tasks; 1 is allowed." in duetime("alerts", "firing").stdout
    assert "acknowledged 1 alert" in duetime("alerts", "acknowledge", "backlog", "greet").stderr
    assert "acknowledged by" in duetime("alerts", "firing").stdout
    assert "does not fire for 'fail'" in duetime("alerts", "acknowledge", "backlog", "fail", code=3).stderr


@pytest.mark.slow
def test_a_channel_is_tried_and_the_answer_of_its_server_told(duetime: CommandLine, program: Program) -> None:
    with MailServer() as server, program.worker():
        duetime("channels", "put", "mail", "ops", *MAIL[2:], "--server", f"smtp://127.0.0.1:{server.port}")
        assert "the test has arrived at ops" in duetime("channels", "test", "ops").stderr
        assert server.received[0]["Subject"] == "[Duetime] A test of the channel ops"
        server.answer = "451 the disk is full"
        assert "MailRefused: " in (said := duetime("channels", "test", "ops", code=1).stderr)
        assert "451 the disk is full" in said


def test_channels_and_rules_are_put_shown_and_deleted(duetime: CommandLine, shop: Shop) -> None:
    assert "duetime channels put" in duetime("channels").stderr
    assert "duetime alerts suggest" in duetime("alerts").stderr
    assert "duetime alerts put late late" in duetime("alerts", "suggest").stdout
    duetime("channels", "put", "mail", "ops", *MAIL, "--user", "me", "--password", "smtp")
    assert "c@d.example by smtp://mail.example" in duetime("channels").stdout
    assert duetime.json("channels", "show", "ops")["channel"]["auth"]["password"] == {"secret": "smtp"}
    duetime("channels", "put", "webhook", "hook", "--to", "https://example.com/hook", "--sign", "signing")
    duetime("channels", "put", "slack", "chat", "--to-secret", "slack")
    assert [each["name"] for each in duetime.json("channels", "list")["items"]] == ["chat", "hook", "ops"]
    assert "give --to or --to-secret" in duetime("channels", "put", "slack", "x", code=2).stderr

    duetime("alerts", "put", "failing", "failing", "ratio=0.2", "within=5m", "--channel", "ops", "--quiet", "22:00-07:00", "--repeat", "1h")
    rule = duetime.json("alerts", "show", "failing")["rule"]
    assert (rule["when"]["kind"], rule["when"]["ratio"], rule["when"]["within"], rule["repeat"]) == ("failing", 0.2, 300.0, 3_600.0)
    duetime("alerts", "put", "certs", "certificate", "days=30,7", "--channel", "hook", "--channel", "chat")
    assert [each["rule"]["name"] for each in duetime.json("alerts", "list")["items"]] == ["certs", "failing"]
    assert "certificate days=30,7" in duetime("alerts", "show", "certs").stdout
    assert "oldest_due" in duetime("alerts", "put", "late", "late", "--channel", "ops", code=2).stderr
    assert "there is no channel 'nobody'" in duetime("alerts", "put", "late", "late", "oldest_due=60", "--channel", "nobody", code=2).stderr
    assert "muted until" in duetime("alerts", "mute", "failing", "--for", "2h").stderr
    assert "not muted" in duetime("alerts", "mute", "failing", "--for", "0").stderr
    assert "nothing fires" in duetime("alerts", "firing", "--all").stderr
    assert "acknowledged 0 alerts" in duetime("alerts", "acknowledge", "failing").stderr
    assert "is told by the rule" in duetime("channels", "delete", "ops", code=4).stderr
    duetime("alerts", "delete", "failing")
    assert "there is no rule 'failing'" in duetime("alerts", "show", "failing", code=3).stderr
    duetime("channels", "delete", "ops")
    assert "there is no channel 'ops'" in duetime("channels", "test", "ops", code=3).stderr
    assert [each["action"] for each in duetime.json("audit")["items"]][:2] == ["channels.test", "channels.delete"]
