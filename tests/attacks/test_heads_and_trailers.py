"""Attack: heads and trailers without end, from somebody without a token."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from duetime import App
from duetime.api.protocol import MOST_HEAD, MOST_HEADERS, MOST_TARGET
from tests.api.conftest import Client, served, until
from tests.attacks.raw import GET, POST, Raw, answered

PIECE = b"X-Trailer-%012d: " + b"x" * 1_000 + b"\r\n"
FAR_TOO_MUCH = 100_000_000  # more than the buffers of the kernel take
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("size", [MOST_TARGET + 1, MOST_HEAD + 5_000])
@pytest.mark.parametrize("part", ["/%b", "/v1/tasks?error=%b"])
async def test_an_address_that_is_too_long_is_refused(http: Client, size: int, part: str) -> None:
    target = part.encode() % (b"a" * (size - len(part) + 2))
    answer = await answered(http.url, b"GET %b HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" % target)
    assert answer.startswith(b"HTTP/1.1 414 "), answer
    assert b"target-too-long" in answer


async def test_an_address_of_the_greatest_length_is_looked_up(http: Client) -> None:
    target = b"/" + b"a" * (MOST_TARGET - 1)
    assert (await answered(http.url, b"GET %b HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" % target)).startswith(b"HTTP/1.1 404 ")


@pytest.mark.parametrize("following", [b"\r\n", b""], ids=["whole", "without its end"])
async def test_a_head_of_seventy_kilobytes_is_refused_however_it_arrives(http: Client, following: bytes) -> None:
    answer = await answered(http.url, GET + b"X: " + b"a" * 70_000 + b"\r\n" + following)
    assert answer.startswith(b"HTTP/1.1 431 "), answer


async def test_a_large_head_behind_another_request_is_refused_too(http: Client) -> None:
    raw = await Raw.connect(http.url)
    await raw.send(GET + b"\r\n" + GET + b"X: " + b"a" * 70_000 + b"\r\n\r\n")
    assert [each[:3] for each in (await raw.rest()).split(b"HTTP/1.1 ")[1:]] == [b"200"]
    raw.close()


async def test_more_headers_than_anybody_needs_are_refused(http: Client) -> None:
    few = GET + b"a:\r\n" * (MOST_HEADERS - 1) + b"\r\n"
    assert (await answered(http.url, few)).startswith(b"HTTP/1.1 200 ")
    assert (await answered(http.url, GET + b"a:\r\n" * MOST_HEADERS + b"\r\n")).startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize("line", ["a line each", "one line", "in a chunk's extension"])
async def test_trailers_end_the_connection_before_they_fill_the_memory(app: App, line: str) -> None:
    async with app:
        await app.tokens.create("first", scopes=["admin"])
        async with served(app) as http:
            raw = await Raw.connect(http.url)
            await raw.send(CHUNKED)
            assert (await raw.head()).startswith(b"HTTP/1.1 401 ")
            begin = {"a line each": b"2\r\n{}\r\n0\r\n", "one line": b"2\r\n{}\r\n0\r\nX-Trailer: ", "in a chunk's extension": b"2;x="}[
                line
            ]
            await raw.send(begin)
            refused, sent = asyncio.create_task(raw.reader.readuntil(b"HTTP/1.1 431 ")), 0
            while not refused.done() and sent < FAR_TOO_MUCH:
                piece = PIECE % sent if line == "a line each" else PIECE[-1_002:-2]
                await raw.send(piece * 64)
                sent += 64 * len(piece)
                await asyncio.sleep(0)
            assert refused.done(), f"{sent:,} bytes were taken"
            await refused
            raw.close()


async def test_trailers_are_not_taken_for_headers(app: App) -> None:
    async with app:
        token = (await app.tokens.create("first", scopes=["admin"])).token
        async with served(app) as http:
            raw = await Raw.connect(http.url)
            await raw.send(CHUNKED)
            connection: Any = next(iter(http.server.server_state.connections))

            async def has_head() -> bool:
                return connection.cycle is not None

            await until(has_head, "the head has arrived")
            scope = connection.cycle.scope
            await raw.send(b"2\r\n{}\r\n0\r\nAuthorization: Bearer %b\r\n\r\n" % token.encode())
            assert (await raw.head()).startswith(b"HTTP/1.1 401 ")

            async def arrived() -> bool:
                return vars(connection)["_arriving"] is None

            await until(arrived, "the trailers have arrived")
            assert [name for name, _ in scope["headers"]] == [b"host", b"content-type", b"transfer-encoding"]
            raw.close()


async def test_many_small_chunks_are_a_body_and_no_head(http: Client) -> None:
    body = b'{"handler": "greet", "payload": {"name": "' + b"x" * 20_000 + b'"}, "delay": 60}'
    chunks = b"".join(b"1\r\n%c\r\n" % each for each in body)
    assert len(chunks) > MOST_HEAD
    raw = await Raw.connect(http.url)
    await raw.send(CHUNKED + chunks + b"0\r\nX-Checksum: 1\r\n\r\n")
    assert (await raw.head()).startswith(b"HTTP/1.1 201 ")
    raw.close()
