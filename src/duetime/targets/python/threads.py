"""Threads for `def` handlers. They are daemons, are used again, and can be interrupted.

Calls are handed over and come back in batches. Threads take calls from one queue: one that has ended a call takes the next at once,
without asking the event loop, and one that takes a call while more are queued wakes another thread, so that a call that waits for something
holds up nobody. Quick calls are then all made by one or two threads, and the event loop is woken once for many ends. Of a thread that
is woken per call, and a loop that is woken per end, an attempt cost five times as much (`bench/everyday.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import ctypes
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from duetime.errors import AttemptCancelled
from duetime.runtime.forks import Original

THROW_AFTER = 1.0  # seconds that a thread which was told to stop may use to do so by itself
LOOK_AFTER = 0.001  # seconds after which the event loop looks for ends by itself while calls are queued
MANY = 4  # queued calls that are worth it

Ended = Callable[[Any, BaseException | None], None]


class Thread:
    """One thread that runs calls; daemon, so that a handler which never ends cannot keep the interpreter alive."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._called = threading.Lock()  # held while there is nothing to do
        self._called.acquire()
        self._thread = threading.Thread(target=self._run, name="duetime-handler", daemon=True)
        self._started = False

    def wake(self) -> None:
        """Have it look for calls."""
        if self._started:
            self._called.release()
        else:
            self._started = True
            self._thread.start()

    def wait(self) -> None:
        self._called.acquire()

    def _run(self) -> None:
        called = True
        while (call := self._threads.take(self, called=called)) is not None:
            # an exception that is thrown too late must not end the thread between two calls
            with contextlib.suppress(BaseException):
                call.run(self)
            del call  # it must not be kept until the next one
            called = False

    def throw(self, error: type[BaseException] | None) -> None:
        """Raise an exception in the thread as soon as it runs Python code again. None takes back one that was not raised yet."""
        if self._thread.ident is not None:
            throw_in(self._thread.ident, error)


def throw_in(thread: int, error: type[BaseException] | None) -> None:
    """Raise an exception in a thread as soon as it runs Python code again. None takes back one that was not raised yet."""
    thrown = ctypes.c_void_p() if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), thrown)


class ThreadCall:
    """A call in a thread. `ended` is called in the event loop, with its value or its exception, when the code has ended."""

    __slots__ = ("__weakref__", "_begun", "_ended", "_function", "_lock", "_thread", "_threads", "_thrown", "_variables", "ended")

    def __init__(self, threads: Threads, function: Callable[[], Any], variables: contextvars.Context, ended: Ended) -> None:
        self._threads = threads
        self._function: Callable[[], Any] | None = function
        self._variables = variables
        self.ended: Ended | None = ended
        self._lock = threading.Lock()
        self._thread: Thread | None = None
        self._begun = self._ended = False
        self._thrown: type[BaseException] | None = None

    def throw(self, error: type[BaseException]) -> None:
        """Raise an exception in the call, unless it has ended: the thread may already run another one.

        A call that has not begun never does: an exception raised now would hit the thread between two calls.
        """
        with self._lock:
            if not self._ended:
                self._thrown = error
                if self._begun and self._thread is not None:
                    self._thread.throw(error)

    def prevent(self) -> bool:
        """Let a call that has not begun end without having begun; return False if it is too late for that."""
        with self._lock:
            if self._begun:
                return False
            self._thrown = AttemptCancelled
            return True

    def throw_later(self, error: type[BaseException]) -> float:
        """Raise an exception in the call unless it ends by itself until then; return in how many seconds."""
        self._threads.loop.call_later(THROW_AFTER, self.throw, error)
        return THROW_AFTER

    def run(self, thread: Thread) -> None:
        """Make the call, in a thread."""
        value, failure, function = None, None, self._function
        assert function is not None
        original = self._threads.original
        try:
            try:
                self._begin(thread)
                value = self._variables.run(function)
            finally:
                if original.copied:
                    original.leave(sys.exception())
                self._end()
        except BaseException as error:
            failure = error
        self._threads.note_end(self, value, failure)

    def _begin(self, thread: Thread) -> None:
        with self._lock:
            self._thread = thread
            self._begun = True
            if self._thrown is not None:
                raise self._thrown

    def _end(self) -> None:
        with self._lock:
            self._ended = True
            self._function = None
            if self._thrown is not None and self._thread is not None:
                self._thread.throw(None)  # it may come too late for this call, and would hit the next one


class AwaitedCall:
    """A call in a thread that somebody awaits. `future` is resolved when the code has ended, however often the waiting is cancelled."""

    def __init__(self, threads: Threads, function: Callable[[], Any]) -> None:
        self.future = _End(self, threads)
        self._call = ThreadCall(threads, function, contextvars.copy_context(), partial(_resolve, self.future))
        self.throw, self.throw_later = self._call.throw, self._call.throw_later

    @property
    def call(self) -> ThreadCall:
        return self._call


