"""Stored targets over HTTP: put with an ETag, commands for admins only; and the same through an App that has only the address."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from duetime import App, Bearer, Conflict, InvalidValue, NotAllowed, Secret, StoredCommand, StoredHttp, TargetNotFound
from duetime.errors import ChangedMeanwhile
from tests.api.conftest import Client, served
from tests.api.test_tokens import Bearer as Bearing
from tests.api.test_tokens import acts, bearer  # noqa: F401  # a fixture

PATH = "/v1/handlers/ping/target"
HTTP = {"kind": "http", "url": "https://example.com/health", "method": "GET"}
COMMAND = {"kind": "command", "argv": ["true"]}


@pytest.fixture
async def remote(app: App) -> AsyncIterator[App]:
    async with served(app) as http, App(http.url) as remote:
        yield remote


async def test_a_target_is_put_read_and_deleted(http: Client) -> None:
    assert (await http.problem("GET", PATH, status=404))["type"].endswith("target-not-found")
    made = await http("PUT", PATH, HTTP, status=201)
    assert made.headers["location"] == PATH
    assert (made.json["name"], made.json["kind"], made.json["shadowed"], made.json["target"]) == ("ping", "http", False, HTTP)
    read = await http("GET", PATH)
    assert read.json == made.json
    assert read.headers["etag"] == made.headers["etag"] == f'"{made.json["version"]}"'
    again = await http("PUT", PATH, HTTP)
    assert again.json == made.json, "the same again changes nothing"
    [handler] = [each for each in (await http("GET", "/v1/handlers")).json["items"] if each["name"] == "ping"]
    assert (handler["isolation"], handler["target"]) == ("http", made.json)
    task = (await http("POST", "/v1/tasks", {"handler": "ping", "payload": {"any": 1}}, status=201)).json
    assert task["state"] == "pending"
    await http("DELETE", PATH, status=204)
    await http.problem("DELETE", PATH, status=404)
    await http.problem("POST", "/v1/tasks", {"handler": "ping"}, status=404)


async def test_a_change_needs_the_target_as_it_was_seen_if_it_says_so(http: Client) -> None:
    problem = await http.problem("PUT", PATH, HTTP, headers={"if-match": '"1"'}, status=412)
    assert "nothing is stored under it" in problem["detail"]
    first = (await http("PUT", PATH, HTTP, headers={"if-none-match": "*"}, status=201)).headers["etag"]
    changed = {**HTTP, "method": "HEAD"}
    assert "already" in (await http.problem("PUT", PATH, changed, headers={"if-none-match": "*"}, status=412))["detail"]
    second = (await http("PUT", PATH, changed, headers={"if-match": f'"7000", {first}'})).headers["etag"]
    assert second != first
    for method, body in (("PUT", HTTP), ("DELETE", None)):
        problem = await http.problem(method, PATH, body, headers={"if-match": first}, status=412)
        assert f"its ETag is {second}" in problem["detail"]
    await http.problem("PUT", PATH, HTTP, headers={"if-match": first, "if-none-match": "*"}, status=400)
    await http.problem("PUT", PATH, HTTP, headers={"if-none-match": first}, status=422)
    await http.problem("DELETE", PATH, headers={"if-none-match": "*"}, status=400)
    await http("DELETE", PATH, headers={"if-match": "*"}, status=204)


@pytest.mark.parametrize(
    ("body", "pointer", "message"),
    [
        ({**HTTP, "verb": "GET"}, "", "the target has an unknown field `verb`"),
        ({**HTTP, "kind": "soap"}, "/kind", "kind: must be http, publish or command"),
        ({"url": "https://example.com"}, "", "the target lacks the field `kind`"),
        ({**HTTP, "auth": {"type": "bearer", "token": "sesame"}}, "/auth", "auth: a stored target names the secret that has the token"),
        ({**HTTP, "auth": {"type": "basic", "user": "ada"}}, "/auth", 'auth: must be {"type": "bearer", "token": {"secret": NAME}}'),
        ({**HTTP, "sign": "sesame"}, "/sign", "sign: must name the secret that signs"),
        ({**HTTP, "headers": {"X-Api-Key": "sesame"}}, "/headers", "headers: X-Api-Key is a credential"),
        ({**HTTP, "url": "https://example.com/{order}"}, "/url", "url refers to {order}"),
        ({**HTTP, "url": "https://ada:sesame@example.com/"}, "/url", "url"),
        ({**HTTP, "retry": {"attempts": 3}}, "/retry", "retry: Object contains unknown field `attempts`"),
        ({**HTTP, "timeout": -1}, "/timeout", "timeout must be positive"),
        ({**HTTP, "fatal": ["x"]}, "/fatal", "fatal: expected an integer, got a string, at fatal[0]"),
        ({"kind": "command"}, "/argv", "or name an artifact that says what to run"),
        ({"kind": "command", "artifact": "monthly@new"}, "/artifact", "artifact must be a name such as 'monthly'"),
        ({"kind": "command", "argv": ["sh", "{artifact}"]}, "", "for commands that name an artifact"),
        ({"kind": "command", "argv": ["sh"], "env": {"API_TOKEN": "sesame"}}, "/env", "env: API_TOKEN is a credential"),
    ],
)
async def test_a_definition_that_does_not_fit_is_told_where(http: Client, body: Any, pointer: str, message: str) -> None:
    problem = await http.problem("PUT", PATH, body, status=422)
    assert message in problem["detail"]
    assert problem["errors"][0]["pointer"] == pointer
    assert "sesame" not in str(problem)
    await http.problem("PUT", PATH, data=b"{", headers={"content-type": "application/json"}, status=400)
    await http.problem("GET", PATH, status=404)


async def test_a_command_that_names_an_artifact_is_put_and_read(http: Client, remote: App) -> None:
    for command in ({"kind": "command", "artifact": "monthly"}, {"kind": "command", "argv": ["bin/run"], "artifact": "monthly@2"}):
        assert (await http("PUT", PATH, command, status=None)).json["target"] == command
        assert (await http("GET", PATH)).json["target"] == command
    assert (await remote.targets.get("ping")).target == StoredCommand(argv=["bin/run"], artifact="monthly@2")


async def test_only_admins_touch_commands(app: App, bearer: Bearing) -> None:  # noqa: F811
    reader, operator, admin = await bearer("reader", "read"), await bearer("operator", "operate"), await bearer("admin", "admin")
    await reader.problem("PUT", PATH, HTTP, status=403)
    problem = await operator.problem("PUT", PATH, COMMAND, status=403)
    assert "lacks the scope admin" in problem["detail"]
    assert await app.targets.list() == []
    await operator("PUT", PATH, HTTP, status=201)
    await operator.problem("PUT", PATH, COMMAND, status=403)
    await admin("PUT", PATH, COMMAND)
    await operator.problem("PUT", PATH, HTTP, status=403)
    await operator.problem("DELETE", PATH, status=403)
    assert (await reader("GET", PATH)).json["target"] == COMMAND
    assert (await app.targets.get("ping")).changed_by == "admin"
    await admin("DELETE", PATH, status=204)
    assert [act[1:] for act in await acts(app) if act[0] == "operator"] == [
        ("handlers.put", "ping", "refused"),
        ("handlers.put", "ping", "done"),
        ("handlers.put", "ping", "refused"),
        ("handlers.put", "ping", "refused"),
        ("handlers.delete", "ping", "refused"),
    ]


async def test_a_token_for_other_handlers_neither_sees_nor_changes_a_target(app: App, bearer: Bearing) -> None:  # noqa: F811
    await app.targets.put("ping", StoredHttp(url="https://example.com"))
    other = await bearer("shop", "operate", handlers=["shop.*"])
    await other.problem("GET", PATH, status=404)
    await other.problem("PUT", PATH, HTTP, status=403)
    await other.problem("DELETE", PATH, status=403)
    assert [each["name"] for each in (await other("GET", "/v1/handlers")).json["items"]] == []
    await other("PUT", "/v1/handlers/shop.ping/target", HTTP, status=201)


async def test_a_handler_of_running_code_is_refused_over_http(app: App, http: Client) -> None:
    async with app.worker():
        name = next(iter(app.specs))
        problem = await http.problem("PUT", f"/v1/handlers/{name}/target", HTTP, status=409)
    assert "code comes before stored targets" in problem["detail"]


async def test_the_same_through_an_app_that_has_only_the_address(remote: App) -> None:
    target = StoredHttp(url="https://example.com/{payload.id}", auth=Bearer(Secret("billing")), body={"a": "{payload.a}"})
    made = await remote.targets.put("eu/ping", target, seen=0)
    assert made.target == target
    assert await remote.targets.get("eu/ping") == made
    assert await remote.targets.list() == [made]
    with pytest.raises(ChangedMeanwhile):
        await remote.targets.put("eu/ping", StoredHttp(url="https://example.com"), seen=made.version + 1)
    with pytest.raises(ChangedMeanwhile):
        await remote.targets.delete("eu/ping", seen=made.version + 1)
    with pytest.raises(InvalidValue, match="method must be one of"):
        await remote.targets.put("eu/ping", StoredHttp(url="https://example.com", method="BREW"))
    await remote.targets.delete("eu/ping", seen=made.version)
    with pytest.raises(TargetNotFound, match="no target is stored under 'eu/ping'"):
        await remote.targets.get("eu/ping")


async def test_an_operator_who_has_only_the_address_is_refused_commands(app: App, bearer: Bearing) -> None:  # noqa: F811
    operator = await bearer("operator", "operate")
    token = (await app.tokens.create("other", scopes=["operate"])).token
    async with App(operator.url, token=token) as remote:
        with pytest.raises(NotAllowed, match="lacks the scope admin"):
            await remote.targets.put("ping", StoredCommand(argv=["true"]))
        name = next(iter(app.specs))
        with pytest.raises(Conflict, match="code comes before stored targets"):
            await remote.targets.put(name, StoredHttp(url="https://example.com"))


async def test_a_handler_is_tested_by_whoever_may_submit(bearer: Bearing, app: App) -> None:  # noqa: F811
    await app.targets.put("ping", StoredHttp(url="https://example.com/health"))
    submitter = await bearer("ada", "submit", handlers=["ping"])
    made = await submitter("POST", "/v1/handlers/ping/test", {"payload": {"who": "ada"}}, status=201)
    assert made.headers["location"] == f"/v1/tasks/{made.json['id']}"
    task = made.json
    assert (task["handler"], task["priority"], task["meta"]) == ("ping", 9, {"duetime.test": "1"})
    assert task["payload"] == {"who": "ada"}
    assert task["expires_at"] is not None
    assert (await submitter("POST", "/v1/handlers/ping/test", status=201)).json["payload"] == {}
    await submitter.problem("POST", "/v1/handlers/nightly/test", status=403)
    await (await bearer("bob", "read")).problem("POST", "/v1/handlers/ping/test", status=403)
    await (await bearer("eve", "submit")).problem("POST", "/v1/handlers/nobody/test", status=404)
    await submitter.problem("POST", "/v1/handlers/ping/test", {"who": "ada"}, status=422)


async def test_a_handler_is_tested_through_an_app_that_has_only_the_address(app: App, remote: App) -> None:
    await app.targets.put("ping", StoredHttp(url="https://example.com/health"))
    task = await remote.targets.test("ping", name="ada", self=1)
    assert (task.handler, task.payload, task.meta) == ("ping", {"name": "ada", "self": 1}, {"duetime.test": "1"})
