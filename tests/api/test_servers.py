"""Servers make themselves known, so that people and programs find them."""

from __future__ import annotations

from duetime import App
from duetime.client.servers import SILENT_AFTER, server_info
from duetime.clock import SECOND
from duetime.store.servers import ServerRecord
from tests.api.conftest import Client, new_app, served, until


async def test_servers_find_each_other_and_are_gone_when_they_stop(app: App, http: Client) -> None:
    async def known(number: int) -> bool:
        return len(await app.servers()) == number

    await until(lambda: known(1), "the server is known")
    other = new_app(app.url)
    async with other, served(other) as second:
        await until(lambda: known(2), "both are known")
        urls = {each["url"] for each in (await http("GET", "/v1/servers")).json["items"]}
        assert urls == {http.url, second.url}
        async with App(second.url) as remote:
            assert {each.url for each in await remote.servers()} == urls
    [left] = await app.servers()
    assert (left.url, left.silent_for) == (http.url, None)


def test_one_that_has_missed_three_beats_is_silent() -> None:
    record = ServerRecord(id="a", host="mill", pid=7, url=None, version="1", python="3", started_at=0, beat_at=0)
    assert server_info(record, round(SILENT_AFTER * SECOND)).silent_for is None
    assert server_info(record, round(SILENT_AFTER * SECOND) + SECOND).silent_for == SILENT_AFTER + 1
