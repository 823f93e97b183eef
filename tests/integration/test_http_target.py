"""HTTP handlers against real servers on loopback: good ones, slow ones and hostile ones."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import standardwebhooks
import trustme

from duetime import App, Basic, Bearer, RetryPolicy, Task, webhooks
from duetime.app.handlers import AnyHandler
from duetime.client.insight import AttemptInfo
from duetime.errors import InvalidValue
from duetime.model.addresses import AddressRules
from tests.chaos.fleet import until
from tests.servers.http import Conversation, Server, Talk, answering, serving
from tests.servers.waiting import PATIENCE

ONCE = RetryPolicy.none()


@pytest.fixture
def app(tmp_path: Path) -> App:
    return App(f"sqlite:///{tmp_path / 'duetime.db'}", user="test")


async def run(app: App, handler: AnyHandler, addresses: AddressRules | None = None, **payload: Any) -> AttemptInfo:
    """Run one task of a handler and return its last attempt."""
    async with app.worker(addresses=addresses):
        task = await handler.now(**payload)
        await ended(app, task)
        return (await app.attempts(task))[-1]


async def ended(app: App, task: Task[Any]) -> None:
    await app.client.wait(task.id, timeout=PATIENCE)


def detail(attempt: AttemptInfo) -> dict[str, Any]:
    assert attempt.detail is not None
    return attempt.detail


def error_of(attempt: AttemptInfo) -> tuple[str, str]:
    assert attempt.error is not None
    return attempt.error.type, attempt.error.message


@pytest.mark.covers("CJO.2", "CJO.4")
async def test_a_request_reaches_the_server_as_it_was_declared(app: App) -> None:
    async with serving(answering(200, b'{"number":"r1"}', "Content-Type: application/json")) as server:
        charge = app.http(
            "charge", server.url("/charges/{payload.id}?note={payload.note}"), method="PUT", body={"a": ["{payload.amount}"]},
            headers={"X-Tenant": "{meta.tenant}"}, auth=Basic("ada", "sesame"),
        )  # fmt: skip
        async with app.worker():
            task = await charge.options(meta={"tenant": "blue"}).now(id="a/../b?c", note="ü&x=1", amount=1.5)
            assert await app.result(task, timeout=PATIENCE) == {"number": "r1"}
            [attempt] = await app.attempts(task)
    [received] = server.received
    assert (received.method, received.path) == ("PUT", "/charges/a%2F..%2Fb%3Fc?note=%C3%BC%26x%3D1")
    assert msgspec.json.decode(received.body) == {"a": [1.5]}
    assert received.headers["x-tenant"] == "blue"
    assert received.headers["authorization"] == "Basic YWRhOnNlc2FtZQ=="
    assert received.headers["idempotency-key"] == f'"{task.id}"'
    assert received.headers["accept-encoding"] == "identity"
    assert (detail(attempt)["status"], detail(attempt)["address"]) == (200, f"127.0.0.1:{server.port}")
    assert detail(attempt)["phases"].keys() == {"connect", "first_byte", "body", "total"}
    assert "sesame" not in str(attempt)


async def test_the_answers_body_is_the_attempts_output(app: App) -> None:
    async with serving(answering(500, b"line one\nline two", "Content-Type: text/plain")) as server:
        ask = app.http("ask", server.url(), method="GET", retry=ONCE, keep=8)
        async with app.worker():
            task = await ask.now()
            await ended(app, task)
        [output] = await app.output.read(task)
    assert output.text == "line one\n… 9 bytes more\n"


async def test_a_connection_is_used_again_and_says_so(app: App) -> None:
    async with serving(answering(204)) as server:
        ping = app.http("ping", server.url(), concurrency=1)
        async with app.worker():
            tasks = [await ping.now() for _ in range(3)]
            for task in tasks:
                await app.result(task, timeout=PATIENCE)
            details = [detail((await app.attempts(task))[0]) for task in tasks]
    assert sorted(each.get("reused", False) for each in details) == [False, True, True]


async def test_standard_webhooks_verifies_every_request_also_while_the_secret_is_replaced(app: App) -> None:
    old, new = webhooks.new_secret(), webhooks.new_secret()
    async with serving(answering(204)) as server:
        before = app.http("before", server.url(), sign=old)
        during = app.http("during", server.url(), sign=[new, old])
        empty = app.http("empty", server.url(), sign=new, method="GET")
        async with app.worker():
            for handler in (before, during, empty):
                await app.result(await handler.now(order=7), timeout=PATIENCE)
    signed, replaced, without = server.received
    for secret, received in [(old, signed), (old, replaced), (new, replaced), (new, without)]:
        if received.body:  # this library reads it as JSON too
            standardwebhooks.Webhook(secret).verify(received.body, received.headers)
        assert webhooks.verify(received.headers, received.body, secret).id == received.headers["duetime-task"]
    with pytest.raises(standardwebhooks.WebhookVerificationError):
        standardwebhooks.Webhook(new).verify(signed.body, signed.headers)
    for changed in (
        {"webhook-id": "other"},
        {"webhook-timestamp": str(int(signed.headers["webhook-timestamp"]) + 1)},
    ):
        with pytest.raises(standardwebhooks.WebhookVerificationError):
            standardwebhooks.Webhook(old).verify(signed.body, {**signed.headers, **changed})
    with pytest.raises(standardwebhooks.WebhookVerificationError):
        standardwebhooks.Webhook(old).verify(signed.body + b" ", signed.headers)


# ---- servers that misbehave ----


async def _silent(conversation: Conversation) -> None:
    await conversation.request()
    await conversation.reader.read()  # until the client goes


async def _byte_by_byte(conversation: Conversation) -> None:
    await conversation.request()
    await conversation.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    while True:
        await conversation.send(b"x")
        await asyncio.sleep(0.05)


async def _endless(conversation: Conversation) -> None:
    await conversation.request()
    await conversation.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        await conversation.send(b"10000\r\n" + b"x" * 65_536 + b"\r\n")


async def _announces_much(conversation: Conversation) -> None:
    await conversation.request()
    await conversation.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10737418240\r\n\r\n")
    await conversation.reader.read()


async def _long_header(conversation: Conversation) -> None:
    await conversation.request()
    await conversation.send(b"HTTP/1.1 200 OK\r\nX-Long: ")
    while True:
        await conversation.send(b"x" * 65_536)


async def _many_headers(conversation: Conversation) -> None:
    await conversation.request()
    await conversation.send(b"HTTP/1.1 200 OK\r\n")
    while True:
        await conversation.send(b"X-Many: 1\r\n" * 1_000)


async def _half(conversation: Conversation) -> None:
    await conversation.request()
    await conversation.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf of it")


async def _gone(conversation: Conversation) -> None:
    await conversation.request()


async def _reset(conversation: Conversation) -> None:
    await conversation.request()
    raw: socket.socket = conversation.writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    conversation.writer.transport.abort()


async def _nonsense(conversation: Conversation) -> None:
    await conversation.request()
    await conversation.send(b"220 mail.example ESMTP\r\n\r\n")


@pytest.mark.parametrize(
    ("talk", "kind", "phase"),
    [
        (_endless, "ResponseTooLarge", "body"),
        (_announces_much, "ResponseTooLarge", "body"),
        (_long_header, "ResponseTooLarge", "first_byte"),
        (_many_headers, "ResponseTooLarge", "first_byte"),
        (_half, "IncompleteBody", "body"),
        (_gone, "ConnectionLost", "first_byte"),
        (_reset, "ConnectionLost", "first_byte"),
        (_nonsense, "BadAnswer", "first_byte"),
    ],
)
@pytest.mark.covers("CJO.5")
async def test_an_answer_that_is_none_is_a_failure_named_after_its_phase(app: App, talk: Talk, kind: str, phase: str) -> None:
    async with serving(talk) as server:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        attempt = await run(app, app.http("ask", server.url("/x?token=sesame"), retry=ONCE))
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert (attempt.outcome, error_of(attempt)[0], detail(attempt)["failed_in"]) == ("failed", kind, phase)
    assert error_of(attempt)[1].startswith(f"POST http://127.0.0.1:{server.port}/x")
    assert "sesame" not in str(attempt)
    assert grown < 50_000, "kilobytes"


async def test_what_comes_after_an_answer_is_not_taken_for_the_next_one(app: App) -> None:
    forged = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 8\r\n\r\n"forged"'

    async def talk(conversation: Conversation) -> None:
        while (request := await conversation.request()) is not None:
            body = b'"%s"' % request.path.removeprefix("/").encode()
            head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
            await conversation.send(head + body + forged)

    async with serving(talk) as server:
        ask = app.http("ask", server.url("/{payload.number}"), concurrency=1, retry=ONCE)
        async with app.worker():
            tasks = [await ask.now(number=number) for number in range(10)]
            assert [await app.result(task, timeout=PATIENCE) for task in tasks] == [str(number) for number in range(10)]


@pytest.mark.parametrize(
    ("talk", "phase", "sentence"),
    [(_silent, "first_byte", "it waited for the answer"), (_byte_by_byte, "body", "it read the answer's body")],
)
async def test_a_timeout_names_the_phase_that_was_under_way_and_frees_the_slot(app: App, talk: Talk, phase: str, sentence: str) -> None:
    async def once(conversation: Conversation) -> None:
        await (talk if not server.received else answering(204))(conversation)

    async with serving(once) as server:
        ask = app.http("ask", server.url(), timeout=1.5, retry=ONCE, concurrency=1)
        async with app.worker():
            task, following = await ask.now(), await ask.options(timeout=60).now()
            await ended(app, task)
            [attempt] = await app.attempts(task)
            assert await app.result(following, timeout=PATIENCE) is None
    assert (attempt.outcome, detail(attempt)["failed_in"]) == ("timed_out", phase)
    assert error_of(attempt) == ("TimedOut", f"ran longer than its timeout of 1.5 s; meanwhile {sentence}")


async def test_a_cancelled_task_ends_its_request(app: App) -> None:
    begun, gone = asyncio.Event(), asyncio.Event()

    async def talk(conversation: Conversation) -> None:
        await conversation.request()
        begun.set()
        await conversation.reader.read()
        gone.set()

    async with serving(talk) as server:
        ask = app.http("ask", server.url())
        async with app.worker():
            task = await ask.now()
            await asyncio.wait_for(begun.wait(), PATIENCE)
            await app.cancel(task)
            await ended(app, task)
            await asyncio.wait_for(gone.wait(), PATIENCE)
            [attempt] = await app.attempts(task)
    assert attempt.outcome == "cancelled"


async def test_targets_that_never_end_keep_to_their_slots_and_hold_nobody_up(app: App) -> None:
    """Four handlers with servers that never answer, send a byte at a time, or never stop sending: all slots taken, hundreds waiting."""
    over, slots, held = asyncio.Event(), 5, ("/silent", "/trickle", "/bomb")
    open_now: Counter[str] = Counter()
    most: Counter[str] = Counter()

    async def talk(conversation: Conversation) -> None:
        received = await conversation.request()
        assert received is not None
        kind = received.path
        open_now[kind] += 1
        most[kind] = max(most[kind], open_now[kind])
        try:
            if kind == "/silent":
                await over.wait()
            elif kind == "/trickle":
                await conversation.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
                while not over.is_set():
                    await conversation.send(b"x")
                    await asyncio.sleep(0.05)
            elif kind == "/endless":
                await conversation.send(b"HTTP/1.1 200 OK\r\n\r\n")
                while not over.is_set():
                    await conversation.send(b"x" * 65_536)  # it is cut off after a megabyte, and the next one begins
            else:
                head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 900000\r\n\r\n"
                await conversation.send(head + b"\x1f\x8b" + b"\0" * 899_000)
                await over.wait()
        finally:
            open_now[kind] -= 1

    @app.task(concurrency=2)
    async def quick(number: int) -> int:
        return number

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with serving(talk) as server:
        kinds = ["silent", "trickle", "endless", "bomb"]
        bad = [app.http(kind, server.url(f"/{kind}"), method="GET", concurrency=slots, retry=ONCE, timeout=3_600) for kind in kinds]
        await app.submit_many([handler.new() for handler in bad for _ in range(100)])
        async with app.worker(grace=0):
            await until("all slots are taken", lambda: open_now["/endless"] and min(open_now[kind] for kind in held) == slots)
            for number in range(100):  # each starts while all slots of the others are taken
                assert await app.result(await quick.now(number=number), timeout=PATIENCE) == number
            assert [most[kind] for kind in held] == [slots] * 3
            assert most["/endless"] <= 2 * slots, "the server learns of a closed connection after the next one was opened"
            over.set()
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1_024
    assert grown < 100_000_000


async def test_a_compressed_answer_is_not_unpacked(app: App) -> None:
    bomb = b"\x1f\x8b" + b"\0" * 1_000
    async with serving(answering(200, bomb, "Content-Encoding: gzip", "Content-Type: application/json")) as server:
        attempt = await run(app, app.http("ask", server.url()))
    assert (attempt.outcome, detail(attempt)["bytes"]) == ("succeeded", len(bomb))
    assert "not the JSON" in detail(attempt)["note"]


async def test_nobody_listening_is_a_refused_connection(app: App) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        attempt = await run(app, app.http("ask", f"http://127.0.0.1:{unused.getsockname()[1]}/", retry=ONCE))
    assert (error_of(attempt)[0], detail(attempt)["failed_in"]) == ("ConnectRefused", "connect")


async def test_a_connection_that_is_never_accepted_times_out_while_connecting(app: App) -> None:
    with contextlib.ExitStack() as stack:
        full = stack.enter_context(socket.socket())
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(3):  # fill the queue of connections that nobody accepts
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                waiting.connect(full.getsockname())
        attempt = await run(app, app.http("ask", f"http://127.0.0.1:{full.getsockname()[1]}/", retry=ONCE, connect=0.3))
    assert (attempt.outcome, detail(attempt)["failed_in"]) == ("timed_out", "connect")
    assert "no connection within connect=0.3 s; meanwhile it connected" in error_of(attempt)[1]


async def test_an_unknown_name_is_a_failed_lookup(app: App) -> None:
    attempt = await run(app, app.http("ask", "http://no-such-host.invalid/", retry=ONCE))
    assert (error_of(attempt)[0], detail(attempt)["failed_in"]) == ("DnsFailed", "dns")


# ---- redirects and the guard ----


@pytest.mark.parametrize("location", ["http://169.254.169.254/latest/meta-data", "http://127.0.0.1:1/", "http://[::ffff:127.0.0.1]/"])
@pytest.mark.covers("CJO.12")
async def test_a_redirect_to_what_is_inside_is_refused_for_good(app: App, location: str) -> None:
    async with serving(answering(307, b"", f"Location: {location}")) as server:
        attempt = await run(app, app.http("ask", server.url(), redirects="any", auth=Bearer("sesame")))
    assert (attempt.outcome, error_of(attempt)[0]) == ("fatal", "AddressRefused")


async def test_credentials_do_not_follow_a_redirect_to_another_origin(app: App) -> None:
    async with serving(answering(204)) as other, serving(answering(308, b"", f"Location: {other.url('/there')}")) as first:
        attempt = await run(
            app,
            app.http("ask", first.url(), redirects="any", auth=Bearer("sesame"), headers={"X-Key": "sesame"}, sign=webhooks.new_secret()),
            AddressRules(loopback=True),
            order=7,
        )
    assert attempt.outcome == "succeeded"
    [at_home], [abroad] = first.received, other.received
    assert at_home.headers["authorization"] == "Bearer sesame"
    assert (abroad.method, abroad.path, abroad.body) == ("POST", "/there", b'{"order":7}')
    assert not {"authorization", "x-key", "webhook-signature", "cookie"} & abroad.headers.keys()
    assert abroad.headers["duetime-task"] == at_home.headers["duetime-task"]


async def test_cookies_are_neither_kept_nor_sent(app: App) -> None:
    async with serving(answering(200, b"", "Set-Cookie: session=1; Path=/")) as server:
        ping = app.http("ping", server.url(host="localhost"), concurrency=1)  # clients keep no cookies of addresses anyway
        async with app.worker():
            for _ in range(2):
                await app.result(await ping.now(), timeout=PATIENCE)
    assert [received.headers.get("cookie") for received in server.received] == [None, None]


async def test_a_templated_host_is_not_trusted(app: App) -> None:
    async with serving(answering(204)) as server:
        ask = app.http("ask", "http://{payload.host}/", hosts=[f"127.0.0.1:{server.port}"])
        attempt = await run(app, ask, host=f"127.0.0.1:{server.port}")
    assert (attempt.outcome, error_of(attempt)[0], server.received) == ("fatal", "AddressRefused", [])


# ---- TLS ----


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def trusting(authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "authority.pem"
    authority.cert_pem.write_to_path(path)
    monkeypatch.setenv("SSL_CERT_FILE", str(path))


def tls_of(certificate: trustme.LeafCert) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    return context


TlsServer = Callable[[trustme.LeafCert], Awaitable[Server]]


@pytest.fixture
async def tls_server() -> AsyncIterator[TlsServer]:
    async with contextlib.AsyncExitStack() as stack:

        async def start(certificate: trustme.LeafCert) -> Server:
            return await stack.enter_async_context(serving(answering(204), tls=tls_of(certificate)))

        yield start


@pytest.mark.usefixtures("trusting")
async def test_the_certificates_expiry_and_the_handshake_are_noted(app: App, authority: trustme.CA, tls_server: TlsServer) -> None:
    expires = datetime(2040, 5, 6, 7, 8, 9, tzinfo=UTC)
    server = await tls_server(authority.issue_cert("localhost", not_after=expires))
    ping = app.http("ping", server.url(host="localhost", scheme="https"), concurrency=1)
    async with app.worker():
        tasks = [await ping.now() for _ in range(2)]
        for task in tasks:
            await app.result(task, timeout=PATIENCE)
        details = [detail((await app.attempts(task))[0]) for task in tasks]
    assert [each["certificate_expires"] for each in details] == ["2040-05-06T07:08:09Z"] * 2
    assert details[0]["phases"].keys() == {"dns", "connect", "tls", "first_byte", "body", "total"}
    assert (details[1]["reused"], "tls" in details[1]["phases"]) == (True, False)


@pytest.mark.parametrize("wrong", ["expired", "another name", "self-signed"])
@pytest.mark.usefixtures("trusting")
async def test_a_certificate_that_proves_nothing_is_a_failed_handshake(
    app: App, authority: trustme.CA, tls_server: TlsServer, wrong: str
) -> None:
    yesterday = datetime.now(UTC) - timedelta(days=1)
    certificate, reason = {
        "expired": (authority.issue_cert("localhost", not_after=yesterday), "expired"),
        "another name": (authority.issue_cert("other.example"), "Hostname mismatch"),
        "self-signed": (trustme.CA().issue_cert("localhost"), "unable to get local issuer"),
    }[wrong]
    server = await tls_server(certificate)
    attempt = await run(app, app.http("ask", server.url(host="localhost", scheme="https"), retry=ONCE))
    assert (attempt.outcome, error_of(attempt)[0], detail(attempt)["failed_in"]) == ("failed", "TlsFailed", "tls")
    assert reason in error_of(attempt)[1]
    assert server.received == []


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.usefixtures("trusting")
async def test_a_client_certificate_is_shown_where_one_is_required(
    app: App, authority: trustme.CA, tmp_path: Path, version: ssl.TLSVersion
) -> None:
    context = tls_of(authority.issue_cert("localhost"))
    context.maximum_version = version
    context.verify_mode = ssl.CERT_REQUIRED
    authority.configure_trust(context)
    own = authority.issue_cert("client.example").private_key_and_cert_chain_pem
    path = tmp_path / "client.pem"
    own.write_to_path(path)
    async with serving(answering(204), tls=context) as server:
        url = server.url(host="localhost", scheme="https")
        handlers = {
            "none": app.http("none", url, retry=ONCE),
            "text": app.http("text", url, certificate=own.bytes().decode()),
            "file": app.http("file", url, certificate=str(path)),
        }
        ends = {name: await run(app, handler) for name, handler in handlers.items()}
    assert [attempt.outcome for attempt in ends.values()] == ["failed", "succeeded", "succeeded"]
    kind, message = error_of(ends["none"])
    assert kind == "TlsFailed" or "does it require a client's certificate?" in message  # TLS 1.3 refuses after the handshake


async def test_a_client_certificate_that_cannot_be_read_is_told_when_the_worker_starts(app: App) -> None:
    app.http("ask", "https://shop.example/", certificate="-----BEGIN NOTHING-----")
    with pytest.raises(InvalidValue, match="client's certificate cannot be used"):
        async with app.worker():
            pass
