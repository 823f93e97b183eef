"""Removing finished tasks: whole tables of them, and one by one where a handler has a retention of its own."""

from __future__ import annotations

import functools
import logging
from collections.abc import AsyncIterator, Collection, Sequence
from typing import Any, NamedTuple, TypeAlias

from duetime.clock import DAY, Instant
from duetime.errors import StoreUnavailable
from duetime.model.lifecycle import RETRY_LATER_BOUND
from duetime.model.task import FINAL, State
from duetime.store.postgres import output
from duetime.store.postgres.connection import Database
from duetime.store.postgres.runner import Runner
from duetime.store.sql import Statements
from duetime.store.values import Pruned
from duetime.store.walks import Walk, Walks

logger = logging.getLogger("duetime.store")

ATTEMPTS = "attempt_recent"
REMOVED_AT_ONCE = 10_000  # tasks of a table that goes, whose output is looked for in one statement
WALKED_AT_ONCE = 2_000  # tasks that one statement looks at to find those of some handlers

Position: TypeAlias = tuple[Instant, str]  # the end of a task, and its id
FIRST: Position = (0, "00000000-0000-0000-0000-000000000000")


def parent(state: State) -> str:
    """Return the table of all tasks in a final state."""
    return f"history_{state}"


def recent(state: State) -> str:
    """Return the part of it that has tables by time."""
    return f"history_{state}_recent"


HISTORY = [recent(state) for state in sorted(FINAL)]


class Partition(NamedTuple):
    """A table that exists. `detaching`: taking it out of its parent was begun and not finished; None: it is out already."""

    parent: str
    name: str
    detaching: bool | None
    from_at: Instant | None
    to_at: Instant | None

    def ended(self, before: Instant) -> bool:
        """Return whether all that it holds ended before an instant, or it is out already. One with bounds that cannot be read stays."""
        return self.detaching is None if self.to_at is None else self.to_at <= before

    def put_into(self, text: str) -> str:
        """Put this table's name into a statement, where a parameter is not possible."""
        return text.replace("%partition", self.name).replace("%parent", self.parent)


async def partitions(run: Runner, sql: Statements, parents: Sequence[str]) -> list[Partition]:
    return [Partition(*row) for row in await run.rows(sql.partitions, [parents])]


class Retention:
    """Removes finished tasks of one final state."""

    def __init__(self, database: Database, sql: Statements, walks: Walks[Position], state: State) -> None:
        self._database = database
        self._sql = sql
        self._walks = walks
        self._state = state

    async def prune(self, before: Instant, limit: int, but: Collection[str]) -> list[Pruned]:
        """Remove tasks that finished before an instant, but none of some handlers.

        A table that ends before the instant goes whole if it holds more than one batch, whatever its size, and its tasks are not
        named; what it holds otherwise, and what is old in the table that the instant lies in, is deleted row by row.
        """
        database, sql = self._database, self._sql
        old = [each for each in await partitions(database, sql, [recent(self._state)]) if each.ended(before)]
        for each in old if but else ():
            await self._set_aside(each, but)
        whole = [each for each in old if each.detaching is not False or not await _is_small(database, sql, each, limit)]
        if whole and await drop(database, sql, whole, but):
            await drop_attempts(database, sql)
            whole = []
        if but:
            return [] if not limit else await self.prune_some(before, limit, but, named=False)
        # deleting from a table that will be dropped as soon as it can be would only make more work for everybody
        since = max((each.to_at for each in whole if each.to_at is not None), default=0)
        return await self._remove(sql.old_before, [since, before, limit])

    async def prune_some(self, before: Instant, limit: int, handlers: Collection[str], *, named: bool = True) -> list[Pruned]:
        """Remove tasks of some handlers, or of all others, one by one.

        Those that were set aside are found by their handler. For the others there is no such index, because every task that ends would
        pay for it: the process walks along all that ended, once.
        """
        kept = handlers if named else {row[0] for row in await self._rows(self._sql.kept_handlers)} - {*handlers}
        ids = [row[0] for row in await self._rows(self._sql.old_kept, [list(kept), before, limit])] if kept else []
        removed = await self._remove(self._sql.old_among, [ids, before]) if ids else []
        if removed:
            return removed
        walk = Walk(self._state, frozenset(handlers), named)
        async for ids, position in self._walk(self._walks.begin(walk, FIRST), before, handlers, named):
            removed = await self._remove(self._sql.old_among, [ids[:limit], before]) if ids else []
            if len(ids) <= limit:
                self._walks.reached(walk, position)
            if removed:
                break
        return removed

    async def _walk(
        self, position: Position, before: Instant, handlers: Collection[str], named: bool
    ) -> AsyncIterator[tuple[list[str], Position]]:
        """Walk along what ended after a position and before an instant; yield the tasks that are meant, and the position after them."""
        count = WALKED_AT_ONCE
        while count == WALKED_AT_ONCE:
            rows = await self._rows(self._sql.walk, [*position, before, WALKED_AT_ONCE, list(handlers), named])
            if not rows:
                break
            [[count, last_at, last_id, ids]] = rows
            position = last_at, last_id
            yield ids, position

    async def _set_aside(self, partition: Partition, handlers: Collection[str]) -> None:
        """Move what outlives a table to where it is not dropped, in small transactions. What is written later, `_drop_detached` finds."""
        if partition.detaching is not False or partition.from_at is None or partition.to_at is None:
            return
        async for ids, _ in self._walk((partition.from_at, FIRST[1]), partition.to_at, handlers, named=True):
            if ids:
                await self._rows(self._sql.make_kept)
                await self._rows(self._sql.set_aside, [ids, partition.to_at])

    async def _remove(self, chosen: str, arguments: Sequence[Any]) -> list[Pruned]:
        return [Pruned(*row) for row in await self._rows(f"{chosen}{self._sql.remove_old}", arguments)]

    async def _rows(self, text: str, arguments: Sequence[Any] = ()) -> list[Sequence[Any]]:
        return await self._database.rows(text.replace("%parent", parent(self._state)), arguments)


