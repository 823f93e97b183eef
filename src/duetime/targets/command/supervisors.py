"""Supervisors of commands from the worker's side; `supervisor` is the inside.

A supervisor runs one command at a time, so all orphans below it are that command's, and is kept for the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from duetime.runtime.folders import remove_folder
from duetime.runtime.forks import forget_in_forks
from duetime.runtime.processes import kill_with_descendants, start_of, with_environment
from duetime.targets.command.cgroup import Cgroup, parent_of_groups, remove_left_groups
from duetime.targets.command.streams import Pipe, ignore
from duetime.targets.command.supervising import Order, Report, Supervision, SupervisorDied
from duetime.targets.output import current_attempt

MAX_IDLE = 16
IDLE_FOR = 60.0  # seconds after which an idle supervisor ends: each takes some megabytes
_INSIDE = Path(__file__).with_name("supervisor.py")
MAX_MESSAGE = 65_536
_reports = msgspec.json.Decoder(Report)


class Supervisors:
    """Starts supervisors and keeps those that are idle. `inherit` are descriptors that each holds as long as it lives, such as the worker's
    lock: nobody takes a task of a dead worker before its commands are gone.
    """

    def __init__(self, *, inherit: Sequence[int] = ()) -> None:
        self._inherit = tuple(inherit)
        self._idle: list[Supervisor] = []  # the one that was used last is at the end, and is taken first
        self._looking = False
        self._all: set[Supervisor] = set()
        self._groups: Path | None = None
        self._looked = False
        self._closed = False

    def take(self) -> Supervisor:
        """Return an idle supervisor, or a new one; OSError if none can be started."""
        if sys.platform != "linux":
            raise OSError("commands need Linux, where a supervisor can see to it that nothing of them is left")
        while self._idle:
            supervisor = self._idle.pop()
            if not supervisor.ended:
                return supervisor
        if not self._looked:
            self._looked, self._groups = True, parent_of_groups()
            if self._groups is not None:
                remove_left_groups(self._groups)
        supervisor = Supervisor(self._inherit, self._groups)
        self._all.add(supervisor)
        supervisor.gone.add_done_callback(lambda _: self._all.discard(supervisor))
        return supervisor

    def put_back(self, supervisor: Supervision) -> None:
        assert isinstance(supervisor, Supervisor)
        if self._closed or supervisor.ended or len(self._idle) >= MAX_IDLE:
            supervisor.leave()
        else:
            self._idle.append(supervisor)
            supervisor.idle_since = asyncio.get_running_loop().time()
            if not self._looking:
                self._look_later()

    def _look_later(self) -> None:
        self._looking = True
        asyncio.get_running_loop().call_later(IDLE_FOR, self._end_idle)

    def _end_idle(self) -> None:
        """End those that nobody has needed for a while."""
        self._looking = False
        latest = asyncio.get_running_loop().time() - IDLE_FOR
        while self._idle and self._idle[0].idle_since <= latest:
            self._idle.pop(0).leave()
        if self._idle and not self._closed:
            self._look_later()

    def kill(self) -> None:
        """Have all commands killed now; from any thread, because the event loop may be blocked."""
        for supervisor in tuple(self._all):
            supervisor.killed_on_purpose = True
            supervisor.leave()

    async def close(self) -> None:
        """Have all commands killed, and wait until all supervisors have ended."""
        self._closed = True
        self.kill()
        for supervisor in tuple(self._all):
            await supervisor.wait_until_gone()


class Supervisor:
    """One supervisor. It ends when the worker's end of its control socket is closed for writing, by `leave` or with the worker."""

    def __init__(self, inherit: Sequence[int], groups: Path | None) -> None:
        self._loop = asyncio.get_running_loop()
        self.gone: asyncio.Future[None] = self._loop.create_future()
        self.ended = False
        self.idle_since = 0.0
        self.killed_on_purpose = False
        self._lock = threading.Lock()
        self._order: Order | None = None
        self._report: asyncio.Future[Report] | None = None
        self._cgroup = _new_group(groups)
        self._notes = os.memfd_create("notes", os.MFD_CLOEXEC)
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setblocking(False)
        self._output, self._result = Pipe(), Pipe()
        nobody = current_attempt.set(None)  # it belongs to the worker and not to the attempt that asked for it
        given = (theirs.fileno(), self._output.writer, self._result.writer, self._notes)
        try:
            folder = "" if self._cgroup is None else str(self._cgroup.folder)
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_INSIDE), *map(str, given), folder, *map(str, inherit)],
                stdin=subprocess.DEVNULL,
                pass_fds=(*given, *inherit),
                start_new_session=True,
            )
        except OSError:
            self._close()
            self._remove_group()
            raise
        finally:
            current_attempt.reset(nobody)
            theirs.close()
        self._output.passed_on()
        self._result.passed_on()
        forget_in_forks(self)
        self._loop.add_reader(self._control.fileno(), self._receive)

    async def run(self, order: Order, output: Callable[[bytes], None], result: Callable[[bytes], None]) -> Report:
        """Run a command and return how it ended, once nothing of it is left; SupervisorDied if that was killed.

        What the command prints and what it writes to its descriptor 3 is passed on as it comes.
        """
        self._order = order
        self._report = self._loop.create_future()
        self._output.take, self._result.take = output, result
        try:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has ended, which is noticed soon
                self._send(_encoded(order))
            return await self._report
        except BaseException:  # nobody waits for it any more, or it died
            self.leave()
            await self.wait_until_gone()
            raise
        finally:
            self._output.drain()
            self._result.drain()
            self._output.take = self._result.take = ignore

    def _send(self, data: bytes) -> None:
        if len(data) <= MAX_MESSAGE:
            self._control.send(data)
            return
        with open(os.memfd_create("order", os.MFD_CLOEXEC), "w+b") as file:
            file.write(data)
            file.seek(0)
            socket.send_fds(self._control, [b"."], [file.fileno()])

    def stop(self, number: int, grace: float) -> None:
        """Have the command stopped: by a signal, and after `grace` seconds by force."""
        with contextlib.suppress(OSError):
            self._send(json.dumps({"stop": number, "grace": grace}).encode())

    def leave(self) -> None:
        """Have the command killed, if one runs, and the supervisor end; from any thread."""
        with self._lock, contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)

    async def wait_until_gone(self) -> None:
        """Wait for the end of the supervisor, and of everything below it, however often the waiting is cancelled meanwhile."""
        cancelled: asyncio.CancelledError | None = None
        while not self.gone.done():
            try:
                await asyncio.wait((self.gone,))
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled

    def _receive(self) -> None:
        try:
            data = self._control.recv(MAX_MESSAGE)
        except BlockingIOError:
            return
        except OSError:  # it was killed before it had read everything
            data = b""
        if not data:
            self._loop.remove_reader(self._control.fileno())
            self.ended = True
            self._collect(0)
            return
        self._order = None
        if self._report is not None and not self._report.done():
            self._report.set_result(_reports.decode(data))

    # ---- its end ----

    def _collect(self, looks: int) -> None:
        """Collect the supervisor, and kill what it has left behind if it could not do that itself."""
        if self._process.poll() is None or self._orphans():
            self._loop.call_later(min(0.001 * 2**looks, 0.5), self._collect, min(looks + 1, 9))
            return
        if self._order is not None:
            remove_folder(Path(self._order.folder))
        self._close()
        if not self._remove_group():
            self._loop.call_later(0.05, self._remove_group)
        if self._report is not None and not self._report.done():
            self._report.set_exception(SupervisorDied(_manner(self._process.returncode)))
            self._report.exception()  # perhaps nobody waits for it any more
        self.gone.set_result(None)

    def _orphans(self) -> bool:
        """Kill what is left of a command whose supervisor died; return whether there was something.

        They are in the supervisor's group, if it had one. Otherwise they are known by their parents, and by the environment that they were
        started with; one that left its session and has wiped its environment is not found.
        """
        if self._order is None:
            return False
        left = False
        if self._cgroup is not None:
            left = not self._cgroup.remove()
            self._cgroup.kill()
        found = with_environment(f"{name}={self._order.env[name]}".encode() for name in ("DUETIME_TASK", "DUETIME_ATTEMPT"))
        match os.pread(self._notes, 64, 0).decode().strip(" \0").split():
            case [pid, started] if start_of(int(pid)) == started:
                found.add(int(pid))
        for each in found:
            left = bool(kill_with_descendants(each)) or left
        return left

    def _close(self) -> None:
        with self._lock:
            self._control.close()
        self._output.close()
        self._result.close()
        os.close(self._notes)

    def _remove_group(self) -> bool:
        return self._cgroup is None or self._cgroup.remove()

    def forget_after_fork(self) -> None:
        self._control.close()  # held in a fork, it would keep the command alive without its worker


def _encoded(order: Order) -> bytes:
    try:
        return msgspec.json.encode(order)
    except UnicodeEncodeError:  # a variable of the environment that is not UTF-8
        return json.dumps(msgspec.structs.asdict(order)).encode()


def _new_group(parent: Path | None) -> Cgroup | None:
    if parent is None:
        return None
    cgroup = Cgroup(parent / f"duetime-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        cgroup.folder.mkdir()
    except OSError:  # used up, or taken away since
        return None
    return cgroup


def _manner(returncode: int) -> str:
    return f"exit code {returncode}" if returncode >= 0 else f"killed by signal {-returncode} ({_name(-returncode)})"


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
