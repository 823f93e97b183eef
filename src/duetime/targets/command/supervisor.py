"""The inside of a supervisor: `python -I -S supervisor.py CONTROL OUTPUT RESULT NOTES CGROUP HELD…`.

It runs one command at a time and is kept for the next one. It is a child subreaper, so everything that a command has started is below it,
also what forked twice, left its session, ignores signals or has closed all descriptors. When the command has ended, what is left is killed,
and the end is reported when nothing is left. The same happens at once when the worker is gone: the control socket closes with it.

    worker → supervisor   {"argv": …, "env": …, "folder": …, "limits": …, "stdin": …, "links": …}, later {"stop": signal, "grace": seconds};
                          an order that is too long for a message comes as the descriptor of a file that holds it
    supervisor → worker   {"status": …, "cpu": …, "memory": …, "out_of_memory": …} or {"problem": text}

OUTPUT and RESULT are pipes that the worker reads, for all commands one after the other: nothing of the one is left when the next begins. In
NOTES, a file, stands which process the command is, for the worker to read should this one die.

It starts in 20 ms, because nothing but the standard library and a few files of Duetime are imported. To start one for each command would
take ten times as long as the command `true`, so it is kept (`bench/commands.py`).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

if __name__ == "__main__":
    # the package as a bare folder: its own __init__ would import everything
    _package = ModuleType("duetime")
    _package.__path__ = [str(Path(__file__).parents[2])]
    sys.modules["duetime"] = _package

from duetime.runtime.folders import remove_folder
from duetime.runtime.processes import SET_NO_NEW_PRIVILEGES, become_subreaper, end_all_children, prctl, start_of
from duetime.targets.command.cgroup import Cgroup

RESULT = 3  # the descriptor on which a command gives its result
MAX_MESSAGE = 65_536
NOTE = 64  # bytes: a process number and when it was started, because numbers are used again
_LIMITS = {
    "cpu": resource.RLIMIT_CPU,
    "memory": resource.RLIMIT_DATA,  # what it could write to; RLIMIT_AS would count what Java and Go only reserve
    "files": resource.RLIMIT_NOFILE,
    "file_size": resource.RLIMIT_FSIZE,
}


class Supervisor:
    """Runs commands as it is told over the control socket, one after the other, until that is closed."""

    def __init__(self, control: socket.socket, output: int, notes: int, cgroup: Cgroup | None) -> None:
        self._control = control
        self._output = output
        self._notes = notes
        self._cgroup = cgroup
        self._limited = False
        self._killed_before = 0
        self._cpu_before = 0.0
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._signals = reader
        # Handlers, not SIG_IGN, which a command would inherit. A service manager may send SIGTERM to all: the worker decides.
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._poll.register(reader, select.POLLIN)

    def serve(self) -> None:
        while (order := self._receive()) is not None:
            if "argv" not in order:  # it was to stop what had just ended
                continue
            try:
                pid = self._begin(order)
            except Exception as problem:  # whatever it is, it is this command's
                report: dict[str, Any] = {"problem": _problem(order, problem)}
            else:
                report = self._until_over(pid)
                os.pwrite(self._notes, bytes(NOTE), 0)
            try:
                os.rmdir(order["folder"])
            except OSError:
                remove_folder(Path(order["folder"]))
            with contextlib.suppress(OSError):
                self._control.send(json.dumps(report).encode())

    def _receive(self) -> dict[str, Any] | None:
        """Return what the worker says; None if it is gone."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self._control, MAX_MESSAGE, 1)
        except OSError:
            return None
        if descriptors:
            with open(descriptors[0], "rb") as file:
                data = file.read()
        told: dict[str, Any] | None = json.loads(data) if data else None
        return told

    def _begin(self, order: dict[str, Any]) -> int:
        limits = order["limits"]
        if self._cgroup is not None and (limits or self._limited):
            self._cgroup.limit(limits.get("memory"), limits.get("processes"))
            self._killed_before = self._cgroup.out_of_memory()
            self._limited = bool(limits)
        for each in (self._output, RESULT):
            fcntl.fcntl(each, fcntl.F_SETFL, 0)  # the command before may have made it non-blocking
        self._cpu_before = _cpu()
        os.mkdir(order["folder"], 0o700)
        for name, target in order["links"].items():
            os.symlink(target, f"{order['folder']}/{name}")
        stdin = _readable(order["stdin"])
        try:
            process = subprocess.Popen(
                order["argv"],
                env=order["env"],
                cwd=order["folder"],
                stdin=stdin,
                stdout=self._output,
                stderr=self._output,
                pass_fds=(RESULT,),
                start_new_session=True,
                umask=0o077,
                preexec_fn=self._limiting(limits) if limits else None,  # without it the kernel need not copy this process: half the time
            )
        finally:
            if stdin >= 0:
                os.close(stdin)
        process.returncode = 0  # it is collected here, not by the object
        os.pwrite(self._notes, f"{process.pid} {start_of(process.pid)}".encode().ljust(NOTE), 0)
        return process.pid

    def _limiting(self, limits: dict[str, int]) -> Callable[[], None]:
        """Return what the new process does to itself before it becomes the command."""
        chosen = {_LIMITS[name]: value for name, value in limits.items() if name in _LIMITS}
        if self._cgroup is not None and self._cgroup.bounds_memory:
            chosen.pop(resource.RLIMIT_DATA, None)  # the group counts what is used, of all its processes
        if "processes" in limits and not (self._cgroup is not None and self._cgroup.bounds_processes):
            # the kernel counts all threads of the user, so those that are there already come on top
            chosen[resource.RLIMIT_NPROC] = limits["processes"] + _threads_of_user()

        def limit() -> None:
            prctl(SET_NO_NEW_PRIVILEGES, 1)
            with contextlib.suppress(OSError):
                Path("/proc/self/oom_score_adj").write_text("500")  # the kernel takes the command before its supervisor
            for kind, value in chosen.items():
                hard = resource.getrlimit(kind)[1]
                soft = value if hard == resource.RLIM_INFINITY else min(value, hard)
                # a second more of CPU time, so that SIGXCPU comes first and says why
                resource.setrlimit(kind, (soft, soft + 1 if kind == resource.RLIMIT_CPU and soft == value else soft))

        prctl(SET_NO_NEW_PRIVILEGES, 0)  # has no effect but to load what `limit` needs before the fork
        return limit

    def _until_over(self, pid: int) -> dict[str, Any]:
        """Wait for the end of the command, kill what it has left, and say how it ended."""
        status: int | None = None
        kill_at: float | None = None
        memory, stopped, left = 0, False, True
        while True:
            try:
                while (ended := os.wait4(-1, os.WNOHANG))[0]:
                    memory = max(memory, ended[2].ru_maxrss)
                    if ended[0] == pid:
                        status = ended[1]
            except ChildProcessError:
                left = False
            if not left or (kill_at is not None and time.monotonic() >= kill_at):
                break
            if status is not None and not stopped:  # otherwise what it started has the same time to stop
                break
            wait = None if kill_at is None else max(0.0, kill_at - time.monotonic()) * 1_000 + 1
            for descriptor, _ in self._poll.poll(wait):
                if descriptor == self._signals:
                    os.read(self._signals, 4_096)
                    continue
                told = self._receive()
                stopped = True
                if told is None or not told["grace"]:
                    kill_at = 0.0
                elif kill_at is None:
                    kill_at = time.monotonic() + told["grace"]
                    _signal_group(pid, told["stop"])
        if status is None:
            status = _kill(pid)
        end_all_children()
        return {
            "status": status,
            "stopped": stopped,
            "cpu": round(_cpu() - self._cpu_before, 6),
            "memory": memory * 1_024,
            "out_of_memory": self._limited and self._cgroup is not None and self._cgroup.out_of_memory() > self._killed_before,
        }


