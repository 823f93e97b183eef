"""What conditions look at from a store in which it has happened: certificates, disabled handlers, objectives, schedules."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme

from duetime import AlertRule, App, Certificate, DisableAfter, Disabled, Failing, Late, Missed, RetryPolicy, Slo, Task, Webhook, WorkerLost
from duetime.clock import ManualClock, to_instant
from duetime.duties.alert_facts import Memory
from duetime.duties.alerts import evaluate, submit_messages
from duetime.model.alerts.conditions import Condition
from duetime.model.figures import WORKERS_LOST, FigureKey
from duetime.model.query import Query
from duetime.store.alerts import DocumentKind
from duetime.store.open import store_from_url
from tests.chaos.fleet import until
from tests.servers.http import Conversation, serving
from tests.servers.waiting import PATIENCE


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(to_instant(datetime.now(UTC)))  # of the real day: certificates are judged by that


@pytest.fixture
async def app(store_url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[App]:
    monkeypatch.setenv("DUETIME_HTTP_ALLOW", "127.0.0.1")
    app = App(store_url, user="anna")
    async with app.using_store(store_from_url(store_url, clock=clock)):
        await app.channels.put("ops", Webhook(url="http://127.0.0.1:9/"))
        yield app


async def rule(app: App, when: Condition) -> None:
    await app.alerts.put(AlertRule(name="rule", when=when, channels=("ops",)))


async def told(app: App) -> list[tuple[str, str]]:
    """Evaluate as the duty does, and return what has been told so far: of which subject, what."""
    while not await evaluate(app.store, Memory()):
        pass  # a worker of the test was faster
    await submit_messages(app.store)
    notices: list[Task[Any]] = sorted([task async for task in app.tasks(handler="duetime.notify")], key=lambda task: task.id)
    return [(change["subject"], change["kind"]) for notice in notices for change in notice.payload["changes"]]


@pytest.mark.each_store
@pytest.mark.covers("CJO.6")
async def test_a_certificate_is_told_once_at_each_number_of_days_and_again_when_it_was_renewed(
    app: App, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost", not_after=datetime.now(UTC) + timedelta(days=20)).configure_cert(context)
    await rule(app, Certificate())

    async def talk(conversation: Conversation) -> None:
        while await conversation.request() is not None:
            await conversation.answer(200)

    async def call(ping: Any, state: str = "succeeded") -> None:
        task = await ping.now()
        async with app.worker(handlers=["ping"]):
            assert (await app.client.wait(task.id, timeout=PATIENCE)).state == state

    async with serving(talk, tls=context) as server:
        ping = app.http("ping", server.url(host="localhost", scheme="https"), method="GET", retry=RetryPolicy(tries=1))
        await call(ping)
        seen: list[tuple[str, str]] = []
        for days in (0, 5, 2, 8, 4, 0.9, 0.5):  # 20, 15, 13, 5, 1 days are left, then a few hours, then it has ended
            clock.advance(timedelta(days=days))
            before = len(seen)
            seen = await told(app)
            assert seen == await told(app), "it is told once"
            assert len(seen) - before == (1 if days in (2, 4, 0.5) else 0), days
        assert seen == [("ping", "firing"), ("ping", "worse"), ("ping", "worse")]
        authority.issue_cert("localhost", not_after=datetime.now(UTC) - timedelta(days=1)).configure_cert(context)
        await call(ping, "failed")
        assert await told(app) == seen, "that nothing can be called any more is not its end"
        authority.issue_cert("localhost", not_after=datetime.now(UTC) + timedelta(days=90)).configure_cert(context)
        await call(ping)
        assert (await told(app))[3:] == [("ping", "recovered")]


async def test_a_certificate_that_ends_soon_is_not_over_because_its_server_is_away(
    app: App, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost", not_after=datetime.now(UTC) + timedelta(days=5)).configure_cert(context)
    await rule(app, Certificate())

    async def talk(conversation: Conversation) -> None:
        while await conversation.request() is not None:
            await conversation.answer(200)

    async def call(state: str) -> None:
        task = await ping.now()
        async with app.worker(handlers=["ping"]):
            assert (await app.client.wait(task.id, timeout=PATIENCE)).state == state

    async with serving(talk, tls=context) as server:
        ping = app.http("ping", server.url(host="localhost", scheme="https"), method="GET", retry=RetryPolicy(tries=1))
        await call("succeeded")
    assert await told(app) == [("ping", "firing")]
    await call("failed")
    assert await told(app) == [("ping", "firing")]
    async for task in app.tasks(handler="ping"):
        await app.delete(task)
    assert await told(app) == [("ping", "firing")], "what was seen is known although the tasks that saw it are gone"
    assert [each.name for each in await app.store.alert_documents(DocumentKind.CERTIFICATE)] == ["ping"]


async def test_a_gate_of_a_collection_hides_nothing_else_that_is_late(app: App, clock: ManualClock) -> None:
    @app.task
    async def charge() -> None: ...

    await rule(app, Late(oldest_due=60))
    await app.gates.pause("charge", collection="eu")
    await charge.options(collection="eu").now()
    clock.advance(120)
    assert await told(app) == [], "what a gate holds back is not late"
    await charge.options(collection="us").now()
    clock.advance(61)
    assert await told(app) == [("charge", "firing")]
    assert (await app.alerts.firing())[0].text.startswith("The oldest due task of charge has waited for 1 min 1 s")


@pytest.mark.slow
@pytest.mark.each_store
@pytest.mark.covers("CJO.6")
async def test_a_handler_that_disables_itself_and_works_again_is_told_once_each(app: App, clock: ManualClock) -> None:
    broken = True

    async def talk(conversation: Conversation) -> None:
        while await conversation.request() is not None:
            await conversation.answer(503 if broken else 200)

    await rule(app, Disabled())
    async with serving(talk) as server:
        never = DisableAfter(3, lasting=0, probe_every=1)
        charge = app.http("charge", server.url(), retry=RetryPolicy(tries=1), disable_after=never, concurrency=1)
        await app.submit_many([charge.new() for _ in range(8)])
        async with app.worker(handlers=["charge"]):

            async def disabled() -> bool:
                return bool(await app.gates.list())

            await until("the handler has disabled itself", disabled)
            assert await told(app) == [("charge", "firing")]
            assert await told(app) == [("charge", "firing")]
            broken = False
            await charge.now()

            async def opened() -> bool:
                clock.advance(1)
                return not await disabled()

            await until("a probe has opened it again", opened)
        assert await told(app) == [("charge", "firing"), ("charge", "recovered")]
        assert await told(app) == [("charge", "firing"), ("charge", "recovered")]


async def test_objectives_and_shares_of_failures_are_counted_from_what_has_run(app: App, clock: ManualClock) -> None:
    broken = True

    @app.task(retry=RetryPolicy(tries=1), concurrency=50)
    async def charge() -> None:
        if broken:
            raise ValueError("no")

    await app.alerts.put(AlertRule(name="on time", when=Slo(start_within=5, ratio=0.9, window=600), channels=("ops",)))
    await app.alerts.put(AlertRule(name="failing", when=Failing(ratio=0.2, within=300), channels=("ops",)))

    async def run(late: float) -> None:
        tasks = await app.submit_many([charge.new() for _ in range(30)])
        clock.advance(late)
        async with app.worker(handlers=["charge"]):
            for task in tasks:
                await app.client.wait(task.id, timeout=PATIENCE)

    await run(late=0)
    assert await told(app) == [("charge", "firing")]
    assert [each.rule for each in await app.alerts.firing()] == ["failing"]
    broken = False
    clock.advance(400)
    await run(late=60)
    assert sorted(kind for _, kind in await told(app)) == ["firing", "firing", "recovered"]
    assert [each.rule for each in await app.alerts.firing()] == ["on time"]
    assert "50.0 % of 60 attempts of charge" in (await app.alerts.firing())[0].text
    clock.advance(120)
    await run(late=0)
    await told(app)
    assert await app.alerts.firing() == [], "its last twelfth is on time again"


async def test_a_handler_that_has_ended_nothing_since_is_not_looked_up_again(app: App, clock: ManualClock) -> None:
    @app.task(retry=RetryPolicy(tries=1))
    async def charge() -> None:
        raise ValueError("no")

    memory, looks, page = Memory(), 0, app.store.page

    async def counted(query: Query) -> Any:
        nonlocal looks
        looks += query.handler == "charge"
        return await page(query)

    async def looked() -> int:
        nonlocal looks
        looks = 0
        assert await evaluate(app.store, memory)
        return looks

    app.store.page = counted  # type: ignore[method-assign]
    await rule(app, Failing(in_a_row=2))
    for expected in (1, 1):
        task = await charge.now()
        async with app.worker(handlers=["charge"]):
            await app.client.wait(task.id, timeout=PATIENCE)
        assert [await looked(), await looked()] == [expected, 0]
    assert len(await app.alerts.firing()) == 1
    async for dead in app.tasks(handler="charge"):
        await app.delete(dead)
    clock.advance(60)
    assert await looked() == 1, "somebody may have run them again, or deleted them"
    assert await app.alerts.firing() == []


async def test_occurrences_that_nobody_fired_are_told(app: App, clock: ManualClock) -> None:
    @app.schedule(every=600, missed="skip")
    async def often() -> None: ...

    await app.schedules.declare()
    await rule(app, Missed(within=3_600))
    assert await told(app) == []
    clock.advance(3_000)
    async with app.worker():

        async def fired() -> bool:
            return bool(await app.schedules.skips("often"))

        await until("what was missed is skipped", fired)
    assert (await told(app))[:1] == [("often", "firing")]
    clock.advance(7_200)
    assert (await told(app))[1:] == [("often", "recovered")]


async def test_a_worker_that_died_is_told(app: App) -> None:
    await rule(app, WorkerLost())
    assert await told(app) == []
    await app.store.add_figures("reaper", 1, {FigureKey(WORKERS_LOST): 1})
    assert await told(app) == [("workers", "firing")]
