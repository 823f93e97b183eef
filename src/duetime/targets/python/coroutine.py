"""`async def` handlers, performed on the worker's event loop."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from inspect import CO_COROUTINE
from typing import Any

from duetime.model.outcome import Ended
from duetime.targets.endings import succeeded
from duetime.targets.host import TargetHost
from duetime.targets.python.function import PythonFunction
from duetime.targets.python.middleware import with_middleware
from duetime.targets.spec import Payloads
from duetime.targets.target import AttemptHandle, DirectCall, Stop


class CoroutineTarget:
    """Awaits the handler with the middleware around it. Stopping cancels it."""

    def __init__(self, function: PythonFunction, payloads: Payloads, host: TargetHost) -> None:
        self._function = function
        self._payloads = payloads
        self._host = host
        self.direct_call = None if host.middleware else direct_call(function, payloads)

    async def perform(self, attempt: AttemptHandle) -> Ended:
        context = attempt.context
        call = self._function.bind(context, self._payloads.decode(attempt.claimed.payload))
        return succeeded(await with_middleware(self._host.middleware, context, call))

    def stop(self, attempt: AttemptHandle, reason: Stop) -> float:
        attempt.cancel()
        return 0.0


def direct_call(python: PythonFunction, payloads: Payloads) -> DirectCall | None:
    """Return the direct call of a function that is an `async def` itself, not only marked as one: it surely returns a coroutine.

    A no-op attempt then costs the worker 2.2 µs instead of 4.3 (`bench/ceiling.py`): one coroutine instead of two, arguments by position
    instead of by name, and no `Context` unless the function takes one.
    """
    function: Callable[..., Coroutine[Any, Any, object]] = python.function
    decode = payloads.positional_decoder()
    if decode is None or python.yields or not function.__code__.co_flags & CO_COROUTINE:
        return None
    if python.takes_context:
        return lambda attempt: function(attempt.context, *decode(attempt.claimed.payload))
    return lambda attempt: function(*decode(attempt.claimed.payload))
