"""Secrets over HTTP: write-only, for admins, audited; and the same through an App that has nothing but the server's address."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import pytest

from duetime import App, Conflict, InvalidValue, NotAllowed, SecretNotFound
from duetime.model.secrets import MAX_SECRET, write_key
from duetime.secrets.keys import new_key
from tests.api.conftest import Client, new_app, served
from tests.api.test_tokens import Bearer, acts, bearer  # noqa: F401  # a fixture
from tests.integration.test_secrets import EVERYWHERE, PLANTED, refuse_planted

OLD, NEW = (write_key(new_key(id)) for id in ("2026a", "2026b"))


@pytest.fixture
def app(url: str, monkeypatch: pytest.MonkeyPatch) -> App:
    monkeypatch.setenv("DUETIME_SECRET_KEYS", NEW)
    return new_app(url)


@pytest.fixture
async def remote(app: App) -> AsyncIterator[App]:
    async with served(app) as http, App(http.url) as remote:
        yield remote


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_secret_is_put_listed_and_deleted(request: pytest.FixtureRequest, app: App, kind: str) -> None:
    async with served(app if kind == "sqlite" else new_app(request.getfixturevalue("postgres_url"))) as http:
        assert (await http("GET", "/v1/secrets")).json == {"items": [], "next": None}
        first = (await http("PUT", "/v1/secrets/billing%2Feu", {"value": PLANTED})).json
        assert (first["name"], first["version"], first["versions"], first["readable"]) == ("billing/eu", 1, 1, True)
        second = (await http("PUT", "/v1/secrets/billing%2Feu", {"value": "another", "grace": 60})).json
        assert (second["version"], second["versions"]) == (2, 2)
        assert second["old_until_at"] is not None
        assert (await http("GET", "/v1/secrets")).json["items"] == [second]
        assert (await http("POST", "/v1/secret-keys/rotate")).json == {"key": "2026b", "rotated": 0, "unreadable": []}
        await http("DELETE", "/v1/secrets/billing%2Feu", status=204)
        problem = await http.problem("DELETE", "/v1/secrets/billing%2Feu", status=404)
        assert problem["type"].endswith("secret-not-found")


async def test_no_answer_has_a_value_and_none_can_be_asked_for(http: Client, app: App) -> None:
    answers = [
        await http("PUT", "/v1/secrets/billing", {"value": PLANTED}),
        await http("PUT", "/v1/secrets/billing", {"value": PLANTED}),
        await http("GET", "/v1/secrets"),
        await http("GET", "/v1/secrets/billing", status=405),
        await http("PUT", "/v1/secrets/billing", {"value": PLANTED, "extra": EVERYWHERE}, status=422),
        await http("PUT", "/v1/secrets/billing", {"value": [PLANTED]}, status=422),
        await http("PUT", "/v1/secrets/billing", {"value": PLANTED, "grace": -1}, status=422),
        await http("PUT", "/v1/secrets/billing", {"value": PLANTED * 8_000}, status=422),
        await http("PUT", "/v1/secrets/billing", {"value": "ä" * MAX_SECRET}, status=422),
        await http("PUT", "/v1/secrets/billing", data=f'{{"value": "{PLANTED}', headers={"content-type": "application/json"}, status=400),
        await http("PUT", "/v1/secrets/a%0Ab", {"value": PLANTED}, status=422),
        await http("POST", "/v1/secret-keys/rotate"),
        await http("DELETE", "/v1/secrets/billing", {"value": PLANTED}, status=422),
    ]
    for answer in answers:
        refuse_planted(answer.data.decode(), repr(answer))
        assert answer.status != 500
    refuse_planted(repr(await app.tokens.audit.list()), "the audit")
    assert (await http("GET", "/v1/secrets")).json["items"][0]["version"] == 1, "the same value again is no new version"


@pytest.mark.parametrize(
    ("body", "pointer", "words"),
    [
        ({}, "/value", "missing required field `value`"),
        ({"value": ""}, "/value", "length >= 1"),
        ({"value": "x" * (MAX_SECRET + 1)}, "/value", "65536"),
        ({"value": "ä" * MAX_SECRET}, "/value", "got 131,072"),
        ({"value": 7}, "/value", "expected a string, got an integer"),
        ({"value": "x", "grace": -1}, "/grace", ">= 0"),
    ],
    ids=["missing", "empty", "too long", "too many bytes", "no text", "negative grace"],
)
async def test_what_is_wrong_is_pointed_at(http: Client, body: dict[str, Any], pointer: str, words: str) -> None:
    problem = await http.problem("PUT", "/v1/secrets/billing", body, status=422)
    assert [fault["pointer"] for fault in problem["errors"]] == [pointer], problem
    assert words in problem["detail"], problem
    assert (await http("GET", "/v1/secrets")).json["items"] == []


@pytest.mark.parametrize("name", ["../../etc/passwd", "a?b#c", "%2e%2e", "名前 \N{SNOWMAN}", "'; drop table duetime_secret; --"])
async def test_a_hostile_name_is_a_name(http: Client, name: str) -> None:
    path = f"/v1/secrets/{quote(name, safe='')}"
    async with http.session.put(f"{http.url}{path}", json={"value": "something"}) as answer:
        assert (answer.status, (await answer.json())["name"]) == (200, name)
    assert len((await http("GET", "/v1/secrets")).json["items"]) == 1


async def test_a_server_without_a_key_refuses_to_store_and_says_what_to_do(url: str) -> None:
    async with served(new_app(url)) as http:
        for request in (("PUT", "/v1/secrets/billing", {"value": PLANTED}), ("POST", "/v1/secret-keys/rotate", None)):
            problem = await http.problem(*request, status=409)
            assert "make one with `duetime secrets new-key`" in problem["detail"]
            assert "DUETIME_SECRET_KEYS" in problem["detail"]
        assert (await http("GET", "/v1/secrets")).json["items"] == []


async def test_secrets_are_for_admins_and_every_act_is_in_the_audit(app: App, bearer: Bearer) -> None:  # noqa: F811
    operator, admin = await bearer("operator", "operate"), await bearer("root", "admin")
    for method, path, body in (
        ("GET", "/v1/secrets", None),
        ("PUT", "/v1/secrets/billing", {"value": PLANTED}),
        ("DELETE", "/v1/secrets/billing", None),
        ("POST", "/v1/secret-keys/rotate", None),
    ):
        await operator.problem(method, path, body, status=403)
    made = await admin("PUT", "/v1/secrets/billing", {"value": PLANTED})
    assert made.json["created_by"] == "root"
    await admin("POST", "/v1/secret-keys/rotate")
    await admin("DELETE", "/v1/secrets/billing", status=204)
    await admin.problem("DELETE", "/v1/secrets/billing", status=404)
    assert await acts(app) == [
        ("root", "secrets.put", "billing", "done"),
        ("root", "secrets.rotate", "all secrets", "done"),
        ("root", "secrets.delete", "billing", "done"),
        ("root", "secrets.delete", "billing", "refused"),
    ]


async def test_an_app_over_a_server_does_the_same(remote: App, app: App) -> None:
    info = await remote.secrets.put("billing/eu", "first-value")
    assert info == (await app.secrets.list())[0]
    second = await remote.secrets.put("billing/eu", "second-value", grace=30)
    assert (second.version, second.versions) == (2, 2)
    assert await remote.secrets.list() == [second]
    reader = app.secret_reader(app.store)
    assert (await reader.reveal("billing/eu")).values == ("second-value", "first-value")
    assert (await remote.secrets.rotate()).rotated == 0
    await remote.secrets.delete("billing/eu")
    with pytest.raises(SecretNotFound, match="there is no secret 'billing/eu'"):
        await remote.secrets.delete("billing/eu")
    with pytest.raises(InvalidValue, match="1 to 65,536 bytes"):
        await remote.secrets.put("billing", "")
    with pytest.raises(InvalidValue, match="the name of a secret"):
        await remote.secrets.put("a\nb", "value")
    with pytest.raises(InvalidValue, match="grace must not be negative"):
        await remote.secrets.put("billing", "value", grace=-1)


async def test_an_app_over_a_server_without_a_key_or_with_too_small_a_token_is_told_so(url: str) -> None:
    async with served(new_app(url)) as http, App(http.url) as remote:
        with pytest.raises(Conflict, match="duetime secrets new-key"):
            await remote.secrets.put("billing", "value")
    app = new_app(url)
    async with app:
        token = (await app.tokens.create("reader", scopes=["read"])).token
        async with served(app) as http, App(http.url, token=token) as remote:
            with pytest.raises(NotAllowed, match="lacks the scope admin"):
                await remote.secrets.list()
