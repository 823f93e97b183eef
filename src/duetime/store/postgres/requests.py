"""Named requests on PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence

from duetime.clock import Instant
from duetime.errors import StoreUnavailable
from duetime.store.postgres.runner import Runner
from duetime.store.postgres.submit import Submission, Submitting
from duetime.store.requests import NamedRequest, Requested, decide
from duetime.store.sql import Statements
from duetime.store.values import Added, HintKind

MAX_RETRIES = 5


async def note(run: Runner, sql: Statements, requests: Sequence[NamedRequest], now: Instant | None) -> list[NamedRequest]:
    """Store requests whose key the caller has not used before, and return what is stored under each."""
    columns = [list(column) for column in zip(*map(_row, requests), strict=True)]
    for _ in range(MAX_RETRIES):
        rows = await run.rows(sql.insert_requests, [now, *columns])
        stored = {(row[0], row[1]): NamedRequest(*row) for row in rows}
        if len(stored) < len(requests):  # some were stored before, or by a concurrent transaction, for which the insert has waited
            stored |= {(row[0], row[1]): NamedRequest(*row) for row in await run.rows(sql.requests_by_key, columns[:2])}
        if all((request.caller, request.key) in stored for request in requests):
            return [stored[request.caller, request.key] for request in requests]
        # one that the insert met was pruned before it was read: so it can be stored now
    raise StoreUnavailable("the requests under these keys come and go too fast; try again")


def _row(request: NamedRequest) -> tuple[str, str, str, str]:
    return request.caller, request.key, request.digest, request.task


async def correct(run: Runner, sql: Statements, moved: Sequence[NamedRequest], forgotten: Sequence[NamedRequest]) -> None:
    """Point requests at the tasks that they were answered with, and remove those that were refused."""
    if moved:
        rows = [(each.caller, each.key, each.task) for each in moved]
        await run.rows(sql.move_requests, [list(column) for column in zip(*rows, strict=True)])
    if forgotten:
        await run.rows(sql.forget_requests, [[each.caller for each in forgotten], [each.key for each in forgotten]])


class Requests(Submitting):
    """Where named requests live. A request is stored in the transaction that adds its task."""

    async def add_requested(self, requested: Sequence[Requested]) -> Sequence[Added | NamedRequest]:
        if not requested:
            return []
        tasks = [task for task, _ in requested]
        await self.prepare(tasks)
        added = await self._add_at_once(tasks, [request for _, request in requested]) if self._may_all_be_new(tasks) else None
        return await self._with_lanes(lambda: self._add_requested_carefully(requested)) if added is None else added

    async def _add_requested_carefully(self, requested: Sequence[Requested]) -> list[Added | NamedRequest]:
        """Add tasks with their requests, of which some may be known.

        All requests come before all tasks, as everywhere, so that no two transactions wait for each other.
        """

        async def job(run: Runner) -> tuple[list[Added | NamedRequest], Submission]:
            named = [request for _, request in requested if request is not None]
            decided = decide(requested, await note(run, self._sql, named, self._clock.parameter) if named else [])
            submission = Submission(run, self._sql, self._lanes, self._clock.parameter, lock_parents=True)
            added = await submission.add(decided.tasks)
            await correct(run, self._sql, *decided.corrected(added))
            return decided.answered(added), submission

        answers, submission = await self._opened.transaction(job)
        self._keys.learn(submission.named, met=submission.met_keys)
        if submission.earliest is not None:
            self._hint(HintKind.DUE, submission.earliest)
        return answers

    async def note_requests(self, requests: Sequence[NamedRequest]) -> list[NamedRequest]:
        if not requests:
            return []
        return await self._opened.transaction(lambda run: note(run, self._sql, requests, self._clock.parameter))

    async def correct_requests(self, moved: Sequence[NamedRequest], forgotten: Sequence[NamedRequest]) -> None:
        if moved or forgotten:
            await self._opened.transaction(lambda run: correct(run, self._sql, moved, forgotten))

    async def prune_requests(self, before: Instant, limit: int) -> int:
        [[count]] = await self._opened.rows(self._sql.delete_requests, [before, limit])
        return int(count)
