"""Submitting tasks over HTTP: one, many, and the same one twice."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NoReturn

import msgspec
import pytest

from duetime import App
from duetime.errors import StoreUnavailable
from duetime.ids import is_id, key_shard, shard_of
from duetime.store.requests import Requested
from tests.api.conftest import Client, new_app, served


async def test_a_task_is_stored_and_has_an_address(http: Client) -> None:
    answer = await http("POST", "/v1/tasks", {"handler": "greet", "payload": {"name": "Ada"}, "delay": 1800, "key": "k"}, status=201)
    task = answer.json
    assert is_id(task["id"])
    assert answer.headers["location"] == f"/v1/tasks/{task['id']}"
    assert (task["state"], task["key"], task["submitted_by"], task["payload"]) == ("pending", "k", "anna@shop", {"name": "Ada"})
    assert task["due_at"].endswith("Z")
    again = await http("GET", answer.headers["location"])
    assert again.json == task
    assert again.headers["etag"] == answer.headers["etag"]


async def test_all_options_of_a_task_are_taken_over(http: Client) -> None:
    task = await http.submit(
        due_at="2031-05-06T07:08:09+02:00", key="ключ", collection="eu", priority=9, timeout=12.5, expires=60,
        retry={"tries": 3, "base": 2}, meta={"tenant": "café"},
    )  # fmt: skip
    assert (task["due_at"], task["expires_at"]) == ("2031-05-06T05:08:09Z", "2031-05-06T05:09:09Z")
    assert (task["key"], task["collection"], task["priority"], task["timeout"]) == ("ключ", "eu", 9, 12.5)
    assert (task["retry"]["tries"], task["retry"]["base"], task["meta"]) == (3, 2.0, {"tenant": "café"})
    assert (await http.submit(expires="2031-01-01T00:00:00Z"))["expires_at"] == "2031-01-01T00:00:00Z"


async def test_a_server_without_the_handlers_code_knows_what_workers_declared(foreign: Client) -> None:
    assert (await foreign.submit("anything", payload={"value": [1]}))["priority"] == 8
    problem = await foreign.problem("POST", "/v1/tasks", {"handler": "greet", "payload": {"nam": "Ada"}}, status=422)
    assert problem["errors"][0]["pointer"] == "/payload/name"
    problem = await foreign.problem("POST", "/v1/tasks", {"handler": "great"}, status=404)
    assert problem["errors"][0]["pointer"] == "/handler"
    assert "did you mean greet?" in problem["detail"]


async def test_a_key_that_is_held_is_answered_as_if_exists_says(http: Client) -> None:
    first = await http.submit(key="order-7", delay=60)
    problem = await http.problem("POST", "/v1/tasks", {"handler": "greet", "payload": {"name": "Bob"}, "key": "order-7"}, status=409)
    assert (problem["type"], problem["task_id"]) == ("urn:duetime:problem:duplicate-key", first["id"])
    assert (await http.submit(key="order-7", if_exists="keep", status=200))["id"] == first["id"]
    replaced = await http.submit(key="order-7", if_exists="replace", priority=2, status=200)
    assert (replaced["id"], replaced["priority"]) == (first["id"], 2)


async def test_few_tasks_are_made_of_many_submissions(http: Client) -> None:
    first = await http.submit(key="doc-7", debounce=30, max_wait=300)
    second = await http.submit(key="doc-7", debounce=30, max_wait=300, payload={"name": "Bob"}, status=200)
    assert (second["id"], second["payload"], second["merged"]["submissions"]) == (first["id"], {"name": "Bob"}, 2)
    assert second["merged"]["latest_at"].endswith("Z")
    opened = await http.submit(key="host-7", throttle=60)
    assert (await http.submit(key="host-7", throttle=60, status=200))["id"] == opened["id"]
    body = {"handler": "greet", "payload": {"name": "Ada"}}
    for wrong in ({"debounce": 5}, {"key": "k", "debounce": 5, "delay": 5}, {"key": "k", "debounce": 5, "throttle": 5}):
        await http.problem("POST", "/v1/tasks", body | wrong, status=422)
    items = [body | {"key": "host-7", "throttle": 60}, body | {"key": "doc-9", "if_exists": "queue_one"}]
    answer = (await http("POST", "/v1/tasks/batch", items)).json
    assert [item["verdict"] for item in answer["items"]] == ["kept", "added"]


async def test_waiting_for_a_submitted_task_gives_its_result(app: App) -> None:
    async with app.worker(), served(app) as http:
        task = (await http("POST", "/v1/tasks", {"handler": "greet", "payload": {"name": "Ada"}}, status=201, wait=30)).json
    assert (task["state"], task["result"]) == ("succeeded", "hello Ada")


# ---- Idempotency-Key ----


async def with_key(http: Client, name: str, status: int | None, /, **fields: Any) -> Any:
    body = {"handler": "greet", "payload": {"name": "Ada"}, **fields}
    return await http("POST", "/v1/tasks", body, status=status, headers={"Idempotency-Key": name})


@pytest.mark.parametrize("key", ["order 7, first try", "5f0e9d3a-7b46-4c21-8d1e-0198c2f45d1e", "0198c2f4-5d1e-7a3b-8c21-5f0e9d3a7b46"])
async def test_the_same_request_again_is_the_same_task(http: Client, key: str) -> None:
    first = await with_key(http, key, 201, delay=60)
    second = await with_key(http, key, 201, delay=60)
    assert second.json == first.json
    assert second.headers["location"] == first.headers["location"]
    assert "idempotency-replayed" not in first.headers
    assert second.headers["idempotency-replayed"] == "true"
    other = await with_key(http, key, 422, delay=61)
    assert other.json["type"] == "urn:duetime:problem:idempotency-key-reused"
    await with_key(http, key, 422, delay=60, key="another")
    assert len((await http("GET", "/v1/tasks")).json["items"]) == 1


async def test_the_body_counts_and_not_how_it_is_written(http: Client) -> None:
    texts = [
        '{"handler":"greet","payload":{"name":"Ada","times":2}}',
        '{ "payload": {"times": 2, "name": "\\u0041da"}, "handler": "greet" }',
    ]
    headers = {"Idempotency-Key": "k", "Content-Type": "application/json"}
    ids = {(await http("POST", "/v1/tasks", data=text, status=201, headers=headers)).json["id"] for text in texts}
    assert len(ids) == 1


async def test_a_task_that_has_ended_is_remembered(app: App) -> None:
    await it_is_remembered(app)


async def test_a_task_that_has_ended_is_remembered_on_postgres_too(postgres_url: str) -> None:
    await it_is_remembered(new_app(postgres_url))


async def it_is_remembered(app: App) -> None:
    async with served(app) as http:
        for name in ("any text", "0198c2f4-5d1e-7a3b-8c21-5f0e9d3a7b46"):
            first = await with_key(http, name, 201)
            assert (await with_key(http, name, 201)).json == first.json
            async with app.worker():
                await http("GET", f"/v1/tasks/{first.json['id']}", wait=30)
            again = await with_key(http, name, 201)
            assert (again.json["id"], again.json["state"]) == (first.json["id"], "succeeded")
            await with_key(http, name, 422, delay=60)


async def test_repeats_at_the_same_time_store_one_task(http: Client) -> None:
    answers = await asyncio.gather(*(with_key(http, "k", 201) for _ in range(20)))
    assert len({answer.json["id"] for answer in answers}) == 1
    assert [answer.headers.get("idempotency-replayed") for answer in answers].count(None) == 1


@pytest.mark.parametrize("if_exists", ["keep", "replace"])
async def test_a_repeat_has_the_status_of_the_first_answer(http: Client, if_exists: str) -> None:
    holder = await with_key(http, "first", 201, key="order-7", delay=60)
    for _ in range(2):
        await with_key(http, "first", 201, key="order-7", delay=60)
        again = await with_key(http, "second", 200, key="order-7", delay=60, if_exists=if_exists)
        assert again.json["id"] == holder.json["id"]
    assert again.headers["idempotency-replayed"] == "true"


async def test_repeats_at_the_same_time_of_a_request_that_keeps_a_task_are_answered(http: Client) -> None:
    holder = await with_key(http, "first", 201, key="order-7", delay=60)
    answers = await asyncio.gather(*(with_key(http, "k", 200, key="order-7", delay=60, if_exists="keep") for _ in range(20)))
    assert {answer.json["id"] for answer in answers} == {holder.json["id"]}
    assert [answer.headers.get("idempotency-replayed") for answer in answers].count(None) == 1


async def test_a_key_that_is_too_long_is_refused(http: Client) -> None:
    await with_key(http, "x" * 256, 422)


async def test_the_id_lies_in_the_shard_of_the_tasks_own_key(http: Client) -> None:
    for number in range(3):
        task = (await with_key(http, f"request {number}", 201, key=f"order-{number}")).json
        assert shard_of(task["id"]) == key_shard("greet", f"order-{number}")


async def test_a_request_whose_answer_was_lost_is_completed_by_a_repeat(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(app) as http:
        with monkeypatch.context() as broken:
            add = app.store.add_requested

            async def lose_the_answer(requested: Sequence[Requested]) -> NoReturn:
                await add(requested)
                raise StoreUnavailable("the store went away after the commit")

            broken.setattr(app.store, "add_requested", lose_the_answer)
            await with_key(http, "k", 503, delay=60)
        [task] = (await http("GET", "/v1/tasks")).json["items"]
        await with_key(http, "k", 422, delay=61)
        again = await with_key(http, "k", 201, delay=60)
        assert (again.json["id"], again.headers["idempotency-replayed"]) == (task["id"], "true")
        assert len((await http("GET", "/v1/tasks")).json["items"]) == 1


async def test_a_request_that_was_not_stored_may_be_corrected(app: App) -> None:
    async with served(app) as http:
        await with_key(http, "k", 404, handler="great")
        await with_key(http, "k", 422, payload={"nam": "Ada"})
        await with_key(http, "another", 201, key="order-7", delay=60)
        await with_key(http, "k", 409, key="order-7", delay=60)
        await with_key(http, "k", 201, key="order-8", delay=60)


async def test_a_repeat_of_a_request_that_kept_a_task_is_answered_with_that_one(app: App) -> None:
    async with served(app) as http:
        kept = (await http.submit(key="order-7", delay=60))["id"]
        assert (await with_key(http, "k", 200, key="order-7", if_exists="keep")).json["id"] == kept
        await http("POST", f"/v1/tasks/{kept}/cancel")
        assert (await with_key(http, "k", None, key="order-7", if_exists="keep")).json["id"] == kept
        assert len((await http("GET", "/v1/tasks")).json["items"]) == 1


async def test_after_a_day_a_key_may_stand_for_another_request(app: App) -> None:
    async with served(app) as http:
        first = await with_key(http, "k", 201, delay=60)
        await app.store.prune_requests(app.store.now() + 1, 10)
        assert (await with_key(http, "k", 201, delay=61)).json["id"] != first.json["id"]


async def test_other_writes_refuse_the_key(http: Client) -> None:
    task = await http.submit(delay=60)
    for method, path, body in (
        ("POST", f"/v1/tasks/{task['id']}/cancel", None),
        ("PATCH", f"/v1/tasks/{task['id']}", {"priority": 1}),
        ("POST", "/v1/tasks/batch", []),
        ("PUT", "/v1/gates/greet", {"action": "pause"}),
    ):
        problem = await http.problem(method, path, body, status=400, headers={"Idempotency-Key": "k"})
        assert problem["errors"][0]["parameter"] == "Idempotency-Key"


# ---- batches ----


async def test_each_task_of_a_batch_has_its_verdict(http: Client) -> None:
    held = await http.submit(key="held", delay=60)
    batch = [
        {"handler": "greet", "payload": {"name": "Ada"}},
        {"handler": "greet", "payload": {"nam": "Ada"}},
        {"handler": "nobody", "payload": {}},
        {"handler": "greet", "payload": {"name": "Ada"}, "key": "held"},
        {"handler": "greet", "payload": {"name": "Ada"}, "key": "held", "if_exists": "keep"},
        {"handler": "greet", "payload": {"name": "Ada"}, "priorty": 3},
        7,
        {"handler": "greet", "payload": {"name": "Ada"}, "delay": 60, "due_at": "2031-01-01T00:00:00Z"},
        {"handler": "greet", "payload": {"name": "Bob"}, "delay": 60},
    ]
    answer = (await http("POST", "/v1/tasks/batch", batch)).json
    verdicts = [item["verdict"] for item in answer["items"]]
    assert verdicts == ["added", "refused", "refused", "duplicate", "kept", "refused", "refused", "refused", "added"]
    assert answer["counts"] == {"added": 2, "refused": 5, "duplicate": 1, "kept": 1}
    assert answer["items"][3]["id"] == answer["items"][4]["id"] == held["id"]
    pointers = [item["problem"]["errors"][0].get("pointer") for item in answer["items"] if item["verdict"] == "refused"]
    assert pointers == ["/payload/nam", "/handler", "/priorty", "", "/delay"]
    assert len((await http("GET", "/v1/tasks")).json["items"]) == 3


async def test_a_batch_may_come_line_by_line(foreign: Client) -> None:
    lines = b"\n".join([b'{"handler": "greet", "payload": {"name": "Ada"}}', b"", b"{broken", b'{"handler": "anything"}', b""])
    answer = (await foreign("POST", "/v1/tasks/batch", data=lines, headers={"Content-Type": "application/x-ndjson"})).json
    assert [item["verdict"] for item in answer["items"]] == ["added", "refused", "added"]
    assert answer["items"][1]["problem"]["type"] == "urn:duetime:problem:malformed-body"


async def test_ten_thousand_tasks_fit_into_one_request(http: Client) -> None:
    await ten_thousand(http)


async def test_ten_thousand_tasks_are_checked_without_the_handlers_code(foreign: Client) -> None:
    await ten_thousand(foreign)


async def ten_thousand(http: Client) -> None:
    task = {"handler": "greet", "payload": {"name": "Ada"}, "delay": 3600}
    answer = (await http("POST", "/v1/tasks/batch", [task] * 10_000)).json
    assert answer["counts"] == {"added": 10_000}
    assert (await http("GET", "/v1/stats")).json["states"]["pending"] == 10_000
    await http.problem("POST", "/v1/tasks/batch", [task] * 10_001, status=413)


async def test_single_submits_at_the_same_time_share_commits(app: App) -> None:
    async with served(app) as http:
        adds: list[int] = []
        add = app.store.add

        async def counted(tasks: Any) -> Any:
            adds.append(len(tasks))
            return await add(tasks)

        app.store.add = counted  # type: ignore[method-assign]  # a look at the real verb, which does the work
        bodies = [{"handler": "greet", "payload": {"name": "Ada"}} if number % 10 else {"handler": "greet"} for number in range(100)]
        answers = await asyncio.gather(*(http("POST", "/v1/tasks", body, status=None) for body in bodies))
    assert [answer.status for answer in answers] == [201 if number % 10 else 422 for number in range(100)]
    assert sum(adds) == 90
    assert len(adds) < 60
    assert msgspec.json.decode(answers[1].data)["state"] == "pending"


async def test_a_task_that_needs_others_waits_for_them(http: Client) -> None:
    first, second = await http.submit(delay=60), await http.submit(delay=60)
    task = await http.submit(needs=[first["id"], {"ended": second["id"]}])
    assert task["state"] == "blocked"
    [reason, *_] = (await http("GET", f"/v1/tasks/{task['id']}/why")).json["items"]
    assert reason["kind"] == "blocked"
    assert f"{first['id']} of greet (pending) to succeed and task {second['id']} of greet (pending) to end" in reason["text"]


async def test_what_is_not_there_cannot_be_needed(http: Client) -> None:
    missing, known = "01890000-0000-7000-8000-000000000000", (await http.submit(delay=60))["id"]
    body = {"handler": "greet", "payload": {"name": "Ada"}}
    problem = await http.problem("POST", "/v1/tasks", {**body, "needs": [known, {"ended": missing}]}, status=404)
    assert problem["errors"][0]["pointer"] == "/needs/1"
    assert f"there is no task {missing}" in problem["detail"]
    batch = await http("POST", "/v1/tasks/batch", [body, {**body, "needs": [missing]}, {**body, "needs": [known]}])
    assert [item["verdict"] for item in batch.json["items"]] == ["added", "refused", "added"]
    assert batch.json["items"][1]["problem"]["errors"][0]["pointer"] == "/needs/0"
    for needs in (known, ["x"], [{"ends": known}], [7]):
        assert (await http.problem("POST", "/v1/tasks", {**body, "needs": needs}, status=422))["errors"][0]["pointer"].startswith("/needs")
