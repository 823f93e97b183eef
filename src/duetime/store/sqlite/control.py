"""What operators and callers change: cancels, retries, edits, drops and declarations."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import msgspec

from duetime.clock import Instant
from duetime.model.gate import GateAction
from duetime.model.task import State
from duetime.store.sqlite import work
from duetime.store.sqlite.database import OpenFile
from duetime.store.sqlite.gates import read_gates
from duetime.store.sqlite.records import records_by_id, write_json
from duetime.store.sqlite.statements import SQL
from duetime.store.values import (
    CancelVerdict,
    ChangeVerdict,
    Declaration,
    Edit,
    HintKind,
)

_decode_declaration = msgspec.json.Decoder(Declaration).decode


def cancel(connection: sqlite3.Connection, ids: Sequence[str], now: Instant) -> list[CancelVerdict]:
    """Cancel what waits and mark what runs."""
    verdicts = []
    finals: dict[int, work.Final] = {}
    for task_id in ids:
        row = connection.execute(SQL.task_state, (task_id,)).fetchone()
        if row is None:
            verdicts.append(CancelVerdict.UNKNOWN)
            continue
        seq, state = row
        if state is not None or seq in finals:
            verdicts.append(CancelVerdict.FINISHED)
            continue
        waiting = connection.execute(SQL.take_due, (seq,)).fetchall() or connection.execute(SQL.take_held, (seq,)).fetchall()
        if waiting:
            _, _, attempt, tries, crashes = waiting[0]
            connection.execute(SQL.drop_edges_to, (seq,))
            finals[seq] = work.unstarted(seq, State.CANCELLED, attempt, tries, crashes, now)
            verdicts.append(CancelVerdict.CANCELLED)
        else:
            connection.execute(SQL.mark_cancelling, (seq,)).fetchall()
            verdicts.append(CancelVerdict.CANCELLING)
    work.finish(connection, list(finals.values()), now)
    return verdicts


def retry(connection: sqlite3.Connection, ids: Sequence[str], now: Instant) -> list[ChangeVerdict]:
    """Let finished tasks live again."""
    return [_retry_one(connection, task_id, now) for task_id in ids]


def _retry_one(connection: sqlite3.Connection, task_id: str, now: Instant) -> ChangeVerdict:
    row = connection.execute(SQL.final_task, (task_id,)).fetchone()
    if row is None:
        return ChangeVerdict.UNKNOWN
    seq, lane, state, key, attempt, outcome, worker, started_at, finished_at, error, expires_at, handler = row
    if state is None or state == State.SUCCEEDED:
        return ChangeVerdict.REFUSED
    if key is not None:
        if connection.execute(SQL.key_holder, (handler, key)).fetchone():
            return ChangeVerdict.DUPLICATE
        connection.execute(SQL.insert_key, (handler, key, seq))
    if outcome is not None:
        connection.execute(SQL.insert_attempt, (seq, attempt, outcome, worker, started_at, finished_at, error))
    # an expiry in the past would end it again before it could start
    connection.execute(SQL.revive_task, (now, expires_at if expires_at is not None and expires_at > now else None, seq))
    work.put_due(connection, [(lane, seq, now, attempt or 0, 0, 0)], now)
    return ChangeVerdict.CHANGED


def edit(connection: sqlite3.Connection, edits: Sequence[Edit], now: Instant) -> list[ChangeVerdict]:
    """Move waiting tasks in time or to another lane."""
    return [_edit_one(connection, change, now) for change in edits]


def _edit_one(connection: sqlite3.Connection, change: Edit, now: Instant) -> ChangeVerdict:
    row = connection.execute(SQL.task_state, (change.id,)).fetchone()
    if row is None:
        return ChangeVerdict.UNKNOWN
    if change.seen is not None and records_by_id(connection, [change.id]).get(change.id) != change.seen:
        return ChangeVerdict.OUTDATED
    seq, state = row
    if state is not None:
        return ChangeVerdict.REFUSED
    handler, collection, priority = connection.execute(SQL.lane_of, (seq,)).fetchone()
    lane = lane_id(
        connection,
        handler,
        collection if change.collection is None else change.collection,
        priority if change.priority is None else change.priority,
    )
    waiting = connection.execute(SQL.take_due, (seq,)).fetchall()
    held = connection.execute(SQL.held_counters, (seq,)).fetchall()
    if waiting:
        _, due_at, attempt, tries, crashes = waiting[0]
        due_at = due_at if change.due_at is None else change.due_at
        work.put_due(connection, [(lane, seq, due_at, attempt, tries, crashes)], now)
    elif held:
        _, due_at, _, tries, _ = held[0]
        due_at = due_at if change.due_at is None else change.due_at
        connection.execute(SQL.move_held, (lane, due_at, tries, seq))
    else:
        return ChangeVerdict.REFUSED
    connection.execute(SQL.move_task, (lane, change.due_at, seq))
    return ChangeVerdict.CHANGED


def lane_id(connection: sqlite3.Connection, handler: str, collection: str, priority: int) -> int:
    lane = (handler, collection, priority)
    row = connection.execute(SQL.find_lane, lane).fetchone() or connection.execute(SQL.add_lane, lane).fetchone()
    return int(row[0])


def drop(connection: sqlite3.Connection, limit: int, now: Instant) -> int:
    """Record due tasks under drop gates as dropped; a lane at a time, never more than `limit`."""
    gates = read_gates(connection, now)
    dropped = 0
    if not any(gate.action is GateAction.DROP for gate in gates):
        return 0
    for lane, handler, collection, _ in connection.execute(SQL.lanes_with_work, (now,)).fetchall():
        gate = gates.holding(handler, collection or None, now)
        if gate is None or gate.action is not GateAction.DROP or dropped >= limit:
            continue
        entries = connection.execute(SQL.scan_lane, (lane, now, limit - dropped)).fetchall()
        connection.execute(SQL.delete_due, (write_json([entry[2] for entry in entries]),))
        finals = [work.unstarted(task, State.DROPPED, attempt, tries, crashes, now) for _, _, task, _, attempt, tries, crashes in entries]
        work.finish(connection, finals, now)
        connection.execute(SQL.raise_lane, (lane,))
        dropped += len(entries)
    return dropped


def declare(connection: sqlite3.Connection, declarations: Sequence[Declaration], now: Instant) -> None:
    rows = []
    for declaration in declarations:
        stamped = msgspec.structs.replace(declaration, declared_at=now)
        rows.append((declaration.name, msgspec.json.encode(stamped).decode()))
    connection.executemany(SQL.put_handler, rows)


def declarations(connection: sqlite3.Connection) -> list[Declaration]:
    return [_decode_declaration(text) for (text,) in connection.execute(SQL.all_handlers)]


class Changing(OpenFile):
    """What operators and callers do to single tasks, and which handlers there are."""

    async def cancel(self, ids: Sequence[str]) -> list[CancelVerdict]:
        if not ids:
            return []
        verdicts = await self._write(lambda connection: cancel(connection, ids, self._clock.now()))
        if CancelVerdict.CANCELLING in verdicts:
            self._hint(HintKind.CANCEL)
        if CancelVerdict.CANCELLED in verdicts:
            self._hint(HintKind.DONE)
            self._hint(HintKind.DUE)  # a child may have waited only for its end
        return verdicts

    async def retry(self, ids: Sequence[str]) -> list[ChangeVerdict]:
        if not ids:
            return []
        verdicts = await self._write(lambda connection: retry(connection, ids, self._clock.now()))
        self._hint(HintKind.DUE)
        return verdicts

    async def edit(self, edits: Sequence[Edit]) -> list[ChangeVerdict]:
        if not edits:
            return []
        verdicts = await self._write(lambda connection: edit(connection, edits, self._clock.now()))
        self._hint(HintKind.DUE)
        return verdicts

    async def declare(self, declarations: Sequence[Declaration]) -> None:
        if declarations:
            await self._write(lambda connection: declare(connection, declarations, self._clock.now()))

    async def declarations(self) -> list[Declaration]:
        return await self._read(declarations)
