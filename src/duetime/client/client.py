"""The application service: everything that App, HTTP API and command line do with a store, except overviews (`insight`)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol, TypeAlias, TypeVar, cast

import msgspec

from duetime.client.admission import HANDLERS_OWN, Admission, SubmitHook
from duetime.client.gates import GateKeeper, LocalGates
from duetime.client.schedules.schedule import Schedule
from duetime.client.schedules.service import Calendars, LocalCalendars, LocalSchedules, Schedules
from duetime.clock import Instant, Seconds, to_seconds
from duetime.errors import ChangedMeanwhile, Conflict, DuplicateKey, DuplicateKeys, InvalidValue, TaskCancelled, TaskFailed, TaskNotFound
from duetime.ids import is_id
from duetime.model.lazy import Lazy
from duetime.model.query import MAX_PAGE, Page, Query
from duetime.model.task import FINAL, LIVE, NewTask, State, Task, TaskRecord, check_name, check_priority, delay_micros, due_instant, shown
from duetime.store import Store
from duetime.store.requests import NamedRequest, Requested
from duetime.store.shard import Listener
from duetime.store.values import Added, AddVerdict, AllNew, CancelVerdict, ChangeVerdict, Edit, Hint, HintKind
from duetime.targets.spec import HandlerSpec

__all__ = [
    "HANDLERS_OWN",
    "AnyTask",
    "Bulk",
    "Client",
    "LocalClient",
    "TaskPage",
    "duplicate_key",
    "id_of",
    "stored",
    "taken_keys",
    "waiting_time",
]

R = TypeVar("R")
AnyTask: TypeAlias = Task[Any] | str

# A wait is woken by hints. It also polls this often, because a hint can be lost.
LOOK_AGAIN = 1.0
RETRIABLE = FINAL - {State.SUCCEEDED}
EDITABLE = LIVE - {State.RUNNING}


class TaskPage(msgspec.Struct, frozen=True):
    """Some tasks and the cursor of the next page, None on the last."""

    items: list[Task[Any]]
    next: str | None


class Bulk(msgspec.Struct, frozen=True):
    """What a verb on many tasks did: how many matched, and the number of each verdict (none after a dry run)."""

    matched: int
    answers: Mapping[str, int]


class Client(Protocol):
    """Everything that App, HTTP API and command line do with a store, directly or over a server, except overviews (`Insight`)."""

    user: str
    admission: Admission
    gates: GateKeeper
    schedules: Schedules
    calendars: Calendars

    def now(self) -> Instant:
        """Return the time by the store's clock, as far as it is known."""
        ...

    def listen(self, on_hint: Callable[[Hint], None]) -> Listener:
        """Call a function with every hint of the store until the listener is closed. Not available over a server."""
        ...

    async def prepare(self, tasks: Sequence[NewTask[Any]], *, allow_unknown: bool) -> None:
        """Read in advance everything that submitting these tasks on a connection needs. After that, submitting does not suspend."""
        ...

    async def add_requested(self, requested: Sequence[Requested]) -> Sequence[Added | NamedRequest]:
        """Store checked and completed tasks, some with a named request, and return the store's answers. Not available over a server."""
        ...

    async def look_up(self, handler: str, key: str) -> TaskRecord | None:
        """Return the live task that holds a key, or else the latest finished one that did; None if there is none."""
        ...

    async def cancel_all(self, ids: Sequence[str]) -> Sequence[CancelVerdict]:
        """Cancel these tasks. Verdicts are in the order of the tasks, UNKNOWN for a task that does not exist."""
        ...

    async def submit(self, task: NewTask[R], *, connection: object | None = None, allow_unknown: bool = False) -> Task[R]:
        """Store one task. Raises DuplicateKey if a live task holds its key and may not be kept or replaced."""
        ...

    async def submit_many(
        self, tasks: Iterable[NewTask[R]], *, connection: object | None = None, allow_unknown: bool = False
    ) -> Sequence[Task[R]]:
        """Store many tasks at once, all checked before anything is written.

        A task whose key is taken does not stop the rest: they are stored, and then DuplicateKeys is raised with the tasks that were not.
        """
        ...

    async def add(self, tasks: Sequence[NewTask[Any]], connection: object | None = None) -> Sequence[Added]:
        """Store tasks that `admission` has checked and completed. Return an answer for each, duplicates included."""
        ...

    async def record(self, task: AnyTask) -> TaskRecord:
        """Return a task as it is stored. Raises TaskNotFound if there is none."""
        ...

    async def records(self, ids: Sequence[str]) -> list[TaskRecord | None]:
        """Return many tasks as they are stored; None for one that does not exist."""
        ...

    async def find(self, handler: str, key: str) -> Task[Any]:
        """Return the live task that holds a key, or else the latest finished one that did."""
        ...

    async def page(self, query: Query) -> TaskPage: ...

    async def wait(self, task: AnyTask, *, timeout: Seconds | None = None) -> TaskRecord:
        """Wait until a task is final, at most `timeout` seconds, and return it as it is then."""
        ...

    async def retry(self, task: AnyTask) -> Task[Any]:
        """Take a finished task that did not succeed back to pending."""
        ...

    async def edit(
        self,
        task: AnyTask,
        *,
        due_at: datetime | None = None,
        delay: Seconds | None = None,
        priority: int | None = None,
        collection: str | None = None,
        seen: TaskRecord | None = None,
    ) -> Task[Any]:
        """Change a waiting task's due time, priority or collection. Raises ChangedMeanwhile if the task differs from `seen`."""
        ...

    async def cancel_many(self, query: Query, *, dry_run: bool = False) -> Bulk:
        """Cancel all live tasks that match."""
        ...

    async def retry_many(self, query: Query, *, dry_run: bool = False) -> Bulk:
        """Retry all tasks that match and may be retried. Without a state, retry those that failed."""
        ...

    async def edit_many(
        self,
        query: Query,
        *,
        due_at: datetime | None = None,
        delay: Seconds | None = None,
        priority: int | None = None,
        collection: str | None = None,
        dry_run: bool = False,
    ) -> Bulk:
        """Change all waiting tasks that match."""
        ...

    async def get(self, task: AnyTask) -> Task[Any]:
        return shown(await self.record(task))

    async def tasks(self, query: Query) -> AsyncIterator[Task[Any]]:
        """Return all tasks that match, page by page."""
        while True:
            page = await self.page(query)
            for task in page.items:
                yield task
            if page.next is None:
                return
            query = msgspec.structs.replace(query, cursor=page.next)

    async def result(self, task: AnyTask, *, timeout: Seconds | None = None) -> TaskRecord:
        """Wait until a task is final and return it if it succeeded. Raises TaskFailed, TaskCancelled or TimeoutError otherwise."""
        record = await self.wait(task, timeout=timeout)
        match record.state:
            case State.SUCCEEDED:
                return record
            case State.CANCELLED:
                raise TaskCancelled(f"task {record.id} of {record.handler} was cancelled", task_id=record.id)
            case state if state in FINAL:
                error = record.error
                how = f": {error.type}: {error.message}" if error else ""
                raise TaskFailed(
                    f"task {record.id} of {record.handler} ended {state}{how}",
                    task_id=record.id,
                    state=state,
                    error_type=error.type if error else None,
                )
            case state:
                waited = 0.0 if timeout is None else to_seconds(timeout)
                raise TimeoutError(f"task {record.id} of {record.handler} is still {state} after {waited:g} seconds of waiting")

    async def cancel(self, task: AnyTask | None = None, *, handler: str | None = None, key: str | None = None) -> CancelVerdict:
        """Cancel one task, given as a task, by id, or by handler and key. Return `cancelled`, `cancelling` or `finished`."""
        if task is None:
            if handler is None or key is None:
                raise InvalidValue("cancel takes a task, or handler= and key= together")
            task = (await self.find(handler, key)).id
        elif handler is not None or key is not None:
            raise InvalidValue("cancel takes a task, or handler= and key=, not both")
        task_id = id_of(task)
        [verdict] = await self.cancel_all([task_id])
        if verdict is CancelVerdict.UNKNOWN:
            raise _not_found(task_id)
        return verdict


