"""Stored targets in the file, and their version."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence

import msgspec

from duetime.clock import Instant
from duetime.model.targets import NewTarget, StoredTarget, TargetVersions
from duetime.store.rows.targets import is_as_seen, is_stored, read_target_row
from duetime.store.sqlite.control import declare
from duetime.store.sqlite.database import OpenFile
from duetime.store.sqlite.records import write_json
from duetime.store.sqlite.statements import SQL
from duetime.store.values import Declaration, HintKind


def read_targets(connection: sqlite3.Connection, names: Collection[str] | None) -> list[StoredTarget]:
    listed = None if names is None else write_json(list(names))
    return [read_target_row(row) for row in connection.execute(SQL.all_targets, {"names": listed})]


def put_target(
    connection: sqlite3.Connection, target: NewTarget, declaration: Declaration, seen: int | None, now: Instant
) -> StoredTarget | None:
    stored = next(iter(read_targets(connection, [target.name])), None)
    if is_stored(target, stored):
        return stored
    if not is_as_seen(stored, seen):
        return None
    connection.execute(SQL.forget_declaration, {"name": target.name})
    version = next_version(connection)
    values = (target.name, target.kind, target.definition.decode(), version, now, target.changed_by, declaration.digest)
    connection.execute(SQL.put_target, values)
    connection.execute(SQL.forget_declaration, {"name": target.name})  # the same may have been declared before: now it is the newest
    declare(connection, [declaration], now)
    return StoredTarget(**msgspec.structs.asdict(target), version=version, changed_at=now)


def remove_target(connection: sqlite3.Connection, name: str, seen: int | None) -> bool | None:
    stored = next(iter(read_targets(connection, [name])), None)
    if not is_as_seen(stored, seen):
        return None
    if stored is None:
        return False
    if not stored.shadowed:
        connection.execute(SQL.forget_declaration, {"name": name})
    connection.execute(SQL.delete_target, (name,))
    next_version(connection)
    return True


def shadow_targets(connection: sqlite3.Connection, names: Sequence[str]) -> list[str]:
    shadowed = [name for name in names if connection.execute(SQL.shadow_target, (name,)).rowcount]
    for name in shadowed:
        connection.execute(SQL.forget_declaration, {"name": name})
    if shadowed:
        next_version(connection)
    return shadowed


def target_versions(connection: sqlite3.Connection) -> TargetVersions:
    return TargetVersions(targets_version(connection), dict(connection.execute(SQL.target_versions).fetchall()))


def targets_version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute(SQL.targets_version).fetchone()
    return int(version)


def next_version(connection: sqlite3.Connection) -> int:
    ((version,),) = connection.execute(SQL.next_targets_version).fetchall()
    return int(version)


class Targets(OpenFile):
    """Where stored targets live."""

    async def put_target(self, target: NewTarget, declaration: Declaration, seen: int | None = None) -> StoredTarget | None:
        stored = await self._write(lambda connection: put_target(connection, target, declaration, seen, self._clock.now()))
        self._hint(HintKind.TARGETS)
        return stored

    async def targets(self, names: Collection[str] | None = None) -> list[StoredTarget]:
        return await self._read(lambda connection: read_targets(connection, names))

    async def target_versions(self) -> TargetVersions:
        return await self._read(target_versions)

    async def remove_target(self, name: str, seen: int | None = None) -> bool | None:
        removed = await self._write(lambda connection: remove_target(connection, name, seen))
        self._hint(HintKind.TARGETS)
        return removed

    async def shadow_targets(self, names: Sequence[str]) -> list[str]:
        if not names:
            return []
        shadowed = await self._write(lambda connection: shadow_targets(connection, names))
        if shadowed:
            self._hint(HintKind.TARGETS)
        return shadowed
