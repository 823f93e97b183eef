"""The URL of a broker: which kind it is, where it is, and who asks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias
from urllib.parse import unquote, urlsplit

import msgspec

from duetime.errors import InvalidValue

Kind: TypeAlias = Literal["nats", "redis", "mqtt", "amqp", "kafka"]


class Scheme(NamedTuple):
    """What a URL's scheme says."""

    kind: Kind
    port: int
    tls: bool = False


SCHEMES: Mapping[str, Scheme] = {
    "nats": Scheme("nats", 4222),
    "nats+tls": Scheme("nats", 4222, True),
    "redis": Scheme("redis", 6379),
    "rediss": Scheme("redis", 6379, True),
    "valkey": Scheme("redis", 6379),
    "valkeys": Scheme("redis", 6379, True),
    "mqtt": Scheme("mqtt", 1883),
    "mqtts": Scheme("mqtt", 8883, True),
    "amqp": Scheme("amqp", 5672),
    "amqps": Scheme("amqp", 5671, True),
    "kafka": Scheme("kafka", 9092),
    "kafka+tls": Scheme("kafka", 9093, True),
}
_SEVERAL_HOSTS = ("nats", "kafka")


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """A broker. `repr` shows no password. `path` is the number of a Redis database, or the virtual host of AMQP.

    `guarded`: its address is judged before each connection, because nobody has written it into the program's code.
    """

    scheme: str
    kind: Kind
    tls: bool
    hosts: tuple[tuple[str, int], ...]
    user: str | None = None
    password: str | None = None
    path: str = ""
    guarded: bool = False

    @property
    def shown(self) -> str:
        """The URL for people: without user and password."""
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)
        return f"{self.scheme}://{hosts}{f'/{self.path}' if self.path else ''}"

    def __repr__(self) -> str:
        return f"<broker {self.shown}>"


def read_address(url: str) -> Address:
    """Return a broker's URL in parts. Raises InvalidValue, without showing what may be a password."""
    if not isinstance(url, str):
        raise InvalidValue(f"url must be the address of a broker such as nats://broker.example:4222, got {type(url).__name__}")
    name, _, rest = url.partition("://")
    scheme = SCHEMES.get(name.lower())
    if scheme is None or not rest:
        raise InvalidValue(f"url must begin with {', '.join(f'{each}://' for each in SCHEMES)} and a host, got {_without_password(url)!r}")
    if "{" in rest or "}" in rest:
        raise InvalidValue("url has no references: a handler publishes to one broker; `to` and `headers` can have them")
    authority, _, path = rest.partition("/")
    userinfo, _, listed = authority.rpartition("@")
    user, _, password = userinfo.partition(":")
    if "?" in rest or "#" in rest:
        raise InvalidValue(f"url must end after the host, or after one path; {scheme.kind} takes nothing after ? or # here")
    hosts = tuple(_host(each, scheme, url) for each in listed.split(","))
    if len(hosts) > 1 and scheme.kind not in _SEVERAL_HOSTS:
        raise InvalidValue(f"url has {len(hosts)} hosts; only {' and '.join(_SEVERAL_HOSTS)} take several, separated by commas")
    path = unquote(path)
    if path and scheme.kind not in ("redis", "amqp"):
        raise InvalidValue(f"url has the path /{path}, which {scheme.kind} does not know; what a message is published to is said by `to`")
    if scheme.kind == "redis" and path and not (path.isascii() and path.isdigit()):
        raise InvalidValue(f"the path of a {name}:// url is the number of a database, got /{path}")
    return Address(
        scheme=name.lower(),
        kind=scheme.kind,
        tls=scheme.tls,
        hosts=hosts,
        user=unquote(user) or None,
        password=unquote(password) or None,
        path=path,
    )


def _host(text: str, scheme: Scheme, url: str) -> tuple[str, int]:
    try:
        split = urlsplit(f"//{text}")
        host, port = split.hostname, split.port
    except ValueError:
        host, port = None, None
    if not host or any(char.isspace() for char in text):
        raise InvalidValue(
            f"url needs a host and may have a port, such as {scheme.kind}://broker.example:{scheme.port}, got {_without_password(url)!r}"
        )
    return host, port or scheme.port


def _without_password(url: str) -> str:
    before, at, after = url.rpartition("@")
    return f"{before.partition('://')[0]}://…@{after}" if at else url
