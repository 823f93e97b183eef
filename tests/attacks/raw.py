"""Bytes on a connection of the test's own, without a client that would know better."""

from __future__ import annotations

import asyncio
import contextlib

from tests.servers.waiting import PATIENCE

GET = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n"
POST = b"POST /v1/tasks HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"


class Raw:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, url: str) -> Raw:
        host, _, port = url.removeprefix("http://").partition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def send(self, data: bytes) -> None:
        """Send as much as the other side takes."""
        with contextlib.suppress(ConnectionError):
            self.writer.write(data)
            await self.writer.drain()

    async def head(self) -> bytes:
        """Return the head of an answer."""
        async with asyncio.timeout(PATIENCE):
            return await self.reader.readuntil(b"\r\n\r\n")

    async def rest(self) -> bytes:
        """Return everything until the server closes."""
        async with asyncio.timeout(PATIENCE):
            try:
                return await self.reader.read()
            except ConnectionResetError:
                return b""

    def close(self) -> None:
        self.writer.transport.abort()


async def answered(url: str, data: bytes) -> bytes:
    """Send bytes and return the first part of the answer, or nothing if the server has only closed."""
    raw = await Raw.connect(url)
    try:
        await raw.send(data)
        async with asyncio.timeout(PATIENCE):
            try:
                return await raw.reader.read(65_536)
            except ConnectionResetError:
                return b""
    finally:
        raw.close()
