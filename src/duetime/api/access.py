"""Who asks: the one place where a request becomes a caller with scopes.

There are no tokens yet. Everybody who reaches the server may do everything, so it listens on loopback only. A web page in somebody's
browser reaches loopback too: requests that a browser sends for a foreign page, or under a foreign name that was made to point here,
are refused.
"""

from __future__ import annotations

import ipaddress
from typing import Protocol
from urllib.parse import urlsplit

import msgspec
from starlette.requests import Request

from duetime.api.problems import FORBIDDEN, Refusal
from duetime.errors import InvalidValue
from duetime.model.access import Scope


class Caller(msgspec.Struct, frozen=True):
    """Who asks: the name that tasks and gates carry, and what it may do."""

    name: str
    scopes: frozenset[Scope]


class Access(Protocol):
    """Tells who asks; refuses who may not ask at all."""

    async def identify(self, request: Request) -> Caller: ...


class OpenOnLoopback:
    """Takes everybody for the user of the server, with all scopes."""

    def __init__(self, user: str) -> None:
        self._caller = Caller(user, frozenset(Scope))

    async def identify(self, request: Request) -> Caller:
        host = request.headers.get("host", "")
        if not is_loopback(_name_of(host)):
            raise Refusal(
                FORBIDDEN,
                f"this server has no tokens and answers only requests for localhost or a loopback address, got the Host {host[:200]!r}; "
                "call it by its loopback address",
            )
        origin = request.headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            raise Refusal(
                FORBIDDEN, f"a page of {origin[:200]!r} may not use this server: without tokens only pages of the same origin may"
            )
        return self._caller


def allow(caller: Caller, needed: Scope) -> None:
    """Refuse a caller that lacks a scope."""
    if needed not in caller.scopes:
        raise Refusal(FORBIDDEN, f"this needs the scope {needed}, and {caller.name} has {', '.join(sorted(caller.scopes)) or 'none'}")


def check_host(host: str) -> str:
    """Refuse to listen where others than this machine's users could reach a server without tokens."""
    if not is_loopback(host):
        raise InvalidValue(
            f"the server would listen on {host}, where other machines reach it, and this version has no tokens: whoever reaches it may "
            "do everything. Listen on 127.0.0.1, ::1 or localhost, and let a proxy that checks its callers stand in front"
        )
    return host


def is_loopback(name: str) -> bool:
    if name.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _name_of(host: str) -> str:
    """Give the name in a Host header, without port and brackets."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
