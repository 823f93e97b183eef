"""A task with thousands of attempts: every door lists it in bounded pieces, and tells how many attempts are left out."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from click.testing import CliRunner

from duetime import App
from duetime.cli.main import cli
from duetime.model.outcome import FIRST_ATTEMPTS_KEPT, MOST_ATTEMPTS_KEPT, Outcome
from duetime.model.task import State
from duetime.store.values import NewWorker
from tests.api.conftest import Client
from tests.conformance.build import Worker, ended

LEFT_OUT = 1_200
LAST = MOST_ATTEMPTS_KEPT + LEFT_OUT


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, url: str) -> str:
    """The address of a store of each kind."""
    return url if request.param == "sqlite" else str(request.getfixturevalue("postgres_url"))


@pytest.fixture
async def task(app: App, http: Client) -> str:
    """A task that has run very often; the server is up."""
    submitted: str = (await http.submit())["id"]
    worker = Worker(app.store, "often", await app.store.register(NewWorker(id="often", host="here", pid=1, slots={"greet": 1})))
    for _ in range(LAST):
        [claimed] = await worker.take("greet")
        await app.store.settle("often", [ended(claimed, State.PENDING, at=claimed.due_at, outcome=Outcome.RETRY_LATER)])
        if claimed.attempt % 100 == 0:  # the server's duties go on beside it
            await asyncio.to_thread(worker.lease.renew)
    worker.lease.close()
    return submitted


def command(*arguments: str) -> str:
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.slow
async def test_every_door_tells_how_many_attempts_are_left_out(app: App, http: Client, url: str, task: str) -> None:
    remote = App(http.url)
    async with remote:
        for door in (app, remote):
            found = await door.attempts(task)
            assert len(found) == MOST_ATTEMPTS_KEPT
            assert [(attempt.attempt, attempt.left_out) for attempt in found if attempt.left_out] == [
                (FIRST_ATTEMPTS_KEPT + LEFT_OUT + 1, LEFT_OUT)
            ]
            assert found[-1].attempt == LAST

    numbers: list[int] = []
    left_out, cursor = 0, dict[str, Any]()
    while True:
        page = (await http("GET", f"/v1/tasks/{task}/attempts", limit=60, **cursor)).json
        assert len(page["items"]) <= 60
        numbers += [item["attempt"] for item in page["items"]]
        left_out += sum(item["left_out"] for item in page["items"])
        if page["next"] is None:
            break
        cursor = {"cursor": page["next"]}
    assert numbers == [attempt.attempt for attempt in found]
    assert left_out == LEFT_OUT

    for address in (url, http.url):
        shown = await asyncio.to_thread(command, "task", task, "--url", address)
        assert f"… {LEFT_OUT:,} attempts left out …" in shown
        printed = json.loads(await asyncio.to_thread(command, "task", task, "--json", "--url", address))
        assert sum(attempt["left_out"] for attempt in printed["attempts"]) == LEFT_OUT


async def test_a_page_of_attempts_is_bounded_and_a_wrong_cursor_is_refused(http: Client) -> None:
    task = (await http.submit())["id"]
    assert (await http("GET", f"/v1/tasks/{task}/attempts")).json == {"items": [], "next": None}
    for query in ({"limit": 0}, {"limit": 1_001}, {"cursor": "nonsense"}, {"page": 2}):
        await http.problem("GET", f"/v1/tasks/{task}/attempts", status=422, **query)
    await http.problem("GET", "/v1/tasks/0198c2f4-5d1e-7a3b-8c21-5f0e9d3a7b46/attempts", status=404)
