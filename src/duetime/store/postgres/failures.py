"""Failures by kind, in the database."""

from __future__ import annotations

from duetime.clock import Instant
from duetime.model.failures import COARSE, FINE_FOR, KEPT_FOR, MOST_GROUPS, FailureGroup, bucket_of
from duetime.store.failures import MOST_LISTED
from duetime.store.postgres.database import OpenSchema
from duetime.store.postgres.runner import Runner
from duetime.store.rows.failures import assembled, folded, read_tally
from duetime.store.sql import Statements

AT_ONCE = 5_000  # counts that are added up in one transaction


async def fold(run: Runner, sql: Statements) -> int:
    """Add up counts, alone: of two who fold a new kind at once the second would overwrite what the first has found."""
    await run.rows(sql.lock_groups)
    tallies = [read_tally(row) for row in await run.rows(sql.take_tallies, [AT_ONCE])]
    if tallies:
        known = [(row[0], row[1]) for row in await run.rows(sql.group_facts, [sorted({tally.fingerprint for tally in tallies})])]
        groups, counts = folded(known, tallies)
        await run.rows(sql.put_groups, [list(column) for column in zip(*groups, strict=True)])
        await run.rows(sql.add_counts, [list(column) for column in zip(*counts, strict=True)])
    return len(tallies)


async def mute(run: Runner, sql: Statements, fingerprint: str, until_at: Instant | None, by: str) -> bool:
    while await fold(run, sql):  # so that there is a row to mark
        pass
    return bool(await run.rows(sql.mute_group, [fingerprint, until_at, "" if until_at is None else by]))


async def prune(run: Runner, sql: Statements, now: Instant) -> int:
    while await fold(run, sql):
        pass
    await run.rows(sql.coarsen_counts, [bucket_of(now - FINE_FOR, COARSE), COARSE])
    await run.rows(sql.delete_counts, [now - KEPT_FOR])
    return len(await run.rows(sql.delete_groups, [now - KEPT_FOR, now, MOST_GROUPS]))


class Failures(OpenSchema):
    """Where failures are counted by kind."""

    async def failures(self, since: Instant, *, handler: str | None = None) -> list[FailureGroup]:
        return await self._failures(since, since, handler, None)

    async def failure(self, fingerprint: str, since: Instant) -> FailureGroup | None:
        found = await self._failures(0, since, None, fingerprint)
        return found[0] if found else None

    async def _failures(self, seen_since: Instant, since: Instant, handler: str | None, fingerprint: str | None) -> list[FailureGroup]:
        chosen = [seen_since, bucket_of(since), handler, fingerprint, MOST_LISTED]
        return assembled(await self._opened.rows(self._sql.failure_rows, chosen), since)

    async def mute_failure(self, fingerprint: str, until_at: Instant | None, by: str) -> bool:
        return await self._opened.transaction(lambda run: mute(run, self._sql, fingerprint, until_at, by))

    async def fold_failures(self) -> int:
        if not await self._opened.rows(self._sql.any_tally):
            return 0
        return await self._opened.transaction(lambda run: fold(run, self._sql))

    async def prune_failures(self) -> int:
        return await self._opened.transaction(lambda run: prune(run, self._sql, self._clock.now()))
