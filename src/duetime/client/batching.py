"""Tasks that are submitted one by one share a commit: while one batch is being stored, the next gathers.

A commit costs an fsync whatever its size, so 32 requests in one commit cost little more than one. No task waits for others to arrive: if
no batch is being stored, it is stored at once. An error in one task is reported to its caller only.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias, TypeVar

from duetime.clock import monotonic
from duetime.errors import DuetimeError, InvalidValue, StoreUnavailable
from duetime.model.task import NewTask
from duetime.store.requests import NamedRequest, Requested
from duetime.store.values import Added, TooManyCollections

Answer: TypeAlias = Added | NamedRequest  # a request that is stored with another body

R = TypeVar("R")
S = TypeVar("S", bound=NewTask[Any] | Requested)
T = TypeVar("T")

AT_MOST = 1_000  # tasks in one commit
MOST_WAITING = 20_000
PATIENCE = 3.0  # seconds for which writing is retried while the store does not answer
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 0.5


async def add_each(add: Callable[[Sequence[S]], Awaitable[Sequence[T]]], tasks: Sequence[S]) -> Sequence[T | DuetimeError]:
    """Store tasks together. If the store refuses them, find the ones at fault by bisection and store the others."""
    try:
        return await add(tasks)
    except StoreUnavailable:
        raise
    except TooManyCollections as error:
        return await _add_others(add, tasks, error)
    except DuetimeError as error:
        if len(tasks) == 1:
            return [error]
        half = len(tasks) // 2
        return [*await add_each(add, tasks[:half]), *await add_each(add, tasks[half:])]


async def _add_others(
    add: Callable[[Sequence[S]], Awaitable[Sequence[T]]], tasks: Sequence[S], error: TooManyCollections
) -> Sequence[T | DuetimeError]:
    """Store the tasks whose collections are not refused. The error names all that are: bisection would ask for each of thousands."""
    answers: dict[int, T | DuetimeError] = {}
    others: list[int] = []
    for index, item in enumerate(tasks):
        task = item[0] if isinstance(item, tuple) else item
        if task.handler == error.handler and task.collection in error.refused:
            answers[index] = InvalidValue(error.about(task.collection))
        else:
            others.append(index)
    if others:
        answers.update(zip(others, await add_each(add, [tasks[index] for index in others]), strict=True))
    return [answers[index] for index in range(len(tasks))]


async def persistently(write: Callable[[R], Awaitable[T]], items: R, patience: float = PATIENCE) -> T:
    """Write items, and retry for a while when the store does not answer. Each item has its own id, so it is stored only once."""
    end, pause = monotonic() + patience, FIRST_PAUSE
    while True:
        try:
            return await write(items)
        except StoreUnavailable:
            if monotonic() + pause > end:
                raise
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)


class Batching:
    """Collects tasks that are submitted one by one and stores them in batches."""

    def __init__(
        self,
        add: Callable[[Sequence[Requested]], Awaitable[Sequence[Answer]]],
        *,
        at_most: int = AT_MOST,
        most_waiting: int = MOST_WAITING,
        patience: float = PATIENCE,
    ) -> None:
        self._add = add
        self._at_most = at_most
        self._most_waiting = most_waiting
        self._patience = patience
        self._waiting: deque[tuple[Requested, asyncio.Future[Answer]]] = deque()
        self._storing: asyncio.Task[None] | None = None
        self._began_at: float | None = None

    async def add(self, task: NewTask[Any], request: NamedRequest | None = None) -> Answer:
        """Return the store's answer to one task, and to the request that asks for it; it is committed then."""
        if len(self._waiting) >= self._most_waiting:
            raise StoreUnavailable(f"{len(self._waiting):,} requests wait for the store already; nothing was kept of this one, try again")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        self._waiting.append(((task, request), future))
        if self._storing is None:
            self._storing = loop.create_task(self._store_all())
        return await future

    def __len__(self) -> int:
        """How many wait for the next batch."""
        return len(self._waiting)

    def stuck_for(self, now: float) -> float:
        """Return for how many seconds the present batch has been in progress."""
        return 0.0 if self._began_at is None else now - self._began_at

    async def _store_all(self) -> None:
        try:
            while self._waiting:
                size = min(len(self._waiting), self._at_most)
                batch = [self._waiting.popleft() for _ in range(size)]
                self._began_at = monotonic()
                await self._store(batch)
        finally:
            self._began_at = None
            self._storing = None

    async def _store(self, batch: Sequence[tuple[Requested, asyncio.Future[Answer]]]) -> None:
        answers: Sequence[Answer | BaseException]
        try:
            answers = await add_each(lambda some: persistently(self._add, some, self._patience), [requested for requested, _ in batch])
        except Exception as error:
            # each gets an exception of its own: a shared one would collect the tracebacks of all
            answers = [StoreUnavailable(str(error)) if isinstance(error, StoreUnavailable) else error for _ in batch]
        for (_, future), answer in zip(batch, answers, strict=True):
            if future.done():  # its caller has gone
                continue
            if isinstance(answer, BaseException):
                future.set_exception(answer)
            else:
                future.set_result(answer)