class _End(asyncio.Future[Any]):
    """The end of a call. A waiting task that is cancelled (a timeout in a middleware) gets its CancelledError only when the code has
    ended: the next attempt must not begin beside it. The code is told to stop in the same way as by the executor.
    """

    def __init__(self, call: AwaitedCall, threads: Threads) -> None:
        super().__init__(loop=threads.loop)
        self.call: AwaitedCall | None = call  # until it has ended: they refer to each other
        self._threads = threads

    def cancel(self, msg: object | None = None) -> bool:
        if self._threads.closed:
            return super().cancel(msg)
        if self.call is not None:
            self.call.throw_later(AttemptCancelled)
        return False  # then asyncio cancels the waiting task when this is done


def _resolve(future: _End, value: Any, failure: BaseException | None) -> None:
    future.call = None
    if future.done():
        return
    if failure is None:
        future.set_result(value)
    else:
        future.set_exception(carried(failure))


def carried(failure: BaseException) -> BaseException:
    """Return an exception as a future can carry it."""
    if isinstance(failure, StopIteration | GeneratorExit):
        return RuntimeError(f"the handler raised {type(failure).__name__}")
    return failure


class Threads:
    """The threads of one worker: as many as attempts of `def` handlers run at once. Made and used in one event loop."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self.original = Original()
        self.closed = False  # nobody waits for the end of code any more
        self._queued: deque[ThreadCall] = deque()
        self._ended: deque[tuple[ThreadCall, Any, BaseException | None]] = deque()
        self._lock = threading.Lock()  # of the two that follow
        self._idle: list[Thread] = []
        self._coming = 0  # threads that are awake and have not looked yet
        self._told = False  # the loop will look for ends, because a thread has told it to
        self._looks = False  # the loop will look for ends soon, by itself

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of all calls."""
        return self._loop or asyncio.get_running_loop()

    def start(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> AwaitedCall:
        """Run a function in a thread, in a copy of this context."""
        awaited = AwaitedCall(self, partial(function, *args, **kwargs))
        self.put((awaited.call,))
        return awaited

    def put(self, calls: Iterable[ThreadCall]) -> None:
        """Have calls made. As long as some are queued, a thread is on its way."""
        self._loop = asyncio.get_running_loop()  # before a thread asks for it
        self._queued.extend(calls)
        if not self._looks and len(self._queued) >= MANY:
            self._look_soon()
        with self._lock:
            thread = self._next() if self._queued and not self._coming else None
        if thread is not None:
            thread.wake()

    def _next(self) -> Thread:
        """Return a thread to wake; the lock is held."""
        self._coming += 1
        return self._idle.pop() if self._idle else Thread(self)

    # ---- in threads ----

    def take(self, thread: Thread, *, called: bool) -> ThreadCall | None:
        """Return the next call, as soon as there is one; None when the thread may end."""
        while True:
            another = call = None
            with self._lock:
                self._coming -= called
                if self._queued:
                    call = self._queued.popleft()
                    if self._queued and not self._coming:
                        another = self._next()
                elif not self.closed:
                    self._idle.append(thread)
            if another is not None:
                another.wake()
            if call is not None:
                return call
            self._tell()
            if self.closed:
                return None
            thread.wait()
            called = True

    def note_end(self, call: ThreadCall, value: Any, failure: BaseException | None) -> None:
        """Note that the code of a call has ended."""
        self._ended.append((call, value, failure))
        # read after that: whoever sets it to false looks for ends afterwards
        if not (self._looks and self._queued):
            self._tell()

    def _tell(self) -> None:
        if self._ended and not self._told:
            self._told = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: nothing waits any more
                self.loop.call_soon_threadsafe(self._collect)

    # ---- in the event loop ----

    def _look_soon(self) -> None:
        self._looks = True
        self.loop.call_later(LOOK_AFTER, self._collect_by_itself)

    def _collect_by_itself(self) -> None:
        self._looks = False
        self._collect()
        if len(self._queued) >= MANY:
            self._look_soon()

    def _collect(self) -> None:
        """Pass on the ends that have come."""
        self._told = False  # before looking: what comes after the last look is told again
        while self._ended:
            call, value, failure = self._ended.popleft()
            ended, call.ended = call.ended, None
            if ended is not None:
                ended(value, failure)

    def close(self) -> None:
        self.closed = True
        with self._lock:
            idle, self._idle = self._idle, []
            self._coming += len(idle)
        for thread in idle:
            thread.wake()