def _readable(content: str | None) -> int:
    """Return a descriptor from which a content can be read. Neither a pipe that holds all of it nor a file blocks anybody."""
    if content is None:
        return subprocess.DEVNULL
    data = content.encode("utf-8", "surrogateescape")
    if len(data) <= select.PIPE_BUF:
        reader, writer = os.pipe2(os.O_CLOEXEC)
        os.write(writer, data)
        os.close(writer)
        return reader
    file = os.memfd_create("stdin", os.MFD_CLOEXEC)
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]
    os.lseek(file, 0, os.SEEK_SET)
    return file


def _signal_group(pid: int, number: int) -> None:
    """Send a signal to the command and what it started in its process group; it is not collected yet, so the number is its own."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _kill(pid: int) -> int:
    """Kill the command itself, and return how it ended: perhaps of its own accord after all."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)[1]


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _threads_of_user() -> int:
    """Count the threads that the kernel counts against RLIMIT_NPROC."""
    own, count = os.getuid(), 0
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if folder.stat().st_uid == own:
                count += len(os.listdir(folder / "task"))
    return count


def _problem(order: dict[str, Any], problem: Exception) -> str:
    program = order["argv"][0]
    if isinstance(problem, FileNotFoundError) and problem.filename == program:
        return f"{program!r} is not on this machine; PATH of the command is {order['env'].get('PATH', 'not set: name it in keep_env')!r}"
    return f"{program!r} cannot be started: {problem}"


def _moved_up(descriptor: int) -> int:
    """Return a descriptor under a number that is not that of the result, and that no command inherits."""
    other = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(descriptor)
    return other


def main() -> NoReturn:
    control, output, result, notes = map(_moved_up, map(int, sys.argv[1:5]))
    for held in sys.argv[6:]:
        _moved_up(int(held))
    os.dup2(result, RESULT, inheritable=False)
    cgroup = Cgroup(sys.argv[5]) if sys.argv[5] else None
    if cgroup is not None:
        try:
            cgroup.join()
        except OSError:
            cgroup = None
    become_subreaper()
    Supervisor(socket.socket(fileno=control), output, notes, cgroup).serve()
    os._exit(0)


if __name__ == "__main__":
    main()
