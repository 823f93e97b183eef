"""Connections of a caller's own, one kind per store, behind the few verbs that the suite needs."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any, Protocol

import psycopg
from psycopg.pq import TransactionStatus


class Connection(Protocol):
    """A connection that begins and ends transactions only when told to. `own` is the driver's object, as a caller would give it."""

    @property
    def own(self) -> object: ...

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open that can still be committed."""
        ...

    def begin(self) -> None: ...

    def execute(self, statement: str) -> None: ...

    def rows(self, statement: str) -> list[tuple[Any, ...]]: ...

    def commit(self) -> None: ...

    def rollback(self) -> None: ...

    def close(self) -> None: ...


class SqliteConnection:
    def __init__(self, file: Path) -> None:
        self.own = sqlite3.connect(file, isolation_level=None)

    @property
    def in_transaction(self) -> bool:
        return self.own.in_transaction

    def begin(self) -> None:
        self.own.execute("begin immediate")

    def execute(self, statement: str) -> None:
        self.own.execute(statement)

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        return self.own.execute(statement).fetchall()

    def commit(self) -> None:
        self.own.commit()

    def rollback(self) -> None:
        self.own.rollback()

    def close(self) -> None:
        self.own.close()


class PsycopgConnection:
    """A connection of psycopg. The caller's tables stand in a schema of the caller's own, and the store's are not on its path."""

    def __init__(self, address: str, schema: str) -> None:
        self.own = psycopg.connect(address, autocommit=True, connect_timeout=30)
        self.execute(f"create schema if not exists {schema}")
        self.execute(f"set search_path to {schema}")

    @property
    def in_transaction(self) -> bool:
        return self.own.info.transaction_status is TransactionStatus.INTRANS

    def begin(self) -> None:
        self.execute("begin")

    def execute(self, statement: str) -> None:
        self.own.execute(statement.encode())

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        return self.own.execute(statement.encode()).fetchall()

    def commit(self) -> None:
        self.own.commit()

    def rollback(self) -> None:
        self.own.rollback()

    def close(self) -> None:
        self.own.close()
