"""Threads for `def` handlers. They are daemons, are used again, and can be interrupted."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import ctypes
import queue
import sys
import threading
from collections.abc import Callable
from typing import Any

from duetime.errors import AttemptCancelled
from duetime.runtime.forks import Original

THROW_AFTER = 1.0  # seconds that a thread which was told to stop may use to do so by itself


class Thread:
    """One thread that runs calls; daemon, so that a handler which never ends cannot keep the interpreter alive."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="duetime-handler", daemon=True)
        self._thread.start()

    def put(self, call: Callable[[], None] | None) -> None:
        self._calls.put(call)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            # an exception that is thrown too late must not end the thread between two calls
            with contextlib.suppress(BaseException):
                call()

    def throw(self, error: type[BaseException] | None) -> None:
        """Raise an exception in the thread as soon as it runs Python code again. None takes back one that was not raised yet."""
        if self._thread.ident is not None:
            throw_in(self._thread.ident, error)


def throw_in(thread: int, error: type[BaseException] | None) -> None:
    """Raise an exception in a thread as soon as it runs Python code again. None takes back one that was not raised yet."""
    thrown = ctypes.c_void_p() if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), thrown)


class _End(asyncio.Future[Any]):
    """The end of a call. A waiting task that is cancelled (a timeout in a middleware) gets its CancelledError only when the code has
    ended: the next attempt must not begin beside it. The code is told to stop in the same way as by the executor.
    """

    def __init__(self, call: ThreadCall, threads: Threads, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self.call: ThreadCall | None = call  # until it has ended: they refer to each other
        self._threads = threads

    def cancel(self, msg: object | None = None) -> bool:
        if self._threads.closed:
            return super().cancel(msg)
        if self.call is not None:
            self.call.throw_later(AttemptCancelled)
        return False  # then asyncio cancels the waiting task when this is done


class ThreadCall:
    """A call in a thread. `future` is resolved when the code has ended, however often the waiting for it is cancelled."""

    def __init__(self, thread: Thread, threads: Threads, loop: asyncio.AbstractEventLoop) -> None:
        self.thread = thread
        self.future = _End(self, threads, loop)
        self._loop = loop
        self._lock = threading.Lock()
        self._begun = self._ended = False
        self._thrown: type[BaseException] | None = None

    def throw(self, error: type[BaseException]) -> None:
        """Raise an exception in the call, unless it has ended: the thread may already run another one.

        A call that has not begun never does: an exception raised now would hit the thread between two calls.
        """
        with self._lock:
            if not self._ended:
                self._thrown = error
                if self._begun:
                    self.thread.throw(error)

    def throw_later(self, error: type[BaseException]) -> float:
        """Raise an exception in the call unless it ends by itself until then; return in how many seconds."""
        self._loop.call_later(THROW_AFTER, self.throw, error)
        return THROW_AFTER

    def begin(self) -> None:
        with self._lock:
            self._begun = True
            if self._thrown is not None:
                raise self._thrown

    def end(self) -> None:
        with self._lock:
            self._ended = True
            if self._thrown is not None:
                self.thread.throw(None)  # it may come too late for this call, and would hit the next one


class Threads:
    """The threads of one worker: as many as attempts of `def` handlers run at once."""

    def __init__(self) -> None:
        self._idle: list[Thread] = []
        self._original = Original()
        self.closed = False  # nobody waits for the end of code any more

    def start(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> ThreadCall:
        """Run a function in a thread, in a copy of this context."""
        loop = asyncio.get_running_loop()
        thread = self._idle.pop() if self._idle else Thread()
        call = ThreadCall(thread, self, loop)
        context = contextvars.copy_context()

        def run() -> None:
            value, failure = None, None
            try:
                try:
                    call.begin()
                    value = context.run(function, *args, **kwargs)
                finally:
                    if self._original.copied:
                        self._original.leave(sys.exception())
                    call.end()
            except BaseException as error:
                failure = error
            with contextlib.suppress(RuntimeError):  # the loop is closed: nothing waits any more
                loop.call_soon_threadsafe(self._ended, call, value, failure)

        thread.put(run)
        return call

    def _ended(self, call: ThreadCall, value: Any, failure: BaseException | None) -> None:
        self._idle.append(call.thread)
        call.future.call = None
        if call.future.done():
            return
        if failure is None:
            call.future.set_result(value)
        elif isinstance(failure, StopIteration | GeneratorExit):  # a future cannot carry these two
            call.future.set_exception(RuntimeError(f"the handler raised {type(failure).__name__}"))
        else:
            call.future.set_exception(failure)

    def close(self) -> None:
        self.closed = True
        while self._idle:
            self._idle.pop().put(None)
