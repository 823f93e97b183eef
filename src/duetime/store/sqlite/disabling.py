"""Streaks of failures in the file, and the automatic gates that come of them."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence

import msgspec

from duetime.clock import SECOND, Instant
from duetime.model.disabling import Observed, Streak, judge
from duetime.model.gate import Gate
from duetime.store.disabling import Probe, due_probe, entry_of
from duetime.store.sqlite.access import add_audit
from duetime.store.sqlite.database import OpenFile
from duetime.store.sqlite.gates import next_version, read_gates, read_names, write_gate
from duetime.store.sqlite.records import write_json
from duetime.store.sqlite.statements import SQL
from duetime.store.values import HintKind


def observe(connection: sqlite3.Connection, worker: str, observed: Observed, now: Instant) -> bool:
    gates = read_gates(connection, now)
    names = read_names(connection)
    key = write_json(names.all(observed.handler)), observed.collection or ""
    change = judge(observed, _streak(connection, observed), gates, now)
    if change.streak is None:
        connection.execute(SQL.delete_streak, key)
    else:
        streak = change.streak
        row = (names.present(observed.handler), observed.collection or "", streak.failures, streak.since_at, streak.last)
        connection.execute(SQL.put_streak, row)
    if change.probe_at is not None:
        holding = gates.holding(observed.handler, observed.collection, now)
        connection.execute(SQL.move_probe, (*key, None if holding is None else holding.probe_at, change.probe_at))
    if change.close is not None:
        write_gate(connection, change.close)
    elif change.open is not None:
        connection.execute(SQL.delete_gate, key)
    entry = entry_of(worker, change, now)
    if entry is None:
        return False
    next_version(connection)
    add_audit(connection, [entry])
    return True


def _streak(connection: sqlite3.Connection, observed: Observed) -> Streak | None:
    name = read_names(connection).present(observed.handler)
    row = connection.execute(SQL.streak, (name, observed.collection or "")).fetchone()
    return None if row is None else Streak(*row)


def _changes_nothing(connection: sqlite3.Connection, observed: Sequence[Observed], now: Instant) -> bool:
    """Return whether nothing was seen but successes, and there is nothing that they could end."""
    if any(each.failures or each.unavailable for each in observed):
        return False
    gates = read_gates(connection, now)
    return not any(gate.automatic for gate in gates) and all(_streak(connection, each) is None for each in observed)


class TargetWatching(OpenFile):
    """Where streaks live, and the probes of automatic gates."""

    async def observe(self, worker: str, observed: Sequence[Observed]) -> bool:
        if await self._read(lambda connection: _changes_nothing(connection, observed, self._clock.now())):
            return False

        def job(connection: sqlite3.Connection) -> bool:
            return sum(observe(connection, worker, each, self._clock.now()) for each in observed) > 0

        changed = await self._write(job)
        if changed:
            self._hint(HintKind.GATES)
            self._hint(HintKind.DUE)
        return changed

    async def take_probe(self, handlers: Collection[str]) -> Probe:
        # a look first: it waits for no writer
        due = await self._read(lambda connection: due_probe(read_gates(connection, self._clock.now()), handlers, self._clock.now()))
        return due if due.gate is None else await self._write(lambda connection: self._take(connection, handlers))

    def _take(self, connection: sqlite3.Connection, handlers: Collection[str]) -> Probe:
        now = self._clock.now()
        due = due_probe(read_gates(connection, now), handlers, now)
        if due.gate is None:
            return due
        moved = msgspec.structs.replace(due.gate, probe_at=now + round((due.gate.probe_every or 0) * SECOND))
        _move(connection, due.gate, moved.probe_at)
        return Probe(moved, moved.probe_at)

    async def put_off_probe(self, gate: Gate, probe_at: Instant) -> None:
        await self._write(lambda connection: _move(connection, gate, probe_at))


def _move(connection: sqlite3.Connection, gate: Gate, probe_at: Instant | None) -> None:
    names = write_json(read_names(connection).all(gate.handler))
    connection.execute(SQL.move_probe, (names, gate.collection or "", gate.probe_at, probe_at))
