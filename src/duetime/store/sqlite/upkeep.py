"""What keeps the file healthy: retention, and finding states that cannot be."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator

from duetime.clock import Instant
from duetime.errors import InvalidValue
from duetime.model.outcome import Ended, Outcome
from duetime.model.task import FINAL, State
from duetime.store.sqlite import control, output, work
from duetime.store.sqlite.database import OpenFile
from duetime.store.sqlite.records import write_json
from duetime.store.sqlite.statements import SQL
from duetime.store.values import (
    HintKind,
    Inconsistency,
    Pruned,
)


def prune(connection: sqlite3.Connection, state: State, before: Instant, limit: int) -> list[Pruned]:
    """Remove finished tasks past their retention: at least one, and not so many that their output blocks the writer for long."""
    rows = _bounded(connection.execute(SQL.old_tasks, (state.value, before, limit)))
    tasks = write_json([row[0] for row in rows])
    output.remove(connection, tasks)
    connection.execute(SQL.delete_attempts, (tasks,))
    connection.execute(SQL.delete_tasks, (tasks,))
    return [Pruned(task_id, attempt) for _, task_id, attempt, _ in rows]


def _bounded(tasks: sqlite3.Cursor) -> list[tuple[int, str, int, int]]:
    """Take the first tasks whose output together is no more than is removed at once."""
    taken: list[tuple[int, str, int, int]] = []
    left = output.REMOVED_AT_ONCE
    with contextlib.closing(tasks):
        for task in tasks:
            left -= task[3]
            if taken and left < 0:
                break
            taken.append(task)
    return taken


def inspect(connection: sqlite3.Connection, now: Instant, *, repair: bool) -> list[Inconsistency]:
    """Look for impossible states. The order matters: later checks rely on earlier repairs."""
    problems: list[Inconsistency] = []
    for check in (
        _damage,
        _ghosts,
        _doubled,
        _ownerless,
        _homeless,
        _ghost_keys,
        _missing_keys,
        _edges,
        _wrong_waiting_counts,
        _lanes,
        _output,
    ):
        problems.extend(check(connection, now, repair))
    return problems


def _damage(connection: sqlite3.Connection, now: Instant, repair: bool) -> Iterator[Inconsistency]:
    for (text,) in connection.execute("pragma quick_check(10)").fetchall():
        if text != "ok":
            yield Inconsistency("damaged file", "database", f"{text}; restore a backup or use sqlite3's .recover", False)


def _ghosts(connection: sqlite3.Connection, now: Instant, repair: bool) -> Iterator[Inconsistency]:
    deletes = {"due": SQL.delete_due_of, "held": SQL.delete_held_of, "running": SQL.delete_running_of}
    for table, seq in connection.execute(SQL.ghosts).fetchall():
        if repair:
            connection.execute(deletes[table], (seq,))
        yield Inconsistency("orphaned entry", f"task number {seq}", f"is in {table} but is finished or gone; the entry is removed", repair)


def _doubled(connection: sqlite3.Connection, now: Instant, repair: bool) -> Iterator[Inconsistency]:
    for seq, task_id, running, held, _ in connection.execute(SQL.doubled).fetchall():
        if repair:
            if running or held:
                connection.execute(SQL.delete_due_of, (seq,))
            if running:
                connection.execute(SQL.delete_held_of, (seq,))
        yield Inconsistency(
            "task in two locations", task_id, "is in more than one of running, held and due; the first of these is kept", repair
        )


def _ownerless(connection: sqlite3.Connection, now: Instant, repair: bool) -> Iterator[Inconsistency]:
    for row in connection.execute(SQL.ownerless_attempts).fetchall():
        if repair:
            work.take_from(connection, row[11], [row], Ended(Outcome.LOST), now)
        yield Inconsistency(
            "attempt without a worker", row[0], f"runs for worker {row[11]}, which is not registered; goes back to pending", repair
        )


def _homeless(connection: sqlite3.Connection, now: Instant, repair: bool) -> Iterator[Inconsistency]:
    for seq, task_id, lane, due_at, attempt in connection.execute(SQL.homeless_tasks).fetchall():
        if repair:
            work.put_due(connection, [(lane, seq, due_at, attempt, 0, 0)], now)
        yield Inconsistency("task without a location", task_id, "is live but waits nowhere; goes back to pending", repair)


def _ghost_keys(connection: sqlite3.Connection, now: Instant, repair: bool) -> Iterator[Inconsistency]:
    for handler, key, seq in connection.execute(SQL.ghost_keys).fetchall():
        if repair:
            connection.execute(SQL.free_keys, (write_json([seq]),))
        yield Inconsistency("orphaned key", f"{handler} {key}", "is held by a task that is finished or gone; the key is freed", repair)


def _missing_keys(connection: sqlite3.Connection, now: Instant, repair: bool) -> Iterator[Inconsistency]:
    for handler, key, seq, task_id in connection.execute(SQL.missing_keys).fetchall():
        if repair and connection.execute(SQL.key_holder, (handler, key)).fetchone() is None:
            connection.execute(SQL.insert_key, (handler, key, seq))
        yield Inconsistency("missing key", task_id, f"is live but does not hold its key {key!r}; takes it", repair)


def _edges(connection: sqlite3.Connection, now: Instant, repair: bool) -> Iterator[Inconsistency]:
    for parent, state in connection.execute(SQL.ended_edges).fetchall():
        if repair:
            # a parent that is gone was finished once; how is not known, so its children are let go
            work.release_children(connection, parent, State(state) if state else State.SUCCEEDED, now)
        yield Inconsistency("ended parent", f"task number {parent}", "has ended but others still wait for it; they go on", repair)


def _wrong_waiting_counts(connection: sqlite3.Connection, now: Instant, repair: bool) -> Iterator[Inconsistency]:
    for seq, waiting, edges in connection.execute(SQL.wrong_waiting).fetchall():
        if repair and edges:
            connection.execute(SQL.set_waiting, (edges, seq))
        elif repair:
            for lane, due_at, attempt, tries, crashes in connection.execute(SQL.take_held, (seq,)).fetchall():
                work.put_due(connection, [(lane, seq, due_at, attempt, tries, crashes)], now)
        yield Inconsistency(
            "wrong number of parents", f"task number {seq}", f"waits for {waiting} tasks, but {edges} are recorded; put right", repair
        )


def _lanes(connection: sqlite3.Connection, now: Instant, repair: bool) -> Iterator[Inconsistency]:
    for lane, handler, collection, priority in connection.execute(SQL.late_lanes).fetchall():
        if repair:
            connection.execute(SQL.raise_lane, (lane,))
        name = f"{handler} {collection or '-'} {priority}"
        yield Inconsistency("late lane", name, "would be looked into too late; its next position is put right", repair)


def _output(connection: sqlite3.Connection, now: Instant, repair: bool) -> Iterator[Inconsistency]:
    if not output.has_fts5(connection):
        yield Inconsistency("no search", "SQLite", output.NO_FTS5, False)
    for (seq,) in connection.execute(SQL.ghost_output).fetchall():
        if repair:
            output.remove(connection, write_json([seq]))
        yield Inconsistency("orphaned logs", f"task number {seq}", "has logs but is gone; they are removed", repair)


class Upkeep(OpenFile):
    """What keeps the file small and sound."""

    async def drop(self, limit: int) -> int:
        return await self._upkeep(lambda connection: control.drop(connection, limit, self._clock.now()))

    async def expire(self, limit: int) -> int:
        return await self._upkeep(lambda connection: work.expire(connection, limit, self._clock.now()))

    async def tidy(self) -> None:
        """Do nothing: the file keeps itself in order."""

    async def prune(self, state: State, before: Instant, limit: int) -> list[Pruned]:
        if state not in FINAL:
            raise InvalidValue(f"only final states can be pruned, got {state}")
        return await self._write(lambda connection: prune(connection, state, before, limit))

    async def inspect(self, *, repair: bool) -> list[Inconsistency]:
        return await self._write(lambda connection: inspect(connection, self._clock.now(), repair=repair))

    async def _upkeep(self, job: Callable[[sqlite3.Connection], int]) -> int:
        changed = await self._write(job)
        if changed:
            self._hint(HintKind.DONE)
            self._hint(HintKind.DUE)  # a child may have waited only for its end
        return changed
