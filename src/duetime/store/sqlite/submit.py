"""Adding tasks: on our own connection, or inside a caller's transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec

from duetime.clock import Instant
from duetime.errors import StoreUnavailable, TaskNotFound
from duetime.model.lifecycle import unmet
from duetime.model.names import HandlerNames
from duetime.model.task import Edge, NewTask, State, TaskRecord, accepted, begun, due_of, expiry_of, joined, throttled_until
from duetime.store.rows.extras import ExtrasTexts
from duetime.store.sqlite.connection import translated
from duetime.store.sqlite.database import OpenFile
from duetime.store.sqlite.lanes import lowering
from duetime.store.sqlite.records import read_record, write_json
from duetime.store.sqlite.runner import (
    Runner,
    SyncRunner,
    begin_for_alchemy,
    check_file,
    check_transaction,
    drive,
    driver_connection,
    plain_text,
    runner_for,
)
from duetime.store.sqlite.statements import NEVER, SQL
from duetime.store.sqlite.work import unstarted
from duetime.store.values import MAX_COLLECTIONS, Added, AddVerdict, HintKind, TooManyCollections


class _Lane:
    """A lane as this transaction sees it. `next_at` follows what we add; `known_at` is what is stored."""

    __slots__ = ("id", "known_at", "next_at")

    def __init__(self, lane: int, next_at: Instant) -> None:
        self.id = lane
        self.known_at = next_at
        self.next_at = next_at


class Submission:
    """One call of `add`: gathers rows and writes them in few statements. Unless `told`, answers for new tasks are not needed."""

    def __init__(self, run: Runner, now: Instant, *, told: bool = True) -> None:
        self._run = run
        self._now = now
        self._told = told
        self._extras = ExtrasTexts()
        self._seq = 0
        self._asked: Sequence[NewTask[object]] = ()
        self._lanes: dict[tuple[str, str, int], _Lane] = {}
        self._names = HandlerNames()
        self._holders: dict[tuple[str, str], int] = {}
        self._queued: dict[tuple[str, str], int] = {}  # who has the key after its holder
        self._collections: dict[str, set[str]] = {}  # of handlers that get a new lane, read once: a batch may bring thousands
        self._tasks: list[tuple[object, ...]] = []
        self._due: list[tuple[object, ...]] = []
        self._keys: list[tuple[object, ...]] = []
        self.earliest: Instant = NEVER

    async def add(self, tasks: Sequence[NewTask[object]]) -> list[Added]:
        """Add all; if one of the ids is stored already, begin again and leave out what is a repeat."""
        await self._run.rows("savepoint duetime_add")
        try:
            added = await self._add(tasks, frozenset())
        except sqlite3.IntegrityError:
            await self._run.rows("rollback to duetime_add")
            known = await self._run.rows(SQL.known_ids, (write_json([task.id for task in tasks]),))
            added = await Submission(self._run, self._now, told=self._told)._add(tasks, frozenset(row[0] for row in known))
        except BaseException:
            await self._run.rows("rollback to duetime_add")
            await self._run.rows("release duetime_add")
            raise
        await self._run.rows("release duetime_add")
        return added

    async def reserve(self, tasks: Sequence[NewTask[object]]) -> None:
        """Make the lanes of tasks that will be added later, so that nothing can refuse them then."""
        self._asked = tasks
        for task in {(task.handler, task.collection, task.priority): task for task in tasks}.values():
            await self._lane(task)

    async def _add(self, tasks: Sequence[NewTask[object]], repeats: frozenset[str]) -> list[Added]:
        self._asked = tasks
        newest = await self._run.rows(SQL.last_task)
        if newest:
            self._seq, submitted_at = newest[0]
            if self._now < submitted_at:  # the clock was set back: lists must know how far, see `read.seq_bounds`
                await self._run.rows(SQL.raise_submitted_high, (submitted_at,))
                await self._run.rows(SQL.raise_submitted_back, (self._now,))
        if any(task.key is not None for task in tasks):
            self._names = HandlerNames({row[0]: row[1] for row in await self._run.rows(SQL.all_aliases)})
            pairs = [(name, task.key) for task in tasks if task.key is not None for name in self._names.all(task.handler)]
            for handler, key, seq, queued in await self._run.rows(SQL.key_holders, (write_json(pairs),)):
                (self._queued if queued else self._holders)[self._names.present(handler), key] = seq
        seen: set[str] = set(repeats)
        added = []
        for given in tasks:
            task = begun(given, self._now)
            throttled = task.pace is not None and task.pace.throttle
            if throttled and task.id not in seen and (answer := await self._answer_throttled(task)):
                added.append(answer)
                continue
            taken = task.key is not None and (self._names.present(task.handler), task.key) in self._holders
            # a repeat may meet its own key, or that of a later task, and its parents may be gone
            if task.id in seen or ((taken or task.edges) and await self._is_stored(task.id)):
                await self._flush()
                added.append(Added(AddVerdict.REPEATED, await self._record("where_ids", task.id)))
            elif taken and task.key is not None:
                await self._flush()
                added.append(await self._meet_holder(task, self._holders[self._names.present(task.handler), task.key]))
                if added[-1].verdict is not AddVerdict.ADDED:
                    continue  # nothing is stored under its id, so the same once more meets the holder too
            elif task.edges:
                await self._flush()
                added.append(await self._add_child(task))
            else:
                lane = self._lanes.get((task.handler, task.collection or "", task.priority)) or await self._lane(task)
                due_at = self._add_due(task, lane)
                if self._told:
                    added.append(self._added(task, due_at))
            seen.add(task.id)
        await self._flush()
        for statement, lower in lowering({lane.id: lane.next_at for lane in self._lanes.values() if lane.next_at < lane.known_at}):
            await self._run.many(statement, lower)
        return added

    def _add_due(self, task: NewTask[object], lane: _Lane) -> Instant:
        due_at = due_of(task, self._now)
        position = max(self._now, due_at)
        if position < lane.next_at:
            lane.next_at = position
        if position < self.earliest:
            self.earliest = position
        self._insert(task, lane, due_at)
        self._due.append((lane.id, position, self._seq, due_at, 0, 0, 0))
        return due_at

    def _added(self, task: NewTask[object], due_at: Instant) -> Added:
        return Added(AddVerdict.ADDED, accepted(task, State.PENDING, self._now, due_at))

    async def _add_child(self, task: NewTask[object], *, queued: bool = False) -> Added:
        """Add a task that has edges: held, or free if all are met, or cancelled if one cannot be met any more.

        `queued`: it has its key after the live task that has it now, which it waits for.
        """
        rows = await self._run.rows(SQL.parents, (write_json([edge.parent for edge in task.edges]),))
        parents = {row[0]: (row[1], row[2]) for row in rows}
        open_edges: dict[int, str] = {}
        failed: dict[int, str] = {}
        for edge in task.edges:
            if edge.parent not in parents:
                raise TaskNotFound(f"no task {edge.parent} to wait for; it was never submitted, or it has been pruned")
            seq, state = parents[edge.parent]
            if state is None:
                open_edges[seq] = "success" if open_edges.get(seq) == "success" else edge.needs
            elif edge.needs == "success" and state != State.SUCCEEDED:
                failed[seq] = edge.parent
        lane = self._lanes.get((task.handler, task.collection or "", task.priority)) or await self._lane(task)
        if not open_edges and not failed:
            return self._added(task, self._add_due(task, lane))
        due_at = due_of(task, self._now)
        self._insert(task, lane, due_at, queued=queued)
        seq = self._seq
        if failed:
            self._keys = [row for row in self._keys if row[2] != seq]
            (self._queued if queued else self._holders).pop((self._names.present(task.handler), task.key or ""), None)
            await self._flush()
            end = unstarted(seq, State.CANCELLED, 0, 0, 0, self._now, unmet(min(failed.values())))
            await self._run.rows(SQL.finish_task, end)
            waited = {**open_edges, **dict.fromkeys(failed, "success")}
            await self._run.many(SQL.insert_vain, [(seq, parent, needs) for parent, needs in waited.items()])
            return Added(AddVerdict.ADDED, await self._record("where_seqs", seq))
        await self._flush()
        await self._run.rows(SQL.insert_held, (seq, lane.id, "blocked", len(open_edges), due_at, 0, 0, 0))
        await self._run.many(SQL.insert_edge, [(parent, seq, needs) for parent, needs in open_edges.items()])
        return Added(AddVerdict.ADDED, accepted(task, State.BLOCKED, self._now, due_at))

    async def _answer_throttled(self, task: NewTask[object]) -> Added | None:
        """Return the task that opened the window of a key; None if the new one opens one, or is stored already."""
        await self._flush()
        if await self._is_stored(task.id):
            return Added(AddVerdict.REPEATED, await self._record("where_ids", task.id))
        name, until = self._names.present(task.handler), throttled_until(task, self._now)
        opened = await self._run.rows(SQL.open_window, (name, task.key, task.id, until, self._now))
        ((opener,),) = opened or await self._run.rows(SQL.window_of, (name, task.key))
        if not opened and await self._is_stored(opener):
            return Added(AddVerdict.KEPT, await self._record("where_ids", opener))
        # the one that opened it was deleted or pruned, or a live task has the key and is the answer until the window ends
        holder = self._holders.get((name, task.key or ""))
        answer = task.id if holder is None else (await self._record("where_seqs", holder)).id
        await self._run.rows(SQL.name_window, (name, task.key, answer, until))
        return None

    async def _meet_holder(self, task: NewTask[object], seq: int) -> Added:
        """Handle a new task whose key a live one has."""
        record = await self._record("where_seqs", seq)
        if task.if_exists == "keep":
            return Added(AddVerdict.KEPT, record)
        if task.if_exists == "queue_one":
            return await self._join_line(task, seq, record)
        if task.if_exists == "error" or record.state is State.RUNNING or await self._run.rows(SQL.has_steps, (seq,)):
            return Added(AddVerdict.DUPLICATE, record)
        return await self._replace(task, seq, record)

    async def _join_line(self, task: NewTask[object], seq: int, record: TaskRecord) -> Added:
        """Let the task that waits with this key take over a new one; if none waits, the new one waits for the end of the running one."""
        queued = self._queued.get((self._names.present(task.handler), task.key or ""))
        if queued is not None:
            seq, record = queued, await self._record("where_seqs", queued)
        if record.state is State.RUNNING or await self._run.rows(SQL.has_steps, (seq,)):  # it has begun
            return await self._add_child(msgspec.structs.replace(task, edges=(*task.edges, Edge(record.id, "end"))), queued=True)
        merged = joined(task, record, self._now)
        return Added(AddVerdict.KEPT, record) if merged is None else await self._replace(merged, seq, record)

    async def _replace(self, task: NewTask[object], seq: int, record: TaskRecord) -> Added:
        """Give a task that waits a new submission."""
        due_at = due_of(task, self._now)
        lane = self._lanes.get((task.handler, task.collection or "", task.priority)) or await self._lane(task)
        expires_at = expiry_of(task, due_at)
        numbers = (task.timeout, task.retry, self._extras.of(task), task.planned_at)
        await self._run.rows(SQL.replace_task, (lane.id, task.payload, due_at, task.submitted_by, expires_at, *numbers, seq))
        if record.handler != task.handler:  # it was submitted by another name of the handler
            await self._run.rows(SQL.move_key, (task.handler, seq))
        if record.state is State.BLOCKED:
            await self._run.rows(SQL.move_held, (lane.id, due_at, 0, seq))
        else:
            await self._run.rows(SQL.take_due, (seq,))
            if record.parked:  # its new payload may fit
                await self._run.rows(SQL.take_held, (seq,))
                await self._run.rows(SQL.forget_refusals, (seq,))
            position = max(due_at, self._now)
            lane.next_at = min(lane.next_at, position)
            self.earliest = min(self.earliest, position)
            await self._run.rows(SQL.insert_due, (lane.id, position, seq, due_at, record.attempt, 0, record.crashes))
        return Added(AddVerdict.REPLACED, await self._record("where_seqs", seq))

    def _insert(self, task: NewTask[object], lane: _Lane, due_at: Instant, *, queued: bool = False) -> None:
        self._seq += 1
        self._tasks.append(
            (
                self._seq,
                task.id,
                lane.id,
                task.key,
                task.payload,
                due_at,
                self._now,
                task.submitted_by,
                expiry_of(task, due_at),
                task.timeout,
                task.retry,
                self._extras.of(task),
                task.schedule,
                task.planned_at,
            )
        )
        if task.key is not None:
            self._keys.append((task.handler, task.key, self._seq, int(queued)))
            (self._queued if queued else self._holders)[self._names.present(task.handler), task.key] = self._seq

    async def _lane(self, task: NewTask[object]) -> _Lane:
        key = (task.handler, task.collection or "", task.priority)
        rows = await self._run.rows(SQL.find_lane, key)
        if not rows:
            used = self._collections.get(task.handler)
            if used is None:
                used = self._collections[task.handler] = {row[0] for row in await self._run.rows(SQL.collections, (task.handler,))}
            if task.collection and task.collection not in used and len(used) >= MAX_COLLECTIONS:
                asked = {each.collection for each in self._asked if each.handler == task.handler and each.collection}
                raise TooManyCollections(task.handler, asked - used)
            used.add(task.collection or "")
            await self._run.rows(SQL.extend_road, key)
            rows = await self._run.rows(SQL.add_lane, key)
        lane = self._lanes[key] = _Lane(*rows[0])
        return lane

    async def _flush(self) -> None:
        if self._tasks:
            await self._run.many(SQL.insert_task, self._tasks)
            self._tasks = []
        if self._due:
            await self._run.many(SQL.insert_due, self._due)
            self._due = []
        if self._keys:
            await self._run.many(SQL.insert_key, self._keys)
            self._keys = []

    async def _is_stored(self, task_id: str) -> bool:
        return bool(await self._run.rows(SQL.known_ids, (write_json([task_id]),)))

    async def _record(self, where: str, which: object) -> TaskRecord:
        (row,) = await self._run.rows(f"{SQL.record}\n{SQL.from_all}\n{getattr(SQL, where)}", (write_json([which]),))
        return read_record(row)


class Submitting(OpenFile):
    """How tasks get in."""

    async def add(self, tasks: Sequence[NewTask[object]]) -> list[Added]:
        if not tasks:
            return []

        def job(connection: sqlite3.Connection) -> tuple[list[Added], Instant]:
            submission = Submission(SyncRunner(connection), self._clock.now())
            return drive(submission.add(tasks)), submission.earliest

        added, earliest = await self._write(job)
        self._hint(HintKind.DUE, None if earliest == NEVER else earliest)
        return added

    async def prepare(self, tasks: Sequence[NewTask[object]]) -> None:
        """Do nothing: the caller's transaction may hold the only write lock."""

    async def add_on(self, connection: object, tasks: Sequence[NewTask[object]]) -> list[Added]:
        async with callers_transaction(connection, self._path) as run:
            return await Submission(run, self._clock.now()).add(tasks) if tasks else []


@asynccontextmanager
async def callers_transaction(connection: object, path: str) -> AsyncIterator[Runner]:
    """Run statements in a transaction that the caller has begun on the file, and will end."""
    try:
        own = await driver_connection(connection)
        runner = runner_for(own)
        with plain_text(own):
            await check_file(runner, path)
            if own is not connection:
                await begin_for_alchemy(own, runner)
            check_transaction(own)
            yield runner
    except sqlite3.OperationalError as error:
        raise translated_on(error, path) from error
    except sqlite3.Error as error:
        raise translated(error, path) from error


def translated_on(error: sqlite3.OperationalError, path: str) -> Exception:
    """Explain why a write inside a caller's transaction failed; mostly it began without taking the write lock."""
    if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreUnavailable(
            f"the transaction on connection= could not take the write lock of {path}: {error}; "
            "begin it with BEGIN IMMEDIATE, which waits for the lock before anything is read, then repeat it"
        )
    return translated(error, path)
