"""What keeps the database healthy: tables for what finishes, retention, and adding up what others leave in small pieces."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import NamedTuple

from duetime.clock import DAY, Instant
from duetime.errors import InvalidValue, StoreUnavailable
from duetime.model.lifecycle import RETRY_LATER_BOUND
from duetime.model.task import FINAL, State
from duetime.store.postgres import output
from duetime.store.postgres.connection import Database
from duetime.store.postgres.control import write_time
from duetime.store.postgres.database import OpenSchema
from duetime.store.postgres.runner import Runner
from duetime.store.sql import Statements
from duetime.store.values import Pruned

logger = logging.getLogger("duetime.store")

WEEK = 7 * DAY
AHEAD = 7 * DAY
BEHIND = DAY  # outcomes may be written a while after they came about
ATTEMPTS = "attempt"
SURPLUS = 300  # rows of the tally worth adding up
ORPHANS = 1_000
REMOVED_AT_ONCE = 10_000  # tasks of a table that goes, whose output is looked for in one statement


def _parent(state: State) -> str:
    return f"history_{state}"


HISTORY = [_parent(state) for state in sorted(FINAL)]


def width(state: State) -> int:
    """Return how long a span of time one table holds of a final state. Successes are many and soon removed, so theirs are short."""
    return DAY if state is State.SUCCEEDED else WEEK


class Span(NamedTuple):
    """A table that must exist: `parent` is what it is a part of, and from when to when it reaches."""

    parent: str
    from_at: Instant
    to_at: Instant


def partitions_needed(first_at: Instant, last_at: Instant) -> list[Span]:
    """Name the tables for everything that ends in a span of time; all are aligned to the epoch."""
    widths = {_parent(state): width(state) for state in sorted(FINAL)} | {ATTEMPTS: WEEK}
    return [
        Span(parent, from_at, from_at + each)
        for parent, each in widths.items()
        for from_at in range(first_at // each * each, last_at + 1, each)
    ]


async def ensure(run: Runner, sql: Statements, now: Instant, *, ahead: int = AHEAD) -> None:
    """Make the tables that are missing for the present and the next days."""
    spans = partitions_needed(now - BEHIND, now + ahead)
    await run.rows(sql.make_partitions, [[span.parent for span in spans], [span.from_at for span in spans], [span.to_at for span in spans]])


class Partition(NamedTuple):
    """A table that exists. `detaching`: taking it out of its parent was begun and not finished; None: it is out already."""

    parent: str
    name: str
    detaching: bool | None
    from_at: Instant | None
    to_at: Instant | None

    def put_into(self, text: str) -> str:
        """Put this table's name into a statement, where a parameter is not possible."""
        return text.replace("%partition", self.name).replace("%parent", self.parent)


async def partitions(run: Runner, sql: Statements, parents: Sequence[str]) -> list[Partition]:
    return [Partition(*row) for row in await run.rows(sql.partitions, [parents])]


async def prune(database: Database, sql: Statements, state: State, before: Instant, limit: int) -> list[Pruned]:
    """Remove finished tasks past their retention.

    A table that ends before the instant goes whole if it holds more than one batch, whatever its size, and its tasks are not
    named; what it holds otherwise, and what is old in the table that the instant lies in, is deleted row by row.
    """
    old = [each for each in await partitions(database, sql, [_parent(state)]) if each.to_at is None or each.to_at <= before]
    whole = [each for each in old if each.detaching is not False or not await _is_small(database, sql, each, limit)]
    if whole and await _drop(database, sql, whole):
        await _drop_attempts(database, sql)
        whole = []
    # deleting from a table that will be dropped as soon as it can be would only make more work for everybody
    since = max((each.to_at for each in whole if each.to_at is not None), default=0)
    rows = await database.rows(sql.prune.replace("%parent", _parent(state)), [since, before, limit])
    return [Pruned(*row) for row in rows]


async def _is_small(run: Runner, sql: Statements, partition: Partition, limit: int) -> bool:
    [[count]] = await run.rows(partition.put_into(sql.count_some), [limit + 1])
    return bool(0 < count <= limit)


