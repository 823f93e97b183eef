"""Work that would hold the event loop for long: in slices where it can be divided, in a thread where it cannot.

A thread shares the interpreter with the loop, which gets its share every few milliseconds; one call into C code keeps it for as long as
it takes. So what is decoded, sorted or matched in one call is bounded in size instead.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from duetime.clock import monotonic

P = ParamSpec("P")
T = TypeVar("T")

SLICE = 0.01  # seconds
THREADS = 2  # of their own: whoever sends such work must not keep others from the threads of asyncio

_threads = ThreadPoolExecutor(THREADS, thread_name_prefix="duetime-work")


class Slices:
    """Lets the event loop serve others whenever a slice of work is done."""

    __slots__ = ("_began_at",)

    def __init__(self) -> None:
        self._began_at = monotonic()

    async def pause(self) -> None:
        """Return at once, or after all others if the slice has lasted long enough."""
        if monotonic() - self._began_at >= SLICE:
            await asyncio.sleep(0)
            self._began_at = monotonic()


async def off_loop(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what a function returns, called in one of a few threads. It must be bounded: a thread cannot be ended."""
    context = contextvars.copy_context()
    return await asyncio.get_running_loop().run_in_executor(_threads, lambda: context.run(work, *args, **kwargs))
