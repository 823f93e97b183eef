"""Attack: a cheap token asks for everything that is large, several times at once. Answers are bounded, and clients follow their cursors."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import msgspec
import pytest
from click.testing import CliRunner

from duetime import App, Every, RetryPolicy, Schedule
from duetime.api.answers import PART
from duetime.cli.main import cli
from duetime.clock import SECOND
from duetime.model.query import MAX_PAGE_BYTES
from duetime.store.pull_workers import MOST_CLAIMED_BYTES
from tests.api.conftest import Answer, Client, new_app, until
from tests.attacks.processes import peak_memory_of, server_process
from tests.conformance.build import new_task

TEXT = "x" * 990_000
MANY = 24
SLACK = 100_000  # bytes of an answer that are not payload


async def pages(http: Client, path: str, **query: Any) -> list[Answer]:
    """Return all pages of a list."""
    found = [await http("GET", path, **query)]
    while (cursor := found[-1].json["next"]) is not None:
        found.append(await http("GET", path, cursor=cursor, **query))
    return found


def check(found: list[Answer], number: int) -> None:
    assert max(len(each.data) for each in found) <= MAX_PAGE_BYTES + SLACK
    assert sum(len(each.json["items"]) for each in found) == number
    assert len(found) > 1


@pytest.mark.slow
async def test_a_list_of_hundreds_of_megabytes_needs_little_memory(url: str) -> None:
    payload = b'{"value": [%b[]]}' % (b"[]," * 300_000)  # as values these take twenty times the memory of their text
    async with new_app(url) as app:
        for _ in range(30):
            await app.store.add([new_task("anything", payload, delay=3600 * SECOND) for _ in range(10)])
    async with server_process(url) as (process, address), aiohttp.ClientSession() as session:
        async with session.get(f"{address}/livez") as response:
            assert response.status == 200
        before = peak_memory_of(process)

        async def ask() -> int:
            async with session.get(f"{address}/v1/tasks", params={"limit": "1000"}) as response:
                assert response.status == 200
                return len(await response.read())

        sizes = await asyncio.gather(*(ask() for _ in range(4)))
        assert max(sizes) <= MAX_PAGE_BYTES + SLACK
        assert peak_memory_of(process) - before < 4 * 8 * MAX_PAGE_BYTES


async def test_tasks_are_listed_in_pages_of_bounded_size_that_clients_follow(app: App, http: Client) -> None:
    await app.submit_many([app.handler("anything").new(value=TEXT).after(3600) for _ in range(MANY)])
    found = await pages(http, "/v1/tasks", limit=1000)
    check(found, MANY)
    async with App(http.url) as remote:
        assert len([task async for task in remote.tasks(handler="anything")]) == MANY
    shown = await asyncio.to_thread(CliRunner().invoke, cli, ["tasks", "--all", "--json"], env={"DUETIME_URL": http.url})
    assert shown.exit_code == 0, shown.output
    assert len(msgspec.json.decode(shown.stdout)["items"]) == MANY


async def test_a_list_shows_tasks_as_they_are_shown_alone(app: App, http: Client) -> None:
    submitted = await app.submit_many(
        [
            app.handler("anything")
            .options(meta={"a": "b"}, retry=RetryPolicy(tries=3), expires=60)
            .new(value={"deep": [1, 2.5, "ü", None]}),
            app.handler("anything").new(),
        ]
    )
    async with app.worker():
        for task in submitted:
            await app.client.wait(task)
    await app.submit_many([app.handler("anything").new(value=1).after(60)])
    listed = (await http("GET", "/v1/tasks")).json["items"]
    assert len(listed) == 3
    for task in listed:
        assert task == (await http("GET", f"/v1/tasks/{task['id']}")).json
        assert list(task) == list((await http("GET", f"/v1/tasks/{task['id']}")).json)


async def test_schedules_are_listed_in_pages_of_bounded_size(app: App, http: Client) -> None:
    for number in range(MANY):
        await app.schedules.put(Schedule(f"large-{number:02}", "anything", Every(3600), payload={"value": TEXT}))
    found = await pages(http, "/v1/schedules", limit=1000)
    check(found, MANY)
    async with App(http.url) as remote:
        assert len(await remote.schedules.list()) == MANY
    assert len(await app.schedules.list()) == MANY


async def test_a_large_answer_goes_out_in_parts(app: App, http: Client) -> None:
    """The connection holds one part of what its client does not read, not all of it."""
    await app.submit_many([app.handler("anything").new(value=TEXT).after(3600) for _ in range(8)])
    response = await http.session.get(f"{http.url}/v1/tasks")  # answered, and not read
    state = http.server.server_state

    def waiting() -> list[int]:
        return [connection.transport.get_write_buffer_size() for connection in state.connections]

    async def stuck() -> bool:
        return max(waiting(), default=0) > 0

    await until(stuck, "the connection waits for its client")
    assert max(waiting()) <= 2 * PART
    assert len((await response.json())["items"]) == 8


# ---- what pull workers send and get ----


async def running(http: Client, number: int, slots: int) -> tuple[str, list[str]]:
    """Register a pull worker and submit large tasks for it; return its id and theirs."""
    worker = (await http("POST", "/v1/workers", {"handlers": {"remote": {"slots": slots}}, "lease": 60}, status=201)).json["id"]
    ids = [(await http.submit("remote", payload={"value": TEXT}))["id"] for _ in range(number)]
    return worker, ids


async def test_a_claim_takes_no_more_than_it_can_carry_and_the_next_one_the_rest(http: Client) -> None:
    worker, ids = await running(http, 40, 100)
    first = await http("POST", f"/v1/workers/{worker}/claim", {"limit": 100, "claim": 1})
    assert len(first.data) <= MOST_CLAIMED_BYTES + SLACK
    assert (await http("POST", f"/v1/workers/{worker}/claim", {"limit": 100, "claim": 1})).json == first.json
    second = await http("POST", f"/v1/workers/{worker}/claim", {"limit": 100, "claim": 2})
    assert sorted(task["id"] for each in (first, second) for task in each.json["items"]) == sorted(ids)


async def test_attempts_with_large_errors_are_listed_in_pages_that_clients_follow(http: Client) -> None:
    worker, [task] = await running(http, 1, 1)
    for number in range(1, 13):
        [claimed] = (await http("POST", f"/v1/workers/{worker}/claim", {"wait": 10})).json["items"]
        error = {"type": "Large", "message": f"number {number}", "details": TEXT}
        body = {"worker": worker, "attempt": claimed["attempt"], "outcome": "retry", "error": error}
        await http("POST", f"/v1/tasks/{task}/complete", {**body, "delay": 0 if number < 12 else 3600})
    found = await pages(http, f"/v1/tasks/{task}/attempts")
    check(found, 12)
    async with App(http.url) as remote:
        assert [each.attempt for each in await remote.attempts(task)] == list(range(1, 13))
    reasons = (await http("GET", f"/v1/tasks/{task}/why")).json["items"]
    assert any("number 12" in reason["text"] for reason in reasons), reasons


async def test_output_is_read_in_pages_of_bounded_size_that_clients_follow(http: Client) -> None:
    worker, [task] = await running(http, 1, 1)
    for number in range(1, 13):
        [claimed] = (await http("POST", f"/v1/workers/{worker}/claim", {"wait": 10})).json["items"]
        told = {"worker": worker, "attempt": claimed["attempt"]}
        await http("POST", f"/v1/tasks/{task}/logs", {**told, "text": f"number {number} {TEXT}"})
        await http("POST", f"/v1/tasks/{task}/complete", {**told, "outcome": "retry", "delay": 0})
    found = await pages(http, f"/v1/tasks/{task}/logs", limit=100)
    assert max(len(each.data) for each in found) <= MAX_PAGE_BYTES + len(TEXT) + SLACK
    assert [item["attempt"] for each in found for item in each.json["items"]] == list(range(1, 13))
    async with App(http.url) as remote:
        assert [each.attempt for each in await remote.output.read(task)] == list(range(1, 13))
