"""What operators and callers change: cancels, retries, edits, drops and declarations."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import msgspec

from duetime.clock import Instant
from duetime.model.gate import GateAction
from duetime.model.task import State
from duetime.store.accepting import CANCEL_WITHIN, NO_WORKER
from duetime.store.sqlite import lanes, parked, work
from duetime.store.sqlite.database import OpenFile
from duetime.store.sqlite.fairness import declare_fair, move_weights
from duetime.store.sqlite.gates import next_version, read_gates, read_names
from duetime.store.sqlite.records import records_by_id, write_json
from duetime.store.sqlite.statements import SQL
from duetime.store.values import (
    CancelVerdict,
    ChangeVerdict,
    Declaration,
    DeleteVerdict,
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
        final = _cancelled(connection, seq, now)
        if final is not None:
            finals[seq] = final
            verdicts.append(CancelVerdict.CANCELLED)
        else:
            if connection.execute(SQL.mark_cancelling, (seq,)).fetchall() == [(NO_WORKER,)]:
                connection.execute(SQL.hurry_accepted, {"task": seq, "at": now + CANCEL_WITHIN})
            verdicts.append(CancelVerdict.CANCELLING)
    work.finish(connection, list(finals.values()), now)
    return verdicts


def delete(connection: sqlite3.Connection, ids: Sequence[str], now: Instant) -> list[DeleteVerdict]:
    """Remove what has ended and what waits, and leave what runs. What waits is cancelled first, so that its children go on or end."""
    verdicts = []
    finals: dict[int, work.Final] = {}
    gone: dict[int, None] = {}
    for task_id in ids:
        seq, state = connection.execute(SQL.task_state, (task_id,)).fetchone() or (None, None)
        if seq is None or seq in gone:
            verdicts.append(DeleteVerdict.UNKNOWN)
            continue
        final = None if state is not None else _cancelled(connection, seq, now)
        if state is None and final is None:
            verdicts.append(DeleteVerdict.RUNNING)
            continue
        if final is not None:
            finals[seq] = final
        gone[seq] = None
        verdicts.append(DeleteVerdict.DELETED)
    work.finish(connection, list(finals.values()), now)
    work.remove(connection, list(gone))
    return verdicts


def _cancelled(connection: sqlite3.Connection, seq: int, now: Instant) -> work.Final | None:
    """Take a waiting task from where it waits, and return its end, which is not written yet; None if it runs."""
    waiting = connection.execute(SQL.take_due, (seq,)).fetchall() or connection.execute(SQL.take_held, (seq,)).fetchall()
    if not waiting:
        return None
    _, _, attempt, tries, crashes = waiting[0]
    connection.execute(SQL.drop_edges_to, (seq,))
    return work.unstarted(seq, State.CANCELLED, attempt, tries, crashes, now)


def retry(connection: sqlite3.Connection, ids: Sequence[str], now: Instant) -> list[ChangeVerdict]:
    """Let finished tasks live again, and those that were cancelled because they did not succeed."""
    verdicts = [_retry_one(connection, task_id, now) for task_id in ids]
    revived = [task_id for task_id, verdict in zip(ids, verdicts, strict=True) if verdict is ChangeVerdict.CHANGED]
    while revived:
        revived = _revive_children(connection, revived, now)
    return verdicts


def _revive_children(connection: sqlite3.Connection, parents: Sequence[str], now: Instant) -> list[str]:
    """Let children wait again that were cancelled in vain, if nothing else of what they need has failed; return their ids."""
    seqs = [connection.execute(SQL.task_state, (parent,)).fetchone()[0] for parent in parents]
    revived = []
    for (child,) in connection.execute(SQL.children_in_vain, (write_json(seqs),)).fetchall():
        edges = connection.execute(SQL.waited_in_vain, (child,)).fetchall()
        if any(needs == "success" and state not in (None, State.SUCCEEDED) for _, needs, state in edges):
            continue
        waits = [(parent, child, needs) for parent, needs, state in edges if state is None]
        (task_id,) = connection.execute(SQL.id_of, (child,)).fetchone()
        if _retry_one(connection, task_id, now) is not ChangeVerdict.CHANGED:
            continue  # another live task has its key
        [(lane, due_at, attempt, tries, crashes)] = connection.execute(SQL.take_due, (child,)).fetchall()
        connection.execute(SQL.insert_held, (child, lane, "blocked", len(waits), due_at, attempt, tries, crashes))
        connection.executemany(SQL.insert_edge, waits)
        revived.append(task_id)
    return revived


def _retry_one(connection: sqlite3.Connection, task_id: str, now: Instant) -> ChangeVerdict:
    row = connection.execute(SQL.final_task, (task_id,)).fetchone()
    if row is None:
        return ChangeVerdict.UNKNOWN
    seq, lane, state, key, attempt, outcome, worker, started_at, finished_at, detail, error, expires_at, handler = row
    if state is None or state == State.SUCCEEDED or connection.execute(SQL.passed_member, (seq,)).fetchone():
        return ChangeVerdict.REFUSED
    if key is not None:
        if connection.execute(SQL.key_holder, (write_json(read_names(connection).all(handler)), key)).fetchone():
            return ChangeVerdict.DUPLICATE
        connection.execute(SQL.insert_key, (handler, key, seq, 0))
    if outcome is not None:
        connection.execute(SQL.insert_attempt, (seq, attempt, outcome, worker, started_at, finished_at, detail, error))
    connection.execute(SQL.forget_vain, (seq,))
    connection.execute(SQL.insert_return, (seq,))
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
    if state is not None and state != State.SUCCEEDED and change.repairs:
        connection.execute(SQL.change_payload, (change.payload, seq))
        return ChangeVerdict.CHANGED
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
    if change.payload is not None:
        connection.execute(SQL.change_payload, (change.payload, seq))
        parked.unpark(connection, seq, now)
    elif held:
        parked.count_anew(connection, seq, now)
    return ChangeVerdict.CHANGED


def lane_id(connection: sqlite3.Connection, handler: str, collection: str, priority: int) -> int:
    lane = (handler, collection, priority)
    row = connection.execute(SQL.find_lane, lane).fetchone()
    if row is None:
        connection.execute(SQL.extend_road, lane)
        row = connection.execute(SQL.add_lane, lane).fetchone()
    return int(row[0])


def drop(connection: sqlite3.Connection, limit: int, now: Instant) -> int:
    """Record due tasks under drop gates as dropped; a lane at a time, never more than `limit`."""
    gates = read_gates(connection, now)
    dropped = 0
    if not any(gate.action is GateAction.DROP for gate in gates):
        return 0
    for lane, handler, collection, _ in lanes.with_work(connection, now, gates):
        gate = gates.holding(handler, collection or None, now)
        if gate is None or gate.action is not GateAction.DROP or dropped >= limit:
            continue
        entries = connection.execute(lanes.scanning(lane), (lane, now, limit - dropped, 0)).fetchall()
        connection.execute(SQL.delete_due, (write_json([entry[2] for entry in entries]),))
        finals = [work.unstarted(task, State.DROPPED, attempt, tries, crashes, now) for _, _, task, _, attempt, tries, crashes in entries]
        work.finish(connection, finals, now)
        lanes.raise_next(connection, [lane])
        dropped += len(entries)
    waiting = parked.due_under(connection, gates, GateAction.DROP, limit - dropped, now)
    connection.execute(SQL.delete_held, (write_json([task for task, *_ in waiting]),))
    finals = [work.unstarted(task, State.DROPPED, attempt, tries, crashes, now) for task, attempt, tries, crashes in waiting]
    work.finish(connection, finals, now)
    return dropped + len(waiting)


def declare(connection: sqlite3.Connection, declarations: Sequence[Declaration], now: Instant) -> bool:
    """Record what is new; return whether a handler has other names now, which gates depend on, or is fair now and was not."""
    changed = False
    for declaration in declarations:
        stamped = msgspec.structs.replace(declaration, declared_at=now)
        row = (declaration.name, declaration.digest, msgspec.json.encode(stamped).decode())
        if connection.execute(SQL.put_handler, row).rowcount:
            connection.execute(SQL.forget_handlers, {"name": declaration.name})
            changed = _name(connection, declaration) or changed
            changed = declare_fair(connection, declaration.name, declaration.fair) or changed
    if changed:
        next_version(connection)
    return changed


def _name(connection: sqlite3.Connection, declaration: Declaration) -> bool:
    """Let a handler have the aliases that its new declaration says; return whether that changes anything."""
    name, aliases = declaration.name, declaration.aliases
    if {*read_names(connection).all(name)} - {name} == {*aliases}:
        return False
    connection.execute(SQL.forget_aliases, (name,))
    for alias in aliases:
        connection.execute(SQL.move_aliases, (name, alias))
        connection.execute(SQL.put_alias, (alias, name))
        move_weights(connection, name, alias)
    return True


def declarations(connection: sqlite3.Connection, former: bool) -> list[Declaration]:
    return [_decode_declaration(text) for (text,) in connection.execute(SQL.all_handlers, {"former": former})]


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

    async def delete(self, ids: Sequence[str]) -> list[DeleteVerdict]:
        if not ids:
            return []
        verdicts = await self._write(lambda connection: delete(connection, ids, self._clock.now()))
        if DeleteVerdict.DELETED in verdicts:
            self._hint(HintKind.DONE)
            self._hint(HintKind.DUE)  # a child may have waited only for its end
        return verdicts

    async def edit(self, edits: Sequence[Edit]) -> list[ChangeVerdict]:
        if not edits:
            return []
        verdicts = await self._write(lambda connection: edit(connection, edits, self._clock.now()))
        self._hint(HintKind.DUE)
        return verdicts

    async def declare(self, declarations: Sequence[Declaration]) -> None:
        if not declarations:
            return
        renamed = await self._write(lambda connection: declare(connection, declarations, self._clock.now()))
        if renamed:
            self._hint(HintKind.GATES)

    async def declarations(self, *, former: bool = False) -> list[Declaration]:
        return await self._read(lambda connection: declarations(connection, former))
