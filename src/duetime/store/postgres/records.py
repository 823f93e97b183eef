"""The only code that turns rows into records."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from duetime.clock import DAY, MILLISECOND, Instant
from duetime.ids import is_id
from duetime.model.task import ErrorInfo, State, TaskRecord, with_extras
from duetime.store.postgres.runner import Runner
from duetime.store.rows.extras import read_extras
from duetime.store.sql import Statements

_decode_error = msgspec.json.Decoder(ErrorInfo).decode
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\Z")


def write_json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def write_error(error: ErrorInfo | None) -> str | None:
    return None if error is None else write_json(error)


def write_detail(detail: bytes | None) -> str | None:
    return None if detail is None else detail.decode()


def read_detail(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def read_error(text: str | None) -> ErrorInfo | None:
    return None if text is None else _decode_error(text)


def is_uuid(text: str) -> bool:
    """Return whether the server takes a text as an id and returns it unchanged; anything else is the id of no task."""
    return _UUID.match(text) is not None


def known_form(ids: Iterable[str]) -> list[str]:
    """Return those ids that a task can have, each once."""
    return [task_id for task_id in dict.fromkeys(ids) if is_uuid(task_id)]


def since(ids: Iterable[str]) -> Instant:
    """Return an instant before which none of these tasks can have finished, so that older tables need not be opened.

    An id begins with the milliseconds of its submitting. A day is left for clocks that were ahead; an id of another
    kind says nothing.
    """
    return max(0, min(((int(task_id[:8] + task_id[9:13], 16) * MILLISECOND - DAY) if is_id(task_id) else 0 for task_id in ids), default=0))


def read_record(row: Sequence[Any]) -> TaskRecord:
    """Turn a row of `live_records` or `final_records` into a record."""
    (
        task_id, handler, collection, priority, payload, submitted_at, submitted_by, key, expires_at, timeout, retry, extras,
        schedule, planned_at, state, due_at, attempt, tries, crashes, cancelling, worker, started_at, finished_at,
        result, error, progress, progress_text, parked, deadline_at,
    ) = row  # fmt: skip
    record = TaskRecord(
        id=task_id,
        handler=handler,
        state=State(state),
        payload=payload.encode(),
        due_at=due_at,
        submitted_at=submitted_at,
        submitted_by=submitted_by,
        key=key,
        collection=collection or None,
        priority=priority,
        timeout=timeout,
        retry=None if retry is None else retry.encode(),
        expires_at=expires_at,
        schedule=schedule,
        planned_at=planned_at,
        attempt=attempt,
        tries=tries,
        crashes=crashes,
        cancelling=cancelling,
        parked=bool(parked),
        worker=worker,
        started_at=started_at,
        finished_at=finished_at,
        result=None if result is None else result.encode(),
        error=read_error(error),
        progress=progress,
        progress_text=progress_text or "",
        deadline_at=deadline_at,
    )
    return with_extras(record, read_extras(extras))


def live_tasks(sql: Statements, picked: str, *before: str) -> str:
    """Return the head of a statement in which `live_records` can be read; `picked` chooses the tasks, by the help of what comes before.

    Everything is read in one statement, because a task moves between tables and would be missed or met twice by two.
    """
    return "with " + ",\n".join([*before, f"picked as materialized (\n{picked}\n)", sql.live])


@functools.cache
def _by_id(sql: Statements) -> str:
    final = f"final as materialized (\n{sql.final_records}\n{sql.final_by_id}\n)"
    return f"{live_tasks(sql, sql.picked_ids, final)}\n{sql.live_records}\nunion all\nselect f.* from final as f"


async def records_by_id(run: Runner, sql: Statements, ids: Iterable[str]) -> dict[str, TaskRecord]:
    """Read tasks, live or final; a task that finished more than a day before its id was made is not found."""
    wanted = known_form(ids)
    return await _read(run, sql, wanted, since(wanted))


async def all_records_by_id(run: Runner, sql: Statements, ids: Iterable[str]) -> dict[str, TaskRecord]:
    """Read tasks however wrong the clock was that their ids were made by; what is not found at first costs a look into all tables."""
    wanted = known_form(ids)
    found = await _read(run, sql, wanted, since(wanted))
    missing = [task_id for task_id in wanted if task_id not in found]
    return found | await _read(run, sql, missing, 0) if since(missing) else found


async def _read(run: Runner, sql: Statements, ids: Sequence[str], finished_since: Instant) -> dict[str, TaskRecord]:
    if not ids:
        return {}
    return {row[0]: read_record(row) for row in await run.rows(_by_id(sql), [ids, finished_since])}
