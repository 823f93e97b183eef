"""Which URLs HTTP handlers may have.

Strict on purpose: what two parsers could read differently is refused, because one of them is the guard and the other one connects.
"""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address
from typing import NamedTuple

from duetime.errors import InvalidValue

_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):(?P<slashes>//)?(?P<authority>[^/?#]*)", re.DOTALL)
_AUTHORITY = re.compile(r"(?P<host>\[[^\]]*\]|[^:\[\]]*)(?::(?P<port>.*))?", re.DOTALL)
_UNSENDABLE = re.compile(r"[\x00-\x20\x7f\\]")
_LABEL = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*")
_DEFAULT_PORTS = {"http": 80, "https": 443}
LONGEST_URL = 8_192


class Endpoint(NamedTuple):
    """A host, in lower case and without the dot of the root, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Destination(NamedTuple):
    """Where a URL leads: `host` as it is compared with lists, an IPv6 address without brackets."""

    scheme: str
    host: str
    port: int


def read_url(url: str, name: str = "url") -> Destination:
    """Return where a URL leads. Raises InvalidValue for one that is not allowed or could be read in two ways."""
    if not isinstance(url, str) or not url:
        raise InvalidValue(f"{name} must be text such as https://example.com/hook, got {url!r}")
    found = _read(url)
    if isinstance(found, str):
        raise InvalidValue(f"{name} {_shown(url)} is refused: {found}")
    return found


def _read(url: str) -> Destination | str:
    """Return where a URL leads, or what is wrong with it."""
    if len(url) > LONGEST_URL:
        return f"it has {len(url):,} characters; {LONGEST_URL:,} are allowed"
    if _UNSENDABLE.search(url):
        return "it contains a space, a backslash or a control character; encode it, as %20 for a space"
    parts = _URL.match(url)
    if parts is None or parts["scheme"].lower() not in _DEFAULT_PORTS:
        return "it must begin with http:// or https://"
    if not parts["slashes"]:
        return f"there must be two slashes after {parts['scheme']}:"
    return _read_authority(parts["scheme"].lower(), parts["authority"])


@lru_cache(maxsize=1_024)  # a handler asks for the same one again and again
def _read_authority(scheme: str, authority: str) -> Destination | str:
    if "@" in authority:
        return "it contains a user or a password; pass them as a header or as auth"
    split = _AUTHORITY.fullmatch(authority)
    if split is None:
        return f"{authority!r} is not a host with an optional port"
    problem = host_problem(split["host"]) or (port_problem(split["port"]) if split["port"] else None)
    if problem is not None:
        return problem
    port, host = int(split["port"]) if split["port"] else _DEFAULT_PORTS[scheme], split["host"]
    return Destination(scheme, str(IPv6Address(host[1:-1])) if host.startswith("[") else host.lower().removesuffix("."), port)


def host_problem(host: str) -> str | None:
    """Return what is wrong with a host: a name, an IPv4 address as four decimal numbers, or an IPv6 address in brackets."""
    if not host:
        return "it has no host"
    if "%" in host:
        return "its host contains %: no zone (fe80::1%eth0) and no encoded character is allowed there"
    if not host.isascii():
        return "its host has characters beyond ASCII; write an international name in its xn-- form"
    if host.startswith("[") and host.endswith("]"):
        return None if _is_six(host[1:-1]) else f"{host} is not an IPv6 address"
    labels = host.removesuffix(".").split(".")
    if "" in labels:
        return "its host has an empty label (two dots in a row, or one at the beginning)"
    if _NUMBER.fullmatch(labels[-1]):
        return None if _is_four(host) else f"{host} is an IPv4 address in an unusual form; write four decimal numbers, as in 192.0.2.1"
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        return f"{host[:80]!r} is not a host name"
    return None


def port_problem(port: str) -> str | None:
    if not re.fullmatch(r"[0-9]{1,5}", port) or not 1 <= int(port) <= 65_535:
        return f"its port must be a number from 1 to 65535, got {port[:20]!r}"
    return None


def is_numeric(host: str) -> bool:
    """Return whether a host, without brackets, is an address instead of a name."""
    return _is_four(host) or _is_six(host)


def _is_four(text: str) -> bool:
    try:
        return str(IPv4Address(text)) == text
    except ValueError:
        return False


def _is_six(text: str) -> bool:
    try:
        return IPv6Address(text).scope_id is None
    except ValueError:
        return False


def _shown(url: str) -> str:
    """Return a URL for a message: short, printable and without a password."""
    return repr(re.sub(r":(/*)[^/?#]*@", r":\1", url, count=1).partition("?")[0][:200])
