"""Pull workers: workers in other languages register, claim, renew, and say how attempts ended."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from duetime import App
from duetime.clock import ManualClock
from duetime.duties import Reaper
from duetime.model.failures import fingerprint
from duetime.model.task import ErrorInfo
from duetime.runtime.service import Alarms
from duetime.store.open import store_from_url
from duetime.store.values import Claim
from duetime.worker.pull.values import MOST_NUMBER
from tests.api.conftest import Client, new_app, served, until
from tests.api.pulling import EXAMPLES, SHELL_COMMAND, PullWorker, example, node, program, register
from tests.conformance.build import watch
from tests.servers.waiting import PATIENCE

UNKNOWN = "0198c2f4-5d1e-7a3b-8c21-5f0e9d3a7b46"


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, url: str) -> str:
    """The address of a store of each kind."""
    return url if request.param == "sqlite" else str(request.getfixturevalue("postgres_url"))


@pytest.fixture
async def worker(http: Client) -> PullWorker:
    return await register(http)


async def submit(http: Client, count: int = 1, **fields: Any) -> list[str]:
    tasks = [{"handler": "resize", "payload": {"number": number}, **fields} for number in range(count)]
    return [item["id"] for item in (await http("POST", "/v1/tasks/batch", tasks)).json["items"]]


async def task(http: Client, id: str) -> Any:
    return (await http("GET", f"/v1/tasks/{id}")).json


# ---- registering ----


async def test_a_worker_says_what_it_has_and_is_listed(http: Client) -> None:
    schema = {"type": "object", "properties": {"width": {"type": "integer"}}, "required": ["width"]}
    offer = {"slots": 4, "schema": schema, "timeout": 7, "retry": {"tries": 2, "base": 0}, "doc": "Make it smaller."}
    done = (await http("POST", "/v1/workers", {"name": "box 7", "handlers": {"resize": offer}, "lease": 12}, status=201)).json
    assert (done["lease"], done["renew_every"]) == (12, 4)
    [listed] = (await http("GET", "/v1/workers")).json["items"]
    assert (listed["id"], listed["host"], listed["pull"], listed["slots"]) == (done["id"], "box 7", True, {"resize": 4})
    [handler] = [each for each in (await http("GET", "/v1/handlers")).json["items"] if each["name"] == "resize"]
    assert (handler["schema"], handler["doc"], handler["timeout"], handler["slots"]) == (schema, "Make it smaller.", 7, 4)
    assert handler["retry"]["tries"] == 2
    await http.problem("POST", "/v1/tasks", {"handler": "resize", "payload": {"width": "x"}}, status=422)
    await http("POST", "/v1/tasks", {"handler": "resize", "payload": {"width": 3}}, status=201)


async def test_a_worker_says_how_long_finished_tasks_of_its_handler_are_kept(http: Client) -> None:
    async def kept() -> object:
        [handler] = [each for each in (await http("GET", "/v1/handlers")).json["items"] if each["name"] == "resize"]
        return handler["keep"]

    await register(http, handlers={"resize": {"keep": {"failed": 86_400, "succeeded": 0}}})
    assert await kept() == {"failed": 86_400, "succeeded": 0}
    await register(http, handlers={"resize": {"timeout": 9}})
    assert await kept() == {"failed": 86_400, "succeeded": 0}
    await register(http, handlers={"resize": {"keep": {}}})
    assert await kept() == {}
    for wrong in ({"failed": -1}, {"pending": 1}, {"failed": "1d"}):
        await http.problem("POST", "/v1/workers", {"handlers": {"resize": {"keep": wrong}}}, status=422)


async def test_what_a_worker_does_not_say_stays_as_others_declared_it(http: Client) -> None:
    before = {each["name"]: each for each in (await http("GET", "/v1/handlers")).json["items"]}
    await register(http, handlers={"greet": {"slots": 2}, "new": {}})
    await register(http, handlers={"fail": {"timeout": 9}})
    after = {each["name"]: each for each in (await http("GET", "/v1/handlers")).json["items"]}
    same = ("schema", "doc", "timeout", "retry", "isolation", "concurrency", "declared_at")
    assert {name: after["greet"][name] for name in same} == {name: before["greet"][name] for name in same}
    assert (after["fail"]["timeout"], after["fail"]["schema"]) == (9, before["fail"]["schema"])
    assert (after["new"]["isolation"], after["new"]["schema"]) == ("pull", {})


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "/handlers"),
        ({"handlers": {}}, "/handlers"),
        ({"handlers": {"": {}}}, None),
        ({"handlers": {"a": {"slots": 0}}}, None),
        ({"handlers": {"a": {"retry": {"factor": 0}}}}, None),
        ({"handlers": {"a": {}}, "lease": 4}, "/lease"),
        ({"handlers": {"a": {}}, "lease": 3601}, "/lease"),
        ({"handlers": {"a\0": {}}}, None),
        ({"handlers": {"a": {"doc": "\0"}}}, None),
        ({"handlers": {"a": {}}, "name": "\0"}, None),
        ({"handlers": {"a": {}}, "host": "x"}, "/host"),
    ],
)
async def test_a_wrong_registration_is_refused(http: Client, body: Any, pointer: str | None) -> None:
    problem = await http.problem("POST", "/v1/workers", body, status=422)
    assert pointer is None or pointer in [error["pointer"] for error in problem["errors"]]
    assert (await http("GET", "/v1/workers")).json["items"] == []


@pytest.mark.parametrize(
    "schema",
    [
        {"type": 5},
        {"properties": {"a": {"type": "text"}}},
        {"properties": {"a": True}},
        {"properties": 5},
        {"required": "a"},
        {"minimum": "x"},
        {"properties": {"a": {"type": "string", "pattern": "("}}},
        {"properties": {"a": {"minLength": -1}}},
        {"anyOf": [3]},
        {"items": 3},
        {"$ref": "https://example.org/schema"},
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"anyOf": [{"$ref": "#/$defs/a"}]}}},
        {"$defs": {"a": {"$ref": "#/$defs/a"}}, "properties": {"a": {"$ref": "#/$defs/a"}}},
    ],
)
async def test_a_schema_that_no_payload_could_be_checked_against_is_refused(http: Client, schema: Any) -> None:
    problem = await http.problem("POST", "/v1/workers", {"handlers": {"resize": {"schema": schema}}}, status=422)
    assert [error["pointer"] for error in problem["errors"]] == ["/handlers/resize/schema"]
    assert "resize" not in [each["name"] for each in (await http("GET", "/v1/handlers")).json["items"]]


async def test_a_schema_may_be_recursive(http: Client) -> None:
    branches = {"type": "array", "items": {"$ref": "#/$defs/tree"}}
    tree = {"type": "object", "properties": {"children": branches}, "additionalProperties": False}
    schema = {"$defs": {"tree": tree}, "properties": {"tree": {"$ref": "#/$defs/tree"}}}
    await register(http, handlers={"resize": {"schema": schema}})
    good: Any = {"children": [{"children": []}, {}]}
    await http("POST", "/v1/tasks", {"handler": "resize", "payload": {"tree": good}}, status=201)
    await http.problem("POST", "/v1/tasks", {"handler": "resize", "payload": {"tree": {"children": [{"x": 1}]}}}, status=422)


# ---- claiming ----


async def test_a_claimed_task_has_all_that_an_attempt_needs(http: Client) -> None:
    worker = await register(http, handlers={"resize": {"timeout": 60}})
    body = {"handler": "resize", "payload": {"text": "\N{SNOWMAN}\0"}, "key": "k", "collection": "eu", "priority": 7, "meta": {"a": "b"}}
    id = (await http("POST", "/v1/tasks", body, status=201)).json["id"]
    [item] = await worker.claim()
    assert (item["id"], item["idempotency_key"], item["attempt"], item["fence"], item["tries"]) == (id, id, 1, 1, 0)
    assert {name: item[name] for name in ("payload", "key", "collection", "priority", "meta")} == {
        name: body[name] for name in ("payload", "key", "collection", "priority", "meta")
    }
    stored = await task(http, id)
    assert (stored["state"], stored["worker"]) == ("running", worker.id)
    deadline, started = (datetime.fromisoformat(text) for text in (item["deadline"], stored["started_at"]))
    assert (deadline - started).total_seconds() == 60


@pytest.mark.covers("ATF.9", "DYN.2", "DYN.1")
async def test_several_tasks_are_claimed_at_once_by_long_poll_highest_priority_first(http: Client, worker: PullWorker) -> None:
    waiting = asyncio.create_task(worker.claim(limit=3, wait=60))
    some = {"handler": "resize", "payload": {}}
    batch = [{**some, "key": f"k{priority}", "delay": 0.3, "priority": priority} for priority in (1, 9, 5, 7)]
    answers = (await http("POST", "/v1/tasks/batch", [*batch, {**some, "key": "later", "delay": 3600, "priority": 8}])).json["items"]
    assert [item["key"] for item in await asyncio.wait_for(waiting, PATIENCE)] == ["k9", "k7", "k5"]
    [last] = await worker.claim(limit=10, wait=60)
    assert (last["key"], last["id"]) == ("k1", answers[0]["id"])


@pytest.mark.covers("YZ.2", "YZ.5", "RDB.3")
async def test_push_pop_get_finish_and_delete_of_topics_over_http_and_their_lengths(http: Client) -> None:
    worker = await register(http, handlers={"resize": {"slots": 2}, "mail": {"slots": 2}})
    pushed = [await http.submit(handler, payload={}) for handler in ("resize", "mail")]
    popped = await worker.claim(limit=10, wait=60)
    assert sorted(item["handler"] for item in popped) == ["mail", "resize"]
    assert {(await http("GET", f"/v1/tasks/{each['id']}")).json["state"] for each in pushed} == {"running"}
    assert await worker.complete(popped[0]) == ("accepted", "succeeded")
    await http("DELETE", f"/v1/tasks/{popped[0]['id']}", status=204)
    await http.problem("GET", f"/v1/tasks/{popped[0]['id']}", status=404)
    waiting = await http.submit("mail", payload={}, delay=3600)
    await http("DELETE", f"/v1/tasks/{waiting['id']}", status=204)
    await http.submit("mail", payload={}, delay=3600)
    page = (await http("GET", "/metrics")).data.decode()
    assert 'duetime_tasks{handler="mail",state="later"} 1.0' in page
    assert 'duetime_http_request_seconds_count{route="claim_tasks"} 1.0' in page


async def test_a_repeated_claim_is_answered_with_the_same_tasks(http: Client, worker: PullWorker, app: App, url: str) -> None:
    """A reply that was lost, or whose server died, costs nothing; it may be asked for again at any server."""
    await submit(http, 5)
    first = await worker.claim(claim=1, limit=3)
    assert len(first) == 3
    async with served(App(url)) as other:
        assert sorted(item["id"] for item in await worker.claim(claim=1, limit=3, at=other)) == sorted(item["id"] for item in first)
        again = {item["id"]: item for item in await worker.claim(claim=1, limit=3)}
        assert again == {item["id"]: item for item in first}
        await worker.complete(first[0], at=other)
        assert sorted(item["id"] for item in await worker.claim(claim=1, limit=3)) == sorted(item["id"] for item in first[1:])
        assert len(await worker.claim(claim=2, limit=3, at=other)) == 2


@pytest.mark.covers("RDB.1")
async def test_concurrent_repeats_of_a_claim_take_its_tasks_once(http: Client, worker: PullWorker, url: str) -> None:
    await submit(http, 30)
    async with served(App(url)) as other:
        replies = await asyncio.gather(*(worker.claim(claim=1, limit=5, at=at, wait=1) for at in (http, other) * 4))
    taken = {item["id"] for reply in replies for item in reply}
    assert len(taken) == 5
    assert len({item["id"] for item in await worker.claim(claim=1)}) == 5


async def test_a_worker_gets_no_more_than_it_has_free_slots_for(http: Client) -> None:
    worker = await register(http, handlers={"resize": {"slots": 3}, "other": {"slots": 2}})
    await submit(http, 5)
    await submit(http, 5, handler="other")
    claimed = await worker.claim(limit=100)
    assert sorted(item["handler"] for item in claimed) == ["other"] * 2 + ["resize"] * 3
    assert await worker.claim(limit=100) == []
    await worker.complete(next(item for item in claimed if item["handler"] == "other"))
    assert [item["handler"] for item in await worker.claim(limit=100)] == ["other"]


async def test_a_claim_waits_for_a_task(http: Client, worker: PullWorker) -> None:
    waiting = asyncio.create_task(worker.claim(wait=60))
    [id] = await submit(http, delay=0.2)
    assert [item["id"] for item in await asyncio.wait_for(waiting, PATIENCE)] == [id]


async def test_a_claim_waits_for_a_free_slot(http: Client) -> None:
    worker = await register(http, handlers={"resize": {"slots": 1}})
    await submit(http, 2)
    [first] = await worker.claim()
    waiting = asyncio.create_task(worker.claim(wait=60))
    await worker.complete(first)
    assert len(await asyncio.wait_for(waiting, PATIENCE)) == 1


@pytest.mark.slow
async def test_a_claim_does_not_wait_longer_than_half_of_the_lease(http: Client) -> None:
    worker = await register(http, lease=5)
    assert await asyncio.wait_for(worker.claim(wait=60), 40) == []


async def test_nothing_is_claimed_for_a_worker_that_has_gone(http: Client, worker: PullWorker, app: App) -> None:
    async with aiohttp.ClientSession() as session:
        with pytest.raises(TimeoutError):
            await session.post(f"{http.url}/v1/workers/{worker.id}/claim", json={"wait": 60}, timeout=aiohttp.ClientTimeout(total=0.3))
    await until(lambda: _nobody_waits(http), "the server has noticed that the worker has gone")
    [id] = await submit(http)
    assert (await task(http, id))["state"] == "pending"
    assert [item["id"] for item in await worker.claim()] == [id]


async def _nobody_waits(http: Client) -> bool:
    return not http.server.api.shared.pull._waiting


async def test_a_server_that_stops_lets_waiting_workers_go(app: App) -> None:
    async with contextlib.AsyncExitStack() as stack:
        http = await stack.enter_async_context(served(app))
        worker = await register(http)
        waiting = asyncio.create_task(worker.claim(wait=60))
        await until(lambda: _somebody_waits(http), "the claim waits")
        http.server.api.stop()
        assert await asyncio.wait_for(waiting, PATIENCE) == []


async def _somebody_waits(http: Client) -> bool:
    return bool(http.server.api.shared.pull._waiting)


def _parameters(*names: str) -> dict[str, Any]:
    return {
        "slots": 2,
        "schema": {"type": "object", "properties": {name: {} for name in names}, "required": [], "additionalProperties": False},
    }


async def test_a_task_that_does_not_fit_what_a_worker_declared_is_parked_until_one_comes_that_it_fits(http: Client, url: str) -> None:
    old = await register(http, handlers={"scale": _parameters("width")})
    another = await register(http, handlers={"scale": _parameters("width", "height")})
    narrow = (await http("POST", "/v1/tasks", {"handler": "scale", "payload": {"width": 1}}, status=201)).json["id"]
    wide = (await http("POST", "/v1/tasks", {"handler": "scale", "payload": {"width": 1, "height": 2}}, status=201)).json["id"]
    assert [item["id"] for item in await old.claim(limit=2)] == [narrow]
    task = (await http("GET", f"/v1/tasks/{wide}")).json
    assert (task["state"], task["parked"], task["attempt"], task["tries"]) == ("pending", True, 1, 0)
    assert "height" in task["error"]["message"]
    [reason] = [each for each in (await http("GET", f"/v1/tasks/{wide}/why")).json["items"] if each["kind"] == "parked"]
    assert "height" in reason["text"]
    assert [each["id"] for each in (await http("GET", "/v1/tasks?parked=true")).json["items"]] == [wide]
    assert await old.claim(limit=2) == []
    [item] = await another.claim(limit=2)
    assert (item["id"], item["attempt"]) == (wide, 2)
    assert await another.complete(item, outcome="succeeded") == ("accepted", "succeeded")


@pytest.mark.covers("ATF.4")
async def test_a_closed_gate_holds_for_pull_workers_too(http: Client, worker: PullWorker) -> None:
    [id] = await submit(http)
    gate = (await http("PUT", "/v1/gates/resize", {"action": "pause"})).json
    assert (gate["in_force"], gate["confirmed"]) == (True, [worker.id])
    assert await worker.claim() == []
    await http("DELETE", "/v1/gates/resize", status=204)
    assert [item["id"] for item in await worker.claim(wait=30)] == [id]


async def test_a_gate_that_comes_into_force_during_a_claim_takes_its_tasks_back(
    http: Client, worker: PullWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    [id] = await submit(http)
    store = http.server.app.store
    claim_for = store.claim_for

    async def overtaken(*arguments: Any) -> Claim:
        claim = await claim_for(*arguments)
        assert (await http.server.app.gates.pause("resize")).in_force
        return claim

    monkeypatch.setattr(store, "claim_for", overtaken)
    assert await worker.claim() == []
    assert (await task(http, id))["state"] == "pending"


# ---- how attempts end ----


@pytest.mark.covers("ATF.6")
async def test_the_end_of_an_attempt_is_stored_once(http: Client, worker: PullWorker) -> None:
    [id] = await submit(http)
    [item] = await worker.claim()
    assert await worker.complete(item, result={"pixels": 12}) == ("accepted", "succeeded")
    assert await worker.complete(item, result={"pixels": 13}) == ("already", "succeeded")
    assert (await task(http, id))["result"] == {"pixels": 12}


async def test_a_failure_is_tried_again_as_the_handler_or_the_task_says(http: Client) -> None:
    worker = await register(http, handlers={"resize": {"slots": 5, "retry": {"tries": 2, "base": 0}}})
    [usual] = await submit(http)
    [own] = await submit(http, retry={"tries": 1})
    error = {"type": "RangeError", "message": "too wide", "details": "at line 7", "location": "resize.js:7 in resize"}
    items = {item["id"]: item for item in await worker.claim(limit=5)}
    assert await worker.complete(items[usual], outcome="failed", error=error) == ("accepted", "pending")
    assert await worker.complete(items[own], outcome="failed", error=error) == ("accepted", "failed")
    [again] = await worker.claim(wait=30)
    assert (again["id"], again["attempt"], again["tries"]) == (usual, 2, 1)
    assert await worker.complete(again, outcome="failed", error=error) == ("accepted", "failed")
    stored = {
        "type": "RangeError",
        "message": "too wide",
        "traceback": "at line 7",
        "location": "resize.js:7 in resize",
        "fingerprint": fingerprint("resize", ErrorInfo("RangeError", "too wide", "", "resize.js:7 in resize"), None),
    }
    assert (await task(http, usual))["error"] == stored
    attempts = (await http("GET", f"/v1/tasks/{usual}/attempts")).json["items"]
    assert [(each["outcome"], each["worker"]) for each in attempts] == [("failed", worker.id)] * 2


async def test_a_fatal_failure_is_not_tried_again(http: Client, worker: PullWorker) -> None:
    await submit(http)
    [item] = await worker.claim()
    assert await worker.complete(item, outcome="failed", fatal=True) == ("accepted", "failed")


async def test_a_retry_uses_up_no_try(http: Client, worker: PullWorker) -> None:
    await submit(http, retry={"tries": 1})
    [item] = await worker.claim()
    assert await worker.complete(item, outcome="retry", delay=0, error={"message": "busy"}) == ("accepted", "pending")
    [again] = await worker.claim(wait=30)
    assert (again["attempt"], again["tries"]) == (2, 0)
    assert await worker.complete(again, outcome="retry") == ("accepted", "pending")


async def test_a_released_task_goes_back_at_once(http: Client, worker: PullWorker) -> None:
    await submit(http)
    [item] = await worker.claim()
    assert await worker.complete(item, outcome="released") == ("accepted", "pending")
    assert await worker.complete(item, outcome="released") == ("already", "pending")
    assert [each["attempt"] for each in await worker.claim()] == [2]


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"outcome": "failed", "result": 1}, "/result"),
        ({"fatal": True}, "/fatal"),
        ({"delay": 1}, "/delay"),
        ({"error": {}}, "/error"),
        ({"outcome": "lost"}, "/outcome"),
        ({"attempt": 0}, "/attempt"),
        ({"attempt": 2**31}, "/attempt"),
    ],
)
async def test_an_end_that_contradicts_itself_is_refused(http: Client, worker: PullWorker, body: Any, pointer: str) -> None:
    [id] = await submit(http)
    await worker.claim()
    problem = await http.problem("POST", f"/v1/tasks/{id}/complete", {"worker": worker.id, "attempt": 1, **body}, status=422)
    assert [error["pointer"] for error in problem["errors"]] == [pointer]
    assert (await task(http, id))["state"] == "running"


async def test_a_result_that_is_too_large_is_refused(http: Client, worker: PullWorker) -> None:
    [id] = await submit(http)
    await worker.claim()
    body = {"worker": worker.id, "attempt": 1, "result": "x" * 1_000_001}
    await http.problem("POST", f"/v1/tasks/{id}/complete", body, status=413)


async def test_nobody_else_can_end_an_attempt(http: Client, worker: PullWorker, app: App) -> None:
    other = await register(http)
    [id] = await submit(http)
    [item] = await worker.claim()
    assert await other.complete(item) == ("stale", "running")
    assert await PullWorker(http, UNKNOWN).complete(item) == ("stale", "running")
    assert await PullWorker(http, "\0").complete(item) == ("stale", "running")
    assert await worker.complete({**item, "attempt": 2}) == ("stale", "running")
    for unknown in (UNKNOWN, "nonsense", "%00", "%F0%9F%98%80"):
        await http.problem("POST", f"/v1/tasks/{unknown}/complete", {"worker": worker.id, "attempt": 1}, status=404)
    async with app.worker(handlers=["greet"]) as own:
        assert await PullWorker(http, own.id).complete(item) == ("stale", "running")
    assert await worker.complete(item) == ("accepted", "succeeded")
    assert (await task(http, id))["worker"] == worker.id


async def test_progress_is_shown_beside_the_task(http: Client, worker: PullWorker) -> None:
    [id] = await submit(http)
    [item] = await worker.claim()
    assert await worker.say("progress", item, fraction=0.25, text="a quarter") == {"verdict": "accepted", "cancelling": False}
    shown = await task(http, id)
    assert (shown["progress"], shown["progress_text"]) == (0.25, "a quarter")
    await http("POST", f"/v1/tasks/{id}/cancel")
    assert await worker.say("progress", item, fraction=0.5) == {"verdict": "accepted", "cancelling": True}
    await worker.complete(item, outcome="released")
    assert await worker.say("progress", item, fraction=0.75) == {"verdict": "stale", "cancelling": False}


async def test_what_an_attempt_prints_is_kept_while_it_runs(http: Client, worker: PullWorker) -> None:
    [id] = await submit(http)
    [item] = await worker.claim()
    for text in ("begun \N{SNOWMAN}\n", "", "halfway\0\n"):
        assert await worker.say("logs", item, text=text) == {"verdict": "accepted", "cancelling": False}
    await worker.complete(item)
    assert (await worker.say("logs", item, text="late\n"))["verdict"] == "stale"
    [output] = (await http("GET", f"/v1/tasks/{id}/logs")).json["items"]
    assert output["attempt"] == 1
    assert output["text"].startswith("begun \N{SNOWMAN}\nhalfway")
    assert "late" not in output["text"]


# ---- the lease ----


async def test_renewing_tells_what_to_stop(http: Client, worker: PullWorker) -> None:
    ids = await submit(http, 3)
    items = {item["id"]: item for item in await worker.claim(limit=3)}
    await http("POST", f"/v1/tasks/{ids[0]}/cancel")
    await worker.complete(items[ids[1]])
    told = await worker.renew(running=[*ids, "nonsense"])
    assert (told["cancelled"], told["lost"]) == ([ids[0]], [ids[1], "nonsense"])
    assert await worker.complete(items[ids[0]], outcome="released") == ("accepted", "cancelled")
    assert (await worker.renew())["cancelled"] == []
    [attempt] = (await http("GET", f"/v1/tasks/{ids[0]}/attempts")).json["items"]
    assert attempt["outcome"] == "cancelled"


async def test_what_never_reached_the_worker_goes_back_when_it_says_so(http: Client, worker: PullWorker) -> None:
    ids = await submit(http, 3)
    items = [await worker.claim(claim=number) for number in (1, 2, 3)]
    mine = [item["id"] for [item] in items]
    assert sorted(mine) == sorted(ids)
    # the answer to claim 1 was lost and never asked for again; that to claim 3 may be under way
    told = await worker.renew(running=[mine[1]], claim=2)
    assert told["lost"] == []
    states = [(await task(http, id))["state"] for id in mine]
    assert states == ["pending", "running", "running"]
    [again] = await worker.claim(claim=4)
    assert (again["id"], again["attempt"], again["tries"]) == (mine[0], 2, 0)


async def test_an_attempt_that_runs_too_long_is_ended_for_it(url: str, app: App) -> None:
    clock = ManualClock()
    async with app.using_store(store_from_url(url, clock=clock)), served(app) as http:
        worker = await register(http, handlers={"resize": {"timeout": 20, "retry": {"tries": 1}}})
        [id] = await submit(http)
        [item] = await worker.claim()
        clock.advance(19)
        assert (await worker.renew())["lost"] == []
        clock.advance(1)
        assert (await worker.renew())["lost"] == [id]
        ended = await task(http, id)
        assert (ended["state"], ended["error"]["type"]) == ("failed", "TimedOut")
        assert await worker.complete(item) == ("stale", "failed")


async def test_a_worker_that_leaves_gives_back_what_it_has(http: Client, worker: PullWorker) -> None:
    [id] = await submit(http)
    [item] = await worker.claim()
    await http("DELETE", f"/v1/workers/{worker.id}", status=204)
    back = await task(http, id)
    assert (back["state"], back["tries"]) == ("pending", 0)
    assert await worker.complete(item) == ("stale", "pending")
    for method, path in (("POST", "/renew"), ("POST", "/claim"), ("DELETE", "")):
        problem = await http.problem(method, f"/v1/workers/{worker.id}{path}", status=410)
        assert problem["type"] == "urn:duetime:problem:lease-over"


async def test_a_worker_of_our_own_is_nobody_elses_to_speak_for(http: Client, app: App) -> None:
    async with app.worker(handlers=["greet"]) as own:
        for method, path in (("POST", "/renew"), ("POST", "/claim"), ("DELETE", "")):
            await http.problem(method, f"/v1/workers/{own.id}{path}", status=404)
        assert [each["id"] for each in (await http("GET", "/v1/workers")).json["items"]] == [own.id]


@pytest.mark.parametrize(("id", "status"), [("nobody", 404), ("%00", 404), ("%F0%9F%98%80", 404), (UNKNOWN, 410)])
async def test_an_unknown_worker_is_told_to_register(http: Client, id: str, status: int) -> None:
    await http.problem("POST", f"/v1/workers/{id}/renew", status=status)


async def reap(app: App, seconds: float) -> int:
    """Run a reaper that has seen no beat for so long."""
    alarms = Alarms()
    reaper = Reaper(app.store, alarms, lease=15.0)
    taken = await watch(reaper, 1_000.0, 1_000.0 + seconds)
    alarms.close()
    return taken


async def test_a_worker_whose_lease_is_over_loses_its_tasks_and_its_word(http: Client, app: App) -> None:
    worker, other = await register(http, lease=10), await register(http, lease=60)
    [id] = await submit(http)
    [item] = await worker.claim()
    assert await reap(app, 9.9) == 0
    assert await reap(app, 10.1) == 1
    [again] = await other.claim()
    assert (again["id"], again["fence"]) == (id, 2)
    assert await worker.complete(item, result="late") == ("stale", "running")
    await http.problem("POST", f"/v1/workers/{worker.id}/renew", status=410)
    assert await other.complete(again, result="new") == ("accepted", "succeeded")
    assert (await task(http, id))["result"] == "new"


async def test_any_server_renews_any_worker(http: Client, app: App, url: str) -> None:
    worker = await register(http, lease=10)
    await submit(http)
    [item] = await worker.claim()
    async with served(App(url)) as other:
        alarms = Alarms()
        reaper = Reaper(app.store, alarms, lease=15.0)
        for second in range(0, 60, 9):
            assert await watch(reaper, second, second + 9) == 0
            await worker.renew(at=other)
        alarms.close()
        assert await worker.complete(item, at=other) == ("accepted", "succeeded")


# ---- who may ----


async def test_a_token_works_for_its_handlers_only(app: App) -> None:
    async with app:
        resizer = (await app.tokens.create("resizer", scopes=["work"], handlers=["resize"])).token
        admin = (await app.tokens.create("admin", scopes=["admin"])).token
        submitter = (await app.tokens.create("submitter", scopes=["submit"])).token
        async with served(app) as anybody:
            http, all_powerful = anybody.bearing(resizer), anybody.bearing(admin)
            await anybody.bearing(submitter).problem("POST", "/v1/workers", {"handlers": {"resize": {}}}, status=403)
            await http.problem("POST", "/v1/workers", {"handlers": {"resize": {}, "greet": {}}}, status=403)
            own, foreign = await register(http), await register(all_powerful, handlers={"greet": {}, "resize": {}})
            listed = (await http("GET", "/v1/workers")).json["items"]
            assert [(each["host"], each["slots"], each["running"]) for each in listed] == [
                ("resizer", {"resize": 10}, 0),
                ("admin", {"resize": 1}, None),  # what runs there may be of the other handler
            ]
            for method, path in (("POST", "/renew"), ("POST", "/claim"), ("DELETE", "")):
                await http.problem(method, f"/v1/workers/{foreign.id}{path}", status=410)
            greeting = (await all_powerful.submit())["id"]
            body = {"worker": own.id, "attempt": 1}
            await http.problem("POST", f"/v1/tasks/{greeting}/complete", body, status=404)
            await http.problem("POST", f"/v1/tasks/{greeting}/progress", {**body, "fraction": 0.5}, status=404)
            await submit(all_powerful)
            [item] = await own.claim()
            assert await own.complete(item) == ("accepted", "succeeded")


async def test_the_largest_claim_number_is_one_that_every_language_can_hold(http: Client, worker: PullWorker) -> None:
    await submit(http, 2)
    assert len(await worker.claim(claim=MOST_NUMBER)) == 1
    await http.problem("POST", f"/v1/workers/{worker.id}/claim", {"claim": MOST_NUMBER + 1}, status=422)


# ---- the examples ----


def examples() -> list[Sequence[str]]:
    """Return the examples that can run here; the summary of the run says which."""
    found = [example()] if node() else []
    return [*found, SHELL_COMMAND] if shutil.which("curl") else found


@pytest.fixture
async def plain(tmp_path: Path) -> AsyncIterator[Client]:
    async with served(new_app(f"sqlite:///{tmp_path}/store.db")) as client:
        yield client


@pytest.mark.slow
async def test_the_examples_run_tasks_and_leave(plain: Client) -> None:
    for command in examples():
        async with program(command, plain.url) as running:
            id = (await plain("POST", "/v1/tasks", {"handler": "resize", "payload": {"width": 3, "height": 4}}, status=201)).json["id"]
            done = (await plain("GET", f"/v1/tasks/{id}", wait=30)).json
            assert (done["state"], done["result"], done["worker"]) == ("succeeded", {"pixels": 12}, running.id)
            running.signal(signal.SIGTERM)
            assert await asyncio.wait_for(running.process.wait(), PATIENCE) == 0
            assert (await plain("GET", "/v1/workers")).json["items"] == []


async def test_the_example_in_javascript_has_at_most_sixty_lines() -> None:
    assert len((EXAMPLES / "pull_worker.mjs").read_text().splitlines()) <= 60


@pytest.mark.slow
async def test_the_example_in_javascript_fails_and_stops_when_told(plain: Client) -> None:
    if node() is None:
        return  # the summary of the run says so
    async with program(example(), plain.url) as running:
        await plain.problem("POST", "/v1/tasks", {"handler": "resize", "payload": {"width": 3}}, status=422)
        payload = {"width": -1, "height": 4}
        bad = (await plain("POST", "/v1/tasks", {"handler": "resize", "payload": payload}, status=201, wait=30)).json
        assert (bad["state"], bad["error"]["type"], bad["attempt"]) == ("failed", "RangeError", 1)
        slow = {"handler": "resize", "payload": {"width": 3, "height": 4, "pause": 600}}
        id = (await plain("POST", "/v1/tasks", slow, status=201)).json["id"]

        async def reported() -> bool:
            return bool((await task(plain, id))["progress_text"] == "halfway")

        await until(reported, "the task has told of its progress")
        await plain("POST", f"/v1/tasks/{id}/cancel")
        assert (await plain("GET", f"/v1/tasks/{id}", wait=30)).json["state"] == "cancelled"
        id = (await plain("POST", "/v1/tasks", slow, status=201)).json["id"]
        await until(reported, "the second task has told of its progress")
        running.signal(signal.SIGTERM)
        assert await asyncio.wait_for(running.process.wait(), PATIENCE) == 0
        back = await task(plain, id)
        assert (back["state"], back["tries"]) == ("pending", 0)


async def test_a_result_that_is_not_json_uses_up_a_try_of_the_shells_worker_and_it_goes_on(plain: Client) -> None:
    if shutil.which("curl") is None:
        return  # the summary of the run says so
    says_what_it_got = (*SHELL_COMMAND[:2], "sh", "-c", """case $(cat) in *'"bad":"json"'*) echo sorry ;; *'"bad":"size"'*)
        printf '"'; head -c 1100000 /dev/zero | tr '\\0' x; printf '"' ;; *) echo 12 ;; esac""")  # fmt: skip
    async with program(says_what_it_got, plain.url):
        for bad in ("json", "size"):
            await fails_by_refusal(plain, {"bad": bad})
        good = (await plain("POST", "/v1/tasks", {"handler": "resize", "payload": {}}, status=201, wait=30)).json
        assert (good["state"], good["result"]) == ("succeeded", 12)


async def test_a_result_that_is_too_large_uses_up_a_try_of_the_javascript_worker_and_it_goes_on(plain: Client, tmp_path: Path) -> None:
    if node() is None:
        return  # the summary of the run says so
    text = (EXAMPLES / "pull_worker.mjs").read_text()
    wide = tmp_path / "wide.mjs"
    wide.write_text(text.replace("pixels: width * height", 'pixels: "x".repeat(width)'))
    async with program((example()[0], str(wide)), plain.url):
        await fails_by_refusal(plain, {"width": 1_100_000, "height": 1})
        payload = {"width": 3, "height": 1}
        good = (await plain("POST", "/v1/tasks", {"handler": "resize", "payload": payload}, status=201, wait=30)).json
        assert (good["state"], good["result"]) == ("succeeded", {"pixels": "xxx"})


async def fails_by_refusal(http: Client, payload: Any) -> None:
    """Submit a task with one try whose result the server refuses."""
    body = {"handler": "resize", "payload": payload, "retry": {"tries": 1}}
    bad = (await http("POST", "/v1/tasks", body, status=201, wait=30)).json
    assert (bad["state"], bad["error"]["type"], bad["tries"]) == ("failed", "Refused", 1)
