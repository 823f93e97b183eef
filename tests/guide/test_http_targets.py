"""HTTP handlers: an attempt is a request, and its answer decides. In tests the answers are prepared and nothing is sent."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from duetime import (
    App,
    Basic,
    Bearer,
    Callback,
    Context,
    Handlers,
    InvalidHandler,
    InvalidPayload,
    InvalidValue,
    Next,
    RetryPolicy,
    State,
    TaskFailed,
)
from duetime.app.handlers import AnyHandler
from duetime.model.outcome import Outcome
from duetime.testing import UnansweredRequest, using
from tests.servers.waiting import PATIENCE

NOW = datetime(2030, 1, 1, 9, tzinfo=UTC)
URL = "https://billing.example/charges/{payload.order_id}"


class Charge(msgspec.Struct):
    order_id: int
    amount: int = 5


class Receipt(msgspec.Struct):
    number: str


@pytest.fixture
def app() -> App:
    return App("sqlite:///:memory:", user="ada")


async def test_a_request_carries_the_payload_and_says_which_attempt_it_is(app: App) -> None:
    charge = app.http(
        "charge", URL, method="PUT", body={"amount": "{payload.amount}", "for": "{meta.tenant}"}, headers={"X-Shop": "{meta.tenant}"}
    )
    async with using(app, now=NOW) as t:
        task = await charge.options(meta={"tenant": "blue"}).after(60, order_id=7, amount=12)
        t.answer_next(charge, status=201, body={"number": "r1"})
        await t.advance(60)
        assert await app.result(task) == {"number": "r1"}
        [request] = t.requests(charge)
    assert (request.method, request.url) == ("PUT", "https://billing.example/charges/7")
    assert request.json == {"amount": 12, "for": "blue"}
    wanted = {
        "idempotency-key": f'"{task.id}"',
        "duetime-task": task.id,
        "duetime-handler": "charge",
        "duetime-attempt": "1",
        "duetime-due-at": "2030-01-01T09:01:00.000000Z",
        "duetime-deadline": "2030-01-01T09:01:30.000000Z",
        "content-type": "application/json",
        "accept-encoding": "identity",
        "x-shop": "blue",
    }
    assert {name: request.headers.get(name) for name in wanted} == wanted
    assert "duetime-planned-at" not in request.headers


async def test_payload_and_result_have_types(app: App) -> None:
    charge = app.http("charge", URL, payload=Charge, result=Receipt)
    with pytest.raises(InvalidPayload, match="order_id"):
        charge.new(order_id="seven")  # type: ignore[arg-type]
    async with using(app, now=NOW) as t:
        task = await charge.now(order_id=7)
        t.answer_next(charge, body={"number": "r1"})
        await t.drain()
        assert await app.result(task) == Receipt("r1")
        assert t.requests(charge)[0].json == {"order_id": 7, "amount": 5}  # with the default


@pytest.mark.covers("SCH.2", "REQ.13")
async def test_the_same_key_and_a_growing_fence_come_with_each_attempt(app: App) -> None:
    charge = app.http("charge", URL, retry=RetryPolicy(tries=3, base=1, jitter=0))
    async with using(app, now=NOW) as t:
        task = await charge.now(order_id=7)
        t.answer_next(charge, status=500, body="broken", times=2)
        t.answer_next(charge, status=204)
        await t.advance(minutes=1)
        assert await app.result(task) is None
        requests = t.requests(charge)
        first, second, third = await app.attempts(task)
    assert [request.headers["duetime-attempt"] for request in requests] == ["1", "2", "3"]
    fences = [int(request.headers["duetime-fence"]) for request in requests]
    assert fences == sorted(set(fences))
    assert {request.headers["idempotency-key"] for request in requests} == {f'"{task.id}"'}
    assert first.error is not None
    assert (first.error.type, first.error.message) == (
        "Status500", "POST https://billing.example/charges/7 answered 500 Internal Server Error: broken",
    )  # fmt: skip
    assert (first.detail or {})["status"] == (second.detail or {})["status"] == 500
    assert (third.detail or {})["status"] == 204


@pytest.mark.parametrize("status", [410, 422])
async def test_a_fatal_status_is_not_tried_again(app: App, status: int) -> None:
    charge = app.http("charge", URL, fatal=[422])
    async with using(app, now=NOW) as t:
        task = await charge.now(order_id=7)
        t.answer_next(charge, status=status)
        [ran] = await t.drain()
        assert (ran.outcome, (await app.get(task)).state) == ("fatal", State.FAILED)
        with pytest.raises(TaskFailed, match=f"Status{status}"):
            await app.result(task)


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    ("header", "seconds"),
    [("120", 120), ("Tue, 01 Jan 2030 09:02:00 GMT", 120), ("Tue, 01 Jan 2030 08:00:00 GMT", 0), ("99999999999", 86_400), ("0", 0)],
)
async def test_retry_after_uses_no_try_and_is_bounded(app: App, status: int, header: str, seconds: float) -> None:
    charge = app.http("charge", URL, retry=RetryPolicy.none())
    async with using(app, now=NOW) as t:
        task = await charge.now(order_id=7)
        t.answer_next(charge, status=status, headers={"Retry-After": header})
        t.answer_next(charge, status=200)
        first, *_ = await t.drain()
        assert first.outcome == "retry_later"
        if seconds:
            waiting = await app.get(task)
            assert (waiting.state, waiting.tries) == (State.PENDING, 0)
            assert abs((waiting.due_at - NOW).total_seconds() - seconds) < 2
            await t.advance(seconds + 2)
        assert (await app.get(task)).state is State.SUCCEEDED


@pytest.mark.parametrize("header", ["soon", "-5", "1.5.2", "", "Tue, 99 Jan 2030 09:02:00 GMT", "9" * 5_000 + "x"])
async def test_a_retry_after_that_is_garbage_is_an_ordinary_failure_and_said(app: App, header: str) -> None:
    charge = app.http("charge", URL, retry=RetryPolicy.none())
    async with using(app, now=NOW) as t:
        task = await charge.now(order_id=7)
        t.answer_next(charge, status=503, headers={"Retry-After": header})
        await t.drain()
        [attempt] = await app.attempts(task)
    assert (attempt.outcome, "Retry-After" in (attempt.detail or {})["note"]) == ("failed", True)


VENDOR = {"Content-Type": "application/vnd.duetime+json; charset=utf-8"}


@pytest.mark.parametrize(
    ("status", "body", "outcome", "error"),
    [
        (500, {"outcome": "succeeded", "result": 7}, "succeeded", None),
        (200, {"outcome": "failed", "message": "no funds"}, "failed", "no funds"),
        (200, {"outcome": "failed", "message": "no such card", "fatal": True}, "fatal", "no such card"),
        (200, {"outcome": "retry", "delay": 60, "message": "busy"}, "retry_later", "busy"),
    ],
)
async def test_a_body_of_our_type_decides_whatever_the_status(app: App, status: int, body: Any, outcome: str, error: str | None) -> None:
    charge = app.http("charge", URL)
    async with using(app, now=NOW) as t:
        task = await charge.now(order_id=7)
        t.answer_next(charge, status=status, body=body, headers=VENDOR)
        await t.drain()
        [attempt] = await app.attempts(task)
        assert (attempt.outcome, attempt.error and attempt.error.message) == (outcome, error)
        assert (await app.get(task)).result == body.get("result")


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        ({"outcome": "failed", "fatal": True}, {"Content-Type": "application/json"}),
        (b'{"outcome": "fail', VENDOR),
        (b'{"outcome": "perhaps"}', VENDOR),
        (b'{"outcome": "retry", "delay": 1e99}', VENDOR),
        (b'{"outcome": "succeeded", "resul": 1}', VENDOR),
    ],
)
async def test_other_bodies_do_not_beat_the_status(app: App, body: Any, headers: dict[str, str]) -> None:
    charge = app.http("charge", URL)
    async with using(app, now=NOW) as t:
        task = await charge.now(order_id=7)
        t.answer_next(charge, status=200, body=body, headers=headers)
        await t.drain()
        [attempt] = await app.attempts(task)
    assert attempt.outcome == "succeeded"
    assert ("status decides" in (attempt.detail or {}).get("note", "")) == (headers is VENDOR)


@pytest.mark.parametrize(("body", "note"), [(b'{"number": ', "is not the JSON"), (b'"' + b"x" * 20_000 + b'"', "more than keep=16,384")])
async def test_a_success_whose_body_cannot_be_the_result_is_a_success_and_says_so(app: App, body: bytes, note: str) -> None:
    charge = app.http("charge", URL)
    async with using(app, now=NOW) as t:
        task = await charge.now(order_id=7)
        t.answer_next(charge, body=body, headers={"Content-Type": "application/json"})
        await t.drain()
        assert await app.result(task) is None
        [attempt] = await app.attempts(task)
    assert note in (attempt.detail or {})["note"]


async def test_a_missing_value_fails_the_task_for_good_and_sends_nothing(app: App) -> None:
    charge = app.http("charge", URL)
    async with using(app, now=NOW) as t:
        task = await charge.now(amount=7)
        [ran] = await t.drain()
        assert (ran.outcome, t.requests(charge)) == ("fatal", [])
        with pytest.raises(TaskFailed, match=r"MissingReference: url refers to \{payload.order_id\}, but the payload has no order_id"):
            await app.result(task)


async def test_an_unanswered_request_fails_the_test_by_name(app: App) -> None:
    charge = app.http("charge", URL)
    async with using(app, now=NOW) as t:
        await charge.now(order_id=7)
        with pytest.raises(UnansweredRequest, match=r"charge sent POST https://billing.example/charges/7 .*t.answer_next\(charge"):
            await t.drain()


async def test_only_requests_can_be_answered(app: App) -> None:
    @app.task(name="plain")
    async def plain() -> None: ...

    async with using(app, now=NOW) as t:
        with pytest.raises(InvalidValue, match="plain is neither an HTTP handler nor a command"):
            t.answer_next(plain)


async def test_redirects_are_followed_as_declared_and_secrets_stay_at_home(app: App) -> None:
    charge = app.http("charge", URL, redirects="any", auth=Bearer("sesame"), headers={"X-Key": "sesame"})
    async with using(app, now=NOW) as t:
        task = await charge.now(order_id=7)
        t.answer_next(charge, status=307, headers={"Location": "/other"})
        t.answer_next(charge, status=307, headers={"Location": "https://elsewhere.example/x"})
        t.answer_next(charge, status=303, headers={"Location": "https://billing.example/back"})
        t.answer_next(charge, status=200)
        await t.drain()
        sent = t.requests(charge)
        [attempt] = await app.attempts(task)
    assert [(request.method, request.url, bool(request.body)) for request in sent] == [
        ("POST", "https://billing.example/charges/7", True),
        ("POST", "https://billing.example/other", True),
        ("POST", "https://elsewhere.example/x", True),
        ("GET", "https://billing.example/back", False),
    ]
    assert [("authorization" in request.headers, "x-key" in request.headers) for request in sent] == [(True, True)] * 2 + [
        (False, False)
    ] * 2
    assert all(request.headers["duetime-task"] == task.id for request in sent)
    assert (attempt.detail or {})["redirects"] == 3


@pytest.mark.parametrize(
    ("rule", "location", "problem"),
    [
        ("none", "https://billing.example/x", "redirects are not followed"),
        ("same-host", "https://elsewhere.example/x", 'redirects="any" would follow it'),
        ("any", "file:///etc/passwd", "must begin with http"),
        ("any", "http://billing.example/x", "from https to http"),
        ("any", "https://user:word@billing.example/x", "contains a user or a password"),
    ],
)
async def test_a_redirect_that_is_not_followed_is_a_failure_that_names_it(app: App, rule: Any, location: str, problem: str) -> None:
    charge = app.http("charge", URL, redirects=rule, retry=RetryPolicy.none())
    async with using(app, now=NOW) as t:
        task = await charge.now(order_id=7)
        t.answer_next(charge, status=302, headers={"Location": location})
        await t.drain()
        assert len(t.requests(charge)) == 1
        with pytest.raises(TaskFailed, match=problem):
            await app.result(task)


async def test_endless_redirects_end(app: App) -> None:
    charge = app.http("charge", URL, redirects="any", retry=RetryPolicy.none())
    async with using(app, now=NOW) as t:
        task = await charge.now(order_id=7)
        t.answer_next(charge, status=302, headers={"Location": "/again"}, times=20)
        await t.drain()
        assert len(t.requests(charge)) == 4
        with pytest.raises(TaskFailed, match="TooManyRedirects"):
            await app.result(task)


async def test_middleware_sees_results_and_failures(app: App) -> None:
    seen: list[object] = []

    @app.middleware
    async def note(ctx: Context, call_next: Next) -> object:
        try:
            value = await call_next()
        except Exception as error:
            seen.append(str(error))
            raise
        seen.append(value)
        return value

    charge = app.http("charge", URL, retry=RetryPolicy(tries=2, base=1, jitter=0))
    async with using(app, now=NOW) as t:
        task = await charge.now(order_id=7)
        t.answer_next(charge, status=500)
        t.answer_next(charge, body=[1])
        await t.advance(10)
        assert await app.result(task) == [1]
        assert [(attempt.detail or {})["status"] for attempt in await app.attempts(task)] == [500, 200]
    assert seen == ["Status500: POST https://billing.example/charges/7 answered 500 Internal Server Error", [1]]


async def test_a_schedule_calls_a_url_and_tells_the_planned_time(app: App) -> None:
    ping = app.http("ping", "https://shop.example/ping", method="GET")
    app.schedule(every=60)(ping)
    async with using(app, now=NOW) as t:
        t.answer_next(ping, times=2)
        await t.advance(minutes=2)
        requests = t.requests(ping)
    assert [request.headers["duetime-planned-at"] for request in requests] == [
        "2030-01-01T09:01:00.000000Z", "2030-01-01T09:02:00.000000Z",
    ]  # fmt: skip
    assert [(request.method, request.body) for request in requests] == [("GET", b"")] * 2


async def test_groups_declare_http_handlers_under_their_prefix(app: App) -> None:
    shop = Handlers(prefix="shop.")
    charge = shop.http("charge", URL)
    app.include(shop)
    async with using(app, now=NOW) as t:
        task = await charge.now(order_id=7)
        t.answer_next("shop.charge")
        await t.drain()
        assert (task.handler, (await app.get(task)).state) == ("shop.charge", State.SUCCEEDED)


@pytest.mark.covers("CJO.3")
async def test_time_and_a_random_id_are_put_into_the_request(app: App) -> None:
    note = app.http("note", "https://shop.example/notes/{uuid}?at={now}", method="GET", headers={"X-Request": "{uuid}"})
    async with using(app, now=NOW) as t:
        await note.now()
        await note.now()
        t.answer_next(note, times=2)
        await t.drain()
        first, second = t.requests(note)
    assert first.url == f"https://shop.example/notes/{first.headers['x-request']}?at=2030-01-01T09%3A00%3A00.000000Z"
    assert first.headers["x-request"] != second.headers["x-request"]


async def test_text_is_sent_as_it_is_if_the_type_says_so(app: App) -> None:
    note = app.http("note", "https://shop.example/notes", body="order {payload.order_id}\n", headers={"Content-Type": "text/plain"})
    async with using(app, now=NOW) as t:
        await note.now(order_id=7)
        t.answer_next(note)
        await t.drain()
        [request] = t.requests(note)
    assert (request.body, request.headers["content-type"]) == (b"order 7\n", "text/plain")


def test_credentials_are_not_shown() -> None:
    assert "sesame" not in f"{Basic('ada', 'sesame')!r} {Bearer('sesame')!r} {Basic('ada', 'sesame')} {Bearer('sesame')}"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"url": "ftp://x.example/"}, "must begin with http"),
        ({"url": "https://ada:sesame@x.example/"}, "contains a user or a password"),
        ({"url": "https://x.example/{order_id}"}, "begins with payload"),
        ({"url": "https://x.example/{payload.other}", "payload": Charge}, "only order_id, amount"),
        ({"url": "https://{meta.tenant}.x.example/"}, "hosts="),
        ({"method": "FETCH"}, "method must be one of"),
        ({"headers": {"Host": "other.example"}}, "belongs to the connection"),
        ({"headers": {"content-length": "5"}}, "belongs to the connection"),
        ({"headers": {"Duetime-Attempt": "9"}}, "cannot be overridden"),
        ({"headers": {"Idempotency-Key": "9"}}, "cannot be overridden"),
        ({"headers": {"Webhook-Signature": "9"}}, "cannot be overridden"),
        ({"headers": {"A b": "9"}}, "cannot be the name of a header"),
        ({"headers": {"X": "a\r\nY: b"}}, "one line"),
        ({"headers": {"Authorization": "x"}, "auth": Bearer("y")}, "given twice"),
        ({"auth": "sesame"}, "Basic"),
        ({"redirects": "all"}, "none, same-host or any"),
        ({"fatal": [200]}, "from 300 to 599"),
        ({"keep": -1}, "keep"),
        ({"timeout": 0}, "timeout must be positive"),
        ({"connect": -1}, "connect must be positive"),
        ({"concurrency": 0}, "concurrency"),
        ({"body": object()}, "must be JSON"),
    ],
)
def test_a_declaration_that_cannot_work_is_refused_with_what_to_do(app: App, options: dict[str, Any], problem: str) -> None:
    with pytest.raises((InvalidValue, InvalidHandler), match=problem) as raised:
        app.http("charge", **{"url": URL, **options})
    assert "sesame" not in str(raised.value)


@pytest.mark.parametrize("make", [lambda: Bearer("a\nb"), lambda: Bearer(""), lambda: Basic("a:b", "c"), lambda: Basic("a", "\0")])
def test_credentials_that_cannot_be_sent_are_refused(make: Any) -> None:
    with pytest.raises(InvalidValue):
        make()


def test_declaring_and_submitting_need_no_http_library() -> None:
    code = """
