"""The address of a server, or of what knows the present one, and of the SQL store beside it."""

from __future__ import annotations

import re
from typing import Any, Literal, NamedTuple, TypeAlias, get_args
from urllib.parse import parse_qsl, unquote, urlsplit

from redis.asyncio.connection import AbstractConnection, Connection, SSLConnection

from duetime.errors import InvalidValue

CONTROL = "sqlite:///duetime-control.db"
Kind: TypeAlias = Literal["single", "sentinel", "cluster"]
Durable: TypeAlias = Literal["memory", "disk", "replica", "both"]

SCHEMES: dict[str, Kind] = {"": "single", "sentinel": "sentinel", "cluster": "cluster"}
FORMS = {
    "single": "redis://host:port/number of a database",
    "sentinel": "redis+sentinel://host:26379,host:26379,host:26379/service, perhaps with /number of a database",
    "cluster": "redis+cluster://host:6379,host:6379",
}
_PORTS = {"single": 6379, "sentinel": 26379, "cluster": 6379}
_OPTIONS = ("control", "durable", "prefix", "timeout")
_OF_SENTINELS = ("sentinel_password", "sentinel_user")
_PREFIX = re.compile(r"[\w.-]{1,100}\Z")
_HOST = re.compile(r"(?:\[(?P<six>[0-9a-fA-F:.]+)\]|(?P<name>[^\[\]:/]*))(?::(?P<port>\d{1,5}))?\Z")


