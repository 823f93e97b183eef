"""A token has an owner: what comes with it is theirs, they find it again, and with the scope own they reach nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from duetime import App
from duetime.errors import InvalidValue
from duetime.model.access import Scope
from tests.api.conftest import Client
from tests.api.test_tokens import Bearer, guarded


@pytest.fixture
async def bearer(app: App) -> AsyncIterator[Bearer]:
    async with guarded(app) as bearer:
        yield bearer


def ids(answer: Any) -> set[str]:
    return {each["id"] for each in answer.json["items"]}


async def two_people(bearer: Bearer) -> Sequence[Client]:
    """Return clients of Anna, from two programs of hers, and of Ben."""
    return [
        await bearer("anna-laptop", "own", owner="anna"),
        await bearer("anna-report", "own", owner="anna"),
        await bearer("ben-laptop", "own", owner="ben"),
    ]


async def test_what_comes_with_a_token_is_its_owners_and_found_again_with_any_token_of_theirs(app: App, bearer: Bearer) -> None:
    laptop, report, ben = await two_people(bearer)
    boss = await bearer("boss", "operate")
    first, second, third = await laptop.submit(delay=60), await report.submit(delay=60), await ben.submit(delay=60)
    fourth = await boss.submit(delay=60)
    assert [each["submitted_by"] for each in (first, second, third, fourth)] == ["anna", "anna", "ben", "boss"]
    assert ids(await laptop("GET", "/v1/tasks")) == ids(await report("GET", "/v1/tasks", mine="true")) == {first["id"], second["id"]}
    assert ids(await boss("GET", "/v1/tasks", mine="true")) == {fourth["id"]}
    assert ids(await boss("GET", "/v1/tasks", submitted_by="anna", q="mine:no")) == {first["id"], second["id"]}
    assert (await boss("GET", "/v1/tasks/count", mine="true")).json["count"] == 1
    assert (await laptop("GET", "/v1/tasks/count")).json["count"] == 2
    async with App(laptop.url, token=laptop.token or "") as anna:
        assert {task.id async for task in anna.tasks(mine=True)} == {first["id"], second["id"]}
        mine = await anna.handler("greet").after(60, name="Ada")
        assert (await anna.get(mine)).submitted_by == "anna"
    [batch] = (await ben("POST", "/v1/tasks/batch", [{"handler": "greet", "payload": {"name": "Ben"}}])).json["items"]
    assert (await app.get(batch["id"])).submitted_by == "ben"
    assert {task.id async for task in app.tasks(mine=True)} == set(), "the user of the store has submitted nothing"


async def test_a_token_for_its_own_neither_sees_nor_changes_what_others_submitted(app: App, bearer: Bearer) -> None:
    laptop, _, ben = await two_people(bearer)
    task = (await ben.submit(delay=60, key="k"))["id"]
    before = await app.get(task)
    requests: list[tuple[str, str, Any]] = [
        ("GET", "", None),
        ("GET", "/attempts", None),
        ("GET", "/why", None),
        ("GET", "/logs", None),
        ("PATCH", "", {"priority": 9}),
        ("DELETE", "", None),
        ("POST", "/cancel", None),
        ("POST", "/retry", None),
        ("POST", "/copy", None),
    ]
    for method, path, body in requests:
        await laptop(method, f"/v1/tasks/{task}{path}", body, status=404)
    assert (await laptop("POST", "/v1/tasks/cancel", {})).json["matched"] == 0
    assert (await laptop("POST", "/v1/tasks/edit", {"set": {"priority": 9}, "dry_run": True})).json["matched"] == 0
    problem = await laptop.problem("POST", "/v1/tasks/cancel", {"submitted_by": "ben"}, status=422)
    assert "not those of ben" in problem["detail"]
    assert ids(await laptop("GET", "/v1/operations")) == {each["id"] for each in (await laptop("GET", "/v1/operations")).json["items"]}
    assert await app.get(task) == before
    for method, path, _ in requests:
        if method == "GET":
            await ben(method, f"/v1/tasks/{task}{path}")
    assert (await ben("PATCH", f"/v1/tasks/{task}", {"priority": 9})).json["priority"] == 9
    assert (await ben("POST", "/v1/tasks/cancel", {})).json["answers"] == {"cancelled": 1}


async def test_a_key_of_somebody_else_is_taken_and_nothing_more_is_told(app: App, bearer: Bearer) -> None:
    laptop, _, ben = await two_people(bearer)
    task = (await ben.submit(delay=60, key="k"))["id"]
    for if_exists in ("error", "keep"):
        problem = await laptop.problem(
            "POST", "/v1/tasks", {"handler": "greet", "payload": {"name": "A"}, "key": "k", "if_exists": if_exists}, status=409
        )
        assert task not in str(problem)
        [item] = (
            await laptop("POST", "/v1/tasks/batch", [{"handler": "greet", "payload": {"name": "A"}, "key": "k", "if_exists": if_exists}])
        ).json["items"]
        assert item["verdict"] == "duplicate"
        assert task not in str(item)
    for more in ({"if_exists": "replace"}, {"if_exists": "queue_one"}, {"debounce": 5}):
        await laptop.problem("POST", "/v1/tasks", {"handler": "greet", "payload": {"name": "A"}, "key": "k", **more}, status=403)
    await laptop.problem("POST", "/v1/tasks", {"handler": "greet", "payload": {"name": "A"}, "needs": [task]}, status=404)
    kept = await ben.submit(key="k", if_exists="keep", status=200)
    assert kept["id"] == task


async def test_flows_belong_to_their_owner_too(app: App, bearer: Bearer) -> None:
    laptop, _, ben = await two_people(bearer)
    body = {"name": "two", "nodes": [{"name": "one", "task": {"handler": "greet", "payload": {"name": "A"}, "delay": 60}}]}
    flow = (await ben("POST", "/v1/flows", body, status=201)).json["id"]
    assert ids(await laptop("GET", "/v1/flows")) == set()
    assert ids(await ben("GET", "/v1/flows")) == {flow}
    await laptop("POST", f"/v1/flows/{flow}/cancel", status=404)
    assert (await ben("POST", f"/v1/flows/{flow}/cancel")).json["state"] in ("cancelling", "cancelled")


@pytest.mark.each_store
@pytest.mark.covers("CJO.11")
async def test_a_token_has_scopes_a_rate_and_addresses_and_its_handlers_have_priorities_and_limits(app: App, bearer: Bearer) -> None:
    elsewhere = await bearer("elsewhere", "read", addresses=["10.0.0.0/8", "fd00::1"])
    problem = await elsewhere.problem("GET", "/v1/tasks", status=403)
    assert "may not be used from 127.0.0.1" in problem["detail"]
    here = await bearer("here", "submit", "own", addresses=["127.0.0.0/8", "::1"], rate=1.0, handlers=["greet"])
    task = await here.submit(priority=9)
    assert task["priority"] == 9
    answers = [await here("GET", "/v1/handlers", status=None) for _ in range(3)]
    assert answers[-1].status == 429
    with pytest.raises(InvalidValue, match="an IP address or a network"):
        await app.tokens.create("bad", scopes=["read"], addresses=["10.0.0.300"])
    [listed] = [each for each in await app.tokens.list() if each.name == "here"]
    assert (listed.addresses, listed.owner) == (("127.0.0.0/8", "::1/128"), "here")


def test_the_scope_own_includes_no_other() -> None:
    from duetime.model.access import included

    assert included((Scope.OWN,)) == {Scope.OWN}
