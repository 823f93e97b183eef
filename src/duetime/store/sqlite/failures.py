"""Failures by kind, in the file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from duetime.clock import Instant
from duetime.model.failures import COARSE, FINE_FOR, KEPT_FOR, MOST_GROUPS, FailureGroup, bucket_of
from duetime.model.outcome import Settlement
from duetime.store.failures import MOST_LISTED
from duetime.store.rows.failures import assembled, folded, read_tally, tally_rows
from duetime.store.sqlite.database import OpenFile
from duetime.store.sqlite.gates import read_names
from duetime.store.sqlite.records import write_json
from duetime.store.sqlite.statements import SQL

AT_ONCE = 5_000  # counts that are added up in one write


def count(connection: sqlite3.Connection, failing: Iterable[Settlement], now: Instant) -> None:
    """Count failures with the write that records them."""
    connection.executemany(SQL.insert_tally, tally_rows(failing, now))


def read(
    connection: sqlite3.Connection, seen_since: Instant, since: Instant, handler: str | None, fingerprint: str | None
) -> list[FailureGroup]:
    names = None if handler is None else write_json(read_names(connection).all(handler))
    chosen = {"seen_since": seen_since, "since": bucket_of(since), "names": names, "fingerprint": fingerprint, "limit": MOST_LISTED}
    return assembled(connection.execute(SQL.failure_rows, chosen), since)


def fold(connection: sqlite3.Connection) -> int:
    rows = connection.execute(SQL.some_tallies, (AT_ONCE,)).fetchall()
    if not rows:
        return 0
    tallies = [read_tally(row[1:]) for row in rows]
    known = connection.execute(SQL.group_facts, (write_json(sorted({tally.fingerprint for tally in tallies})),)).fetchall()
    groups, counts = folded(known, tallies)
    connection.executemany(SQL.put_group, groups)
    connection.executemany(SQL.add_count, counts)
    connection.execute(SQL.delete_tallies, (rows[-1][0],))
    return len(rows)


def mute(connection: sqlite3.Connection, fingerprint: str, until_at: Instant | None, by: str) -> bool:
    while fold(connection):  # so that there is a row to mark
        pass
    return connection.execute(SQL.mute_group, (until_at, "" if until_at is None else by, fingerprint)).rowcount > 0


def prune(connection: sqlite3.Connection, now: Instant) -> int:
    while fold(connection):
        pass
    fine_since = bucket_of(now - FINE_FOR, COARSE)
    connection.execute(SQL.coarsen_counts, {"before": fine_since, "width": COARSE})
    connection.execute(SQL.delete_fine_counts, {"before": fine_since, "width": COARSE})
    connection.execute(SQL.delete_counts, (now - KEPT_FOR,))
    removed = connection.execute(SQL.delete_groups, {"before": now - KEPT_FOR, "now": now, "most": MOST_GROUPS}).rowcount
    if removed:
        connection.execute(SQL.delete_stray_counts)
    return removed


class Failures(OpenFile):
    """Where failures are counted by kind."""

    async def failures(self, since: Instant, *, handler: str | None = None) -> list[FailureGroup]:
        return await self._read(lambda connection: read(connection, since, since, handler, None))

    async def failure(self, fingerprint: str, since: Instant) -> FailureGroup | None:
        found = await self._read(lambda connection: read(connection, 0, since, None, fingerprint))
        return found[0] if found else None

    async def mute_failure(self, fingerprint: str, until_at: Instant | None, by: str) -> bool:
        return await self._write(lambda connection: mute(connection, fingerprint, until_at, by))

    async def fold_failures(self) -> int:
        if not await self._read(lambda connection: connection.execute(SQL.any_tally).fetchone()):
            return 0
        return await self._write(fold)

    async def prune_failures(self) -> int:
        return await self._write(lambda connection: prune(connection, self._clock.now()))
