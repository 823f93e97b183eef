"""Signals over HTTP, and by a program that uses the server."""

from __future__ import annotations

import pytest

from duetime import App, SignalNotFound
from tests.api.conftest import Client


async def test_signals_are_sent_listed_and_deleted(app: App, http: Client) -> None:
    sent = (await http("POST", "/v1/signals/paid", {"value": {"amount": 5}, "id": "7"}, status=201)).json
    assert sent == {"name": "paid", "id": "7", "new": True}
    assert (await http("POST", "/v1/signals/paid", {"value": 6, "id": "7"})).json["new"] is False
    await http("POST", "/v1/signals/other", {}, status=201)
    listed = (await http("GET", "/v1/signals")).json
    assert [(each["name"], each["value"]) for each in listed["items"]] == [("paid", {"amount": 5}), ("other", None)]
    first = (await http("GET", "/v1/signals", limit=1)).json
    rest = (await http("GET", "/v1/signals", cursor=first["next"], limit=5)).json
    assert [each["name"] for each in first["items"] + rest["items"]] == ["paid", "other"]
    assert (await http("DELETE", "/v1/signals/paid", id="7")).json == {"deleted": 1}
    await http.problem("DELETE", "/v1/signals/paid", status=404)
    await http.problem("POST", "/v1/signals/paid", {"keep": 0}, status=422)


async def test_a_program_sends_signals_through_the_server(app: App, http: Client) -> None:
    async with App(http.url) as remote:
        assert await remote.signals.send("paid", [1, "é"], id="7") is True
        assert await remote.signals.send("paid", 2, id="7") is False
        [kept] = await remote.signals.list("paid")
        assert (kept.value, kept.task) == ([1, "é"], None)
        assert await remote.signals.delete("paid") == 1
        with pytest.raises(SignalNotFound):
            await remote.signals.delete("paid")
