"""Operations over HTTP: started by a filter, watched, paused and stopped; nothing of other handlers is told or touched."""

from __future__ import annotations

import asyncio

import pytest

from duetime import App, Conflict, OperationNotFound
from duetime.client.operations import Asked
from duetime.model.operation import Verb
from duetime.model.query import Query
from tests.api.conftest import Client, served, until


async def _rated(http: Client, number: int = 3) -> str:
    """Start an operation that acts on one task and then waits for minutes."""
    for _ in range(number):
        await http.submit(delay=600)
    body = {"verb": "cancel", "filter": {"handler": "greet"}, "rate": 0.001}
    started = (await http("POST", "/v1/operations", body, status=201)).json
    path = f"/v1/operations/{started['id']}"

    async def acted() -> bool:
        return bool((await http("GET", path)).json["matched"])

    await until(acted, "the first task is acted on")
    return path


async def test_an_operation_is_started_and_performed_by_the_server(http: Client) -> None:
    for _ in range(4):
        await http.submit(delay=600)
    other = await http.submit("anything", delay=600)
    answer = await http("POST", "/v1/operations", {"verb": "cancel", "filter": {"handler": "greet"}}, status=201)
    path = f"/v1/operations/{answer.json['id']}"
    assert answer.headers["location"] == path
    done = (await http("GET", path, wait=30)).json
    assert (done["state"], done["matched"], done["answers"]) == ("done", 4, {"cancelled": 4})
    assert (done["verb"], done["filter"], done["changes"], done["made_by"]) == ("cancel", {"handler": "greet"}, {}, answer.json["made_by"])
    assert (await http("GET", f"/v1/tasks/{other['id']}")).json["state"] == "pending"
    assert [each["id"] for each in (await http("GET", "/v1/operations")).json["items"]] == [done["id"]]


async def test_a_verb_with_a_filter_is_answered_with_202_when_it_takes_longer(http: Client) -> None:
    for _ in range(3):
        await http.submit(delay=600)
    answer = await http("POST", "/v1/tasks/cancel", {"handler": "greet", "rate": 0.001}, status=202, wait=0)
    path = answer.headers["location"]
    assert path == f"/v1/operations/{answer.json['operation']['id']}"
    assert answer.json["operation"]["state"] == "running"
    await http("POST", f"{path}/stop")
    done = await http("POST", "/v1/tasks/cancel", {"handler": "greet"}, wait=30)
    assert done.json["operation"]["state"] == "done"
    stopped = (await http("GET", path)).json
    assert stopped["state"] == "stopped"
    assert stopped["matched"] + done.json["matched"] == 3


async def test_an_operation_is_paused_resumed_and_stopped(http: Client) -> None:
    path = await _rated(http)
    assert (await http("POST", f"{path}/pause")).json["state"] == "paused"
    assert (await http("POST", f"{path}/pause")).json["state"] == "paused", "saying it again changes nothing"
    assert (await http("POST", f"{path}/resume")).json["state"] == "running"
    stopped = (await http("POST", f"{path}/stop")).json
    assert (stopped["state"], stopped["answers"]) == ("stopped", {"cancelled": 1})
    assert stopped["ended_at"] is not None
    await http.problem("POST", f"{path}/resume", status=409)
    waiting = (await http("GET", "/v1/tasks", state="pending")).json["items"]
    assert len(waiting) == 2


async def test_a_request_that_is_repeated_under_its_name_starts_nothing_new(http: Client) -> None:
    await http.submit(delay=600)
    body = {"verb": "edit", "filter": {"handler": "greet"}, "set": {"priority": 9}}
    headers = {"idempotency-key": "evening"}
    first = (await http("POST", "/v1/operations", body, status=201, headers=headers)).json
    again = (await http("POST", "/v1/operations", body, status=201, headers=headers)).json
    assert again["id"] == first["id"]
    problem = await http.problem("POST", "/v1/operations", {**body, "rate": 5}, status=422, headers=headers)
    assert problem["type"].endswith("idempotency-key-reused")
    assert len((await http("GET", "/v1/operations")).json["items"]) == 1


async def test_the_audit_tells_who_started_and_who_stopped(app: App) -> None:
    async with served(app) as http:
        path = await _rated(http)
        await http("POST", f"{path}/stop")
        [started] = (await app.tokens.audit.list(action="tasks.cancel")).items
        [stopped] = (await app.tokens.audit.list(action="operations.stop")).items
    name = path.rpartition("/")[2]
    assert started.subject == "handler greet"
    assert name in started.detail
    assert (stopped.subject, stopped.detail) == (name, f"operation {name} stopped; 1 cancelled")


