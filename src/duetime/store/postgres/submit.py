"""Adding tasks: on our own connection, or inside a caller's transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from duetime.clock import DAY, LATEST, Instant
from duetime.errors import InvalidValue, TaskNotFound
from duetime.model.lifecycle import unmet
from duetime.model.task import NewTask, State, TaskRecord, accepted, due_of, expiry_of
from duetime.store.postgres.lanes import Lanes
from duetime.store.postgres.records import records_by_id, write_error, write_meta
from duetime.store.postgres.runner import Runner
from duetime.store.protocol import Added, AddVerdict
from duetime.store.sql import Statements

TURNS = 5


def is_plain(tasks: Sequence[NewTask[object]]) -> bool:
    """Tell whether tasks can only conflict with what has the same id, which is rare."""
    return not any(task.key is not None or task.edges for task in tasks)


def wishes(tasks: Sequence[NewTask[object]], lanes: Lanes, now: Instant | None, *, strict: bool) -> list[Any]:
    """Give the parameters of the statement `add`; a column in which no task has anything is one null."""
    least = min(task.id for task in tasks)
    return [
        now,
        strict,
        least,
        # nothing finishes a day before it was submitted, however wrong the clock was that its id was made by
        (UUID(least).int >> 80) * 1_000 - DAY,
        [task.id for task in tasks],
        [lanes[task.handler, task.collection or "", task.priority].id for task in tasks],
        [task.handler for task in tasks],
        [task.payload.decode() for task in tasks],
        _column(tasks, lambda task: task.due_at),
        _column(tasks, lambda task: task.delay or None),
        [task.submitted_by for task in tasks],
        _column(tasks, lambda task: task.key),
        _column(tasks, lambda task: task.expires_at),
        _column(tasks, lambda task: task.expires_in),
        _column(tasks, lambda task: task.timeout),
        _column(tasks, lambda task: None if task.retry is None else task.retry.decode()),
        _column(tasks, lambda task: write_meta(task.meta)),
        _column(tasks, lambda task: task.schedule),
        _column(tasks, lambda task: task.planned_at),
    ]


def _column(tasks: Sequence[NewTask[object]], value: Callable[[NewTask[object]], Any]) -> list[Any] | None:
    column = [value(task) for task in tasks]
    return None if all(part is None for part in column) else column


def check_due(tasks: Sequence[NewTask[object]], now: Instant) -> None:
    for task in tasks:
        if task.delay and task.due_at is None and now + task.delay > LATEST:
            due_of(task, now)


def stored_now(tasks: Sequence[NewTask[object]], now: Instant) -> list[Added]:
    """Give the answers for tasks that were all new."""
    return [Added(AddVerdict.ADDED, accepted(task, State.PENDING, now, due_of(task, now))) for task in tasks]


class Submission:
    """One call of `add` inside a transaction, in which some tasks may meet others."""

    def __init__(self, run: Runner, sql: Statements, lanes: Lanes, now: Instant | None, *, lock_parents: bool) -> None:
        self._run = run
        self._sql = sql
        self._lanes = lanes
        self._given = now
        self._now: Instant = 0
        self._lock_parents = lock_parents
        self._answers: dict[int, Added] = {}
        self.earliest: Instant | None = None

    async def add(self, tasks: Sequence[NewTask[object]]) -> list[Added]:
        """Add all; what could meet an earlier task of the same call waits until that is stored."""
        [[_, self._now]] = await self._run.rows(self._sql.begin_adding, [self._given])
        for batch in _batches(tasks):
            if tasks[batch[0]].edges:
                for index in batch:
                    self._answers[index] = await self._add_child(tasks[index])
            else:
                await self._add_batch([(index, tasks[index]) for index in batch])
        return [self._answers[index] for index in range(len(tasks))]

    async def _add_batch(self, batch: Sequence[tuple[int, NewTask[object]]]) -> None:
        # keys in one order everywhere: two transactions that add the same ones wait for each other instead of locking up
        batch = sorted(batch, key=lambda entry: (entry[1].handler, entry[1].key or ""))
        tasks = [task for _, task in batch]
        [[_, added]] = await self._run.rows(self._sql.add, wishes(tasks, self._lanes, self._now, strict=False))
        stored = None if added is None else set(added)
        for index, task in batch:
            if stored is None or task.id in stored:
                self._answers[index] = self._added(task)
            else:
                self._answers[index] = await self._meet(task)

    def _added(self, task: NewTask[object]) -> Added:
        due_at = due_of(task, self._now)
        self._note(due_at)
        return Added(AddVerdict.ADDED, accepted(task, State.PENDING, self._now, due_at))

    def _note(self, due_at: Instant) -> None:
        position = max(self._now, due_at)
        self.earliest = position if self.earliest is None else min(self.earliest, position)

    async def _meet(self, task: NewTask[object]) -> Added:
        """Answer a wish that could not be stored: its id is known, or its key is held."""
        for _ in range(TURNS):
            known = await records_by_id(self._run, self._sql, [task.id])
            if task.id in known:
                return Added(AddVerdict.REPEATED, known[task.id])
            holder = await self._run.rows(self._sql.key_holder, [task.handler, task.key])
            if holder:
                answer = await self._meet_holder(task, holder[0][0])
                if answer is not None:
                    return answer
            # whoever held the key has ended meanwhile
            [[_, added]] = await self._run.rows(self._sql.add, wishes([task], self._lanes, self._now, strict=False))
            if added is None:
                return self._added(task)
        raise InvalidValue(f"the key {task.key!r} of handler {task.handler} changes hands too fast; try again")

    async def _meet_holder(self, task: NewTask[object], holder: str) -> Added | None:
        """Answer a wish whose key is held by a live task; None if that has ended meanwhile."""
        if task.if_exists == "replace":
            lane = self._lanes[task.handler, task.collection or "", task.priority]
            due_at = due_of(task, self._now)
            wish = [
                *(self._now, holder, lane.id, task.payload.decode(), due_at, task.submitted_by, expiry_of(task, due_at), task.timeout),
                *(None if task.retry is None else task.retry.decode(), write_meta(task.meta)),
            ]
            for statement in (self._sql.replace_due, self._sql.replace_held):
                if await self._run.rows(statement, wish):
                    self._note(due_at)
                    return Added(AddVerdict.REPLACED, await self._record(holder))
        record = (await records_by_id(self._run, self._sql, [holder])).get(holder)
        if record is None or record.finished_at is not None:
            return None
        return Added(AddVerdict.KEPT if task.if_exists == "keep" else AddVerdict.DUPLICATE, record)

    async def _add_child(self, task: NewTask[object]) -> Added:
        """Add a task that has edges: held, or free if all are met, or cancelled if one cannot be met any more."""
        known = await records_by_id(self._run, self._sql, [task.id])
        if task.id in known:
            return Added(AddVerdict.REPEATED, known[task.id])
        if task.key is not None:
            holder = await self._run.rows(self._sql.key_holder, [task.handler, task.key])
            answer = await self._meet_holder(task, holder[0][0]) if holder else None
            if answer is not None:
                return answer
        open_edges, failed_parent = await self._judge_edges(task)
        [[_, added]] = await self._run.rows(self._sql.add, wishes([task], self._lanes, self._now, strict=False))
        if added is not None:
            return await self._meet(task)
        if failed_parent:
            await self._run.rows(self._sql.take_place, [task.id])
            await self._run.rows(self._sql.end_task, [self._now, "cancelled", write_error(unmet(failed_parent)), task.id])
            return Added(AddVerdict.ADDED, await self._record(task.id))
        if not open_edges:
            return self._added(task)
        await self._run.rows(self._sql.hold, [task.id, len(open_edges)])
        await self._run.rows(self._sql.add_edges, [task.id, list(open_edges), list(open_edges.values())])
        return Added(AddVerdict.ADDED, accepted(task, State.BLOCKED, self._now, due_of(task, self._now)))

    async def _judge_edges(self, task: NewTask[object]) -> tuple[dict[str, str], str]:
        """Give the edges to live parents, and a parent that needed success and ended otherwise.

        On our own connection live parents are locked against ending until we have committed. In a caller's transaction they are
        not, because their end would wait for the caller; a duty later frees children whose parents have ended unnoticed.
        """
        parents = sorted({edge.parent for edge in task.edges})
        live = {row[0] for row in await self._run.rows(self._sql.lock_parents if self._lock_parents else self._sql.live_parents, [parents])}
        ended = await records_by_id(self._run, self._sql, [parent for parent in parents if parent not in live])
        open_edges: dict[str, str] = {}
        failed_parent = ""
        for edge in task.edges:
            if edge.parent in live:
                open_edges[edge.parent] = "success" if open_edges.get(edge.parent) == "success" else edge.needs
            elif edge.parent not in ended:
                raise TaskNotFound(f"no task {edge.parent} to wait for; it was never submitted, or it has been pruned")
            elif edge.needs == "success" and ended[edge.parent].state is not State.SUCCEEDED:
                failed_parent = edge.parent
        return open_edges, failed_parent

    async def _record(self, task_id: str) -> TaskRecord:
        return (await records_by_id(self._run, self._sql, [task_id]))[task_id]


def _batches(tasks: Sequence[NewTask[object]]) -> list[list[int]]:
    """Split a call where a task could meet an earlier one of the same call, and around tasks that wait for others."""
    batches: list[list[int]] = []
    ids: set[str] = set()
    keys: set[tuple[str, str]] = set()
    for index, task in enumerate(tasks):
        key = None if task.key is None else (task.handler, task.key)
        alone = bool(task.edges)
        if not batches or alone or tasks[batches[-1][0]].edges or task.id in ids or key in keys:
            batches.append([])
            ids, keys = set(), set()
        batches[-1].append(index)
        ids.add(task.id)
        if key is not None:
            keys.add(key)
    return batches
