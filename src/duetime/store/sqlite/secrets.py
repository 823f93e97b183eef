"""Secrets in the file, sealed."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import msgspec

from duetime.clock import Instant
from duetime.model.secrets import SealedSecret, SecretVersion
from duetime.store.rows.secrets import oldest_removed, put_decision, read_sealed_rows, read_version_row, secret_row
from duetime.store.sqlite.database import OpenFile
from duetime.store.sqlite.statements import SQL


def put_secret(connection: sqlite3.Connection, secret: SealedSecret, old_until_at: Instant, now: Instant) -> bool:
    stored = connection.execute(SQL.secret_rows, {"name": secret.name, "now": now}).fetchall()
    decided = put_decision(secret, stored)
    if decided is not None:
        return decided
    connection.execute(SQL.end_secret_versions, {"name": secret.name, "until": old_until_at})
    connection.execute(SQL.delete_secret_versions, {"name": secret.name, "now": now, "oldest": oldest_removed(secret)})
    connection.execute(SQL.insert_secret, secret_row(secret))
    return True


def secrets(connection: sqlite3.Connection, now: Instant) -> list[SecretVersion]:
    return [read_version_row(row) for row in connection.execute(SQL.all_secrets, {"now": now})]


def sealed_secrets(connection: sqlite3.Connection, names: Sequence[str], now: Instant) -> list[list[SealedSecret]]:
    values = {"names": msgspec.json.encode(list(names)).decode(), "now": now}
    return read_sealed_rows(connection.execute(SQL.sealed_secrets, values), names)


def reseal_secrets(connection: sqlite3.Connection, changes: Sequence[tuple[SealedSecret, SealedSecret]]) -> list[bool]:
    return [
        connection.execute(SQL.reseal_secret, (after.key, after.sealed, before.name, before.version, before.sealed)).rowcount > 0
        for before, after in changes
    ]


def remove_secret(connection: sqlite3.Connection, name: str, now: Instant) -> bool:
    ends = connection.execute(SQL.delete_secret, (name,)).fetchall()
    return any(until_at is None or until_at > now for (until_at,) in ends)


def prune_secrets(connection: sqlite3.Connection, now: Instant) -> int:
    return connection.execute(SQL.prune_secrets, (now,)).rowcount


class Secrets(OpenFile):
    """Where sealed secrets live."""

    async def put_secret(self, secret: SealedSecret, old_until_at: Instant) -> bool:
        return await self._write(lambda connection: put_secret(connection, secret, old_until_at, self._clock.now()))

    async def secrets(self) -> list[SecretVersion]:
        return await self._read(lambda connection: secrets(connection, self._clock.now()))

    async def sealed_secrets(self, names: Sequence[str]) -> list[list[SealedSecret]]:
        return await self._read(lambda connection: sealed_secrets(connection, names, self._clock.now())) if names else []

    async def reseal_secrets(self, changes: Sequence[tuple[SealedSecret, SealedSecret]]) -> list[bool]:
        return await self._write(lambda connection: reseal_secrets(connection, changes)) if changes else []

    async def remove_secret(self, name: str) -> bool:
        return await self._write(lambda connection: remove_secret(connection, name, self._clock.now()))

    async def prune_secrets(self) -> int:
        return await self._write(lambda connection: prune_secrets(connection, self._clock.now()))
