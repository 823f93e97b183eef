"""Servers that answer 202 report the end of their work later: to any server of ours, long after the worker has gone."""

from __future__ import annotations

import asyncio
import base64
import hmac
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from duetime import App, Bearer, Callback, InvalidValue, RetryPolicy, Secret, State, Task, webhooks
from duetime.app.handlers import AnyHandler
from duetime.clock import SECOND
from duetime.model.addresses import AddressRules
from duetime.model.callbacks import Permit, new_callback_token, read_callback_token
from duetime.model.outcome import Outcome
from tests.api.conftest import Client, served, until
from tests.api.pulling import register
from tests.servers.http import Conversation, Received, Server, answering, serving
from tests.servers.waiting import PATIENCE

OLD, NEW = (base64.b64encode(bytes([number]) * 32).decode() for number in (1, 2))
SOON = RetryPolicy(tries=2, base=0.01, cap=0.01)
HOUR = Callback(within=3_600)


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUETIME_SECRET_KEYS", f"new:{NEW} old:{OLD}")


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, url: str) -> str:
    """The address of a store of each kind."""
    return url if request.param == "sqlite" else str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def app(url: str) -> App:
    return App(url, user="test", public_url="http://duetime.test/api/")


@pytest.fixture
async def receiver() -> AsyncIterator[Server]:
    async with serving(answering(202)) as server:
        yield server


async def accepted(app: App, receiver: Server, handler: AnyHandler, **payload: Any) -> tuple[Task[Any], Received]:
    """Submit a task and let a worker send it, until its work is accepted and the worker has gone."""
    before = len(receiver.received)
    async with app.worker():
        task = await handler.now(**payload)
        await until(partial(is_accepted, app, task), "the work is accepted")
    assert len(receiver.received) == before + 1
    return await app.get(task), receiver.received[-1]


async def is_accepted(app: App, task: Task[Any]) -> bool:
    return (await app.get(task)).deadline_at is not None


def token_of(request: Received) -> str:
    return request.headers["duetime-callback-token"]


async def outcomes(app: App, task: Task[Any]) -> list[Outcome | None]:
    return [attempt.outcome for attempt in await app.attempts(task)]


# ---- completing ----


async def test_another_server_records_the_end_long_after_the_worker_has_gone(app: App, url: str, receiver: Server) -> None:
    charge = app.http("charge", receiver.url(), callback=HOUR)
    async with app:
        task, request = await accepted(app, receiver, charge, order=7)
        assert (task.state, task.worker) == (State.RUNNING, None)
        assert request.headers["duetime-callback"] == f"http://duetime.test/api/v1/tasks/{task.id}/complete"
        assert await app.workers() == []
        async with served(App(url, user="another")) as http:
            body = {"result": {"receipt": 12}}
            answer = (await http.bearing(token_of(request))("POST", f"/v1/tasks/{task.id}/complete", body)).json
            assert answer == {"verdict": "accepted", "state": "succeeded"}
            again = (await http.bearing(token_of(request))("POST", f"/v1/tasks/{task.id}/complete", body)).json
            assert again == {"verdict": "already", "state": "succeeded"}
        assert await app.result(task) == {"receipt": 12}
        assert await outcomes(app, task) == [Outcome.SUCCEEDED]


async def test_a_token_with_the_scope_work_names_the_attempt(app: App, receiver: Server) -> None:
    charge = app.http("charge", receiver.url(), callback=HOUR, retry=SOON)
    async with app:
        task, request = await accepted(app, receiver, charge)
        works, reads, other = [
            (await app.tokens.create(name, scopes=[scope], handlers=handlers)).token
            for name, scope, handlers in (("works", "work", ()), ("reads", "read", ()), ("other", "work", ("other.*",)))
        ]
        async with served(app) as http:
            path = f"/v1/tasks/{task.id}/complete"
            number = int(request.headers["duetime-attempt"])
            await http.problem("POST", path, {"attempt": number}, status=401)
            await http.bearing(reads).problem("POST", path, {"attempt": number}, status=403)
            await http.bearing(other).problem("POST", path, {"attempt": number}, status=404)
            missing = await http.bearing(works).problem("POST", path, {}, status=422)
            assert "attempt is missing" in missing["detail"]
            late = (await http.bearing(works)("POST", path, {"attempt": number + 1})).json
            assert late == {"verdict": "stale", "state": "running"}
            body = {"attempt": number, "outcome": "failed", "error": {"type": "Declined", "message": "no money"}}
            done = (await http.bearing(works)("POST", path, body)).json
            assert done == {"verdict": "accepted", "state": "pending"}
        [first] = await app.attempts(task)
        assert first.error is not None
        assert (first.outcome, first.error.type) == (Outcome.FAILED, "Declined")


