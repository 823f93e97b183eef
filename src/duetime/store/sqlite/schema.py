"""The schema's version, and how it moves forward."""

from __future__ import annotations

import sqlite3

from duetime.clock import Instant
from duetime.errors import StoreUnavailable
from duetime.store.sql import migrations
from duetime.store.sqlite.statements import SQL

STEPS = migrations("duetime.store.sqlite")


def is_current(connection: sqlite3.Connection) -> bool:
    """Return whether all migrations have run; a schema from a newer version is refused."""
    if not connection.execute(SQL.has_versions).fetchone()[0]:
        return False
    return _version(connection) == len(STEPS)


def migrate(connection: sqlite3.Connection, now: Instant) -> None:
    """Run the missing migrations; the version row is written before the statements of its step."""
    connection.execute(SQL.create_versions)
    current = _version(connection)
    for step in STEPS:
        if step.version > current:
            connection.execute(SQL.add_version, (step.version, step.name, now))
            for statement in step.statements:
                connection.execute(statement)


def script() -> str:
    """Return all migrations as one text that a person may read and run."""
    parts = ["begin immediate;", f"{SQL.create_versions};"]
    for step in STEPS:
        parts.append(f"insert into duetime_version values ({step.version}, '{step.name}', strftime('%s') * 1000000);")
        parts.append(step.text.strip())
    return "\n\n".join([*parts, "commit;"]) + "\n"


def refuse_old(connection: sqlite3.Connection, now: Instant) -> None:
    """Refuse to work on tables that are not there or not up to date."""
    raise StoreUnavailable("the store's tables are missing or older than this version; run `duetime migrate`")


def _version(connection: sqlite3.Connection) -> int:
    (current,) = connection.execute(SQL.current_version).fetchone()
    if current > len(STEPS):
        raise StoreUnavailable(
            f"the store's tables have version {current}, but this Duetime knows up to {len(STEPS)}; upgrade Duetime on this machine"
        )
    return int(current)
