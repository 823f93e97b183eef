"""Reading and changing tasks over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from duetime import App
from duetime.ids import new_id
from tests.api.conftest import Client, served, until
from tests.servers.telling import declare_telling
from tests.servers.waiting import PATIENCE


async def finish(app: App, http: Client, *ids: str) -> None:
    async with app.worker():
        for task_id in ids:
            await http("GET", f"/v1/tasks/{task_id}", wait=30)


async def test_lists_are_filtered_and_paged(app: App) -> None:
    async with served(app) as http:
        for number in range(5):
            await http.submit(delay=60 + number, collection="eu" if number % 2 else "us")
        keyed = await http.submit("anything", key="k", delay=60)
        failed = await http.submit("fail", payload={"text": "no <b>luck</b>"})
        await finish(app, http, failed["id"])

        async def ids(**filters: Any) -> list[str]:
            return [task["id"] for task in (await http("GET", "/v1/tasks", **filters)).json["items"]]

        assert len(await ids()) == 7
        assert await ids(handler="anything") == await ids(key="k") == [keyed["id"]]
        assert (
            await ids(state="failed")
            == await ids(error="no <b>luck</b>")
            == await ids(finished_after="2020-01-01T00:00:00Z")
            == [failed["id"]]
        )
        assert len(await ids(collection="eu")) == 2
        assert await ids(schedule="none") == await ids(due_after="2099-01-01T00:00:00Z") == await ids(retrying="true") == []
        assert len(await ids(due_before="2099-01-01T00:00:00+02:00", submitted_after="2020-01-01T00:00:00Z")) == 7
        met: list[str] = []
        cursor: dict[str, Any] = {}
        while True:
            page = (await http("GET", "/v1/tasks", limit=3, **cursor)).json
            met += [task["id"] for task in page["items"]]
            if page["next"] is None:
                break
            cursor = {"cursor": page["next"]}
        assert met == await ids()


async def test_waiting_answers_when_the_task_is_final(app: App) -> None:
    async with served(app) as http:
        ids = [(await http.submit())["id"] for _ in range(10)]
        waits = [asyncio.create_task(http("GET", f"/v1/tasks/{task_id}", wait=30)) for task_id in ids]
        await asyncio.sleep(0)
        async with app.worker():
            tasks = [(await wait).json for wait in waits]
        assert {task["state"] for task in tasks} == {"succeeded"}


async def test_waiting_answers_with_the_present_state_when_the_time_is_over(http: Client) -> None:
    task = await http.submit(delay=60)
    assert (await http("GET", f"/v1/tasks/{task['id']}", wait=0.05)).json == task
    await http.problem("GET", f"/v1/tasks/{task['id']}", status=422, wait=61)


async def test_an_unchanged_task_is_not_sent_again(http: Client) -> None:
    task = await http.submit(delay=60)
    first = await http("GET", f"/v1/tasks/{task['id']}")
    same = await http("GET", f"/v1/tasks/{task['id']}", status=304, headers={"If-None-Match": f'"x", {first.headers["etag"]}'})
    assert (same.data, same.headers["etag"]) == (b"", first.headers["etag"])
    await http("PATCH", f"/v1/tasks/{task['id']}", {"priority": 1})
    await http("GET", f"/v1/tasks/{task['id']}", status=200, headers={"If-None-Match": first.headers["etag"]})


async def test_a_waiting_task_is_changed(http: Client) -> None:
    task = await http.submit(delay=60)
    body = {"due_at": "2031-01-01T00:00:00Z", "priority": 0, "collection": "eu"}
    changed = await http("PATCH", f"/v1/tasks/{task['id']}", body)
    assert {name: changed.json[name] for name in body} == body
    assert (await http("GET", f"/v1/tasks/{task['id']}")).headers["etag"] == changed.headers["etag"]
    await http.problem("PATCH", f"/v1/tasks/{task['id']}", {}, status=422)
    await http.problem("PATCH", f"/v1/tasks/{task['id']}", {"delay": 1, "due_at": "2031-01-01T00:00:00Z"}, status=422)
    await http.problem("PATCH", f"/v1/tasks/{new_id()}", {"priority": 1}, status=404)


async def test_of_two_changes_that_expect_the_same_task_one_is_refused(http: Client) -> None:
    task = await http.submit(delay=60)
    path = f"/v1/tasks/{task['id']}"
    tag = (await http("GET", path)).headers["etag"]
    answers = await asyncio.gather(
        *(http("PATCH", path, {"priority": number}, status=None, headers={"If-Match": tag}) for number in (1, 2, 3))
    )
    assert sorted(answer.status for answer in answers) == [200, 412, 412]
    refused = next(answer for answer in answers if answer.status == 412)
    assert refused.json["type"] == "urn:duetime:problem:precondition-failed"
    await http("PATCH", path, {"priority": 4}, headers={"If-Match": refused.headers["etag"]})
    await http("PATCH", path, {"priority": 5}, headers={"If-Match": "*"})


async def test_a_task_is_cancelled_and_retried(app: App) -> None:
    async with served(app) as http:
        path = f"/v1/tasks/{(await http.submit(delay=60))['id']}"
        assert (await http("POST", f"{path}/cancel")).json["answer"] == "cancelled"
        assert (await http("POST", f"{path}/cancel", {})).json["answer"] == "finished"
        await http.problem("PATCH", path, {"priority": 1}, status=409)
        assert (await http("POST", f"{path}/retry")).json["state"] == "pending"
        await http.problem("POST", f"{path}/retry", status=409)
        await finish(app, http, path.rpartition("/")[2])
        await http.problem("POST", f"{path}/retry", status=409)
        for verb in ("cancel", "retry"):
            await http.problem("POST", f"/v1/tasks/{new_id()}/{verb}", status=404)


async def test_a_task_is_deleted_unless_it_runs(app: App) -> None:
    started, over = asyncio.Event(), asyncio.Event()

    @app.task
    async def last() -> None:
        started.set()
        await over.wait()

    async with served(app) as http:
        waiting = f"/v1/tasks/{(await http.submit(delay=60))['id']}"
        running = f"/v1/tasks/{(await http.submit('last', payload={}))['id']}"
        async with app.worker():
            await asyncio.wait_for(started.wait(), PATIENCE)
            problem = await http.problem("DELETE", running, status=409)
            assert "is running and cannot be deleted" in problem["detail"]
            over.set()
            await http("GET", running, wait=30)
        for path in (waiting, running):
            await http("DELETE", path, status=204)
            await http.problem("GET", path, status=404)
            await http.problem("DELETE", path, status=404)
        told = [(each.action, each.subject, each.outcome) for each in (await app.tokens.audit.list(action="tasks.delete")).items]
        names = [path.rpartition("/")[2] for path in (running, waiting)]
        assert sorted(told) == sorted(
            ("tasks.delete", name, outcome)
            for name, outcome in zip([*names, *names, names[0]], ["done", "done", "refused", "refused", "refused"], strict=True)
        )


async def test_many_tasks_are_changed_by_a_filter(http: Client) -> None:
    for number in range(4):
        await http.submit(delay=60, key=f"order-{number}", collection="eu")
    dry = (await http("POST", "/v1/tasks/cancel", {"collection": "eu", "dry_run": True})).json
    assert dry == {"matched": 4, "answers": {}, "dry_run": True, "operation": None}
    edited = (await http("POST", "/v1/tasks/edit", {"collection": "eu", "set": {"collection": "us", "priority": 9}})).json
    assert (edited["matched"], edited["answers"], edited["operation"]["state"]) == (4, {"changed": 4}, "done")
    one = (await http("POST", "/v1/tasks/cancel", {"handler": "greet", "key": "order-0"})).json
    assert one["answers"] == {"cancelled": 1}
    assert (await http("POST", "/v1/tasks/cancel", {"collection": "us"})).json["answers"] == {"cancelled": 3}
    assert (await http("POST", "/v1/tasks/retry", {"handler": "greet", "state": "cancelled"})).json["answers"] == {"changed": 4}
    for verb in ("cancel", "retry"):
        await http.problem("POST", f"/v1/tasks/{verb}", {}, status=422)
    await http.problem("POST", "/v1/tasks/edit", {"handler": "greet", "set": {}}, status=422)
    problem = await http.problem("POST", "/v1/tasks/edit", {"handler": "greet", "set": {"priority": 10}}, status=422)
    assert problem["errors"][0]["pointer"] == "/set/priority"


async def test_attempts_output_and_reasons_are_told(app: App) -> None:
    async with served(app) as http:
        task_id = (await http.submit())["id"]
        path = f"/v1/tasks/{task_id}"
        [reason] = (await http("GET", f"{path}/why")).json["items"]
        assert reason["kind"] == "no_worker"
        assert (await http("GET", f"{path}/logs")).json == {"items": [], "next": None}
        await finish(app, http, task_id)
        [attempt] = (await http("GET", f"{path}/attempts")).json["items"]
        assert (attempt["attempt"], attempt["outcome"]) == (1, "succeeded")
        [reason] = (await http("GET", f"{path}/why")).json["items"]
        assert reason["kind"] == "finished"

        async def written() -> bool:
            items: list[Any] = (await http("GET", f"{path}/logs", attempt=1)).json["items"]
            return items == [{"attempt": 1, "text": "hello Ada\n", "whole": True, "error": None}]

        await until(written, "the output is there")
        assert (await http("GET", f"{path}/logs", attempt=2)).json["items"] == []
        for part in ("attempts", "logs", "why"):
            await http.problem("GET", f"/v1/tasks/{new_id()}/{part}", status=404)


async def test_the_detail_of_an_attempt_is_told(app: App) -> None:
    declare_telling(app, "ring", {"status": 204, "phases": {"dns": 0.002}})
    async with served(app) as http:
        told, silent = (await http.submit("ring"))["id"], (await http.submit())["id"]
        await finish(app, http, told, silent)
        details = [(await http("GET", f"/v1/tasks/{task_id}/attempts")).json["items"][0]["detail"] for task_id in (told, silent)]
    assert details == [{"status": 204, "phases": {"dns": 0.002}}, None]


@pytest.mark.parametrize("wrong", ["x", "0198c2f4", "../../etc/passwd", "%27%20or%201=1--", "0198C2F4-5D1E-7A3B-8C21-5F0E9D3A7B46"])
async def test_what_is_no_id_is_not_found(http: Client, wrong: str) -> None:
    await http.problem("GET", f"/v1/tasks/{wrong.replace('/', '%2F')}", status=404)


async def test_a_query_is_a_filter_of_lists_counts_and_verbs(http: Client) -> None:
    one = await http.submit(delay=60, meta={"tenant": "acme"}, priority=8)
    await http.submit(delay=60)
    found = (await http("GET", "/v1/tasks", q="state:pending,running meta.tenant:acme priority:>=7", handler="gr*")).json
    assert ([task["id"] for task in found["items"]], found["next"], found["looked"]) == ([one["id"]], None, None)
    assert (await http("GET", "/v1/tasks/count", q="handler:greet")).json == {"count": 2, "more": False}
    assert (await http("GET", "/v1/tasks/count", q="handler:greet", limit=1)).json == {"count": 1, "more": True}
    cut = (await http("GET", "/v1/tasks", q="meta.tenant:acme", scan=1)).json
    assert (cut["items"], cut["looked"]) == ([], 1)
    done = (await http("POST", "/v1/tasks/cancel", {"q": "meta.tenant:acme"})).json
    assert done["answers"] == {"cancelled": 1}


async def test_a_query_that_cannot_be_read_says_where(http: Client) -> None:
    problem = await http.problem("GET", "/v1/tasks", status=422, q="handler:greet stat:failed")
    assert "the query cannot be read at character 15 ('stat:failed'): there is no term 'stat'" in problem["detail"]
    problem = await http.problem("GET", "/v1/tasks", status=422, q="handler:greet", handler="fail")
    assert "handler is given both in the query and beside it" in problem["detail"]


async def test_a_brief_list_has_neither_long_payloads_nor_tracebacks(http: Client) -> None:
    await http.submit(delay=60, payload={"name": "x" * 10_000})
    [task] = (await http("GET", "/v1/tasks", brief="true")).json["items"]
    assert task["payload"] == {"…": '{"name":"' + "x" * 291}
