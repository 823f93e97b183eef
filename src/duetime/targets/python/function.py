"""A Python function as a handler declares it, and which target performs it in a worker."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from duetime.targets.context import Context
from duetime.targets.spec import HandlerSpec
from duetime.targets.target import Target

if TYPE_CHECKING:
    from duetime.targets.host import TargetHost

Isolation: TypeAlias = Literal["auto", "thread", "process"]


KILL_AFTER = 1.0


class PythonFunction(msgspec.Struct, frozen=True, kw_only=True):
    """A function. It takes the context first if `takes_context`; then only keyword arguments. What it `yields` is its result, as a list."""

    function: Callable[..., Any]
    takes_context: bool
    is_async: bool
    yields: bool = False
    isolation: Isolation = "auto"
    recycle_after: int | None = None  # attempts of a sub-process
    max_memory: int | None = None  # bytes of one
    kill_after: float = KILL_AFTER  # seconds that its code has to end after it was told to

    @property
    def kind(self) -> str:
        return self.isolation

    def open(self, handler: HandlerSpec, host: TargetHost) -> Target:
        """Return the target that performs it: a coroutine on the event loop, a `def` in a thread, or either in a sub-process.

        A task whose process died before runs alone in a sub-process, so that the next death can be blamed on the right one.
        """
        # here, because a program that only submits tasks needs none of them
        from duetime.targets.python.children import Recycling
        from duetime.targets.python.coroutine import CoroutineTarget
        from duetime.targets.python.process import ProcessTarget, SuspectsApart, ThreadsApart
        from duetime.targets.python.thread import ThreadTarget

        if self.isolation == "process":
            return ProcessTarget(host, recycling=Recycling(self.recycle_after, self.max_memory), kill_after=self.kill_after)
        apart = ProcessTarget(host, host.suspects, kill_after=self.kill_after)
        if self.is_async:
            return SuspectsApart(CoroutineTarget(self, handler.payloads, host), apart, host)
        threads = ThreadTarget(self, handler.payloads, host)
        # middleware runs on the event loop, around each call: then every attempt needs a coroutine
        return SuspectsApart(threads, apart, host) if host.middleware else ThreadsApart(threads, apart, host)

    def bind(self, context: Context, arguments: dict[str, Any]) -> Callable[[], Any]:
        """Return the call with these arguments."""
        call = partial(self.function, context, **arguments) if self.takes_context else partial(self.function, **arguments)
        if not self.yields:
            return call
        from duetime.targets.payload import encode_yielded
        from duetime.targets.streams import collected, collected_here

        return partial(collected if self.is_async else collected_here, context, encode_yielded, call)


def function_of(spec: HandlerSpec) -> Callable[..., Any] | None:
    """Return a handler's Python function; None if it is none."""
    return spec.target.function if isinstance(spec.target, PythonFunction) else None
