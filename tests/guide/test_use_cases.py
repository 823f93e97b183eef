"""What people build first: the runnable examples, a cron service over HTTP, and a callback that may say "not now"."""

from __future__ import annotations

import base64
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from duetime import App, Basic, Cron, Schedule, State
from duetime.testing import using
from tests.servers.brokers import RedisServer
from tests.servers.http import Conversation, serving
from tests.servers.waiting import PATIENCE

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "use_cases.py"


def run_example(*arguments: str) -> list[str]:
    done = subprocess.run([sys.executable, str(EXAMPLE), *arguments], capture_output=True, text=True, timeout=2 * PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.covers("REQ.16")
def test_the_example_expires_an_order_pushes_a_command_ends_connections_and_runs_by_cron() -> None:
    assert run_example() == [
        "expired: order-2, 10 of lamp in stock",
        'pushed: /devices/d7/commands {"device":"d7","action":"restart"} at its time',
        "closed: c1, no packet for a second",
        "timed out: c2, of 2 connections the one without packets",
        "reported: the report was made",
    ]


@pytest.mark.slow
def test_the_example_pushes_over_a_broker_too() -> None:
    with RedisServer() as broker:
        assert "pushed: the broker has confirmed the command" in run_example(broker.url)


@pytest.mark.covers("REQ.15")
async def test_many_jobs_call_protected_https_urls_sixty_times_an_hour() -> None:
    app = App("sqlite:///:memory:", user="ada")
    jobs = [app.http(f"job-{number}", f"https://shop.example/{number}", method="GET", auth=Basic("ada", "sesame")) for number in range(10)]
    async with using(app, now=datetime(2030, 1, 1, 9, 0, 30, tzinfo=UTC)) as t:
        for job in jobs:
            await app.schedules.put(Schedule(job.name, job, Cron("* * * * *")))
            t.answer_next(job, status=200, times=60)
        await t.advance(hours=1)
        for number, job in enumerate(jobs):
            requests = t.requests(job)
            assert [request.at.minute for request in requests] == [*range(1, 60), 0]
            assert {request.url for request in requests} == {f"https://shop.example/{number}"}
            token = base64.b64encode(b"ada:sesame").decode()
            assert {request.headers["authorization"] for request in requests} == {f"Basic {token}"}


@pytest.mark.slow
@pytest.mark.covers("REQ.12")
async def test_a_timer_outlives_its_process_and_its_callback_may_say_not_now(tmp_path: Path) -> None:
    """The callback is packed as address and arguments, waits in the store, and is called again when it says so; no try is used."""
    answers = [b'{"outcome":"retry","delay":0.01,"message":"not now"}', b'{"outcome":"succeeded","result":7}']

    async def talk(conversation: Conversation) -> None:
        while await conversation.request() is not None:
            await conversation.answer(200, answers.pop(0), "Content-Type: application/vnd.duetime+json")

    async with serving(talk) as server:
        apps = [App(f"sqlite:///{tmp_path / 'duetime.db'}", user="test") for _ in range(2)]
        first, later = [app.http("expire", server.url("/orders/{payload.order}/expire")) for app in apps]
        async with apps[0]:
            task = await first.after(0.2, order=7)
        assert server.received == []
        async with apps[1].worker():
            assert await apps[1].result(task, timeout=PATIENCE) == 7
            ended = await apps[1].get(task)
    assert later.name == first.name
    assert [request.path for request in server.received] == ["/orders/7/expire"] * 2
    assert (ended.state, ended.attempt, ended.tries) == (State.SUCCEEDED, 2, 0)
