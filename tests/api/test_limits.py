"""Limits over HTTP and remotely: seen and changed by those who may, and told in metrics."""

from __future__ import annotations

import asyncio

import pytest

from duetime import App, Limit, LimitNotFound
from tests.api.conftest import served
from tests.servers.waiting import PATIENCE


@pytest.fixture
def limited(app: App) -> App:
    erp = Limit("erp", running=4)

    @app.task(limits=[erp], name="shop.sync")
    async def sync() -> None: ...

    @app.task(limits=[erp.take(2), Limit("gpu", running=2)], name="render")
    async def render() -> None: ...

    return app


async def declared(app: App) -> None:
    async with asyncio.timeout(PATIENCE):
        while len(await app.limits.list()) < 2:  # noqa: ASYNC110  # a worker says it when it first asks for permits
            await asyncio.sleep(0.01)


async def test_a_limit_is_listed_changed_and_reset(limited: App) -> None:
    async with limited.worker(), served(limited) as http:
        await declared(limited)
        listed = (await http("GET", "/v1/limits")).json["items"]
        assert [(each["name"], each["running"], each["handlers"]) for each in listed] == [
            ("erp", 4, {"render": 2, "shop.sync": 1}),
            ("gpu", 2, {"render": 1}),
        ]
        done = (await http("PUT", "/v1/limits/erp", {"running": 2, "lasting": 3_600, "note": "ERP maintenance"})).json
        assert (done["in_force"], done["above"], done["limit"]["running"], done["limit"]["declared"]) == (True, 0, 2, 4)
        seen = (await http("GET", "/v1/limits/erp")).json
        assert (seen["own"], seen["set_by"], seen["note"], seen["until_at"] is None) == (2, "anna@shop", "ERP maintenance", False)
        text = (await http("GET", "/metrics")).data.decode()
        assert 'duetime_limit_running{limit="gpu"} 2.0' in text
        assert 'duetime_limit_permits{limit="erp",state="accepted"} 0.0' in text
        assert (await http("DELETE", "/v1/limits/erp")).json["running"] == 4
        for wrong in ({"running": 0}, {"running": 1_000_001}, {"running": 1, "lasting": 0}, {"running": 1, "note": "\0"}, {}):
            await http.problem("PUT", "/v1/limits/erp", wrong, status=422)
        assert "did you mean erp?" in (await http.problem("PUT", "/v1/limits/erb", {"running": 1}, status=404))["detail"]
        await http.problem("GET", "/v1/limits/unknown", status=404)
        await http.problem("DELETE", "/v1/limits/unknown", status=404)
        async with limited:
            entries = [(entry.action, entry.subject) for entry in (await limited.tokens.audit.list()).items]
        assert ("limits.put", "erp") in entries
        assert ("limits.reset", "erp") in entries


async def test_a_remote_program_changes_limits(limited: App) -> None:
    async with limited.worker(), served(limited) as http:
        await declared(limited)
        async with App(http.server.url) as remote:
            done = await remote.limits.put("erp", running=3, lasting=60, note="less")
            assert (done.in_force, done.limit.set_by, (await remote.limits.get("erp")).running) == (True, "anna@shop", 3)
            assert (await remote.limits.reset("erp")).own is None
            assert [each.running for each in await remote.limits.list()] == [4, 2]
            with pytest.raises(LimitNotFound, match="did you mean gpu"):
                await remote.limits.put("gpus", running=3)


async def test_a_token_is_for_limits_all_of_whose_handlers_it_may_see(limited: App) -> None:
    async with limited.worker():
        await declared(limited)
        admin = (await limited.tokens.create("admin", scopes=["admin"])).token
        shop = (await limited.tokens.create("shop", scopes=["operate"], handlers=["shop.*"])).token
        render = (await limited.tokens.create("render", scopes=["operate"], handlers=["render"])).token
        async with served(limited) as http:
            assert len((await http.bearing(admin)("GET", "/v1/limits")).json["items"]) == 2
            assert (await http.bearing(shop)("GET", "/v1/limits")).json["items"] == []
            await http.bearing(shop).problem("PUT", "/v1/limits/erp", {"running": 1}, status=404)
            own = http.bearing(render)
            assert [each["name"] for each in (await own("GET", "/v1/limits")).json["items"]] == ["gpu"]
            assert (await own("PUT", "/v1/limits/gpu", {"running": 1})).json["limit"]["set_by"] == "render"
            await own.problem("DELETE", "/v1/limits/erp", status=404)
