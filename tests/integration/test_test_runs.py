"""Test runs of handlers: marked, first in the order, tried once, and the phases of a request are seen while it is under way."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme

from duetime import App, Context, InvalidPayload, State, StoredHttp, Task, UnknownHandler
from duetime.model.addresses import AddressRules
from tests.servers.http import Conversation, answering, serving
from tests.servers.waiting import PATIENCE

LOOPBACK = AddressRules(loopback=True)
WAITS = "waits for the answer"


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[App]:
    async with App(f"sqlite:///{tmp_path}/duetime.db", user="anna") as app:
        yield app


async def printed(app: App, task: Task[Any]) -> str:
    async with asyncio.timeout(PATIENCE):
        return "".join([event.text async for event in app.output.follow(task)])


@pytest.mark.covers("CJO.8")
async def test_phases_are_seen_before_the_answer_comes(app: App) -> None:
    may_answer = asyncio.Event()

    async def talk(conversation: Conversation) -> None:
        await conversation.request()
        await may_answer.wait()
        await conversation.answer(200, b"pong", "Content-Type: text/plain")

    async with serving(talk) as server, app.worker(targets=True, addresses=LOOPBACK), asyncio.timeout(PATIENCE):
        await app.targets.put("ping", StoredHttp(url=server.url("/health", host="localhost"), method="GET"))
        task = await app.targets.test("ping")
        seen = ""
        async for event in app.output.follow(task):
            seen += event.text
            if WAITS in seen and not may_answer.is_set():
                assert (await app.get(task)).state is State.RUNNING
                may_answer.set()  # only now: without live phases this test hangs
        [attempt] = await app.attempts(task)
    connects = f"connects to 127.0.0.1:{server.port}"
    told = ["looks up the host's name", connects, WAITS, "is answered: 200", "is done, after 4 bytes", "pong"]
    positions = [seen.find(each) for each in told]
    assert -1 not in positions, seen
    assert positions == sorted(positions), seen
    assert attempt.detail is not None
    assert (attempt.outcome, attempt.detail["status"]) == ("succeeded", 200)


async def test_the_handshake_is_told_and_the_certificates_expiry_kept(app: App, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    expires = (datetime.now(UTC) + timedelta(days=9)).replace(microsecond=0)
    authority.issue_cert("localhost", not_after=expires).configure_cert(context)
    async with serving(answering(204), tls=context) as server:
        app.http("ping", server.url(host="localhost", scheme="https"), method="GET")
        async with app.worker():
            task = await app.targets.test("ping")
            assert "shakes hands (TLS)" in await printed(app, task)
            [attempt] = await app.attempts(task)
    assert attempt.detail is not None
    assert attempt.detail["certificate_expires"] == expires.isoformat().replace("+00:00", "Z")


async def test_only_a_test_run_prints_its_phases(app: App) -> None:
    async with serving(answering(204)) as server:
        ping = app.http("ping", server.url(), method="GET")
        async with app.worker():
            usual, marked, test = await ping.now(), await ping.options(meta={"a": "b"}).now(), await app.targets.test("ping")
            assert (await printed(app, usual), await printed(app, marked)) == ("", "")
            assert WAITS in await printed(app, test)


async def test_a_test_run_comes_first_is_tried_once_and_expires(app: App) -> None:
    seen: list[dict[str, str]] = []

    @app.task
    async def greet(ctx: Context, name: str) -> None:
        seen.append(dict(ctx.task.meta or {}))
        raise ValueError(f"not {name}")

    task = await app.targets.test("greet", name="ada")
    assert (task.priority, task.submitted_by, task.meta) == (9, "anna", {"duetime.test": "1"})
    assert task.expires_at == task.due_at + timedelta(minutes=1)
    async with app.worker():
        ended = await app.client.wait(task.id, timeout=PATIENCE)
    assert (ended.state, ended.attempt, seen) == (State.FAILED, 1, [{"duetime.test": "1"}])


async def test_a_handler_that_nobody_knows_and_a_payload_that_does_not_fit_are_refused(app: App) -> None:
    @app.task
    async def greet(name: str) -> None: ...

    with pytest.raises(UnknownHandler, match="'nobody'"):
        await app.targets.test("nobody")
    with pytest.raises(InvalidPayload, match="greet"):
        await app.targets.test("greet", self=7)
