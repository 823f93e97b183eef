"""Backfills: running a schedule's past occurrences, which of them and in which order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Literal, TypeAlias, get_args

import msgspec

from duetime.clock import Instant, to_datetime, to_instant
from duetime.errors import Conflict, InvalidValue
from duetime.model.occurrences import task_of
from duetime.model.rules import Plan
from duetime.model.schedule import ScheduleRecord, occurrence_id
from duetime.model.task import FINAL, Edge, NewTask, State, TaskRecord
from duetime.runtime.slices import off_loop
from duetime.store import Store

Existing: TypeAlias = Literal["skip", "failed", "all"]

MOST = 10_000
MOST_CONCURRENCY = 1_000
BATCH = 500
MOST_TIMES = 100  # backfills of one occurrence


class BackfillRequest(msgspec.Struct, frozen=True):
    """The range, what to do with occurrences that have a task already, and how many run at once."""

    start_at: Instant
    end_at: Instant
    existing: Existing
    concurrency: int


class Backfill(msgspec.Struct, frozen=True, kw_only=True):
    """What a backfill did, or would do.

    Of `occurrences` in the range, `tasks` were submitted, in the order of `planned`. `existing` were left out because they have a task
    already, `ahead` because the schedule itself has not reached them yet.
    """

    schedule: str
    occurrences: int
    existing: int
    ahead: int
    planned: list[datetime]
    tasks: list[str]
    dry_run: bool


class _Past(msgspec.Struct):
    """One occurrence, the state of its latest task, and the number of its next backfill."""

    planned_at: Instant
    latest: State | None = None
    number: int = 0


def read(start: datetime, end: datetime, existing: str, concurrency: int) -> BackfillRequest:
    """Check the arguments of a backfill."""
    start_at, end_at = to_instant(start, "start"), to_instant(end, "end")
    if end_at < start_at:
        raise InvalidValue(f"end must not lie before start, got start {start.isoformat()} and end {end.isoformat()}")
    if existing not in get_args(Existing):
        raise InvalidValue(f"existing must be one of {', '.join(get_args(Existing))}, got {existing!r}")
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or not 1 <= concurrency <= MOST_CONCURRENCY:
        raise InvalidValue(f"concurrency must be 1 to {MOST_CONCURRENCY:,}, got {concurrency!r}")
    return BackfillRequest(start_at, end_at, existing, concurrency)  # type: ignore[arg-type]


async def run(store: Store, record: ScheduleRecord, plan: Plan, request: BackfillRequest, *, user: str, dry_run: bool) -> Backfill:
    """Submit the tasks in batches. Their ids derive from the schedule, so repeating a backfill repeats no task."""
    past = await off_loop(planned_between, plan, request, record.name)
    ahead = sum(each.planned_at > record.state.cursor for each in past)
    past = past[: len(past) - ahead]
    await _find_latest(store, record, past)
    chosen = [each for each in past if wanted(each.latest, request.existing)]
    tasks = await off_loop(tasks_of, record, plan, chosen, request.concurrency, now=store.now(), user=user)
    if not dry_run:
        for batch in _batches(tasks):
            await store.add(batch)
    return Backfill(
        schedule=record.name,
        occurrences=len(past) + ahead,
        existing=len(past) - len(chosen),
        ahead=ahead,
        planned=[to_datetime(each.planned_at) for each in chosen],
        tasks=[task.id for task in tasks],
        dry_run=dry_run,
    )


def planned_between(plan: Plan, request: BackfillRequest, name: str) -> list[_Past]:
    """Return the occurrences of a range; raise InvalidValue if there are too many."""
    found = plan.between(request.start_at - 1, request.end_at, MOST + 1)
    if len(found) > MOST:
        last = to_datetime(found[MOST - 1]).isoformat()
        raise InvalidValue(f"{name} has more than {MOST:,} occurrences in this range; backfill it in parts, the first one until {last}")
    if not found and plan.waits:
        raise InvalidValue(f"{name} waits for the end of its last run, so nothing was planned in the past; use trigger to run it now")
    return [_Past(planned_at) for planned_at in found]


def wanted(latest: State | None, existing: Existing) -> bool:
    """Return whether to run an occurrence, given the state of its latest task."""
    if latest is None:
        return True
    if latest not in FINAL or existing == "skip":
        return False
    return existing == "all" or latest is not State.SUCCEEDED


def tasks_of(
    record: ScheduleRecord, plan: Plan, chosen: Sequence[_Past], concurrency: int, *, now: Instant, user: str
) -> list[NewTask[object]]:
    """Make the tasks. Each waits for the end of the one `concurrency` before it."""
    tasks: list[NewTask[object]] = []
    for index, each in enumerate(chosen):
        edges = (Edge(tasks[index - concurrency].id, "end"),) if index >= concurrency else ()
        near = chosen[index - 1].planned_at if index else None
        past, number = each.planned_at, each.number
        tasks.append(task_of(record, plan, past, kind="backfill", number=number, due_at=now, edges=edges, submitted_by=user, near=near))
    return tasks


async def _find_latest(store: Store, record: ScheduleRecord, past: Sequence[_Past]) -> None:
    """Find the latest task of each occurrence: its own, or one of an earlier backfill. Pruned tasks count as never run."""
    for each, task in zip(past, await _get(store, [occurrence_id(record.id, each.planned_at) for each in past]), strict=True):
        each.latest = None if task is None else task.state
    open_ones = list(past)
    for number in range(MOST_TIMES):
        if not open_ones:
            return
        ids = [occurrence_id(record.id, each.planned_at, "backfill", number) for each in open_ones]
        found = await _get(store, ids)
        for each, task in zip(open_ones, found, strict=True):
            if task is not None:
                each.latest, each.number = task.state, number + 1
        open_ones = [each for each, task in zip(open_ones, found, strict=True) if task is not None]
    if open_ones:
        raise Conflict(
            f"an occurrence of {record.name} has been backfilled {MOST_TIMES} times already; submit a task of its handler instead"
        )


async def _get(store: Store, ids: Sequence[str]) -> list[TaskRecord | None]:
    found: list[TaskRecord | None] = []
    for start in range(0, len(ids), BATCH):
        found += await store.get(ids[start : start + BATCH])
    return found


def _batches(tasks: Sequence[NewTask[object]]) -> Iterable[Sequence[NewTask[object]]]:
    return (tasks[start : start + BATCH] for start in range(0, len(tasks), BATCH))
