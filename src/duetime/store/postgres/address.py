"""A store's URL: what goes to the driver and what is ours."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import msgspec

from duetime.errors import InvalidValue

LONGEST_NAME = 63
_SWITCH = {"on": True, "true": True, "1": True, "yes": True, "off": False, "false": False, "0": False, "no": False}
OPTIONS = {
    "schema": "the schema that holds our tables (duetime)",
    "notify": "on or off: wake-ups by LISTEN and NOTIFY (on)",
    "pooled": "on behind a pooler in transaction mode such as PgBouncer: nothing of a session is relied on, no LISTEN (off)",
    "connections": "how many connections one process opens at most, besides four for wake-ups, lease and long statements (8)",
    "timeout": "seconds that a statement may take (30)",
}


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """Where a store is, and how to speak to it."""

    dsn: str
    shown: str
    schema: str = "duetime"
    notify: bool = True
    pooled: bool = False
    connections: int = 8
    timeout: float = 30.0

    @property
    def session_settings(self) -> Mapping[str, str]:
        """Settings of our own sessions. A process that dies or is cut off inside a transaction must not keep its locks."""
        return {
            "application_name": "duetime",
            "default_transaction_isolation": "read committed",  # each statement sees what was committed before it began
            "idle_in_transaction_session_timeout": "10s",
            "lock_timeout": "10s",
            "tcp_keepalives_idle": "5",
            "tcp_keepalives_interval": "2",
            "tcp_keepalives_count": "3",
            "jit": "off",
            "max_parallel_workers_per_gather": "0",  # a page that finds little took 50 ms with parallel plans and 6 ms without
        }

    @classmethod
    def from_url(cls, url: str) -> Address:
        """Read `postgresql://user:secret@host:port/database?schema=…`; what is not ours is left to the driver."""
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        own = {name: options.pop(name) for name in OPTIONS if name in options}
        bare = parts._replace(scheme="postgresql", query=urlencode(options, quote_via=quote))
        host = parts.netloc.rsplit("@", 1)[-1]
        schema = own.get("schema", "duetime")
        shown = f"postgresql://{host}{parts.path}" + ("" if schema == "duetime" else f"?schema={schema}")
        pooled = _switch(own, "pooled", False)
        return cls(
            dsn=urlunsplit(bare),
            shown=shown,
            schema=_schema(schema),
            notify=_switch(own, "notify", True) and not pooled,
            pooled=pooled,
            connections=int(_number(own, "connections", 8, 1, 500)),
            timeout=_number(own, "timeout", 30.0, 0.1, 3_600.0),
        )


def _schema(name: str) -> str:
    if not name or len(name.encode()) > LONGEST_NAME or not name.isprintable() or name.lower().startswith("pg_") or "$$" in name:
        raise InvalidValue(
            f"schema must be a name of at most {LONGEST_NAME} bytes that does not begin with pg_ and has no $$ in it, got {name!r}; "
            "write …?schema=duetime"
        )
    return name


def _switch(options: Mapping[str, str], name: str, default: bool) -> bool:
    text = options.get(name)
    if text is None:
        return default
    if text.lower() not in _SWITCH:
        raise InvalidValue(f"{name} in a postgresql URL must be on or off, got {text!r}")
    return _SWITCH[text.lower()]


def _number(options: Mapping[str, str], name: str, default: float, least: float, most: float) -> float:
    text = options.get(name)
    if text is None:
        return default
    if not re.fullmatch(r"\d+(\.\d+)?", text) or not least <= float(text) <= most:
        raise InvalidValue(f"{name} in a postgresql URL must be a number from {least:g} to {most:g}, got {text!r}")
    return float(text)
