"""Requests and answers as plain values: what a sender is given and what it returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from duetime.targets.http.phases import Phases

MAX_BODY = 1_000_000  # bytes of an answer that are read


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One request. `own` are the names of headers that go to its own origin only: credentials, and what the handler's author added.

    `certificate` is the client's own, with its key, as PEM text, if it is a stored secret.
    """

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes | None = None
    own: frozenset[str] = frozenset()
    certificate: str | None = None

    @property
    def shown(self) -> str:
        """Method and URL for people; without the query, which may hold what is nobody's business."""
        return f"{self.method} {self.url.partition('?')[0]}"


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a server answered. The names of headers are in lower case."""

    status: int
    headers: Mapping[str, str] = {}
    body: bytes = b""
    reason: str = ""

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


class RequestFailed(Exception):
    """There is no answer. `kind` says in which phase it went wrong, as an error's type."""

    def __init__(self, kind: str, message: str, *, fatal: bool = False, timed_out: bool = False) -> None:
        super().__init__(message)
        self.kind = kind
        self.fatal = fatal
        self.timed_out = timed_out


class Sender(Protocol):
    """Sends requests: over a network, or to a test."""

    async def send(self, request: Request, phases: Phases) -> Answer:
        """Send a request and return the answer; RequestFailed if there is none. Redirects are answers too."""
        ...