async def test_an_end_that_overtakes_the_acceptance_counts_once(app: App) -> None:
    async with app, served(app) as http:

        async def talk(conversation: Conversation) -> None:
            request = await conversation.request()
            assert request is not None
            path = f"/v1/tasks/{request.headers['duetime-task']}/complete"
            done = (await http.bearing(token_of(request))("POST", path, {"result": 1})).json
            assert done == {"verdict": "accepted", "state": "succeeded"}
            await conversation.answer(202)

        async with serving(talk) as receiver:
            charge = app.http("charge", receiver.url(), callback=HOUR)
            async with app.worker() as worker:
                task = await charge.now()
                assert await app.result(task, timeout=PATIENCE) == 1
            assert worker.settler.stale == 0
        assert await outcomes(app, task) == [Outcome.SUCCEEDED]
        assert await app.store.inspect(repair=False) == []


async def test_a_worker_that_died_before_the_acceptance_leaves_a_second_attempt_and_the_first_one_is_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    waiting = asyncio.Event()

    async def talk(conversation: Conversation) -> None:
        while (request := await conversation.request()) is not None:
            if request.headers["duetime-attempt"] == "1":
                waiting.set()
                await asyncio.Event().wait()
            await conversation.answer(202)

    async with serving(talk) as receiver:
        program = (
            "from duetime import App, Callback\n"
            f"app = App({url!r}, public_url='http://duetime.test')\n"
            f"app.http('charge', {receiver.url()!r}, callback=Callback(within=3600))\n"
        )
        tmp_path.joinpath("shop.py").write_text(program)
        command = [sys.executable, "-m", "duetime.cli", "worker", "shop:app"]
        doomed = await asyncio.create_subprocess_exec(*command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)})
        app = App(url, user="test", public_url="http://duetime.test")
        charge = app.http("charge", receiver.url(), callback=HOUR)
        async with app, served(app) as http:
            task = await charge.now()
            async with asyncio.timeout(PATIENCE):
                await waiting.wait()
            os.kill(doomed.pid, signal.SIGKILL)
            await doomed.wait()
            async with app.worker():
                await until(partial(is_accepted, app, task), "the second attempt is accepted")
            first, second = receiver.received
            path = f"/v1/tasks/{task.id}/complete"
            stale = (await http.bearing(token_of(first))("POST", path, {"result": "first"})).json
            assert stale == {"verdict": "stale", "state": "running"}
            await http.bearing(token_of(second))("POST", path, {"result": "second"})
            assert await app.result(task) == "second"
            assert await outcomes(app, task) == [Outcome.LOST, Outcome.SUCCEEDED]


async def test_work_that_others_hold_is_not_completed_by_a_number_alone(app: App, http: Client) -> None:
    """Nobody but a handler's own request may be reported on before it was handed over."""
    worker = await register(http, handlers={"resize": {}})
    task = await http.submit("resize", payload={})
    [item] = await worker.claim()
    path = f"/v1/tasks/{task['id']}/complete"
    stale = (await http("POST", path, {"attempt": item["attempt"]})).json
    assert stale == {"verdict": "stale", "state": "running"}
    assert await worker.complete(item) == ("accepted", "succeeded")


# ---- tokens ----


