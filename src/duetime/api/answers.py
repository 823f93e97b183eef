"""Answers in JSON."""

from __future__ import annotations

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Send
from starlette.types import Scope as Connection

_encode = msgspec.json.Encoder().encode

PART = 262_144  # bytes of an answer that are handed to the connection at a time: it keeps a copy of what its client has not read


class _Fixed(Response):
    """A response whose headers are built once."""

    def __init__(self, body: bytes, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.status_code = status
        self.background = None
        self.body = body
        self.raw_headers = headers

    async def __call__(self, scope: Connection, receive: Receive, send: Send) -> None:
        if len(self.body) <= PART:
            await super().__call__(scope, receive, send)
            return
        body = memoryview(self.body)
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for start in range(0, len(body), PART):
            more = start + PART < len(body)
            await send({"type": "http.response.body", "body": bytes(body[start : start + PART]), "more_body": more})


_JSON_HEADERS = [(b"content-type", b"application/json"), (b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store")]


def answer(value: object, status: int = 200, headers: dict[str, str] | None = None, *, encoded: bytes | None = None) -> Response:
    """Answer with JSON."""
    body = _encode(value) if encoded is None else encoded
    raw = [*_JSON_HEADERS, (b"content-length", b"%d" % len(body))]
    if headers:
        raw += [(name.encode("latin-1"), text.encode("latin-1")) for name, text in headers.items()]
    return _Fixed(body, status, raw)
