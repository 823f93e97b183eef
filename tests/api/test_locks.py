"""Locks over HTTP: taken, renewed and freed by whoever has the holder's secret; tokens see those that are named like their handlers."""

from __future__ import annotations

import pytest

from duetime import App, LockLost, LockNotFound, LockTaken
from tests.api.conftest import Client, served

ME, YOU = "m" * 16, "y" * 16


async def test_a_lock_is_taken_renewed_and_freed(http: Client) -> None:
    taken = (await http("POST", "/v1/locks/nightly/take", {"holder": ME})).json
    assert (taken["taken"], taken["name"], taken["free_at"]) == (True, "nightly", None)
    other = (await http("POST", "/v1/locks/nightly/take", {"holder": YOU})).json
    assert (other["taken"], other["fence"]) == (False, taken["fence"])
    assert (await http("POST", "/v1/locks/nightly/renew", {"holder": YOU})).json == {"held": False}
    assert (await http("POST", "/v1/locks/nightly/renew", {"holder": ME})).json == {"held": True}
    listed = (await http("GET", "/v1/locks")).json["items"]
    assert [(each["name"], each["beat"]) for each in listed] == [("nightly", taken["beat"] + 1)]
    assert ME not in str(listed)
    dead = {"fence": taken["fence"], "beat": taken["beat"] + 1}
    over = (await http("POST", "/v1/locks/nightly/take", {"holder": YOU, "dead": dead})).json
    assert over["taken"]
    assert over["fence"] > taken["fence"]
    assert (await http("POST", "/v1/locks/nightly/free", {"holder": YOU, "rest": 600})).json == {"held": True}
    assert (await http("GET", "/v1/locks/nightly")).json["free_at"] is not None
    await http("DELETE", "/v1/locks/nightly", status=204)
    await http.problem("GET", "/v1/locks/nightly", status=404)
    await http.problem("DELETE", "/v1/locks/nightly", status=404)
    await http.problem("POST", "/v1/locks/nightly/take", {"holder": "short"}, status=422)


async def test_a_remote_program_holds_locks(app: App, http: Client) -> None:
    async with App(http.url) as remote:
        async with remote.lock("nightly") as lock:
            with pytest.raises(LockTaken):
                async with app.lock("nightly"):
                    pass
            assert [each.fence for each in await remote.locks.list()] == [lock.fence]
            await app.locks.delete("nightly")
            assert await lock.renew() is None
            with pytest.raises(LockLost):
                lock.check()
        with pytest.raises(LockNotFound):
            await remote.locks.delete("nightly")


@pytest.mark.each_store
@pytest.mark.covers("SHL.7")
async def test_a_token_is_for_locks_that_are_named_like_its_handlers_and_they_are_counted(app: App) -> None:
    token = (await app.tokens.create("shop", scopes=["submit"], handlers=["shop.*"])).token
    admin = (await app.tokens.create("boss", scopes=["admin"])).token
    async with served(app) as http, app.lock("other"):
        shop = http.bearing(token)
        await shop("POST", "/v1/locks/shop.nightly/take", {"holder": ME})
        assert [each["name"] for each in (await shop("GET", "/v1/locks")).json["items"]] == ["shop.nightly"]
        await shop.problem("POST", "/v1/locks/other/take", {"holder": ME}, status=403)
        await shop.problem("GET", "/v1/locks/other", status=404)
        text = (await http.bearing(admin)("GET", "/metrics")).data.decode()
        assert 'duetime_locks{state="held"} 2.0' in text
