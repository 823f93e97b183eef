"""What the code of an attempt has started beside itself: calls in an executor's threads, and processes. They belong to the attempt.

A coroutine that is cancelled ends at once, but the thread in which it had something done, and a process that it started, go on. They have
to end before the attempt does, or the next attempt would run beside them. Only after a success are processes left alone: somebody may have
started a daemon on purpose.

Python tells when it is about to start a process (an audit hook, which cannot be removed, so it is installed once), but not which one. What
a thread's list of children has gained since then belongs to the attempt that ran in the thread. The list is read when the same thread
starts the next process, or when somebody asks for the attempt's processes.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any, ClassVar, NamedTuple, Protocol, cast, runtime_checkable

from duetime.errors import AttemptCancelled
from duetime.runtime.processes import children_of_thread, group_lives, kill_with_descendants, start_of
from duetime.targets.output import Printing, current_attempt
from duetime.targets.python.threads import throw_in

_logger = logging.getLogger("duetime.worker")

_STARTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"})
# They start processes for whoever asks next, not for the attempt that happened to ask first.
_POOLS = frozenset({"concurrent.futures.process", "multiprocessing.pool", "multiprocessing.forkserver", "multiprocessing.resource_tracker"})
# A name server that does not answer is no reason to call an attempt stuck, and looking up a name has no effect that could overlap.
_LOOKUPS = (socket.getaddrinfo, socket.getnameinfo)


@runtime_checkable
class Spawning(Protocol):
    """An attempt whose code may start something."""

    ended: bool

    def spawning(self) -> Spawned: ...


class _Process(NamedTuple):
    pid: int
    started: str  # the number alone may be another's by now
    leads_group: bool


class Spawned:
    """The calls and processes that one attempt has started. Its methods may be called from any thread."""

    def __init__(self) -> None:
        self._calls: dict[Future[Any], _Call | None] = {}
        self._processes: dict[int, _Process] = {}

    def add_call(self, future: Future[Any], call: _Call | None = None) -> None:
        self._calls[future] = call
        future.add_done_callback(self._forget_call)

    def _forget_call(self, future: Future[Any]) -> None:
        self._calls.pop(future, None)

    def add_process(self, pid: int) -> None:
        started = start_of(pid)
        if started is not None and pid not in self._processes:
            with contextlib.suppress(ProcessLookupError):
                self._processes[pid] = _Process(pid, started, os.getpgid(pid) == pid)

    def interrupt(self) -> None:
        """Raise AttemptCancelled in its threads, as soon as they run Python code again."""
        for call in tuple(self._calls.values()):
            if call is not None:
                call.throw(AttemptCancelled)

    def kill(self) -> bool:
        """Kill its processes with all that they have started; return whether any may still be there."""
        _resolve_all(self)
        living = [process for process in tuple(self._processes.values()) if self._kill(process)]  # all of them, not only the first
        return bool(living)

    def _kill(self, process: _Process) -> bool:
        started = start_of(process.pid)
        if started == process.started:
            for pid, since in kill_with_descendants(process.pid).items():
                self._processes.setdefault(pid, _Process(pid, since, False))
            return True
        if started is not None or not process.leads_group:
            return False
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # as long as the group has a member, its number is no other's
        return group_lives(process.pid, thorough=True)

    @property
    def calling(self) -> bool:
        """Whether a call has not returned, or has not even begun."""
        return bool(self._calls)

    def end(self) -> bool:
        """Kill its processes and let no call begin any more; return whether anything still runs."""
        running = [future for future in tuple(self._calls) if not (future.cancel() or future.done())]
        return self.kill() or bool(running)


# ---- processes ----

_forking: dict[int, tuple[Spawned, set[int]]] = {}  # by thread: for whom it started a process, and its children before that


def about_to_start() -> None:
    """Note that this thread may start a process now, for the current attempt or for nobody."""
    thread = threading.get_native_id()
    _resolve(thread)
    _forking.pop(thread, None)
    attempt = _current()
    if attempt is not None and not _in_pool():
        _forking[thread] = attempt.spawning(), children_of_thread(thread)


def _resolve(thread: int) -> None:
    noted = _forking.get(thread)
    if noted is not None:
        spawned, before = noted
        for pid in children_of_thread(thread) - before:
            spawned.add_process(pid)


def _resolve_all(spawned: Spawned) -> None:
    for thread, (each, _) in tuple(_forking.items()):
        if each is spawned:
            _resolve(thread)  # still noted: it may be about to start one


def _current() -> Spawning | None:
    attempt = current_attempt.get()
    return attempt if isinstance(attempt, Spawning) and not attempt.ended else None


def _in_pool() -> bool:
    frame = sys._getframe()
    while (back := frame.f_back) is not None:
        frame = back
        if frame.f_globals.get("__name__") in _POOLS:
            return True
    return False


def _on_audit(event: str, arguments: object) -> None:
    if event in _STARTS:
        try:
            about_to_start()
        except Exception:  # raised here, it would keep the process from being started
            _logger.exception("it was not noted whose process is started")


# ---- threads ----


class _Call:
    """A function that an executor calls in one of its threads, as a part of an attempt."""

    def __init__(self, attempt: Spawning, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._attempt = attempt
        self._function = function
        self._args = args
        self._lock = threading.Lock()
        self._thread: int | None = None
        self._thrown = False
        self.over: Future[None] = Future()

    def __call__(self) -> Any:
        if not self.over.set_running_or_notify_cancel():
            raise concurrent.futures.CancelledError
        token = current_attempt.set(cast(Printing, self._attempt))
        try:
            try:
                self._thread = threading.get_ident()
                return self._function(*self._args)
            finally:
                self._leave()
        finally:
            current_attempt.reset(token)
            self.over.set_result(None)

    def throw(self, error: type[BaseException]) -> None:
        with self._lock:
            if self._thread is not None and not self._thrown:
                self._thrown = True
                throw_in(self._thread, error)

    def _leave(self) -> None:
        with self._lock:
            if self._thrown and self._thread is not None:
                throw_in(self._thread, None)  # it may come too late for this call, and would hit the next one
            self._thread = None


class _Submitting:
    """An executor of another kind: what it is given is noted as the attempt's. Its functions stay as they are: they may be pickled."""

    def __init__(self, executor: Executor, attempt: Spawning) -> None:
        self._executor = executor
        self._attempt = attempt

    def submit(self, function: Callable[..., Any], /, *args: Any) -> Future[Any]:
        future = self._executor.submit(function, *args)
        self._attempt.spawning().add_call(future)
        return future


