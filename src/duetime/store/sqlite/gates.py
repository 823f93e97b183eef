"""Gates in the file, and their version."""

from __future__ import annotations

import sqlite3

from duetime.clock import Instant
from duetime.model.gate import Gate, GateAction, Gates
from duetime.model.names import HandlerNames
from duetime.store.sqlite.database import OpenFile
from duetime.store.sqlite.records import write_json
from duetime.store.sqlite.statements import SQL
from duetime.store.values import (
    HintKind,
)


def put_gate(connection: sqlite3.Connection, gate: Gate) -> int:
    write_gate(connection, gate)
    return next_version(connection)


def write_gate(connection: sqlite3.Connection, gate: Gate) -> None:
    names = read_names(connection)
    connection.execute(SQL.delete_gate, (write_json(names.all(gate.handler)), gate.collection or ""))
    values = (
        *(names.present(gate.handler), gate.collection or "", gate.action.value, gate.until_at, gate.note, gate.set_by, gate.set_at),
        *(gate.automatic, gate.probe_at, gate.probe_every),
    )
    connection.execute(SQL.put_gate, values)


def remove_gate(connection: sqlite3.Connection, handler: str, collection: str | None, now: Instant) -> int | None:
    """Open a gate. Its lanes kept their next position, so the next claim looks into them."""
    connection.execute(SQL.delete_ended_gates, (now,))
    key = write_json(read_names(connection).all(handler)), collection or ""
    connection.execute(SQL.delete_streak, key)
    if connection.execute(SQL.delete_gate, key).rowcount == 0:
        return None
    return next_version(connection)


def read_names(connection: sqlite3.Connection) -> HandlerNames:
    return HandlerNames(dict(connection.execute(SQL.all_aliases).fetchall()))


def next_version(connection: sqlite3.Connection) -> int:
    ((version,),) = connection.execute(SQL.next_gates_version).fetchall()
    return int(version)


def read_gates(connection: sqlite3.Connection, now: Instant) -> Gates:
    rows = connection.execute(SQL.all_gates, (now,)).fetchall()
    (version,) = connection.execute(SQL.gates_version).fetchone()
    gates = [
        Gate(
            handler=handler,
            collection=collection or None,
            action=GateAction(action),
            until_at=until_at,
            note=note,
            set_by=set_by,
            set_at=set_at,
            automatic=bool(automatic),
            probe_at=probe_at,
            probe_every=probe_every,
        )
        for handler, collection, action, until_at, note, set_by, set_at, automatic, probe_at, probe_every in rows
    ]
    return Gates(version, gates, read_names(connection) if gates else None)


class GateKeeping(OpenFile):
    """Where gates live."""

    async def put_gate(self, gate: Gate) -> int:
        version = await self._write(lambda connection: put_gate(connection, gate))
        self._hint(HintKind.GATES)
        return version

    async def remove_gate(self, handler: str, collection: str | None) -> int | None:
        version = await self._write(lambda connection: remove_gate(connection, handler, collection, self._clock.now()))
        self._hint(HintKind.GATES)
        self._hint(HintKind.DUE)
        return version

    async def gates(self) -> Gates:
        return await self._read(lambda connection: read_gates(connection, self._clock.now()))
