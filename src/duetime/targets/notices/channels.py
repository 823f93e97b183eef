"""Channels: where notices go. The same words in Python, in JSON and on the command line; secrets are named, never written."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias
from urllib.parse import urlsplit

import msgspec

from duetime.errors import InvalidValue
from duetime.model.secrets import Secret
from duetime.model.urls import read_url
from duetime.targets.http.auth import Basic

MOST_RECIPIENTS = 100
_PORTS = {"smtp": 587, "smtps": 465}
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class _Channel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="kind"):
    """What all channels share."""


class Mail(_Channel, frozen=True, kw_only=True, tag="mail"):
    """Mail over SMTP: `smtp://mail.example:587` (TLS is begun before anything is said, except on loopback) or `smtps://mail.example`."""

    server: str
    sender: str
    to: tuple[str, ...]
    auth: Basic | None = None

    def __post_init__(self) -> None:
        smtp_server(self.server)
        if isinstance(self.to, str) or not 1 <= len(self.to) <= MOST_RECIPIENTS:
            raise InvalidValue(f"to must list 1 to {MOST_RECIPIENTS} addresses of mail, got {self.to!r}")
        for address in (self.sender, *self.to):
            check_address(address)
        if self.auth is not None and not isinstance(self.auth.password, Secret):
            raise InvalidValue('auth: the password is stored as a secret: Basic(user, Secret("smtp")), and `duetime secrets put smtp`')


class Webhook(_Channel, frozen=True, kw_only=True, tag="webhook"):
    """A POST of JSON with the changes, signed as webhooks are if `sign` names a secret. A URL that is one itself is a `Secret`."""

    url: str | Secret
    sign: Secret | None = None

    def __post_init__(self) -> None:
        _check_url(self.url)


class Slack(_Channel, frozen=True, kw_only=True, tag="slack"):
    """An incoming webhook of Slack, or of what takes the same: Mattermost, Discord (`…/slack`), Rocket.Chat. The URL is a `Secret`."""

    url: str | Secret

    def __post_init__(self) -> None:
        _check_url(self.url)


Channel: TypeAlias = Mail | Webhook | Slack


class SmtpServer(NamedTuple):
    """Where mail is handed over. `tls`: from the first byte; otherwise it is begun by STARTTLS, unless the server is on loopback."""

    host: str
    port: int
    tls: bool

    @property
    def may_be_plain(self) -> bool:
        return self.host in _LOOPBACK


def smtp_server(url: object) -> SmtpServer:
    """Return the parts of a server's address."""
    expected = f"server must be smtp://host[:port] or smtps://host[:port], got {url!r}"
    if not isinstance(url, str):
        raise InvalidValue(expected)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise InvalidValue(expected) from None
    if parts.username is not None or parts.password is not None:
        raise InvalidValue('server: it has a user, which belongs into auth=Basic(user, Secret("smtp"))')
    if parts.scheme not in _PORTS or not parts.hostname or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise InvalidValue(expected)
    return SmtpServer(parts.hostname, port or _PORTS[parts.scheme], parts.scheme == "smtps")


def check_address(address: object) -> str:
    """Check an address of mail: enough to keep line breaks and lists out of headers; the server judges the rest."""
    if not isinstance(address, str) or not address.isprintable() or len(address) > 254 or any(each in address for each in ' ,;<>"\\()'):
        raise InvalidValue(f"an address of mail is written such as ops@example.com, got {address!r}")
    name, at, domain = address.rpartition("@")
    if not name or not at or not domain or not address.isascii():
        raise InvalidValue(f"an address of mail is written such as ops@example.com, got {address!r}")
    return address


def _check_url(url: object) -> None:
    if isinstance(url, Secret):
        return
    if not isinstance(url, str):
        raise InvalidValue(f'url must be a text such as https://example.com/hook, or Secret("name") if it must not be seen, got {url!r}')
    read_url(url)


def kind_of(channel: Channel) -> str:
    """Return the word for a channel in JSON and on the command line."""
    kind = channel.__struct_config__.tag
    assert isinstance(kind, str)
    return kind
