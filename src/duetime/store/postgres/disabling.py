"""Streaks of failures in the database, and the automatic gates that come of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from duetime.clock import SECOND, Instant
from duetime.model.disabling import Observed, Streak, judge
from duetime.model.gate import Gate
from duetime.store.disabling import Probe, due_probe, entry_of
from duetime.store.postgres.database import OpenSchema
from duetime.store.postgres.gates import next_version, read_gates, write_gate
from duetime.store.postgres.runner import Runner
from duetime.store.rows.access import audit_row
from duetime.store.values import HintKind


class TargetWatching(OpenSchema):
    """Where streaks live, and the probes of automatic gates."""

    async def observe(self, worker: str, observed: Sequence[Observed]) -> bool:
        if await self._changes_nothing(observed):
            return False

        async def job(run: Runner) -> bool:
            await run.rows(self._sql.lock_gates)
            return any([await self._observe(run, worker, each) for each in observed])

        changed = await self._opened.transaction(job)
        if changed:
            self._hint(HintKind.GATES)
            self._hint(HintKind.DUE)
        return changed

    async def _changes_nothing(self, observed: Sequence[Observed]) -> bool:
        """Return whether nothing was seen but successes, and there is nothing that they could end."""
        if any(each.failures or each.unavailable for each in observed):
            return False
        gates = await read_gates(self._opened, self._sql, self._clock.parameter)
        if any(gate.automatic for gate in gates):
            return False
        return not any([await self._streak(self._opened, each) for each in observed])

    async def _observe(self, run: Runner, worker: str, observed: Observed) -> bool:
        now, key = self._clock.now(), [observed.handler, observed.collection or ""]
        gates = await read_gates(run, self._sql, self._clock.parameter)
        change = judge(observed, await self._streak(run, observed), gates, now)
        if change.streak is None:
            await run.rows(self._sql.delete_streak, key)
        else:
            streak = change.streak
            await run.rows(self._sql.put_streak, [*key, streak.failures, streak.since_at, streak.last])
        if change.probe_at is not None:
            holding = gates.holding(observed.handler, observed.collection, now)
            await run.rows(self._sql.move_probe, [*key, None if holding is None else holding.probe_at, change.probe_at])
        if change.close is not None:
            await run.rows(self._sql.delete_gate, key)
            await write_gate(run, self._sql, change.close)
        elif change.open is not None:
            await run.rows(self._sql.delete_gate, key)
        entry = entry_of(worker, change, now)
        if entry is None:
            return False
        await next_version(run, self._sql)
        await run.rows(self._sql.insert_audit, [[column] for column in audit_row(entry)])
        return True

    async def _streak(self, run: Runner, observed: Observed) -> Streak | None:
        rows = await run.rows(self._sql.streak, [observed.handler, observed.collection or ""])
        return Streak(*rows[0]) if rows else None

    async def take_probe(self, handlers: Collection[str]) -> Probe:
        gates, now = await read_gates(self._opened, self._sql, self._clock.parameter), self._clock.now()
        due = due_probe(gates, handlers, now)
        if due.gate is None:
            return due
        moved = msgspec.structs.replace(due.gate, probe_at=now + round((due.gate.probe_every or 0) * SECOND))
        won = await self._move(due.gate, moved.probe_at)
        return Probe(moved if won else None, moved.probe_at)

    async def put_off_probe(self, gate: Gate, probe_at: Instant) -> None:
        await self._move(gate, probe_at)

    async def _move(self, gate: Gate, probe_at: Instant | None) -> bool:
        return bool(await self._opened.rows(self._sql.move_probe, [gate.handler, gate.collection or "", gate.probe_at, probe_at]))
