"""The stores that the suite runs on. A new store adds its places to PLACES; what a place cannot do, it leaves out of `can`."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import psycopg

from duetime.clock import Instant
from tests.conformance.connections import Connection, PsycopgConnection, SqliteConnection
from tests.servers.running import postgres_names, postgres_url

ROOT = Path(__file__).resolve().parents[2]
ELSEWHERE = "elsewhere"  # a second database


class Ground(Protocol):
    """Where stores of one kind are made. A folder that belongs to the test stands for a store; the same folder means the same one."""

    def url(self, folder: Path) -> str:
        """Name the folder's store; nothing is created yet."""
        ...

    def connect(self, folder: Path) -> Connection:
        """Connect to the database of the folder's store as a caller would."""
        ...

    def elsewhere(self, folder: Path) -> tuple[str, Connection]:
        """Name a store in another database, and connect to that."""
        ...

    def make_newer(self, folder: Path) -> None:
        """Let the folder's store look as if a later version had opened it."""
        ...

    def clear(self) -> None:
        """Remove all that was made since the last time."""
        ...


class SqliteFile:
    """Files in the folder; whoever made the folder removes it."""

    def url(self, folder: Path) -> str:
        return f"sqlite:///{folder / 'duetime.db'}"

    def connect(self, folder: Path) -> Connection:
        return SqliteConnection(folder / "duetime.db")

    def elsewhere(self, folder: Path) -> tuple[str, Connection]:
        return f"sqlite:///{folder / 'elsewhere.db'}", SqliteConnection(folder / "elsewhere.db")

    def make_newer(self, folder: Path) -> None:
        connection = self.connect(folder)
        connection.execute("insert into duetime_version values (9999, 'from the future', 0)")
        connection.close()

    def clear(self) -> None:
        pass


class SqliteMemory(SqliteFile):
    """Every store object has a database to itself, so nobody else can do anything to it."""

    def url(self, folder: Path) -> str:
        return "sqlite:///:memory:"


class PostgresSchemas:
    """Schemas on the session's server. Making one and dropping it takes about 50 ms, so that each test can have its own."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._made: set[tuple[str | None, str]] = set()  # database and schema

    def _schema(self, folder: Path, database: str | None = None) -> str:
        schema = f"t_{hashlib.sha256(bytes(folder)).hexdigest()[:24]}"
        self._made |= {(database, schema), (database, f"{schema}_caller")}
        return schema

    def url(self, folder: Path) -> str:
        return postgres_url(self._server, schema=self._schema(folder))

    def connect(self, folder: Path) -> Connection:
        return PsycopgConnection(postgres_url(self._server), f"{self._schema(folder)}_caller")

    def elsewhere(self, folder: Path) -> tuple[str, Connection]:
        with self._administer() as connection:
            if connection.execute("select from pg_database where datname = %s", (ELSEWHERE,)).fetchone() is None:
                connection.execute(f"create database {ELSEWHERE}".encode())
        schema = self._schema(folder, ELSEWHERE)
        address = postgres_url(self._server, database=ELSEWHERE)
        return postgres_url(self._server, database=ELSEWHERE, schema=schema), PsycopgConnection(address, f"{schema}_caller")

    def make_newer(self, folder: Path) -> None:
        with self._administer() as connection:
            connection.execute(f"insert into {self._schema(folder)}.version values (9999, 'from the future', 0)".encode())

    def clear(self) -> None:
        for database in {database for database, _ in self._made}:
            with self._administer(database) as connection:
                for schema in (schema for made_in, schema in self._made if made_in == database):
                    connection.execute(f"drop schema if exists {schema} cascade".encode())
        self._made.clear()

    def _administer(self, database: str | None = None) -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(postgres_url(self._server, database=database), autocommit=True, connect_timeout=30)


def die_in_another_process(url: str, now: Instant, worker: str, wants: Mapping[str, int]) -> int:
    """Run a worker that claims and is killed with all that it holds; give how many tasks it claimed."""
    order = json.dumps({"url": url, "now": now, "worker": worker, "wants": wants})
    doomed = subprocess.run(
        [sys.executable, "-m", "tests.conformance.doomed", order], cwd=ROOT, capture_output=True, text=True, timeout=50, check=False
    )
    if doomed.returncode != -9:
        raise AssertionError(f"the doomed worker should have been killed, but ended with {doomed.returncode}: {doomed.stderr}")
    return int(doomed.stdout)


@dataclass(frozen=True)
class Place:
    """One kind of store.

    `can` names capabilities, which are names of fixtures: a test that asks for one runs only where it is given.
    `another`: a second store object may open the same data. `dead_worker`: a worker can really die.
    `connection`: tasks can be added on a connection of the caller's own.
    `newer_tables`: its schema can be made to look like that of a later version.
    `examples` is how often the state machine is run, because stores differ in speed.
    """

    name: str
    ground: Ground
    can: frozenset[str] = field(default_factory=frozenset)
    examples: int = 500
    die: Callable[[str, Instant, str, Mapping[str, int]], int] = die_in_another_process

    def url(self, folder: Path) -> str:
        return self.ground.url(folder)


ALL = frozenset({"another", "dead_worker", "connection", "newer_tables"})
PLACES = [
    Place("sqlite-memory", SqliteMemory(), examples=500),
    Place("sqlite-file", SqliteFile(), can=ALL, examples=20),
    *(Place(name, PostgresSchemas(name), can=ALL, examples=40) for name in postgres_names()),
]
CAPABILITIES = frozenset[str]().union(*(place.can for place in PLACES))