async def test_a_token_for_some_handlers_neither_sees_nor_stops_what_is_about_others(app: App) -> None:
    admin = (await app.tokens.create("admin", scopes=["admin"])).token
    shop = (await app.tokens.create("shop", scopes=["operate"], handlers=["gre*"])).token
    async with served(app) as http:
        root, some = http.bearing(admin), http.bearing(shop)
        for handler in ("greet", "anything"):
            await root.submit(handler, delay=600)

        async def start(**filters: str) -> str:
            body = {"verb": "cancel", "filter": filters, "rate": 0.001}
            return str((await root("POST", "/v1/operations", body, status=201)).json["id"])

        own, others, whole = await start(handler="greet"), await start(handler="anything"), await start(state="pending")
        assert [each["id"] for each in (await some("GET", "/v1/operations")).json["items"]] == [own]
        for name in (others, whole):
            await some.problem("GET", f"/v1/operations/{name}", status=404)
            await some.problem("POST", f"/v1/operations/{name}/stop", status=404)
        await some("GET", f"/v1/operations/{own}")
        await some.problem("POST", "/v1/operations", {"verb": "cancel", "filter": {"handler": "anything"}}, status=403)
        await some.problem("POST", "/v1/operations", {"verb": "cancel", "filter": {"state": "pending"}}, status=403)


@pytest.mark.parametrize(
    "body",
    [
        {"verb": "cancel", "filter": {}},
        {"verb": "burn", "filter": {"handler": "greet"}},
        {"verb": "edit", "filter": {"handler": "greet"}},
        {"verb": "cancel", "filter": {"handler": "greet"}, "set": {"priority": 1}},
        {"verb": "cancel", "filter": {"handler": "greet"}, "rate": 0},
        {"verb": "cancel", "filter": {"state": "failed"}},
        {"verb": "cancel", "filter": {"handler": "greet"}, "cursor": "x"},
    ],
)
async def test_what_cannot_be_done_is_refused(http: Client, body: dict[str, object]) -> None:
    await http.problem("POST", "/v1/operations", body, status=422)


async def test_a_program_over_http_starts_watches_and_stops_them(http: Client, url: str) -> None:
    app = App(http.url)
    async with app:
        for _ in range(3):
            await http.submit(delay=600)
        slow = await app.operations.start("cancel", handler="greet", rate=0.001)
        assert [each.id async for each in app.operations.list()] == [slow.id]
        assert (await app.operations.pause(slow)).state == "paused"
        assert (await app.operations.wait(slow, timeout=0.01)).state == "paused"
        assert (await app.operations.stop(slow)).state == "stopped"
        with pytest.raises(Conflict, match="has ended already"):
            await app.operations.stop(slow.id)
        with pytest.raises(OperationNotFound):
            await app.operations.get("nobody")
        edited = await app.operations.start("edit", set={"priority": 9}, handler="greet", state="pending")
        assert (await app.operations.wait(edited)).changes == {"priority": 9}


async def test_metrics_count_the_tasks_that_were_acted_on(http: Client) -> None:
    await http.submit(delay=600)
    await http("POST", "/v1/operations", {"verb": "cancel", "filter": {"handler": "greet"}}, status=201)

    async def told() -> bool:
        text = (await http("GET", "/metrics")).data.decode()
        return 'duetime_operated_tasks_total{answer="cancelled",handler="greet",verb="cancel"} 1.0' in text

    await until(told, "the metric is there")


async def test_two_servers_perform_one_operation_once(app: App, url: str) -> None:
    async with served(app) as http, App(url) as other, served(other):
        await asyncio.gather(*(http.submit(delay=600) for _ in range(40)))
        done = await http("POST", "/v1/tasks/cancel", {"handler": "greet"}, wait=30)
        assert done.json["answers"] == {"cancelled": 40}


async def test_a_request_made_elsewhere_keeps_its_author(app: App) -> None:
    async with app:
        asked = Asked(verb=Verb.CANCEL, query=Query(handler="greet"))
        assert (await app.client.operations.start(asked, made_by="nightly")).made_by == "nightly"
        assert (await app.client.operations.start(asked)).made_by == app.user
