"""Limits over HTTP and remotely: seen and changed by those who may, and told in metrics."""

from __future__ import annotations

import asyncio

import pytest

from duetime import App, Limit, LimitNotFound, Rate
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


async def test_partitions_and_rates_over_http_and_remotely(app: App) -> None:
    @app.task(limits=[Limit("per-user", running=2, by="user"), Limit("vendor", rate=[Rate(5, per=1)], by="collection")])
    async def call(user: int) -> None: ...

    async with app.worker(), served(app) as http:
        async with asyncio.timeout(PATIENCE):
            while len(await app.limits.list()) < 2:  # noqa: ASYNC110  # a worker declares them when it registers
                await asyncio.sleep(0.01)
        done = (await http("PUT", "/v1/limits/per-user", {"running": 5, "partition": "7/8", "note": "for the sale"})).json
        assert (done["in_force"], done["partition"]["own"], done["partition"]["set_by"]) == (True, 5, "anna@shop")
        found = (await http("GET", "/v1/limits/per-user/partitions?partition=7%2F8")).json["items"]
        assert [(each["partition"], each["running"], each["note"]) for each in found] == [("7/8", 5, "for the sale")]
        assert (await http("GET", "/v1/limits/per-user/partitions?cursor=7%2F8")).json == {"items": [], "next": None}
        await http("DELETE", "/v1/limits/per-user?partition=7%2F8")
        assert (await http("GET", "/v1/limits/per-user/partitions")).json["items"] == []
        changed = (await http("PUT", "/v1/limits/vendor", {"rate": [{"count": 9, "per": "day"}], "lasting": 60})).json
        assert (changed["limit"]["rates"], changed["limit"]["running"]) == (["9/day"], None)
        text = (await http("GET", "/metrics")).data.decode()
        assert 'duetime_limit_permits{limit="vendor",state="parked"} 0.0' in text
        wrongs: list[dict[str, object]] = [
            {},
            {"rate": []},
            {"rate": [{"count": 0, "per": 1}]},
            {"running": 1, "partition": "\0"},
            {"running": 1},
        ]
        for wrong in wrongs:
            await http.problem("PUT", "/v1/limits/vendor", wrong, status=422)
        async with App(http.server.url) as remote:
            put = await remote.limits.put("vendor", rate=[Rate(10, per=1, burst=20)])
            assert put.limit.rates == ["10/1s, burst 20"]
            there = (await remote.limits.put("per-user", running=1, partition="9")).partition
            assert there is not None
            assert await remote.limits.partitions("per-user") == [there]
            assert (await remote.limits.reset("per-user", partition="9")).name == "per-user"
