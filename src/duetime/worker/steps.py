"""How an attempt's coroutine is driven: its first step as a plain call, the others inside the runner that waits with it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context as Variables
from types import coroutine
from typing import Any, NamedTuple, TypeAlias

from duetime.model.outcome import Ended
from duetime.targets.endings import NOTHING, succeeded
from duetime.targets.output import current_attempt
from duetime.targets.target import Accepted, Target
from duetime.worker.attempt import Attempt, Current, Interrupted
from duetime.worker.queues import HandlerQueue

FirstStep: TypeAlias = Callable[[Attempt], Any]

_set_current = current_attempt.set


def first_step(target: Target, *, direct: bool) -> FirstStep:
    """Return a function that begins attempts, one after the other, each called inside its own context variables.

    It returns how the attempt ended. If the attempt waits, its coroutine is left in `attempt.work`, and what that waits for is
    returned. Then, and when it raised an exception, it cannot be used again, but it must be kept until the coroutine has ended.

    It is the `send` of a generator that goes from one coroutine to the next: `yield from` tells what each of them returned without
    raising StopIteration, which saves 0.4 µs an attempt (`bench/ceiling.py`).
    """
    call = target.direct_call if direct else target.perform
    assert call is not None
    steps = _steps(call, direct)
    next(steps)
    return steps.send


@coroutine
def _steps(call: Callable[[Attempt], Coroutine[Any, Any, Any]], direct: bool) -> Generator[Any, Attempt, None]:
    value: Any = None
    while True:
        attempt = yield value
        value = None  # not kept while the next one waits
        _set_current(attempt)
        attempt.work = work = call(attempt)
        value = yield from work
        attempt.work = None
        value = NOTHING if direct and value is None else attempt.blanked(end_of(value, direct))


def end_of(value: Any, direct: bool) -> Ended | Accepted:
    """Return how an attempt ended whose coroutine returned a value: a result if it was called directly, else the target's word."""
    if direct:
        return succeeded(value)
    if not isinstance(value, Ended | Accepted):
        raise TypeError(f"a target returns Ended or Accepted, not {type(value).__name__}")
    return value


class Waiting(NamedTuple):
    """An attempt whose first step is done but not its work: what it waits for, or what interrupted it."""

    attempt: Attempt
    queue: HandlerQueue
    work: Coroutine[Any, Any, Any]
    begun_by: FirstStep
    direct: bool
    variables: Variables
    awaited: Any
    thrown: Interrupted | None


@coroutine
def drive(waiting: Waiting, current: Current) -> Generator[Any, Any, Any]:
    """Go on with an attempt's coroutine inside the awaiting task, with context variables of its own.

    Handlers see the runner's task as `asyncio.current_task()`, so timeouts and task groups work in them as anywhere.
    """
    attempt, work, awaited, thrown = waiting.attempt, waiting.work, waiting.awaited, waiting.thrown
    run, send, throw = waiting.variables.run, work.send, work.throw
    advance: Any
    value: Any
    while True:
        if thrown is not None:
            advance, value, thrown = throw, thrown, None
        else:
            try:
                value = yield awaited
                advance = send
            except BaseException as error:
                advance, value = throw, error
        current.attempt = attempt
        try:
            awaited = run(advance, value)
        except StopIteration as done:
            return done.value
        except Interrupted as error:
            if has_ended(work):  # just before it could be interrupted, or by that
                raise
            thrown = error
        except GeneratorExit as error:
            if error is value:  # this generator is being closed
                raise
            raise RuntimeError("the handler raised GeneratorExit") from error
        finally:
            current.attempt = None
            if current.original.copied:
                current.original.leave(sys.exception())


async def raising(error: BaseException) -> None:
    """Raise an error, for an attempt whose code has already done so."""
    raise error


async def returning(ended: Ended | Accepted) -> Ended | Accepted:
    """Return an end, for an attempt whose code has already returned."""
    return ended


def has_ended(work: Coroutine[Any, Any, Any]) -> bool:
    """Return whether a coroutine's code has ended."""
    return getattr(work, "cr_frame", None) is None


def unambiguous(error: BaseException) -> BaseException:
    """Return an ordinary error in place of one that would control the generators it passes through."""
    if isinstance(error, StopIteration | GeneratorExit):
        plain = RuntimeError(f"the handler raised {type(error).__name__}")
        plain.__cause__ = error
        return plain
    return error
