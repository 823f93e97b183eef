"""Steps of one attempt: `ctx.step`, `ctx.sleep`, `ctx.wait` and `ctx.call`.

What is saved is read once, when an attempt that is not the first one reaches its first step. A step that is not saved runs its code and
is saved before anybody sees its value. A wait that has not ended leaves the handler's code by `Suspended`; the next attempt runs from the
top, passes what is saved, and comes back to the wait.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import typing
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from duetime.clock import Instant, Seconds, to_micros
from duetime.errors import AttemptCancelled, InvalidPayload, InvalidStep, InvalidValue, PayloadTooLarge, TaskNotFound
from duetime.model.results import succeeded_or_raise
from duetime.model.steps import (
    CALLED_BY,
    MOST_CHILDREN,
    MOST_STEPS,
    NewStep,
    StepKind,
    StepRecord,
    Suspension,
    check_signal,
    check_step,
    child_id,
)
from duetime.model.task import FINAL, NewTask, TaskRecord, delay_micros
from duetime.store.flows import NewPiece, PieceVerdict
from duetime.store.results import ReadsResults
from duetime.store.values import ClaimedTask
from duetime.targets.driving import in_loop
from duetime.targets.payload import encode_result, from_json
from duetime.targets.suspended import Suspended

T = TypeVar("T")

ADDED = b"true"  # what an open call says once its tasks are stored


class StepDoor(ReadsResults, Protocol):
    """How an attempt reaches its saved steps and what other tasks returned, from wherever its code runs."""

    def now(self) -> Instant: ...

    async def load(self, task: str) -> list[StepRecord]: ...

    async def save(self, step: NewStep) -> StepRecord | None:
        """Save a step, committed when this returns; None if the attempt is not the newest any more."""
        ...

    async def add(self, tasks: Sequence[NewTask[Any]]) -> None:
        """Submit tasks; one whose id is stored is left as it is."""
        ...

    async def records(self, ids: Sequence[str]) -> list[TaskRecord | None]: ...

    async def emit(self, piece: NewPiece) -> PieceVerdict:
        """Keep what the attempt has yielded, committed when this returns."""
        ...

    def decode_result(self, record: TaskRecord) -> Any: ...


class Stepper:
    """The steps of one attempt."""

    def __init__(self, claimed: ClaimedTask, door: StepDoor | None) -> None:
        self._claimed = claimed
        self._given = door
        self._saved: dict[str, StepRecord] | None = {} if claimed.attempt == 1 else None
        self._used: set[str] = set()
        self._loading: asyncio.Lock | None = None

    @property
    def door(self) -> StepDoor:
        if self._given is None:
            raise InvalidStep("steps need a worker with a store; this context was made without one")
        return self._given

    async def step(self, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        known = await self._begin(name, StepKind.VALUE)
        returns = _return_type(function)
        if known is None:
            value = await _called(name, function, args, kwargs)
            try:
                data = encode_result(value, f"the value of step {name!r}")
            except (InvalidPayload, PayloadTooLarge) as error:
                raise InvalidStep(str(error)) from None
            await self._save(NewStep(task=self._claimed.id, attempt=self._claimed.attempt, name=name, kind=StepKind.VALUE, data=data))
        else:
            data = known.data or b"null"
        return _decoded(data, returns, f"the value of step {name!r}")

    async def sleep(self, name: str, duration: Seconds) -> None:
        micros = delay_micros(duration)
        known = await self._begin(name, StepKind.SLEEP)
        if known is None:
            known = await self._save(self._new(name, StepKind.SLEEP, wake_at=self.door.now() + micros))
        wake_at = known.wake_at or 0
        if self.door.now() < wake_at and self._claimed.due_at < wake_at:
            raise Suspended(Suspension(name, wake_at))

    async def wait(self, name: str, signal: str, type: Any, timeout: Seconds | None) -> Any:
        check_signal(signal)
        micros = None if timeout is None else to_micros(timeout, "timeout")
        if micros is not None and micros <= 0:
            raise InvalidValue(f"the timeout of a wait must be positive, got {timeout}")
        known = await self._begin(name, StepKind.SIGNAL)
        if known is None or not known.done:
            wake_at = None if micros is None else self.door.now() + micros
            known = await self._save(self._new(name, StepKind.SIGNAL, signal=signal, wake_at=wake_at))
        if not known.done:
            raise Suspended(Suspension(name))
        if known.late:
            raise TimeoutError(f"no signal {known.signal!r} came in time for the wait {name!r}")
        return _decoded(known.data or b"null", type, f"the signal {known.signal!r}")

    async def call(self, name: str, tasks: NewTask[Any] | Sequence[NewTask[Any]]) -> Any:
        single = isinstance(tasks, NewTask)
        asked: list[NewTask[Any]] = [tasks] if isinstance(tasks, NewTask) else list(tasks)
        _check_children(name, asked)
        known = await self._begin(name, StepKind.CALL)
        children = self._children(name, asked) if known is None else []
        if known is None and children:
            ids = tuple(child.id for child in children)
            known = await self._save(self._new(name, StepKind.CALL, children=ids))
        if known is None:
            return []
        if not known.done and known.data is None:
            # the same ids and payloads in every attempt: who died in the middle of this is repeated
            await self.door.add(children or self._children(name, asked))
            known = await self._save(self._new(name, StepKind.CALL, children=known.children, data=ADDED))
        records = await self.door.records(known.children)
        if not known.done and any(record is not None and record.state not in FINAL for record in records):
            raise Suspended(Suspension(name, children=known.children))
        values = []
        for child, record in zip(known.children, records, strict=True):
            if record is None:
                raise TaskNotFound(
                    f"task {child}, called by step {name!r}, is not stored any more: its result is lost; keep results longer"
                )
            values.append(self.door.decode_result(succeeded_or_raise(record)))
        if not known.done:
            await self._save(self._new(name, StepKind.CALL, children=known.children, data=ADDED, done=True))
        return values[0] if single else values

    async def until(self, signal: str, look: Callable[[int], Awaitable[T | None]]) -> T:
        """Wait for signals of a name until `look` finds something. Each wait is saved before the look, so nothing is missed.

        `look` is given the number of the wait, which is another one after each signal.
        """
        for number in itertools.count(1):
            name = f"wait-{number}"
            known = await self._begin(name, StepKind.SIGNAL)
            if known is not None and known.done:
                continue
            if known is None:
                known = await self._save(self._new(name, StepKind.SIGNAL, signal=signal))
            found = await look(number)
            if found is not None:
                return found
            if not known.done:
                raise Suspended(Suspension(name))
        raise AssertionError("unreachable")

    async def first(self, name: str) -> bool:
        """Return whether no attempt has come here before."""
        if await self._begin(name, StepKind.VALUE) is not None:
            return False
        await self._save(NewStep(task=self._claimed.id, attempt=self._claimed.attempt, name=name, kind=StepKind.VALUE, data=b"true"))
        return True

    def _children(self, name: str, asked: Sequence[NewTask[Any]]) -> list[NewTask[Any]]:
        """Return the tasks as they are submitted: with ids of their own that are the same in every attempt."""
        made = []
        for position, task in enumerate(asked):
            key = None if task.key is None else (task.handler, task.key)
            meta = {**(task.meta or {}), CALLED_BY: self._claimed.id}
            made.append(msgspec.structs.replace(task, id=child_id(self._claimed.id, name, position, key), meta=meta))
        return made

    def _new(self, name: str, kind: StepKind, *, done: bool = False, **facts: Any) -> NewStep:
        return NewStep(task=self._claimed.id, attempt=self._claimed.attempt, name=name, kind=kind, done=done, **facts)

    async def _begin(self, name: str, kind: StepKind) -> StepRecord | None:
        """Check the name of a step and return what is saved of it."""
        check_step(name)
        if name in self._used:
            raise InvalidStep(f"step {name!r} is there twice in one attempt: give each step a name of its own, such as '{name}-2'")
        if len(self._used) >= MOST_STEPS:
            raise InvalidStep(f"a task has at most {MOST_STEPS:,} steps: do several things in one, or submit other tasks with ctx.call")
        self._used.add(name)
        if self._saved is None:
            self._loading = self._loading or asyncio.Lock()
            async with self._loading:
                if self._saved is None:
                    self._saved = {each.name: each for each in await self.door.load(self._claimed.id)}
        known = self._saved.get(name)
        if known is not None and known.kind is not kind:
            raise InvalidStep(
                f"step {name!r} was saved as a {known.kind.value} and is a {kind.value} now: the code has changed, so it needs another name"
            )
        return known

    async def _save(self, step: NewStep) -> StepRecord:
        saved = await self.door.save(step)
        if saved is None:
            raise AttemptCancelled(f"attempt {step.attempt} is not the newest any more, so it cannot save step {step.name!r}")
        return saved


async def _called(name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Call the function of a step: in this thread if no event loop runs in it, else in the loop, or in a thread of its own."""
    if not callable(function):
        raise InvalidStep(f"step {name!r} takes a function and its arguments, got {function!r}: leave out the brackets")
    waits = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
    if not in_loop():
        if waits:
            raise InvalidStep(f"step {name!r} of a def handler takes a def function; {function!r} is an async one")
        value = function(*args, **kwargs)
    elif waits:
        return await function(*args, **kwargs)
    else:
        value = await asyncio.to_thread(function, *args, **kwargs)
    if inspect.iscoroutine(value):
        value.close()
        raise InvalidStep(f"step {name!r}: {function!r} returned a coroutine, but is no async function: give the async function itself")
    return value


def _return_type(function: Callable[..., Any]) -> Any:
    """Return what a function says that it returns; Any if it says nothing that can be known here."""
    try:
        return typing.get_type_hints(function).get("return", Any)
    except Exception:
        return Any


def _decoded(data: bytes, type: Any, what: str) -> Any:
    """Return a saved value in a type, the same in the attempt that saves it and in all later ones."""
    if type is None or type is object or isinstance(type, TypeVar):
        type = Any
    try:
        decode = msgspec.json.Decoder(type, dec_hook=from_json).decode
        return decode(data)
    except (msgspec.MsgspecError, ValueError, TypeError) as error:
        raise InvalidStep(f"{what} cannot be read as {_named(type)}: {error}") from None


def _named(type: Any) -> str:
    return str(getattr(type, "__name__", type))


def _check_children(name: str, tasks: Sequence[object]) -> None:
    for task in tasks:
        if not isinstance(task, NewTask):
            raise InvalidStep(f"step {name!r} calls tasks that are not submitted yet, such as handler.new(…), got {type(task).__name__}")
    if len(tasks) > MOST_CHILDREN:
        raise PayloadTooLarge(f"step {name!r} calls {len(tasks):,} tasks, at most {MOST_CHILDREN:,} are allowed: use a flow")
