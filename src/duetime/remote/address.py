"""The URL of a server: checked, and never with a secret in it."""

from __future__ import annotations

import ipaddress
from urllib.parse import quote, urlsplit

from duetime.errors import InvalidValue

SCHEMES = ("http", "https")


def is_server(url: str) -> bool:
    """Return whether a URL means a server rather than a store."""
    return url.partition("://")[0].lower() in SCHEMES and "://" in url


def read_address(url: str) -> str:
    """Check the URL of a server, and return it without a trailing slash."""
    try:
        parts = urlsplit(url.strip())
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidValue(f"the URL of the server cannot be read: {error}; it looks like https://duetime.example.com:8420") from None
    if parts.username is not None or parts.password is not None:
        raise InvalidValue(
            f"the URL of the server must not hold a user or password, because URLs are shown and logged; write "
            f"{parts.scheme}://{_host_and_port(parts.netloc)} and give the token as token=… or in DUETIME_TOKEN"
        )
    if not host:
        raise InvalidValue(f"the URL of the server names no host, got {url!r}; it looks like https://duetime.example.com:8420")
    if parts.query or parts.fragment:
        raise InvalidValue(
            f"the URL of a server takes no options, got {url!r}; write {parts.scheme}://{parts.netloc}{parts.path}. "
            "A token is given as token=… or in DUETIME_TOKEN"
        )
    return f"{parts.scheme.lower()}://{parts.netloc}{parts.path.rstrip('/')}"


def in_the_clear(address: str) -> bool:
    """Return whether requests to this URL are sent unencrypted."""
    parts = urlsplit(address)
    return parts.scheme == "http" and not _is_loopback(parts.hostname or "")


def part(name: str) -> str:
    """Quote a name as one part of a path, also one that consists of dots, which would otherwise lead elsewhere."""
    return quote(name, safe="") if name.strip(".") else name.replace(".", "%2E")


def needs_store(what: str, url: str) -> InvalidValue:
    """Return the error for something that a server does not offer; it says what to use instead."""
    return InvalidValue(f"{what} needs a store, and {url} is a server; run it where the store is reached, with the store's URL")


def _host_and_port(netloc: str) -> str:
    return netloc.rpartition("@")[2]


def _is_loopback(host: str) -> bool:
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
