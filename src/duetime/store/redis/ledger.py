"""Tasks that were made in control's transactions, by schedules and by callers, on their way to the server.

They stand in control as pending tasks, where no worker looks for any: their commit is that of the schedule's step, or the caller's. Whoever
moves one adds it to the server under its id, and deletes it then; so a move that breaks off is repeated, and a repeat changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from duetime.model.query import Query
from duetime.model.task import NewTask, State, TaskRecord
from duetime.store.redis.database import refused
from duetime.store.redis.submit import Submitting, check_plain
from duetime.store.schedules import ScheduleWrite
from duetime.store.values import Added

MOVED_AT_ONCE = 500


class Ledger(Submitting):
    """What control has for the server."""

    async def write_schedules(self, writes: Sequence[ScheduleWrite], *, together: bool = False) -> list[bool]:
        for write in writes:
            if write.record is not None and write.record.spec.overlap.startswith(("queue", "cancel")):
                raise refused(f"schedules with overlap={write.record.spec.overlap!r}")
            check_plain(write.tasks)
        written = await self._control.write_schedules(writes, together=together)
        if any(write.tasks for write in writes):
            await self.move_ledger()
        return written

    async def prepare(self, tasks: Sequence[NewTask[object]]) -> None:
        check_plain(tasks)
        if any(task.key is not None for task in tasks):
            raise refused("keys for tasks that are submitted in a caller's transaction")
        await self._control.prepare(tasks)

    async def add_on(self, connection: object, tasks: Sequence[NewTask[object]]) -> Sequence[Added]:
        await self.prepare(tasks)
        return await self._control.add_on(connection, tasks)

    async def move_ledger(self) -> int:
        """Move all tasks that wait in control; return how many."""
        moved = 0
        while True:
            page = await self._control.page(Query(state=State.PENDING, limit=MOVED_AT_ONCE))
            if not page.items:
                return moved
            await self.add([_as_new(record) for record in page.items])
            await self._control.delete([record.id for record in page.items])
            moved += len(page.items)

    async def _moved(self, ids: Sequence[str]) -> bool:
        """Move what waits in control, if any of these tasks does; return whether one did."""
        if not ids or not any(record is not None for record in await self._control.get(ids)):
            return False
        await self.move_ledger()
        return True


def _as_new(record: TaskRecord) -> NewTask[object]:
    return NewTask(
        id=record.id,
        handler=record.handler,
        payload=record.payload,
        due_at=record.due_at,
        key=record.key,
        if_exists="keep",
        collection=record.collection,
        priority=record.priority,
        timeout=record.timeout,
        retry=record.retry,
        expires_at=record.expires_at,
        meta=record.meta,
        submitted_by=record.submitted_by,
        schedule=record.schedule,
        planned_at=record.planned_at,
        merged=record.merged,
    )
