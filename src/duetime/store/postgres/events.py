"""Events in the database. Triggers write them, in the transaction of what happens, and exist only while somebody follows.

Transactions commit in another order than they write, so numbers alone do not tell what is still to come. Readers take the events of all
transactions below a horizon (those have all ended) that they have not read, in the order of the numbers: a cursor is (first transaction,
horizon, number). A transaction that waited for another one to change the same task ends after it: whenever its events are below the
horizon, so are those of the other one, and the numbers put them in order.
"""

from __future__ import annotations

import asyncio

from duetime.clock import SECOND, Instant, monotonic
from duetime.errors import StoreUnavailable
from duetime.store.events import EventPage, Follower
from duetime.store.postgres.database import OpenSchema
from duetime.store.rows.events import read_cursor, read_row

TABLES = ("due", "task", "claim", "history", "attempt", "worker", "gate", "skip", "schedule")
TRIGGERS = len(TABLES) + 1  # history has two
PATIENCE = 60.0  # seconds in which each table must be free for a moment
AGAIN_AFTER = 0.1


class Events(OpenSchema):
    """What happened, while somebody follows it."""

    async def follow_events(self, follower: str, seconds: float, *, remember: bool = False) -> str:
        end = await self._last_cursor()
        values = [self._clock.parameter, follower, round(seconds * SECOND), end if remember else None]
        # first: from now on nobody removes the triggers
        [[cursor]] = await self._opened.rows(self._sql.put_follower, values)
        [[telling]] = await self._opened.rows(self._sql.telling)
        for table in TABLES if telling < TRIGGERS else ():
            await self._begin_telling(table)
        return end if cursor is None else str(cursor)

    async def _begin_telling(self, table: str) -> None:
        deadline = monotonic() + PATIENCE
        while True:
            [[told]] = await self._opened.rows(self._sql.begin_telling, [table])
            if told:
                return
            if monotonic() > deadline:
                raise StoreUnavailable(
                    f"events cannot be followed in the store {self.url}: a transaction has held the table {table} for {PATIENCE:.0f} s; "
                    "look for long transactions in pg_stat_activity"
                )
            await asyncio.sleep(AGAIN_AFTER)

    async def _last_cursor(self) -> str:
        horizon = await self._events_horizon()
        return f"{horizon}-{horizon}-0"

    async def _events_horizon(self) -> int:
        [[horizon]] = await self._opened.rows(self._sql.events_horizon)
        return int(horizon)

    async def pass_events(self, follower: str, before: str, after: str) -> bool:
        read_cursor(after, 3)
        return bool(await self._opened.rows(self._sql.move_follower, [follower, before, after]))

    async def followers(self) -> list[Follower]:
        return [Follower(*row) for row in await self._opened.rows(self._sql.followers)]

    async def leave_events(self, follower: str) -> bool:
        return bool(await self._opened.rows(self._sql.delete_follower, [follower]))

    async def events(self, after: str | None, limit: int) -> EventPage:
        low, high, number = (0, 0, 0) if after is None else read_cursor(after, 3)
        if low < high:
            page = await self._events_between(low, high, number, limit)
            if page.items:
                return page
        horizon = await self._events_horizon()
        if horizon < high:  # the database was restored elsewhere, where transactions have other numbers: better twice than never
            high = 0
        if horizon == high:
            return EventPage([], f"{high}-{high}-0")
        [[first]] = await self._opened.rows(self._sql.first_event, [str(high), str(horizon)])
        if first is None:
            return EventPage([], f"{horizon}-{horizon}-0")
        return await self._events_between(high, horizon, first - 1, limit)

    async def _events_between(self, low: int, high: int, number: int, limit: int) -> EventPage:
        rows = await self._opened.rows(self._sql.some_events, [str(low), str(high), number, limit])
        items = [read_row(f"{low}-{high}-{row[0]}", row) for row in rows]
        return EventPage(items, items[-1].cursor if items else f"{high}-{high}-0")

    async def prune_events(self, before: Instant, until: Instant, limit: int) -> int:
        [[idle]] = await self._opened.rows(self._sql.events_idle)
        if idle:
            return 0
        await self._opened.rows(self._sql.delete_gone_followers, [self._clock.parameter])
        standing = await self.followers()
        if not standing:
            return await self._stop_telling(limit)
        horizon = await self._events_horizon()
        passed = min((read_cursor(each.cursor, 3)[0] for each in standing if each.cursor is not None), default=horizon)
        [[removed]] = await self._opened.rows(self._sql.delete_events, [until, str(horizon), limit])
        [[more]] = await self._opened.rows(self._sql.delete_events, [before, str(passed), limit])
        return int(removed) + int(more)

    async def _stop_telling(self, limit: int) -> int:
        """Have nothing written any more; a table that cannot be locked now is left to the next call."""
        [[telling]] = await self._opened.rows(self._sql.telling)
        if telling:
            for table in TABLES:
                await self._opened.rows(self._sql.end_telling, [table])
        [[removed]] = await self._opened.rows(self._sql.delete_events, [2**62, str(await self._events_horizon()), limit])
        return int(removed)
