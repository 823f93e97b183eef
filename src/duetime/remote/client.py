"""The client over HTTP: verbs on tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar, cast

import msgspec
from msgspec import UNSET

from duetime.client.admission import HANDLERS_OWN, Admission, refuse_others
from duetime.client.client import WAIT_THROUGH, AnyTask, Client, id_of, taken_keys, waiting_time
from duetime.client.operations import Asked, Bulk, bulk_of
from duetime.client.services import Program
from duetime.clock import Instant, Seconds, to_instant
from duetime.errors import DuetimeError, InvalidValue, PayloadTooLarge, TaskNotFound, UnknownHandler
from duetime.model.operation import Verb
from duetime.model.query import MAX_PAGE, USUAL_COUNT, USUAL_SCAN, Page, Query, TaskCount
from duetime.model.task import (
    FINAL,
    NewTask,
    State,
    Task,
    TaskRecord,
    accepted,
    check_name,
    due_of,
    shown,
)
from duetime.remote.address import needs_store
from duetime.remote.calendars import RemoteCalendars
from duetime.remote.gates import RemoteGates
from duetime.remote.handlers import ServerHandlers
from duetime.remote.operations import RemoteOperations, change_of
from duetime.remote.problems import error_of
from duetime.remote.query import query_params
from duetime.remote.schedules import RemoteSchedules
from duetime.remote.transport import NDJSON, Transport
from duetime.remote.workers import RemoteWorkers
from duetime.store.requests import NamedRequest, Requested
from duetime.store.shard import Listener
from duetime.store.values import Added, CancelVerdict, ChangeVerdict, Hint
from duetime.targets.spec import HandlerSpec
from duetime.wire.tasks import (
    BatchAnswer,
    BatchItem,
    BulkAnswer,
    BulkBody,
    BulkEditBody,
    CancelAnswer,
    CopyBody,
    RawTask,
    RawTaskList,
    TaskChange,
    Verdict,
    body_of,
    filter_of,
    record_of,
)

R = TypeVar("R")

MOST_ITEMS = 10_000  # in a batch
MOST_BYTES = 8_000_000  # in a batch; for a server that accepts less, the size is halved
LONGEST_WAIT = 30.0  # seconds that one waiting request may last; proxies cut requests that last longer than a minute
LONGEST_BULK = 3_600.0  # seconds that a verb on many tasks may take
BREATH = 0.2  # seconds before a wait is requested again that the server has ended early


class RemoteAdmission(Admission):
    """Checks new tasks against the handlers that the server knows. The server checks them again."""

    async def declare(self, specs: Iterable[HandlerSpec]) -> None:
        """Do nothing: the workers that run the handlers declare them."""

    async def check(self, tasks: Sequence[NewTask[Any]], *, allow_unknown: bool, on_loop: bool = False) -> None:
        await super().check(tasks, allow_unknown=False, on_loop=on_loop)
        for handler in {task.handler for task in tasks} - self._declared.keys():
            await self.declaration(handler)

    def priority_of(self, handler: str) -> int:
        """Leave the priority to the server, which knows the handler's present declaration."""
        return HANDLERS_OWN

    def known_priority(self, task: NewTask[Any]) -> int:
        """Return the priority of a task that the server has stored."""
        return super().priority_of(task.handler) if task.priority == HANDLERS_OWN else task.priority

    def _unknown(self, handler: str, *, hint: bool = True) -> UnknownHandler:
        what = (self._meant(handler) if hint else "") or "start a worker that declares it"
        return UnknownHandler(f"the server knows no handler {handler!r} that may be used here; {what}")


