"""Gates in the database, and their version."""

from __future__ import annotations

from duetime.clock import Instant
from duetime.model.gate import Gate, GateAction, Gates
from duetime.model.names import HandlerNames
from duetime.store.postgres.database import OpenSchema
from duetime.store.postgres.runner import Runner
from duetime.store.sql import Statements
from duetime.store.values import HintKind


async def put_gate(run: Runner, sql: Statements, gate: Gate) -> int:
    """Set a gate. Claims compare the version that they know with the stored one, and read the gates again if it has changed."""
    await run.rows(sql.lock_gates)
    await run.rows(sql.delete_gate, [gate.handler, gate.collection or ""])
    await write_gate(run, sql, gate)
    return await next_version(run, sql)


async def write_gate(run: Runner, sql: Statements, gate: Gate) -> None:
    values = [gate.handler, gate.collection or "", gate.action.value, gate.until_at, gate.note, gate.set_by, gate.set_at]
    await run.rows(sql.put_gate, [*values, gate.automatic, gate.probe_at, gate.probe_every])


async def remove_gate(run: Runner, sql: Statements, handler: str, collection: str | None, now: Instant | None) -> int | None:
    await run.rows(sql.lock_gates)
    await run.rows(sql.delete_ended_gates, [now])
    await run.rows(sql.delete_streak, [handler, collection or ""])
    if not await run.rows(sql.delete_gate, [handler, collection or ""]):
        return None
    return await next_version(run, sql)


async def next_version(run: Runner, sql: Statements) -> int:
    [[version]] = await run.rows(sql.next_gates_version)
    return int(version)


async def read_gates(run: Runner, sql: Statements, now: Instant | None) -> Gates:
    rows = await run.rows(sql.all_gates, [now])
    gates = [
        Gate(
            handler=handler,
            collection=collection or None,
            action=GateAction(action),
            until_at=until_at,
            note=note,
            set_by=set_by,
            set_at=set_at,
            automatic=automatic,
            probe_at=probe_at,
            probe_every=probe_every,
        )
        for _, handler, collection, action, until_at, note, set_by, set_at, automatic, probe_at, probe_every in rows
        if handler is not None
    ]
    return Gates(rows[0][0], gates, await read_names(run, sql) if gates else None)


async def read_names(run: Runner, sql: Statements) -> HandlerNames:
    return HandlerNames({row[0]: row[1] for row in await run.rows(sql.all_aliases)})


class GateKeeping(OpenSchema):
    """Where gates live."""

    async def put_gate(self, gate: Gate) -> int:
        version = await self._opened.transaction(lambda run: put_gate(run, self._sql, gate))
        self._hint(HintKind.GATES)
        return version

    async def remove_gate(self, handler: str, collection: str | None) -> int | None:
        version = await self._opened.transaction(lambda run: remove_gate(run, self._sql, handler, collection, self._clock.parameter))
        self._hint(HintKind.GATES)
        self._hint(HintKind.DUE)
        return version

    async def gates(self) -> Gates:
        return await read_gates(self._opened, self._sql, self._clock.parameter)
