"""What keeps the file healthy: retention, and finding states that cannot be."""

from __future__ import annotations

import contextlib
import functools
import sqlite3
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple, TypeAlias

from duetime.clock import Clock, Instant
from duetime.errors import InvalidValue
from duetime.model.outcome import Ended, Outcome
from duetime.model.task import FINAL, State
from duetime.store.sqlite import control, lanes, output, work
from duetime.store.sqlite.database import OpenFile
from duetime.store.sqlite.records import write_json
from duetime.store.sqlite.statements import SQL
from duetime.store.values import (
    HintKind,
    Inconsistency,
    Pruned,
)
from duetime.store.walks import Walk, Walks

WALKED_AT_ONCE = 2_000  # finished tasks that one transaction looks at to find those of some handlers

Position: TypeAlias = tuple[Instant, int]  # the end of a task, and its number


def prune(connection: sqlite3.Connection, state: State, before: Instant, limit: int) -> list[Pruned]:
    """Remove finished tasks past their retention: at least one, and not so many that their output blocks the writer for long."""
    return _remove(connection, connection.execute(SQL.old_tasks, (state.value, before, limit)))


def _remove(connection: sqlite3.Connection, tasks: sqlite3.Cursor) -> list[Pruned]:
    rows = _bounded(tasks)
    work.remove(connection, [row[0] for row in rows])
    return [Pruned(task_id, attempt) for _, task_id, attempt, _ in rows]


class Step(NamedTuple):
    """What one transaction of a walk did: the tasks that it removed, whether more of those that it found are left, and where it ended."""

    removed: list[Pruned]
    unfinished: bool
    position: Position | None


def step(connection: sqlite3.Connection, walk: Walk, position: Position, before: Instant, limit: int) -> Step:
    """Look at the next finished tasks after a position, and remove those that are meant. A position of None is the end."""
    lanes = {lane for (lane,) in connection.execute(SQL.lanes_named, (write_json(sorted(walk.handlers)),))}
    if walk.named and not lanes:
        return Step([], False, None)
    seen = connection.execute(SQL.walk, (walk.state.value, *position, before, WALKED_AT_ONCE)).fetchall()
    found = [seq for seq, lane, _ in seen if (lane in lanes) is walk.named]
    removed = _remove(connection, connection.execute(SQL.old_among, (write_json(found), limit))) if found else []
    last = (seen[-1][2], seen[-1][0]) if seen else position
    return Step(removed, len(removed) < len(found), last if removed or len(seen) == WALKED_AT_ONCE else None)


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
        _accepted,
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
    deletes = {"due": SQL.delete_due_of, "held": SQL.delete_held_of, "running": SQL.delete_running_of, "accepted": SQL.delete_running_of}
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
            work.take_from(connection, row[12], [row], Ended(Outcome.LOST), now)
        yield Inconsistency(
            "attempt without a worker", row[0], f"runs for worker {row[12]}, which is not registered; goes back to pending", repair
        )


def _accepted(connection: sqlite3.Connection, now: Instant, repair: bool) -> Iterator[Inconsistency]:
    for task_id, seq in connection.execute(SQL.unbounded_attempts).fetchall():
        if repair:
            connection.execute(SQL.bound_attempt, (seq, now))
        yield Inconsistency("accepted attempt without a deadline", task_id, "would wait for its end for ever; it times out now", repair)
    for (seq,) in connection.execute(SQL.stray_deadlines).fetchall():
        if repair:
            connection.execute(SQL.delete_deadline, (seq,))
        yield Inconsistency("deadline without an attempt", f"task number {seq}", "is not accepted any more; it is removed", repair)


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
        if repair and connection.execute(SQL.key_holder, (write_json([handler]), key)).fetchone() is None:
            connection.execute(SQL.insert_key, (handler, key, seq, 0))
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
            lanes.raise_next(connection, [lane])
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

    def __init__(self, path: str, synchronous: str, clock: Clock) -> None:
        super().__init__(path, synchronous, clock)
        self._walks = Walks[Position](clock.now)

    async def drop(self, limit: int) -> int:
        return await self._upkeep(lambda connection: control.drop(connection, limit, self._clock.now()))

    async def expire(self, limit: int) -> int:
        return await self._upkeep(lambda connection: work.expire(connection, limit, self._clock.now()))

    async def tidy(self) -> None:
        await self._write(lambda connection: connection.execute(SQL.forget_ended_refusals).close())
        await self._write(lambda connection: connection.execute(SQL.forget_windows, (self._clock.now(),)).close())

    async def prune(
        self, state: State, before: Instant, limit: int, *, only: Collection[str] | None = None, but: Collection[str] = ()
    ) -> list[Pruned]:
        if state not in FINAL:
            raise InvalidValue(f"only final states can be pruned, got {state}")
        if only is None and not but:
            return await self._write(lambda connection: prune(connection, state, before, limit))
        walk = Walk(state, frozenset(but), False) if only is None else Walk(state, frozenset(only) - {*but}, True)
        return await self._walk(walk, before, limit) if limit else []

    async def _walk(self, walk: Walk, before: Instant, limit: int) -> list[Pruned]:
        """Remove tasks of some handlers. There is no index by handler and end, because every task that ends would pay for it."""
        position: Position | None = self._walks.begin(walk, (0, 0))
        while position is not None:
            job = functools.partial(step, walk=walk, position=position, before=before, limit=limit)
            removed, unfinished, position = await self._write(job)
            if position is not None and not unfinished:
                self._walks.reached(walk, position)
            if removed:
                return removed
        return []

    async def inspect(self, *, repair: bool) -> list[Inconsistency]:
        return await self._write(lambda connection: inspect(connection, self._clock.now(), repair=repair))

    async def _upkeep(self, job: Callable[[sqlite3.Connection], int]) -> int:
        changed = await self._write(job)
        if changed:
            self._hint(HintKind.DONE)
            self._hint(HintKind.DUE)  # a child may have waited only for its end
        return changed
