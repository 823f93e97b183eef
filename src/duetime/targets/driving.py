"""Calls of an attempt's context in a thread without an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from duetime.errors import InvalidStep

T = TypeVar("T")


def drive(call: Coroutine[Any, Any, T]) -> T:
    """Run a call of a step in a thread without an event loop, in which nothing of it waits for one."""
    if in_loop():
        call.close()
        raise InvalidStep("ctx.sync is for def handlers; in an async handler await the call itself")
    try:
        call.send(None)
    except StopIteration as done:
        value: T = done.value
        return value
    call.close()
    raise InvalidStep("ctx.sync runs calls of the context, such as ctx.step(…), and this one waits for an event loop")


def in_loop() -> bool:
    """Return whether an event loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
