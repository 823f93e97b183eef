"""Steps of attempts in a sub-process: its side asks, the worker's side answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from duetime import errors
from duetime.clock import Instant, SystemClock
from duetime.errors import StoreUnavailable
from duetime.model.flow_values import Source
from duetime.model.steps import NewStep, StepRecord
from duetime.model.task import NewTask, TaskRecord
from duetime.store.flows import NewPiece, PieceVerdict
from duetime.store.results import ResultsPage
from duetime.targets.python.frames import Ask, Channel, Told
from duetime.targets.steps import StepDoor

_told = msgspec.json.Decoder(Told)
_clock = SystemClock()
_NAMED: dict[str, type[Exception]] = {
    each.__name__: each
    for each in vars(errors).values()
    if isinstance(each, type) and issubclass(each, errors.DuetimeError) and "__init__" not in vars(each)
}


class AskingDoor:
    """A `StepDoor` in a sub-process. One question at a time: the answer to it is the next frame."""

    def __init__(self, channel: Channel, loop: asyncio.AbstractEventLoop, decode_result: Callable[[TaskRecord], Any]) -> None:
        self._channel = channel
        self._loop = loop
        self.decode_result = decode_result
        self._one_at_a_time: asyncio.Lock | None = None

    def now(self) -> Instant:
        return _clock.now()

    async def load(self, task: str) -> list[StepRecord]:
        return (await self._ask(Ask(load=task))).steps

    async def save(self, step: NewStep) -> StepRecord | None:
        return (await self._ask(Ask(save=step))).saved

    async def add(self, tasks: Sequence[NewTask[Any]]) -> None:
        await self._ask(Ask(add=list(tasks)))

    async def records(self, ids: Sequence[str]) -> list[TaskRecord | None]:
        return (await self._ask(Ask(records=list(ids)))).records

    async def emit(self, piece: NewPiece) -> PieceVerdict:
        return (await self._ask(Ask(emit=piece))).verdict or PieceVerdict.STALE

    async def results(self, task: str, source: Source, first: int) -> ResultsPage:
        return (await self._ask(Ask(results=(task, source, first)))).page or ResultsPage([])

    async def _ask(self, question: Ask) -> Told:
        if self._loop.is_running():
            # a handler that gives up waiting must not leave half of an answer behind
            told = await asyncio.shield(self._loop.create_task(self._exchange(question)))
        else:  # a def handler: the loop stands still while it runs
            told = self._loop.run_until_complete(self._exchange(question))
        if told.error is not None:
            name, message = told.error
            raise _NAMED.get(name, RuntimeError)(message)
        return told

    async def _exchange(self, question: Ask) -> Told:
        self._one_at_a_time = self._one_at_a_time or asyncio.Lock()
        async with self._one_at_a_time:
            self._channel.send(question)
            data = await self._channel.receive()
            if data is None:
                raise StoreUnavailable("the worker of this sub-process is gone")
            return _told.decode(data)


async def answer(door: StepDoor | None, question: Ask) -> Told:
    """Answer a question of a sub-process; what fails is raised there."""
    try:
        if door is None:
            raise errors.InvalidStep("steps need a worker with a store")
        if question.load is not None:
            return Told(steps=await door.load(question.load))
        if question.save is not None:
            return Told(saved=await door.save(question.save))
        if question.records is not None:
            return Told(records=await door.records(question.records))
        if question.emit is not None:
            return Told(verdict=await door.emit(question.emit))
        if question.results is not None:
            return Told(page=await door.results(*question.results))
        await door.add(question.add or [])
        return Told()
    except Exception as error:
        return Told(error=(type(error).__name__, str(error)))
