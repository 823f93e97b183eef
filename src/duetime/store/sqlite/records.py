"""The only code that turns rows into records."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from duetime.model.task import ErrorInfo, State, TaskRecord, with_extras
from duetime.store.rows.extras import read_extras
from duetime.store.sqlite.statements import SQL

PARKED = ("declaration", "limit")  # why a held task waits that is parked

_decode_error = msgspec.json.Decoder(ErrorInfo).decode


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


def bytes_of(row: Sequence[Any]) -> int:
    """Return how large a row of the statement `record` is: payload, result and error."""
    return len(row[2]) + len(row[20] or "") + len(row[21] or "")


def read_record(row: Sequence[Any]) -> TaskRecord:
    """Turn a row of the statement `record` and its joins into a record."""
    (
        (_, task_id, payload, due_at, submitted_at, submitted_by, key, expires_at, timeout, retry, extras, schedule, planned_at),
        (final, attempt, tries, crashes, worker, started_at, finished_at, result, error),
        (handler, collection, priority),
        (d_due, d_attempt, d_tries, d_crashes),
        (h_due, h_attempt, h_tries, h_crashes, h_reason),
        (r_due, r_attempt, r_tries, r_crashes, r_worker, claimed_at, cancelling, progress, progress_text, report_at),
    ) = row[:13], row[13:22], row[22:25], row[25:29], row[29:34], row[34:]
    if final is not None:
        state = State(final)
    elif r_attempt is not None:
        state, due_at, attempt, tries, crashes = State.RUNNING, r_due, r_attempt, r_tries, r_crashes
        worker, started_at = r_worker or None, max(claimed_at, r_due)
    elif h_attempt is not None:
        state = State.PENDING if h_reason in PARKED else State.BLOCKED
        due_at, attempt, tries, crashes = h_due, h_attempt, h_tries, h_crashes
    else:
        state, due_at, attempt, tries, crashes = State.PENDING, d_due if d_due is not None else due_at, d_attempt, d_tries, d_crashes
    record = TaskRecord(
        id=task_id,
        handler=handler,
        state=state,
        payload=payload,
        due_at=due_at,
        submitted_at=submitted_at,
        submitted_by=submitted_by,
        key=key,
        collection=collection or None,
        priority=priority,
        timeout=timeout,
        retry=retry,
        expires_at=expires_at,
        schedule=schedule,
        planned_at=planned_at,
        attempt=attempt or 0,
        tries=tries or 0,
        crashes=crashes or 0,
        cancelling=bool(cancelling),
        parked=h_reason in PARKED,
        worker=worker,
        started_at=started_at,
        finished_at=finished_at,
        result=result,
        error=read_error(error),
        progress=progress,
        progress_text=progress_text or "",
        deadline_at=report_at,
    )
    return with_extras(record, read_extras(extras))


def records_by_id(connection: sqlite3.Connection, ids: Iterable[str]) -> dict[str, TaskRecord]:
    rows = connection.execute(f"{SQL.record}\n{SQL.from_all}\n{SQL.where_ids}", (write_json(list(ids)),))
    return {row[1]: read_record(row) for row in rows}
