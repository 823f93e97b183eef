"""What people did with other queues, done over HTTP: many acknowledged at once, leases, looking and taking by id and by content."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from prometheus_client.parser import text_string_to_metric_families

from duetime import App
from duetime.clock import ManualClock
from duetime.store.open import store_from_url
from tests.api.conftest import Client, served
from tests.api.pulling import PullWorker, register
from tests.api.test_pull import reap, submit, task, url, worker  # noqa: F401  # fixtures


@pytest.mark.covers("DYN.3", "QZ.11")
async def test_many_are_acknowledged_at_once_and_what_is_not_comes_back(http: Client, app: App, worker: PullWorker) -> None:  # noqa: F811
    ids = await submit(http, 5)
    items = await worker.claim(limit=5)
    first, second, third, fourth, fifth = items
    reports = [
        {"task": first["id"], "attempt": 1, "result": 12},
        {"task": second["id"], "attempt": 1, "outcome": "failed", "fatal": True, "error": {"type": "E", "message": "no"}},
        {"task": third["id"], "attempt": 1, "outcome": "retry", "delay": 3600},
        {"task": fourth["id"], "attempt": 9},
        {"task": "0198c2f4-5d1e-7a3b-8c21-5f0e9d3a7b46", "attempt": 1},
    ]
    path = f"/v1/workers/{worker.id}/complete"
    done = (await http("POST", path, {"items": reports})).json["items"]
    assert [(each["verdict"], each["state"]) for each in done] == [
        ("accepted", "succeeded"),
        ("accepted", "failed"),
        ("accepted", "pending"),
        ("stale", "running"),
        (None, None),
    ]
    assert 'duetime_store_seconds_count{verb="settle"} 1.0' in (await http("GET", "/metrics")).data.decode(), "in one write"
    assert (await task(http, first["id"]))["result"] == 12
    again = (await http("POST", path, {"items": reports[:2]})).json["items"]
    assert [each["verdict"] for each in again] == ["already", "already"]
    problem = await http.problem("POST", path, {"items": [reports[0], reports[0]]}, status=422)
    assert "twice" in problem["detail"]
    assert await reap(app, 60.1) == 2
    other = await register(http)
    assert {item["id"] for item in await other.claim(limit=5)} == {fourth["id"], fifth["id"]}, "what was never acknowledged"
    late = (await http("POST", f"/v1/workers/{other.id}/complete", {"items": [{"task": fifth["id"], "attempt": 1}]})).json["items"]
    assert late[0]["verdict"] == "stale"
    assert len(ids) == 5


@pytest.mark.covers("DYN.4")
async def test_a_lease_is_extended_for_all_that_a_worker_has_and_a_waiting_task_gets_another_due_time(url: str, app: App) -> None:  # noqa: F811
    clock = ManualClock()
    async with app.using_store(store_from_url(url, clock=clock)), served(app) as http:
        holder = await register(http, lease=20, handlers={"resize": {"timeout": 600, "slots": 2}})
        ids = await submit(http, 2)
        items = await holder.claim(limit=2)
        for _ in range(5):
            clock.advance(15)
            assert (await holder.renew())["lost"] == []
        assert [await holder.complete(item) for item in items] == [("accepted", "succeeded")] * 2
        [waiting] = await submit(http, delay=60)
        before = await task(http, waiting)
        moved = (await http("PATCH", f"/v1/tasks/{waiting}", {"delay": 5})).json
        assert (moved["id"], moved["attempt"]) == (waiting, 0)
        assert moved["due_at"] < before["due_at"]
        assert await holder.claim() == []
        clock.advance(5)
        assert [item["id"] for item in await holder.claim()] == [waiting]
        assert len(ids) == 2


@pytest.mark.covers("DYN.10")
async def test_tasks_that_wait_too_long_are_found_and_each_verb_of_the_store_is_timed(http: Client, worker: PullWorker) -> None:  # noqa: F811
    await submit(http, 2)
    [stale] = await submit(http, due_at=(datetime.now(UTC) - timedelta(hours=2)).isoformat())
    found = (await http("GET", "/v1/tasks", handler="resize", q="state:pending due:<-1h")).json["items"]
    assert [each["id"] for each in found] == [stale]
    assert len(await worker.claim(limit=3)) == 3
    families = {each.name: each for each in text_string_to_metric_families((await http("GET", "/metrics")).data.decode())}
    samples = families["duetime_store_seconds"].samples
    calls = {each.labels["verb"]: each.value for each in samples if each.name == "duetime_store_seconds_count"}
    assert calls["add"] == 2
    assert calls["claim_for"] >= 1
    assert calls["page"] >= 1
    seconds = {each.labels["verb"]: each.value for each in samples if each.name == "duetime_store_seconds_sum"}
    assert all(seconds[verb] > 0 for verb in ("add", "claim_for", "page"))
    most = {each.labels["verb"]: each.value for each in samples if each.labels.get("le") == "+Inf"}
    assert most == calls


@pytest.mark.covers("DYN.6", "DYN.7")
async def test_tasks_are_looked_at_counted_found_by_content_taken_first_removed_and_cleared(http: Client, worker: PullWorker) -> None:  # noqa: F811
    ids = await submit(http, 4)
    held = await submit(http, 2, delay=3600)
    peeked = (await http("GET", "/v1/handlers/resize/upcoming", limit=10)).json["items"]
    assert [each["id"] for each in peeked] == [*ids, *held]
    assert (await http("GET", "/v1/tasks/count", handler="resize", state="pending")).json == {"count": 6, "more": False}
    found = (await http("GET", "/v1/tasks", handler="resize", q="payload.number:3")).json["items"]
    assert [each["id"] for each in found] == [ids[3]]
    await http("PATCH", f"/v1/tasks/{ids[3]}", {"priority": 9})
    [item] = await worker.claim(limit=1)
    assert item["id"] == ids[3], "the one that was chosen, though others had waited longer"
    await http("DELETE", f"/v1/tasks/{ids[0]}", status=204)
    await http.problem("GET", f"/v1/tasks/{ids[0]}", status=404)
    cleared = (await http("POST", "/v1/tasks/cancel", {"handler": "resize", "state": "pending"})).json
    assert cleared["answers"] == {"cancelled": 4}
    assert (await http("GET", "/v1/tasks/count", handler="resize", state="pending")).json["count"] == 0
