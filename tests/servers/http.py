"""HTTP servers on loopback that tests shape byte by byte, and certificates for them."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NamedTuple

Talk = Callable[["Conversation"], Awaitable[None]]


class Received(NamedTuple):
    """One request as a server has read it; the names of headers are in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Conversation:
    """One connection, from the server's side."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, received: list[Received]) -> None:
        self.reader = reader
        self.writer = writer
        self._received = received

    async def request(self) -> Received | None:
        """Read the next request; None if the client has gone."""
        try:
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        first, *lines = head.strip().split("\r\n")
        method, path, _ = first.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        received = Received(method, path, headers, body)
        self._received.append(received)
        return received

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self, status: int = 200, body: bytes = b"", *headers: str) -> None:
        lines = [f"HTTP/1.1 {status} Some", f"Content-Length: {len(body)}", *headers]
        await self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + body)


class Server(NamedTuple):
    """A server that runs: its port, and what it has received."""

    port: int
    received: list[Received]

    def url(self, path: str = "/", *, host: str = "127.0.0.1", scheme: str = "http") -> str:
        return f"{scheme}://{host}:{self.port}{path}"


@contextlib.asynccontextmanager
async def serving(talk: Talk, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    """Serve connections on a free port of loopback for the length of a block."""
    received: list[Received] = []
    open_connections: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        open_connections.add(task)
        try:
            await talk(Conversation(reader, writer, received))
        except (ConnectionError, asyncio.CancelledError, asyncio.IncompleteReadError):
            pass
        finally:
            open_connections.discard(task)
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls)
    try:
        yield Server(server.sockets[0].getsockname()[1], received)
    finally:
        server.close()
        for task in tuple(open_connections):
            task.cancel()
        await asyncio.gather(*open_connections, return_exceptions=True)


def answering(status: int = 200, body: bytes = b"", *headers: str) -> Talk:
    """Answer every request in the same way."""

    async def talk(conversation: Conversation) -> None:
        while await conversation.request() is not None:
            await conversation.answer(status, body, *headers)

    return talk
