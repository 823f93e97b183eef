"""The stores on which costs are measured: a SQLite file, and the newest PostgreSQL that the wheel brings."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from bench.costs.cpu import family_microseconds
from bench.costs.wire_meter import MeteredConversation, WireMeter
from bench.postgres.server import SETTINGS, Server
from tests.servers.installations import installations
from tests.servers.postgres import Postgres
from tests.servers.proxy import Proxy

DATABASE = "costs"

# What the server does on its own, whenever it likes, is kept out: nobody could say which task it was for. Full pages are not logged,
# because their number depends on when the last checkpoint was.
QUIET = {
    "autovacuum": "off",
    "full_page_writes": "off",
    "checkpoint_timeout": "1d",
    "max_wal_size": "8GB",
    "shared_buffers": "256MB",
}


class MeasuredStore(Protocol):
    """Where a case runs. `read` and `since` return what was spent outside of the measured program; `embedded`: nothing is."""

    name: str
    version: str
    embedded: bool

    def fresh(self, version: str, prepare: Callable[[str], None]) -> str:
        """Return the URL of a store that holds nothing but what `prepare` has put there, which is done once for each version."""
        ...

    def settle_down(self) -> None:
        """Do between two phases what would otherwise happen at some time in the second one."""
        ...

    @contextlib.contextmanager
    def counted(self, url: str, *, wake_ups: bool) -> Iterator[str]:
        """Return the URL under which statements are counted; without wake-ups, of which the time decides how many there are."""
        ...

    def read(self) -> dict[str, float]: ...

    def since(self, before: dict[str, float]) -> dict[str, float]: ...


class SqliteFile:
    """Runs inside the measured program, which also counts there (`sqlite_meter`)."""

    name = "SQLite"
    version = sqlite3.sqlite_version
    embedded = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def fresh(self, version: str, prepare: Callable[[str], None]) -> str:
        prepared, used = (self._folder / name / "costs.db" for name in (version, "used"))
        if not prepared.exists():
            prepared.parent.mkdir()
            prepare(f"sqlite:///{prepared}")
        shutil.rmtree(used.parent, ignore_errors=True)
        shutil.copytree(prepared.parent, used.parent)
        return f"sqlite:///{used}"

    def settle_down(self) -> None: ...

    @contextlib.contextmanager
    def counted(self, url: str, *, wake_ups: bool) -> Iterator[str]:
        yield url

    def read(self) -> dict[str, float]:
        return {}

    def since(self, before: dict[str, float]) -> dict[str, float]:
        return {}


class PostgresServer:
    """One server for all cases; a database that is made anew for each."""

    name = "PostgreSQL"
    embedded = False

    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres
        self._server = Server(postgres)
        self._meter: WireMeter | None = None
        self._prepared: set[str] = set()
        self.version = self._server.version

    def fresh(self, version: str, prepare: Callable[[str], None]) -> str:
        prepared = f"prepared_{version}"
        if version not in self._prepared:
            self._server.fresh(prepared)
            prepare(self._server.url(prepared))
            self._prepared.add(version)
        self._server.execute(
            "postgres", f"drop database if exists {DATABASE} with (force)", f"create database {DATABASE} template {prepared}"
        )
        return self._server.url(DATABASE)

    def settle_down(self) -> None:
        self._server.execute(DATABASE, "vacuum analyze", "checkpoint")

    @contextlib.contextmanager
    def counted(self, url: str, *, wake_ups: bool) -> Iterator[str]:
        assert self._postgres.port is not None
        meter = self._meter = WireMeter()
        with Proxy(self._postgres.port, lambda: MeteredConversation(meter)) as proxy:
            yield self._postgres.url(database=DATABASE, port=proxy.port, notify="on" if wake_ups else "off")
        self._meter = None

    def read(self) -> dict[str, float]:
        """Return the counts, or without a proxy what the server has spent: the proxy disturbs the one, and the looks the other."""
        if self._meter is not None:
            return self._meter.read()
        with self._server.connect(DATABASE) as connection:
            row = connection.execute("select pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone()
        assert row is not None
        return {"wal": float(row[0]), "server": family_microseconds(self._postgres.pid)}

    def since(self, before: dict[str, float]) -> dict[str, float]:
        if self._meter is not None:
            return self._meter.since(before)
        server = family_microseconds(self._postgres.pid) - before["server"]  # first, so that the question for the log is not in it
        return {"server": server, "wal": self.read()["wal"] - before["wal"]}


@contextlib.contextmanager
def sqlite_file() -> Iterator[SqliteFile]:
    with tempfile.TemporaryDirectory(prefix="duetime-costs-") as folder:
        yield SqliteFile(Path(folder))


@contextlib.contextmanager
def running_postgres() -> Iterator[PostgresServer]:
    newest = max((each for each in installations().values() if each.portable), key=lambda each: each.version)
    with Postgres(newest, {**SETTINGS, **QUIET}) as postgres:
        yield PostgresServer(postgres)
