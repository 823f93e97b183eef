"""Asks an ASGI application without a server."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode


async def asked(
    application: Any, method: str, path: str, *, form: dict[str, str] | None = None, cookie: str = ""
) -> tuple[int, dict[str, str], str]:
    """Send one request; return status, headers and text of the answer."""
    headers = [(b"host", b"localhost"), (b"sec-fetch-site", b"same-origin"), (b"content-type", b"application/x-www-form-urlencoded")]
    if cookie:
        headers.append((b"cookie", cookie.encode()))
    address, _, query = path.partition("?")
    scope = {
        "type": "http", "method": method, "path": address, "raw_path": address.encode(), "query_string": query.encode(), "headers": headers,
        "root_path": "", "scheme": "http", "server": ("localhost", 80), "client": ("127.0.0.1", 1), "http_version": "1.1",
        "asgi": {"version": "3.0"},
    }  # fmt: skip
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": urlencode(form or {}).encode(), "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await application(scope, receive, send)
    start = sent[0]
    text = b"".join(message.get("body", b"") for message in sent[1:]).decode()
    return start["status"], {name.decode(): value.decode() for name, value in start["headers"]}, text
