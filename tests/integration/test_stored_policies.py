"""Stored targets have the policies of declared ones: disabled after failures, own retention, a client certificate in a secret."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from duetime import App, DisableAfter, InvalidValue, RetryPolicy, Secret, State, StoredCommand, StoredHttp, StoredPublish
from duetime.model.addresses import AddressRules
from duetime.model.secrets import write_key
from duetime.secrets.keys import new_key
from duetime.targets.stored.definitions import Definition, read_definition, write_definition
from tests.chaos.fleet import until
from tests.servers.http import Conversation, answering, serving
from tests.servers.waiting import PATIENCE

LOOPBACK = AddressRules(loopback=True)
ONCE = RetryPolicy.none()
HTTP = '{"kind": "http", "url": "https://x.example", '


@pytest.fixture
async def app(store_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[App]:
    monkeypatch.setenv("DUETIME_SECRET_KEYS", write_key(new_key("a")))
    async with App(store_url) as app:
        yield app


@pytest.mark.each_store
@pytest.mark.covers("CJO.7")
async def test_a_stored_target_is_disabled_after_failures_and_opens_when_a_probe_succeeds(app: App) -> None:
    broken = True

    async def talk(conversation: Conversation) -> None:
        while await conversation.request() is not None:
            await conversation.answer(500 if broken else 200)

    async with serving(talk) as server:
        rule = DisableAfter(3, lasting=0, probe_every=1)
        await app.targets.put("ping", StoredHttp(url=server.url(), concurrency=1, retry=ONCE, disable_after=rule))
        for _ in range(3):
            await app.handler("ping").now()
        async with app.worker(targets=True, addresses=LOOPBACK):

            async def disabled() -> bool:
                return bool(await app.gates.list())

            await until("the gate is closed", disabled)
            [gate] = await app.gates.list()
            assert (gate.handler, gate.automatic) == ("ping", True)
            assert gate.note.startswith("disabled: ")
            broken = False
            waiting = await app.handler("ping").now()
            assert (await app.client.wait(waiting, timeout=PATIENCE)).state is State.SUCCEEDED
        assert await app.gates.list() == []


async def test_a_server_that_says_when_to_come_again_pauses_a_stored_handler(app: App) -> None:
    async with serving(answering(503, b"", "Retry-After: 3600")) as server:
        await app.targets.put("ping", StoredHttp(url=server.url(), concurrency=1))
        for _ in range(5):
            await app.handler("ping").now()
        async with app.worker(targets=True, addresses=LOOPBACK):

            async def paused() -> bool:
                return bool(await app.gates.list())

            await until("it is paused", paused)
    [gate] = await app.gates.list()
    assert "Retry-After" in gate.note


async def test_finished_tasks_are_kept_as_long_as_the_target_says(app: App) -> None:
    await app.targets.put("ping", StoredHttp(url="https://x.example", keep_succeeded=60, keep_failed=7_200))
    [handler] = [each for each in await app.handlers() if each.name == "ping"]
    assert handler.keep == {"succeeded": 60.0, "failed": 7_200.0}


async def test_the_client_certificate_is_read_from_its_secret(app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    context.verify_mode = ssl.CERT_REQUIRED
    authority.configure_trust(context)
    await app.secrets.put("client", authority.issue_cert("client.example").private_key_and_cert_chain_pem.bytes().decode())
    async with serving(answering(204), tls=context) as server:
        url = server.url(host="localhost", scheme="https")
        await app.targets.put("with", StoredHttp(url=url, certificate=Secret("client"), retry=ONCE))
        await app.targets.put("without", StoredHttp(url=url, retry=ONCE))
        async with app.worker(targets=True, addresses=LOOPBACK):
            states = [(await app.client.wait((await app.handler(name).now()).id, timeout=PATIENCE)).state for name in ("with", "without")]
    assert states == [State.SUCCEEDED, State.FAILED]


@pytest.mark.parametrize(
    "target",
    [
        StoredHttp(url="https://x.example", certificate=Secret("client"), disable_after=20, disable="collection", keep_dropped=0),
        StoredPublish(url="nats://x.example", to="a", disable_after=DisableAfter(5, lasting=60), keep_expired=9.5),
        StoredCommand(argv=["true"], disable_after=5, keep_cancelled=1),
    ],
)
def test_what_is_written_is_read_again(target: Definition) -> None:
    assert read_definition(write_definition(target)) == target


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: StoredHttp(url="https://x.example", certificate="-----BEGIN sesame"), "certificate: a stored target names the secret"),  # type: ignore[arg-type]
        (lambda: read_definition(HTTP + '"certificate": "sesame"}'), "certificate: must name the secret"),
        (lambda: StoredHttp(url="https://x.example", disable_after=0), "disable_after is how many failures in a row disable"),
        (lambda: read_definition(HTTP + '"disable": "all"}'), "disable: "),
        (lambda: StoredHttp(url="https://x.example", keep_failed=-1), "keep_failed must lie between 0 and"),
    ],
)  # fmt: skip
async def test_a_policy_that_cannot_work_is_refused(app: App, make: Any, message: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        await app.targets.put("ping", make())
    assert message in str(refused.value)
    assert "sesame" not in str(refused.value)
