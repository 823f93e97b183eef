"""Handlers in sub-processes of their own, from the worker's side; `child` is the inside.

A child performs one attempt at a time and is used again, because starting one takes a fifth of a second and importing the
app perhaps longer. It leads its own session: what it starts is in its process group and dies with it. An attempt has ended
when its `Done` frame has arrived, or when the whole group is gone, and not before.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import msgspec

from duetime.model.outcome import Ended, Outcome
from duetime.model.task import ErrorInfo
from duetime.runtime.forks import forget_in_forks
from duetime.runtime.processes import children, group_has_others, group_lives, kill_with_descendants, resident, start_of
from duetime.store.values import ClaimedTask
from duetime.targets.output import DEFAULT_CAP, CappedFile, current_attempt
from duetime.targets.python.asking import answer as answer_question
from duetime.targets.python.frames import INTERRUPT, MAX_FRAME, Answer, Ask, Began, Done, NotReady, Order, Progress, Ready, Setup, frame
from duetime.targets.steps import StepDoor

START_WITHIN = 30.0
LEAVE_WITHIN = 5.0
MAX_TAIL = 8_192
_STARTS = 3

_logger = logging.getLogger("duetime.process")
_answers: msgspec.json.Decoder[Answer] = msgspec.json.Decoder(Answer)


class Recycling(msgspec.Struct, frozen=True):
    """When a child is replaced, looked at after each attempt: after so many attempts, or with so many bytes of memory in use."""

    attempts: int | None = None
    memory: int | None = None

    def is_due(self, attempts: int, memory: Callable[[], int]) -> bool:
        if self.attempts is not None and attempts >= self.attempts:
            return True
        return self.memory is not None and memory() > self.memory


NEVER = Recycling()


class ChildPool:
    """Performs attempts of one app's handlers in sub-processes, as many at once as there are calls.

    Children start one by one, when there is none that could be used again: fifty interpreters that start at once take two cores longer
    than the work of most attempts, and an attempt that ends meanwhile leaves its child to the next. `inherit` are descriptors that every
    child holds as long as it lives, such as the worker's lock. Up to `max_idle` children wait for the next attempt.
    """

    def __init__(
        self,
        app_path: str,
        *,
        inherit: Sequence[int] = (),
        max_idle: int = 4,
        output_cap: int = DEFAULT_CAP,
        start_within: float = START_WITHIN,
    ) -> None:
        self._app_path = app_path
        self._inherit = tuple(inherit)
        self._max_idle = max_idle
        self._output_cap = output_cap
        self._start_within = start_within
        self._idle: list[_Child] = []
        self._children: set[_Child] = set()
        self._performing: dict[str, _Child] = {}  # by task
        self._waiters: deque[asyncio.Future[_Child]] = deque()
        self._starter: asyncio.Task[None] | None = None
        self._closed = False

    async def perform(
        self,
        claimed: ClaimedTask,
        *,
        started_at: int,
        deadline_at: int,
        output_path: str | None,
        progress: Callable[[float, str], None],
        began: Callable[[], None] = lambda: None,
        silent: Callable[[], None] = lambda: None,
        recycling: Recycling = NEVER,
        steps: StepDoor | None = None,
    ) -> Ended:
        """Run one attempt to its end; call `began` when it has begun, and `silent` at its end if it has written nothing to its file.

        When cancelled, kill the child, wait until it is gone, then raise.
        """
        order = Order(task=claimed, started_at=started_at, deadline_at=deadline_at, output_path=output_path, output_cap=self._output_cap)
        for _ in range(_STARTS):
            try:
                child = await self._take()
            except _NotStarted as problem:
                return problem.ended
            self._performing[claimed.id] = child
            try:
                done = await child.perform(order, progress, began, steps)
            except _Broken as broken:
                await child.end()
                if child.began:
                    return Ended(Outcome.LOST, error=child.obituary(broken, order), crashed=not child.killed_on_purpose, alone=True)
                if child.killed_on_purpose:  # a worker without its lease must not begin it in another child
                    return Ended(Outcome.RELEASED)
                # it died while it was idle; the attempt had not begun, so another child may have it
            except BaseException:
                await child.end()
                raise
            else:
                ended = done.ended
                if done.silent:
                    silent()
                if ended.outcome is not Outcome.SUCCEEDED and (child.interrupted or child.left_something):
                    # the next attempt must not run beside what this one has started, or in what an interruption has left half done
                    await child.end()
                else:
                    self._put_back(child, recycling)
                return ended
            finally:
                self._performing.pop(claimed.id, None)
        error = ErrorInfo("ProcessDied", f"{_STARTS} sub-processes, one after the other, died before the attempt began")
        return Ended(Outcome.FAILED, error=error)

    def interrupt(self, task: str) -> bool:
        """Tell the code of a task's attempt to stop; return False if it has not begun, or cannot be told."""
        child = self._performing.get(task)
        return child is not None and child.interrupt()

    async def prepare(self) -> Ended | None:
        """Have a child ready, so that the `perform` that follows begins at once. If none starts, return the attempt's end."""
        try:
            self._put_back(await self._take())
        except _NotStarted as problem:
            return problem.ended
        return None

    def kill(self) -> None:
        """Kill all children now, from any thread: for a worker that has lost its lease while its event loop is blocked."""
        for child in tuple(self._children):
            child.killed_on_purpose = True
            child.kill()

    async def close(self) -> None:
        """Let idle children leave their lifespan, kill the others, and wait until all are gone."""
        self._closed = True
        for child in tuple(self._children):
            if child in self._idle:
                child.retire()
            else:
                child.killed_on_purpose = True
                child.kill()
        self._idle.clear()
        for child in tuple(self._children):
            await child.wait_until_gone()
        if self._starter is not None:
            await asyncio.wait((self._starter,))

    async def _take(self) -> _Child:
        """Return a child, as soon as one is put back or has started."""
        while True:
            if self._closed:
                raise RuntimeError("the pool of sub-processes is closed")
            while self._idle:
                child = self._idle.pop()
                if not child.exited:
                    return child
            child = await self._wait()
            if not child.exited:
                return child

    async def _wait(self) -> _Child:
        waiter: asyncio.Future[_Child] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._ensure_starter()
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._put_back(waiter.result())
            raise

    def _ensure_starter(self) -> None:
        if self._waiters and self._starter is None and not self._closed:
            # it belongs to the pool and not to the attempt that asks first, so it has none of that one's context
            self._starter = asyncio.create_task(self._start_children(), name="duetime sub-processes", context=contextvars.Context())

    async def _start_children(self) -> None:
        """Start one child after the other, as long as somebody waits for one."""
        try:
            while self._waiters:
                try:
                    child = await self._start()
                except BaseException as problem:
                    waiters, self._waiters = self._waiters, deque()
                    for waiter in waiters:  # the others would fail for the same reason, after as long a time
                        if not waiter.done():
                            waiter.set_exception(problem)
                    if not isinstance(problem, Exception):
                        raise
                else:
                    self._put_back(child)
        finally:
            self._starter = None

    async def _start(self) -> _Child:
        child = _Child(self._app_path, self._inherit)
        self._children.add(child)
        child.gone.add_done_callback(lambda _: self._children.discard(child))
        try:
            await child.start(self._start_within)
        except BaseException:
            await child.end()
            raise
        return child

    def _put_back(self, child: _Child, recycling: Recycling = NEVER) -> None:
        """Give a child to whoever waits for one, or keep it; retire it if it has done enough, or too many are kept."""
        while self._waiters and self._waiters[0].done():  # cancelled meanwhile
            self._waiters.popleft()
        if self._closed or recycling.is_due(child.attempts, child.memory):
            child.retire()
            self._ensure_starter()
        elif self._waiters:
            self._waiters.popleft().set_result(child)
        elif len(self._idle) >= self._max_idle:
            child.retire()
        else:
            self._idle.append(child)