async def test_tokens_of_others_forged_and_outlived_ones_are_refused(app: App, receiver: Server) -> None:
    charge = app.http("charge", receiver.url(), callback=HOUR)
    async with app, served(app) as http:
        task, request = await accepted(app, receiver, charge)
        _, other = await accepted(app, receiver, charge)
        [new, _] = app.config.callback_keys()
        good = token_of(request)
        later = app.store.now() + 60 * SECOND
        forged = [
            token_of(other),
            good[:-1] + ("A" if good[-1] != "A" else "B"),
            good[:10],
            "dc_",
            "dc_" + "é",
            new_callback_token(b"\x03" * 32, task.id, Permit(1, later)),
            new_callback_token(new, task.id, Permit(1, app.store.now() - 1)),
        ]
        for token in forged:
            headers = {"authorization": f"Bearer {token}"} if token.isascii() else {"authorization": "Bearer dc_%00"}
            for verb in ("complete", "progress"):
                await http.problem("POST", f"/v1/tasks/{task.id}/{verb}", {}, status=401, headers=headers)
        unknown = new_callback_token(new, task.id, Permit(2, later))  # an attempt that never was
        stale = (await http.bearing(unknown)("POST", f"/v1/tasks/{task.id}/complete", {})).json
        assert stale == {"verdict": "stale", "state": "running"}
        speaking = await http.bearing(good).problem("POST", f"/v1/tasks/{task.id}/complete", {"worker": "w", "attempt": 1}, status=403)
        assert "leave out worker" in speaking["detail"]
        assert (await app.get(task)).state is State.RUNNING


async def test_a_callback_token_opens_nothing_else_where_tokens_are_needed(app: App, receiver: Server) -> None:
    charge = app.http("charge", receiver.url(), callback=HOUR)
    async with app:
        task, request = await accepted(app, receiver, charge)
        await app.tokens.create("somebody", scopes=["work"])
        async with served(app) as http:
            mine = http.bearing(token_of(request))
            for method, path in (("GET", ""), ("POST", "/cancel"), ("GET", "/attempts"), ("GET", "/logs"), ("DELETE", "")):
                await mine.problem(method, f"/v1/tasks/{task.id}{path}", status=401)
            logs = {"worker": "w", "attempt": 1, "text": "x"}
            await mine.problem("POST", f"/v1/tasks/{task.id}/logs", logs, status=401)
            await mine("POST", f"/v1/tasks/{task.id}/complete", {})
        assert (await app.get(task)).state is State.SUCCEEDED


async def test_a_token_is_good_while_its_key_is_replaced(url: str, receiver: Server) -> None:
    app = App(url, user="test", public_url="http://duetime.test", secret_keys=f"old:{OLD}")
    charge = app.http("charge", receiver.url(), callback=HOUR)
    async with app:
        task, request = await accepted(app, receiver, charge)
        async with served(App(url, secret_keys=f"new:{NEW}")) as http:
            await http.bearing(token_of(request)).problem("POST", f"/v1/tasks/{task.id}/complete", {}, status=401)
        async with served(App(url, secret_keys=f"new:{NEW} old:{OLD}")) as http:
            await http.bearing(token_of(request))("POST", f"/v1/tasks/{task.id}/complete", {})


async def test_without_a_key_there_is_no_token_and_the_scope_work_is_needed(
    url: str, receiver: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DUETIME_SECRET_KEYS")
    app = App(url, user="test", public_url="http://duetime.test")
    charge = app.http("charge", receiver.url(), callback=HOUR)
    async with app:
        task, request = await accepted(app, receiver, charge)
        assert "duetime-callback-token" not in request.headers
        async with served(app) as http:
            forged = new_callback_token(hmac.digest(b"", b"duetime callback", "sha256"), task.id, Permit(1, app.store.now() + SECOND))
            await http.bearing(forged).problem("POST", f"/v1/tasks/{task.id}/complete", {}, status=401)
            await http("POST", f"/v1/tasks/{task.id}/complete", {"attempt": 1})
        assert (await app.get(task)).state is State.SUCCEEDED


async def test_codes_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[object, object]] = []

    def compare(this: object, that: object) -> bool:
        compared.append((this, that))
        return False

    monkeypatch.setattr(hmac, "compare_digest", compare)
    token = new_callback_token(b"k" * 32, "task", Permit(1, 2))
    assert read_callback_token(token, [b"k" * 32, b"l" * 32], "task") is None
    assert len(compared) == 2  # each key is tried, whatever the others say


