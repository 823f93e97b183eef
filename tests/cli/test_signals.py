"""Signals on the command line."""

from __future__ import annotations

from tests.cli.conftest import CommandLine, Shop


def test_signals_are_sent_listed_and_deleted(duetime: CommandLine, shop: Shop) -> None:
    assert duetime("signals").stderr.strip() == "no signal is kept"
    assert "is sent" in duetime("signals", "send", "paid", '{"amount": 5}', "--id", "7", "--keep", "2d").stderr
    assert "sent before" in duetime("signals", "send", "paid", "6", "--id", "7").stderr
    assert "is JSON" in duetime("signals", "send", "paid", "text", code=2).stderr
    [listed] = duetime.json("signals", "list", "paid")["items"]
    assert (listed["name"], listed["id"], listed["value"], listed["task"]) == ("paid", "7", {"amount": 5}, None)
    assert "nobody yet" in duetime("signals").stdout
    assert "forgot 1" in duetime("signals", "delete", "paid").stderr
    assert "no signal 'paid'" in duetime("signals", "delete", "paid", code=3).stderr
    assert [each["action"] for each in duetime.json("audit")["items"]][:1] == ["signals.delete"]
