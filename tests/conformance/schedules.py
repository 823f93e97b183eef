"""Small builders of schedules: a record, a write, the task of an occurrence, a skip."""

from __future__ import annotations

from typing import Any

import msgspec

from duetime.clock import Instant
from duetime.model.rules import Every, Rule
from duetime.model.schedule import Pause, ScheduleRecord, ScheduleSpec, ScheduleState, Skip, SkipReason, occurrence_id
from duetime.model.task import NewTask
from duetime.store import Store
from duetime.store.schedules import ScheduleWrite
from tests.conformance.build import new_task

EVERY_MINUTE = Every(60)
WHOLE_STORE = 100_000


def schedule(
    name: str,
    next_at: Instant | None = None,
    *,
    handler: str = "work",
    collection: str | None = None,
    rule: Rule = EVERY_MINUTE,
    paused: bool = False,
    **parts: Any,
) -> ScheduleRecord:
    """Make a record; its version is wrong on purpose, because the store counts."""
    state = ScheduleState(cursor=1, paused=Pause(1, "ann", "stock taking") if paused else None)
    spec = ScheduleSpec(handler=handler, rule=rule, collection=collection)
    return ScheduleRecord(
        **{"name": name, "id": f"id of {name}", "version": 99, "revision": 1, "spec": spec, "state": state, "next_at": next_at, **parts}
    )


def new(name: str, next_at: Instant | None = None, **parts: Any) -> ScheduleWrite:
    """Make the write of a schedule that is not there yet."""
    return ScheduleWrite(name=name, expected=0, record=schedule(name, next_at, **parts))


def again(record: ScheduleRecord, **changes: Any) -> ScheduleWrite:
    """Make the next write of a stored schedule."""
    return ScheduleWrite(name=record.name, expected=record.version, record=msgspec.structs.replace(record, **changes))


def removal(record: ScheduleRecord) -> ScheduleWrite:
    return ScheduleWrite(name=record.name, expected=record.version, record=None)


def bringing(write: ScheduleWrite, *tasks: NewTask[object], skips: tuple[Skip, ...] = ()) -> ScheduleWrite:
    """Let a write come with tasks and skips."""
    return msgspec.structs.replace(write, tasks=tasks, skips=skips)


def occurrence(name: str, planned_at: Instant, handler: str = "work", **options: Any) -> NewTask[object]:
    """Make the task of a schedule's occurrence."""
    return new_task(
        handler, id=occurrence_id(f"id of {name}", planned_at), schedule=name, planned_at=planned_at, due_at=planned_at, **options
    )


def skip(name: str, planned_at: Instant, at: Instant | None = None, **parts: Any) -> Skip:
    values = {"until_at": planned_at, "count": 1, "reason": SkipReason.MISSED, **parts}
    return Skip(schedule=name, planned_at=planned_at, at=planned_at if at is None else at, **values)


async def put(store: Store, *writes: ScheduleWrite) -> None:
    """Write schedules that must fit."""
    assert await store.write_schedules(writes) == [True] * len(writes)


async def stored(store: Store, name: str) -> ScheduleRecord:
    """Read one schedule that must be there."""
    [record] = await store.schedules([name])
    assert record is not None
    return record


async def due_names(store: Store, *closed: tuple[str, str | None], limit: int = WHOLE_STORE) -> list[str]:
    return [record.name for record in (await store.due_schedules(limit, closed)).records]
