"""`def` handlers, performed in threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import Context as Variables
from functools import partial
from typing import Any

from duetime.errors import AttemptCancelled
from duetime.model.outcome import Ended
from duetime.targets.endings import succeeded
from duetime.targets.host import TargetHost
from duetime.targets.python.function import PythonFunction
from duetime.targets.python.middleware import with_middleware
from duetime.targets.python.threads import AwaitedCall, ThreadCall
from duetime.targets.spec import Payloads
from duetime.targets.target import AttemptHandle, Stop


class ThreadTarget:
    """Calls the function in a thread; the middleware around it runs on the event loop.

    A function that is told to stop sees that in its context (`ctx.cancelled`); a second later AttemptCancelled is raised in its thread.
    """

    direct_call = None

    def __init__(self, function: PythonFunction, payloads: Payloads, host: TargetHost) -> None:
        self._function = function
        self._payloads = payloads
        self._host = host
        self._decode = None if function.yields else payloads.positional_decoder()
        self._calls: dict[str, ThreadCall | AwaitedCall] = {}

    async def perform(self, attempt: AttemptHandle) -> Ended:
        context = attempt.context
        call = self._function.bind(context, self._payloads.decode(attempt.claimed.payload))
        return succeeded(await with_middleware(self._host.middleware, context, partial(self._call, attempt.claimed.id, call)))

    async def _call(self, task: str, function: Callable[[], object]) -> object:
        self._calls[task] = call = self._host.threads.start(function)
        try:
            return await call.future
        finally:
            self._calls.pop(task, None)

    def call(self, attempt: AttemptHandle, variables: Variables, ended: Callable[[Any, BaseException | None], None]) -> ThreadCall:
        """Return the call of an attempt without middleware, with its context variables; `hand_over` has it made."""
        task = attempt.claimed.id

        def over(value: Any, failure: BaseException | None) -> None:
            self._calls.pop(task, None)
            ended(value, failure)

        call = ThreadCall(self._host.threads, self._bind(attempt), variables, over)
        self._calls[task] = call
        return call

    def _bind(self, attempt: AttemptHandle) -> Callable[[], Any]:
        if self._decode is None:
            return self._function.bind(attempt.context, self._payloads.decode(attempt.claimed.payload))
        arguments = self._decode(attempt.claimed.payload)
        function = self._function.function
        return partial(function, attempt.context, *arguments) if self._function.takes_context else partial(function, *arguments)

    def hand_over(self, calls: Sequence[ThreadCall]) -> None:
        self._host.threads.put(calls)

    def stop(self, attempt: AttemptHandle, reason: Stop) -> float:
        call = self._calls.get(attempt.claimed.id)
        if call is None:  # the middleware is at work
            attempt.cancel()
            return 0.0
        return call.throw_later(AttemptCancelled)
