"""Named requests on PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence

from duetime.clock import Instant
from duetime.store.postgres.runner import Runner
from duetime.store.requests import NamedRequest
from duetime.store.sql import Statements


async def note(run: Runner, sql: Statements, requests: Sequence[NamedRequest], now: Instant | None) -> list[NamedRequest]:
    columns = [list(column) for column in zip(*map(_row, requests), strict=True)]
    rows = await run.rows(sql.insert_requests, [now, *columns])
    stored = {(row[0], row[1]): NamedRequest(*row) for row in rows}
    if len(stored) < len(requests):  # some were known, or came from somebody else at this very moment, for whom the insert has waited
        stored |= {(row[0], row[1]): NamedRequest(*row) for row in await run.rows(sql.requests_by_key, columns[:2])}
    return [stored[request.caller, request.key] for request in requests]


def _row(request: NamedRequest) -> tuple[str, str, str, str]:
    return request.caller, request.key, request.digest, request.task


async def prune(run: Runner, sql: Statements, before: Instant, limit: int) -> int:
    [[count]] = await run.rows(sql.delete_requests, [before, limit])
    return int(count)