async def test_a_worker_does_not_start_without_the_public_address(url: str) -> None:
    app = App(url, user="test")
    app.http("charge", "http://billing.example/", callback=HOUR)
    with pytest.raises(InvalidValue, match=r"charge has a callback.*DUETIME_PUBLIC_URL"):
        async with app.worker():
            pass


# ---- progress, deadlines, cancels ----


async def test_progress_renews_its_silence_and_tells_of_a_cancel(app: App, receiver: Server) -> None:
    charge = app.http("charge", receiver.url(), callback=Callback(within=3_600, silence=600))
    async with app, served(app) as http:
        task, request = await accepted(app, receiver, charge)
        mine, path = http.bearing(token_of(request)), f"/v1/tasks/{task.id}/progress"
        before = task.deadline_at
        said = (await mine("POST", path, {"fraction": 0.25, "text": "a quarter"})).json
        assert said == {"verdict": "accepted", "cancelling": False}
        now = await app.get(task)
        assert (now.progress, now.progress_text) == (0.25, "a quarter")
        assert before is not None
        assert now.deadline_at is not None
        assert now.deadline_at > before
        await mine("POST", path, {"extend": 1_200})
        extended = (await app.get(task)).deadline_at
        assert extended is not None
        assert extended > now.deadline_at
        await mine("POST", path, {"extend": 1_000_000})
        assert task.started_at is not None
        last = (await app.get(task)).deadline_at
        assert last is not None
        assert timedelta(0) <= last - task.started_at - timedelta(hours=1) < timedelta(minutes=1)
        await app.cancel(task)
        assert (await mine("POST", path, {})).json == {"verdict": "accepted", "cancelling": True}
        done = (await mine("POST", f"/v1/tasks/{task.id}/complete", {"outcome": "released"})).json
        assert done == {"verdict": "accepted", "state": "cancelled"}
        assert (await mine("POST", path, {})).json == {"verdict": "stale", "cancelling": False}


async def test_silence_is_one_try_and_the_next_attempt_has_a_token_of_its_own(app: App, receiver: Server) -> None:
    charge = app.http("charge", receiver.url(), callback=Callback(within=3_600, silence=0.05), retry=SOON)
    async with app, served(app) as http:
        async with app.worker():
            task = await charge.now()
            await app.client.wait(task.id, timeout=PATIENCE)
        assert await outcomes(app, task) == [Outcome.TIMED_OUT, Outcome.TIMED_OUT]
        assert (await app.get(task)).tries == 2
        first, second = receiver.received
        assert token_of(first) != token_of(second)
        late = (await http.bearing(token_of(first))("POST", f"/v1/tasks/{task.id}/complete", {})).json
        assert late == {"verdict": "stale", "state": "failed"}


# ---- many ----


@pytest.mark.slow
async def test_thousands_of_accepted_attempts_hold_none_of_ten_slots(app: App, receiver: Server, request: pytest.FixtureRequest) -> None:
    many = 10_000 if request.config.getoption("--scope") == "everything" else 2_000
    charge = app.http("charge", receiver.url(), callback=HOUR, concurrency=10)

    @app.task
    async def beside() -> None: ...

    async with app:
        await app.submit_many([charge.new(number=number) for number in range(many)])
        async with app.worker(concurrency=10) as worker:
            await until(lambda: all_sent(receiver, many), "all requests were sent")
            await app.client.wait((await beside.now()).id, timeout=PATIENCE)
            await until(lambda: at_rest(worker), "nothing is left in the worker")
        assert [lane.running for lane in (await app.store.counts()).lanes if lane.handler == "charge"] == [many]
        assert await app.store.inspect(repair=False) == []


async def all_sent(receiver: Server, count: int) -> bool:
    return len(receiver.received) >= count


async def at_rest(worker: Any) -> bool:
    return worker.executor.busy == 0 and len(worker.settler) == 0


# ---- withdrawing ----


