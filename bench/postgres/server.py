"""One PostgreSQL server of the benchmark's own, on loopback: every commit waits for its fsync."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import psycopg

from tests.servers.installations import SYSTEM, installations
from tests.servers.postgres import DURABLE, Postgres

# what is not named here is as in the tests or PostgreSQL's own default
SETTINGS = {**DURABLE, "synchronous_commit": "on", "shared_buffers": "1GB", "max_wal_size": "1GB", "timezone": "UTC"}


class Server:
    """A running server. Databases are made and dropped as the cases need them."""

    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres
        self.version: str = postgres.query("show server_version")[0][0].split()[0]

    def url(self, database: str) -> str:
        return self._postgres.url(database=database)

    def connect(self, database: str) -> psycopg.Connection[Any]:
        return psycopg.connect(self.url(database), autocommit=True, connect_timeout=30)

    def execute(self, database: str, *statements: str) -> None:
        with self.connect(database) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def fresh(self, database: str) -> None:
        """Make an empty database instead of the old one."""
        self.execute("postgres", f"drop database if exists {database} with (force)", f"create database {database}")

    @contextlib.contextmanager
    def old_snapshot(self, database: str) -> Iterator[None]:
        """Hold a transaction open that has looked and written: what it can see cannot be vacuumed away, and it has a number."""
        with self.connect(database) as connection:
            connection.execute("begin isolation level repeatable read")
            connection.execute("select count(*) from pg_class")
            connection.execute("create temporary table written (id integer)")
            yield
            connection.execute("rollback")


@contextlib.contextmanager
def running_server() -> Iterator[Server]:
    """Start the system's PostgreSQL, or the newest there is, and remove it with its data at the end."""
    found = sorted(installations().values(), key=lambda each: (each.home.is_relative_to(SYSTEM), each.version))
    with Postgres(found[-1], SETTINGS) as postgres:
        yield Server(postgres)


def fsync_milliseconds() -> float:
    """Return how long an fsync takes where the server's files are; next to nothing means that nothing is durable there."""
    durations = []
    with tempfile.NamedTemporaryFile() as file:
        for _ in range(50):
            file.write(b"\0" * 8192)
            file.flush()
            began = time.perf_counter()
            os.fsync(file.fileno())
            durations.append(time.perf_counter() - began)
    return sorted(durations)[25] * 1e3