class Tracking:
    """Notes what attempts start on an event loop, from `begin` to `end`. Several workers may share a loop.

    The loop's own methods are replaced, on this loop only: `asyncio.to_thread` and everything else that uses executors goes through
    `run_in_executor`. uvloop starts processes without Python's knowledge, so its two methods for that are watched as well.
    """

    _loops: ClassVar[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, int]] = weakref.WeakKeyDictionary()
    _hooked = False

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._begun = False

    def begin(self) -> None:
        if not Tracking._hooked:
            Tracking._hooked = True
            sys.addaudithook(_on_audit)
        users = self._loops.get(self._loop, 0)
        self._loops[self._loop] = users + 1
        self._begun = True
        if users == 0 and hasattr(self._loop, "__dict__"):  # asyncio's loops and uvloop's have one
            _watch(self._loop)

    def end(self) -> None:
        if not self._begun:
            return
        self._begun = False
        users = self._loops[self._loop] = self._loops[self._loop] - 1
        if users == 0 and hasattr(self._loop, "__dict__"):
            _unwatch(self._loop)


def _watch(loop: Any) -> None:
    run_in_executor, subprocess_exec, subprocess_shell = loop.run_in_executor, loop.subprocess_exec, loop.subprocess_shell

    def watched_run_in_executor(executor: Executor | None, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        attempt = _current()
        if attempt is None or any(func is lookup for lookup in _LOOKUPS):
            return cast("asyncio.Future[Any]", run_in_executor(executor, func, *args))
        if executor is None or isinstance(executor, ThreadPoolExecutor):
            call = _Call(attempt, func, args)
            attempt.spawning().add_call(call.over, call)
            return cast("asyncio.Future[Any]", run_in_executor(executor, call))
        return cast("asyncio.Future[Any]", run_in_executor(_Submitting(executor, attempt), func, *args))

    async def watched_subprocess_exec(*args: Any, **options: Any) -> Any:
        about_to_start()
        return await subprocess_exec(*args, **options)

    async def watched_subprocess_shell(*args: Any, **options: Any) -> Any:
        about_to_start()
        return await subprocess_shell(*args, **options)

    replacements: dict[str, Callable[..., Any | Coroutine[Any, Any, Any]]] = {
        "run_in_executor": watched_run_in_executor,
        "subprocess_exec": watched_subprocess_exec,
        "subprocess_shell": watched_subprocess_shell,
    }
    for name, function in replacements.items():
        function.__dict__["watched"] = vars(loop).get(name)  # None: the loop has it from its class
        setattr(loop, name, function)


def _unwatch(loop: Any) -> None:
    for name in ("run_in_executor", "subprocess_exec", "subprocess_shell"):
        present = vars(loop).get(name)
        if present is None or "watched" not in present.__dict__:
            continue  # somebody has replaced it after us
        if present.watched is None:
            delattr(loop, name)
        else:
            setattr(loop, name, present.watched)
