"""Failures by kind: over HTTP, through an App at a server, and in the store's own App, with tokens that see their handlers only."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from duetime import App, FailureNotFound, InvalidValue, RetryPolicy
from tests.api.conftest import Client, new_app, served
from tests.api.pulling import PullWorker, register
from tests.api.test_tokens import Bearer, acts, bearer  # noqa: F401  # a fixture

UNKNOWN = "0" * 16


async def fail(app: App, *texts: str) -> list[str]:
    """Let tasks of `fail` run and fail; return their ids."""
    tasks = [await app.handler("fail").now(text=text) for text in texts]
    async with app.worker():
        for task in tasks:
            with contextlib.suppress(Exception):
                await app.result(task, timeout=60)
    return [task.id for task in tasks]


@pytest.fixture
async def failed(app: App) -> AsyncIterator[list[str]]:
    yield await fail(app, "no order 7", "no order 8", "größe 💥")
    await app.close()


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_failures_of_one_kind_are_one_group_whose_tasks_are_found_and_run_again(
    request: pytest.FixtureRequest, app: App, kind: str
) -> None:
    used = app if kind == "sqlite" else new_app(request.getfixturevalue("postgres_url"))
    ids = await fail(used, "no order 7", "no order 8", "no order 9")
    async with served(used) as http:
        await http.submit("anything")
        [group] = (await http("GET", "/v1/failures")).json["items"]
        assert (group["handler"], group["type"], group["message"]) == ("fail", "Fatal", "no order #")
        assert (group["tasks"], group["attempts"], sum(group["trend"]), len(group["trend"])) == (3, 3, 3, 24)
        assert (group["new"], group["again"], group["muted_until_at"]) == (True, False, None)
        assert group["sample"] in ids
        assert "in fail" in group["location"]
        fingerprint = group["fingerprint"]
        assert (await http("GET", f"/v1/failures/{fingerprint}")).json == group
        found = (await http("GET", "/v1/tasks", fingerprint=fingerprint)).json["items"]
        assert {task["id"] for task in found} == set(ids)
        assert {task["error"]["fingerprint"] for task in found} == {fingerprint}
        again = await http("POST", "/v1/tasks/retry", {"fingerprint": fingerprint, "state": "failed"})
        assert again.json["answers"] == {"changed": 3}
        assert (await http("GET", "/v1/tasks", fingerprint=fingerprint)).json["items"] == []
    await used.close()


async def test_groups_are_listed_since_an_instant_and_by_handler(http: Client, failed: list[str]) -> None:
    [group] = (await http("GET", "/v1/failures", handler="fail")).json["items"]
    assert (await http("GET", "/v1/failures", handler="greet")).json == {"items": [], "next": None}
    assert (await http("GET", "/v1/failures", since="2030-01-01T00:00:00Z")).json["items"] == []
    whole = (await http("GET", "/v1/failures", since="1980-01-01T00:00:00Z")).json["items"]
    assert [each["attempts"] for each in whole] == [group["attempts"]] == [3]


async def test_a_group_is_muted_and_that_is_taken_back_and_audited(app: App, failed: list[str], bearer: Bearer) -> None:  # noqa: F811
    kim = await bearer("kim", "operate")
    [group] = (await kim("GET", "/v1/failures")).json["items"]
    address = f"/v1/failures/{group['fingerprint']}"
    muted = (await kim("POST", f"{address}/mute", {"lasting": 3600})).json
    assert muted["muted_by"] == "kim"
    assert muted["muted_until_at"] is not None
    assert (await kim("POST", f"{address}/mute", {"until_at": "2199-01-01T00:00:00Z"})).json["muted_until_at"] == "2199-01-01T00:00:00Z"
    assert (await kim("GET", "/v1/failures")).json["items"][0]["muted_by"] == "kim"
    back = (await kim("POST", f"{address}/unmute")).json
    assert (back["muted_until_at"], back["muted_by"]) == (None, "")
    assert [act[:3] for act in await acts(app)] == [
        ("kim", f"failures.{verb}", group["fingerprint"]) for verb in ("mute", "mute", "unmute")
    ]


async def test_bad_requests_are_refused_and_unknown_kinds_not_found(http: Client, failed: list[str]) -> None:
    [group] = (await http("GET", "/v1/failures")).json["items"]
    address = f"/v1/failures/{group['fingerprint']}"
    for body in ({}, {"lasting": 1, "until_at": "2199-01-01T00:00:00Z"}, {"lasting": 0}, {"until_at": "2001-01-01T00:00:00Z"}):
        await http.problem("POST", f"{address}/mute", body, status=422)
    for method, end, sent in (("GET", "", None), ("POST", "/mute", {"lasting": 60}), ("POST", "/unmute", None)):
        assert (await http.problem(method, f"/v1/failures/{UNKNOWN}{end}", sent, status=404))["type"].endswith("failure-not-found")
        await http.problem(method, f"/v1/failures/XYZ{end}", sent, status=422)
    await http.problem("GET", "/v1/tasks", fingerprint="XYZ", status=422)


async def test_a_restricted_token_sees_and_mutes_kinds_of_its_handlers_only(failed: list[str], bearer: Bearer) -> None:  # noqa: F811
    shop, reader = await bearer("shop", "operate", handlers=["gre*"]), await bearer("reader", "read")
    [group] = (await reader("GET", "/v1/failures")).json["items"]
    address = f"/v1/failures/{group['fingerprint']}"
    assert (await shop("GET", "/v1/failures")).json["items"] == []
    await shop.problem("GET", address, status=404)
    await shop.problem("POST", f"{address}/mute", {"lasting": 60}, status=404)
    await shop.problem("POST", f"{address}/unmute", status=404)
    await reader.problem("POST", f"{address}/mute", {"lasting": 60}, status=403)
    assert (await reader("GET", address)).json["muted_until_at"] is None


async def test_an_app_at_a_server_does_the_same_as_one_at_the_store(app: App, http: Client, failed: list[str]) -> None:
    async with App(http.url) as remote:
        for used in (app, remote):
            [group] = await used.failures.list(since=timedelta(hours=1), handler="fail")
            assert str(group).endswith(" in fail")
            assert (group.tasks, group.attempts) == (3, 3)
            assert await used.failures.get(group.fingerprint, since=timedelta(hours=1)) == group
            assert (await used.failures.mute(group.fingerprint, 60)).muted_until_at is not None
            assert (await used.failures.unmute(group.fingerprint)).muted_until_at is None
            assert [task.id async for task in used.tasks(fingerprint=group.fingerprint, state="failed")] == failed[::-1]
            with pytest.raises(FailureNotFound, match="92 days"):
                await used.failures.get(UNKNOWN)
            with pytest.raises(InvalidValue, match="16 hexadecimal digits"):
                await used.failures.mute("x", 60)
            with pytest.raises(InvalidValue):
                await used.failures.mute(group.fingerprint, -1)


async def test_what_pull_workers_report_is_told_apart_by_location_traceback_or_message(http: Client) -> None:
    worker: PullWorker = await register(http, handlers={"resize": {"slots": 9, "retry": {"tries": 1}}})
    reports: list[dict[str, Any]] = [
        {"type": "RangeError", "message": "too wide", "location": "resize.js:7 in resize"},
        {"type": "RangeError", "message": "too high", "location": "resize.js:9 in resize"},
        {"type": "RangeError", "message": "too wide", "location": "crop.js:7 in resize"},
        {"type": "KeyError", "message": "a", "details": 'Traceback\n  File "/srv/a.py", line 7, in run\n    x\nKeyError: a'},
        {"type": "KeyError", "message": "b", "details": 'Traceback\n  File "/srv/a.py", line 9, in run\n    y\nKeyError: b'},
        {"type": "panic", "message": "no order 7", "details": "goroutine 1 [running]"},
        {"type": "panic", "message": "no order 8"},
        {"type": "panic", "message": "x" * 100_000},
    ]
    for report in reports:
        await http("POST", "/v1/tasks", {"handler": "resize", "payload": {}}, status=201)
        [item] = await worker.claim(limit=1)
        await worker.complete(item, outcome="failed", error=report)
    groups = (await http("GET", "/v1/failures")).json["items"]
    assert sorted((group["type"], group["attempts"]) for group in groups) == [
        ("KeyError", 2),
        ("RangeError", 1),
        ("RangeError", 2),
        ("panic", 1),
        ("panic", 2),
    ]
    assert max(len(group["message"]) for group in groups) == 300


async def test_an_exception_whose_text_cannot_be_read_is_counted_like_others(app: App) -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    @app.task(name="odd")
    async def odd() -> None:
        raise Odd

    task = await app.handler("odd").options(retry=RetryPolicy(tries=1)).now()
    async with app.worker():
        with contextlib.suppress(Exception):
            await app.result(task, timeout=60)
    [group] = await app.failures.list()
    assert (group.type, group.message) == ("Odd", "(its message cannot be shown: RuntimeError)")
    await app.close()


@pytest.mark.covers("REQ.8")
async def test_what_a_failed_task_printed_and_why_it_failed_are_kept_found_and_counted_for_alerts(app: App, http: Client) -> None:
    @app.task(name="charge", retry=RetryPolicy(tries=1))
    async def charge(order: int) -> None:
        print(f"asking the bank about order {order}")
        if order == 8:
            raise ConnectionError(f"the bank hung up on order {order}")

    task, good = await charge.now(8), await charge.now(9)
    async with app.worker():
        for each in (task, good):
            await app.client.wait(each, timeout=60)
    [output] = (await http("GET", f"/v1/tasks/{task.id}/logs")).json["items"]
    assert output["text"] == "asking the bank about order 8\n"
    assert output["error"]["type"] == "ConnectionError"
    assert [hit["task"] for hit in (await http("GET", "/v1/logs", q='"order 8"')).json["items"]] == [task.id]
    assert {hit["task"] for hit in (await http("GET", "/v1/logs", q="bank")).json["items"]} == {task.id, good.id}
    [dead] = (await http("GET", "/v1/tasks", state="failed", error="hung up")).json["items"]
    assert (dead["id"], dead["payload"], dead["error"]["message"]) == (task.id, {"order": 8}, "the bank hung up on order 8")
    samples = (await http("GET", "/metrics")).data.decode()
    assert 'duetime_tasks_failed_total{handler="charge"} 1' in samples
