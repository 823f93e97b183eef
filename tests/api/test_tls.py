"""A server that speaks TLS itself."""

from __future__ import annotations

import ssl
from pathlib import Path

import aiohttp
import pytest
import trustme

from duetime import App, InvalidValue
from duetime.api.server import Server
from tests.api.conftest import Client
from tests.api.pulling import register


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def files(authority: trustme.CA, tmp_path: Path) -> tuple[Path, Path]:
    """A certificate for loopback, with its chain, and its key."""
    issued, certificate, key = authority.issue_cert("127.0.0.1"), tmp_path / "server.pem", tmp_path / "server.key"
    for blob in issued.cert_chain_pems:
        blob.write_to_path(str(certificate), append=True)
    issued.private_key_pem.write_to_path(str(key))
    return certificate, key


@pytest.mark.each_store
@pytest.mark.covers("XXL.12")
async def test_workers_in_any_language_have_a_token_for_their_handlers_and_an_encrypted_transport(
    app: App, authority: trustme.CA, files: tuple[Path, Path]
) -> None:
    async with app:
        token = (await app.tokens.create("resizers", scopes=["submit", "work"], handlers=["resize"])).token
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    async with Server(app, port=0, certificate=files[0], key=files[1]).running() as server:
        assert server.url.startswith("https://127.0.0.1:")
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusting)) as session:
            http = Client(session, server, token)
            worker = await register(http)
            task = await http.submit("resize", payload={"width": 7})
            [claimed] = await worker.claim(wait=60)
            assert (claimed["id"], claimed["payload"]) == (task["id"], {"width": 7})
            assert await worker.complete(claimed) == ("accepted", "succeeded")
            await http.problem("POST", "/v1/workers", {"handlers": {"charge": {}}}, status=403)
            await http.bearing(None).problem("GET", "/v1/tasks", status=401)
            with pytest.raises(aiohttp.ClientError):
                await session.get(server.url.replace("https", "http"))
        async with aiohttp.ClientSession() as strangers:  # who do not know the authority
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await strangers.get(server.url)


def test_files_that_are_no_certificate_and_key_are_refused_at_once(app: App, files: tuple[Path, Path], tmp_path: Path) -> None:
    certificate, key = files
    other = tmp_path / "other.key"
    trustme.CA().issue_cert("127.0.0.1").private_key_pem.write_to_path(str(other))
    for wrong in ((certificate, None), (certificate, other), (key, key), (tmp_path / "nowhere.pem", key)):
        with pytest.raises(InvalidValue, match=r"no certificate and key can be read from .*; both are files in PEM"):
            Server(app, port=0, certificate=wrong[0], key=wrong[1])
    with pytest.raises(InvalidValue, match="of no use without a certificate"):
        Server(app, port=0, key=key)
