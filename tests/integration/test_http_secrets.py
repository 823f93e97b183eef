"""HTTP handlers that send and sign with stored secrets, against receivers that send everything back."""

from __future__ import annotations

import base64
import ssl
from pathlib import Path
from typing import Any

import pytest
import standardwebhooks
import trustme

from duetime import App, Basic, Bearer, InvalidValue, Next, RetryPolicy, Secret, webhooks
from duetime.model.outcome import Outcome
from duetime.model.secrets import write_key
from duetime.secrets import reading
from duetime.secrets.keys import new_key
from duetime.testing import using
from tests.integration.test_http_target import ended, error_of, run
from tests.servers.http import answering, serving

VALUE = "sk-live-0123456789abcdef"
ONCE = RetryPolicy.none()


@pytest.fixture
def app(tmp_path: Path) -> App:
    return App(f"sqlite:///{tmp_path / 'duetime.db'}", user="test", secret_keys=write_key(new_key("2026a")))


async def test_the_newest_value_is_sent_and_shown_nowhere(app: App) -> None:
    await app.secrets.put("billing", "the value before")
    await app.secrets.put("billing", VALUE)
    async with serving(answering(204)) as server:
        for handler in (
            app.http("bearer", server.url(), auth=Bearer(Secret("billing"))),
            app.http("basic", server.url(), auth=Basic("ada", Secret("billing"))),
        ):
            assert VALUE not in str(await run(app, handler))
    bearer, basic = server.received
    assert bearer.headers["authorization"] == f"Bearer {VALUE}"
    assert base64.b64decode(basic.headers["authorization"].removeprefix("Basic ")).decode() == f"ada:{VALUE}"


async def test_all_good_values_sign(app: App) -> None:
    old, new = webhooks.new_secret(), webhooks.new_secret()
    await app.secrets.put("hook", old)
    await app.secrets.put("hook", new)
    async with serving(answering(204)) as server:
        await run(app, app.http("notify", server.url(), sign=Secret("hook")), order=7)
    [received] = server.received
    for secret in (old, new):
        assert standardwebhooks.Webhook(secret).verify(received.body, dict(received.headers)) == {"order": 7}


@pytest.mark.parametrize("status", [200, 400, 500])
async def test_a_receiver_that_sends_the_value_back_does_not_show_it(app: App, status: int) -> None:
    await app.secrets.put("billing", VALUE)
    basic = base64.b64encode(f"ada:{VALUE}".encode()).decode()
    body = f'{{"token":"{VALUE}","header":"Basic {basic}","text":"{VALUE}"}}'.encode()
    async with serving(answering(status, body, "Content-Type: application/json")) as server:
        ask = app.http("ask", server.url("/?key=" + VALUE), auth=Basic("ada", Secret("billing")), retry=ONCE, fatal=(400,))
        async with app.worker():
            task = await ask.now()
            await ended(app, task)
        shown = repr((await app.get(task), await app.attempts(task), await app.output.read(task)))
    assert "***" in shown
    assert VALUE not in shown
    assert basic not in shown


async def test_a_body_that_is_cut_in_the_middle_of_the_value_does_not_show_its_beginning(app: App) -> None:
    await app.secrets.put("billing", VALUE)
    async with serving(answering(500, f"wrong: {VALUE}".encode(), "Content-Type: text/plain")) as server:
        ask = app.http("ask", server.url(), auth=Bearer(Secret("billing")), retry=ONCE, keep=len("wrong: ") + 12)
        async with app.worker():
            task = await ask.now()
            await ended(app, task)
        [output] = await app.output.read(task)
    assert output.text == "wrong: ***\n… 12 bytes more\n"


async def test_middleware_sees_no_value_in_a_failure(app: App) -> None:
    seen: list[str] = []

    @app.middleware
    async def watch(ctx: Any, call_next: Next) -> Any:
        try:
            return await call_next()
        except Exception as error:
            seen.append(repr(error))
            raise

    await app.secrets.put("billing", VALUE)
    body = f'{{"outcome":"failed","message":"unknown key {VALUE}"}}'.encode()
    async with serving(answering(500, body, "Content-Type: application/vnd.duetime+json")) as server:
        await run(app, app.http("ask", server.url("/" + VALUE), auth=Bearer(Secret("billing")), retry=ONCE))
    assert len(seen) == 1
    assert VALUE not in seen[0]


async def test_a_missing_secret_or_one_that_cannot_be_used_ends_the_task_before_anything_is_sent(app: App) -> None:
    await app.secrets.put("lines", "two\nlines")
    await app.secrets.put("plain", "no signing secret")
    async with serving(answering(204)) as server:
        missing = await run(app, app.http("missing", server.url(), auth=Bearer(Secret("nothing"))))
        lines = await run(app, app.http("lines", server.url(), auth=Bearer(Secret("lines"))))
        plain = await run(app, app.http("plain", server.url(), sign=Secret("plain")))
    assert server.received == []
    assert {missing.outcome, lines.outcome, plain.outcome} == {Outcome.FATAL}
    assert error_of(missing)[0] == "SecretNotFound"
    assert error_of(lines) == (
        "Fatal",
        "Secret('lines') cannot be sent as a header, because it is not text on one line; put it again without line breaks",
    )
    assert error_of(plain)[1].startswith("Secret('plain') cannot sign requests: secret must be")
    assert "no signing secret" not in str(plain)


async def test_in_a_test_the_value_is_given_plainly(app: App) -> None:
    charge = app.http("charge", "https://billing.example/", auth=Bearer(Secret("billing")))
    async with using(app) as t:
        t.secrets["billing"] = "test-key"
        t.answer_next(charge, status=204)
        await charge.now()
        [ran] = await t.drain()
        assert ran.outcome is Outcome.SUCCEEDED
        [request] = t.requests(charge)
        assert request.headers["authorization"] == "Bearer test-key"


def test_what_is_neither_text_nor_a_secret_is_refused(app: App) -> None:
    with pytest.raises(InvalidValue, match="or a Secret"):
        Bearer(7)  # type: ignore[arg-type]
    with pytest.raises(InvalidValue):
        app.http("ask", "https://a.example/", sign=[Secret("hook"), "nonsense"])


async def test_a_stored_client_certificate_is_shown_and_a_new_value_is_used_without_a_restart(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, former = trustme.CA(), trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    monkeypatch.setattr(reading, "KEEP", 0.0)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    context.maximum_version = ssl.TLSVersion.TLSv1_2  # refuses in the handshake
    context.verify_mode = ssl.CERT_REQUIRED
    authority.configure_trust(context)
    old, new = (each.issue_cert("client.example").private_key_and_cert_chain_pem.bytes().decode() for each in (former, authority))
    async with serving(answering(204), tls=context) as server:
        ask = app.http("ask", server.url(host="localhost", scheme="https"), certificate=Secret("client"), retry=ONCE)
        ends = []
        async with app.worker():
            for value in ("no certificate", old, new):
                await app.secrets.put("client", value)
                task = await ask.now()
                await ended(app, task)
                ends.append((await app.attempts(task))[-1])
    wrong, refused, right = ends
    assert (wrong.outcome, error_of(wrong)[0]) == ("fatal", "CertificateUnusable")
    assert "no certificate" not in error_of(wrong)[1]
    assert (refused.outcome, error_of(refused)[0]) == ("failed", "TlsFailed")
    assert right.outcome == "succeeded"
    assert "PRIVATE KEY" not in str(ends)
