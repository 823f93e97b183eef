"""Named requests on PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from duetime.clock import Instant
from duetime.errors import StoreUnavailable
from duetime.store.postgres.runner import Runner
from duetime.store.requests import Decided, NamedRequest, Requested
from duetime.store.sql import Statements
from duetime.store.values import Added

MAX_RETRIES = 5


def columns(requested: Sequence[Requested]) -> list[Any]:
    """Return callers, keys and digests beside the columns of the tasks; null where a task has no request."""
    requests = [request for _, request in requested]
    return [
        [None if request is None else request.caller for request in requests],
        [None if request is None else request.key for request in requests],
        [None if request is None else request.digest for request in requests],
    ]


async def note(run: Runner, sql: Statements, requests: Sequence[NamedRequest], now: Instant | None) -> list[NamedRequest]:
    """Store requests whose key the caller has not used before, and return what is stored under each."""
    columns = [list(column) for column in zip(*map(_row, requests), strict=True)]
    for _ in range(MAX_RETRIES):
        rows = await run.rows(sql.insert_requests, [now, *columns])
        stored = {(row[0], row[1]): NamedRequest(*row) for row in rows}
        if len(stored) < len(requests):  # some were known, or came from somebody else at this very moment, for whom the insert has waited
            stored |= {(row[0], row[1]): NamedRequest(*row) for row in await run.rows(sql.requests_by_key, columns[:2])}
        if all((request.caller, request.key) in stored for request in requests):
            return [stored[request.caller, request.key] for request in requests]
        # one that the insert met was pruned before it was read: so it can be stored now
    raise StoreUnavailable("the requests under these keys come and go too fast; try again")


def _row(request: NamedRequest) -> tuple[str, str, str, str]:
    return request.caller, request.key, request.digest, request.task


async def correct(run: Runner, sql: Statements, decided: Decided, added: Sequence[Added]) -> None:
    """Let requests stand for the tasks that they were answered with, and forget those that were refused."""
    moved, forgotten = decided.corrected(added)
    if moved:
        rows = [(each.caller, each.key, each.task) for each in moved]
        await run.rows(sql.move_requests, [list(column) for column in zip(*rows, strict=True)])
    if forgotten:
        await run.rows(sql.forget_requests, [[each.caller for each in forgotten], [each.key for each in forgotten]])


async def prune(run: Runner, sql: Statements, before: Instant, limit: int) -> int:
    [[count]] = await run.rows(sql.delete_requests, [before, limit])
    return int(count)
