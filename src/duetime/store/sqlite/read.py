"""Reading: tasks by id, key and filter, attempts, counts, workers."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from duetime.clock import Instant
from duetime.model.outcome import AttemptRecord, Outcome
from duetime.model.query import BRIEF, MAX_PAGE, USUAL_COUNT, Page, Query, TaskCount, fits_pattern, page_of, read_cursor, write_cursor
from duetime.model.scan import NOTHING, Found, Scan, counted
from duetime.model.task import FINAL, Edge, State, TaskRecord
from duetime.model.text_search import read_terms
from duetime.store.pull_workers import CONFIRMED_ALL
from duetime.store.sqlite import liveness, output
from duetime.store.sqlite.database import OpenFile
from duetime.store.sqlite.gates import read_names
from duetime.store.sqlite.records import bytes_of, read_detail, read_error, read_record, records_by_id, write_json
from duetime.store.sqlite.statements import SQL
from duetime.store.values import (
    MOST_COUNTED,
    MOST_IN_LANE,
    Counts,
    FinalCount,
    HandlerLoad,
    LaneCount,
    RunningAttempt,
    WorkerRecord,
)

_decode_slots = msgspec.json.Decoder(dict[str, int]).decode


class _Walk(NamedTuple):
    """How tasks are listed from the newest on: source, order, bounds, and `entry`, which also holds where they are found by their key."""

    source: str
    order: str
    beyond: str
    since: str
    entry: str = ""


_PARKED = _Walk(SQL.from_parked, SQL.order_held, SQL.beyond_held, SQL.since_held, SQL.stands_parked)
_ALL = _Walk(SQL.from_all, SQL.order_seq, SQL.beyond_seq, SQL.since_seq)
_WALKS = {
    State.PENDING: _Walk(SQL.from_due, SQL.order_due, SQL.beyond_due, SQL.since_due, SQL.stands_pending),
    State.BLOCKED: _Walk(SQL.from_held, SQL.order_held, SQL.beyond_held, SQL.since_held, SQL.stands_held),
    State.RUNNING: _Walk(SQL.from_running, SQL.order_running, SQL.beyond_running, SQL.since_running, SQL.stands_running),
}
_FINAL = {
    state: _Walk(SQL.from_all, SQL.order_finished, "", "", f"{SQL.only_state}'{state.value}'") for state in FINAL
}  # fmt: skip
_FILTERS = {
    "collection": SQL.only_collection,
    "key": SQL.only_key,
    "schedule": SQL.only_schedule,
    "retrying": SQL.only_retrying,
    "parked": SQL.only_parked,
    "due_after": SQL.only_due_after,
    "due_before": SQL.only_due_before,
    "submitted_after": SQL.only_submitted_after,
    "submitted_before": SQL.only_submitted_before,
    "finished_after": SQL.only_finished_after,
    "finished_before": SQL.only_finished_before,
    "fingerprint": SQL.only_fingerprint,
    "priority_min": SQL.only_priority_from,
    "priority_max": SQL.only_priority_to,
}
# in as many bytes there are more characters than a brief payload has
_BRIEF_RECORD = SQL.record.replace("t.payload", f"substr(t.payload, 1, {4 * (BRIEF + 1)})").replace("t.result", "null")


def find(connection: sqlite3.Connection, handler: str, key: str) -> TaskRecord | None:
    names = write_json(read_names(connection).all(handler))
    row = connection.execute(f"{SQL.record}\n{SQL.from_all}\n{SQL.where_key}", {"names": names, "key": key}).fetchone()
    return None if row is None else read_record(row)


class _Conditions(NamedTuple):
    """What a filter asks of every task: conditions in SQL, and their parameters."""

    texts: list[str]
    parameters: dict[str, object]


def _conditions(connection: sqlite3.Connection, query: Query) -> _Conditions | None:
    """Compose a statement from named parts: a filter that is not given must not keep an index from being used. None: nothing matches."""
    parameters: dict[str, object] = {}
    texts = []
    for name, condition in _FILTERS.items():
        value = getattr(query, name)
        if value is not None:
            parameters[name] = value
            texts.append(condition)
    if query.handler is not None:
        names = _handlers(connection, query.handler)
        if not names:
            return None
        parameters["handler"] = write_json(names)
        texts.append(SQL.only_handler)
    if query.id_bounds is not None:
        parameters["least_id"], parameters["greatest_id"] = query.id_bounds
        texts.append(SQL.only_ids)
    if query.error is not None:
        texts.append(SQL.only_with_error)
    if query.logs is not None:
        terms = read_terms(query.logs)
        if not output.can_search(connection):
            return None
        texts += output.tasks_with_words(connection, terms, parameters)
    return _Conditions(texts, parameters)


def _handlers(connection: sqlite3.Connection, handler: str) -> list[str]:
    """Return all names of a handler; of a pattern, those of all handlers that have or had tasks and that it fits."""
    names = read_names(connection)
    if "*" not in handler:
        return names.all(handler)
    return [name for (name,) in connection.execute(SQL.lane_handlers) if fits_pattern(handler, names.present(name))]


def read_page(connection: sqlite3.Connection, query: Query) -> Found:
    """Return a page by what the statements can tell of a filter; `Scan` does the rest."""
    conditions = _conditions(connection, query)
    if conditions is None:
        return NOTHING
    parameters = {**conditions.parameters, "limit": query.limit + 1}
    by_end = query.by_end
    since = before = None
    if by_end and query.cursor is not None:
        parameters["finished_at"], parameters["seq"] = read_cursor(query.cursor, int, int)
    elif not by_end:
        since, before = seq_bounds(connection, query)
        if query.cursor is not None:
            (before,) = read_cursor(query.cursor, int)
        parameters |= {name: seq for name, seq in (("seq", before), ("since_seq", since)) if seq is not None}
    record = _BRIEF_RECORD if query.brief else SQL.record
    rows: list[Any] = []
    seen_from: Any = None  # the position from which on all walks were read; below it some have more
    for walk in _walks(query):
        bounds = [*([walk.beyond] if before is not None else []), *([walk.since] if since is not None else [])]
        if by_end and query.cursor is not None:
            bounds = [SQL.beyond_finished]
        where = _where([*conditions.texts, *([walk.entry] if walk.entry else []), *bounds])
        with contextlib.closing(connection.execute(f"{record}\n{walk.source}\n{where}\n{walk.order}", parameters)) as found:
            some, more = page_of(found, query.limit, bytes_of)
        rows += some
        if more:
            last = _position(some[-1], by_end=by_end)
            seen_from = last if seen_from is None else max(seen_from, last)
    rows = [row for row in rows if seen_from is None or _position(row, by_end=by_end) >= seen_from]
    rows.sort(key=lambda row: _position(row, by_end=by_end), reverse=True)
    rows, more = page_of(rows, query.limit, bytes_of)

    def after(index: int) -> str:
        return write_cursor(*_position(rows[index], by_end=by_end))

    return Found([read_record(row) for row in rows], after(-1) if more or seen_from is not None else None, after)


def _position(row: Sequence[Any], *, by_end: bool) -> tuple[int, ...]:
    """Return where a row comes in the list."""
    return (row[19], row[0]) if by_end else (row[0],)


def _where(conditions: Sequence[str]) -> str:
    return "where " + " and ".join(conditions) if conditions else ""


def page(connection: sqlite3.Connection, query: Query) -> Page:
    """Return a page, all in one transaction."""
    scan = Scan(query)
    while (wanted := scan.next_query()) is not None:
        scan.take(read_page(connection, wanted))
    return scan.page


def count(connection: sqlite3.Connection, query: Query, limit: int) -> TaskCount:
    """Count tasks by what the statements can tell of a filter."""
    conditions = _conditions(connection, query)
    if conditions is None or query.nothing:
        return TaskCount(0, False)
    number = 0
    since, before = (None, None) if query.by_end else seq_bounds(connection, query)
    parameters = conditions.parameters | {name: seq for name, seq in (("seq", before), ("since_seq", since)) if seq is not None}
    for walk in _walks(query):
        bounds = [*([walk.beyond] if before is not None else []), *([walk.since] if since is not None else [])]
        where = _where([*conditions.texts, *([walk.entry] if walk.entry else []), *bounds])
        text = SQL.count_matches.replace(":matches", f"select 1 {walk.source}\n{where} limit :limit")
        number += connection.execute(text, {**parameters, "limit": limit + 1 - number}).fetchone()[0]
    return TaskCount(min(number, limit), number > limit)


def _walks(query: Query) -> list[_Walk]:
    """Return along which entries the tasks are found that a filter by state can match. No task is found along two of them."""
    states = query.wanted
    if query.by_end:
        return [_FINAL[state] for state in states]
    walks = [_WALKS[state] for state in states] or [_ALL]
    if query.key is not None or query.id_prefix is not None:  # few tasks: they are found by key or id, not among all entries
        entry = " or ".join(walk.entry for walk in walks)
        return [_ALL._replace(entry=f"({entry})" if entry else "")]
    if State.PENDING not in states:
        return [_PARKED] if query.parked and not states else walks
    if query.parked:
        return [_PARKED]
    return [*walks, _PARKED] if query.parked is None else walks


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


def attempts(connection: sqlite3.Connection, task: str, after: int, limit: int | None) -> list[AttemptRecord]:
    limit = MAX_PAGE if limit is None else min(limit, MAX_PAGE)
    with contextlib.closing(connection.execute(SQL.attempts_of_task, {"id": task, "after": after, "limit": limit})) as found:
        rows, _ = page_of(found, limit, lambda row: len(row[-1] or "") + len(row[-2] or ""))
    return [
        AttemptRecord(
            *(attempt, None if outcome is None else Outcome(outcome), worker, started_at, finished_at),
            *(read_error(error), read_detail(detail)),
        )
        for attempt, outcome, worker, started_at, finished_at, detail, error in rows
    ]


def attempts_of(connection: sqlite3.Connection, worker: str) -> list[RunningAttempt]:
    return [
        RunningAttempt(task_id, attempt, claim, bool(cancelling), tries, crashes)
        for task_id, attempt, claim, cancelling, tries, crashes in connection.execute(SQL.attempts_of_worker, (worker,))
    ]


def lane_counts(connection: sqlite3.Connection, now: Instant, limit: int = MOST_IN_LANE) -> list[LaneCount]:
    """Count what waits and runs, by lane. Finished tasks are not looked at: they are many, and nothing has added them up."""
    lanes: dict[tuple[str, str, int], LaneCount] = {}

    def lane(handler: str, collection: str, priority: int) -> LaneCount:
        empty = LaneCount(
            handler=handler, collection=collection or None, priority=priority, due=0, later=0, blocked=0, running=0, oldest_due_at=None
        )
        return lanes.get((handler, collection, priority), empty)

    for *key, due, later, oldest in connection.execute(SQL.count_due, {"now": now, "limit": limit + 1}):
        more = due > limit or later > limit
        facts = {"due": min(due, limit), "later": min(later, limit), "oldest_due_at": oldest, "more": more}
        lanes[tuple(key)] = msgspec.structs.replace(lane(*key), **facts)
    for *key, blocked, parked in connection.execute(SQL.count_held):
        lanes[tuple(key)] = msgspec.structs.replace(lane(*key), blocked=blocked, parked=parked)
    for *key, running, accepted in connection.execute(SQL.count_running):
        lanes[tuple(key)] = msgspec.structs.replace(lane(*key), running=running, accepted=accepted)
    return [lanes[key] for key in sorted(lanes)]


def counts(connection: sqlite3.Connection, now: Instant, limit: int = MOST_IN_LANE) -> Counts:
    finals = [FinalCount(handler, State(state), count) for handler, state, count in connection.execute(SQL.count_final)]
    return Counts(now, lane_counts(connection, now, limit), finals)


def handler_load(connection: sqlite3.Connection, handler: str, now: Instant) -> HandlerLoad:
    values = {"names": write_json(read_names(connection).all(handler)), "now": now, "limit": MOST_COUNTED + 1}
    due, oldest = connection.execute(SQL.handler_load, values).fetchone()
    return HandlerLoad(due=min(due, MOST_COUNTED), more=due > MOST_COUNTED, oldest_due_at=oldest)


def upcoming(connection: sqlite3.Connection, handler: str, limit: int) -> list[TaskRecord]:
    """Return the first tasks of a handler's lanes, merged. One statement would sort all that wait, because SQLite has no lateral join."""
    entries: list[tuple[int, int]] = []
    for (lane,) in connection.execute(SQL.lanes_of, (write_json(read_names(connection).all(handler)),)).fetchall():
        entries = sorted(entries + connection.execute(SQL.first_due, (lane, limit)).fetchall())[:limit]
    rows = connection.execute(f"{SQL.record}\n{SQL.from_all}\n{SQL.where_seqs}", (write_json([task for _, task in entries]),))
    found = {row[0]: read_record(row) for row in rows}
    return [found[task] for _, task in entries]


