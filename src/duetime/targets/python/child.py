"""The inside of a sub-process that performs attempts: `python -m duetime.targets.python.child MODULE:ATTRIBUTE …`.

It imports the app, enters its lifespan, and then performs one attempt after the other. Orders come and answers go as frames over one
socket: four bytes of length, then JSON. `children` is the other end.

The main thread does everything. An event loop runs in it while a coroutine handler runs and while the child is idle, so that connections
and background tasks of the lifespan stay alive. A `def` handler is called while the loop is stopped, not from inside it, so it may use
`asyncio.run` and anything else that needs the main thread or no running loop.
"""

from __future__ import annotations

import asyncio
import fcntl
import importlib
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from contextvars import Context as Variables
from contextvars import copy_context
from functools import reduce
from io import TextIOWrapper
from typing import Any, NamedTuple, NoReturn, Protocol

import msgspec

from duetime.errors import AttemptCancelled, InvalidValue
from duetime.model.outcome import Ended, Outcome
from duetime.model.task import ErrorInfo, TaskRecord
from duetime.runtime.forks import Original
from duetime.targets.context import Context, Resources
from duetime.targets.declaring import refused
from duetime.targets.endings import describe, failed, succeeded
from duetime.targets.output import LogHandler, Writer, current_attempt
from duetime.targets.payload import UnfitPayload
from duetime.targets.python.asking import AskingDoor
from duetime.targets.python.drain import Drain
from duetime.targets.python.frames import INTERRUPT, Answer, Began, Channel, Done, NotReady, Order, Progress, Ready, Setup
from duetime.targets.python.function import PythonFunction
from duetime.targets.python.middleware import Middleware, with_middleware
from duetime.targets.spec import HandlerSpec

PROGRESS_EVERY = 0.1
MAX_PROGRESS_TEXT = 1_000


class App(Protocol):
    """What a child needs of the object that it imports."""

    @property
    def specs(self) -> Mapping[str, HandlerSpec]:
        """The handlers by name and by alias."""
        ...

    @property
    def middlewares(self) -> Sequence[Middleware]: ...

    @property
    def lifespan(self) -> Callable[[], AbstractAsyncContextManager[object]] | None: ...