@asynccontextmanager
async def accepting(location: str) -> AsyncIterator[Server]:
    """A server that accepts work and says where it can be withdrawn."""

    async def talk(conversation: Conversation) -> None:
        while (request := await conversation.request()) is not None:
            await conversation.answer(202 if request.method == "POST" else 204, b"", f"Location: {location.format(server=server)}")

    async with serving(talk) as server:
        yield server


async def handed_over(app: App, work: AnyHandler, **payload: Any) -> Task[Any]:
    task = await work.now(**payload)
    await until(partial(is_accepted, app, task), "the work is accepted")
    return task


async def has_been_told(server: Server) -> bool:
    return len(server.received) > 1


async def test_a_cancel_is_told_to_the_location_that_the_server_named(app: App) -> None:
    async with accepting("/jobs/7?a=1#x") as server:
        work = app.http(
            "work",
            server.url("/orders/{payload.order}"),
            callback=HOUR,
            auth=Bearer("sesame"),
            sign=webhooks.new_secret(),
            headers={"X-Order": "{payload.order}"},
        )
        async with app.worker():
            task = await handed_over(app, work, order=7)
            assert await app.cancel(task) == "cancelling"
            await until(partial(has_been_told, server), "the server is told")
    _, delete = server.received
    assert (delete.method, delete.path, delete.body) == ("DELETE", "/jobs/7?a=1", b"")
    assert (delete.headers["authorization"], delete.headers["x-order"]) == ("Bearer sesame", "7")
    assert (delete.headers["duetime-task"], delete.headers["duetime-attempt"]) == (task.id, "1")
    assert not {"webhook-signature", "duetime-callback", "duetime-callback-token", "content-type"} & delete.headers.keys()


async def test_a_worker_that_starts_later_tells_it_too(app: App) -> None:
    async with accepting("/jobs/7") as server:
        work = app.http("work", server.url("/jobs"), callback=HOUR, auth=Bearer("sesame"))
        async with app.worker():
            task = await handed_over(app, work)
        assert await app.cancel(task) == "cancelling"  # while no worker runs
        async with app.worker():
            await until(partial(has_been_told, server), "the server is told")
            assert await app.store.take_withdrawals(["work"], 10) == []
    _, delete = server.received
    assert (delete.method, delete.path, delete.headers["authorization"]) == ("DELETE", "/jobs/7", "Bearer sesame")


@pytest.mark.parametrize(
    "location",
    [
        *("http://localhost:{server.port}/jobs/7", "https://127.0.0.1:{server.port}/7", "//169.254.169.254/", "file:///etc/passwd"),
        *("http://[", "/jöbs"),
    ],
)
async def test_a_location_on_another_origin_is_not_even_stored(app: App, location: str) -> None:
    async with accepting(location) as server:
        work = app.http("work", server.url("/jobs"), callback=HOUR)
        async with app.worker(addresses=AddressRules(loopback=True)):  # so that the guard is not what holds it back
            task = await handed_over(app, work)
        assert await app.cancel(task) == "cancelling"
        assert await app.store.take_withdrawals(["work"], 10) == []


async def test_a_location_that_names_a_secret_is_not_stored(app: App) -> None:
    async with app:
        await app.secrets.put("hook", "sesame-1234")
        async with accepting("/jobs/sesame-1234") as server:
            work = app.http("work", server.url("/jobs"), callback=HOUR, auth=Bearer(Secret("hook")))
            async with app.worker():
                task = await handed_over(app, work)
            await app.cancel(task)
            assert await app.store.take_withdrawals(["work"], 10) == []


async def test_work_that_has_ended_is_not_withdrawn(app: App) -> None:
    async with accepting("/jobs/7") as server:
        work = app.http("work", server.url("/jobs"), callback=HOUR)
        async with app.worker(), served(app) as http:
            task = await handed_over(app, work)
            [request] = server.received
            await http.bearing(token_of(request))("POST", f"/v1/tasks/{task.id}/complete", {})
            assert await app.cancel(task) == "finished"
            assert await app.store.take_withdrawals(["work"], 10) == []
    assert [request.method for request in server.received] == ["POST"]
