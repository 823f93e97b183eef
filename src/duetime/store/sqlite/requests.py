"""Named requests in the file."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from duetime.clock import Instant
from duetime.store.requests import NamedRequest, Requested, decide
from duetime.store.sqlite.database import OpenFile
from duetime.store.sqlite.runner import SyncRunner, drive
from duetime.store.sqlite.statements import NEVER, SQL
from duetime.store.sqlite.submit import Submission
from duetime.store.values import Added, HintKind


def note(connection: sqlite3.Connection, requests: Sequence[NamedRequest], now: Instant) -> list[NamedRequest]:
    """Store requests whose key the caller has not used before, and return what is stored under each."""
    stored = []
    for request in requests:
        connection.execute(SQL.insert_request, (request.caller, request.key, request.digest, request.task, now))
        digest, task, met = connection.execute(SQL.request_by_key, (request.caller, request.key)).fetchone()
        stored.append(NamedRequest(request.caller, request.key, digest, task, bool(met)))
    return stored


def correct(connection: sqlite3.Connection, moved: Sequence[NamedRequest], forgotten: Sequence[NamedRequest]) -> None:
    """Point requests at the tasks that they were answered with, and remove those that were refused."""
    connection.executemany(SQL.move_request, [(each.task, each.caller, each.key) for each in moved])
    connection.executemany(SQL.delete_request, [(each.caller, each.key) for each in forgotten])


def prune(connection: sqlite3.Connection, before: Instant, limit: int) -> int:
    return connection.execute(SQL.delete_requests, (before, limit)).rowcount


class Requests(OpenFile):
    """Where named requests live."""

    async def add_requested(self, requested: Sequence[Requested]) -> list[Added | NamedRequest]:
        if not requested:
            return []

        def job(connection: sqlite3.Connection) -> tuple[list[Added | NamedRequest], Instant]:
            now = self._clock.now()
            decided = decide(requested, note(connection, [request for _, request in requested if request is not None], now))
            submission = Submission(SyncRunner(connection), now)
            added = drive(submission.add(decided.tasks))
            correct(connection, *decided.corrected(added))
            return decided.answered(added), submission.earliest

        answers, earliest = await self._write(job)
        self._hint(HintKind.DUE, None if earliest == NEVER else earliest)
        return answers

    async def note_requests(self, requests: Sequence[NamedRequest]) -> list[NamedRequest]:
        return await self._write(lambda connection: note(connection, requests, self._clock.now())) if requests else []

    async def correct_requests(self, moved: Sequence[NamedRequest], forgotten: Sequence[NamedRequest]) -> None:
        if moved or forgotten:
            await self._write(lambda connection: correct(connection, moved, forgotten))

    async def prune_requests(self, before: Instant, limit: int) -> int:
        return await self._write(lambda connection: prune(connection, before, limit))