class WorkerMark(NamedTuple):
    """What a worker has shown of itself; `alive` is None if only its beat can tell."""

    beat: int
    beat_at: Instant | None
    seen_gates: int
    alive: bool | None


def mark_in(folder: Path, worker: str, process: str) -> WorkerMark:
    """Read the beat and the lock of a worker's file."""
    return WorkerMark(*liveness.read_mark(folder / worker), liveness.is_alive(folder / worker, process))


def workers(connection: sqlite3.Connection, mark_of: Callable[[str, str], WorkerMark]) -> list[WorkerRecord]:
    """List workers, with the marks of those that are no pull workers: by their id and the mark of their process."""
    records = []
    for row in connection.execute(SQL.all_workers):
        worker, host, pid, slots, started_at, process, lease, pull, beat, beat_at, running, concurrency, *more = row
        draining, version, python, lag = more
        seen_gates, alive = CONFIRMED_ALL, None
        if not pull:
            beat, beat_at, seen_gates, alive = mark_of(worker, process)
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
                concurrency=concurrency,
                lease=lease,
                pull=bool(pull),
                draining=bool(draining),
                version=version,
                python=python,
                lag=lag,
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

    async def attempts(self, task: str, *, after: int = 0, limit: int | None = None) -> list[AttemptRecord]:
        return await self._read(lambda connection: attempts(connection, task, after, limit))

    async def unmet_edges(self, task: str) -> list[Edge]:
        return await self._read(lambda connection: [Edge(*row) for row in connection.execute(SQL.unmet_edges, (task,))])

    async def page(self, query: Query) -> Page:
        scan = Scan(query)
        while (wanted := scan.next_query()) is not None:  # one read after the other, so that others need not wait for all of them
            scan.take(await self._read(partial(read_page, query=wanted)))
        return scan.page

    async def count(self, query: Query, limit: int = USUAL_COUNT) -> TaskCount:
        if query.walks:
            return await counted(self.page, query, limit)
        return await self._read(lambda connection: count(connection, query, limit))

    async def counts(self, limit: int = MOST_IN_LANE) -> Counts:
        return await self._read(lambda connection: counts(connection, self._clock.now(), limit))

    async def handler_load(self, handler: str) -> HandlerLoad:
        return await self._read(lambda connection: handler_load(connection, handler, self._clock.now()))

    async def upcoming(self, handler: str, limit: int) -> list[TaskRecord]:
        return await self._read(lambda connection: upcoming(connection, handler, limit))
