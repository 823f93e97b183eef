"""What a handler does as a job: what runs, how it went last, and what comes next."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import msgspec

from duetime.clock import Instant, to_datetime
from duetime.errors import InvalidValue
from duetime.model.outcome import AttemptRecord, Outcome
from duetime.model.query import MAX_PAGE, Query
from duetime.model.task import State, TaskRecord
from duetime.store import Store

USUAL_UPCOMING = 20
WITH_ATTEMPTS = (State.SUCCEEDED, State.FAILED, State.CANCELLED)


class Activity(msgspec.Struct, frozen=True, kw_only=True):
    """What of a handler runs, how its last attempt went, and when the next task is due.

    `last_started_at` is of the attempt that began last; the other `last_…` are of the one that ended last: the worker that ran it, its
    outcome and its task. Of running tasks the thousand newest count, of those that wait for another try the twenty that are due next.
    `next_due_at` lies in the past while a task is due and has not started. What has never been is None.
    """

    running: int = 0
    last_started_at: datetime | None = None
    last_ended_at: datetime | None = None
    last_worker: str | None = None
    last_outcome: Outcome | None = None
    last_task: str | None = None
    next_due_at: datetime | None = None


async def read_activity(store: Store, handler: str, states: Mapping[State, int]) -> Activity:
    """Return what a handler does. `states` counts its tasks: where there are none, nobody looks for them."""
    running = await _some(store, handler, State.RUNNING, MAX_PAGE) if states[State.RUNNING] else []
    coming = await store.upcoming(handler, USUAL_UPCOMING)
    finished = [task for state in WITH_ATTEMPTS if states[state] for task in await _some(store, handler, state, 1) if task.attempt]
    tried = [task for task in coming if task.attempt]
    latest = max(finished, key=lambda task: task.finished_at or 0, default=None)
    ended: list[tuple[Instant, str, AttemptRecord]] = []
    for task in tried if latest is None else [*tried, latest]:
        found = await store.attempts(task.id, after=task.attempt - 1)
        ended += [(each.finished_at, task.id, each) for each in found if each.finished_at is not None]
    starts = [task.started_at for task in running] + [each.started_at for _, _, each in ended]
    began_at = max((each for each in starts if each is not None), default=None)
    activity = Activity(
        running=states[State.RUNNING],
        last_started_at=None if began_at is None else to_datetime(began_at),
        next_due_at=to_datetime(coming[0].due_at) if coming else None,
    )
    if not ended:
        return activity
    ended_at, task_id, last = max(ended, key=lambda each: each[0])
    return msgspec.structs.replace(
        activity, last_ended_at=to_datetime(ended_at), last_worker=last.worker, last_outcome=last.outcome, last_task=task_id
    )


async def _some(store: Store, handler: str, state: State, limit: int) -> list[TaskRecord]:
    return (await store.page(Query(handler=handler, states=(state,), limit=limit, brief=True))).items


def check_upcoming(limit: int) -> int:
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MAX_PAGE:
        raise InvalidValue(f"limit must be 1 to {MAX_PAGE:,}, got {limit!r}")
    return limit
