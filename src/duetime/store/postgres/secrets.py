"""Secrets in the database, sealed."""

from __future__ import annotations

from collections.abc import Sequence

from duetime.clock import Instant
from duetime.model.secrets import SealedSecret, SecretVersion
from duetime.store.postgres.database import OpenSchema
from duetime.store.postgres.runner import Runner
from duetime.store.rows.secrets import oldest_removed, put_decision, read_sealed_rows, read_version_row, secret_row
from duetime.store.sql import Statements


async def put_secret(run: Runner, sql: Statements, secret: SealedSecret, old_until_at: Instant, now: Instant | None) -> bool:
    await run.rows(sql.lock_secrets)
    decided = put_decision(secret, await run.rows(sql.secret_rows, [secret.name, now]))
    if decided is not None:
        return decided
    await run.rows(sql.end_secret_versions, [secret.name, old_until_at])
    await run.rows(sql.delete_secret_versions, [secret.name, now, oldest_removed(secret)])
    await run.rows(sql.insert_secret, secret_row(secret))
    return True


async def reseal_secrets(run: Runner, sql: Statements, changes: Sequence[tuple[SealedSecret, SealedSecret]]) -> list[bool]:
    await run.rows(sql.lock_secrets)
    return [
        bool(await run.rows(sql.reseal_secret, [after.key, after.sealed, before.name, before.version, before.sealed]))
        for before, after in changes
    ]


class Secrets(OpenSchema):
    """Where sealed secrets live."""

    async def put_secret(self, secret: SealedSecret, old_until_at: Instant) -> bool:
        return await self._opened.transaction(lambda run: put_secret(run, self._sql, secret, old_until_at, self._clock.parameter))

    async def secrets(self) -> list[SecretVersion]:
        return [read_version_row(row) for row in await self._opened.rows(self._sql.all_secrets, [self._clock.parameter])]

    async def sealed_secrets(self, names: Sequence[str]) -> list[list[SealedSecret]]:
        if not names:
            return []
        return read_sealed_rows(await self._opened.rows(self._sql.sealed_secrets, [list(names), self._clock.parameter]), names)

    async def reseal_secrets(self, changes: Sequence[tuple[SealedSecret, SealedSecret]]) -> list[bool]:
        if not changes:
            return []
        return await self._opened.transaction(lambda run: reseal_secrets(run, self._sql, changes))

    async def remove_secret(self, name: str) -> bool:
        return any(live for [live] in await self._opened.rows(self._sql.delete_secret, [name, self._clock.parameter]))

    async def prune_secrets(self) -> int:
        [[count]] = await self._opened.rows(self._sql.prune_secrets, [self._clock.parameter])
        return int(count)
