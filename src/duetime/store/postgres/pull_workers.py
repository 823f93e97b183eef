"""Pull workers in the database: workers in other languages, whose beats a server writes."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from duetime.clock import Instant
from duetime.store.postgres.records import is_uuid
from duetime.store.postgres.runner import Runner
from duetime.store.pull_workers import PullWorker, RunningTask
from duetime.store.rows.extras import read_running_task
from duetime.store.sql import Statements

_decode_slots = msgspec.json.Decoder(dict[str, int]).decode


async def admit(run: Runner, sql: Statements, worker: PullWorker, now: Instant | None) -> None:
    slots = msgspec.json.encode(dict(worker.slots)).decode()
    await run.rows(sql.insert_pull_worker, [now, worker.id, worker.name, slots, worker.lease])


async def by_id(run: Runner, sql: Statements, id: str) -> PullWorker | None:
    rows = await run.rows(sql.pull_worker_by_id, [id])
    return PullWorker(id=id, name=rows[0][0], slots=_decode_slots(rows[0][1]), lease=rows[0][2]) if rows else None


async def renew(run: Runner, sql: Statements, id: str, now: Instant | None) -> bool:
    return bool(await run.rows(sql.renew_pull_worker, [now, id]))


async def holdings(run: Runner, sql: Statements, worker: str, ids: Sequence[str] | None) -> list[RunningTask]:
    rows = await run.rows(sql.holdings, [worker, None if ids is None else [id for id in ids if is_uuid(id)]])
    return [read_running_task(row) for row in rows]
