"""Reading: tasks by id, key and filter, attempts, counts, workers."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from duetime.clock import Instant
from duetime.model.outcome import AttemptRecord, Outcome
from duetime.model.query import Page, Query, read_cursor, write_cursor
from duetime.model.task import FINAL, State, TaskRecord
from duetime.model.text_search import read_terms
from duetime.store.pull_workers import CONFIRMED_ALL
from duetime.store.sqlite import liveness, output
from duetime.store.sqlite.database import OpenFile
from duetime.store.sqlite.records import read_error, read_record, records_by_id
from duetime.store.sqlite.statements import SQL
from duetime.store.values import (
    MOST_COUNTED,
    Counts,
    FinalCount,
    HandlerLoad,
    LaneCount,
    RunningAttempt,
    WorkerRecord,
)

_decode_slots = msgspec.json.Decoder(dict[str, int]).decode


class _Walk(NamedTuple):
    """How tasks are listed from the newest on: source, order, bounds, and `entry`, the condition for tasks that are found by their key."""

    source: str
    order: str
    beyond: str
    since: str
    entry: str = ""


_ALL = _Walk(SQL.from_all, SQL.order_seq, SQL.beyond_seq, SQL.since_seq)
_WALKS = {
    State.PENDING: _Walk(SQL.from_due, SQL.order_due, SQL.beyond_due, SQL.since_due, SQL.stands_due),
    State.BLOCKED: _Walk(SQL.from_held, SQL.order_held, SQL.beyond_held, SQL.since_held, SQL.stands_held),
    State.RUNNING: _Walk(SQL.from_running, SQL.order_running, SQL.beyond_running, SQL.since_running, SQL.stands_running),
}
_FILTERS = {
    "handler": SQL.only_handler,
    "collection": SQL.only_collection,
    "key": SQL.only_key,
    "schedule": SQL.only_schedule,
    "retrying": SQL.only_retrying,
    "due_after": SQL.only_due_after,
    "due_before": SQL.only_due_before,
    "submitted_after": SQL.only_submitted_after,
    "submitted_before": SQL.only_submitted_before,
    "finished_after": SQL.only_finished_after,
    "finished_before": SQL.only_finished_before,
    "error": SQL.only_error,
}


def find(connection: sqlite3.Connection, handler: str, key: str) -> TaskRecord | None:
    row = connection.execute(f"{SQL.record}\n{SQL.from_all}\n{SQL.where_key}", {"handler": handler, "key": key}).fetchone()
    return None if row is None else read_record(row)


def page(connection: sqlite3.Connection, query: Query) -> Page:
    """Compose a page's statement from named parts: a filter that is not given must not keep an index from being used."""
    by_end = query.state in FINAL
    parameters: dict[str, object] = {"limit": query.limit + 1}
    conditions = []
    for name, condition in _FILTERS.items():
        value = getattr(query, name)
        if value is not None:
            parameters[name] = value
            conditions.append(condition)
    if by_end and query.state is not None:
        parameters["state"] = query.state.value
        conditions.append(SQL.only_state)
    if query.logs is not None:
        terms = read_terms(query.logs)
        if not output.can_search(connection):
            return Page([], None)
        conditions += output.tasks_with_words(connection, terms, parameters)
    if query.cursor is not None and by_end:
        parameters["finished_at"], parameters["seq"] = read_cursor(query.cursor, int, int)
        conditions.append(SQL.beyond_finished)
    walk = _ALL if query.state is None else _WALKS.get(query.state, _ALL)
    if query.key is not None and walk.entry:  # a key has few tasks: they are found by it, not among all entries
        conditions.append(walk.entry)
        walk = _ALL
    if not by_end:
        since, before = seq_bounds(connection, query)
        if query.cursor is not None:
            (before,) = read_cursor(query.cursor, int)
        if before is not None:
            parameters["seq"] = before
            conditions.append(walk.beyond)
        if since is not None:
            parameters["since_seq"] = since
            conditions.append(walk.since)
    where = "where " + " and ".join(conditions) if conditions else ""
    order = SQL.order_finished if by_end else walk.order
    rows = connection.execute(f"{SQL.record}\n{walk.source}\n{where}\n{order}", parameters).fetchall()
    items = [read_record(row) for row in rows[: query.limit]]
    if len(rows) <= query.limit:
        return Page(items, None)
    seq, finished_at = rows[query.limit - 1][0], rows[query.limit - 1][19]
    return Page(items, write_cursor(finished_at, seq) if by_end else write_cursor(seq))


def seq_bounds(connection: sqlite3.Connection, query: Query) -> tuple[int | None, int | None]:
    """Return numbers from which on, and before which, all tasks lie that a filter by the time of submitting can match.

    A walk along the numbers would otherwise pass all that is newer, and look for more in all that is older. Where the clock was set
    back the numbers are wider apart than they need be, and the filter itself still decides.
    """
    since = before = None
    if query.submitted_after is not None or query.submitted_before is not None:
        high, back = connection.execute(SQL.submitted_facts).fetchone()
        if query.submitted_after is not None:
            after = query.submitted_after
            since = _first_from(connection, after if after > high else after - back)
        if query.submitted_before is not None and query.cursor is None:
            before = _first_from(connection, min(query.submitted_before + back, max(query.submitted_before, high + 1)))
    return since, before


