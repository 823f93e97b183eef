"""Attack: bytes that are no request, nearly one, or two at once. Each is refused, the log stays quiet, and the server goes on."""

from __future__ import annotations

import asyncio
import logging
import random

import pytest

from duetime import App
from tests.api.conftest import served
from tests.attacks.raw import GET, POST, Raw, answered

CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
NOT_HTTP = {
    "null bytes": b"\0" * 100,
    "the hello of TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)),
    "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/2 in the request line": b"GET /livez HTTP/2.0\r\nHost: 127.0.0.1\r\n\r\n",
    "HTTP/0.9 in the request line": b"GET /livez HTTP/0.9\r\n\r\n",
    "a method nobody knows": b"BREW /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "an address of a proxy": b"CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n",
    "an address without a host": b"GET http:// HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "an address that is not ASCII": b"GET /\xff HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "a null byte in a header": GET + b"A: x\0y\r\n\r\n",
    "a header without a name": GET + b": x\r\n\r\n",
    "a folded header": GET + b"A: x\r\n y\r\n\r\n",
    "lines that end in LF alone": GET.replace(b"\r\n", b"\n") + b"\n",
    "a chunk whose size is no number": CHUNKED + b"zz\r\n{}\r\n0\r\n\r\n",
    "a chunk of negative size": CHUNKED + b"-1\r\n{}\r\n0\r\n\r\n",
    "a chunk of endless size": CHUNKED + b"f" * 20 + b"\r\n{}\r\n0\r\n\r\n",
    "a chunk that is longer than it says": CHUNKED + b"2\r\n{}{}\r\n0\r\n\r\n",
    "two lengths": POST + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
    "two different lengths": POST + b"Content-Length: 2\r\nContent-Length: 40\r\n\r\n{}",
    "a list of lengths": POST + b"Content-Length: 2, 2\r\n\r\n{}",
    "a signed length": POST + b"Content-Length: +2\r\n\r\n{}",
    "a length and chunks": POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + GET + b"\r\n",
    "chunks twice": POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks that are not the last coding": POST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
}
UNUSUAL = {
    "an address in absolute form": (b"GET http://127.0.0.1/livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 200),
    "all addresses": (b"OPTIONS * HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 404),
    "two slashes": (b"GET // HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 404),
    "a name that is not UTF-8": (b"GET /v1/tasks/%ff HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 400),
    "an upgrade to a web socket": (GET + b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\r\n", 200),
    "an upgrade to HTTP/2": (GET + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n\r\n", 200),
    "a host that is no name": (b"GET /v1/tasks HTTP/1.1\r\nHost: [::1\r\n\r\n", 403),
    "an origin that is no address": (b"GET /v1/tasks HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: http://[x\r\n\r\n", 403),
    "a token that is not ASCII": (b"GET /v1/tasks HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer \xff\r\n\r\n", 200),
    "empty lines before the request": (b"\r\n\r\n" + GET + b"\r\n", 200),
}


def is_quiet(caplog: pytest.LogCaptureFixture) -> bool:
    return not [record for record in caplog.records if record.levelno >= logging.WARNING or record.exc_info]


@pytest.mark.parametrize("name", NOT_HTTP)
async def test_what_is_not_http_is_refused_once_and_not_logged(app: App, name: str, caplog: pytest.LogCaptureFixture) -> None:
    async with served(app) as http:
        raw = await Raw.connect(http.url)
        await raw.send(NOT_HTTP[name])
        answer = await raw.rest()
        assert answer.startswith(b"HTTP/1.1 400 "), answer
        assert answer.count(b"HTTP/1.1 ") == 1
        assert b'"type":"urn:duetime:problem:bad-request"' in answer
        raw.close()
        assert 'duetime_http_requests_total{route="(none)",status="400"} 1.0' in (await http("GET", "/metrics")).data.decode()
    assert is_quiet(caplog), caplog.text


@pytest.mark.parametrize("name", UNUSUAL)
async def test_an_unusual_request_is_answered_and_not_logged(app: App, name: str, caplog: pytest.LogCaptureFixture) -> None:
    data, status = UNUSUAL[name]
    async with served(app) as http:
        assert (await answered(http.url, data)).startswith(b"HTTP/1.1 %d " % status)
    assert is_quiet(caplog), caplog.text


async def test_a_request_is_answered_also_if_garbage_follows_it(app: App, caplog: pytest.LogCaptureFixture) -> None:
    async with served(app) as http:
        raw = await Raw.connect(http.url)
        await raw.send(GET + b"\r\n" + GET + b"\r\n\0\0\0")
        answers = (await raw.rest()).split(b"HTTP/1.1 ")[1:]
        assert [answer[:3] for answer in answers] == [b"200", b"200"]
        raw.close()
    assert is_quiet(caplog), caplog.text


@pytest.mark.parametrize("seed", range(4))
async def test_random_damage_to_requests_leaves_no_trace_in_the_log(app: App, seed: int, caplog: pytest.LogCaptureFixture) -> None:
    chance = random.Random(seed)
    seeds = [*NOT_HTTP.values(), *(data for data, _ in UNUSUAL.values()), GET + b"\r\n", CHUNKED + b"2\r\n{}\r\n0\r\nA: b\r\n\r\n"]

    def damaged() -> bytes:
        data = bytearray(chance.choice(seeds) + chance.choice(seeds))
        for _ in range(chance.randrange(1, 6)):
            match chance.randrange(3):
                case 0:
                    data[chance.randrange(len(data))] = chance.randrange(256)
                case 1:
                    del data[chance.randrange(len(data)) :][: chance.randrange(20)]
                case _:
                    data[chance.randrange(len(data)) :][:0] = chance.randbytes(chance.randrange(8))
        return bytes(data[: chance.randrange(1, len(data))])

    async with served(app, arrive_within=0.5) as http:  # so that half a request is answered too
        await asyncio.gather(*(answered(http.url, damaged()) for _ in range(60)))
        await http("GET", "/livez")
    assert is_quiet(caplog), caplog.text