class RemoteClient(Client):
    """The verbs of Client over HTTP. Inherited methods use those that are defined here."""

    admission: RemoteAdmission

    def __init__(self, transport: Transport, program: Program) -> None:
        self._transport = transport
        self.user = program.user
        self.admission = RemoteAdmission(ServerHandlers(transport), user=program.user, own=program.specs.__contains__, hooks=program.hooks)
        self.gates = RemoteGates(transport, user=program.user, opened=program.opened)
        self.operations = RemoteOperations(transport, opened=program.opened)
        self.workers = RemoteWorkers(transport, opened=program.opened)
        self.schedules = RemoteSchedules(transport, program)
        self.calendars = RemoteCalendars(transport, opened=program.opened)

    def __repr__(self) -> str:
        return f"<client of {self._transport.url}>"

    def now(self) -> Instant:
        return self._transport.now()

    def listen(self, on_hint: Callable[[Hint], None]) -> Listener:
        raise needs_store("this", self._transport.url)

    # ---- submitting ----

    async def submit(self, task: NewTask[R], *, connection: object | None = None, allow_unknown: bool = False) -> Task[R]:
        self._refuse(connection)
        refuse_others([task])
        new_task = self.admission.complete(task)
        try:
            # the task's id is the Idempotency-Key, so the request can be repeated and the task is stored once
            found = await self._transport.ask(
                RawTask, "POST", "/v1/tasks", body=body_of(new_task), headers={"idempotency-key": task.id}, again=True
            )
        except UnknownHandler as error:
            raise _declared_only(error) if allow_unknown else error from None
        return shown(record_of(found))

    async def submit_many(
        self, tasks: Iterable[NewTask[R]], *, connection: object | None = None, allow_unknown: bool = False
    ) -> Sequence[Task[R]]:
        self._refuse(connection)
        asked = list(tasks)
        refuse_others(asked)
        try:
            await self.admission.check(asked, allow_unknown=False)
        except UnknownHandler as error:
            raise _declared_only(error) if allow_unknown else error from None
        new_tasks = [self.admission.complete(task) for task in asked]
        lines = [msgspec.json.encode(body_of(new_task)) for new_task in new_tasks]
        outcome = _Outcome()
        for start, end in _batches(lines):
            try:
                await self._send(lines, start, end, new_tasks, outcome)
            except DuetimeError as error:
                if any(outcome.tasks):
                    error.args = (f"{error}; of {len(asked):,} tasks the first {len(outcome.tasks):,} have been stored by then",)
                raise
        outcome.tell()
        return cast(list[Task[R]], outcome.tasks)

    async def _send(self, lines: Sequence[bytes], start: int, end: int, new_tasks: Sequence[NewTask[Any]], outcome: _Outcome) -> None:
        try:
            # not repeated once it was sent: a batch has no Idempotency-Key, so the server could not recognize a repeat
            answer = await self._transport.send("POST", "/v1/tasks/batch", data=b"\n".join(lines[start:end]), media=NDJSON, again=False)
        except PayloadTooLarge:
            if end - start < 2:
                raise
            half = (start + end) // 2
            await self._send(lines, start, half, new_tasks, outcome)
            await self._send(lines, half, end, new_tasks, outcome)
            return
        batch = self._transport.read(BatchAnswer, answer)
        outcome.note(batch.items, await self._stored(batch, new_tasks[start:end]))

    async def _stored(self, batch: BatchAnswer, new_tasks: Sequence[NewTask[Any]]) -> list[Task[Any] | None]:
        """Return the tasks of a batch. New ones are known from what was sent; one that existed before must be read."""
        now = self._transport.now() if batch.submitted_at is None else to_instant(batch.submitted_at)
        older = [item.id for item in batch.items if item.id is not None and item.verdict in (Verdict.KEPT, Verdict.REPLACED)]
        known = dict(zip(older, await self.records(older), strict=True))

        def task_of(item: BatchItem, new_task: NewTask[Any]) -> Task[Any] | None:
            if item.verdict is Verdict.ADDED and item.id is not None:
                priority = self.admission.known_priority(new_task)
                added = msgspec.structs.replace(new_task, id=item.id, submitted_by=batch.submitted_by or "", priority=priority)
                return shown(accepted(added, State.PENDING, now, due_of(added, now)))
            record = known.get(item.id or "")
            return None if record is None else shown(record)

        return [task_of(item, new_task) for item, new_task in zip(batch.items, new_tasks, strict=True)]

    async def add(self, tasks: Sequence[NewTask[Any]], connection: object | None = None) -> Sequence[Added]:
        raise needs_store("this", self._transport.url)

    async def prepare(self, tasks: Sequence[NewTask[Any]], *, allow_unknown: bool) -> None:
        raise self._no_transaction()

    def _refuse(self, connection: object | None) -> None:
        if connection is not None:
            raise self._no_transaction()

    def _no_transaction(self) -> InvalidValue:
        return needs_store("connection=, a part of your own transaction,", self._transport.url)

    # ---- reading ----

    async def record(self, task: AnyTask) -> TaskRecord:
        return await self._task("GET", id_of(task))

    async def records(self, ids: Sequence[str]) -> list[TaskRecord | None]:
        async def one(task_id: str) -> TaskRecord | None:
            try:
                return await self.record(task_id)
            except TaskNotFound:
                return None

        return list(await asyncio.gather(*map(one, ids)))

    async def add_requested(self, requested: Sequence[Requested]) -> Sequence[Added | NamedRequest]:
        raise needs_store("this", self._transport.url)

    async def look_up(self, handler: str, key: str) -> TaskRecord | None:
        raise needs_store("this", self._transport.url)

    async def find(self, handler: str, key: str) -> Task[Any]:
        query = Query(handler=handler, key=check_name(key, "key"), limit=MAX_PAGE)
        found = [task async for task in self.tasks(query)]
        if not found:
            raise TaskNotFound(f"{handler} has no task with the key {key!r}, neither live nor kept")
        live = [task for task in found if not task.final]
        return live[0] if live else max(found, key=lambda task: task.finished_at or task.submitted_at)

    async def record_page(self, query: Query) -> Page:
        if query.nothing:
            return Page([], None)
        more = {"limit": query.limit, "cursor": query.cursor, "brief": query.brief or None, "scan": min(query.scan, USUAL_SCAN)}
        page = await self._transport.ask(RawTaskList, "GET", "/v1/tasks", query=query_params({**filter_of(query), **more}))
        return Page([record_of(task) for task in page.items], page.next, page.looked)

    async def count(self, query: Query, limit: int = USUAL_COUNT) -> TaskCount:
        if query.nothing:
            return TaskCount(0, False)
        return await self._transport.ask(TaskCount, "GET", "/v1/tasks/count", query=query_params({**filter_of(query), "limit": limit}))

    async def wait(self, task: AnyTask, *, timeout: Seconds | None = None) -> TaskRecord:
        task_id = id_of(task)
        loop = asyncio.get_running_loop()
        end = None if timeout is None else loop.time() + waiting_time(timeout)
        while True:
            began = loop.time()
            asked = LONGEST_WAIT if end is None else max(0.0, min(LONGEST_WAIT, end - began))
            record = await self._task("GET", task_id, query={"wait": f"{asked:.3f}"}, wait=asked, patience=WAIT_THROUGH)
            left = LONGEST_WAIT if end is None else end - loop.time()
            if record.state in FINAL or left <= 0:
                return record
            if loop.time() - began < asked:  # a server that stops ends all waits
                await asyncio.sleep(min(BREATH, left))

    # ---- changing ----

    async def cancel_all(self, ids: Sequence[str]) -> Sequence[CancelVerdict]:
        async def one(task_id: str) -> CancelVerdict:
            return (await self._transport.ask(CancelAnswer, "POST", f"/v1/tasks/{task_id}/cancel")).answer

        return list(await asyncio.gather(*map(one, ids)))

    async def retry(self, task: AnyTask) -> Task[Any]:
        return shown(await self._task("POST", id_of(task), "/retry"))

    async def copy(self, task: AnyTask, *, payload: Mapping[str, Any] | None = None, submitted_by: str = "") -> Task[Any]:
        body = CopyBody(UNSET if payload is None else dict(payload))  # the server knows from the token who submits it
        return shown(await self._task("POST", id_of(task), "/copy", body=body))

    async def delete(self, task: AnyTask) -> None:
        await self._transport.send("DELETE", f"/v1/tasks/{id_of(task)}")

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
        if seen is not None:
            raise needs_store("a change that expects a task as it was seen", self._transport.url)
        asked = Asked(verb=Verb.EDIT, query=Query(), due_at=due_at, delay=delay, priority=priority, collection=collection)
        changes = msgspec.structs.asdict(change_of(asked))
        change = TaskChange(**changes, payload=UNSET if payload is None else dict(payload))
        return shown(await self._task("PATCH", id_of(task), body=change, again=True))

    async def cancel_on(
        self, connection: object, task: AnyTask | None = None, *, handler: str | None = None, key: str | None = None
    ) -> CancelVerdict:
        raise self._no_transaction()

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
        raise self._no_transaction()

    async def prepare_edit(self, task: AnyTask, payload: Mapping[str, Any]) -> None:
        raise self._no_transaction()

    async def _task(self, method: str, task_id: str, verb: str = "", **options: Any) -> TaskRecord:
        return record_of(await self._transport.ask(RawTask, method, f"/v1/tasks/{task_id}{verb}", **options))

    # ---- many at once ----

    async def cancel_many(self, query: Query, *, dry_run: bool = False) -> Bulk:
        return await self._bulk(Asked(verb=Verb.CANCEL, query=query), dry_run)

    async def retry_many(self, query: Query, *, dry_run: bool = False) -> Bulk:
        return await self._bulk(Asked(verb=Verb.RETRY, query=query), dry_run)

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
        asked = Asked(verb=Verb.EDIT, query=query, due_at=due_at, delay=delay, priority=priority, collection=collection)
        return await self._bulk(asked, dry_run)

    async def _bulk(self, asked: Asked, dry_run: bool) -> Bulk:
        """Start an operation and wait for its end, or count what it would act on."""
        if not dry_run:
            started = await self.operations.start(asked)
            return bulk_of(await self.operations.wait(started.id))
        fields = {**filter_of(asked.query), "dry_run": True}
        body = BulkEditBody(**fields, set=change_of(asked)) if asked.verb is Verb.EDIT else BulkBody(**fields)
        # the duration depends on how many tasks match; the server keeps working, so its silence means nothing
        done = await self._transport.ask(BulkAnswer, "POST", f"/v1/tasks/{asked.verb}", body=body, again=True, wait=LONGEST_BULK)
        return Bulk(done.matched, done.answers)