def _first_from(connection: sqlite3.Connection, instant: Instant) -> int:
    """Return a number at which tasks begin that were submitted at an instant or later: the next task was, the one before was not."""
    first, last = connection.execute(SQL.seq_range).fetchone()
    low: int = first or 0
    high: int = (last or 0) + 1
    while low < high:
        middle = (low + high) // 2
        found = connection.execute(SQL.submitted_next, (middle, high)).fetchone()
        if found is None or found[1] >= instant:
            high = middle
        else:
            low = found[0] + 1
    return high


def attempts(connection: sqlite3.Connection, task: str) -> list[AttemptRecord]:
    return [
        AttemptRecord(attempt, None if outcome is None else Outcome(outcome), worker, started_at, finished_at, read_error(error))
        for attempt, outcome, worker, started_at, finished_at, error in connection.execute(SQL.attempts_of_task, {"id": task})
    ]


def attempts_of(connection: sqlite3.Connection, worker: str) -> list[RunningAttempt]:
    return [
        RunningAttempt(task_id, attempt, claim, bool(cancelling), tries, crashes)
        for task_id, attempt, claim, cancelling, tries, crashes in connection.execute(SQL.attempts_of_worker, (worker,))
    ]


def counts(connection: sqlite3.Connection, now: Instant) -> Counts:
    lanes: dict[tuple[str, str, int], LaneCount] = {}

    def lane(handler: str, collection: str, priority: int) -> LaneCount:
        empty = LaneCount(
            handler=handler, collection=collection or None, priority=priority, due=0, later=0, blocked=0, running=0, oldest_due_at=None
        )
        return lanes.get((handler, collection, priority), empty)

    for *key, due, later, oldest in connection.execute(SQL.count_due, {"now": now}):
        lanes[tuple(key)] = msgspec.structs.replace(lane(*key), due=due, later=later, oldest_due_at=oldest)
    for *key, held in connection.execute(SQL.count_held):
        lanes[tuple(key)] = msgspec.structs.replace(lane(*key), blocked=held)
    for *key, running in connection.execute(SQL.count_running):
        lanes[tuple(key)] = msgspec.structs.replace(lane(*key), running=running)
    finals = [FinalCount(handler, State(state), count) for handler, state, count in connection.execute(SQL.count_final)]
    return Counts(now, [lanes[key] for key in sorted(lanes)], finals)


def handler_load(connection: sqlite3.Connection, handler: str, now: Instant) -> HandlerLoad:
    values = {"handler": handler, "now": now, "limit": MOST_COUNTED + 1}
    running, due, oldest = connection.execute(SQL.handler_load, values).fetchone()
    return HandlerLoad(running=running, due=min(due, MOST_COUNTED), more=due > MOST_COUNTED, oldest_due_at=oldest)


def workers(connection: sqlite3.Connection, folder: Path) -> list[WorkerRecord]:
    """List workers, with the beats and locks of their files."""
    records = []
    for worker, host, pid, slots, started_at, process, lease, pull, beat, beat_at, running in connection.execute(SQL.all_workers):
        seen_gates, alive = CONFIRMED_ALL, None
        if not pull:
            beat, beat_at, seen_gates = liveness.read_mark(folder / worker)
            alive = liveness.is_alive(folder / worker, process)
        records.append(
            WorkerRecord(
                id=worker,
                host=host,
                pid=pid,
                slots=_decode_slots(slots),
                started_at=started_at,
                beat=beat,
                beat_at=beat_at,
                seen_gates=seen_gates,
                running=running,
                alive=alive,
                lease=lease,
                pull=bool(pull),
            )
        )
    return records


class Reading(OpenFile):
    """Looking up and listing tasks."""

    async def get(self, ids: Sequence[str]) -> list[TaskRecord | None]:
        if not ids:
            return []
        found = await self._read(lambda connection: records_by_id(connection, ids))
        return [found.get(task_id) for task_id in ids]

    async def find(self, handler: str, key: str) -> TaskRecord | None:
        return await self._read(lambda connection: find(connection, handler, key))

    async def attempts(self, task: str) -> list[AttemptRecord]:
        return await self._read(lambda connection: attempts(connection, task))

    async def page(self, query: Query) -> Page:
        return await self._read(lambda connection: page(connection, query))

    async def counts(self) -> Counts:
        return await self._read(lambda connection: counts(connection, self._clock.now()))

    async def handler_load(self, handler: str) -> HandlerLoad:
        return await self._read(lambda connection: handler_load(connection, handler, self._clock.now()))
