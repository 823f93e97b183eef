"""Tokens and the audit are managed over HTTP, by admins; a secret is shown once."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pytest

from duetime import App
from duetime.errors import Conflict, InvalidValue, NotAllowed, TokenNotFound
from duetime.model.access import Caller, Scope, read_token
from tests.api.conftest import Client, served, until

BELOW_ADMIN = [scope.value for scope in Scope if scope is not Scope.ADMIN]


class Admin(NamedTuple):
    """A server with one admin token, somebody who bears it, and an App that sends it."""

    http: Client
    token: str
    remote: App


@pytest.fixture
async def admin(app: App) -> AsyncIterator[Admin]:
    async with app:
        token = (await app.tokens.create("boss", scopes=["admin"])).token
        async with served(app) as http, App(http.url, token=token) as remote:
            yield Admin(http.bearing(token), token, remote)


@contextlib.asynccontextmanager
async def bearing(admin: Admin, token: str) -> AsyncIterator[App]:
    async with App(admin.http.url, token=token) as remote:
        yield remote


# ---- over plain HTTP ----


async def test_a_token_is_made_with_its_secret_and_shown_without_it_ever_after(
    admin: Admin, app: App, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    body = {"name": "shop/eu", "scopes": ["submit", "read"], "handlers": ["gre*"], "expires": 3600, "rate": 50, "note": "the web shop"}
    answer = await admin.http("POST", "/v1/tokens", body, status=201)
    made = answer.json
    assert answer.headers["location"] == "/v1/tokens/shop%2Feu"
    assert answer.headers["cache-control"] == "no-store"
    assert (made["scopes"], made["handlers"], made["rate"], made["note"]) == (["read", "submit"], ["gre*"], 50.0, "the web shop")
    assert made["created_by"] == "boss"
    expires_in = datetime.fromisoformat(made["expires_at"]) - datetime.fromisoformat(made["created_at"])
    assert expires_in == timedelta(hours=1)
    assert (await admin.http.bearing(made["token"]).submit(delay=60))["submitted_by"] == "shop/eu"

    secret = made["token"].split("_")[2]
    listed = await admin.http("GET", "/v1/tokens")
    assert listed.json["next"] is None
    assert [{**each, "last_used_at": None} for each in listed.json["items"] if each["name"] == "shop/eu"] == [
        {name: value for name, value in made.items() if name != "token"}
    ]
    rotated = (await admin.http("POST", "/v1/tokens/shop%2Feu/rotate", {"grace": 0})).json
    gone = await admin.http("DELETE", f"/v1/tokens/{made['id']}")
    assert gone.json["name"] == "shop/eu"
    audit = await admin.http("GET", "/v1/audit")
    shown = listed.data + gone.data + audit.data + caplog.text.encode()
    for text in (secret, rotated["token"].split("_")[2]):
        assert text.encode() not in shown
    assert [(each["by"], each["action"], each["outcome"], each["origin"]) for each in audit.json["items"][:3]] == [
        ("boss", "tokens.revoke", "done", "127.0.0.1"),
        ("boss", "tokens.rotate", "done", "127.0.0.1"),
        ("boss", "tokens.create", "done", "127.0.0.1"),
    ]


async def test_a_rotated_secret_and_a_revoked_token_are_refused_at_once(admin: Admin, app: App) -> None:
    old = (await app.tokens.create("shop", scopes=["read"])).token
    await admin.http.bearing(old)("GET", "/v1/tasks")
    kept = (await admin.http("POST", "/v1/tokens/shop/rotate")).json  # without a body: the usual grace
    assert kept["old_until_at"] is not None
    await admin.http.bearing(old)("GET", "/v1/tasks")
    ended = (await admin.http("POST", "/v1/tokens/shop/rotate", {"grace": 0, "expires": "2100-01-01T00:00:00Z"})).json
    assert (ended["old_until_at"], ended["expires_at"]) == (None, "2100-01-01T00:00:00Z")
    await admin.http.bearing(kept["token"]).problem("GET", "/v1/tasks", status=401)
    await admin.http.bearing(ended["token"])("GET", "/v1/tasks")
    await admin.http("DELETE", "/v1/tokens/shop")
    await admin.http.bearing(ended["token"]).problem("GET", "/v1/tasks", status=401)


async def test_the_audit_comes_in_pages_and_by_filter(admin: Admin, app: App) -> None:
    for number in range(5):
        await app.tokens.audit.record("gates.pause", f"handler {number}", by=Caller(name="anna"))
    seen: list[str] = []
    query: dict[str, Any] = {"limit": 2, "by": "anna", "action": "gates.pause"}
    while True:
        page = (await admin.http("GET", "/v1/audit", **query)).json
        assert len(page["items"]) <= 2
        seen += [each["subject"] for each in page["items"]]
        if page["next"] is None:
            break
        query["cursor"] = page["next"]
    assert seen == [f"handler {number}" for number in (4, 3, 2, 1, 0)]
    [third] = (await admin.http("GET", "/v1/audit", subject="handler 3")).json["items"]
    after = (await admin.http("GET", "/v1/audit", after=third["at"], by="anna")).json["items"]
    before = (await admin.http("GET", "/v1/audit", before=third["at"], by="anna")).json["items"]
    assert "handler 3" in [each["subject"] for each in after]
    assert "handler 3" not in [each["subject"] for each in before]
    assert len(after) + len(before) == 5


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"scopes": ["read"]}, "/name"),
        ({"name": "x", "scopes": []}, "/scopes"),
        ({"name": "x", "scopes": ["root"]}, "/scopes/0"),
        ({"name": "x", "scopes": ["read"], "rate": 0}, "/rate"),
        ({"name": "x", "scopes": ["read"], "expires": -1}, "/expires"),
        ({"name": "x", "scopes": ["read"], "expires": "2020-01-01T00:00:00Z"}, "/expires"),
        ({"name": "x", "scopes": ["read"], "note": "\0"}, "/note"),
        ({"name": "x", "scopes": ["read"], "secret": "mine"}, "/secret"),
    ],
)
async def test_what_does_not_fit_is_pointed_at_and_nothing_is_made(admin: Admin, app: App, body: dict[str, Any], pointer: str) -> None:
    problem = await admin.http.problem("POST", "/v1/tokens", body, status=422)
    assert [fault["pointer"] for fault in problem["errors"]] == [pointer]
    assert [each.name for each in await app.tokens.list()] == ["boss"]


async def test_an_admin_token_is_never_for_some_handlers_only(admin: Admin) -> None:
    problem = await admin.http.problem("POST", "/v1/tokens", {"name": "x", "scopes": ["admin"], "handlers": ["greet"]}, status=422)
    assert "an admin token cannot be restricted to handlers" in problem["detail"]


async def test_a_token_in_an_address_is_refused_and_its_id_is_named(admin: Admin, app: App) -> None:
    leaked = (await app.tokens.create("shop", scopes=["read"])).token
    text = read_token(leaked)
    assert text is not None
    for method, path in (("DELETE", f"/v1/tokens/{leaked}"), ("POST", f"/v1/tokens/{leaked}/rotate")):
        problem = await admin.http.problem(method, path, status=422)
        assert text.id in problem["detail"]
        assert text.secret not in problem["detail"]


async def test_a_name_that_is_taken_or_unknown_is_told_so(admin: Admin) -> None:
    problem = await admin.http.problem("POST", "/v1/tokens", {"name": "boss", "scopes": ["read"]}, status=409)
    assert problem["type"].endswith(":conflict")
    for method, path in (("DELETE", "/v1/tokens/nobody"), ("POST", "/v1/tokens/nobody/rotate")):
        assert (await admin.http.problem(method, path, status=404))["type"].endswith(":token-not-found")


# ---- who may ----


@pytest.mark.parametrize("scope", BELOW_ADMIN)
@pytest.mark.parametrize("handlers", [[], ["gre*"]])
async def test_every_scope_below_admin_is_refused(admin: Admin, app: App, scope: str, handlers: list[str]) -> None:
    token = (await app.tokens.create("shop", scopes=[scope], handlers=handlers)).token
    before = await app.tokens.list()
    async with bearing(admin, token) as shop:
        for call in (
            shop.tokens.list(),
            shop.tokens.create("mine", scopes=["admin"]),
            shop.tokens.rotate("boss"),
            shop.tokens.revoke("boss", force=True),
            shop.tokens.audit.list(),
        ):
            with pytest.raises(NotAllowed, match="the token shop lacks the scope admin; use one that has it"):
                await call
    assert [each.id for each in await app.tokens.list()] == [each.id for each in before]


# ---- locking oneself out ----


async def test_the_token_that_makes_the_request_is_revoked_only_by_force(admin: Admin, app: App) -> None:
    await app.tokens.create("deputy", scopes=["admin"])
    problem = await admin.http.problem("DELETE", "/v1/tokens/boss", status=409)
    assert problem["detail"].startswith("the token boss is the one that makes this request, ")
    assert problem["detail"].endswith("; force=true revokes it all the same")
    await admin.http("GET", "/v1/tokens")
    await admin.http("DELETE", "/v1/tokens/boss", force="true")
    await admin.http.problem("GET", "/v1/tokens", status=401)
    entries = (await app.tokens.audit.list(action="tokens.revoke")).items
    assert [(each.by, each.subject, each.outcome.value) for each in entries] == [("boss", "boss", "done"), ("boss", "boss", "refused")]


async def test_the_last_admin_is_revoked_only_by_force_and_others_freely(admin: Admin, app: App) -> None:
    await app.tokens.create("shop", scopes=["operate"])
    await app.tokens.create("deputy", scopes=["admin"])
    await admin.remote.tokens.revoke("deputy")
    await admin.remote.tokens.revoke("shop")
    with pytest.raises(Conflict, match=r"the token boss is the last one with the scope admin, .*; force=true revokes it all the same"):
        await app.tokens.revoke("boss")  # from the store, so that it is not the one that makes the request
    assert [each.name for each in await admin.remote.tokens.list()] == ["boss"]
    assert (await app.tokens.revoke("boss", force=True)).name == "boss"


async def test_an_admin_that_has_expired_is_no_admin(admin: Admin, app: App) -> None:
    await app.tokens.create("short", scopes=["admin"], expires=0.001)

    async def expired() -> bool:
        return next(each.expired for each in await app.tokens.list() if each.name == "short")

    await until(expired, "the token has expired")
    with pytest.raises(Conflict, match="boss is the last one with the scope admin"):
        await app.tokens.revoke("boss")
    await app.tokens.revoke("short")


# ---- from a program ----


async def test_a_program_manages_tokens_over_a_server_as_on_the_store(admin: Admin, app: App) -> None:
    tokens = admin.remote.tokens
    expires = datetime(2100, 1, 1, tzinfo=UTC)
    made = await tokens.create("shop", scopes=["read", "submit"], handlers=["gre*"], expires=expires, rate=5, note="the web shop")
    [stored] = [each for each in await app.tokens.list() if each.name == "shop"]
    assert made.info == stored
    assert await tokens.list() == await app.tokens.list()
    caller = await app.tokens.check(made.token, Scope.SUBMIT, "greet")
    assert isinstance(caller, Caller)
    rotated = await tokens.rotate(made.token, grace=timedelta(0), expires=timedelta(days=1))  # by the token itself
    assert rotated.info.id == made.info.id
    assert not isinstance(await app.tokens.check(made.token, Scope.READ), Caller)
    assert (await tokens.revoke(rotated.token)).id == made.info.id
    assert (await tokens.audit.list(limit=2)).items == (await app.tokens.audit.list(limit=2)).items
    assert [each.action for each in (await tokens.audit.list(by="boss", since=datetime(2020, 1, 1, tzinfo=UTC))).items] == [
        "tokens.revoke",
        "tokens.rotate",
        "tokens.create",
    ]
    for wrong in ("nobody", made.token, made.token[:-1]):
        with pytest.raises(TokenNotFound) as missing:
            await tokens.revoke(wrong)
        assert made.token.split("_")[2][:-1] not in str(missing.value)


async def test_checking_and_recording_need_the_store(admin: Admin) -> None:
    tokens = admin.remote.tokens
    for call in (tokens.check("x", Scope.READ), tokens.in_use(), tokens.note_uses(), tokens.audit.record("gates.pause", "x")):
        with pytest.raises(InvalidValue, match="needs a store"):
            await call
    for made in (tokens.create("x", scopes=["read"], by=Caller(name="anna")), tokens.revoke("boss", by=Caller(name="anna"))):
        with pytest.raises(InvalidValue, match="by= needs a store"):
            await made
    with pytest.raises(InvalidValue, match="needs a store"):
        async with tokens.audit.acting("gates.pause", "x"):
            pass


async def test_a_server_without_tokens_lets_its_first_one_be_made_over_http(http: Client) -> None:
    made = (await http("POST", "/v1/tokens", {"name": "first", "scopes": ["admin"]}, status=201)).json
    assert made["created_by"] == "anna@shop"
    assert [each["name"] for each in (await http("GET", "/v1/tokens")).json["items"]] == ["first"]