class LocalClient(Client):
    """Verbs on tasks, gates and schedules over one opened store."""

    def __init__(
        self,
        store: Store,
        *,
        user: str,
        specs: Mapping[str, HandlerSpec] = {},
        hooks: Sequence[SubmitHook] = (),
        opened: Callable[[], Awaitable[None]] | None = None,
        revision: int = 0,
        declared: Callable[[], Sequence[Schedule]] = list,
    ) -> None:
        self.store = store
        self.user = user
        self.admission = Admission(store, user=user, own=specs.__contains__, hooks=hooks)
        self.gates = LocalGates(store, user=user, known=self.admission.declaration, opened=opened or store.open)
        self.schedules = LocalSchedules(
            store,
            user=user,
            admission=self.admission,
            specs=specs,
            opened=opened or store.open,
            revision=revision,
            declared=declared,
        )
        self.calendars = LocalCalendars(store, opened=opened or store.open)

    def now(self) -> Instant:
        return self.store.now()

    def listen(self, on_hint: Callable[[Hint], None]) -> Listener:
        return self.store.listen(on_hint)

    # ---- submitting ----

    async def submit(self, task: NewTask[R], *, connection: object | None = None, allow_unknown: bool = False) -> Task[R]:
        [added] = await self.add([await self.admission.admit(task, allow_unknown=allow_unknown)], connection)
        return shown(stored(task, added).record)

    async def submit_many(
        self, tasks: Iterable[NewTask[R]], *, connection: object | None = None, allow_unknown: bool = False
    ) -> Sequence[Task[R]]:
        asked = list(tasks)
        await self.admission.check(asked, allow_unknown=allow_unknown)
        new_tasks = [self.admission.complete(task) for task in asked]
        answers = await self.add(new_tasks, connection)
        if isinstance(answers, AllNew):
            return Lazy(answers, lambda added: shown(added.record))
        tasks_stored = [None if added.verdict is AddVerdict.DUPLICATE else shown(added.record) for added in answers]
        duplicates = {index: added.record.id for index, added in enumerate(answers) if added.verdict is AddVerdict.DUPLICATE}
        if duplicates:
            first = next(iter(duplicates))
            raise taken_keys(tasks_stored, duplicates, taken(new_tasks[first], answers[first]))
        return cast(list[Task[R]], tasks_stored)

    async def add(self, tasks: Sequence[NewTask[Any]], connection: object | None = None) -> Sequence[Added]:
        return await (self.store.add(tasks) if connection is None else self.store.add_on(connection, tasks))

    async def add_requested(self, requested: Sequence[Requested]) -> Sequence[Added | NamedRequest]:
        if all(request is None for _, request in requested):
            return await self.store.add([task for task, _ in requested])
        return await self.store.add_requested(requested)

    async def prepare(self, tasks: Sequence[NewTask[Any]], *, allow_unknown: bool) -> None:
        await self.admission.check(tasks, allow_unknown=allow_unknown)
        await self.store.prepare(tasks)

    # ---- reading ----

    async def record(self, task: AnyTask) -> TaskRecord:
        task_id = id_of(task)
        [record] = await self.store.get([task_id])
        if record is None:
            raise _not_found(task_id)
        return record

    async def records(self, ids: Sequence[str]) -> list[TaskRecord | None]:
        return await self.store.get(ids)

    async def find(self, handler: str, key: str) -> Task[Any]:
        record = await self.look_up(handler, check_name(key, "key"))
        if record is None:
            raise TaskNotFound(f"{handler} has no task with the key {key!r}, neither live nor kept")
        return shown(record)

    async def look_up(self, handler: str, key: str) -> TaskRecord | None:
        return await self.store.find(handler, key)

    async def page(self, query: Query) -> TaskPage:
        page = await self.store.page(query)
        return TaskPage([shown(record) for record in page.items], page.next)

    async def _pages(self, query: Query) -> AsyncIterator[Page]:
        while True:
            page = await self.store.page(query)
            yield page
            if page.next is None:
                return
            query = msgspec.structs.replace(query, cursor=page.next)

    async def wait(self, task: AnyTask, *, timeout: Seconds | None = None) -> TaskRecord:
        task_id = id_of(task)
        loop = asyncio.get_running_loop()
        end = None if timeout is None else loop.time() + waiting_time(timeout)
        woken = asyncio.Event()

        def on_hint(hint: Hint) -> None:
            if hint.kind in (HintKind.DONE, HintKind.CANCEL, HintKind.ANY):
                woken.set()

        listener = self.store.listen(on_hint)
        try:
            while True:
                woken.clear()
                record = await self.record(task_id)
                left = LOOK_AGAIN if end is None else min(LOOK_AGAIN, end - loop.time())
                if record.state in FINAL or left <= 0:
                    return record
                try:
                    async with asyncio.timeout(left):
                        await woken.wait()
                except TimeoutError:
                    continue
        finally:
            listener.close()

    # ---- changing ----

    async def cancel_all(self, ids: Sequence[str]) -> Sequence[CancelVerdict]:
        return await self.store.cancel(ids)

    async def retry(self, task: AnyTask) -> Task[Any]:
        task_id = id_of(task)
        [verdict] = await self.store.retry([task_id])
        return await self._changed(task_id, verdict, "retried: it must be final and not have succeeded")

    async def edit(
        self,
        task: AnyTask,
        *,
        due_at: datetime | None = None,
        delay: Seconds | None = None,
        priority: int | None = None,
        collection: str | None = None,
        seen: TaskRecord | None = None,
    ) -> Task[Any]:
        edit = self._edit(id_of(task), due_at=due_at, delay=delay, priority=priority, collection=collection)
        [verdict] = await self.store.edit([msgspec.structs.replace(edit, seen=seen)])
        return await self._changed(edit.id, verdict, "changed: it must be waiting")

    def _edit(self, task_id: str, *, due_at: datetime | None, delay: Seconds | None, priority: int | None, collection: str | None) -> Edit:
        if due_at is not None and delay is not None:
            raise InvalidValue("give due_at or delay, not both")
        instant = due_instant(due_at) if due_at is not None else None if delay is None else self.store.now() + delay_micros(delay)
        if instant is None and priority is None and collection is None:
            raise InvalidValue("nothing to change: give due_at, delay, priority or collection")
        return Edit(
            id=task_id,
            due_at=instant,
            priority=None if priority is None else check_priority(priority),
            collection=None if collection is None else check_name(collection, "collection"),
        )

    async def _changed(self, task_id: str, verdict: ChangeVerdict, refused: str) -> Task[Any]:
        match verdict:
            case ChangeVerdict.CHANGED:
                return await self.get(task_id)
            case ChangeVerdict.UNKNOWN:
                raise _not_found(task_id)
            case ChangeVerdict.DUPLICATE:
                record = await self.record(task_id)
                live = await self.find(record.handler, cast(str, record.key))
                raise DuplicateKey(f"task {live.id} holds the key {record.key!r} of {record.handler} by now", task_id=live.id)
            case ChangeVerdict.OUTDATED:
                raise ChangedMeanwhile(f"task {task_id} has changed since it was read; read it again")
            case ChangeVerdict.REFUSED:
                record = await self.record(task_id)
                raise Conflict(f"task {task_id} is {record.state} and cannot be {refused}")

    # ---- many at once ----

    async def cancel_many(self, query: Query, *, dry_run: bool = False) -> Bulk:
        return await self._bulk(query, LIVE, self.store.cancel, dry_run)

    async def retry_many(self, query: Query, *, dry_run: bool = False) -> Bulk:
        states = RETRIABLE if query.state is not None else frozenset({State.FAILED})
        return await self._bulk(query, states, self.store.retry, dry_run)

    async def edit_many(
        self,
        query: Query,
        *,
        due_at: datetime | None = None,
        delay: Seconds | None = None,
        priority: int | None = None,
        collection: str | None = None,
        dry_run: bool = False,
    ) -> Bulk:
        edit = self._edit("", due_at=due_at, delay=delay, priority=priority, collection=collection)

        async def change(ids: Sequence[str]) -> list[ChangeVerdict]:
            return await self.store.edit([msgspec.structs.replace(edit, id=each) for each in ids])

        return await self._bulk(query, EDITABLE, change, dry_run)

    async def _bulk(
        self, query: Query, states: frozenset[State], verb: Callable[[Sequence[str]], Awaitable[Sequence[str]]], dry_run: bool
    ) -> Bulk:
        if query == Query(limit=query.limit, cursor=query.cursor):
            raise InvalidValue("a verb on many tasks needs at least one filter, for example a handler or a state")
        if query.state is not None and query.state not in states:
            raise InvalidValue(f"tasks that are {query.state} cannot be changed so; possible are {', '.join(sorted(states))}")
        matched, answers = 0, Counter[str]()
        # in the order of the life cycle: a task that changes its state meanwhile is seen twice rather than missed
        for state in [each for each in State if each in states and query.state in (None, each)]:
            async for page in self._pages(msgspec.structs.replace(query, state=state, limit=MAX_PAGE, cursor=None)):
                matched += len(page.items)
                if not dry_run:
                    answers.update(str(answer) for answer in await verb([record.id for record in page.items]))
        return Bulk(matched, dict(answers))