import asyncio, sys
from duetime import App
app = App("sqlite:///:memory:")
charge = app.http("charge", "https://billing.example/", sign="whsec_" + "A" * 44)
asyncio.run(charge.now(order_id=7))
assert "aiohttp" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE)


def test_a_worker_without_the_library_says_what_to_install() -> None:
    code = """
import asyncio, sys
sys.modules["aiohttp"] = None
from duetime import App
from duetime.errors import MissingExtra
app = App("sqlite:///:memory:")
app.http("charge", "https://billing.example/")

async def main():
    async with app.worker():
        pass

try:
    asyncio.run(main())
except MissingExtra as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE, capture_output=True, text=True)
    assert done.stdout == "HTTP handlers need the package aiohttp: pip install 'duetime[http]'\n"


# ---- work that is accepted and ends later ----


@pytest.fixture
def render(app: App) -> AnyHandler:
    return app.http("render", "https://render.example/jobs", callback=Callback(within=7_200, silence=600), retry=RetryPolicy(tries=2))


async def test_a_202_is_accepted_and_its_end_is_told_later(app: App, render: AnyHandler) -> None:
    async with using(app, now=NOW) as t:
        task = await render.now(film=7)
        t.answer_next(render, status=202)
        [ran] = await t.drain()
        assert (ran.outcome, ran.task.state, ran.task.worker) == (None, State.RUNNING, None)
        assert ran.task.deadline_at == NOW + timedelta(seconds=600)
        [request] = t.requests(render)
        assert request.headers["duetime-callback"].endswith(f"/v1/tasks/{task.id}/complete")
        assert request.headers["duetime-callback-token"].startswith("dc_")
        [reason] = await app.why(task)
        assert (reason.kind, reason.until_at) == ("accepted", NOW + timedelta(seconds=600))
        assert "somebody outside works on attempt 1" in reason.text
        done = await t.complete(task, result={"frames": 120})
        assert (done.state, done.result) == (State.SUCCEEDED, {"frames": 120})


async def test_accepted_work_that_nobody_ends_times_out_and_is_sent_again(app: App, render: AnyHandler) -> None:
    async with using(app, now=NOW) as t:
        task = await render.now(film=7)
        t.answer_next(render, status=202, times=2)
        await t.drain()
        await t.advance(minutes=9)
        assert len(t.requests(render)) == 1
        await t.advance(minutes=20)
        assert len(t.requests(render)) == 2
        assert t.task(task).state is State.FAILED
        first, second = await app.attempts(task)
        assert (first.outcome, second.outcome) == (Outcome.TIMED_OUT, Outcome.TIMED_OUT)


async def test_accepted_work_may_fail_and_be_cancelled(app: App, render: AnyHandler) -> None:
    async with using(app, now=NOW) as t:
        failing, cancelled = await render.now(film=7), await render.now(film=8)
        t.answer_next(render, status=202, times=3)
        await t.drain()
        assert (await t.complete(failing, error=OSError("no disk"))).state is State.PENDING
        await app.cancel(cancelled)
        await t.advance(29)
        assert t.task(cancelled).cancelling
        await t.advance(1)
        assert t.task(cancelled).state is State.CANCELLED
        with pytest.raises(InvalidValue, match="nobody outside works on"):
            await t.complete(cancelled)


async def test_without_a_callback_a_202_is_a_success(app: App) -> None:
    ping = app.http("ping", "https://render.example/jobs")
    async with using(app, now=NOW) as t:
        t.answer_next(ping, status=202)
        task = await ping.now()
        await t.drain()
        assert t.task(task).state is State.SUCCEEDED
        [request] = t.requests(ping)
        assert "duetime-callback" not in request.headers


@pytest.mark.parametrize("bounds", [{"within": 0}, {"within": -1}, {"within": 1e12}, {"within": 60, "silence": 0}])
def test_a_callback_has_sensible_bounds(bounds: dict[str, float]) -> None:
    with pytest.raises(InvalidValue):
        Callback(**bounds)


async def test_a_redirect_to_another_host_gets_no_callback_token(app: App) -> None:
    render = app.http("render", "https://render.example/jobs", callback=Callback(within=60), redirects="any")
    async with using(app, now=NOW) as t:
        t.answer_next(render, status=307, headers={"Location": "https://other.example/jobs"})
        t.answer_next(render, status=202)
        await render.now()
        await t.drain()
        first, second = t.requests(render)
    assert "duetime-callback-token" in first.headers
    assert {"duetime-callback", "duetime-callback-token"}.isdisjoint(second.headers)
