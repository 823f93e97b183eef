"""Events in the file. Triggers write them, in the transaction of what happens, and exist only while somebody follows."""

from __future__ import annotations

import sqlite3

from duetime.clock import SECOND, Instant
from duetime.store.events import EventPage, Follower
from duetime.store.rows.events import read_cursor, read_row
from duetime.store.sqlite.database import OpenFile
from duetime.store.sqlite.statements import SQL

TRIGGERS = (
    SQL.tell_task_added,
    SQL.tell_task_started,
    SQL.tell_task_ended,
    SQL.tell_task_retried,
    SQL.tell_attempt_ended,
    SQL.tell_worker_started,
    SQL.tell_worker_left,
    SQL.tell_gate_set,
    SQL.tell_gate_opened,
    SQL.tell_schedule_skipped,
    SQL.tell_schedule_paused,
)


def follow(connection: sqlite3.Connection, follower: str, until_at: Instant, remember: bool) -> str:
    if len(_triggers(connection)) < len(TRIGGERS):
        for trigger in TRIGGERS:
            connection.execute(trigger)
    (last,) = connection.execute(SQL.last_event).fetchone()
    values = {"name": follower, "until_at": until_at, "cursor": str(last) if remember else None}
    (cursor,) = connection.execute(SQL.put_follower, values).fetchone()
    return str(last) if cursor is None else str(cursor)


def prune(connection: sqlite3.Connection, before: Instant, until: Instant, limit: int, now: Instant) -> int:
    connection.execute(SQL.delete_gone_followers, (now,))
    standing = connection.execute(SQL.followers).fetchall()
    if not standing:
        for name in _triggers(connection):
            connection.execute(f'drop trigger "{name}"')
        return connection.execute(SQL.delete_events, {"number": 2**62, "before": 2**62, "limit": limit}).rowcount
    passed = min((read_cursor(cursor, 1)[0] for _, _, cursor in standing if cursor is not None), default=2**62)
    removed = connection.execute(SQL.delete_events, {"number": 2**62, "before": until, "limit": limit}).rowcount
    return removed + connection.execute(SQL.delete_events, {"number": passed, "before": before, "limit": limit}).rowcount


def _triggers(connection: sqlite3.Connection) -> list[str]:
    return [name for (name,) in connection.execute(SQL.event_triggers)]


def _idle(connection: sqlite3.Connection) -> bool:
    """Return whether nobody follows, and nothing is left of those who did."""
    return (
        not connection.execute(SQL.followers).fetchall()
        and not _triggers(connection)
        and not connection.execute(SQL.some_events, (0, 1)).fetchall()
    )


class Events(OpenFile):
    """What happened, while somebody follows it."""

    async def follow_events(self, follower: str, seconds: float, *, remember: bool = False) -> str:
        lasting = round(seconds * SECOND)
        return await self._write(lambda connection: follow(connection, follower, self._clock.now() + lasting, remember))

    async def pass_events(self, follower: str, before: str, after: str) -> bool:
        read_cursor(after, 1)
        values = {"name": follower, "before": before, "after": after}
        return await self._write(lambda connection: connection.execute(SQL.move_follower, values).rowcount) > 0

    async def followers(self) -> list[Follower]:
        return [Follower(*row) for row in await self._read(lambda connection: connection.execute(SQL.followers).fetchall())]

    async def leave_events(self, follower: str) -> bool:
        return await self._write(lambda connection: connection.execute(SQL.delete_follower, (follower,)).rowcount) > 0

    async def events(self, after: str | None, limit: int) -> EventPage:
        number = 0 if after is None else read_cursor(after, 1)[0]
        rows = await self._read(lambda connection: connection.execute(SQL.some_events, (number, limit)).fetchall())
        items = [read_row(str(row[0]), row) for row in rows]
        return EventPage(items, items[-1].cursor if items else str(number))

    async def prune_events(self, before: Instant, until: Instant, limit: int) -> int:
        if await self._read(_idle):  # a look first: it waits for no writer
            return 0
        return await self._write(lambda connection: prune(connection, before, until, limit, self._clock.now()))
