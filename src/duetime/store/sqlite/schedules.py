"""Schedules, day calendars and leases of duties in the file."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Sequence
from typing import Any, NamedTuple

from duetime.clock import Instant
from duetime.model.query import page_of
from duetime.model.rules import DayCalendar
from duetime.model.schedule import ScheduleRecord, Skip, encode
from duetime.store.rows.schedules import (
    check_names,
    earliest,
    end_of_prefix,
    is_over,
    lease_micros,
    read_calendar,
    read_duty_leases,
    read_schedule,
    read_skip,
    row_of,
    size_of,
    write_calendar,
)
from duetime.store.schedules import FIRST_CURSOR, DueSchedules, DutyLease, ScheduleCursor, ScheduleFilter, ScheduleWrite
from duetime.store.sqlite.database import OpenFile
from duetime.store.sqlite.gates import read_names
from duetime.store.sqlite.records import write_json
from duetime.store.sqlite.runner import SyncRunner, drive
from duetime.store.sqlite.statements import NEVER, SQL
from duetime.store.sqlite.submit import Submission
from duetime.store.values import (
    HintKind,
)


class Written(NamedTuple):
    """Which writes were accepted, and the content of hints: when to look at a schedule, and the position of the first new task."""

    accepted: list[bool]
    next_at: Instant | None
    due_at: Instant | None


def write(connection: sqlite3.Connection, writes: Sequence[ScheduleWrite], now: Instant, *, together: bool) -> Written:
    """Check all versions under the write lock, then write what fits."""
    check_names(writes)
    if _all_moved(connection, writes):
        return _with_tasks(connection, writes, [True] * len(writes), now)
    stored = dict(connection.execute(SQL.schedule_versions, (write_json([write.name for write in writes]),)).fetchall())
    fits = [stored.get(write.name, 0) == write.expected for write in writes]
    if together and not all(fits):
        fits = [False] * len(writes)
    chosen = [write for write, fit in zip(writes, fits, strict=True) if fit]
    changed = [(write.name, write.expected + 1, write.record) for write in chosen if write.record is not None and not write.moves]
    moved = [write for write in chosen if write.record is not None and write.moves]
    connection.executemany(SQL.put_schedule, [row_of(name, record, version) for name, version, record in changed])
    connection.execute(SQL.move_schedules, (_moves(moved),))
    gone = [write.name for write in chosen if write.record is None]
    if gone:
        connection.execute(SQL.delete_schedules, (write_json(gone),))
    return _with_tasks(connection, chosen, fits, now)


def _all_moved(connection: sqlite3.Connection, writes: Sequence[ScheduleWrite]) -> bool:
    """Move schedules, the usual case of firing. If somebody has changed one meanwhile, write nothing and return False."""
    if not all(write.moves and write.record is not None for write in writes):
        return False
    connection.execute("savepoint duetime_move")
    moved = connection.execute(SQL.move_schedules, (_moves(writes),)).rowcount
    if moved < len(writes):
        connection.execute("rollback to duetime_move")
    connection.execute("release duetime_move")
    return moved == len(writes)


def _moves(writes: Sequence[ScheduleWrite]) -> str:
    return write_json(
        [
            (write.name, write.expected, record.next_at, record.state.paused is not None, encode(record.state).decode())
            for write in writes
            if (record := write.record) is not None
        ]
    )


def _with_tasks(connection: sqlite3.Connection, chosen: Sequence[ScheduleWrite], fits: list[bool], now: Instant) -> Written:
    """Write the skips and tasks that belong to what was written."""
    connection.executemany(SQL.insert_skip, [_skip_row(skip) for write in chosen for skip in write.skips])
    tasks = [task for write in chosen for task in write.tasks]
    due_at = None
    if tasks:
        submission = Submission(SyncRunner(connection), now, told=False)
        drive(submission.add(tasks))
        due_at = None if submission.earliest == NEVER else submission.earliest
    return Written(fits, earliest(chosen), due_at)


def _skip_row(skip: Skip) -> tuple[object, ...]:
    return (skip.schedule, skip.planned_at, skip.until_at, skip.count, skip.reason.value, skip.at, skip.note)


def due(
    connection: sqlite3.Connection, limit: int, closed: Sequence[tuple[str, str | None]], after: ScheduleCursor | None, now: Instant
) -> DueSchedules:
    values: dict[str, Any] = {
        "now": now,
        "handlers": write_json([handler for handler, collection in closed if collection is None]),
        "pairs": write_json([pair for pair in closed if pair[1] is not None]),
    }
    at, name = after or FIRST_CURSOR
    rows = connection.execute(SQL.due_schedules, {**values, "limit": limit + 1, "at": at, "name": name}).fetchall()
    if len(rows) > limit:
        next_at = rows[limit][4]
    else:
        [next_at] = connection.execute(SQL.next_schedule, values).fetchone() or [None]
    return DueSchedules([read_schedule(row) for row in rows[:limit]], now, next_at)


def waiting(connection: sqlite3.Connection, names: Sequence[str], now: Instant) -> list[str]:
    """Return those of the schedules that wait for the end of a run."""
    return [name for (name,) in connection.execute(SQL.waiting_schedules, {"names": write_json(names), "now": now})]


def wake(connection: sqlite3.Connection, names: Sequence[str], now: Instant) -> Instant:
    connection.execute(SQL.wake_schedules, {"names": write_json(names), "now": now})
    return now


def by_name(connection: sqlite3.Connection, names: Sequence[str]) -> list[ScheduleRecord | None]:
    found = {row[0]: read_schedule(row) for row in connection.execute(SQL.schedules_by_name, (write_json(names),))}
    return [found.get(name) for name in names]


def page(connection: sqlite3.Connection, filter: ScheduleFilter) -> list[ScheduleRecord]:
    values = {
        "after": filter.after,
        "prefix": filter.prefix or "",
        "prefix_end": end_of_prefix(filter.prefix or ""),
        "handler": None if filter.handler is None else write_json(read_names(connection).all(filter.handler)),
        "paused": filter.paused,
        "declared": filter.declared,
        "limit": filter.limit,
    }
    with contextlib.closing(connection.execute(SQL.list_schedules, values)) as found:
        rows, _ = page_of(found, filter.limit, size_of)
    return [read_schedule(row) for row in rows]


def skips(connection: sqlite3.Connection, schedule: str, limit: int, before: Instant | None) -> list[Skip]:
    values = {"schedule": schedule, "limit": limit, "before": before}
    return [read_skip(row) for row in connection.execute(SQL.skips_of, values)]


def prune_skips(connection: sqlite3.Connection, before: Instant, limit: int) -> int:
    return connection.execute(SQL.delete_skips, (before, limit)).rowcount


def put_calendar(connection: sqlite3.Connection, name: str, calendar: DayCalendar | None) -> bool:
    known = connection.execute(SQL.has_calendar, (name,)).fetchone() is not None
    if calendar is None:
        connection.execute(SQL.delete_calendar, (name,))
    else:
        connection.execute(SQL.put_calendar, (name, write_calendar(calendar).decode()))
    return known


def calendars(connection: sqlite3.Connection) -> dict[str, DayCalendar]:
    return {name: read_calendar(text) for name, text in connection.execute(SQL.all_calendars)}


def lease_of_another(connection: sqlite3.Connection, duty: str, holder: str, seconds: float, now: Instant) -> DutyLease | None:
    """Return the lease that another process holds; None if there is none."""
    lease_micros(seconds)
    lease = connection.execute(SQL.duty_lease, (duty,)).fetchone()
    if lease is None or lease[0] == holder or is_over(lease[1], now):
        return None
    return DutyLease(False, lease[0], lease[1], now)


def take_duty(connection: sqlite3.Connection, duty: str, holder: str, seconds: float, now: Instant) -> DutyLease:
    lease = lease_of_another(connection, duty, holder, seconds, now)
    if lease is None:
        lease = DutyLease(True, holder, now + lease_micros(seconds), now)
        connection.execute(SQL.put_duty_lease, (duty, holder, lease.until_at))
    return lease


def leave_duty(connection: sqlite3.Connection, duty: str, holder: str, now: Instant) -> None:
    connection.execute(SQL.end_duty_lease, {"name": duty, "holder": holder, "now": now})


def duties(connection: sqlite3.Connection, now: Instant) -> dict[str, DutyLease]:
    return read_duty_leases(connection.execute(SQL.all_duty_leases).fetchall(), now)


class Scheduling(OpenFile):
    """Where schedules, day calendars and the leases of duties live."""

    async def write_schedules(self, writes: Sequence[ScheduleWrite], *, together: bool = False) -> list[bool]:
        if not writes:
            return []
        written = await self._write(lambda connection: write(connection, writes, self._clock.now(), together=together))
        if any(written.accepted):
            self._hint(HintKind.SCHEDULES, written.next_at)
        if written.due_at is not None:
            self._hint(HintKind.DUE, written.due_at)
        return written.accepted

    async def due_schedules(
        self, limit: int, closed: Sequence[tuple[str, str | None]] = (), *, after: ScheduleCursor | None = None
    ) -> DueSchedules:
        return await self._read(lambda connection: due(connection, limit, closed, after, self._clock.now()))

    async def wake_schedules(self, names: Sequence[str]) -> None:
        # looked up by reading: most schedules wait for no run, and a write would wait for others and a flush to change nothing
        if names and await self._read(lambda connection: waiting(connection, names, self._clock.now())):
            self._hint(HintKind.SCHEDULES, await self._write(lambda connection: wake(connection, names, self._clock.now())))

    async def schedules(self, names: Sequence[str]) -> list[ScheduleRecord | None]:
        return await self._read(lambda connection: by_name(connection, names)) if names else []

    async def list_schedules(self, filter: ScheduleFilter) -> list[ScheduleRecord]:
        return await self._read(lambda connection: page(connection, filter))

    async def skips(self, schedule: str, limit: int, before: Instant | None = None) -> list[Skip]:
        return await self._read(lambda connection: skips(connection, schedule, limit, before))

    async def prune_skips(self, before: Instant, limit: int) -> int:
        return await self._write(lambda connection: prune_skips(connection, before, limit))

    async def put_calendar(self, name: str, calendar: DayCalendar | None) -> bool:
        known = await self._write(lambda connection: put_calendar(connection, name, calendar))
        self._hint(HintKind.SCHEDULES)
        return known

    async def calendars(self) -> dict[str, DayCalendar]:
        return await self._read(calendars)

    async def take_duty(self, duty: str, holder: str, seconds: float) -> DutyLease:
        # read first, because of many processes only one may write
        lease = await self._read(lambda connection: lease_of_another(connection, duty, holder, seconds, self._clock.now()))
        if lease is None:
            lease = await self._write(lambda connection: take_duty(connection, duty, holder, seconds, self._clock.now()))
        return lease

    async def leave_duty(self, duty: str, holder: str) -> None:
        await self._write(lambda connection: leave_duty(connection, duty, holder, self._clock.now()))

    async def duties(self) -> dict[str, DutyLease]:
        return await self._read(lambda connection: duties(connection, self._clock.now()))
