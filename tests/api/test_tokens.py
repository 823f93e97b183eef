"""Tokens over HTTP: who is let in, what for which handlers, and what the audit keeps of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from duetime import App
from duetime.api.server import Server
from duetime.client.access import tokens as tokens_module
from tests.api.conftest import Client, new_app, served, until
from tests.servers.fixtures import NewPostgres

Bearer = Callable[..., Awaitable[Client]]


@contextlib.asynccontextmanager
async def guarded(app: App, **options: Any) -> AsyncIterator[Bearer]:
    """Serve an App that has a token; yield a function that makes another token and a client that sends it."""
    async with app:
        await app.tokens.create("first", scopes=["admin"])
        async with served(app, **options) as http:

            async def bearer(name: str | None, *scopes: str, **more: Any) -> Client:
                return http.bearing(None if name is None else (await app.tokens.create(name, scopes=scopes, **more)).token)

            yield bearer


@pytest.fixture
async def bearer(app: App) -> AsyncIterator[Bearer]:
    async with guarded(app) as bearer:
        yield bearer


async def acts(app: App) -> list[tuple[str, str, str, str]]:
    """Return what the audit says of tasks and gates, oldest first."""
    entries = reversed((await app.tokens.audit.list()).items)
    return [(each.by, each.action, each.subject, each.outcome.value) for each in entries if not each.action.startswith("tokens.")]


# ---- who is let in ----


async def test_a_request_without_a_good_token_is_refused(app: App, bearer: Bearer) -> None:
    nobody, reader = await bearer(None), await bearer("reader", "read")
    good = (await app.tokens.rotate("reader", grace=0)).token
    wrong = [
        None,
        "",
        "Bearer",
        "Bearer ",
        f"Basic {good}",
        good,
        f"Bearer {good[:-1]}",
        f"Bearer {good[:-1]}g",
        "Bearer dt_ü",
        f"Bearer {good} x",
    ]
    for text in wrong:
        headers = {} if text is None else {"authorization": text}
        answer = await nobody("GET", "/v1/tasks", status=401, headers=headers)
        assert answer.json["type"] == "urn:duetime:problem:unauthorized"
        assert answer.headers["www-authenticate"] == "Bearer"
    assert "Authorization: Bearer dt_" in (await nobody.problem("GET", "/v1/stats", status=401))["detail"]
    await reader.problem("GET", "/v1/tasks", status=401)  # rotated
    await nobody("GET", "/v1/tasks", headers={"authorization": f"bearer  {good}"})
    await app.tokens.revoke("reader")
    await nobody.problem("GET", "/v1/tasks", status=401, headers={"authorization": f"Bearer {good}"})


async def test_a_token_that_has_expired_is_told_so(app: App, bearer: Bearer) -> None:
    short = await bearer("short", "read", expires=0.001)

    async def expired() -> bool:
        return next(each.expired for each in await app.tokens.list() if each.name == "short")

    await until(expired, "the token has expired")
    assert "has expired" in (await short.problem("GET", "/v1/tasks", status=401))["detail"]


async def test_routes_without_a_scope_need_no_token_and_all_others_do(bearer: Bearer) -> None:
    nobody, reader = await bearer(None), await bearer("reader", "read")
    for path in ("/", "/readyz", "/healthz", "/livez", "/openapi.json"):
        await nobody("GET", path)
    document = (await nobody("GET", "/openapi.json")).json
    assert document["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            address = (
                path.replace("{id}", "0198c2f4-5d1e-7a3b-8c21-5f0e9d3a7b46")
                .replace("{handler}", "greet")
                .replace("{fingerprint}", "0" * 16)
            )
            # whoever has the address of an upload may send its bytes: it holds a secret of its own; a status is public if it is chosen
            public = path.endswith(("/", "z", ".json", "/v1/uploads/{upload}")) or path.startswith("/status/")
            assert ("security" in operation) == (not public)
            if "security" in operation:
                assert {"401", "403", "429"} <= operation["responses"].keys()
                await nobody.problem(method.upper(), address, status=401)
    await reader("GET", "/metrics")


async def test_each_scope_allows_what_it_is_for(bearer: Bearer) -> None:
    reader, shop, operator = await bearer("reader", "read"), await bearer("shop", "submit"), await bearer("operator", "operate")
    assert "lacks the scope submit" in (await reader.problem("POST", "/v1/tasks", {"handler": "greet"}, status=403))["detail"]
    task = await shop.submit(delay=60)
    assert task["submitted_by"] == "shop"
    batch = [{"handler": "greet", "payload": {"name": "Ada"}, "delay": 60}]
    [item] = (await shop("POST", "/v1/tasks/batch", batch)).json["items"]
    assert (await reader("GET", f"/v1/tasks/{item['id']}")).json["submitted_by"] == "shop"
    await shop.problem("POST", f"/v1/tasks/{task['id']}/cancel", status=403)
    await operator("POST", f"/v1/tasks/{task['id']}/cancel")


async def test_a_token_that_comes_too_often_is_told_when_to_come_again(bearer: Bearer) -> None:
    slow = await bearer("slow", "read", rate=0.01)
    await slow("GET", "/v1/tasks")
    answer = await slow("GET", "/v1/tasks", status=429)
    assert answer.json["type"] == "urn:duetime:problem:too-many-requests"
    assert 1 <= int(answer.headers["retry-after"]) <= 100


async def test_the_same_idempotency_key_of_two_tokens_stands_for_two_tasks(app: App, bearer: Bearer) -> None:
    body = {"handler": "greet", "payload": {"name": "Ada"}, "delay": 60}
    headers = {"Idempotency-Key": "order-7"}
    one = await bearer("one", "submit")
    first = (await one("POST", "/v1/tasks", body, status=201, headers=headers)).json
    assert (await one("POST", "/v1/tasks", body, status=201, headers=headers)).json == first
    again = one.bearing((await app.tokens.rotate("one")).token)
    assert (await again("POST", "/v1/tasks", body, status=201, headers=headers)).json == first
    await app.tokens.revoke("one")
    other = await bearer("one", "submit")  # the name is free again, but it is another token
    assert (await other("POST", "/v1/tasks", body, status=201, headers=headers)).json["id"] != first["id"]


# ---- the life of a server ----


async def test_a_server_without_tokens_is_open_on_loopback_and_stays_so(app: App, http: Client) -> None:
    assert not http.server.asks_for_tokens
    assert (await http.submit(delay=60))["submitted_by"] == "anna@shop"
    await app.tokens.create("first", scopes=["admin"])
    await http("GET", "/v1/tasks")


async def test_a_server_that_asked_for_tokens_does_not_open_itself_when_the_last_is_gone(app: App, bearer: Bearer) -> None:
    nobody = await bearer(None)
    await app.tokens.revoke("first", force=True)
    assert not await app.tokens.in_use()
    await nobody.problem("GET", "/v1/tasks", status=401)


async def test_an_expired_token_is_none_for_a_server_that_starts(app: App) -> None:
    async with app:
        await app.tokens.create("short", scopes=["admin"], expires=0.001)

        async def expired() -> bool:
            return not await app.tokens.in_use()

        await until(expired, "the token has expired")
        async with Server(app, port=0).running() as server:
            assert not server.asks_for_tokens


async def test_with_tokens_it_may_listen_beyond_loopback_and_answers_other_names(app: App) -> None:
    async with app:
        token = (await app.tokens.create("first", scopes=["admin"])).token
        # a writing of 127.0.0.1 that is not taken for loopback, so that the test opens nothing to other machines
        async with served(app, host="127.1") as http:
            await http.problem("GET", "/v1/tasks", status=401)
            headers = {"authorization": f"Bearer {token}", "host": "tasks.example", "origin": "https://shop.example"}
            await http("GET", "/v1/tasks", headers=headers)


async def test_uses_are_written_while_it_runs_and_at_the_end(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    async def used(name: str) -> bool:
        return next(each.last_used_at is not None for each in await app.tokens.list() if each.name == name)

    async with app:
        monkeypatch.setattr(tokens_module, "NOTE_EVERY", 0.01)
        async with guarded(app) as bearer:
            await (await bearer("often", "read"))("GET", "/v1/tasks")
            await until(lambda: used("often"), "the use is written")
        await app.tokens.revoke("first", force=True)
        monkeypatch.setattr(tokens_module, "NOTE_EVERY", 3600.0)
        async with guarded(app) as bearer:
            await (await bearer("last", "read"))("GET", "/v1/tasks")
        assert await used("last")


async def test_a_stop_without_the_store_says_that_uses_are_lost(new_postgres: NewPostgres, caplog: pytest.LogCaptureFixture) -> None:
    postgres = new_postgres()
    async with guarded(new_app(postgres.url())) as bearer:
        reader = await bearer("last", "read")
        await reader("GET", "/v1/tasks")
        await asyncio.to_thread(postgres.kill)
        await reader("GET", "/v1/tasks", status=503)
    assert "the last uses of tokens could not be written: " in caplog.text


# ---- restricted to handlers ----


@pytest.fixture
async def shop(bearer: Bearer) -> Client:
    """Somebody who may do everything but administer, with greet and no other handler."""
    return await bearer("shop", "operate", handlers=["gre*"])


async def test_a_restricted_token_submits_to_its_handlers_only(shop: Client) -> None:
    await shop.submit(delay=60)
    problem = await shop.problem("POST", "/v1/tasks", {"handler": "fail", "payload": {"text": "x"}}, status=403)
    assert problem["detail"] == "the token shop is for these handlers only: gre*"
    tasks = [{"handler": "fail", "payload": {"text": "x"}}, {"handler": "greet", "payload": {"name": "Ada"}, "delay": 60}]
    done = (await shop("POST", "/v1/tasks/batch", tasks)).json
    assert [item["verdict"] for item in done["items"]] == ["refused", "added"]
    assert done["items"][0]["problem"]["status"] == 403


async def test_an_older_name_does_not_lead_a_restricted_token_to_another_handler(app: App) -> None:
    @app.task(name="orders.expire", aliases=["greet_old"])
    async def expire() -> None: ...

    async with guarded(app) as bearer:
        shop = await bearer("shop", "submit", handlers=["gre*"])
        await shop.problem("POST", "/v1/tasks", {"handler": "greet_old"}, status=403)


async def test_a_restricted_token_reaches_tasks_of_its_handlers_only(bearer: Bearer, shop: Client) -> None:
    everybody = await bearer("operator", "operate")
    own, other = await everybody.submit(delay=60), await everybody.submit("anything", delay=60)
    reads = ["", "?wait=1", "/attempts", "/logs", "/why"]
    for path in reads:
        await shop.problem("GET", f"/v1/tasks/{other['id']}{path}", status=404)
    for path in ("", "/attempts", "/logs", "/why"):
        await shop("GET", f"/v1/tasks/{own['id']}{path}")
    await shop.problem("PATCH", f"/v1/tasks/{other['id']}", {"priority": 9}, status=404)
    await shop.problem("PATCH", f"/v1/tasks/{other['id']}", {"priority": 9}, status=404, headers={"If-Match": "*"})
    for verb in ("cancel", "retry"):
        await shop.problem("POST", f"/v1/tasks/{other['id']}/{verb}", status=404)
    assert (await everybody("GET", f"/v1/tasks/{other['id']}")).json == other
    assert (await shop("PATCH", f"/v1/tasks/{own['id']}", {"priority": 9})).json["priority"] == 9
    await shop("POST", f"/v1/tasks/{own['id']}/cancel")
    await shop("POST", f"/v1/tasks/{own['id']}/retry")
    await shop.problem("GET", "/v1/tasks/0198c2f4-5d1e-7a3b-8c21-5f0e9d3a7b46", status=404)


async def test_filters_of_a_restricted_token_name_one_of_its_handlers(bearer: Bearer, shop: Client) -> None:
    everybody = await bearer("operator", "operate")
    own, other = await everybody.submit(delay=60), await everybody.submit("anything", delay=60)
    assert "name one of them as handler" in (await shop.problem("GET", "/v1/tasks", status=403))["detail"]
    await shop.problem("GET", "/v1/tasks", status=403, handler="anything")
    assert [task["id"] for task in (await shop("GET", "/v1/tasks", handler="greet")).json["items"]] == [own["id"]]
    more: dict[str, dict[str, Any]] = {"cancel": {}, "retry": {}, "edit": {"set": {"priority": 9}}}
    for verb, fields in more.items():
        for dry_run in (True, False):
            wide = {"submitted_before": "2100-01-01T00:00:00Z", "dry_run": dry_run, **fields}
            await shop.problem("POST", f"/v1/tasks/{verb}", wide, status=403)
            await shop.problem("POST", f"/v1/tasks/{verb}", {"handler": "anything", **wide}, status=403)
    assert (await everybody("GET", f"/v1/tasks/{other['id']}")).json == other
    assert (await shop("POST", "/v1/tasks/cancel", {"handler": "greet"})).json["answers"] == {"cancelled": 1}


async def test_a_restricted_token_sees_its_own_handlers_gates_and_counts(bearer: Bearer, shop: Client) -> None:
    everybody = await bearer("operator", "operate")
    assert [each["name"] for each in (await shop("GET", "/v1/handlers")).json["items"]] == ["greet"]
    assert len((await everybody("GET", "/v1/handlers")).json["items"]) == 3
    await everybody("PUT", "/v1/gates/fail", {"action": "pause"})
    gate = (await shop("PUT", "/v1/gates/greet", {"action": "pause"})).json["gate"]
    assert gate["set_by"] == "shop"
    assert (await shop("GET", "/v1/gates")).json["items"] == [gate]
    assert len((await everybody("GET", "/v1/gates")).json["items"]) == 2
    await shop.problem("GET", "/v1/gates/fail", status=403)
    await shop.problem("PUT", "/v1/gates/fail", {"action": "drop"}, status=403)
    await shop.problem("DELETE", "/v1/gates/fail", status=403)
    assert (await everybody("GET", "/v1/gates/fail")).json["action"] == "pause"
    await shop("DELETE", "/v1/gates/greet", status=204)
    await everybody.submit(delay=60)
    await everybody.submit("anything", delay=60)
    whole, own = (await everybody("GET", "/v1/stats")).json, (await shop("GET", "/v1/stats")).json
    assert ([each["handler"] for each in own["handlers"]], own["states"]["pending"]) == (["greet"], 1)
    assert whole["states"]["pending"] == 2
    await everybody("GET", "/metrics")
    assert "whole store" in (await shop.problem("GET", "/metrics", status=403))["detail"]


# ---- the audit ----


async def test_every_action_of_an_operator_is_in_the_audit(app: App, bearer: Bearer) -> None:
    operator = await bearer("operator", "operate")
    one = (await operator.submit(delay=60))["id"]
    await operator("PATCH", f"/v1/tasks/{one}", {"priority": 9})
    await operator.problem("PATCH", f"/v1/tasks/{one}", {"priority": 8}, status=412, headers={"If-Match": '"x"'})
    await operator("POST", f"/v1/tasks/{one}/cancel")
    await operator("POST", f"/v1/tasks/{one}/cancel")
    await operator("POST", f"/v1/tasks/{one}/retry")
    await operator.problem("POST", f"/v1/tasks/{one}/retry", status=409)
    await operator("POST", "/v1/tasks/edit", {"handler": "greet", "set": {"priority": 7}})
    await operator("POST", "/v1/tasks/cancel", {"handler": "greet", "dry_run": True})
    await operator("POST", "/v1/tasks/cancel", {"handler": "greet", "state": "pending"})
    await operator("POST", "/v1/tasks/retry", {"handler": "greet"})
    await operator("PUT", "/v1/gates/greet", {"action": "drop", "note": "stock service down"}, collection="eu")
    await operator("DELETE", "/v1/gates/greet", status=204, collection="eu")
    await operator.problem("DELETE", "/v1/gates/greet", status=404)
    assert await acts(app) == [
        ("operator", "tasks.edit", one, "done"),
        ("operator", "tasks.edit", one, "refused"),
        ("operator", "tasks.cancel", one, "done"),
        ("operator", "tasks.cancel", one, "refused"),
        ("operator", "tasks.retry", one, "done"),
        ("operator", "tasks.retry", one, "refused"),
        ("operator", "tasks.edit", "handler greet", "done"),
        ("operator", "tasks.cancel", "handler greet, state pending", "done"),
        ("operator", "tasks.retry", "handler greet", "done"),
        ("operator", "gates.drop", "greet, collection eu", "done"),
        ("operator", "gates.open", "greet, collection eu", "done"),
        ("operator", "gates.open", "greet", "refused"),
    ]
    entries = {(each.action, each.subject): each for each in (await app.tokens.audit.list(by="operator")).items}
    [edited] = [each["id"] for each in (await operator("GET", "/v1/operations")).json["items"] if each["verb"] == "edit"]
    assert entries["tasks.edit", "handler greet"].detail == f"priority 7; operation {edited} done; 1 changed"
    assert entries["tasks.retry", "handler greet"].detail.endswith(" done; none matched")
    gate = entries["gates.drop", "greet, collection eu"]
    assert (gate.detail, gate.origin) == ("stock service down; in force", "127.0.0.1")
    assert gate.token == next(each.id for each in await app.tokens.list() if each.name == "operator")


async def test_what_a_token_may_not_do_to_other_handlers_is_in_the_audit_as_refused(app: App, bearer: Bearer, shop: Client) -> None:
    other = (await (await bearer("operator", "operate")).submit("anything", delay=60))["id"]
    await shop.problem("POST", f"/v1/tasks/{other}/cancel", status=404)
    await shop.problem("PUT", "/v1/gates/fail", {"action": "drop"}, status=403)
    assert await acts(app) == [("shop", "tasks.cancel", other, "refused"), ("shop", "gates.drop", "fail", "refused")]


async def test_without_tokens_the_audit_names_the_user_of_the_server(app: App, http: Client) -> None:
    task = (await http.submit(delay=60))["id"]
    await http("POST", f"/v1/tasks/{task}/cancel")
    assert await acts(app) == [("anna@shop", "tasks.cancel", task, "done")]
