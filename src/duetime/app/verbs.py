"""The methods of App on stored tasks: typed, and opening the store first. `client` and `insight` do the work."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterable, Mapping
from datetime import datetime
from typing import Any, Literal, TypeVar, Unpack, overload

import msgspec

from duetime.app.filters import Filters, name_of, query_of
from duetime.app.handlers import AnyHandler
from duetime.client.activity import USUAL_UPCOMING
from duetime.client.client import AnyTask, Bulk, Client, id_of, waiting_time
from duetime.client.events import EventSource, filter_of
from duetime.client.flows import Flow, Flows, flow_failed
from duetime.client.insight import AttemptInfo, HandlerDetails, HandlerInfo, Insight, Stats
from duetime.client.series import Series
from duetime.client.servers import ServerInfo
from duetime.client.workers import WorkerDetails, WorkerInfo
from duetime.clock import Seconds
from duetime.errors import Conflict, FlowFailed, FlowNotFound, InvalidValue, PayloadTooLarge, TaskCancelled, TaskFailed, TaskNotFound
from duetime.model.event import AllOfNoun, Event, EventName
from duetime.model.flow import FLOW, NODE
from duetime.model.health import HealthVerdict
from duetime.model.query import USUAL_COUNT, Query, TaskCount
from duetime.model.results import succeeded_or_raise
from duetime.model.series import SeriesName
from duetime.model.task import FINAL, Task, TaskRecord, shown
from duetime.model.why import Reason
from duetime.runtime.portal import Inline
from duetime.store.values import CancelVerdict, ChangeVerdict
from duetime.targets.spec import HandlerSpec
from duetime.targets.streams import pieces_said

R = TypeVar("R")

READ_AT_ONCE = 500  # tasks whose results are asked for together
ENDED_OTHERWISE = (TaskFailed, TaskCancelled, TaskNotFound, FlowFailed, FlowNotFound, TimeoutError)


class Verbs:
    """The half of App that reads and changes stored tasks."""

    client: Client
    insight: Insight
    event_source: EventSource
    flows: Flows
    _names: Mapping[str, HandlerSpec]

    async def open(self) -> None:
        raise NotImplementedError

    async def ensure_open(self, *, declare: bool) -> None:
        raise NotImplementedError

    # ---- reading ----

    async def events(
        self,
        *names: EventName | AllOfNoun,
        handler: str | None = None,
        after: str | None = None,
    ) -> AsyncGenerator[Event, None]:
        """Yield what happens as it happens, from now on or after the cursor of an event: `async for event in app.events("task.failed")`.

        Without names all events; `handler` is a name, or a prefix with `*`. Events are written only while somebody follows.
        """
        wanted = filter_of(names, handler)
        await self.open()
        async with contextlib.aclosing(self.event_source.follow(wanted, after=after)) as found:
            async for event in found:
                yield event

    @overload
    async def get(self, task: Task[R], /) -> Task[R]: ...
    @overload
    async def get(self, task: str, /) -> Task[Any]: ...
    async def get(self, task: AnyTask, /) -> Task[Any]:
        """Return a task as it is now. Raises TaskNotFound if there is none."""
        await self.open()
        return await self.client.get(task)

    async def find(self, handler: str | AnyHandler, key: str) -> Task[Any]:
        """Return the live task that holds a key, or else the latest finished one that did."""
        await self.open()
        return await self.client.find(name_of(handler), key)

    async def tasks(self, query: str = "", /, **filters: Unpack[Filters]) -> AsyncIterator[Task[Any]]:
        """Return all tasks that match, newest first; if only final states match, latest finished first.

        A text says the same as filters: `app.tasks("state:failed handler:shop.* finished:<1h")`; both may be given.
        """
        found = await self._query(query, filters)
        async for task in self.client.tasks(found):
            yield task

    async def count(self, query: str = "", /, *, limit: int = USUAL_COUNT, **filters: Unpack[Filters]) -> TaskCount:
        """Count the tasks that match, up to a limit: `count` of them, and `more` if there are more."""
        found = await self._query(query, filters)
        return await self.client.count(found, limit)

    async def _query(self, text: str, filters: Filters) -> Query:
        if not text:
            query_of(filters)  # what is wrong is told before a store is opened
        await self.open()
        return query_of(filters, text, self.insight.now())

    @overload
    async def result(self, task: Task[R] | Flow[R], /, *, timeout: Seconds | None = None) -> R: ...
    @overload
    async def result(self, task: str, /, *, timeout: Seconds | None = None) -> Any: ...
    async def result(self, task: AnyTask | Flow[Any], /, *, timeout: Seconds | None = None) -> Any:
        """Wait for the result of a task or flow. Raises TaskFailed, TaskCancelled, or TimeoutError when it takes longer than `timeout`;
        for a flow that failed or was cancelled FlowFailed, which names the nodes.
        """
        await self.open()
        if isinstance(task, Flow):
            found = await self.flows.wait(task, timeout=timeout)
            if found.result_items is not None and found.result_of is not None:
                items = [item async for item in self.flows.results(found, found.result_of)]
                return self._result_of(msgspec.structs.replace(found, result=items))
            return self._result_of(found)
        return self._decoded(await self.client.result(task, timeout=timeout))

    @overload
    async def results(
        self, tasks: Iterable[Task[R] | Flow[R]], /, *, timeout: Seconds | None = None, return_exceptions: Literal[False] = False
    ) -> list[R]: ...
    @overload
    async def results(
        self, tasks: Iterable[Task[R] | Flow[R]], /, *, timeout: Seconds | None = None, return_exceptions: Literal[True]
    ) -> list[R | Exception]: ...
    @overload
    async def results(
        self, tasks: Iterable[AnyTask | Flow[Any]], /, *, timeout: Seconds | None = None, return_exceptions: bool = False
    ) -> list[Any]: ...
    async def results(
        self, tasks: Iterable[AnyTask | Flow[Any]], /, *, timeout: Seconds | None = None, return_exceptions: bool = False
    ) -> list[Any]:
        """Wait for the results of tasks and flows, and return them in the order of these; `timeout` is for all together.

        Raises what `result` raises for the first of them that did not succeed. With `return_exceptions` the errors stand in the list.
        """
        asked = list(tasks)
        await self.open()
        loop = asyncio.get_running_loop()
        end = None if timeout is None else loop.time() + waiting_time(timeout)
        found: list[Any] = []
        for first in range(0, len(asked), READ_AT_ONCE):
            part = asked[first : first + READ_AT_ONCE]
            ids = dict.fromkeys(id_of(each) for each in part if not isinstance(each, Flow))
            records = dict(zip(ids, await self.client.records(list(ids)), strict=True))
            for each in part:
                record = None if isinstance(each, Flow) else records[id_of(each)]
                try:
                    if record is not None and record.state in FINAL:
                        found.append(self._decoded(succeeded_or_raise(record)))
                    else:
                        left = None if end is None else max(0.0, end - loop.time())
                        found.append(await self.result(each, timeout=left))
                except ENDED_OTHERWISE as error:
                    if not return_exceptions:
                        raise
                    found.append(error)
        return found

    def _decoded(self, record: TaskRecord) -> Any:
        meta = record.meta or {}
        items = pieces_said(record.result, meta)
        if items is not None:
            flow, node = meta.get(FLOW), meta.get(NODE)
            text = f"task {record.id} has yielded {items:,} items, which are kept with its flow: app.flows.results({flow!r}, {node!r})"
            raise PayloadTooLarge(text)
        spec = self._names.get(record.handler)
        if spec is not None:
            return spec.payloads.decode_result(record.result)
        return None if record.result is None else msgspec.json.decode(record.result)

    def _result_of(self, flow: Flow[Any]) -> Any:
        if not flow.final:
            raise TimeoutError(f"flow {flow.id} of {flow.name} has not ended yet: {_open_nodes(flow)}")
        if flow.state != "succeeded":
            raise flow_failed(flow)
        handler = None if flow.result_of is None else flow.node(flow.result_of).handler
        spec = None if handler is None else self._names.get(handler)
        return flow.result if spec is None or flow.result is None else spec.payloads.decode_result(msgspec.json.encode(flow.result))

    async def why(self, task: AnyTask, /) -> list[Reason]:
        """Return what a task waits for, or how it ended."""
        await self.open()
        return await self.insight.why(await self.client.record(task))

    async def attempts(self, task: AnyTask, /) -> list[AttemptInfo]:
        """Return the attempts of a task, the first one first. Of very many the first 100 and the last 400 are kept (`left_out`)."""
        await self.open()
        return await self.insight.attempts((await self.client.record(task)).id)

    async def handlers(self) -> list[HandlerInfo]:
        """Return all handlers that any process has declared."""
        await self.open()
        return await self.insight.handlers()

    async def handler_info(self, name: str) -> HandlerDetails:
        """Return a handler and what it does; `app.handler(name).info()` says the same. Raises UnknownHandler if nobody has declared it."""
        await self.open()
        return await self.insight.handler(name)

    async def upcoming(self, handler: str, limit: int = USUAL_UPCOMING) -> list[Task[Any]]:
        """Return the waiting tasks of a handler in the order in which they are due."""
        await self.open()
        return [shown(record) for record in await self.insight.upcoming(handler, limit)]

    async def workers(self) -> list[WorkerInfo]:
        await self.open()
        return await self.insight.workers()

    async def servers(self) -> list[ServerInfo]:
        """Return the servers that have made themselves known, with their addresses, by start."""
        await self.open()
        return await self.insight.servers()

    async def get_worker(self, worker: str, /) -> WorkerDetails:
        """Return a worker and the tasks that it runs. Raises WorkerNotFound if none of that id is registered."""
        return await self.client.workers.get(worker)

    async def drain_worker(self, worker: str, /, *, undo: bool = False) -> WorkerInfo:
        """Let a worker finish what it runs and claim nothing more; with `undo` let it claim again.

        It stays registered until it is stopped. Raises WorkerNotFound if none of that id is registered.
        """
        return await self.client.workers.drain(worker, undo=undo)

    async def health(self) -> HealthVerdict:
        """Return whether all is well, and what is not, worst first."""
        await self.open()
        return await self.insight.health()

    async def stats(self) -> Stats:
        await self.open()
        return await self.insight.stats()

    async def series(
        self,
        names: Iterable[SeriesName | str] = (),
        /,
        *,
        handler: str | AnyHandler | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        step: int | None = None,
    ) -> Series:
        """Return what happened when: `(await app.series(["failed", "lateness_p99"], handler="shop.charge"))["failed"]`.

        Of a handler, or without one of all together; without names everything (`SeriesName`). `since` is fifteen minutes before
        `until`, which is now. `step` is 10, 300 or 3600 seconds, by default the finest that is still kept: 10 seconds are kept for an
        hour, 5 minutes for two days, hours for 92 days. A value is None where nothing is known.
        """
        await self.open()
        own = None if handler is None else name_of(handler)
        return await self.insight.series(names, handler=own, since=since, until=until, step=step)

    async def series_by_handler(
        self,
        names: Iterable[SeriesName | str] = (),
        /,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        step: int | None = None,
    ) -> list[Series]:
        """Return the same of each handler that is declared or has something to show, by name."""
        await self.open()
        return await self.insight.series_by_handler(names, since=since, until=until, step=step)

    # ---- changing ----

    def cancel(
        self,
        task: AnyTask | Flow[Any] | None = None,
        /,
        *,
        handler: str | AnyHandler | None = None,
        key: str | None = None,
        connection: object | None = None,
    ) -> Coroutine[Any, Any, CancelVerdict]:
        """Cancel a task or flow, given as such, a task also by id, or by handler and key. Return `cancelled`, `cancelling` or `finished`.

        `unknown` if no task has the key: there is nothing to cancel. An id that does not exist raises TaskNotFound. With a `connection`
        it is part of the caller's transaction: it returns `requested`, and is carried out after the commit.
        """
        if isinstance(task, Flow):
            if connection is not None:
                raise InvalidValue("a flow is cancelled in a transaction of its own; leave connection out, or cancel it after your commit")
            return self._cancel_flow(task)
        call = self._cancel(task, None if handler is None else name_of(handler), key, connection)
        return call if connection is None else Inline(call, lambda: self.ensure_open(declare=False))

    async def _cancel_flow(self, flow: Flow[Any]) -> CancelVerdict:
        await self.open()
        try:
            found = await self.flows.cancel(flow)
        except Conflict:
            return CancelVerdict.FINISHED
        return CancelVerdict.CANCELLED if found.final else CancelVerdict.CANCELLING

    async def _cancel(self, task: AnyTask | None, handler: str | None, key: str | None, connection: object | None) -> CancelVerdict:
        await self.ensure_open(declare=connection is None)
        if connection is None:
            return await self.client.cancel(task, handler=handler, key=key)
        return await self.client.cancel_on(connection, task, handler=handler, key=key)

    @overload
    async def retry(self, task: Task[R], /) -> Task[R]: ...
    @overload
    async def retry(self, task: Flow[R], /) -> Flow[R]: ...
    @overload
    async def retry(self, task: str, /) -> Task[Any]: ...
    async def retry(self, task: AnyTask | Flow[Any], /) -> Task[Any] | Flow[Any]:
        """Run a task again that ended without success. It keeps its id, and attempt numbers continue.

        A flow goes on from its tasks that ended without success.
        """
        await self.open()
        if isinstance(task, Flow):
            return await self.flows.retry(task)
        return await self.client.retry(task)

    @overload
    async def copy(self, task: Task[R], /, *, payload: Mapping[str, Any] | None = None) -> Task[R]: ...
    @overload
    async def copy(self, task: str, /, *, payload: Mapping[str, Any] | None = None) -> Task[Any]: ...
    async def copy(self, task: AnyTask, /, *, payload: Mapping[str, Any] | None = None) -> Task[Any]:
        """Submit a task once more, in whatever state it is: a new one with the same handler, payload and options, due now.

        The copy has no key and names its origin in its meta: `copy_of`. With a `payload` it has that one instead.
        """
        await self.open()
        return await self.client.copy(task, payload=payload)

    async def delete(self, task: AnyTask, /) -> None:
        """Remove a task that waits or has ended, with its attempts and logs. Raises Conflict if it runs, TaskNotFound if there is none.

        Tasks that wait for it fare as if it had been cancelled.
        """
        await self.open()
        await self.client.delete(task)

    @overload
    def reschedule(
        self, task: Task[R], /, *, due_at: datetime | None = None, delay: Seconds | None = None
    ) -> Coroutine[Any, Any, Task[R]]: ...
    @overload
    def reschedule(
        self, task: str, /, *, due_at: datetime | None = None, delay: Seconds | None = None
    ) -> Coroutine[Any, Any, Task[Any]]: ...
    @overload
    def reschedule(
        self, task: AnyTask, /, *, due_at: datetime | None = None, delay: Seconds | None = None, connection: object
    ) -> Coroutine[Any, Any, ChangeVerdict]: ...
    def reschedule(
        self, task: AnyTask, /, *, due_at: datetime | None = None, delay: Seconds | None = None, connection: object | None = None
    ) -> Coroutine[Any, Any, Task[Any] | ChangeVerdict]:
        """Change the due time of a waiting task: to an instant, or to a delay from now.

        With a `connection` it is part of the caller's transaction: it returns `requested`, and is carried out after the commit.
        """
        call = self._edit(task, connection, due_at=due_at, delay=delay)
        return call if connection is None else Inline(call, lambda: self.ensure_open(declare=False))

    @overload
    def edit(
        self,
        task: AnyTask,
        /,
        *,
        priority: int | None = None,
        collection: str | None = None,
        payload: Mapping[str, Any] | None = None,
    ) -> Coroutine[Any, Any, Task[Any]]: ...
    @overload
    def edit(
        self,
        task: AnyTask,
        /,
        *,
        priority: int | None = None,
        collection: str | None = None,
        payload: Mapping[str, Any] | None = None,
        connection: object,
    ) -> Coroutine[Any, Any, ChangeVerdict]: ...
    def edit(
        self,
        task: AnyTask,
        /,
        *,
        priority: int | None = None,
        collection: str | None = None,
        payload: Mapping[str, Any] | None = None,
        connection: object | None = None,
    ) -> Coroutine[Any, Any, Task[Any] | ChangeVerdict]:
        """Change the priority, collection or payload of a waiting task, or the payload of one that ended without success.

        With a `connection` it is part of the caller's transaction: it returns `requested`, and is carried out after the commit.
        """
        call = self._edit(task, connection, priority=priority, collection=collection, payload=payload)
        return call if connection is None else Inline(call, lambda: self._prepare_edit(task, payload))

    async def _edit(self, task: AnyTask, connection: object | None, **changes: Any) -> Task[Any] | ChangeVerdict:
        await self.ensure_open(declare=connection is None)
        if connection is None:
            return await self.client.edit(task, **changes)
        return await self.client.edit_on(connection, task, **changes)

    async def _prepare_edit(self, task: AnyTask, payload: Mapping[str, Any] | None) -> None:
        await self.ensure_open(declare=False)
        if payload is not None:
            await self.client.prepare_edit(task, payload)

    async def cancel_many(self, query: str = "", /, *, dry_run: bool = False, **filters: Unpack[Filters]) -> Bulk:
        """Cancel all live tasks that match; a dry run only counts them."""
        found = await self._query(query, filters)
        return await self.client.cancel_many(found, dry_run=dry_run)

    async def retry_many(self, query: str = "", /, *, dry_run: bool = False, **filters: Unpack[Filters]) -> Bulk:
        """Retry all tasks that match. Without a state, retry those that failed."""
        found = await self._query(query, filters)
        return await self.client.retry_many(found, dry_run=dry_run)


def _open_nodes(flow: Flow[Any]) -> str:
    return "; ".join(f"{node.name}: {node.why}" for node in flow.nodes if node.state in ("waiting", "running")) or "it is about to"
