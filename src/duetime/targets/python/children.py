"""Sub-processes that perform attempts, from the worker's side; `child` is the inside, and `pool` says which of them does what.

A child performs one attempt at a time and is used again, because starting one takes a fifth of a second and importing the
app perhaps longer. It leads its own session: what it starts is in its process group and dies with it. An attempt has ended
when its `Done` frame has arrived, or when the whole group is gone, and not before.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from duetime.model.outcome import Ended, Outcome
from duetime.model.task import ErrorInfo
from duetime.runtime.forks import forget_in_forks
from duetime.runtime.processes import children, group_has_others, group_lives, kill_with_descendants, resident, start_of
from duetime.targets.output import CappedFile, current_attempt
from duetime.targets.python.conversation import Broken, Conversation, Performance
from duetime.targets.python.frames import INTERRUPT, NotReady, Order, Ready, Setup

LEAVE_WITHIN = 5.0
MAX_TAIL = 8_192

_logger = logging.getLogger("duetime.process")


class NotStarted(Exception):
    """The child could not be started, or was killed on purpose before it was ready: then its attempt goes back and uses no try."""

    def __init__(self, error: ErrorInfo, *, on_purpose: bool = False) -> None:
        super().__init__(error.message)
        self.ended = Ended(Outcome.RELEASED) if on_purpose else Ended(Outcome.FAILED, error=error)


class Child:
    """One sub-process, from the fork to the end of its process group."""

    def __init__(self, app_path: str, inherit: Sequence[int]) -> None:
        self._app_path = app_path
        self._loop = asyncio.get_running_loop()
        self.gone: asyncio.Future[None] = self._loop.create_future()
        self.exited = False
        self.interrupted = False
        self.killed_on_purpose = False
        self._lock = threading.Lock()
        self._reaped = False
        self._descendants: dict[int, str] = {}  # that were killed, with their starts
        self._last_printed = b""
        try:
            self._spawn(inherit)
        except OSError as problem:
            raise NotStarted(ErrorInfo("ProcessNotStarted", f"no sub-process can be started: {problem}")) from None
        forget_in_forks(self)
        self._watch()

    def _spawn(self, inherit: Sequence[int]) -> None:
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            connection, socket_of_child = socket.socketpair()
            theirs.callback(socket_of_child.close)
            self._conversation = Conversation(connection)
            ours.callback(self._conversation.abort)
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
                followers=self._conversation.packets_in.fileno(),
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
                pass_fds=(socket_of_child.fileno(), life_of_child, self._setup.followers, self._printed, passed_through, *inherit),
                start_new_session=True,
            )
            ours.pop_all()

    async def start(self, within: float) -> None:
        """Wait until the app is imported and its lifespan entered."""
        self._loop.add_reader(self._printed, self._read_printed)
        try:
            async with asyncio.timeout(within):
                answer = await self._conversation.begin(self._setup)
            if isinstance(answer, NotReady):
                raise NotStarted(self._not_ready(answer.error))
            if not isinstance(answer, Ready):
                raise Broken(f"it answered {type(answer).__name__} when it should have been ready")
        except TimeoutError:
            raise await self._failed_to_start(f"it was not ready within {within:g} s") from None
        except Broken as broken:
            raise await self._failed_to_start(str(broken)) from None
        finally:
            self._loop.remove_reader(self._printed)
        if self._last_printed:
            _logger.info("sub-process %d printed while it started: %s", self._process.pid, self._tail())
            self._last_printed = b""

    @property
    def attempts(self) -> int:
        """How many it has performed, or has to perform."""
        return self._conversation.orders

    def perform(self, performance: Performance) -> None:
        """Have an attempt performed, and what follows it."""
        self.interrupted = False
        self._conversation.perform(performance)

    def take_back(self) -> None:
        """Have nothing begin behind the attempt that it performs."""
        self._conversation.take_back()

    def may_perform(self, task: str) -> bool:
        """Take back what has not begun, and return whether a task's attempt may still run here."""
        self._conversation.take_back()
        return self._conversation.took_last(task)

    # ---- its end ----

    def memory(self) -> int:
        """Return how many bytes of memory it uses; 0 where that cannot be told."""
        return resident(self._process.pid)

    @property
    def left_something(self) -> bool:
        """Whether something that it has started still runs."""
        return any(start_of(each) is not None for each in children(self._process.pid)) or group_has_others(self._process.pid)

    def interrupt(self, task: str) -> bool:
        """Tell the code of an attempt to stop, if nothing but that can be running; return whether that was possible."""
        current = self._conversation.current
        with self._lock:
            if self._reaped or current is None or not current.has_begun or INTERRUPT is None:
                return False
            if current.order.task.id != task or not self._conversation.took_last(task):
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
        self._conversation.close()
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

    def obituary(self, broken: Broken, order: Order) -> ErrorInfo:
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

    async def _failed_to_start(self, why: str) -> NotStarted:
        await self.end()
        why = why or _manner(self._process.returncode)
        error = ErrorInfo("ProcessNotStarted", f"the sub-process for {self._app_path} did not start: {why}", self._tail())
        return NotStarted(error, on_purpose=self.killed_on_purpose)

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
        if self._conversation.under_way:
            # an answer may still be in the socket; but a process that left the group may hold it open for ever
            self._loop.call_later(0.1, self._hang_up)
        else:
            self._hang_up()
        self.gone.set_result(None)

    def _hang_up(self) -> None:
        self._conversation.abort()

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
