"""The address of a server, and of the SQL store beside it."""

from __future__ import annotations

import re
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from redis.asyncio.connection import AbstractConnection, Connection, SSLConnection

from duetime.errors import InvalidValue

CONTROL = "sqlite:///duetime-control.db"
_OPTIONS = ("control", "prefix", "timeout")
_PREFIX = re.compile(r"[\w.-]{1,100}\Z")


class Address(NamedTuple):
    """Where the tasks are, and in `control` the URL of the store of everything else."""

    host: str
    port: int
    database: int
    user: str | None
    password: str | None
    tls: bool
    prefix: str
    control: str
    timeout: float

    @property
    def shown(self) -> str:
        """The URL without secrets."""
        user = f"{self.user or ''}:…@" if self.password else ""
        host = f"[{self.host}]" if ":" in self.host else self.host
        prefix = "" if self.prefix == "duetime" else f"?prefix={self.prefix}"
        return f"{'rediss' if self.tls else 'redis'}://{user}{host}:{self.port}/{self.database}{prefix}"

    def settings(self) -> dict[str, Any]:
        """Return what the driver needs to connect; it repeats nothing by itself, because the verbs decide what may be repeated."""
        return {
            "host": self.host,
            "port": self.port,
            "db": self.database,
            "username": self.user,
            "password": self.password,
            "client_name": "duetime",
            "socket_connect_timeout": self.timeout,
            "socket_timeout": self.timeout,
            "protocol": 2,
        }

    def new_connection(self) -> AbstractConnection:
        kind = SSLConnection if self.tls else Connection
        return kind(**{**self.settings(), "socket_timeout": None})


def read_address(url: str) -> Address:
    """Read `redis://user:password@host:port/database?control=…`, or `rediss://` for TLS."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    surplus = sorted(options.keys() - set(_OPTIONS))
    if surplus:
        raise InvalidValue(f"a redis URL takes the options {', '.join(_OPTIONS)}, got {', '.join(surplus)}")
    try:
        port, database = parts.port or 6379, int(parts.path.removeprefix("/") or 0)
        timeout = float(options.get("timeout", "10"))
    except ValueError:
        raise InvalidValue("a redis URL is redis://host:port/number of a database, with timeout= in seconds") from None
    prefix = options.get("prefix", "duetime")
    if not _PREFIX.match(prefix):
        raise InvalidValue(f"prefix in a redis URL consists of letters, digits, '.', '_' and '-', got {prefix!r}")
    if not 0 < timeout <= 3_600:
        raise InvalidValue(f"timeout in a redis URL is a number of seconds to wait for a reply, got {options['timeout']!r}")
    return Address(
        host=parts.hostname or "localhost",
        port=port,
        database=database,
        user=unquote(parts.username) if parts.username else None,
        password=unquote(parts.password) if parts.password else None,
        tls=parts.scheme == "rediss",
        prefix=prefix,
        control=options.get("control", CONTROL),
        timeout=timeout,
    )
