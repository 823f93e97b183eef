"""Pull workers in the file: their beats are stored in their rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence

import msgspec

from duetime.clock import Instant
from duetime.model.claim_order import ClaimOrder
from duetime.model.pulled import bounded, orders
from duetime.store.pull_workers import MOST_CLAIMED_BYTES, PullWorker, RunningTask
from duetime.store.rows.extras import read_running_task
from duetime.store.sqlite import work
from duetime.store.sqlite.database import OpenFile
from duetime.store.sqlite.limits import left_of_limits
from duetime.store.sqlite.records import write_json
from duetime.store.sqlite.statements import SQL
from duetime.store.values import (
    Claim,
)

_decode_slots = msgspec.json.Decoder(dict[str, int]).decode
_decode_declared = msgspec.json.Decoder(dict[str, str]).decode


def register(connection: sqlite3.Connection, worker: PullWorker, now: Instant) -> None:
    slots = msgspec.json.encode(dict(worker.slots)).decode()
    declared = msgspec.json.encode(dict(worker.declared)).decode()
    values = {"id": worker.id, "name": worker.name, "slots": slots, "lease": worker.lease, "now": now, "declared": declared}
    connection.execute(SQL.insert_pull_worker, values)


def by_id(connection: sqlite3.Connection, id: str) -> PullWorker | None:
    row = connection.execute(SQL.pull_worker_by_id, (id,)).fetchone()
    if row is None:
        return None
    name, slots, lease, declared, draining = row
    return PullWorker(
        id=id, name=name, slots=_decode_slots(slots), lease=lease, declared=_decode_declared(declared), draining=bool(draining)
    )


def renew(connection: sqlite3.Connection, id: str, now: Instant) -> bool:
    return connection.execute(SQL.renew_pull_worker, (now, id)).rowcount > 0


def beat(connection: sqlite3.Connection, id: str) -> int | None:
    """Return a pull worker's beat; None if none has this id."""
    row = connection.execute(SQL.pull_worker_beat, (id,)).fetchone()
    return None if row is None else int(row[0])


def hand_out_once(
    connection: sqlite3.Connection,
    worker: str,
    number: int,
    wants: Mapping[str, int],
    total: int,
    now: Instant,
    order: ClaimOrder,
    admit: work.Admit,
) -> Claim:
    """Claim, unless the worker runs attempts under this number; in one write transaction, so that no repeat comes in between."""
    if connection.execute(SQL.claim_in_use, (worker, number)).fetchone() is not None:
        return Claim([], now, None)
    limits = left_of_limits(connection, wants, now)
    for tried in orders(wants, limits, order.rotation(wants)):
        allowed = bounded(wants, total, limits, tried)
        claim = work.hand_out(connection, worker, number, allowed, total, 0, now, order, MOST_CLAIMED_BYTES, admit=admit)
        if claim.tasks:
            break
    return claim


def running_tasks(connection: sqlite3.Connection, worker: str, ids: Sequence[str] | None, payloads: bool) -> list[RunningTask]:
    among = "" if ids is None else SQL.running_tasks_among
    values = {"worker": worker, "ids": write_json(list(ids or ())), "payloads": payloads}
    rows = connection.execute(f"{SQL.running_tasks_head} {among} {SQL.running_tasks_order}", values)
    return [read_running_task(row) for row in rows]


class PullWorkers(OpenFile):
    """Where pull workers live."""

    async def register_pull_worker(self, worker: PullWorker) -> None:
        await self._write(lambda connection: register(connection, worker, self._clock.now()))

    async def pull_worker(self, id: str) -> PullWorker | None:
        return await self._read(lambda connection: by_id(connection, id))

    async def renew_pull_worker(self, id: str) -> bool:
        return await self._write(lambda connection: renew(connection, id, self._clock.now()))

    async def claim_for(self, worker: str, claim: int, wants: Mapping[str, int], total: int) -> Claim:
        return await self._write(
            lambda connection: hand_out_once(connection, worker, claim, wants, total, self._clock.now(), self._claim_order, self._admit),
            urgent=True,
        )

    async def running_tasks(self, worker: str, ids: Sequence[str] | None = None, *, payloads: bool = True) -> list[RunningTask]:
        if ids is not None and not ids:
            return []
        return await self._read(lambda connection: running_tasks(connection, worker, ids, payloads))
