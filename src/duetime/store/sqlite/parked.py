"""Parked tasks: their payload fits no code that has met them, so they wait for a worker that has other code."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any

from duetime.clock import Instant
from duetime.model.gate import GateAction, Gates
from duetime.store.sqlite.database import OpenFile
from duetime.store.sqlite.gates import read_gates
from duetime.store.sqlite.records import write_json
from duetime.store.sqlite.statements import SQL
from duetime.store.sqlite.work import put_due, read_claimed
from duetime.store.values import Claim, may_fit

AT_ONCE = 100  # tasks of one claim: their payloads may be long


def unpark(connection: sqlite3.Connection, task: int, now: Instant) -> None:
    """Let a task wait for time alone if it is parked, because it has another payload: what refused it counts no more."""
    for lane, due_at, *counts in connection.execute(SQL.take_parked, (task,)).fetchall():
        put_due(connection, [(lane, task, due_at, *counts)], now)
        connection.execute(SQL.forget_refusals, (task,))


def count_anew(connection: sqlite3.Connection, task: int, now: Instant) -> None:
    """Let a task that waits under a limit be claimed again: its partition or its due time may be another one now."""
    for lane, due_at, *counts in connection.execute(SQL.take_limited, (task,)).fetchall():
        put_due(connection, [(lane, task, due_at, *counts)], now)


def due_under(connection: sqlite3.Connection, gates: Gates, action: GateAction, limit: int, now: Instant) -> list[Any]:
    """Return due parked tasks under closed gates of one action: task, attempt, tries, crashes."""
    found: list[Any] = []
    for lane, handler, collection in connection.execute(SQL.parked_lanes).fetchall():
        gate = gates.holding(handler, collection or None, now)
        if gate is not None and gate.action is action and len(found) < limit:
            found += connection.execute(SQL.parked_in, (lane, now, limit - len(found))).fetchall()
    return found


def _fitting(connection: sqlite3.Connection, declared: Mapping[str, str], wants: Mapping[str, int], now: Instant) -> list[int]:
    """Return the parked tasks that a worker may have: as many as it wants, at most AT_ONCE, none under a closed gate."""
    gates = read_gates(connection, now)
    left, chosen = dict(wants), list[int]()
    for lane, handler, collection, refused in connection.execute(SQL.parked_kinds).fetchall():
        limit = min(left.get(handler, 0), AT_ONCE - len(chosen))
        if limit <= 0 or not may_fit(declared.get(handler), refused) or gates.holding(handler, collection or None, now) is not None:
            continue
        rows = connection.execute(SQL.parked_of, {"lane": lane, "refused": refused, "now": now, "limit": limit}).fetchall()
        chosen += [task for (task,) in rows]
        left[handler] -= len(rows)
    return chosen


class Parking(OpenFile):
    """How parked tasks go on."""

    async def claim_parked(self, worker: str, claim: int, declared: Mapping[str, str], wants: Mapping[str, int]) -> Claim:
        now = self._clock.now()
        # a look first: it waits for no writer, and mostly there is nothing
        if not await self._read(lambda connection: _fitting(connection, declared, wants, now)):
            return Claim([], now, None)

        def job(connection: sqlite3.Connection) -> Claim:
            now = self._clock.now()
            known = connection.execute(SQL.worker_may_claim, (worker,)).fetchone()
            chosen = _fitting(connection, declared, wants, now) if known is not None else []
            counted = [task for task in chosen if connection.execute(SQL.lane_of, (task,)).fetchone()[0] in self._counted.usages]
            for task in counted:  # a limit says whether it may start, at a claim
                unpark(connection, task, now)
            chosen = [task for task in chosen if task not in counted]
            tasks = write_json(chosen)
            connection.execute(SQL.claim_parked, {"worker": worker, "claim": claim, "now": now, "tasks": tasks})
            connection.execute(SQL.delete_held, (tasks,))
            return Claim(read_claimed(connection, chosen, now), now, None)

        return await self._write(job)