class Endpoint(NamedTuple):
    """Where one server listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Login(NamedTuple):
    """As whom to speak to a server."""

    user: str | None
    password: str | None


class Address(NamedTuple):
    """Where the tasks are, and in `control` the URL of the store of everything else.

    `hosts` are the server, or the Sentinels that know it, or some nodes of the cluster. `service` is what the Sentinels call it.
    """

    kind: Kind
    hosts: tuple[Endpoint, ...]
    service: str
    database: int
    login: Login
    sentinel_login: Login
    tls: bool
    prefix: str
    control: str
    timeout: float
    durable: Durable

    @property
    def shown(self) -> str:
        """The URL without secrets."""
        user = f"{self.login.user or ''}:…@" if self.login.password else ""
        scheme = ("rediss" if self.tls else "redis") + ("" if self.kind == "single" else f"+{self.kind}")
        path = {"single": f"/{self.database}", "sentinel": f"/{self.service}/{self.database}", "cluster": ""}[self.kind]
        prefix = "" if self.prefix == "duetime" else f"?prefix={self.prefix}"
        return f"{scheme}://{user}{','.join(map(str, self.hosts))}{path}{prefix}"

    def settings(self, server: Endpoint) -> dict[str, Any]:
        """Return what the driver needs to connect; it repeats nothing by itself, because the verbs decide what may be repeated."""
        return {
            "host": server.host,
            "port": server.port,
            "db": self.database,
            "username": self.login.user,
            "password": self.login.password,
            "client_name": "duetime",
            "socket_connect_timeout": self.timeout,
            "socket_timeout": self.timeout,
            "protocol": 2,
        }

    def asking(self, server: Endpoint, within: float) -> dict[str, Any]:
        """Return the settings of a connection that asks where the present server is."""
        settings = self.settings(server) | {"socket_connect_timeout": within, "socket_timeout": within}
        if self.kind == "sentinel":
            settings |= {"db": 0, "username": self.sentinel_login.user, "password": self.sentinel_login.password}
        return settings

    def new_connection(self, server: Endpoint) -> AbstractConnection:
        kind = SSLConnection if self.tls else Connection
        return kind(**{**self.settings(server), "socket_timeout": None})


def read_address(url: str) -> Address:
    """Read `redis://user:password@host:port/database?control=…`, `rediss://` for TLS, or either with `+sentinel` or `+cluster`."""
    try:
        parts = urlsplit(url)
    except ValueError:  # brackets that fit no address; its text might show a secret
        raise InvalidValue(f"a Redis URL is {FORMS['single']}: this one cannot be read") from None
    scheme, _, form = parts.scheme.partition("+")
    kind = SCHEMES.get(form)
    if kind is None:
        raise InvalidValue(f"a Redis store is redis://…, redis+sentinel://… or redis+cluster://…, got {parts.scheme}://…")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    allowed = (*_OPTIONS, *_OF_SENTINELS) if kind == "sentinel" else _OPTIONS
    surplus = sorted(options.keys() - set(allowed))
    if surplus:
        raise InvalidValue(f"a {parts.scheme} URL takes the options {', '.join(allowed)}, got {', '.join(surplus)}")
    prefix = options.get("prefix", "duetime")
    if not _PREFIX.match(prefix):
        raise InvalidValue(f"prefix in a redis URL consists of letters, digits, '.', '_' and '-', got {prefix!r}")
    user, _, rest = parts.netloc.rpartition("@")
    name, _, password = user.partition(":")
    service, database = _read_path(kind, parts.path)
    return Address(
        kind=kind,
        hosts=_read_hosts(kind, rest),
        service=service,
        database=database,
        login=Login(unquote(name) or None, unquote(password) or None),
        sentinel_login=Login(options.get("sentinel_user"), options.get("sentinel_password")),
        tls=scheme == "rediss",
        prefix=prefix,
        control=options.get("control", CONTROL),
        timeout=_read_timeout(options.get("timeout", "10")),
        durable=_read_durable(options.get("durable", "memory")),
    )


def _wrong(kind: Kind, problem: str) -> InvalidValue:
    return InvalidValue(f"a Redis URL of this kind is {FORMS[kind]}, with options after '?': {problem}")


def _read_hosts(kind: Kind, text: str) -> tuple[Endpoint, ...]:
    hosts = []
    for each in text.split(","):
        match = _HOST.match(each)
        if match is None or int(match["port"] or 1) > 65_535 or not (each or kind == "single"):
            raise _wrong(kind, f"{each!r} is no host with a port")
        hosts.append(Endpoint(match["six"] or match["name"] or "localhost", int(match["port"] or _PORTS[kind])))
    if kind == "single" and len(hosts) > 1:
        raise _wrong(kind, f"it names one server; for several write {FORMS['sentinel']}, or {FORMS['cluster']}")
    return tuple(dict.fromkeys(hosts))


def _read_path(kind: Kind, path: str) -> tuple[str, int]:
    """Return the name of the service and the number of the database."""
    names = [unquote(name) for name in path.strip("/").split("/")] if path.strip("/") else []
    service = names.pop(0) if kind == "sentinel" and names else ""
    if kind == "sentinel" and not service:
        raise _wrong(kind, "it names no service, what the Sentinels call the servers that they watch")
    if len(names) > 1 or (names and not (names[0].isascii() and names[0].isdigit())):
        raise _wrong(kind, f"{'/'.join(names)!r} is no number of a database")
    database = int(names[0]) if names else 0
    if kind == "cluster" and database:
        raise _wrong(kind, "a cluster has only the database 0; use prefix= for several stores")
    return service, database


def _read_timeout(text: str) -> float:
    try:
        timeout = float(text)
    except ValueError:
        timeout = 0.0
    if not 0 < timeout <= 3_600:
        raise InvalidValue(f"timeout in a redis URL is a number of seconds to wait for a reply, got {text!r}")
    return timeout


def _read_durable(text: str) -> Durable:
    for level in get_args(Durable):
        if text == level:
            return level  # type: ignore[no-any-return]
    if text == "sql":
        raise InvalidValue(
            "durable=sql is not built: what must be in a SQL database when submitting returns is submitted with connection= (docs/redis.md)"
        )
    raise InvalidValue(f"durable in a redis URL is {', '.join(get_args(Durable))}, got {text!r}")
