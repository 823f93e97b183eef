"""The first step of an attempt: its context variables, its arguments, its handler's coroutine up to where that first waits.

A way to begin is made once per handler and called once per attempt, inside the attempt's own context variables. If the
coroutine has to wait, it is left in `attempt.work` and what it waits for is returned. One that never waits leaves nothing there,
and its result is returned.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from duetime.output import current_attempt
from duetime.targets.python import positional
from duetime.targets.spec import HandlerSpec
from duetime.worker.attempt import Attempt

Begin: TypeAlias = Callable[[Attempt], Any]

_set_current = current_attempt.set


def of_coroutine(spec: HandlerSpec) -> Begin:
    """Give the way to begin an `async def` with nothing around it."""
    decode = spec.payloads.in_places()
    if decode is None:
        return of_work(lambda attempt: called(spec, attempt))
    return _in_places(spec, decode)


def of_work(work_of: Callable[[Attempt], Coroutine[Any, Any, Any]]) -> Begin:
    """Give the way to begin whatever coroutine there is for an attempt."""

    def begin(attempt: Attempt) -> Any:
        _set_current(attempt)
        return _first_step(attempt, work_of(attempt))

    return begin


def called(spec: HandlerSpec, attempt: Attempt) -> Coroutine[Any, Any, Any]:
    """Call an `async def` with an attempt's arguments."""
    arguments = spec.payloads.decode(attempt.claimed.payload)
    work: Coroutine[Any, Any, Any] = spec.function(*positional(spec, attempt.context), **arguments)
    return work


def _in_places(spec: HandlerSpec, decode: Callable[[str], tuple[Any, ...]]) -> Begin:
    """Give the way that is gone most: 0.6 µs shorter than with names (`bench/ceiling.py`)."""
    function = spec.function

    def begin(attempt: Attempt) -> Any:
        _set_current(attempt)
        return _first_step(attempt, function(*decode(attempt.claimed.payload)))

    def begin_with_context(attempt: Attempt) -> Any:
        _set_current(attempt)
        return _first_step(attempt, function(attempt.context, *decode(attempt.claimed.payload)))

    return begin_with_context if spec.takes_context else begin


def _first_step(attempt: Attempt, work: Coroutine[Any, Any, Any]) -> Any:
    attempt.work = work
    try:
        return work.send(None)
    except StopIteration as done:
        attempt.work = None
        return done.value
