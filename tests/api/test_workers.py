"""Workers over HTTP: what one runs, and draining it."""

from __future__ import annotations

from typing import Any

import pytest

from duetime import App, WorkerNotFound
from tests.api.conftest import Client, served
from tests.api.pulling import register


async def test_a_worker_is_drained_and_let_go_on_and_the_audit_says_who_did_it(app: App) -> None:
    async with app.worker() as worker, served(app) as http:
        await http("POST", f"/v1/workers/{worker.id}/drain")
        [listed] = (await http("GET", "/v1/workers")).json["items"]
        found = (await http("GET", f"/v1/workers/{worker.id}")).json
        assert (listed["draining"], found["worker"], found["tasks"]) == (True, listed, [])
        assert (await http("DELETE", f"/v1/workers/{worker.id}/drain")).json["draining"] is False
        acts = (await http("GET", "/v1/audit")).json["items"]
        assert [act["action"] for act in acts if act["subject"] == worker.id] == [
            "workers.undo_drain",
            "workers.drain",
        ]


async def test_a_worker_that_is_not_there_is_answered_with_404(http: Client) -> None:
    for method, path in (("GET", "/v1/workers/nobody"), ("POST", "/v1/workers/nobody/drain"), ("DELETE", "/v1/workers/nobody/drain")):
        problem = await http.problem(method, path, status=404)
        assert problem["type"] == "urn:duetime:problem:worker-not-found"


async def test_a_program_over_http_drains_a_worker(app: App) -> None:
    async with app.worker() as worker, served(app) as http, App(http.url) as remote:
        assert (await remote.drain_worker(worker.id)).draining
        assert (await remote.get_worker(worker.id)).worker.draining
        assert not (await remote.drain_worker(worker.id, undo=True)).draining
        with pytest.raises(WorkerNotFound):
            await remote.drain_worker("nobody")


async def test_a_pull_worker_is_told_that_it_drains_and_is_given_nothing(http: Client) -> None:
    puller = await register(http)
    await http("POST", "/v1/tasks", {"handler": "resize", "payload": {}}, status=201)
    assert (await puller.renew())["draining"] is False
    await http("POST", f"/v1/workers/{puller.id}/drain")
    assert (await puller.renew())["draining"] is True
    assert (await http("POST", f"/v1/workers/{puller.id}/claim", {})).json == {"items": [], "draining": True}
    await http("DELETE", f"/v1/workers/{puller.id}/drain")
    [item] = await puller.claim()
    assert [task["id"] for task in (await http("GET", f"/v1/workers/{puller.id}")).json["tasks"]] == [item["id"]]


async def test_a_token_for_some_handlers_drains_only_workers_of_these(app: App) -> None:
    async with app:
        admin = (await app.tokens.create("boss", scopes=["admin"])).token
        shop = (await app.tokens.create("shop", scopes=["operate"], handlers=["resize"])).token
        reader = (await app.tokens.create("reader", scopes=["read"])).token
        async with served(app) as http:
            boss, mine, reads = http.bearing(admin), http.bearing(shop), http.bearing(reader)
            offers: tuple[Any, ...] = ({"resize": {}}, {"resize": {}, "charge": {}}, {"charge": {}})
            own, shared, theirs = [
                (await boss("POST", "/v1/workers", {"handlers": handlers}, status=201)).json["id"] for handlers in offers
            ]
            await mine("POST", f"/v1/workers/{own}/drain")
            await mine.problem("POST", f"/v1/workers/{shared}/drain", status=403)
            await mine.problem("DELETE", f"/v1/workers/{theirs}/drain", status=404)
            await mine.problem("GET", f"/v1/workers/{theirs}", status=404)
            await reads.problem("POST", f"/v1/workers/{own}/drain", status=403)
            drained = {each["id"]: each["draining"] for each in (await boss("GET", "/v1/workers")).json["items"]}
            assert drained == {own: True, shared: False, theirs: False}