class _Broken(Exception):
    """The child died, or sent a frame that does not belong there."""


class _NotStarted(Exception):
    """The child could not be started, or was killed on purpose before it was ready: then its attempt goes back and uses no try."""

    def __init__(self, error: ErrorInfo, *, on_purpose: bool = False) -> None:
        super().__init__(error.message)
        self.ended = Ended(Outcome.RELEASED) if on_purpose else Ended(Outcome.FAILED, error=error)


class _Child:
    """One sub-process, from the fork to the end of its process group."""

    def __init__(self, app_path: str, inherit: Sequence[int]) -> None:
        self._app_path = app_path
        self._loop = asyncio.get_running_loop()
        self.gone: asyncio.Future[None] = self._loop.create_future()
        self.exited = False
        self.began = False
        self.interrupted = False
        self.attempts = 0
        self.killed_on_purpose = False
        self._lock = threading.Lock()
        self._reaped = False
        self._descendants: dict[int, str] = {}  # that were killed, with their starts
        self._last_printed = b""
        self._receiving = False
        self._transport: asyncio.WriteTransport | None = None
        try:
            self._spawn(inherit)
        except OSError as problem:
            raise _NotStarted(ErrorInfo("ProcessNotStarted", f"no sub-process can be started: {problem}")) from None
        forget_in_forks(self)
        self._watch()

    def _spawn(self, inherit: Sequence[int]) -> None:
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            self._socket, socket_of_child = socket.socketpair()
            ours.callback(self._socket.close)
            theirs.callback(socket_of_child.close)
            life_of_child, self._life = os.pipe()
            ours.callback(os.close, self._life)
            theirs.callback(os.close, life_of_child)
            # held by both: the child empties it, and what a dead child has left in it can still be read here
            self._printed, output = os.pipe()
            ours.callback(os.close, self._printed)
            theirs.callback(os.close, output)
            os.set_blocking(self._printed, False)
            passed_through = _standard_error()
            theirs.callback(os.close, passed_through)
            self._setup = Setup(
                app=self._app_path,
                path=[str(folder) for folder in sys.path],
                printed=self._printed,
                passed_through=passed_through,
                inherited=list(inherit),
            )
            # it belongs to the pool and not to the attempt that asked for it
            nobody = current_attempt.set(None)
            theirs.callback(current_attempt.reset, nobody)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "duetime.targets.python.child", self._app_path, str(socket_of_child.fileno()), str(life_of_child)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(socket_of_child.fileno(), life_of_child, self._printed, passed_through, *inherit),
                start_new_session=True,
            )
            ours.pop_all()

    async def start(self, within: float) -> None:
        """Wait until the app is imported and its lifespan entered."""
        self._loop.add_reader(self._printed, self._read_printed)
        try:
            async with asyncio.timeout(within):
                self._reader, self._writer = await asyncio.open_unix_connection(sock=self._socket)
                self._transport = self._writer.transport
                self._writer.write(frame(self._setup))
                answer = await self._receive()
            if isinstance(answer, NotReady):
                raise _NotStarted(self._not_ready(answer.error))
            if not isinstance(answer, Ready):
                raise _Broken(f"it answered {type(answer).__name__} when it should have been ready")
        except TimeoutError:
            raise await self._failed_to_start(f"it was not ready within {within:g} s") from None
        except _Broken as broken:
            raise await self._failed_to_start(str(broken)) from None
        finally:
            self._loop.remove_reader(self._printed)
        if self._last_printed:
            _logger.info("sub-process %d printed while it started: %s", self._process.pid, self._tail())
            self._last_printed = b""

    async def perform(
        self, order: Order, progress: Callable[[float, str], None], began: Callable[[], None], steps: StepDoor | None = None
    ) -> Done:
        """Have an attempt performed; _Broken if the child dies before it reports the end."""
        self.began = self.interrupted = False
        self.attempts += 1
        self._writer.write(frame(order))
        while True:
            match await self._receive():
                case Began():
                    self.began = True
                    began()
                case Progress(fraction, text):
                    progress(fraction, text)
                case Ask() as question:
                    self._writer.write(frame(await answer_question(steps, question)))
                case Done() as done:
                    return done
                case Ready() | NotReady() as answer:
                    raise _Broken(f"it answered {type(answer).__name__} in the middle of an attempt")

    async def _receive(self) -> Answer:
        self._receiving = True
        try:
            size = int.from_bytes(await self._reader.readexactly(4), "big")
            if size > MAX_FRAME:
                raise _Broken(f"it sent a frame of {size:,} bytes; at most {MAX_FRAME:,} are allowed")
            return _answers.decode(await self._reader.readexactly(size))
        except (asyncio.IncompleteReadError, OSError):
            raise _Broken("") from None
        except msgspec.MsgspecError as problem:
            raise _Broken(f"it sent a malformed frame: {problem}") from None
        finally:
            self._receiving = False

    # ---- its end ----

    def memory(self) -> int:
        """Return how many bytes of memory it uses; 0 where that cannot be told."""
        return resident(self._process.pid)

    @property
    def left_something(self) -> bool:
        """Whether something that it has started still runs."""
        return any(start_of(each) is not None for each in children(self._process.pid)) or group_has_others(self._process.pid)

    def interrupt(self) -> bool:
        """Tell the attempt's code to stop; return whether that was possible."""
        with self._lock:
            if self._reaped or not self.began or INTERRUPT is None:
                return False
            self.interrupted = True
            os.kill(self._process.pid, INTERRUPT)
            return True

    def kill(self) -> None:
        """Kill the process group and all descendants, which may lead groups of their own.

        Under a lock with reaping, because a reaped process's number may be another's.
        """
        with self._lock:
            if not self._reaped:
                self._descendants |= kill_with_descendants(self._process.pid)
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, signal.SIGKILL)

    def retire(self) -> None:
        """Ask an idle child to leave its lifespan and go; kill it if it takes too long."""
        self._writer.close()
        patience = self._loop.call_later(LEAVE_WITHIN, self.kill)
        self.gone.add_done_callback(lambda _: patience.cancel())

    async def end(self) -> None:
        """Kill it and wait."""
        self.kill()
        await self.wait_until_gone()

    async def wait_until_gone(self) -> None:
        """Wait for the end of the whole group, however often the waiting is cancelled meanwhile."""
        cancelled: asyncio.CancelledError | None = None
        while not self.gone.done():
            try:
                await asyncio.wait((self.gone,))
            except asyncio.CancelledError as error:
                cancelled = error
        self._hang_up()
        if cancelled is not None:
            raise cancelled

    def obituary(self, broken: _Broken, order: Order) -> ErrorInfo:
        """Return how it died, with the last that it printed. What it could not write to the output file is written now."""
        left = self._last_printed
        if order.output_path is not None:
            path = Path(order.output_path)
            if left:
                file = CappedFile(path, order.output_cap)
                file.write(left)
                file.close()
            with contextlib.suppress(OSError), path.open("rb") as output:
                output.seek(max(0, os.fstat(output.fileno()).st_size - MAX_TAIL))
                left = output.read()
        why = f"{broken} and was killed" if str(broken) else _manner(self._process.returncode)
        return ErrorInfo("ProcessDied", f"the sub-process of the attempt died: {why}", left[-MAX_TAIL:].decode("utf-8", "replace"))

    async def _failed_to_start(self, why: str) -> _NotStarted:
        await self.end()
        why = why or _manner(self._process.returncode)
        error = ErrorInfo("ProcessNotStarted", f"the sub-process for {self._app_path} did not start: {why}", self._tail())
        return _NotStarted(error, on_purpose=self.killed_on_purpose)

    def _not_ready(self, error: ErrorInfo) -> ErrorInfo:
        message = f"the sub-process for {self._app_path} did not start: {error.type}: {error.message}"
        self._read_printed()
        return ErrorInfo("ProcessNotStarted", message, "\n".join(filter(None, (error.traceback, self._tail()))))

    def _read_printed(self) -> None:
        """Read what it printed, and keep the last part."""
        with contextlib.suppress(OSError):
            self._last_printed = (self._last_printed + os.read(self._printed, 65_536))[-65_536:]

    def _tail(self) -> str:
        return self._last_printed[-MAX_TAIL:].decode("utf-8", "replace")

    # ---- watching ----

    def _watch(self) -> None:
        try:
            self._handle = os.pidfd_open(self._process.pid)
        except (AttributeError, OSError):
            self._look()
        else:
            self._loop.add_reader(self._handle, self._leave_handle)

    def _leave_handle(self) -> None:
        self._loop.remove_reader(self._handle)
        os.close(self._handle)
        self._on_exit()

    def _look(self) -> None:
        """Look now and then, where the kernel has no descriptor for a process."""
        if os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            self._loop.call_later(0.02, self._look)
        else:
            self._on_exit()

    def _on_exit(self) -> None:
        self.exited = True
        self.kill()  # before it is reaped: until then its number cannot be another group's
        with self._lock:
            self._reaped = True
            self._process.wait()
        self._read_printed()
        self._wait_for_group(0)

    def _wait_for_group(self, looks: int) -> None:
        outside = any(start_of(pid) == started for pid, started in self._descendants.items())
        if outside or group_lives(self._process.pid, thorough=looks > 4):
            if looks == 12:
                _logger.warning("what sub-process %d started cannot be killed yet; its attempt has not ended", self._process.pid)
            self._loop.call_later(min(0.001 * 2**looks, 0.5), self._wait_for_group, min(looks + 1, 13))
            return
        self._close_life()
        os.close(self._printed)
        if self._receiving:
            # an answer may still be in the socket; but a process that left the group may hold it open for ever
            self._loop.call_later(0.1, self._hang_up)
        else:
            self._hang_up()
        self.gone.set_result(None)

    def _hang_up(self) -> None:
        if self._transport is None:
            self._socket.close()
        else:
            self._transport.abort()

    def _close_life(self) -> None:
        life, self._life = self._life, -1
        if life >= 0:
            os.close(life)

    def forget_after_fork(self) -> None:
        self._close_life()  # held in a fork, it would keep the child alive without its worker


def _standard_error() -> int:
    try:
        return os.dup(2)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY)


def _manner(returncode: int) -> str:
    if returncode >= 0:
        return f"exit code {returncode}"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = "unknown"
    hint = "; perhaps the system ran out of memory" if -returncode == signal.SIGKILL else ""
    return f"killed by signal {-returncode} ({name}){hint}"


def import_string_of(app: object) -> str | None:
    """Return `module:attribute` by which another process can import an app; None if there is none.

    What is declared in `__main__` cannot be imported elsewhere: doing so would run the program again.
    """
    for module in (module for name, module in sorted(sys.modules.items()) if name.partition(".")[0] not in sys.stdlib_module_names):
        if isinstance(module, ModuleType) and module.__name__ != "__main__":
            for name, value in tuple(vars(module).items()):
                if value is app:
                    return f"{module.__name__}:{name}"
    return None