async def _drop(database: Database, sql: Statements, tables: Sequence[Partition]) -> bool:
    """Drop tables without holding anybody up; if something is in the way of one, it and the rest are left for the next time.

    Detaching waits for those who read the table now, but lets all others pass; once it is out nobody uses it any more. The output
    of its tasks is removed then, in small transactions; if that is interrupted, the next time goes on with it. Its
    tasks are taken from the tally in the transaction that drops it, so they are counted no more exactly when they are gone.
    """
    # of one parent only one table can be on its way out, so that one must go first
    for partition in sorted(tables, key=lambda table: table.detaching is False):
        drop = functools.partial(_drop_detached, sql=sql, partition=partition)
        try:
            if partition.detaching is not None:
                await _detach(database, sql, partition)
            if partition.parent != ATTEMPTS:
                await output.remove_of(database, sql, partition.put_into(sql.remove_output), REMOVED_AT_ONCE)
            await database.transaction(drop)
        except StoreUnavailable as error:
            logger.info("the table %s, whose time is over, could not be dropped yet: %s", partition.name, error)
            return False
    return True


async def _detach(database: Database, sql: Statements, partition: Partition) -> None:
    text = partition.put_into(sql.finish_detach if partition.detaching else sql.detach)
    async with database.link() as link:
        await link.rows(text)  # not in a transaction, and not again if it is refused: the refusal may have come half-way


async def _drop_detached(run: Runner, *, sql: Statements, partition: Partition) -> None:
    await run.rows(partition.put_into(sql.lock_partition))
    if partition.parent != ATTEMPTS:
        await run.rows(partition.put_into(sql.uncount))
    await run.rows(partition.put_into(sql.drop_partition))


async def _drop_attempts(database: Database, sql: Statements) -> None:
    """Drop tables of attempts when no finished task can have any in them.

    A task may finish long after an attempt, as long as it is retried. A task that an operator has retried keeps its attempts.
    """
    finished = [each.from_at for each in await partitions(database, sql, HISTORY) if each.from_at is not None]
    before = min(finished, default=0) - RETRY_LATER_BOUND - DAY
    old = [each for each in await partitions(database, sql, [ATTEMPTS]) if each.to_at is None or each.to_at <= before]
    unused = []
    for partition in old:
        [[living]] = await database.rows(partition.put_into(sql.has_live))
        if not living:
            unused.append(partition)
    await _drop(database, sql, unused)


async def fold(run: Runner, sql: Statements) -> bool:
    """Add up the tally when it has become long, and return whether it had; forget what is remembered twice."""
    await run.rows(sql.forget_covered)
    [[surplus]] = await run.rows(sql.surplus)
    if surplus > SURPLUS:
        await run.rows(sql.fold)
    return bool(surplus > SURPLUS)


async def release_orphans(run: Runner, sql: Statements, now: Instant | None) -> list[str]:
    """Let children go on whose parents ended unnoticed, because the child was added in a caller's transaction; return the parents."""
    rows = await run.rows(sql.orphaned, [ORPHANS])
    if rows:
        at = await write_time(run, sql, now)
        await run.rows(sql.follow, [at, [row[0] for row in rows], [row[1] == State.SUCCEEDED for row in rows]])
    return [row[0] for row in rows]


class Upkeep(OpenSchema):
    """Removes what is past its retention, and keeps the tables in order."""

    async def prune(self, state: State, before: Instant, limit: int) -> list[Pruned]:
        if state not in FINAL:
            raise InvalidValue(f"only final states can be pruned, got {state}")
        return await prune(self._opened_patiently, self._sql, state, before, limit)

    async def tidy(self) -> None:
        await self._opened.transaction(lambda run: ensure(run, self._sql, self._clock.now()))
        await self._opened.transaction(lambda run: fold(run, self._sql))
        await self._opened.transaction(lambda run: release_orphans(run, self._sql, self._clock.parameter))
        await self._lanes.publish()

    async def _make_missing_partitions(self) -> None:
        """Make the tables of history for the present; those ahead of it are the tidier's, and are missing only if none has run."""
        await self._opened.transaction(lambda run: ensure(run, self._sql, self._clock.now(), ahead=0))
