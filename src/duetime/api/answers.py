"""Answers in JSON."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

_encode = msgspec.json.Encoder().encode


class _Fixed(Response):
    """A response whose headers are built once."""

    def __init__(self, body: bytes, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.status_code = status
        self.background = None
        self.body = body
        self.raw_headers = headers


_JSON_HEADERS = [(b"content-type", b"application/json"), (b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store")]


def answer(value: object, status: int = 200, headers: dict[str, str] | None = None, *, encoded: bytes | None = None) -> Response:
    """Answer with JSON."""
    body = _encode(value) if encoded is None else encoded
    raw = [*_JSON_HEADERS, (b"content-length", b"%d" % len(body))]
    if headers:
        raw += [(name.encode("latin-1"), text.encode("latin-1")) for name, text in headers.items()]
    return _Fixed(body, status, raw)
