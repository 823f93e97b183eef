"""Handlers and pull workers that ask to run again at once, for ever, or after a delay that is none: attempts come ever later, or end."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest

from duetime import App, RetryLater, RetryPolicy, State, testing
from duetime.model.outcome import Outcome
from tests.api.conftest import Client
from tests.api.pulling import PullWorker, register

WRONG = [-1, -1e-5, timedelta(seconds=-1), math.nan, math.inf, -math.inf, 1e16, "soon", None]


async def test_a_handler_that_asks_for_no_delay_does_not_spin() -> None:
    app = App("sqlite:///:memory:")

    @app.task(retry=RetryPolicy(within=2 * 3_600))
    async def spin() -> None:
        raise RetryLater(0)

    async with testing.using(app) as t:
        task = await spin.now()
        ran = [len(await t.drain()), *[len(await t.advance(seconds=seconds)) for seconds in (60, 3_540)]]
        assert ran[0] == 11, "the first ones as asked"
        assert sum(ran[:2]) < 60
        assert sum(ran[:3]) < 300
        assert (await app.get(task)).tries == 0
        [reason] = await app.why(task)
        assert "attempts that used up no try" in reason.text
        await t.advance(hours=2)
        assert (await app.get(task)).state is State.FAILED


async def test_a_handler_that_looks_every_few_seconds_is_left_alone() -> None:
    app = App("sqlite:///:memory:")

    @app.task
    async def poll() -> None:
        raise RetryLater(5)

    async with testing.using(app) as t:
        await poll.now()
        assert len(await t.advance(minutes=5)) == 61


@pytest.mark.parametrize("delay", WRONG)
async def test_a_delay_that_is_none_uses_up_a_try_and_says_what_is_wrong(delay: Any) -> None:
    app = App("sqlite:///:memory:")

    @app.task(retry=RetryPolicy(tries=3))
    async def wrong() -> None:
        raise RetryLater(delay)

    async with testing.using(app, raise_errors=False) as t:
        task = await wrong.now()
        await t.advance(days=1)
        found = await app.get(task)
        assert (found.state, found.tries) == (State.FAILED, 3)
        assert [attempt.outcome for attempt in await app.attempts(task)] == [Outcome.FAILED] * 3
        assert found.error is not None
        assert found.error.type == "InvalidValue"
        assert "the delay of RetryLater must" in found.error.message


async def test_a_pull_worker_that_gives_back_at_once_does_not_spin(http: Client, app: App) -> None:
    worker = await register(http)
    for body in ({"outcome": "retry", "delay": 0}, {"outcome": "released"}):
        id = (await http("POST", "/v1/tasks", {"handler": "resize"}, status=201)).json["id"]
        for _ in range(11):
            [item] = await worker.claim()
            assert await worker.complete(item, **body) == ("accepted", "pending")
        waiting = await app.get(id)
        assert waiting.attempt == 11
        last = (await app.attempts(id))[-1]
        assert last.finished_at is not None
        assert waiting.due_at - last.finished_at >= timedelta(seconds=0.09)
        await app.cancel(id)


@pytest.mark.parametrize("delay", ["-1", "-0.001", "1e16", "1e400", "NaN", "Infinity", '"1"', "null"])
async def test_a_pull_workers_delay_that_is_none_is_refused(http: Client, delay: str) -> None:
    worker: PullWorker = await register(http)
    id = (await http("POST", "/v1/tasks", {"handler": "resize"}, status=201)).json["id"]
    [item] = await worker.claim()
    body = f'{{"worker": "{worker.id}", "attempt": {item["attempt"]}, "outcome": "retry", "delay": {delay}}}'
    answer = await http("POST", f"/v1/tasks/{id}/complete", status=None, data=body, headers={"content-type": "application/json"})
    assert answer.status in (400, 422), answer
    assert await worker.complete(item) == ("accepted", "succeeded")
