"""What keeps the database healthy: tables for what finishes, retention, and adding up what others leave in small pieces."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from duetime.clock import DAY, Clock, Instant
from duetime.errors import InvalidValue
from duetime.model.task import FINAL, State
from duetime.store.postgres.address import Address
from duetime.store.postgres.control import write_time
from duetime.store.postgres.database import OpenSchema
from duetime.store.postgres.retention import ATTEMPTS, Position, Retention, recent
from duetime.store.postgres.runner import Runner
from duetime.store.sql import Statements
from duetime.store.values import Pruned
from duetime.store.walks import Walks

WEEK = 7 * DAY
AHEAD = 7 * DAY
BEHIND = DAY  # outcomes may be written a while after they came about
SURPLUS = 300  # rows of the tally worth adding up
ORPHANS = 1_000


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
    widths = {recent(state): width(state) for state in sorted(FINAL)} | {ATTEMPTS: WEEK}
    return [
        Span(parent, from_at, from_at + each)
        for parent, each in widths.items()
        for from_at in range(first_at // each * each, last_at + 1, each)
    ]


async def ensure(run: Runner, sql: Statements, now: Instant, *, ahead: int = AHEAD) -> None:
    """Make the tables that are missing for the present and the next days."""
    spans = partitions_needed(now - BEHIND, now + ahead)
    await run.rows(sql.make_partitions, [[span.parent for span in spans], [span.from_at for span in spans], [span.to_at for span in spans]])


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

    def __init__(self, address: Address, clock: Clock | None) -> None:
        super().__init__(address, clock)
        self._walks = Walks[Position](self._clock.now)

    async def prune(
        self, state: State, before: Instant, limit: int, *, only: Collection[str] | None = None, but: Collection[str] = ()
    ) -> list[Pruned]:
        if state not in FINAL:
            raise InvalidValue(f"only final states can be pruned, got {state}")
        retention = Retention(self._opened_patiently, self._sql, self._walks, state)
        if only is None:
            return await retention.prune(before, limit, but)
        return await retention.prune_some(before, limit, {*only} - {*but}) if limit else []

    async def tidy(self) -> None:
        await self._opened.transaction(lambda run: ensure(run, self._sql, self._clock.now()))
        await self._opened.transaction(lambda run: fold(run, self._sql))
        await self._opened.transaction(lambda run: release_orphans(run, self._sql, self._clock.parameter))
        await self._opened.rows(self._sql.forget_ended_refusals)
        await self._opened.rows(self._sql.forget_vain_of_gone)
        await self._opened.rows(self._sql.forget_steps_of_gone)
        await self._opened.rows(self._sql.forget_windows, [self._clock.parameter])
        await self._lanes.publish()

    async def _make_missing_partitions(self) -> None:
        """Make the tables of history for the present; those ahead of it are the tidier's, and are missing only if none has run."""
        await self._opened.transaction(lambda run: ensure(run, self._sql, self._clock.now(), ahead=0))
