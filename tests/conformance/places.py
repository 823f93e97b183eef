"""The stores that the suite runs on. A new store adds its places to PLACES; what a place cannot do, it leaves out of `can`."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import psycopg

from duetime.clock import Instant
from tests.conformance.connections import Connection, PsycopgConnection, SqliteConnection
from tests.servers.running import postgres_names, postgres_url

ROOT = Path(__file__).resolve().parents[2]
ELSEWHERE = "elsewhere"  # a second database
MANY = 5_000  # rows that leave enough behind for later tests to notice


class Ground(Protocol):
    """Where stores of one kind are made. A folder that belongs to the test stands for a store; the same folder means the same one."""

    def url(self, folder: Path) -> str:
        """Name the folder's store; nothing is created yet."""
        ...

    def furnish(self, folder: Path) -> None:
        """Let the folder's store have its tables already, if that saves time; it is empty all the same."""
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
        """Remove what was made since the last time, except perhaps what `furnish` can use."""
        ...

    def close(self) -> None:
        """Remove that too."""
        ...


class SqliteFile:
    """Files in the folder; whoever made the folder removes it."""

    def url(self, folder: Path) -> str:
        return f"sqlite:///{folder / 'duetime.db'}"

    def furnish(self, folder: Path) -> None:
        pass

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

    def close(self) -> None:
        pass


class SqliteMemory(SqliteFile):
    """Every store object has a database to itself, so nobody else can do anything to it."""

    def url(self, folder: Path) -> str:
        return "sqlite:///:memory:"


class PostgresSchemas:
    """Schemas on the session's server.

    To make one with all its tables and to drop it takes ten times as long as to empty it, so most tests get one that an earlier
    test has left. What a test did to more than the rows, or to very many of them, is not passed on.
    """

    def __init__(self, server: str) -> None:
        self._server = server
        self._schemas: dict[Path, str] = {}
        self._lasting: set[str] = set()  # those that may be passed on
        self._spare: list[str] = []
        self._strange: set[tuple[str | None, str]] = set()  # callers' schemas and those of other stores, with their database

    def url(self, folder: Path) -> str:
        return postgres_url(self._server, schema=self._schema(folder))

    def furnish(self, folder: Path) -> None:
        if self._spare:
            self._schemas[folder] = self._spare.pop()
        self._lasting.add(self._schema(folder))

    def connect(self, folder: Path) -> Connection:
        return self._connect(None, self._schema(folder))

    def elsewhere(self, folder: Path) -> tuple[str, Connection]:
        with self._administer() as connection:
            if connection.execute("select from pg_database where datname = %s", (ELSEWHERE,)).fetchone() is None:
                connection.execute(f"create database {ELSEWHERE}".encode())
        schema = _new_name()
        self._strange.add((ELSEWHERE, schema))
        return postgres_url(self._server, database=ELSEWHERE, schema=schema), self._connect(ELSEWHERE, schema)

    def make_newer(self, folder: Path) -> None:
        schema = self._schema(folder)
        self._lasting.discard(schema)
        with self._administer() as connection:
            connection.execute(f"insert into {schema}.version values (9999, 'from the future', 0)".encode())

    def clear(self) -> None:
        # forgotten first: if one of them cannot be removed, only one test shall suffer
        schemas, strange = set(self._schemas.values()), self._strange
        lasting, self._lasting = schemas & self._lasting, set()
        self._schemas, self._strange = {}, set()
        if not schemas | strange:
            return
        with self._administer() as connection:
            spared = {schema for schema in lasting if _emptied(connection, schema)}
        self._drop({(None, schema) for schema in schemas - spared} | strange)
        self._spare += spared

    def close(self) -> None:
        self._drop({(None, schema) for schema in self._spare})
        self._spare.clear()

    def _schema(self, folder: Path) -> str:
        return self._schemas.setdefault(folder, _new_name())

    def _connect(self, database: str | None, schema: str) -> Connection:
        self._strange.add((database, f"{schema}_caller"))
        return PsycopgConnection(postgres_url(self._server, database=database), f"{schema}_caller")

    def _drop(self, places: set[tuple[str | None, str]]) -> None:
        for database in {database for database, _ in places}:
            with self._administer(database) as connection:
                for schema in (schema for where, schema in places if where == database):
                    connection.execute(f"drop schema if exists {schema} cascade".encode())

    def _administer(self, database: str | None = None) -> psycopg.Connection[tuple[Any, ...]]:
        # whoever still holds a lock here has forgotten to close something
        return psycopg.connect(
            postgres_url(self._server, database=database), autocommit=True, connect_timeout=30, options="-c lock_timeout=20s"
        )


def _new_name() -> str:
    return f"t_{uuid.uuid4().hex[:20]}"


def _emptied(connection: psycopg.Connection[tuple[Any, ...]], schema: str) -> bool:
    """Delete all rows but the single facts of the store; tell whether they were few and the tables are there at all."""
    tables = connection.execute(
        "select c.oid::regclass::text from pg_class as c join pg_namespace as n on n.oid = c.relnamespace where n.nspname = %s "
        "and c.relkind in ('r', 'p') and not c.relispartition and c.relname not in ('version', 'functions', 'control')",
        (schema,),
    ).fetchall()
    with connection.transaction():
        deleted = sum(connection.execute(f"delete from {table}".encode()).rowcount for (table,) in tables)
    return bool(tables) and deleted < MANY


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
    *(Place(name, PostgresSchemas(name), can=ALL, examples=100) for name in postgres_names()),
]
CAPABILITIES = frozenset[str]().union(*(place.can for place in PLACES))
