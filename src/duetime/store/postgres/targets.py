"""Stored targets in the database, and their version."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from duetime.clock import Instant
from duetime.model.targets import NewTarget, StoredTarget, TargetVersions
from duetime.store.postgres.control import declare
from duetime.store.postgres.database import OpenSchema
from duetime.store.postgres.runner import Runner
from duetime.store.rows.targets import is_as_seen, is_stored, read_target_row
from duetime.store.sql import Statements
from duetime.store.values import Declaration, HintKind


async def read_targets(run: Runner, sql: Statements, names: Collection[str] | None) -> list[StoredTarget]:
    return [read_target_row(row) for row in await run.rows(sql.all_targets, [None if names is None else list(names)])]


async def put_target(
    run: Runner, sql: Statements, target: NewTarget, declaration: Declaration, seen: int | None, now: Instant
) -> StoredTarget | None:
    await run.rows(sql.lock_targets)
    stored = next(iter(await read_targets(run, sql, [target.name])), None)
    if is_stored(target, stored):
        return stored
    if not is_as_seen(stored, seen):
        return None
    await run.rows(sql.forget_declarations, [[target.name]])
    version = await next_version(run, sql)
    values = [target.name, target.kind, target.definition.decode(), version, now, target.changed_by, declaration.digest]
    await run.rows(sql.put_target, values)
    await run.rows(sql.forget_declarations, [[target.name]])  # the same may have been declared before: now it is the newest
    await declare(run, sql, [declaration], now)
    return StoredTarget(**msgspec.structs.asdict(target), version=version, changed_at=now)


async def remove_target(run: Runner, sql: Statements, name: str, seen: int | None) -> bool | None:
    await run.rows(sql.lock_targets)
    stored = next(iter(await read_targets(run, sql, [name])), None)
    if not is_as_seen(stored, seen):
        return None
    if stored is None:
        return False
    if not stored.shadowed:
        await run.rows(sql.forget_declarations, [[name]])
    await run.rows(sql.delete_target, [name])
    await next_version(run, sql)
    return True


async def shadow_targets(run: Runner, sql: Statements, names: Sequence[str]) -> list[str]:
    await run.rows(sql.lock_targets)
    shadowed = sorted(row[0] for row in await run.rows(sql.shadow_targets, [list(names)]))
    if shadowed:
        await run.rows(sql.forget_declarations, [shadowed])
        await next_version(run, sql)
    return shadowed


async def next_version(run: Runner, sql: Statements) -> int:
    [[version]] = await run.rows(sql.next_targets_version)
    return int(version)


class Targets(OpenSchema):
    """Where stored targets live."""

    async def put_target(self, target: NewTarget, declaration: Declaration, seen: int | None = None) -> StoredTarget | None:
        now = self._clock.now()
        stored = await self._opened.transaction(lambda run: put_target(run, self._sql, target, declaration, seen, now))
        self._hint(HintKind.TARGETS)
        return stored

    async def targets(self, names: Collection[str] | None = None) -> list[StoredTarget]:
        return await read_targets(self._opened, self._sql, names)

    async def target_versions(self) -> TargetVersions:
        rows = await self._opened.rows(self._sql.target_versions)
        return TargetVersions(rows[0][0], {row[1]: row[2] for row in rows if row[1] is not None})

    async def remove_target(self, name: str, seen: int | None = None) -> bool | None:
        removed = await self._opened.transaction(lambda run: remove_target(run, self._sql, name, seen))
        self._hint(HintKind.TARGETS)
        return removed

    async def shadow_targets(self, names: Sequence[str]) -> list[str]:
        if not names:
            return []
        shadowed = await self._opened.transaction(lambda run: shadow_targets(run, self._sql, names))
        if shadowed:
            self._hint(HintKind.TARGETS)
        return shadowed
