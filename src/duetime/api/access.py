"""Authentication and authorization: the only code that turns a request into a caller and refuses what the caller may not do.

If there are tokens, every request needs one. A server without tokens lets everybody who can reach it do everything, so it listens on
loopback only. A web page in a browser on the same machine can reach loopback too. A server without tokens therefore refuses requests
that a browser sends for another site's page, or for a host name that was made to point here. With tokens that is not needed: a browser
adds no token by itself.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Sequence
from typing import Protocol
from urllib.parse import urlsplit

from starlette.requests import Request

from duetime.api.problems import Refusal
from duetime.app.app import App
from duetime.client.access.sessions import Sessions
from duetime.clock import Instant
from duetime.errors import InvalidValue
from duetime.model import access, callbacks
from duetime.model.access import Caller, Denial, Scope
from duetime.wire.problem import FORBIDDEN, TOO_FAST, UNAUTHORIZED, Kind

_KINDS: dict[Denial, Kind] = {
    Denial.MISSING: UNAUTHORIZED,
    Denial.UNKNOWN: UNAUTHORIZED,
    Denial.EXPIRED: UNAUTHORIZED,
    Denial.SCOPE: FORBIDDEN,
    Denial.HANDLER: FORBIDDEN,
    Denial.ADDRESS: FORBIDDEN,
    Denial.TOO_FAST: TOO_FAST,
}


class Access(Protocol):
    """Returns the caller of a request, or refuses the request."""

    async def identify(self, request: Request) -> Caller:
        """Return the caller by its token."""
        ...

    async def signed_in(self, request: Request, sessions: Sessions, secret: str | None) -> Caller:
        """Return the person at a browser, by the secret in its cookie: for the dashboard only, the API takes no cookies."""
        ...


class TokenAccess:
    """Identifies callers by their tokens."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def identify(self, request: Request) -> Caller:
        found = await self._app.tokens.identify(_bearer(request.headers.get("authorization", "")), origin=origin_of(request))
        if isinstance(found, access.Refusal):
            raise refused(found)
        return found

    async def signed_in(self, request: Request, sessions: Sessions, secret: str | None) -> Caller:
        found = await sessions.identify(secret, origin=origin_of(request))
        if isinstance(found, access.Refusal):
            raise refused(found)
        return found


class OpenOnLoopback:
    """Treats every caller as the user who runs the server, with all scopes."""

    def __init__(self, user: str) -> None:
        self._user = user

    async def identify(self, request: Request) -> Caller:
        host = request.headers.get("host", "")
        if not is_loopback(name_of(host)):
            raise Refusal(
                FORBIDDEN,
                f"this server has no tokens and answers only requests for localhost or a loopback address, got the Host {host[:200]!r}; "
                "call it by its loopback address",
            )
        origin = request.headers.get("origin")
        if origin is not None and authority_of(origin) != host:
            raise Refusal(
                FORBIDDEN, f"a page of {origin[:200]!r} may not use this server: without tokens only pages of the same origin may"
            )
        return Caller(name=self._user, origin=origin_of(request))

    async def signed_in(self, request: Request, sessions: Sessions, secret: str | None) -> Caller:
        return await self.identify(request)


def callback_token(request: Request) -> str | None:
    """Return the callback token of a request; None if it has another token, or none."""
    token = _bearer(request.headers.get("authorization", ""))
    return token if token is not None and token.startswith(callbacks.PREFIX) else None


def by_callback(request: Request, token: str, keys: Sequence[bytes], task: str, now: Instant) -> tuple[Caller, callbacks.Permit]:
    """Return the caller with a callback token, and what it may report on; refuse a token that is not good for the task now."""
    permit = callbacks.read_callback_token(token, keys, task)
    if permit is None:
        raise refused(access.Refusal(Denial.UNKNOWN, "the callback token is not good for this task: it is for another, or made elsewhere"))
    if permit.until_at <= now:
        raise refused(access.Refusal(Denial.EXPIRED, "the callback token is over: the work had to be reported on before its deadline"))
    return Caller(name="callback", scopes=frozenset({Scope.WORK}), origin=origin_of(request)), permit


def allow(caller: Caller, needed: Scope, handler: str | None = None) -> None:
    """Refuse a caller that lacks a scope, or whose token is for other handlers."""
    refusal = refusal_of(caller, needed, handler)
    if refusal is not None:
        raise refusal


def refusal_of(caller: Caller, needed: Scope, handler: str | None) -> Refusal | None:
    """Return the refusal of a caller, or None if it is allowed."""
    refusal = caller.refusal(needed, handler)
    return None if refusal is None else refused(refusal)


def allow_filter(caller: Caller, needed: Scope, handler: str | None) -> None:
    """Refuse a filter that reaches beyond a caller's handlers: a caller that is restricted to some handlers must name one of them."""
    if caller.handlers and handler is None:
        raise Refusal(
            FORBIDDEN,
            f"the token {caller.name} is for some handlers only: {', '.join(caller.handlers)}; name one of them as handler in the filter",
        )
    allow(caller, needed, handler)


async def check_host(host: str, app: App) -> None:
    """Refuse to serve without tokens on an address that other machines can reach."""
    if not is_loopback(host) and not await app.tokens.in_use():
        raise InvalidValue(
            f"the server would listen on {host or 'every address'}, where other machines reach it, and its store has no tokens that are "
            "good: whoever reaches it could do everything. Make one with `duetime tokens create`, or listen on 127.0.0.1, ::1 or localhost"
        )


def is_loopback(name: str) -> bool:
    if name.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def refused(refusal: access.Refusal) -> Refusal:
    headers = {}
    kind = _KINDS[refusal.why]
    if kind is UNAUTHORIZED:
        headers["www-authenticate"] = "Bearer"
    elif kind is TOO_FAST:
        headers["retry-after"] = str(max(1, math.ceil(refusal.wait)))
    return Refusal(kind, refusal.message, headers=headers)


def _bearer(authorization: str) -> str | None:
    scheme, _, text = authorization.strip().partition(" ")
    return text if scheme.lower() == "bearer" else None


def origin_of(request: Request) -> str:
    return "" if request.client is None else request.client.host


def authority_of(origin: str) -> str:
    """Return host and port of an Origin header, nothing if it cannot be read."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


def name_of(host: str) -> str:
    """Return the name in a Host header, without port and brackets."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
