"""Weights of collections over HTTP and remotely: seen and set by those who may."""

from __future__ import annotations

import pytest

from duetime import App, InvalidValue, UnknownHandler
from tests.api.conftest import served


@pytest.fixture
def fair(app: App) -> App:
    @app.task(fair="collection", name="shop.sync")
    async def sync() -> None: ...

    @app.task(name="render")
    async def render() -> None: ...

    return app


async def test_weights_are_set_seen_and_forgotten(fair: App) -> None:
    async with fair.worker(), served(fair) as http:
        [listed] = (await http("GET", "/v1/weights")).json["items"]
        assert (listed["handler"], listed["fair"], listed["declared"], listed["weights"]) == ("shop.sync", True, True, {})
        done = (await http("PUT", "/v1/weights/shop.sync", {"weights": {"gold": 4, "trial": 0.5, "": 2}, "note": "contracts"})).json
        assert done == (await http("GET", "/v1/weights/shop.sync")).json
        assert (done["weights"], done["note"], done["set_by"]) == ({"": 2.0, "gold": 4.0, "trial": 0.5}, "contracts", "anna@shop")
        assert (await http("DELETE", "/v1/weights/shop.sync")).json["weights"] == {}
        seen = (await http("GET", "/v1/weights/render")).json
        assert (seen["fair"], seen["declared"]) == (False, False)
        assert (await http("PUT", "/v1/weights/render", {"weights": {"gold": 4}})).json["fair"]
        assert (await http("DELETE", "/v1/weights/render")).json["fair"] is False
        for wrong in ({"gold": 0}, {"gold": 2_000_000}, {"gold": "4"}, {"gold": True}, {}, {"x" * 201: 1}, {"\0": 1}):
            await http.problem("PUT", "/v1/weights/render", {"weights": wrong}, status=422)
        assert "did you mean render?" in (await http.problem("PUT", "/v1/weights/rendr", {"weights": {"a": 1}}, status=404))["detail"]
        async with fair:
            entries = [(entry.action, entry.subject, entry.detail) for entry in (await fair.tokens.audit.list()).items]
        assert ("weights.put", "shop.sync", "gold=4 trial=0.5 =2; contracts") in entries
        assert ("weights.delete", "render", "") in entries


async def test_a_remote_program_sets_weights(fair: App) -> None:
    async with fair.worker(), served(fair) as http, App(http.server.url) as remote:
        done = await remote.weights.put("render", {"gold": 4}, note="flood")
        assert done == await fair.weights.get("render")
        assert [each.handler for each in await remote.weights.list()] == ["render", "shop.sync"]
        assert (await remote.weights.delete("render")).weights == {}
        with pytest.raises(UnknownHandler, match="did you mean render"):
            await remote.weights.get("rendr")
        with pytest.raises(InvalidValue, match="to stop a collection, use a gate"):
            await remote.weights.put("render", {"gold": 0})


async def test_a_token_is_for_the_weights_of_its_own_handlers(fair: App) -> None:
    async with fair.worker():
        shop = (await fair.tokens.create("shop", scopes=["operate"], handlers=["shop.*"])).token
        await fair.weights.put("render", {"gold": 4})
        async with served(fair) as http:
            own = http.bearing(shop)
            assert [each["handler"] for each in (await own("GET", "/v1/weights")).json["items"]] == ["shop.sync"]
            assert (await own("PUT", "/v1/weights/shop.sync", {"weights": {"a": 2}})).json["set_by"] == "shop"
            await own.problem("PUT", "/v1/weights/render", {"weights": {"a": 2}}, status=403)
            await own.problem("GET", "/v1/weights/render", status=403)
