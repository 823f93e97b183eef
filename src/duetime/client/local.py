"""The client over a store of this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar, cast

import msgspec

from duetime.client.admission import Admission, SubmitHook
from duetime.client.client import (
    WAIT_THROUGH,
    AnyTask,
    Bulk,
    Client,
    id_of,
    stored,
    taken,
    taken_keys,
    task_not_found,
    task_or_key,
    waiting_time,
)
from duetime.client.deadlocks import DeadlockWatch
from duetime.client.gates import LocalGates
from duetime.client.operations import Asked, LocalOperations, Perform, bulk_of
from duetime.client.quotas import OwnQuota, Quotas
from duetime.client.schedules.calendars import LocalCalendars
from duetime.client.schedules.local import LocalSchedules
from duetime.client.schedules.schedule import Schedule
from duetime.client.workers import LocalWorkers
from duetime.clock import Instant, Seconds
from duetime.errors import ChangedMeanwhile, Conflict, DuplicateKey, InvalidValue, StoreUnavailable, TaskNotFound
from duetime.ids import new_id
from duetime.model.lazy import Lazy
from duetime.model.operation import Verb
from duetime.model.query import MAX_PAGE, USUAL_COUNT, Page, Query, TaskCount, check_count
from duetime.model.task import FINAL, NewTask, Task, TaskRecord, check_name, check_priority, copied, delay_micros, due_instant, shown
from duetime.store import Store
from duetime.store.intents import Intent
from duetime.store.requests import NamedRequest, Requested
from duetime.store.shard import Listener
from duetime.store.values import Added, AddVerdict, AllNew, CancelVerdict, ChangeVerdict, DeleteVerdict, Edit, Hint, HintKind
from duetime.targets.payload import OpenPayloads
from duetime.targets.spec import HandlerSpec

R = TypeVar("R")

# A wait is woken by hints. It also polls this often, because a hint can be lost.
LOOK_AGAIN = 1.0


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
        perform: Perform | None = None,
    ) -> None:
        self.store = store
        self.user = user
        self._specs = specs
        self.admission = Admission(store, user=user, own=specs.__contains__, hooks=hooks)
        self.admission.quotas = self.quotas = Quotas(store, self._quota_of)
        self.gates = LocalGates(store, user=user, known=self.admission.declaration, opened=opened or store.open)
        self.operations = LocalOperations(store, user=user, opened=opened or store.open, perform=perform)
        self.workers = LocalWorkers(store, opened=opened or store.open)
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
        self._deadlocks = DeadlockWatch(store)

    def now(self) -> Instant:
        return self.store.now()

    def listen(self, on_hint: Callable[[Hint], None]) -> Listener:
        return self.store.listen(on_hint)

    # ---- submitting ----

    async def submit(self, task: NewTask[R], *, connection: object | None = None, allow_unknown: bool = False) -> Task[R]:
        admitted = await self.admission.admit(task, allow_unknown=allow_unknown, on_loop=connection is not None)
        [added] = await self.add([admitted], connection)
        return shown(stored(task, added).record)

    async def submit_many(
        self, tasks: Iterable[NewTask[R]], *, connection: object | None = None, allow_unknown: bool = False
    ) -> Sequence[Task[R]]:
        asked = list(tasks)
        await self.admission.check(asked, allow_unknown=allow_unknown, on_loop=connection is not None)
        new_tasks = [self.admission.complete(task) for task in asked]
        if connection is None:
            await self.quotas.take(new_tasks)
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
        if connection is None:
            return await self.store.add(tasks)
        for task in tasks:
            if task.pace is not None or task.if_exists == "queue_one":
                raise InvalidValue(
                    f'{task.handler}: if_exists="queue_one", debounce and throttle are not possible with connection=, because ends and '
                    'submissions with this key would wait for your transaction; submit after its commit, or use if_exists="replace"'
                )
        return await self.store.add_on(connection, tasks)

    async def add_requested(self, requested: Sequence[Requested]) -> Sequence[Added | NamedRequest]:
        if all(request is None for _, request in requested):
            return await self.store.add([task for task, _ in requested])
        return await self.store.add_requested(requested)

    async def prepare(self, tasks: Sequence[NewTask[Any]], *, allow_unknown: bool) -> None:
        await self.admission.check(tasks, allow_unknown=allow_unknown)
        await self.store.prepare(tasks)

    def _quota_of(self, handler: str) -> OwnQuota | None:
        spec = self._specs.get(handler)
        if spec is None:
            return self.admission.quota_of(handler)
        return None if spec.quota is None else OwnQuota(spec.name, spec.quota)

    # ---- reading ----

    async def record(self, task: AnyTask) -> TaskRecord:
        task_id = id_of(task)
        [record] = await self.store.get([task_id])
        if record is None:
            raise task_not_found(task_id)
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

    async def record_page(self, query: Query) -> Page:
        return await self.store.page(query.by(self.user))

    async def count(self, query: Query, limit: int = USUAL_COUNT) -> TaskCount:
        return await self.store.count(query.by(self.user), check_count(limit))

    async def _pages(self, query: Query) -> AsyncIterator[Page]:
        query = query.by(self.user)
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
        look_at = answered_at = loop.time()  # when to look next whether this wait can end; hints may be many

        def on_hint(hint: Hint) -> None:
            if hint.kind in (HintKind.DONE, HintKind.CANCEL, HintKind.ANY):
                woken.set()

        listener = self.store.listen(on_hint)
        try:
            while True:
                woken.clear()
                try:
                    record = await self.record(task_id)
                    if record.state not in FINAL and loop.time() >= look_at:
                        await self._deadlocks.look(record)
                        look_at = loop.time() + LOOK_AGAIN
                except StoreUnavailable:
                    soon = loop.time() + LOOK_AGAIN
                    if soon > answered_at + WAIT_THROUGH or (end is not None and soon > end):
                        raise
                    await asyncio.sleep(LOOK_AGAIN)
                    continue
                answered_at = loop.time()
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

    async def copy(self, task: AnyTask, *, payload: Mapping[str, Any] | None = None, submitted_by: str = "") -> Task[Any]:
        record = await self.record(task)
        # checked also if it is unchanged: the code may have changed since, and then the copy could not run
        encoded = await self._payload(record, shown(record).payload if payload is None else payload)
        return await self.submit(copied(record, new_id(), encoded, submitted_by or self.user))

    async def delete(self, task: AnyTask) -> None:
        task_id = id_of(task)
        [verdict] = await self.store.delete([task_id])
        match verdict:
            case DeleteVerdict.DELETED:
                return
            case DeleteVerdict.RUNNING:
                raise Conflict(f"task {task_id} is running and cannot be deleted: cancel it, and delete it when it has ended")
            case DeleteVerdict.UNKNOWN:
                raise task_not_found(task_id)

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
        task_id = id_of(task)
        encoded = None if payload is None else await self._payload(await self.record(task_id), payload)
        edit = self._edit(task_id, due_at=due_at, delay=delay, priority=priority, collection=collection, payload=encoded)
        [verdict] = await self.store.edit([msgspec.structs.replace(edit, seen=seen)])
        allowed = "it must be waiting, or for its payload alone have ended without success" if payload is not None else "it must be waiting"
        return await self._changed(edit.id, verdict, f"changed: {allowed}")

    async def cancel_on(
        self, connection: object, task: AnyTask | None = None, *, handler: str | None = None, key: str | None = None
    ) -> CancelVerdict:
        wanted = task_or_key(task, handler, key)
        if isinstance(wanted, str):
            task_id = (await self._record_on(connection, wanted)).id
        else:
            found = await self.store.find_on(connection, *wanted)
            if found is None:
                return CancelVerdict.UNKNOWN
            task_id = found.id
        await self.store.intend(connection, [Intent(task_id)])
        return CancelVerdict.REQUESTED

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
        record = await self._record_on(connection, id_of(task))
        encoded = None if payload is None else await self._payload(record, payload, on_loop=True)
        edit = self._edit(record.id, due_at=due_at, delay=delay, priority=priority, collection=collection, payload=encoded)
        await self.store.intend(connection, [Intent(record.id, edit)])
        return ChangeVerdict.REQUESTED

    async def prepare_edit(self, task: AnyTask, payload: Mapping[str, Any]) -> None:
        [record] = await self.store.get([id_of(task)])
        if record is not None:  # otherwise it was submitted in the same transaction, which has prepared its handler
            await self._payload(record, payload)

    async def _record_on(self, connection: object, task_id: str) -> TaskRecord:
        [record] = await self.store.get_on(connection, [task_id])
        if record is None:
            raise task_not_found(task_id)
        return record

    async def _payload(self, record: TaskRecord, payload: Mapping[str, Any], *, on_loop: bool = False) -> bytes:
        """Return a payload for a task that is stored; InvalidPayload if it does not fit the handler."""
        spec = self._specs.get(record.handler)
        if spec is not None:
            return spec.payloads.bind((), dict(payload))
        encoded = OpenPayloads(record.handler).bind((), dict(payload))
        await self.admission.check([NewTask(id=record.id, handler=record.handler, payload=encoded)], allow_unknown=True, on_loop=on_loop)
        return encoded

    def _edit(
        self,
        task_id: str,
        *,
        due_at: datetime | None,
        delay: Seconds | None,
        priority: int | None,
        collection: str | None,
        payload: bytes | None = None,
    ) -> Edit:
        if due_at is not None and delay is not None:
            raise InvalidValue("give due_at or delay, not both")
        instant = due_instant(due_at) if due_at is not None else None if delay is None else self.store.now() + delay_micros(delay)
        if instant is None and priority is None and collection is None and payload is None:
            raise InvalidValue("nothing to change: give due_at, delay, priority, collection or payload")
        return Edit(
            id=task_id,
            due_at=instant,
            priority=None if priority is None else check_priority(priority),
            collection=None if collection is None else check_name(collection, "collection"),
            payload=payload,
        )

    async def _changed(self, task_id: str, verdict: ChangeVerdict, refused: str) -> Task[Any]:
        match verdict:
            case ChangeVerdict.CHANGED:
                return await self.get(task_id)
            case ChangeVerdict.UNKNOWN:
                raise task_not_found(task_id)
            case ChangeVerdict.DUPLICATE:
                record = await self.record(task_id)
                live = await self.find(record.handler, cast(str, record.key))
                raise DuplicateKey(f"task {live.id} holds the key {record.key!r} of {record.handler} by now", task_id=live.id)
            case ChangeVerdict.OUTDATED:
                raise ChangedMeanwhile(f"task {task_id} has changed since it was read; read it again")
            case ChangeVerdict.REFUSED:
                record = await self.record(task_id)
                raise Conflict(f"task {task_id} is {record.state} and cannot be {refused}")
            case ChangeVerdict.REQUESTED:
                raise AssertionError("no store answers that")

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
        """Perform an operation to its end, or count what it would act on."""
        if not dry_run:
            started = await self.operations.start(asked)
            return bulk_of(await self.operations.wait(started.id))
        spec, matched = self.operations.spec_of(asked), 0
        if spec.states:
            async for page in self._pages(msgspec.structs.replace(spec.query, state=None, states=spec.states, limit=MAX_PAGE, brief=True)):
                matched += len(page.items)
        return Bulk(matched, {})
