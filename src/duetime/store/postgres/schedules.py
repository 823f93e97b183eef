"""Schedules, day calendars and leases of duties in the database."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from duetime.clock import SECOND, Instant
from duetime.errors import StoreUnavailable
from duetime.model.query import MAX_PAGE_BYTES, page_of
from duetime.model.rules import DayCalendar
from duetime.model.schedule import ScheduleRecord, Skip, encode
from duetime.model.task import NewTask, due_of
from duetime.store.postgres import arrays
from duetime.store.postgres.columns import new_tasks, with_tasks
from duetime.store.postgres.connection import Database, Rejected
from duetime.store.postgres.lanes import Lanes
from duetime.store.postgres.runner import Runner
from duetime.store.postgres.submit import Submission, Submitting, is_plain
from duetime.store.rows.schedules import (
    LONGEST_LEASE,
    ScheduleRow,
    check_names,
    earliest,
    end_of_prefix,
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
from duetime.store.sql import Statements
from duetime.store.values import HintKind

MAX_RETRIES = 5
LONGEST = round(LONGEST_LEASE * SECOND)


class Written(NamedTuple):
    """Which writes were accepted, and the content of hints: when to look at a schedule, and the position of the first new task."""

    accepted: list[bool]
    next_at: Instant | None = None
    due_at: Instant | None = None


class _Refused(Exception):
    """One of several writes that belong together does not fit; the transaction is rolled back."""


Job = Callable[[Runner], Awaitable[Written]]


async def write(
    transact: Callable[[Job], Awaitable[Written]],
    sql: Statements,
    lanes: Lanes,
    writes: Sequence[ScheduleWrite],
    now: Instant | None,
    *,
    together: bool,
) -> Written:
    """Write what fits, with its tasks and skips, in as many steps for many as for one."""
    check_names(writes)
    # by code points, as the server orders them, so that transactions with the same schedules wait for one another without a deadlock
    in_order = sorted(writes, key=lambda write: write.name)
    moves = [(write.name, write.expected, write.record) for write in in_order if write.moves and write.record is not None]
    moving = len(moves) == len(writes)
    statement, columns = (sql.move_schedules, _moves(moves)) if moving else (sql.write_schedules, _columns(in_order))
    done = False

    async def job(run: Runner) -> Written:
        nonlocal done
        if done:  # the connection was lost at the commit; a repetition would find our own write and take it for another's
            raise StoreUnavailable("the connection was lost, and whether the schedules were written is not known; look at them again")
        [[names, at]] = await run.rows(statement, [now, *columns])
        written = set(names)
        if together and len(written) < len(writes):
            raise _Refused
        chosen = [write for write in writes if write.name in written]
        skips = [skip for write in chosen for skip in write.skips]
        if skips:
            await run.rows(sql.insert_skips, _skip_columns(skips))
        tasks = [task for write in chosen for task in write.tasks]
        due_at = await _add(run, sql, lanes, tasks, at) if tasks else None
        done = True
        return Written([write.name in written for write in writes], earliest(chosen), due_at)

    try:
        return await transact(job)
    except _Refused:
        return Written([False] * len(writes))


async def fire(database: Database, sql: Statements, lanes: Lanes, writes: Sequence[ScheduleWrite], now: Instant | None) -> Written | None:
    """Write what firing mostly writes, in one round trip: schedules that only move, and new tasks that nothing holds back but time.

    None if that is not what this is, or if one of the schedules has changed meanwhile; nothing is written then.
    """
    check_names(writes)
    in_order = sorted(writes, key=lambda write: write.name)
    moves = [
        (write.name, write.expected, write.record) for write in in_order if write.moves and write.record is not None and not write.skips
    ]
    tasks = [task for write in writes for task in write.tasks]
    if len(moves) < len(writes) or not tasks or not is_plain(tasks):
        return None
    parameters = [*new_tasks(tasks, lanes), now, *_moves(moves)]
    try:
        [[at, added]] = await database.once(lambda link: link.rows(with_tasks(sql, sql.fire_schedules), parameters))
    except Rejected:
        return None
    stored = set(added)
    positions = (max(at, due_of(task, at)) for task in tasks if task.id in stored)
    return Written([True] * len(writes), earliest(writes), min(positions, default=None))


async def _add(run: Runner, sql: Statements, lanes: Lanes, tasks: Sequence[NewTask[object]], at: Instant) -> Instant | None:
    """Add tasks; return the position of the first that is new, or None.

    No answer is needed, so those that can meet nobody but themselves take one step. They go first: others may wait for them.
    """
    plain = [task for task in tasks if task.key is None and not task.edges]
    others = [task for task in tasks if task.key is not None or task.edges]
    positions: list[Instant] = []
    if plain:
        [[added]] = await run.rows(with_tasks(sql, sql.add), [*new_tasks(plain, lanes), at])
        stored = set(added)
        positions += [max(at, due_of(task, at)) for task in plain if task.id in stored]
    if others:
        submission = Submission(run, sql, lanes, at, lock_parents=True)
        await submission.add(others)
        positions += [] if submission.earliest is None else [submission.earliest]
    return min(positions, default=None)


def _columns(writes: Sequence[ScheduleWrite]) -> list[str]:
    rows = [row_of(write.name, write.record, write.expected) if write.record is not None else _gone(write) for write in writes]
    names, expected, ids, handlers, collections, revisions, nexts, waits, paused, declared, created, changed, by, specs, states = zip(
        *rows, strict=True
    )
    return [
        *(arrays.texts(names), arrays.numbers(expected), arrays.texts(ids), arrays.texts(handlers), arrays.texts(collections)),
        *(arrays.numbers(revisions), arrays.numbers(nexts), _booleans(waits), _booleans(paused), arrays.numbers(declared)),
        *(arrays.numbers(created), arrays.numbers(changed), arrays.texts(by), arrays.texts(specs), arrays.texts(states)),
    ]


def _moves(moves: Sequence[tuple[str, int, ScheduleRecord]]) -> list[str]:
    return [
        arrays.texts([name for name, _, _ in moves]),
        arrays.numbers([expected for _, expected, _ in moves]),
        arrays.numbers([record.next_at for _, _, record in moves]),
        _booleans([record.state.paused is not None for _, _, record in moves]),
        arrays.texts([encode(record.state).decode() for _, _, record in moves]),
    ]


def _gone(write: ScheduleWrite) -> tuple[str | int | None, ...]:
    return (write.name, write.expected, *[None] * (len(ScheduleRow._fields) - 2))


def _booleans(values: Sequence[bool | None]) -> str:
    return arrays.plain("t" if value else "f" for value in values)


def _skip_columns(skips: Sequence[Skip]) -> list[str]:
    return [
        arrays.texts([skip.schedule for skip in skips]),
        arrays.numbers([skip.planned_at for skip in skips]),
        arrays.numbers([skip.until_at for skip in skips]),
        arrays.numbers([skip.count for skip in skips]),
        arrays.plain([skip.reason.value for skip in skips]),
        arrays.numbers([skip.at for skip in skips]),
        arrays.texts([skip.note for skip in skips]),
    ]


async def put_calendar(run: Runner, sql: Statements, name: str, calendar: DayCalendar | None) -> bool:
    if calendar is None:
        return bool(await run.rows(sql.delete_calendar, [name]))
    values = [name, write_calendar(calendar).decode()]
    for _ in range(MAX_RETRIES):
        if await run.rows(sql.add_calendar, values):
            return False
        if await run.rows(sql.change_calendar, values):
            return True
        # it was removed in between
    raise StoreUnavailable(f"the calendar {name!r} comes and goes too fast; try again")


class Scheduling(Submitting):
    """Where schedules, day calendars and the leases of duties live. What a schedule fires is added in the same transaction."""

    async def write_schedules(self, writes: Sequence[ScheduleWrite], *, together: bool = False) -> list[bool]:
        if not writes:
            return []
        await self.prepare([task for write in writes for task in write.tasks])
        now, transact = self._clock.parameter, self._opened.transaction
        written = await fire(self._opened, self._sql, self._lanes, writes, now)
        if written is None:
            written = await write(transact, self._sql, self._lanes, writes, now, together=together)
        if any(written.accepted):
            self._hint(HintKind.SCHEDULES, written.next_at)
        if written.due_at is not None:
            self._hint(HintKind.DUE, written.due_at)
        return written.accepted

    async def due_schedules(
        self, limit: int, closed: Sequence[tuple[str, str | None]] = (), *, after: ScheduleCursor | None = None
    ) -> DueSchedules:
        handlers = [handler for handler, collection in closed if collection is None]
        pairs = [f"{handler}\n{collection}" for handler, collection in closed if collection is not None]
        parameters = [self._clock.parameter, limit + 1, handlers, pairs, *(after or FIRST_CURSOR)]
        rows = await self._opened.rows(self._sql.due_schedules, parameters)
        at, next_at = rows[0][0], rows[0][1]
        found = [row[2:] for row in rows if row[2] is not None]
        if len(found) > limit:
            next_at = found[limit][4]
        return DueSchedules([read_schedule(row) for row in found[:limit]], at, next_at)

    async def wake_schedules(self, names: Sequence[str]) -> None:
        rows = await self._opened.rows(self._sql.wake_schedules, [self._clock.parameter, list(names)]) if names else []
        if rows:
            self._hint(HintKind.SCHEDULES, int(rows[0][0]))

    async def schedules(self, names: Sequence[str]) -> list[ScheduleRecord | None]:
        if not names:
            return []
        found = {row[0]: read_schedule(row) for row in await self._opened.rows(self._sql.schedules_by_name, [list(names)])}
        return [found.get(name) for name in names]

    async def list_schedules(self, filter: ScheduleFilter) -> list[ScheduleRecord]:
        prefix = filter.prefix or ""
        values = [filter.after, prefix, end_of_prefix(prefix), filter.handler, filter.paused, filter.declared, filter.limit]
        found = await self._opened.rows(self._sql.list_schedules, [*values, MAX_PAGE_BYTES])
        rows, _ = page_of(found, filter.limit, size_of)
        return [read_schedule(row) for row in rows]

    async def skips(self, schedule: str, limit: int, before: Instant | None = None) -> list[Skip]:
        return [read_skip(row) for row in await self._opened.rows(self._sql.skips_of, [schedule, before, limit])]

    async def prune_skips(self, before: Instant, limit: int) -> int:
        [[count]] = await self._opened.rows(self._sql.prune_skips, [before, limit])
        return int(count)

    async def put_calendar(self, name: str, calendar: DayCalendar | None) -> bool:
        known = await self._opened.transaction(lambda run: put_calendar(run, self._sql, name, calendar))
        self._hint(HintKind.SCHEDULES)
        return known

    async def calendars(self) -> dict[str, DayCalendar]:
        return {name: read_calendar(text) for name, text in await self._opened.rows(self._sql.all_calendars)}

    async def take_duty(self, duty: str, holder: str, seconds: float) -> DutyLease:
        parameters = [self._clock.parameter, duty, holder, lease_micros(seconds), LONGEST]
        [[has_it, until_at, at]] = await self._opened.rows(self._sql.take_duty, parameters)
        return DutyLease(has_it == holder, has_it, until_at, at)

    async def leave_duty(self, duty: str, holder: str) -> None:
        await self._opened.rows(self._sql.leave_duty, [self._clock.parameter, duty, holder])

    async def duties(self) -> dict[str, DutyLease]:
        rows = await self._opened.rows(self._sql.all_duties, [self._clock.parameter])
        return read_duty_leases([row[1:] for row in rows if row[1] is not None], rows[0][0])
