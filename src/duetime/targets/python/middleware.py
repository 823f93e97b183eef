"""Middleware: coroutines around each attempt of a Python handler."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from duetime.targets.context import Context

Next: TypeAlias = Callable[[], Awaitable[object]]
Middleware: TypeAlias = Callable[[Context, Next], Awaitable[object]]


def with_middleware(middleware: Sequence[Middleware], context: Context, innermost: Next) -> Awaitable[object]:
    """Call a function inside the middleware, the first one outermost."""
    call = innermost
    for layer in reversed(middleware):
        call = _layer(layer, context, call)
    return call()


def _layer(layer: Middleware, context: Context, call_next: Next) -> Next:
    return lambda: layer(context, call_next)
