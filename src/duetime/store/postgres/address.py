"""A store's URL: what goes to the driver and what is ours."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

import msgspec

from duetime.errors import InvalidValue
from duetime.store.postgres.settings import SESSION

LONGEST_NAME = 63
_SWITCH = {"on": True, "true": True, "1": True, "yes": True, "off": False, "false": False, "0": False, "no": False}
OPTIONS = {
    "schema": "the schema that holds our tables (duetime)",
    "notify": "on or off: wake-ups by LISTEN and NOTIFY (on)",
    "pooled": "on behind a pooler in transaction mode such as PgBouncer: nothing of a session is relied on, no LISTEN (off)",
    "connections": "how many connections one process opens at most, besides four for wake-ups, lease and long statements (8)",
    "timeout": "seconds that a statement may take, and connecting if it is less than 10 (30)",
}
# No message of this file shows the host or port that it refuses: after a character that was not encoded it may be a part of the password.
_ENCODE = "in user and password, percent-encode what has a meaning in URLs: / ? # @ [ ] are %2F %3F %23 %40 %5B %5D"


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """Where a store is, and how to connect to it."""

    dsn: str
    shown: str
    schema: str = "duetime"
    notify: bool = True
    pooled: bool = False
    connections: int = 8
    timeout: float = 30.0

    @property
    def session_settings(self) -> Mapping[str, str]:
        """Return what our own sessions set; a statement_timeout in the URL counts, because no value of it does harm to data."""
        return {name: value for name, value in SESSION.items() if name != "statement_timeout" or name not in self.passed_on}

    @property
    def passed_on(self) -> Mapping[str, str]:
        """Options for the driver, which passes those that it does not know to the server."""
        return dict(parse_qsl(urlsplit(self.dsn).query, keep_blank_values=True))

    @classmethod
    def from_url(cls, url: str) -> Address:
        """Parse `postgresql://user:secret@host:port/database?schema=…`. Options that are not ours are passed to the driver."""
        parts = _split(url)
        options = _options(parts.query)
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


def _split(url: str) -> SplitResult:
    """Split a URL, and refuse one in which user, password, host and port cannot be told apart."""
    try:
        parts = urlsplit(url)
    except ValueError:  # its text may have the password in it
        raise InvalidValue(f"the postgresql URL cannot be read: an IPv6 address is written [::1]; {_ENCODE}") from None
    *users, hosts = parts.netloc.split("@")
    for host in hosts.split(",") if hosts else ():
        name, port = _host(host)
        if not name:
            raise InvalidValue(f"the postgresql URL lacks a host before a port or between commas, or has [ ] in the wrong place; {_ENCODE}")
        _check_port(port)
    # an @ after the host is most probably the one before the host, and what looks like the host a part of the password
    if parts.fragment or "@" in parts.path or re.search("@[^&]*/", parts.query):
        raise InvalidValue(f"the postgresql URL has a # in it, or an @ after the host; {_ENCODE}")
    if len(users) > 1:
        raise InvalidValue(f"the postgresql URL has more than one @ before its host {hosts}; {_ENCODE}")
    return parts


def _host(text: str) -> tuple[str, str]:
    """Split `host:port`; no host if there is none to be seen."""
    if text.startswith("["):
        address = re.fullmatch(r"(\[[^\]]+\])(?::(.*))?", text)
        return ("", "") if address is None else (address[1], address[2] or "")
    name, _, port = text.partition(":")
    return name, unquote(port)


def _check_port(text: str) -> None:
    if text and not (re.fullmatch("[0-9]{1,5}", text) and 1 <= int(text) <= 65_535):
        raise InvalidValue(f"the port in a postgresql URL must be a number from 1 to 65535; {_ENCODE}")


def _options(query: str) -> dict[str, str]:
    if any("=" not in field for field in query.split("&") if field):
        raise InvalidValue(f"options in a postgresql URL are written name=value, with & between them; {_ENCODE}")
    pairs = parse_qsl(query, keep_blank_values=True)
    names = [name for name, _ in pairs]
    for name in OPTIONS:
        if names.count(name) > 1:
            raise InvalidValue(f"{name} is given twice in a postgresql URL; leave one of them out")
    options = dict(pairs)
    for port in options.get("port", "").split(","):
        _check_port(port)
    return options


def _schema(name: str) -> str:
    wrong = not name or len(name.encode()) > LONGEST_NAME or not name.isprintable() or "$$" in name
    if wrong or name.lower().startswith("pg_") or name.lower() == "information_schema":
        raise InvalidValue(
            f"schema must be a name of at most {LONGEST_NAME} bytes that has no $$ in it and is none of the server's own (pg_…, "
            f"information_schema), got {name!r}; write …?schema=duetime"
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
