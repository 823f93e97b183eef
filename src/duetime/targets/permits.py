"""`ctx.limit`: what a running attempt takes of a limit of the whole fleet."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Protocol

from duetime.clock import Seconds, monotonic, to_seconds
from duetime.errors import InvalidValue
from duetime.model.limit import Limit

POLL = 0.1  # seconds between two looks of a thread that waits: only between them can it be interrupted


class Taken(Protocol):
    """Permits that a running attempt wants or has. Both calls are made in the worker's event loop, and the second may come first."""

    def begin(self) -> None: ...

    def give_back(self) -> None: ...


class PermitSource(Protocol):
    """The permits of a worker."""

    def taking(self, limit: Limit | str, granted: Callable[[], None]) -> Taken:
        """Return what takes permits of a limit, and calls a function as soon as it has them. Raises InvalidValue for an unknown one."""
        ...

    def call(self, function: Callable[[], None]) -> None:
        """Call a function in the worker's event loop: now if this is its thread, otherwise soon."""
        ...


class LimitUse:
    """What `ctx.limit(…)` returns, for `async with` and for `with`."""

    def __init__(self, source: PermitSource | None, limit: Limit | str, timeout: Seconds | None) -> None:
        if source is None:
            raise InvalidValue("ctx.limit does not work in a sub-process; give the limit to the handler: limits=[…]")
        if not isinstance(limit, Limit | str):
            raise InvalidValue(f"ctx.limit takes a Limit or the name of one, got {limit!r}")
        self._source = source
        self._limit = limit
        self._timeout = None if timeout is None else to_seconds(timeout, "timeout")
        if self._timeout is not None and self._timeout < 0:
            raise InvalidValue(f"timeout must not be negative, got {timeout}")
        self._taken: Taken | None = None

    async def __aenter__(self) -> None:
        here = asyncio.get_running_loop()
        granted = asyncio.Event()

        def tell() -> None:
            here.call_soon_threadsafe(granted.set)

        self._begin(tell)
        try:
            async with asyncio.timeout(self._timeout):
                await granted.wait()
        except TimeoutError:
            self._end()
            raise self._too_long() from None
        except BaseException:
            self._end()
            raise

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end()

    def __enter__(self) -> None:
        granted = threading.Event()
        self._begin(granted.set)
        try:
            end = None if self._timeout is None else monotonic() + self._timeout
            while not granted.wait(POLL if end is None else max(0.0, min(POLL, end - monotonic()))):
                if end is not None and monotonic() >= end:
                    raise self._too_long()
        except BaseException:
            self._end()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end()

    def _begin(self, granted: Callable[[], None]) -> None:
        if self._taken is not None:
            raise InvalidValue("this ctx.limit is in use already; call ctx.limit again")
        self._taken = self._source.taking(self._limit, granted)
        self._source.call(self._taken.begin)

    def _end(self) -> None:
        taken, self._taken = self._taken, None
        if taken is not None:
            self._source.call(taken.give_back)

    def _too_long(self) -> TimeoutError:
        name = self._limit if isinstance(self._limit, str) else self._limit.name
        return TimeoutError(f"the limit {name} had no room within {self._timeout:g} s")
