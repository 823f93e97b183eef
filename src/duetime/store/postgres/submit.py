"""Adding tasks: on our own connection, or inside a caller's transaction."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from operator import attrgetter
from typing import TypeVar

import msgspec

from duetime.clock import LATEST, Clock, Instant
from duetime.errors import InvalidValue, StoreUnavailable, TaskNotFound
from duetime.model.lifecycle import unmet
from duetime.model.task import Edge, NewTask, State, TaskRecord, accepted, begun, due_of, expiry_of, joined, throttled_until
from duetime.store.postgres.address import Address
from duetime.store.postgres.columns import new_tasks, request_columns, with_tasks
from duetime.store.postgres.connection import LANE_GONE, Rejected
from duetime.store.postgres.database import OpenSchema
from duetime.store.postgres.lanes import Lanes, keys_of
from duetime.store.postgres.records import records_by_id, write_error
from duetime.store.postgres.runner import Runner
from duetime.store.requests import NamedRequest
from duetime.store.rows.extras import ExtrasTexts
from duetime.store.sql import Statements
from duetime.store.values import Added, AddVerdict, AllNew, HintKind

T = TypeVar("T")
MAX_RETRIES = 5
CAREFUL_CALLS = 16
_LEAVES = ("error", "keep")  # they leave the task that has the key as it is


def is_plain(tasks: Sequence[NewTask[object]]) -> bool:
    """Return whether tasks can only conflict with what has the same id, which is rare."""
    return list(map(_meeting, tasks)).count(_MEETS_NONE) == len(tasks)


_key, _delay = attrgetter("key"), attrgetter("delay")
_meeting, _MEETS_NONE = attrgetter("key", "edges"), (None, ())


class KeysMet:
    """Whether the keys of new tasks are probably free, by what earlier calls of this process met.

    A call that stores its tasks at once and finds a key held has done it in vain. So after that the next calls with keys are made
    carefully, until so many in a row have found all keys free.
    """

    def __init__(self) -> None:
        self._careful = 0
        self._named: set[str] = set()

    def are_probably_free(self, tasks: Sequence[NewTask[object]]) -> bool:
        """Return whether to store tasks at once. The index of keys does not know other names of a handler."""
        return not self._careful and not (self._named and any(task.handler in self._named for task in tasks))

    def were_met(self) -> None:
        self._careful = CAREFUL_CALLS

    def learn(self, named: Set[str], *, met: bool) -> None:
        """Note which handlers have other names, and whether a call that was made carefully met a key."""
        self._named |= named
        self._careful = CAREFUL_CALLS if met else max(0, self._careful - 1)


def _in_order_of_keys(tasks: Sequence[NewTask[object]]) -> list[int]:
    """Return where the tasks stand in the order of keys in which everybody adds them."""
    names = [(task.handler, task.key or "") for task in tasks]
    return sorted(range(len(tasks)), key=names.__getitem__)


def check_due(tasks: Sequence[NewTask[object]], now: Instant) -> None:
    if now + max(map(_delay, tasks), default=0) > LATEST:
        for task in tasks:
            due_of(task, now)


def stored_now(tasks: Sequence[NewTask[object]], now: Instant) -> AllNew:
    """Return the answers for tasks that were all new."""
    return AllNew(tasks, lambda task: Added(AddVerdict.ADDED, accepted(task, State.PENDING, now, due_of(task, now))))


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
        self._live: set[str] = set()  # parents that have not ended
        self.named: set[str] = set()  # handlers that have other names
        self.met_keys = False
        self.earliest: Instant | None = None

    async def add(self, tasks: Sequence[NewTask[object]]) -> list[Added]:
        """Add all; what could meet an earlier task of the same call waits until that is stored."""
        keyed = sorted({task.handler for task in tasks if task.key is not None})
        if keyed:
            [[self._now, named]] = await self._run.rows(self._sql.begin_adding_named, [self._given, keyed])
            self.named = set(named)
        else:
            [[self._now]] = await self._run.rows(self._sql.begin_adding, [self._given])
        parents = sorted({edge.parent for task in tasks for edge in task.edges})
        if parents:
            await self._find_live(parents)  # all at once: two that lock one after another may wait for each other
        tasks = [begun(task, self._now) for task in tasks]
        for batch in _batches(tasks):
            some = [(index, tasks[index]) for index in batch]
            throttled = [entry for entry in some if entry[1].pace is not None and entry[1].pace.throttle]
            if throttled:
                await self._answer_throttled(throttled)
                some = [entry for entry in some if entry[0] not in self._answers]
            if some:
                await (self._add_children(some) if some[0][1].edges else self._add_batch(some))
            for index, task in throttled:
                await self._name_window(task, self._answers[index].record)
        return [self._answers[index] for index in range(len(tasks))]

    async def _add_batch(self, batch: Sequence[tuple[int, NewTask[object]]]) -> None:
        # keys in one order everywhere: two transactions that add the same ones wait for each other instead of locking up
        batch = sorted(batch, key=lambda entry: (entry[1].handler, entry[1].key or ""))
        held = await self._held_by_other_names([task for _, task in batch])
        tasks = [task for _, task in batch if task.id not in held]
        stored = await self._store(tasks) if tasks else set()
        met = []
        for index, task in batch:
            if task.id in stored:
                self._answers[index] = self._added(task)
            else:
                met.append((index, task))
        if met:
            self.met_keys = any(task.key is not None for _, task in met)
            await self._meet_all(met)

    async def _answer_throttled(self, throttled: Sequence[tuple[int, NewTask[object]]]) -> None:
        """Answer those whose key has an open window with the task that opened it; the others open one."""
        known = await records_by_id(self._run, self._sql, [task.id for _, task in throttled])
        for index, task in sorted(throttled, key=lambda entry: (entry[1].handler, entry[1].key or "")):
            if task.id in known:
                self._answers[index] = Added(AddVerdict.REPEATED, known[task.id])
                continue
            window = [task.handler, task.key, task.id, throttled_until(task, self._now)]
            if not await self._run.rows(self._sql.open_window, [*window, self._now]):
                [[opener]] = await self._run.rows(self._sql.window_of, window[:2])
                record = (await records_by_id(self._run, self._sql, [opener])).get(opener)
                if record is not None:
                    self._answers[index] = Added(AddVerdict.KEPT, record)
                else:  # it was deleted or pruned
                    await self._run.rows(self._sql.name_window, window)

    async def _name_window(self, task: NewTask[object], answer: TaskRecord) -> None:
        """Let the window that a task has opened stand for the live task that has its key, if there is one."""
        if answer.id != task.id:
            await self._run.rows(self._sql.name_window, [task.handler, task.key, answer.id, None])

    async def _held_by_other_names(self, tasks: Sequence[NewTask[object]]) -> set[str]:
        """Return those whose key a live task has by another name of the handler; the index of keys knows each name alone.

        The lock keeps two who add by different names apart. It is taken only for handlers that were renamed.
        """
        held = set()
        for task in tasks:
            if task.key is not None and task.handler in self.named:
                await self._run.rows(self._sql.lock_key, [task.handler, task.key])
                if await self._run.rows(self._sql.key_holder, [task.handler, task.key]):
                    held.add(task.id)
        return held

    async def _meet_all(self, met: Sequence[tuple[int, NewTask[object]]]) -> None:
        """Answer submissions that could not be stored: repeats and kept keys in few steps, the others one by one."""
        known = await records_by_id(self._run, self._sql, [task.id for _, task in met])
        keyed = [task for _, task in met if task.id not in known and task.key is not None and task.if_exists in _LEAVES]
        holders = (
            await self._run.rows(self._sql.key_holders, [[task.handler for task in keyed], [task.key for task in keyed]]) if keyed else []
        )
        records = await records_by_id(self._run, self._sql, [row[2] for row in holders])
        live = {(row[0], row[1]): records[row[2]] for row in holders if row[2] in records and records[row[2]].finished_at is None}
        for index, task in met:
            holder = live.get((task.handler, task.key or "")) if task.if_exists in _LEAVES else None
            if task.id in known:
                self._answers[index] = Added(AddVerdict.REPEATED, known[task.id])
            elif holder is not None:
                self._answers[index] = Added(AddVerdict.KEPT if task.if_exists == "keep" else AddVerdict.DUPLICATE, holder)
            else:
                self._answers[index] = await self._meet(task)

    async def _store(self, tasks: Sequence[NewTask[object]]) -> set[str]:
        """Store those of the tasks that can be, and return their ids."""
        [[added]] = await self._run.rows(with_tasks(self._sql, self._sql.add), [*new_tasks(tasks, self._lanes), self._now])
        return set(added)

    def _added(self, task: NewTask[object]) -> Added:
        due_at = due_of(task, self._now)
        self._note(due_at)
        return Added(AddVerdict.ADDED, accepted(task, State.PENDING, self._now, due_at))

    def _note(self, due_at: Instant) -> None:
        position = max(self._now, due_at)
        self.earliest = position if self.earliest is None else min(self.earliest, position)

    async def _meet(self, task: NewTask[object]) -> Added:
        """Answer a submission that could not be stored: its id is known, or its key is held."""
        for _ in range(MAX_RETRIES):
            known = await records_by_id(self._run, self._sql, [task.id])
            if task.id in known:
                return Added(AddVerdict.REPEATED, known[task.id])
            holder = await self._run.rows(self._sql.key_holder, [task.handler, task.key])
            if holder:
                answer = await self._meet_holder(task, holder[0][0])
                if answer is not None:
                    return answer
            # the task that held the key has probably ended meanwhile
            if await self._store([task]):
                return self._added(task)
        raise InvalidValue(f"the key {task.key!r} of handler {task.handler} changes hands too fast; try again")

    async def _meet_holder(self, task: NewTask[object], holder: str) -> Added | None:
        """Answer a submission whose key is held by a live task; None if that has ended or moved meanwhile."""
        begun = False
        if task.if_exists == "queue_one":
            return await self._join_line(task, holder)
        if task.if_exists == "replace" and await self._run.rows(self._sql.lock_waiting, [[holder]]):
            begun = bool(await self._run.rows(self._sql.has_steps, [holder]))
            if not begun:
                return await self._replace(task, holder)
        record = (await records_by_id(self._run, self._sql, [holder])).get(holder)
        if record is None or record.finished_at is not None:
            return None
        if task.if_exists == "replace" and record.state is not State.RUNNING and not begun:
            return None  # it was just moving
        return Added(AddVerdict.KEPT if task.if_exists == "keep" else AddVerdict.DUPLICATE, record)

    async def _replace(self, task: NewTask[object], waiting: str) -> Added:
        """Give a task that waits, and that this transaction has locked, a new submission."""
        lane = self._lanes[task.handler, task.collection or "", task.priority]
        due_at = due_of(task, self._now)
        changed = [
            *(self._now, waiting, lane.id, task.payload.decode(), due_at, task.submitted_by, expiry_of(task, due_at), task.timeout),
            *(None if task.retry is None else task.retry.decode(), ExtrasTexts().of(task), task.planned_at, task.handler),
        ]
        if [True] in map(list, await self._run.rows(self._sql.replace_waiting, changed)):  # it was parked; now it may fit
            await self._run.rows(self._sql.unpark, [self._now, [waiting]])
        self._note(due_at)
        said = msgspec.structs.replace(accepted(task, State.PENDING, self._now, due_at), id=waiting)
        return Added(AddVerdict.REPLACED, await self._record(said))

    async def _join_line(self, task: NewTask[object], holder: str) -> Added | None:
        """Let the task that waits with this key take over a new one; if none waits, the new one waits for the end of the running one.

        None if they have ended or moved meanwhile. The lock keeps two apart that both find nobody waiting.
        """
        await self._run.rows(self._sql.lock_key, [task.handler, task.key])
        successor = await self._run.rows(self._sql.key_successor, [task.handler, task.key])
        waiting = successor[0][0] if successor else holder
        locked = await self._run.rows(self._sql.lock_waiting, [[waiting]])
        record = (await records_by_id(self._run, self._sql, [waiting])).get(waiting)
        if record is None or record.finished_at is not None:
            return None
        begun = bool(locked and await self._run.rows(self._sql.has_steps, [waiting]))
        if locked and not begun:
            merged = joined(task, record, self._now)
            return Added(AddVerdict.KEPT, record) if merged is None else await self._replace(merged, waiting)
        return None if successor or not (begun or record.state is State.RUNNING) else await self._add_successor(task, holder)

    async def _add_successor(self, task: NewTask[object], holder: str) -> Added | None:
        """Add a task that has its key after the running one that has it now; None if that has ended meanwhile, or if the task is known."""
        child = msgspec.structs.replace(task, key=None, edges=(*task.edges, Edge(holder, "end")))
        open_edges, failed = (await self._judge_edges([child]))[child.id]
        if holder not in open_edges or not await self._store([child]):
            return None
        await self._run.rows(self._sql.queue_key, [task.id, task.key])
        if failed:
            return await self._in_vain(task, open_edges, failed)
        await self._hold([(task.id, open_edges)])
        return Added(AddVerdict.ADDED, accepted(task, State.BLOCKED, self._now, due_of(task, self._now)))

    async def _add_children(self, batch: Sequence[tuple[int, NewTask[object]]]) -> None:
        """Add tasks that have edges: held, or free if all are met, or cancelled if one cannot be met any more.

        Later ones may need earlier ones; none has a key, unless it is alone.
        """
        known = await records_by_id(self._run, self._sql, [task.id for _, task in batch])
        fresh = []
        for index, task in batch:
            if task.id in known:
                self._answers[index] = Added(AddVerdict.REPEATED, known[task.id])
            elif answer := await self._answer_of_key(task):
                self._answers[index] = answer
            else:
                fresh.append((index, task))
        judged = await self._judge_edges([task for _, task in fresh])
        stored = await self._store([task for _, task in fresh]) if fresh else set()
        held: list[tuple[str, dict[str, str]]] = []
        for index, task in fresh:
            open_edges, failed = judged[task.id]
            if task.id not in stored:
                if len(fresh) > 1:  # what others of this call need it for may differ from what is stored
                    raise StoreUnavailable(f"task {task.id} was being submitted by somebody else at the same time; try again")
                self._answers[index] = await self._meet(task)
            elif failed:
                self._answers[index] = await self._in_vain(task, open_edges, failed)
            elif not open_edges:
                self._answers[index] = self._added(task)
            else:
                held.append((task.id, open_edges))
                self._answers[index] = Added(AddVerdict.ADDED, accepted(task, State.BLOCKED, self._now, due_of(task, self._now)))
        if held:
            await self._hold(held)

    async def _hold(self, held: Sequence[tuple[str, Mapping[str, str]]]) -> None:
        """Let tasks that were just stored wait for others."""
        await self._run.rows(self._sql.hold, [[child for child, _ in held], [len(edges) for _, edges in held]])
        edges = [(child, parent, needs) for child, edges in held for parent, needs in edges.items()]
        await self._run.rows(self._sql.add_edges, [list(column) for column in zip(*edges, strict=True)])

    async def _answer_of_key(self, task: NewTask[object]) -> Added | None:
        """Return the answer to a task whose key a live one has; None if it may be stored."""
        if task.key is None:
            return None
        holder = await self._run.rows(self._sql.key_holder, [task.handler, task.key])
        return await self._meet_holder(task, holder[0][0]) if holder else None

    async def _in_vain(self, task: NewTask[object], open_edges: Mapping[str, str], failed: Sequence[str]) -> Added:
        """End a task that was just stored, because parents whose success it needs have ended otherwise."""
        await self._run.rows(self._sql.take_entry, [task.id])
        error = unmet(min(failed))
        waited = {**open_edges, **dict.fromkeys(failed, "success")}
        await self._run.rows(self._sql.remember_vain, [task.id, self._now, list(waited), list(waited.values())])
        await self._run.rows(self._sql.end_task, [self._now, "cancelled", write_error(error), task.id])
        said = accepted(task, State.CANCELLED, self._now, due_of(task, self._now))
        return Added(AddVerdict.ADDED, await self._record(msgspec.structs.replace(said, finished_at=self._now, error=error)))

    async def _judge_edges(self, tasks: Sequence[NewTask[object]]) -> dict[str, tuple[dict[str, str], list[str]]]:
        """Return of each task the edges to live parents, and the parents whose success it needed and that ended otherwise.

        On our own connection live parents are locked against ending until we have committed. In a caller's transaction they are
        not, because their end would wait for the caller; a duty later frees children whose parents have ended unnoticed.
        """
        own = {task.id for task in tasks}
        for _ in range(MAX_RETRIES):
            missing = sorted({edge.parent for task in tasks for edge in task.edges} - self._live - own)
            if missing:
                await self._find_live(missing)
            ended = await records_by_id(self._run, self._sql, [parent for parent in missing if parent not in self._live])
            if all(record.finished_at is not None for record in ended.values()):
                break  # otherwise one was missed, because it was just moving
        else:
            raise StoreUnavailable(f"the tasks that {tasks[0].id} shall wait for move too fast; try again")
        succeeded = {record.id: record.state is State.SUCCEEDED for record in ended.values()}
        judged: dict[str, tuple[dict[str, str], list[str]]] = {}
        for task in tasks:
            open_edges: dict[str, str] = {}
            failed: list[str] = []
            for edge in task.edges:
                if edge.parent in self._live:
                    open_edges[edge.parent] = "success" if open_edges.get(edge.parent) == "success" else edge.needs
                elif edge.parent not in succeeded:
                    raise TaskNotFound(f"no task {edge.parent} to wait for; it was never submitted, or it has been pruned")
                elif edge.needs == "success" and not succeeded[edge.parent]:
                    failed.append(edge.parent)
            judged[task.id] = open_edges, failed
            if failed:
                succeeded[task.id] = False
            else:
                self._live.add(task.id)
        return judged

    async def _find_live(self, parents: Sequence[str]) -> None:
        statement = self._sql.lock_parents if self._lock_parents else self._sql.live_parents
        self._live |= {row[0] for row in await self._run.rows(statement, [parents])}

    async def _record(self, said: TaskRecord) -> TaskRecord:
        """Read what was stored; a caller's old view need not show it, if its lane was made just now."""
        return (await records_by_id(self._run, self._sql, [said.id])).get(said.id, said)


