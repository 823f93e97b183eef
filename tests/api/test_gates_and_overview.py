"""Gates, workers, handlers, counts, health and metrics over HTTP."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

import pytest

from duetime import App, DisableAfter, InvalidValue
from duetime.model.disabling import Observed
from tests.api.conftest import Client, served


async def test_a_gate_is_set_read_and_opened(http: Client) -> None:
    done = (await http("PUT", "/v1/gates/greet", {"action": "pause", "lasting": 600, "note": "stock service down"}, collection="eu")).json
    assert done["in_force"] is True
    gate = done["gate"]
    assert (gate["handler"], gate["collection"], gate["action"], gate["set_by"]) == ("greet", "eu", "pause", "anna@shop")
    assert (await http("GET", "/v1/gates/greet", collection="eu")).json == gate
    assert (await http("GET", "/v1/gates")).json == {"items": [gate], "next": None}
    await http.problem("GET", "/v1/gates/greet", status=404)
    assert (await http("DELETE", "/v1/gates/greet", status=204, collection="eu")).data == b""
    await http.problem("DELETE", "/v1/gates/greet", status=404, collection="eu")
    assert (await http("PUT", "/v1/gates/greet", {"action": "drop"})).json["gate"]["action"] == "drop"


async def test_a_gate_needs_a_known_handler(http: Client) -> None:
    problem = await http.problem("PUT", "/v1/gates/great", {"action": "pause"}, status=404)
    assert problem["type"] == "urn:duetime:problem:unknown-handler"
    name = "shop/a b?ü%"
    await http("PUT", f"/v1/gates/{quote(name, safe='')}", {"action": "pause", "allow_unknown": True})
    assert [gate["handler"] for gate in (await http("GET", "/v1/gates")).json["items"]] == [name]


async def test_a_gate_is_in_force_when_the_worker_has_confirmed_it(app: App) -> None:
    async with app.worker() as worker, served(app) as http:
        done = (await http("PUT", "/v1/gates/greet", {"action": "pause"})).json
        assert (done["in_force"], done["confirmed"]) == (True, [worker.id])
        task = await http.submit()
        [reason] = (await http("GET", f"/v1/tasks/{task['id']}/why")).json["items"]
        assert reason["kind"] == "gate"
        await http("DELETE", "/v1/gates/greet", status=204)
        assert (await http("GET", f"/v1/tasks/{task['id']}", wait=30)).json["state"] == "succeeded"


async def test_a_gate_that_the_system_has_closed_says_so_and_when_it_is_probed(app: App) -> None:
    rule = DisableAfter(1, lasting=0, probe_every=60)
    async with served(app) as http:
        task = await http.submit()
        now, version = app.store.now(), (await app.store.gates()).version
        await app.store.observe("w", [Observed(handler="greet", failures=1, since_at=now, last="503", rule=rule, seen_gates=version)])
        [gate] = (await http("GET", "/v1/gates")).json["items"]
        assert (gate["automatic"], gate["set_by"], gate["until_at"]) == (True, "duetime", None)
        assert datetime.fromisoformat(gate["probe_at"]) - datetime.fromisoformat(gate["set_at"]) == timedelta(seconds=60)
        [reason, *_] = (await http("GET", f"/v1/tasks/{task['id']}/why")).json["items"]
        assert (reason["kind"], reason["by"]) == ("gate", "duetime")
        assert "disabled: 1 failures since" in reason["text"]
        assert 'duetime_gates{handler="greet",kind="disabled"} 1.0' in (await http("GET", "/metrics")).data.decode()
        [entry] = (await http("GET", "/v1/audit", action="gates.pause")).json["items"]
        assert (entry["by"], entry["subject"], entry["origin"]) == ("duetime", "greet", "worker w")
        findings = {each["kind"]: each["detail"] for each in (await http("GET", "/v1/doctor")).json["findings"]}
        assert "until a task succeeds, the next one tries at" in findings["closed gate"]
        await http("DELETE", "/v1/gates/greet", status=204)


async def test_workers_handlers_and_counts_are_listed(app: App) -> None:
    async with served(app) as http:
        async with app.worker() as worker:
            [found] = (await http("GET", "/v1/workers")).json["items"]
            assert (found["id"], found["alive"]) == (worker.id, True)
        handlers = {each["name"]: each for each in (await http("GET", "/v1/handlers")).json["items"]}
        assert set(handlers) == {"greet", "fail", "anything"}
        assert handlers["greet"]["doc"] == "Say hello."
        assert handlers["greet"]["schema"]["properties"]["times"] == {"type": "integer", "default": 1}
        await http.submit(delay=60)
        stats = (await http("GET", "/v1/stats")).json
        assert stats["states"]["pending"] == 1
        assert stats["handlers"][0]["later"] == 1


async def test_figures_tell_of_the_store_and_of_requests(app: App) -> None:
    async with served(app) as http:
        await http.submit()
        await http.submit(delay=60)
        await http.problem("GET", "/nowhere", status=404)
        answer = await http("GET", "/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        lines = dict(line.rsplit(" ", 1) for line in answer.data.decode().splitlines() if not line.startswith("#"))
        assert lines['duetime_tasks{handler="greet",state="due"}'] == lines['duetime_tasks{handler="greet",state="later"}'] == "1.0"
        assert float(lines['duetime_oldest_due_seconds{handler="greet"}']) >= 0
        assert lines['duetime_http_requests_total{route="submit_task",status="201"}'] == "2.0"
        assert lines['duetime_http_requests_total{route="(none)",status="404"}'] == "1.0"
        assert lines["duetime_http_tasks_submitted_total"] == "2.0"
        assert lines['duetime_http_request_seconds_count{route="submit_task"}'] == "2.0"


async def test_the_store_is_not_counted_anew_for_each_who_asks(app: App) -> None:
    async with served(app) as http:
        counted = 0
        counts = app.store.counts

        async def count() -> object:
            nonlocal counted
            counted += 1
            return await counts()

        app.store.counts = count  # type: ignore[method-assign, assignment]  # a look at the real verb
        await asyncio.gather(*(http("GET", "/metrics") for _ in range(20)))
        assert counted == 1


async def test_a_server_that_is_well_says_so(http: Client) -> None:
    assert (await http("GET", "/readyz")).json["status"] == "ok"
    assert (await http("GET", "/healthz")).json["status"] == "ok"
    alive = (await http("GET", "/livez")).json
    assert alive["status"] == "ok"
    assert {"storing single tasks", "looking for tasks that are waited for", "metrics", "reaper"} <= {
        loop["name"] for loop in alive["loops"]
    }


async def test_a_server_that_stops_is_not_ready(http: Client) -> None:
    http.server.api.stop()
    assert (await http.problem("GET", "/readyz", status=503))["type"] == "urn:duetime:problem:stopping"


async def test_a_question_for_series_that_cannot_be_answered_says_why(http: Client, app: App) -> None:
    problem = await http.problem("GET", "/v1/series", status=422, names="failed,started")
    assert "there is no series 'started'; there are attempts, succeeded" in problem["detail"]
    assert "step must be 10, 300 or 3600 seconds" in (await http.problem("GET", "/v1/series", status=422, step=60))["detail"]
    problem = await http.problem("GET", "/v1/series", status=422, since="yesterday")
    assert "since must be an instant such as 2030-01-31T07:00:00Z" in problem["detail"]
    assert "leave one of them out" in (await http.problem("GET", "/v1/series", status=422, handler="greet", by="handler"))["detail"]
    with pytest.raises(InvalidValue, match="too many"):
        await app.series(since=datetime.now(UTC) - timedelta(days=400))
