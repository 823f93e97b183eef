"""One request: its caller, its path, query and body. Everything that comes from outside is checked here."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeVar
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope

from duetime.api.access import allow, allow_filter
from duetime.api.problems import Refusal, fault_of
from duetime.api.shared import Shared
from duetime.client.access.service import Act
from duetime.model.access import Caller, fits
from duetime.model.access import Scope as Permission
from duetime.model.callbacks import Permit
from duetime.model.hiding import NOTHING, Hiding
from duetime.model.trace_context import TRACEPARENT, TRACESTATE, read_headers
from duetime.wire.problem import BAD_REQUEST, FORBIDDEN, INVALID, MALFORMED, TOO_LARGE, WRONG_MEDIA, Fault

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)

JSON = "application/json"
TAKE_TIME = "duetime.take_time"  # an extension of ASGI, with a function that is given seconds
NDJSON = "application/x-ndjson"
BYTES = "application/octet-stream"
MOST_PARAMETERS = 100
# Arrays and objects in one body, or in one item of a batch. Each is an object for the garbage collector too: 300,000 of them held the event
# loop for 160 ms (bench.service_budget), while a text of the same size takes a millisecond.
MOST_CONTAINERS = 100_000

_INSTANT = re.compile(r"\d{4}-\d\d-\d\d[Tt ]")


class Gone(Exception):
    """The client has closed the connection."""


class Call:
    """One request. `path` has the values of the route's `{…}` by name, `needed` is the scope that the route needs.

    `owner`: the request reaches only what they have submitted, because the caller's scope is own; None if it reaches all.
    `prefix` is what comes before every address where another application has mounted this one.
    """

    def __init__(self, shared: Shared, scope: Scope, receive: Receive, path: dict[str, str], prefix: str = "") -> None:
        self.shared = shared
        self.app = shared.app
        self.request = Request(scope, receive)
        self.path = path
        self.prefix = prefix
        self.caller: Caller
        self.needed: Permission
        self.owner: str | None = None
        self.permit: Permit | None = None  # of a callback token
        self._receive = receive

    def allow(self, handler: str) -> None:
        """Refuse a caller whose token is for other handlers."""
        allow(self.caller, self.needed, handler)

    def may_see(self, handler: str) -> bool:
        """Return whether the caller's token is for a handler. What is of others is answered as if it did not exist."""
        return fits(self.caller.handlers, handler)

    def owns(self, submitted_by: str) -> bool:
        """Return whether a request reaches what somebody has submitted. What it does not reach is answered as if it did not exist."""
        return self.owner is None or submitted_by == self.owner

    @property
    def hiding(self) -> Hiding:
        """What the caller may not see of tasks: nothing is hidden from admins."""
        return NOTHING if self.caller.may(Permission.ADMIN) else self.app.config.hide or NOTHING

    def allow_whole(self, what: str) -> None:
        """Refuse a caller whose token is for some handlers only: this is about all of them."""
        if self.caller.handlers:
            raise Refusal(
                FORBIDDEN,
                f"the token {self.caller.name} is for some handlers only, and {what}; use one that is for all",
            )

    def allow_filter(self, handler: str | None) -> None:
        """Refuse a filter that reaches beyond the handlers of the caller's token."""
        allow_filter(self.caller, self.needed, handler)

    def acting(self, action: str, subject: str) -> AbstractAsyncContextManager[Act]:
        """Record the block in the audit, as an action of the caller."""
        return self.app.tokens.audit.acting(action, subject, by=self.caller)

    def query(self, kind: type[S]) -> S:
        """Read the query string as a struct; each parameter may occur once."""
        return read_query(self.request.scope["query_string"], kind)

    async def body(self, decoder: msgspec.json.Decoder[T]) -> T:
        """Read a JSON body."""
        self.content_type(JSON)
        return decode(decoder, check_containers(await self.data(self.shared.limits.body)))

    async def optional_body(self, decoder: msgspec.json.Decoder[T], otherwise: T) -> T:
        """Read a JSON body that may be left out."""
        data = await self.data(self.shared.limits.body)
        if not data:
            return otherwise
        self.content_type(JSON)
        return decode(decoder, check_containers(data))

    async def empty_body(self) -> None:
        """Read the body of a request that needs none: nothing, or an empty object."""
        data = await self.data(self.shared.limits.body)
        if data.strip() not in (b"", b"{}"):
            raise Refusal(INVALID, "this request takes no body; leave it out, or send {}", faults=[Fault("expected no body", pointer="")])

    def content_type(self, *allowed: str) -> str:
        """Return the content type without its parameters; refuse with 415 if it is not one of these."""
        given = self.request.headers.get("content-type", "")
        kind = given.partition(";")[0].strip().lower()
        if kind not in allowed:
            raise Refusal(WRONG_MEDIA, f"the body must be {' or '.join(allowed)}, got {given[:200] or 'no content type'!r}")
        return kind

    async def data(self, limit: int) -> bytes:
        """Read the whole body. Refuse one that is too large as soon as that is known."""
        announced = self.request.headers.get("content-length", "")
        if announced.isdecimal() and int(announced) > limit:
            raise _too_large(limit)
        message = await self._receive()
        if message["type"] == "http.request" and not message.get("more_body", False):
            body: bytes = message.get("body", b"")
            if len(body) > limit:
                raise _too_large(limit)
            return body
        parts, size = [], 0
        while True:
            if message["type"] == "http.disconnect":
                raise Gone
            part = message.get("body", b"")
            size += len(part)
            if size > limit:
                raise _too_large(limit)
            parts.append(part)
            if not message.get("more_body", False):
                return b"".join(parts)
            message = await self._receive()

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives."""
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise Gone
            if piece := message.get("body", b""):
                yield piece
            if not message.get("more_body", False):
                return

    def take_time(self, seconds: float) -> None:
        """Let the rest of the request arrive within so many seconds, if the server sets a bound at all."""
        extension = self.request.scope.get("extensions", {}).get(TAKE_TIME)
        if extension is not None:
            extension["extend"](seconds)

    async def gone(self) -> None:
        """Return when the client has closed the connection; the body must have been read."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    @property
    def trace(self) -> dict[str, str]:
        """The trace that the request belongs to, if its headers name one."""
        return read_headers(self.header(TRACEPARENT), self.header(TRACESTATE))

    def header(self, name: str) -> str | None:
        return self.request.headers.get(name)


