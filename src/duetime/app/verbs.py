"""The methods of App on stored tasks: typed, and opening the store first. `client` and `insight` do the work."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from typing import Any, TypeVar, Unpack, overload

import msgspec

from duetime.app.filters import Filters, name_of, query_of
from duetime.app.handlers import AnyHandler
from duetime.client.client import AnyTask, Bulk, Client
from duetime.client.insight import AttemptInfo, HandlerInfo, Insight, Stats, WorkerInfo
from duetime.clock import Seconds
from duetime.model.task import Task
from duetime.model.why import Reason
from duetime.store.values import CancelVerdict
from duetime.targets.payload import FunctionPayloads
from duetime.targets.spec import HandlerSpec

R = TypeVar("R")


class Verbs:
    """The half of App that reads and changes stored tasks."""

    client: Client
    insight: Insight
    _names: Mapping[str, HandlerSpec]

    async def open(self) -> None:
        raise NotImplementedError

    # ---- reading ----

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

    async def tasks(self, **filters: Unpack[Filters]) -> AsyncIterator[Task[Any]]:
        """Return all tasks that match, newest first; with one final state as a filter, latest finished first."""
        query = query_of(filters)
        await self.open()
        async for task in self.client.tasks(query):
            yield task

    @overload
    async def result(self, task: Task[R], /, *, timeout: Seconds | None = None) -> R: ...
    @overload
    async def result(self, task: str, /, *, timeout: Seconds | None = None) -> Any: ...
    async def result(self, task: AnyTask, /, *, timeout: Seconds | None = None) -> Any:
        """Wait for a task's result. Raises TaskFailed, TaskCancelled, or TimeoutError when it takes longer than `timeout`."""
        await self.open()
        record = await self.client.result(task, timeout=timeout)
        spec = self._names.get(record.handler)
        if spec is not None and isinstance(spec.payloads, FunctionPayloads):
            return spec.payloads.decode_result(record.result)
        return None if record.result is None else msgspec.json.decode(record.result)

    async def why(self, task: AnyTask, /) -> list[Reason]:
        """Return what a task waits for, or how it ended."""
        await self.open()
        return await self.insight.why(await self.client.record(task))

    async def attempts(self, task: AnyTask, /) -> list[AttemptInfo]:
        """Return all attempts of a task, the first one first."""
        await self.open()
        return await self.insight.attempts((await self.client.record(task)).id)

    async def handlers(self) -> list[HandlerInfo]:
        """Return all handlers that any process has declared."""
        await self.open()
        return await self.insight.handlers()

    async def workers(self) -> list[WorkerInfo]:
        await self.open()
        return await self.insight.workers()

    async def stats(self) -> Stats:
        await self.open()
        return await self.insight.stats()

    # ---- changing ----

    async def cancel(
        self, task: AnyTask | None = None, /, *, handler: str | AnyHandler | None = None, key: str | None = None
    ) -> CancelVerdict:
        """Cancel a task, given as a task, by id, or by handler and key. Return `cancelled`, `cancelling` or `finished`."""
        await self.open()
        return await self.client.cancel(task, handler=None if handler is None else name_of(handler), key=key)

    @overload
    async def retry(self, task: Task[R], /) -> Task[R]: ...
    @overload
    async def retry(self, task: str, /) -> Task[Any]: ...
    async def retry(self, task: AnyTask, /) -> Task[Any]:
        """Run a task again that ended without success. It keeps its id, and attempt numbers continue."""
        await self.open()
        return await self.client.retry(task)

    @overload
    async def reschedule(self, task: Task[R], /, *, due_at: datetime | None = None, delay: Seconds | None = None) -> Task[R]: ...
    @overload
    async def reschedule(self, task: str, /, *, due_at: datetime | None = None, delay: Seconds | None = None) -> Task[Any]: ...
    async def reschedule(self, task: AnyTask, /, *, due_at: datetime | None = None, delay: Seconds | None = None) -> Task[Any]:
        """Change the due time of a waiting task: to an instant, or to a delay from now."""
        await self.open()
        return await self.client.edit(task, due_at=due_at, delay=delay)

    async def edit(self, task: AnyTask, /, *, priority: int | None = None, collection: str | None = None) -> Task[Any]:
        """Change the priority or collection of a waiting task."""
        await self.open()
        return await self.client.edit(task, priority=priority, collection=collection)

    async def cancel_many(self, *, dry_run: bool = False, **filters: Unpack[Filters]) -> Bulk:
        """Cancel all live tasks that match; a dry run only counts them."""
        query = query_of(filters)
        await self.open()
        return await self.client.cancel_many(query, dry_run=dry_run)

    async def retry_many(self, *, dry_run: bool = False, **filters: Unpack[Filters]) -> Bulk:
        """Retry all tasks that match. Without a state, retry those that failed."""
        query = query_of(filters)
        await self.open()
        return await self.client.retry_many(query, dry_run=dry_run)