def die_with(life: int) -> None:
    """Have the kernel kill this process group when the last writer of a pipe, the worker, is gone.

    The pipe's owner is the group and its signal SIGKILL, so its end of file kills the child and what the child started,
    at once, also while a C call holds the GIL or everything is stopped. PR_SET_PDEATHSIG is left out on purpose: it kills
    the child alone, sometimes before the pipe is closed, and then nothing kills the rest of the group. With
    both, 59 of 240 grandchildren outlived a killed worker; with the pipe alone none. Where a pipe has no such signal, a
    thread waits for the end of file and needs the GIL.
    """
    try:
        fcntl.fcntl(life, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(life, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)
    except (AttributeError, OSError):
        threading.Thread(target=_kill_group_at_end_of, args=(life,), name="duetime-life", daemon=True).start()
    already = select.poll()
    already.register(life, 0)  # a hang-up is always reported
    if already.poll(0):
        os.killpg(0, signal.SIGKILL)


def _kill_group_at_end_of(life: int) -> None:
    os.read(life, 1)
    os.killpg(0, signal.SIGKILL)


class Reporter:
    """Sends progress, at most every 100 ms and the latest for sure, so that a tight loop does not flood the worker."""

    def __init__(self, send: Callable[[Answer], None]) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._waiting: Progress | None = None
        self._sent_at = 0.0
        self._timer: threading.Timer | None = None
        self._over = False

    def __call__(self, fraction: float, text: str) -> None:
        mark = Progress(float(fraction), _sendable(str(text)[:MAX_PROGRESS_TEXT]))
        with self._lock:
            if self._over:
                return
            wait = self._sent_at + PROGRESS_EVERY - time.monotonic()
            self._waiting = mark
            if wait <= 0:
                self._flush()
            elif self._timer is None:
                self._timer = threading.Timer(wait, self._late)
                self._timer.daemon = True
                self._timer.start()

    def close(self) -> None:
        with self._lock:
            self._flush()
            self._over = True

    def _late(self) -> None:
        with self._lock:
            self._timer = None
            self._flush()

    def _flush(self) -> None:
        mark, self._waiting = self._waiting, None
        if mark is not None and not self._over:
            self._send(mark)
            self._sent_at = time.monotonic()


class _Inside(NamedTuple):
    """The attempt that runs in this process. It needs no sink: `drain` moves what it prints."""

    context: Context
    sink: None = None


class Performer:
    """Performs attempts with an app's handlers and middleware, in an event loop that runs only while it is needed."""

    def __init__(self, app: App, resources: Resources, loop: asyncio.AbstractEventLoop, channel: Channel) -> None:
        self._original = Original(loop)
        self._app = app
        self._resources = resources
        self._loop = loop
        self._channel = channel
        self._door = AskingDoor(channel, loop, self._decode_result)
        self._in_function = False
        self._task: asyncio.Task[Any] | None = None  # of the coroutine that runs

    def interrupt(self, *_: object) -> None:
        """Stop the attempt that runs: raise AttemptCancelled in its function, or cancel its coroutine. A handler of a signal.

        In the middle of a frame to the worker it waits a moment: half a frame would be the end of both.
        """
        if self._channel.sending:
            threading.Timer(0.01, os.kill, (os.getpid(), INTERRUPT)).start()
        elif self._in_function:
            self._in_function = False
            raise AttemptCancelled
        elif self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)

    def _decode_result(self, record: TaskRecord) -> object:
        spec = self._app.specs.get(record.handler)
        if spec is not None:
            return spec.payloads.decode_result(record.result)
        return None if record.result is None else msgspec.json.decode(record.result)

    def perform(self, order: Order, progress: Callable[[float, str], None]) -> Ended:
        """Run one attempt to its end."""
        name = order.task.handler
        spec = self._app.specs.get(name)
        if spec is None or not isinstance(spec.target, PythonFunction):
            problem = f"the app that the sub-process imported has no Python handler {name!r}"
            return Ended(Outcome.FAILED, error=ErrorInfo("UnknownHandler", problem))
        context = Context(
            order.task,
            started_at=order.started_at,
            deadline_at=order.deadline_at,
            resources=self._resources,
            progress=progress,
            door=self._door,
        )
        try:
            arguments = spec.payloads.decode(order.task.payload)
        except UnfitPayload as error:
            return refused(failed(error, spec.retry), spec)
        except Exception as error:
            return Ended(Outcome.FATAL, error=describe(error))
        token = current_attempt.set(_Inside(context))
        try:
            return succeeded(self._call(spec.target, context, arguments))
        except BaseException as error:  # also SystemExit: it ends the attempt, not the child
            if self._original.copied:
                self._original.leave(error)
            return failed(error, spec.retry)
        finally:
            if self._original.copied:
                self._original.leave()
            current_attempt.reset(token)

    def _call(self, python: PythonFunction, context: Context, arguments: dict[str, Any]) -> object:
        function = python.bind(context, arguments)
        if python.is_async:
            return self._wait(self._loop.create_task(self._caught(lambda: with_middleware(self._app.middlewares, context, function))))
        if not self._app.middlewares:
            return self._interruptible(function)
        return self._call_between(context, function)

    def _interruptible(self, function: Callable[[], object]) -> object:
        try:
            self._in_function = True
            return function()
        finally:
            self._in_function = False

    def _call_between(self, context: Context, function: Callable[[], object]) -> object:
        """Run the middleware in the loop, and stop the loop for each call that it makes of the function.

        The function sees the context variables as the middleware has set them, such as the present span of a trace.
        """
        calls: asyncio.Queue[tuple[asyncio.Future[object], Variables] | None] = asyncio.Queue()

        async def innermost() -> object:
            answer = self._loop.create_future()
            calls.put_nowait((answer, copy_context()))
            return await answer

        self._task = attempt = self._loop.create_task(self._caught(lambda: with_middleware(self._app.middlewares, context, innermost)))
        attempt.add_done_callback(lambda _: calls.put_nowait(None))
        while (request := self._loop.run_until_complete(calls.get())) is not None:
            call, variables = request
            try:
                value = variables.run(self._interruptible, function)
            except StopIteration as error:
                call.set_exception(RuntimeError(f"the handler raised {error!r}"))  # a future cannot carry it
            except BaseException as error:
                call.set_exception(error)
            else:
                call.set_result(value)
        return self._wait(attempt)

    async def _caught(self, call: Callable[[], Any]) -> tuple[object, BaseException | None]:
        """Await a call and return its exception as a value: SystemExit would otherwise break out of the loop."""
        try:
            return await call(), None
        except BaseException as error:
            if self._original.copied:
                self._original.leave(error)
            return None, error

    def _wait(self, attempt: asyncio.Task[tuple[object, BaseException | None]]) -> object:
        self._task = attempt
        try:
            value, error = self._loop.run_until_complete(attempt)
        finally:
            self._task = None
        if error is not None:
            raise error
        return value


