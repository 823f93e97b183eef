"""The synchronous façade: one daemon thread with an event loop, and calls that need none."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, TypeVar

from duetime.errors import InvalidValue

# A loop of the program may end while a thread waits for it, and nothing wakes the thread then.
LOOK_AGAIN = 1.0
ENDED = "the event loop that held the app open ended before the call was done"

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Inline(Coroutine[Any, Any, T_co]):
    """A coroutine that suspends nowhere once `prepare` has been awaited, so it can run in any thread without an event loop.

    That is how a write on the caller's own synchronous connection stays in the caller's thread. When awaited as usual, it is just the
    coroutine inside.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, T_co], prepare: Callable[[], Awaitable[object]]) -> None:
        self._coroutine = coroutine
        self.prepare = prepare

    def run(self) -> T_co:
        """Run it in this thread."""
        try:
            self._coroutine.send(None)
        except StopIteration as stop:
            result: T_co = stop.value
            return result
        self._coroutine.close()
        raise InvalidValue("connection= is an asynchronous connection, which app.sync cannot use; await the call in its event loop instead")

    def __await__(self) -> Generator[Any, Any, T_co]:
        return self._coroutine.__await__()

    def send(self, value: Any) -> Any:
        return self._coroutine.send(value)

    def throw(self, kind: Any, value: Any = None, traceback: TracebackType | None = None, /) -> Any:
        return self._coroutine.throw(kind) if value is None else self._coroutine.throw(kind, value, traceback)

    def close(self) -> None:
        self._coroutine.close()


class Portal:
    """Runs awaitables for threads that have no event loop. One is enough for a process; it never keeps the interpreter alive."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0

    def run(self, call: Awaitable[T], *, loop: asyncio.AbstractEventLoop | None = None) -> T:
        """Run an awaitable to its end, in another thread's event loop or the portal's own, with the caller's context variables."""
        refuse_inside_loop(call)
        return self.block_on(call, loop)

    def block_on(self, call: Awaitable[T], loop: asyncio.AbstractEventLoop | None = None) -> T:
        """Run an awaitable as `run` does, also inside a running event loop, which stands still meanwhile: the call must not need it."""
        loop = loop or self._started()
        done: concurrent.futures.Future[T] = concurrent.futures.Future()
        context = contextvars.copy_context()
        # held here, because an event loop refers to its tasks weakly
        tasks: list[asyncio.Task[None]] = []

        def start() -> None:
            tasks.append(loop.create_task(_run(call, done), context=context))

        try:
            loop.call_soon_threadsafe(start)
            return _wait(done, loop)
        except BaseException:
            if not done.done():  # the caller was interrupted, perhaps before it waited
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])
            raise

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._pid != os.getpid():  # a forked child has no thread
                self._loop, self._pid = asyncio.new_event_loop(), os.getpid()
                threading.Thread(target=self._loop.run_forever, name="duetime-portal", daemon=True).start()
            return self._loop


PORTAL = Portal()


def _wait(done: concurrent.futures.Future[T], loop: asyncio.AbstractEventLoop) -> T:
    while True:
        try:
            return done.result(timeout=LOOK_AGAIN)
        except TimeoutError:
            if done.done():
                return done.result()
            if loop.is_closed():
                raise RuntimeError(ENDED) from None


async def _run(call: Awaitable[T], done: concurrent.futures.Future[T]) -> None:
    try:
        result = await call
    except asyncio.CancelledError:
        done.set_exception(RuntimeError(ENDED))
        raise
    except BaseException as error:
        done.set_exception(error)
        if not isinstance(error, Exception):
            raise
    else:
        done.set_result(result)


def running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def refuse_inside_loop(call: Awaitable[object]) -> None:
    if running_loop() is not None:
        if isinstance(call, Coroutine):
            call.close()
        raise RuntimeError("app.sync was called inside a running event loop, which it would block: await the call instead")