class _Outcome:
    """The results for many tasks so far, batch by batch and in order."""

    def __init__(self) -> None:
        self.tasks: list[Task[Any] | None] = []
        self._duplicates: dict[int, BatchItem] = {}
        self._refused: dict[int, BatchItem] = {}

    def note(self, items: Sequence[BatchItem], tasks: Sequence[Task[Any] | None]) -> None:
        for index, item in enumerate(items, start=len(self.tasks)):
            if item.verdict is Verdict.DUPLICATE:
                self._duplicates[index] = item
            elif item.verdict is Verdict.REFUSED:
                self._refused[index] = item
        self.tasks += tasks

    def tell(self) -> None:
        """Raise for what was not stored."""
        if self._refused:
            problem = next(iter(self._refused.values())).problem
            error = DuetimeError("the server refused it without a reason") if problem is None else error_of(problem)
            stored = sum(task is not None for task in self.tasks)
            if stored:
                counted = f"{len(self._refused):,} of {len(self.tasks):,} tasks were refused, {stored:,} stored"
                error.args = (f"{counted}; the first: {error}",)
            raise error
        if self._duplicates:
            problem = next(iter(self._duplicates.values())).problem
            raise taken_keys(
                self.tasks, {index: item.id or "" for index, item in self._duplicates.items()}, "" if problem is None else problem.detail
            )


def _batches(lines: Sequence[bytes]) -> Iterator[tuple[int, int]]:
    """Divide items into batches that a server accepts."""
    start = size = 0
    for index, line in enumerate(lines):
        if index > start and (index - start == MOST_ITEMS or size + len(line) > MOST_BYTES):
            yield start, index
            start, size = index, 0
        size += len(line) + 1
    if start < len(lines):
        yield start, len(lines)


def _declared_only(error: UnknownHandler) -> UnknownHandler:
    return UnknownHandler(f"{error}; a server takes tasks of declared handlers only, whatever is allowed")
