"""The application service: everything that App, HTTP API and command line do with a store, except overviews (`insight`)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol, TypeAlias, TypeVar

import msgspec

from duetime.client.admission import HANDLERS_OWN, Admission
from duetime.client.gates import GateKeeper
from duetime.client.operations import Bulk, Operations
from duetime.client.schedules.calendars import Calendars
from duetime.client.schedules.service import Schedules
from duetime.client.workers import Workers
from duetime.clock import Instant, Seconds, to_seconds
from duetime.errors import DuplicateKey, DuplicateKeys, InvalidValue, TaskNotFound
from duetime.ids import is_id
from duetime.model.query import USUAL_COUNT, Page, Query, TaskCount
from duetime.model.results import succeeded_or_raise
from duetime.model.task import FINAL, NewTask, Task, TaskRecord, check_name, shown
from duetime.store.requests import NamedRequest, Requested
from duetime.store.shard import Listener
from duetime.store.values import Added, AddVerdict, CancelVerdict, ChangeVerdict, Hint

__all__ = [
    "HANDLERS_OWN",
    "WAIT_THROUGH",
    "AnyTask",
    "Bulk",
    "Client",
    "TaskPage",
    "duplicate_key",
    "id_of",
    "stored",
    "taken_keys",
    "waiting_time",
]

R = TypeVar("R")
WAIT_THROUGH = 60.0  # seconds of an outage of the store, or of the server, that a wait survives
AnyTask: TypeAlias = Task[Any] | str


class TaskPage(msgspec.Struct, frozen=True):
    """Some tasks and the cursor of the next page, None on the last. `looked`: see `Page`."""

    items: list[Task[Any]]
    next: str | None
    looked: int | None = None


class Client(Protocol):
    """Everything that App, HTTP API and command line do with a store, directly or over a server, except overviews (`Insight`)."""

    user: str
    admission: Admission
    gates: GateKeeper
    operations: Operations
    workers: Workers
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

    async def record_page(self, query: Query) -> Page:
        """Return one page of tasks as they are stored."""
        ...

    async def count(self, query: Query, limit: int = USUAL_COUNT) -> TaskCount:
        """Count the tasks that match, up to a limit."""
        ...

    async def wait(self, task: AnyTask, *, timeout: Seconds | None = None) -> TaskRecord:
        """Wait until a task is final, at most `timeout` seconds, and return it as it is then. An outage of a minute is waited through."""
        ...

    async def retry(self, task: AnyTask) -> Task[Any]:
        """Take a finished task that did not succeed back to pending."""
        ...

    async def copy(self, task: AnyTask, *, payload: Mapping[str, Any] | None = None, submitted_by: str = "") -> Task[Any]:
        """Submit a task once more as a new one, due now, without its key; with another payload if one is given."""
        ...

    async def delete(self, task: AnyTask) -> None:
        """Remove a task that waits or has ended, with its attempts and output. Raises Conflict if it runs."""
        ...

    async def edit(
        self,
        task: AnyTask,
        *,
        due_at: datetime | None = None,
        delay: Seconds | None = None,
        priority: int | None = None,
        collection: str | None = None,
        payload: Mapping[str, Any] | None = None,
        seen: TaskRecord | None = None,
    ) -> Task[Any]:
        """Change a waiting task's due time, priority, collection or payload. Raises ChangedMeanwhile if the task differs from `seen`.

        The payload alone can also be changed of a task that ended without success, for a retry.
        """
        ...

    async def cancel_on(
        self, connection: object, task: AnyTask | None = None, *, handler: str | None = None, key: str | None = None
    ) -> CancelVerdict:
        """Do the same as `cancel` as part of the caller's transaction: `requested`, and carried out after the commit.

        The task is the one that the transaction sees; its state counts when the cancel is carried out. Not available over a server.
        """
        ...

    async def edit_on(
        self,
        connection: object,
        task: AnyTask,
        *,
        due_at: datetime | None = None,
        delay: Seconds | None = None,
        priority: int | None = None,
        collection: str | None = None,
        payload: Mapping[str, Any] | None = None,
    ) -> ChangeVerdict:
        """Do the same as `edit` as part of the caller's transaction: `requested`, and carried out after the commit.

        It has no effect if the task is not waiting any more by then. A delay counts from the call. Not available over a server.
        """
        ...

    async def prepare_edit(self, task: AnyTask, payload: Mapping[str, Any]) -> None:
        """Read in advance what checking this payload on a connection needs. After that, `edit_on` does not suspend."""
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

    async def page(self, query: Query) -> TaskPage:
        """Return one page of tasks. It has fewer than the limit where they are large; its `next` says whether there are more."""
        page = await self.record_page(query)
        return TaskPage([shown(record) for record in page.items], page.next, page.looked)

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
        if record.state not in FINAL:
            waited = 0.0 if timeout is None else to_seconds(timeout)
            raise TimeoutError(f"task {record.id} of {record.handler} is still {record.state} after {waited:g} seconds of waiting")
        return succeeded_or_raise(record)

    async def cancel(self, task: AnyTask | None = None, *, handler: str | None = None, key: str | None = None) -> CancelVerdict:
        """Cancel one task, given as a task, by id, or by handler and key. Return `cancelled`, `cancelling` or `finished`.

        `unknown` if no task has the key: there is nothing to cancel. An id that does not exist raises TaskNotFound.
        """
        wanted = task_or_key(task, handler, key)
        if isinstance(wanted, str):
            task_id = wanted
        else:
            try:
                task_id = (await self.find(*wanted)).id
            except TaskNotFound:
                return CancelVerdict.UNKNOWN
        [verdict] = await self.cancel_all([task_id])
        if verdict is CancelVerdict.UNKNOWN:
            raise task_not_found(task_id)
        return verdict


def task_or_key(task: AnyTask | None, handler: str | None, key: str | None) -> str | tuple[str, str]:
    """Return the id of the task to cancel, or its handler and key."""
    if task is not None:
        if handler is not None or key is not None:
            raise InvalidValue("cancel takes a task, or handler= and key=, not both")
        return id_of(task)
    if handler is None or key is None:
        raise InvalidValue("cancel takes a task, or handler= and key= together")
    return handler, check_name(key, "key")


def id_of(task: AnyTask) -> str:
    """Return the id of a task, or a given id. Text that cannot be an id raises another error than a task that is gone."""
    if isinstance(task, Task):
        return task.id
    if not isinstance(task, str):
        raise InvalidValue(f"expected a task or its id, got {type(task).__name__}")
    if not is_id(task):
        raise TaskNotFound(f"{task[:80]!r} is not a task id; ids look like 0198c2f4-5d1e-7a3b-8c21-5f0e9d3a7b46")
    return task


def task_not_found(task_id: str) -> TaskNotFound:
    return TaskNotFound(f"there is no task {task_id}: it was never submitted to this store, or it has been deleted or pruned")


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
        'it is running, so it cannot be replaced; if_exists="queue_one" lets one more wait for its end'
        if task.if_exists == "replace"
        else 'use if_exists="keep" to get that task or "replace" to change it'
    )
    return f"the key {task.key!r} of {task.handler} is held by task {added.record.id}; {hint}"


def waiting_time(timeout: Seconds) -> float:
    seconds = to_seconds(timeout, "timeout")
    if seconds < 0:
        raise InvalidValue(f"timeout must not be negative, got {timeout}")
    return seconds