def id_of(task: AnyTask) -> str:
    """Return the id of a task, or a given id. Text that cannot be an id raises another error than a task that is gone."""
    if isinstance(task, Task):
        return task.id
    if not isinstance(task, str):
        raise InvalidValue(f"expected a task or its id, got {type(task).__name__}")
    if not is_id(task):
        raise TaskNotFound(f"{task[:80]!r} is not a task id; ids look like 0198c2f4-5d1e-7a3b-8c21-5f0e9d3a7b46")
    return task


def _not_found(task_id: str) -> TaskNotFound:
    return TaskNotFound(f"there is no task {task_id}: it was never submitted to this store, or it has been pruned")


def taken_keys(stored: Sequence[Task[Any] | None], duplicates: Mapping[int, str], first: str) -> DuplicateKeys:
    """Return the error for those of many tasks whose key was taken; `first` is the error of the first one."""
    return DuplicateKeys(
        f"{len(duplicates)} of {len(stored)} tasks were not stored because their keys are taken, the others were; the first: {first}",
        tasks=stored,
        duplicates=duplicates,
    )


def stored(task: NewTask[Any], added: Added) -> Added:
    """Return the task of a store's answer. Raises DuplicateKey if another task holds its key."""
    if added.verdict is AddVerdict.DUPLICATE:
        raise duplicate_key(task, added)
    return added


def duplicate_key(task: NewTask[Any], added: Added) -> DuplicateKey:
    return DuplicateKey(taken(task, added), task_id=added.record.id)


def taken(task: NewTask[Any], added: Added) -> str:
    """Return the error that names the task which holds the key."""
    hint = (
        "it is running, so it cannot be replaced"
        if task.if_exists == "replace"
        else 'use if_exists="keep" to get that task or "replace" to change it'
    )
    return f"the key {task.key!r} of {task.handler} is held by task {added.record.id}; {hint}"


def waiting_time(timeout: Seconds) -> float:
    seconds = to_seconds(timeout, "timeout")
    if seconds < 0:
        raise InvalidValue(f"timeout must not be negative, got {timeout}")
    return seconds
