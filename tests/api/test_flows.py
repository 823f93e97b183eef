"""Flows over HTTP: any graph is posted, watched, cancelled and retried; nothing of other handlers is told or touched."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from duetime import App, CancelVerdict, Conflict, FlowNotFound, Node, Plan, Results, any_of
from duetime.ids import new_id
from tests.api.conftest import Client, served
from tests.servers.waiting import PATIENCE


def node(name: str, *needs: object, delay: float = 600, **fields: object) -> dict[str, Any]:
    return {"name": name, "task": {"handler": "greet", "payload": {"name": name}, "delay": delay}, "needs": list(needs), **fields}


async def post(http: Client, *nodes: dict[str, Any], status: int = 201, **fields: Any) -> Any:
    return (await http("POST", "/v1/flows", {"nodes": list(nodes), **fields}, status=status)).json


async def test_a_graph_is_posted_listed_cancelled_and_retried(http: Client) -> None:
    made = await post(http, node("b", "a"), node("a"), node("c", {"node": "a", "on": "failed"}), name="order", result="b")
    assert (made["state"], made["name"], made["result_of"]) == ("running", "order", "b")
    assert {each["name"]: each["state"] for each in made["nodes"]} == {"a": "running", "b": "waiting", "c": "waiting"}
    path = f"/v1/flows/{made['id']}"
    assert (await http("GET", path)).json["nodes"][1]["why"] == "it waits until a succeeded"
    [member] = (await http("GET", f"{path}/nodes/a/members")).json
    assert (await http("GET", f"/v1/tasks/{member['task']}")).json["meta"]["flow"] == made["id"]
    assert [each["id"] for each in (await http("GET", "/v1/flows", state="running", name="order")).json["items"]] == [made["id"]]
    assert (await http("POST", f"{path}/cancel")).json["state"] == "cancelled"
    assert "cannot be cancelled" in (await http("POST", f"{path}/cancel", status=409)).json["detail"]
    assert (await http("POST", f"{path}/retry")).json["state"] == "running"


async def test_a_group_with_conditions(http: Client) -> None:
    tasks = [{"handler": "greet", "payload": {"name": "x"}, "delay": 600} for _ in range(3)]
    group = {"name": "all", "tasks": tasks, "tolerate": 0.4}
    made = await post(http, group, node("two", {"least": 1, "of": [{"node": "all"}, {"node": "all", "on": "ended"}]}), deadline=60)
    assert made["nodes"][0]["members"] == 3
    assert made["deadline_at"] is not None
    assert made["nodes"][1]["needs"] == ["all succeeded or all ended"]


async def test_a_payload_takes_what_other_nodes_return(http: Client) -> None:
    taking = {"name": "b", "task": {"handler": "greet", "payload": {"name": {"$value": ["a", "part"]}}}}
    made = await post(http, node("a"), taking)
    assert made["nodes"][1]["needs"] == ["a succeeded"]
    unknown = {"name": "b", "task": {"handler": "greet", "payload": {"name": {"$value": "nobody"}}}}
    assert "'nobody', which is no node" in (await post(http, unknown, status=422))["detail"]


async def test_results_are_read_in_pages(app: App) -> None:
    @app.task
    async def count(many: int) -> AsyncIterator[int]:
        for number in range(many):
            yield number

    @app.task
    async def add_up(numbers: Results[int]) -> int:
        return sum([number async for number in numbers])

    group: dict[str, Any] = {"name": "group", "tasks": [{"handler": "count", "payload": {"many": many}} for many in (2, 3)]}
    single: dict[str, Any] = {"name": "single", "task": {"handler": "count", "payload": {"many": 1_200}}}
    streamed: dict[str, Any] = {"name": "sum", "task": {"handler": "add_up", "payload": {"numbers": {"$stream": "single"}}}}
    async with app.worker(), served(app) as http, App(http.url) as remote:
        nodes = [group, single, streamed, node("kept", {"node": "single", "on": "returned", "value": 5})]
        made = await post(http, *nodes, result="single")
        assert (made["nodes"][2]["needs"], made["result_items"]) == (["single succeeded"], None)
        path = f"/v1/flows/{made['id']}"
        done = (await http("GET", path, wait=30)).json
        assert (done["state"], done["result"], done["result_items"]) == ("succeeded", None, 1_200)
        page = (await http("GET", f"{path}/nodes/single/results", first=1_000, limit=100)).json
        assert page == {"items": list(range(1_000, 1_100)), "next": 1_100}
        assert (await http("GET", f"{path}/nodes/single/results", first=1_199)).json == {"items": [1_199], "next": None}
        assert (await remote.result(await remote.flows.get(made["id"])))[-1] == 1_199
        assert [number async for number in remote.flows.results(made["id"], "single")] == list(range(1_200))
        unread = await http("GET", f"{path}/nodes/group/results", status=422)
        assert "nobody in the flow reads what node group returns" in unread.json["detail"]
        assert "has no node 'other'" in (await http("GET", f"{path}/nodes/other/results", status=422)).json["detail"]


async def test_results_of_which_something_is_hidden_are_not_listed(url: str) -> None:
    app = App(url, hide="result.token")

    @app.task
    async def log_in(number: int) -> AsyncIterator[dict[str, str]]:
        yield {"token": "secret"}

    @app.flow
    def logging_in(plan: Plan) -> Node[list[dict[str, str]]]:
        return plan.add(log_in.new(number=1), name="log_in")

    async with app.worker():
        flow = await logging_in.now()
        await app.result(flow, timeout=PATIENCE)
        tokens = {scope: (await app.tokens.create(scope, scopes=[scope])).token for scope in ("admin", "read")}
        async with served(app) as http:
            for scope, shown in (("read", "(hidden)"), ("admin", {"token": "secret"})):
                page = await http.bearing(tokens[scope])("GET", f"/v1/flows/{flow.id}/nodes/log_in/results")
                assert page.json == {"items": [shown], "next": None}


async def test_a_map_a_key_and_why(http: Client) -> None:
    each = {"name": "b", "map": {"$value": ["a", "all"]}, "task": {"handler": "greet", "payload": {"name": {"$item": []}}}}
    made = await post(http, node("a"), each, name="mapping", key="7")
    assert (made["nodes"][1]["needs"], made["nodes"][1]["members"], made["key"]) == (["a succeeded"], 0, "7")
    path = f"/v1/flows/{made['id']}"
    assert (await post(http, node("x"), name="mapping", key="7", if_exists="keep"))["id"] == made["id"]
    assert "has the key '7'" in (await post(http, node("x"), name="mapping", key="7", status=409))["detail"]
    assert (await http("GET", f"{path}/why")).json["items"][2]["text"] == "node b: it waits until a succeeded"
    assert {"name": "mapping", "state": "running", "number": 1} in (await http("GET", "/v1/flow-counts")).json
    assert 'duetime_flows{name="mapping",state="running"} 1.0' in (await http("GET", "/metrics")).data.decode()
    assert "takes an item" in str(await post(http, {name: value for name, value in each.items() if name != "map"}, status=422))
    assert "map names the list" in (await post(http, node("a"), {**each, "map": [1]}, status=422))["detail"]
    assert "a map needs a task" in (await post(http, node("a"), {"name": "b", "map": {"$value": "a"}, "tasks": []}, status=422))["detail"]


async def test_a_flow_runs_again_from_a_node(http: Client) -> None:
    made = await post(http, node("a"), node("b", "a"))
    path = f"/v1/flows/{made['id']}"
    assert "are live" in (await http("POST", f"{path}/rerun", {"node": "a"}, status=409)).json["detail"]
    await http("POST", f"{path}/cancel")
    assert "did not run" in (await http("POST", f"{path}/rerun", {"node": "b"}, status=409)).json["detail"]
    again = (await http("POST", f"{path}/rerun", {"node": "a"})).json
    assert (again["state"], again["nodes"][0]["round"]) == ("running", 2)
    assert "has no node" in (await http("POST", f"{path}/rerun", {"node": "c"}, status=422)).json["detail"]


@pytest.mark.parametrize(
    ("nodes", "detail"),
    [
        ([node("a", "b"), node("b", "a")], "is a circle"),
        ([node("a", "a")], "is a circle"),
        ([node("a", "nobody")], "'nobody', which is no node"),
        ([node("a"), node("a")], "two nodes are named 'a'"),
        ([{"name": "a"}], "needs a task, or tasks for a group"),
        ([{**node("a"), "tasks": []}], "needs a task, or tasks for a group"),
        ([{"name": "a", "task": {"handler": "greet", "payload": {"name": "x"}, "key": "k"}}], "neither key nor needs"),
        ([node("a", {"least": 3, "of": [{"node": "a"}]})], "at least 3 of 1"),
        ([], "nodes"),
    ],
)
async def test_a_graph_that_cannot_be_is_refused(http: Client, nodes: list[dict[str, Any]], detail: str) -> None:
    assert detail in str(await post(http, *nodes, status=422))


async def test_the_same_request_stores_a_flow_once(http: Client) -> None:
    key = new_id()
    body = {"nodes": [node("a")]}
    answers = [await http("POST", "/v1/flows", body, status=201, headers={"idempotency-key": key}) for _ in range(2)]
    assert [each.json["id"] for each in answers] == [key, key]
    other = {"nodes": [node("b")]}
    assert "another flow" in (await http("POST", "/v1/flows", other, status=422, headers={"idempotency-key": key})).json["detail"]
    assert "UUID" in (await http("POST", "/v1/flows", other, status=422, headers={"idempotency-key": "x"})).json["detail"]


async def test_a_token_for_some_handlers_sees_only_flows_of_these(app: App) -> None:
    async with app:
        token = (await app.tokens.create("shop", scopes=["operate"], handlers=["anything"])).token
        whole = (await app.tokens.create("whole", scopes=["operate"])).token
        async with served(app) as http:
            made = await post(http.bearing(whole), node("a"))
            shop = http.bearing(token)
            assert (await shop("GET", "/v1/flows")).json["items"] == []
            for method, path in (
                ("GET", ""),
                ("POST", "/cancel"),
                ("POST", "/retry"),
                ("GET", "/nodes/a/members"),
                ("GET", "/nodes/a/results"),
            ):
                await shop(method, f"/v1/flows/{made['id']}{path}", status=404)
            await shop("POST", "/v1/flows", {"nodes": [node("a")]}, status=403)


async def test_an_app_over_a_server_does_the_same(app: App) -> None:
    async with app, served(app) as http:
        remote = App(http.url)
        greet = remote.handler("greet")
        plan = Plan("order")
        first = plan.add(greet.new(name="a").after(600), name="a", undo=greet.new(name="z"))
        plan.add(greet.new(name="b"), name="b", needs=[any_of(first.returned("x"), first.failed)])
        plan.group([greet.new(name="c")], name="c", needs=[first.not_failed])
        async with remote:
            flow = await remote.submit_flow(plan.new_flow(deadline=60, meta={"a": "b"}))
            found = await app.flows.get(flow)
            assert found == await remote.flows.get(flow.id)
            assert [each.needs for each in found.nodes] == [[], ["a returned 'x' or a failed"], ["a not failed"], []]
            assert (await remote.flows.wait(flow, timeout=0)).state == "running"
            assert [each.id for each in (await remote.flows.list()).items] == [flow.id]
            assert len(await remote.flows.members(flow, "a")) == 1
            assert await remote.cancel(flow) is CancelVerdict.CANCELLED
            assert await remote.cancel(flow) is CancelVerdict.FINISHED
            assert (await remote.retry(flow)).state == "running"
            with pytest.raises(Conflict):
                await remote.retry(flow)
            with pytest.raises(FlowNotFound):
                await remote.flows.get(new_id())


async def test_what_undoes_a_node_is_posted_with_it(http: Client) -> None:
    undo = {"handler": "greet", "payload": {"name": {"$value": ["a", "part"]}}}
    made = await post(http, node("a", undo=undo), node("b", "a"))
    assert [(each["name"], each["undoes"]) for each in made["nodes"]] == [("a", ""), ("b", ""), ("undo-a", "a")]
    group = {"name": "all", "tasks": [{"handler": "greet", "payload": {"name": "x"}}], "undo": undo}
    assert "a group has no undo" in (await post(http, group, status=422))["detail"]
    unknown = {"handler": "greet", "payload": {"name": {"$value": "nobody"}}}
    assert "'nobody', which is no node" in (await post(http, node("a", undo=unknown), status=422))["detail"]
    keyed = {"handler": "greet", "payload": {"name": "x"}, "key": "7"}
    assert "neither key nor needs" in (await post(http, node("a", undo=keyed), status=422))["detail"]
    assert "nothing can wait for" in (await post(http, node("a", undo=undo), node("b", "undo-a"), status=422))["detail"]