def load(app: str) -> App:
    """Import an app by `module:attribute`."""
    module, _, attribute = app.partition(":")
    found = reduce(getattr, (attribute or "app").split("."), importlib.import_module(module))
    missing = [name for name in ("specs", "middlewares", "lifespan") if not hasattr(found, name)]
    if missing:
        raise InvalidValue(f"{app} is a {type(found).__name__}, not a duetime App: it has no {', '.join(missing)}")
    app_found: App = found
    return app_found


class _Lifespan:
    """An app's lifespan, entered and left by one and the same task, as cancel scopes inside it require."""

    def __init__(self, app: App, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._entered: asyncio.Future[object] = loop.create_future()
        self._leave = asyncio.Event()
        self._task = loop.create_task(self._hold(app))

    async def _hold(self, app: App) -> None:
        if app.lifespan is None:
            self._entered.set_result(None)
            return
        async with app.lifespan() as provided:
            self._entered.set_result(provided)
            await self._leave.wait()

    def enter(self) -> Resources:
        self._loop.run_until_complete(asyncio.wait((self._entered, self._task), return_when=asyncio.FIRST_COMPLETED))
        if not self._entered.done():
            self._task.result()
            raise InvalidValue("the lifespan ended without a yield")
        return Resources(self._entered.result())

    def leave(self) -> None:
        self._leave.set()
        self._loop.run_until_complete(self._task)


def main() -> NoReturn:
    """Serve the worker until it closes its end, then leave the lifespan and exit."""
    _, _, descriptor, life = sys.argv
    die_with(int(life))
    for number in (signal.SIGTERM, signal.SIGINT):
        # a service manager that stops a worker signals its children too, but the worker decides when they end. A handler
        # instead of SIG_IGN, because programs that they start would inherit that.
        signal.signal(number, lambda *_: None)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    channel = Channel(socket.socket(fileno=int(descriptor)))
    with asyncio.Runner() as runner:
        _serve(channel, runner.get_loop(), (int(descriptor), int(life)))
    os._exit(0)


def _serve(channel: Channel, loop: asyncio.AbstractEventLoop, own: Sequence[int]) -> None:
    first = loop.run_until_complete(channel.receive())
    if first is None:
        return
    setup = msgspec.json.decode(first, type=Setup)
    for each in (*own, setup.printed, setup.passed_through, *setup.inherited):
        os.set_inheritable(each, False)
    sys.path[:] = setup.path
    try:
        app = load(setup.app)
        lifespan = _Lifespan(app, loop)
        performer = Performer(app, lifespan.enter(), loop, channel)
        if INTERRUPT is not None:
            signal.signal(INTERRUPT, performer.interrupt)
    except BaseException as error:
        channel.send(NotReady(_sendable_error(describe(error))))
        os._exit(1)
    drain = Drain(setup.printed, setup.passed_through)
    drain.start()
    # installed after the program's own configuration of logging, which would otherwise be refused
    LogHandler(lambda: _stderr_during(drain), (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)).install()
    channel.send(Ready())
    while (data := loop.run_until_complete(channel.receive())) is not None:
        order = msgspec.json.decode(data, type=Order)
        drain.begin(order.output_path, order.output_cap)
        reporter = Reporter(channel.send)
        channel.send(Began())
        ended = performer.perform(order, reporter)
        reporter.close()
        wrote = drain.end()
        if ended.error is not None:
            ended = msgspec.structs.replace(ended, error=_sendable_error(ended.error))
        channel.send(Done(ended, silent=not wrote))
    lifespan.leave()


def _stderr_during(drain: Drain) -> Writer | None:
    return sys.stderr if drain.capturing else None


def _sendable(text: str) -> str:
    """Replace lone surrogates, which JSON cannot hold."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _sendable_error(error: ErrorInfo) -> ErrorInfo:
    return ErrorInfo(_sendable(error.type), _sendable(error.message), _sendable(error.traceback), _sendable(error.location))


if __name__ == "__main__":
    main()
