"""How attempts of a worker reach what they have saved. Saves that come at the same time are written together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from duetime.clock import Instant
from duetime.errors import InvalidPayload, StoreUnavailable
from duetime.model.flow_values import Source
from duetime.model.steps import NewStep, StepRecord
from duetime.model.task import NewTask, TaskRecord
from duetime.store import Store
from duetime.store.flows import NewPiece, PieceVerdict
from duetime.store.results import ResultsPage, results_page
from duetime.targets.spec import HandlerSpec

T = TypeVar("T")

AddTasks = Callable[[Sequence[NewTask[Any]]], Awaitable[object]]

AT_ONCE = 500  # steps in one write


class WorkerDoor:
    """The `StepDoor` of one worker. Called in its event loop, in threads, and in event loops that handlers run in threads."""

    def __init__(self, store: Store, worker: str, specs: Mapping[str, HandlerSpec], add: AddTasks | None) -> None:
        self._store = store
        self._worker = worker
        self._specs = specs
        self._add = add or store.add
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[NewStep, asyncio.Future[StepRecord | None]]] = []
        self._writer: asyncio.Task[None] | None = None

    def now(self) -> Instant:
        return self._store.now()

    async def load(self, task: str) -> list[StepRecord]:
        return await self._here(lambda: self._store.steps(task))

    async def save(self, step: NewStep) -> StepRecord | None:
        return await self._here(lambda: self._save(step))

    async def add(self, tasks: Sequence[NewTask[Any]]) -> None:
        await self._here(lambda: self._add(tasks))

    async def records(self, ids: Sequence[str]) -> list[TaskRecord | None]:
        return await self._here(lambda: self._store.get(ids))

    async def emit(self, piece: NewPiece) -> PieceVerdict:
        [verdict] = await self._here(lambda: self._store.save_pieces(self._worker, [piece]))
        return verdict

    async def results(self, task: str, source: Source, first: int) -> ResultsPage:
        return await self._here(lambda: self._results(task, source, first))

    async def _results(self, task: str, source: Source, first: int) -> ResultsPage:
        # found by the task: what its payload says may come from anybody
        flow = await self._store.flow_of(task)
        if flow is None:
            raise InvalidPayload(
                f"task {task} belongs to no flow, so it cannot read the results of {source.node!r}: give it Results.of([…])"
            )
        return await results_page(self._store, flow, source, first)

    def decode_result(self, record: TaskRecord) -> Any:
        spec = self._specs.get(record.handler)
        if spec is not None:
            return spec.payloads.decode_result(record.result)
        return None if record.result is None else msgspec.json.decode(record.result)

    async def _here(self, call: Callable[[], Awaitable[T]]) -> T:
        """Await a call in the worker's event loop, wherever the attempt's code runs."""
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run_coroutine_threadsafe(_awaited(call), self._loop).result()
        if running is self._loop:
            return await call()
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_awaited(call), self._loop))

    async def _save(self, step: NewStep) -> StepRecord | None:
        saved: asyncio.Future[StepRecord | None] = self._loop.create_future()
        self._waiting.append((step, saved))
        if self._writer is None:
            self._writer = self._loop.create_task(self._write(), name="duetime steps")
        return await saved

    async def _write(self) -> None:
        """Write what waits, batch after batch. A store that is away is told to each attempt, whose retry comes later."""
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:AT_ONCE], self._waiting[AT_ONCE:]
                try:
                    records = await self._store.save_steps(self._worker, [step for step, _ in batch])
                except BaseException as error:
                    told = error if isinstance(error, Exception) else StoreUnavailable("the worker stops: the step is not saved")
                    for _, saved in batch:
                        if not saved.done():
                            saved.set_exception(told)
                    if not isinstance(error, Exception):
                        raise
                else:
                    for (_, saved), record in zip(batch, records, strict=True):
                        if not saved.done():
                            saved.set_result(record)
        finally:
            self._writer = None


async def _awaited(call: Callable[[], Awaitable[T]]) -> T:
    return await call()