Endpoint = Callable[[Call], Awaitable[Response]]


def decode(decoder: msgspec.json.Decoder[T], data: bytes | msgspec.Raw) -> T:
    """Decode JSON that came from outside; an error says where it does not match its type."""
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        fault = fault_of(error, decoder.type)
        where = fault.pointer or "the body"
        raise Refusal(INVALID, f"{where}: {fault.detail}", faults=[fault]) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal(MALFORMED, f"the body is not JSON in UTF-8: {error}") from None


def check_containers(data: bytes) -> bytes:
    """Return JSON that can be decoded at once; refuse what has too many arrays and objects."""
    if len(data) > 2 * MOST_CONTAINERS and _containers(data) > MOST_CONTAINERS and _containers(_without_texts(data)) > MOST_CONTAINERS:
        raise too_nested()
    return data


def _without_texts(data: bytes) -> bytes:
    """Return JSON without its texts, in a few calls into C: they lie between every other pair of quotation marks."""
    return b"".join(data.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2])


def _containers(data: bytes) -> int:
    return data.count(b"[") + data.count(b"{")


def too_nested() -> Refusal:
    return Refusal(
        TOO_LARGE, f"there are more than {MOST_CONTAINERS:,} arrays and objects; send less at a time, or store the data elsewhere"
    )


def read_query(query: bytes, kind: type[S]) -> S:
    try:
        pairs = parse_qsl(
            query.decode("ascii"), keep_blank_values=True, strict_parsing=False, errors="strict", max_num_fields=MOST_PARAMETERS
        )
    except (ValueError, UnicodeDecodeError) as error:
        raise Refusal(BAD_REQUEST, f"the query string cannot be read: {error}") from None
    parameters = dict(pairs)
    for name, value in pairs:
        if parameters[name] != value or [each for each, _ in pairs].count(name) > 1:
            raise _wrong_parameter(name, "is given more than once")
        if "\0" in value:
            raise _wrong_parameter(name, "must not contain the character NUL")
        if (name.endswith(("_after", "_before")) or name in ("after", "before", "since", "until")) and not _INSTANT.match(value):
            raise _wrong_parameter(name, f"must be an instant such as 2030-01-31T07:00:00Z, got {value[:100]!r}")
    try:
        return msgspec.convert(parameters, kind, strict=False)
    except msgspec.ValidationError as error:
        fault = fault_of(error, kind)
        raise _wrong_parameter((fault.pointer or "")[1:], f"does not fit: {fault.detail}") from None


def _wrong_parameter(name: str, what: str) -> Refusal:
    return Refusal(INVALID, f"the parameter {name} {what}", faults=[Fault(what, parameter=name)])


def _too_large(limit: int) -> Refusal:
    return Refusal(TOO_LARGE, f"the body has more than {limit:,} bytes; send less at a time", headers={"connection": "close"})