async def _is_small(run: Runner, sql: Statements, partition: Partition, limit: int) -> bool:
    [[count]] = await run.rows(partition.put_into(sql.count_some), [limit + 1])
    return bool(0 < count <= limit)


async def drop(database: Database, sql: Statements, tables: Sequence[Partition], but: Collection[str] = ()) -> bool:
    """Drop tables without holding anybody up; if something is in the way of one, it and the rest are left for the next time.

    Detaching waits for those who read the table now, but lets all others pass; once it is out nobody uses it any more. The output
    of its tasks is removed then, in small transactions; if that is interrupted, the next time goes on with it. Its
    tasks are taken from the tally in the transaction that drops it, so they are counted no more exactly when they are gone.
    """
    # of one parent only one table can be on its way out, so that one must go first
    for partition in sorted(tables, key=lambda table: table.detaching is False):
        last = functools.partial(_drop_detached, sql=sql, partition=partition, but=list(but))
        try:
            if partition.detaching is not None:
                await _detach(database, sql, partition)
            if partition.parent != ATTEMPTS:
                await output.remove_of(database, sql, partition.put_into(sql.remove_output), REMOVED_AT_ONCE, but)
            await database.transaction(last)
        except StoreUnavailable as error:
            logger.info("the table %s, whose time is over, could not be dropped yet: %s", partition.name, error)
            return False
    return True


async def _detach(database: Database, sql: Statements, partition: Partition) -> None:
    text = partition.put_into(sql.finish_detach if partition.detaching else sql.detach)
    async with database.link() as link:
        await link.rows(text)  # not in a transaction, and not again if it is refused: the refusal may have come half-way


async def _drop_detached(run: Runner, *, sql: Statements, partition: Partition, but: list[str]) -> None:
    await run.rows(partition.put_into(sql.lock_partition))
    if partition.parent != ATTEMPTS:
        if but and (await run.rows(partition.put_into(sql.any_of), [but]))[0][0]:
            await run.rows(sql.make_kept.replace("%parent", partition.parent.removesuffix("_recent")))
            await run.rows(partition.put_into(sql.rescue), [but])
        await run.rows(partition.put_into(sql.forget_kept_attempts), [but])
        await run.rows(partition.put_into(sql.uncount), [but])
    await run.rows(partition.put_into(sql.drop_partition))


async def drop_attempts(database: Database, sql: Statements) -> None:
    """Drop tables of attempts when no finished task can have any in them, but for those that were set aside with their attempts.

    A task may finish long after an attempt, as long as it is retried. A task that an operator has retried keeps its attempts.
    """
    finished = [each.from_at for each in await partitions(database, sql, HISTORY) if each.from_at is not None]
    before = min(finished, default=0) - RETRY_LATER_BOUND - DAY
    old = [each for each in await partitions(database, sql, [ATTEMPTS]) if each.ended(before)]
    unused = []
    for partition in old:
        [[living]] = await database.rows(partition.put_into(sql.has_live))
        if not living:
            unused.append(partition)
    await drop(database, sql, unused)