def _batches(tasks: Sequence[NewTask[object]]) -> list[list[int]]:
    """Split a call where a task could meet an earlier one of the same call, and where tasks that wait for others begin or end."""
    batches: list[list[int]] = []
    ids: set[str] = set()
    keys: set[tuple[str, str]] = set()
    for index, task in enumerate(tasks):
        key = None if task.key is None else (task.handler, task.key)
        before = tasks[batches[-1][-1]] if batches else task
        alone = bool(task.edges) and (key is not None or before.key is not None)
        if not batches or alone or bool(before.edges) != bool(task.edges) or task.id in ids or key in keys:
            batches.append([])
            ids, keys = set(), set()
        batches[-1].append(index)
        ids.add(task.id)
        if key is not None:
            keys.add(key)
    return batches


class Submitting(OpenSchema):
    """Adds tasks."""

    def __init__(self, address: Address, clock: Clock | None) -> None:
        super().__init__(address, clock)
        self._keys = KeysMet()

    async def add(self, tasks: Sequence[NewTask[object]]) -> Sequence[Added]:
        if not tasks:
            return []
        await self.prepare(tasks)
        added = await self._add_at_once(tasks) if self._may_all_be_new(tasks) else None
        return await self._with_lanes(lambda: self._add_carefully(tasks)) if added is None else added

    def _may_all_be_new(self, tasks: Sequence[NewTask[object]]) -> bool:
        """Return whether tasks can be stored at once if nobody has their ids and keys, and whether that is probable."""
        if is_plain(tasks):
            return True
        return not any(task.edges or task.pace is not None for task in tasks) and self._keys.are_probably_free(tasks)

    async def _with_lanes(self, add: Callable[[], Awaitable[T]]) -> T:
        """Add tasks, a second time if a lane is gone."""
        try:
            return await add()
        except Rejected as rejection:
            if rejection.state != LANE_GONE:
                raise
        await self._lanes.restore(self._opened)
        return await add()

    async def _add_at_once(self, tasks: Sequence[NewTask[object]], requests: Sequence[NamedRequest | None] = ()) -> Sequence[Added] | None:
        """Add tasks that are most probably all new, in one statement; None if one of them is not, or the wake-up after it failed.

        In the order of keys, as everywhere: two transactions that add the same ones wait for each other instead of locking up.
        """
        sql = self._sql
        statement = sql.add_requested if requests else sql.add_new
        keyed = list(map(_key, tasks)).count(None) < len(tasks)
        order = _in_order_of_keys(tasks) if keyed else range(len(tasks))
        in_order = [tasks[index] for index in order] if keyed else tasks
        parameters = [*new_tasks(in_order, self._lanes), self._clock.parameter]
        if requests:
            parameters += request_columns([requests[index] for index in order])
        telling = tasks[0].due_at is None and tasks[0].delay == 0 and self._wakeups.may_send()
        if telling:
            statement = sql.add_requested_and_tell if requests else sql.add_new_and_tell
            parameters = [*parameters, self._wakeups.channel, self._wakeups.due_now]
        try:
            [[now]] = await self._opened.rows(with_tasks(self._sql, statement), parameters)
        except Rejected:
            if telling:
                self._hint(HintKind.DUE)  # they may be stored all the same
            if keyed:
                self._keys.were_met()
            return None
        hint = self._wakeups.tell if telling else self._wakeups.send
        hint(HintKind.DUE, max(now, min([now + task.delay if task.due_at is None else task.due_at for task in tasks])))
        return stored_now(tasks, now)

    async def _add_carefully(self, tasks: Sequence[NewTask[object]]) -> list[Added]:
        """Add tasks that may meet others."""

        async def job(run: Runner) -> tuple[list[Added], Submission]:
            submission = Submission(run, self._sql, self._lanes, self._clock.parameter, lock_parents=True)
            return await submission.add(tasks), submission

        added, submission = await self._opened.transaction(job)
        self._keys.learn(submission.named, met=submission.met_keys)
        if submission.earliest is not None:
            self._hint(HintKind.DUE, submission.earliest)
        return added

    async def prepare(self, tasks: Sequence[NewTask[object]]) -> None:
        check_due(tasks, self._clock.now())
        self._opened  # noqa: B018  raises if it is not open
        await self._lanes.ensure(keys_of(tasks))
