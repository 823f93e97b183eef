"""The servers of this test session: each is started when it is first asked for, and all are ended with the session."""

from __future__ import annotations

import os
from urllib.parse import urlencode, urlsplit, urlunsplit

from tests.servers.brokers import ValkeyServer
from tests.servers.installations import installations
from tests.servers.postgres import Postgres

GIVEN = "DUETIME_TEST_POSTGRES_URL"
_running: dict[str, Postgres] = {}
_valkey: list[ValkeyServer] = []


def postgres_names() -> list[str]:
    """Name the servers that tests of a store run on: one per version, or the one that the environment gives in their place."""
    return ["postgres-given"] if os.environ.get(GIVEN) else list(installations())


def newest_postgres() -> str:
    """Return the name of the newest of them, on which a test runs that needs only one."""
    return max(postgres_names(), key=lambda name: name.rpartition("-")[2])


def postgres(name: str) -> Postgres:
    """Give the session's server of a version; it is shared, so leave it running and use a schema of your own."""
    if name not in _running:
        server = Postgres(installations()[name])
        server.start()
        _running[name] = server
    return _running[name]


def postgres_url(name: str, *, database: str | None = None, **options: str) -> str:
    """Give the address of one of `postgres_names`; options become its query, as `schema`."""
    given = os.environ.get(GIVEN)
    parts = urlsplit(given or postgres(name).url())
    query = "&".join(filter(None, (parts.query, urlencode(options))))
    return urlunsplit(parts._replace(query=query, path=f"/{database}" if database else parts.path))


def valkey() -> ValkeyServer:
    """Give the session's Valkey server; it is shared, so use a prefix of your own."""
    if not _valkey:
        server = ValkeyServer("--appendonly", "no")
        server.start()
        _valkey.append(server)
    return _valkey[0]


def end() -> None:
    while _valkey:
        _valkey.pop().__exit__(None, None, None)
    while _running:
        _, server = _running.popitem()
        server.remove()
