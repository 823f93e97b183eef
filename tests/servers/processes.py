"""Processes that are children of a test: start them so that they end with it, and find and end all that they started."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

LAUNCH = Path(__file__).with_name("launch.py")
PR_SET_CHILD_SUBREAPER = 36
IPC_RMID = 0

_adoption = threading.Lock()  # to adopt orphans is a property of the whole process
# A child's death signal is sent when the thread that started it ends, not only when the process does. So all are started by
# one thread that lives as long as the process, whichever thread a test is in.
_starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="servers")


def account() -> pwd.struct_passwd:
    """Tell as whom a server runs: as oneself, but never as root."""
    return pwd.getpwuid(os.geteuid()) if os.geteuid() != 0 else pwd.getpwnam("nobody")


def give_away(folder: Path) -> None:
    """Let the account of the servers have a folder."""
    os.chown(folder, account().pw_uid, account().pw_gid)


def start(command: Sequence[str | Path], *, log: IO[bytes], folder: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a program under the account of the servers; it ends with this process, however that ends."""
    whom = account()
    launch = [sys.executable, "-I", "-S", LAUNCH, str(os.getpid()), str(whom.pw_uid), str(whom.pw_gid), *command]

    def started() -> subprocess.Popen[bytes]:
        # in a session of its own, or Ctrl-C in a terminal would end the servers before the tests
        return subprocess.Popen(
            launch, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )

    return _starter.submit(started).result()


def children(pid: int) -> list[int]:
    """List the processes that a process started and that still exist."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it ended while we looked
                if _parent(entry) == pid:
                    found.append(int(entry.name))
    return found


def _parent(entry: Path) -> int:
    # the name, in parentheses, may contain anything, so count from its end
    return int((entry / "stat").read_text().rpartition(")")[2].split()[1])


def kill_family(process: subprocess.Popen[bytes]) -> None:
    """Kill a child and its children as a power failure would: all of them, none has the time to notice the end of another."""
    with _adopting_orphans():
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)  # from here on it starts nothing
        family = children(process.pid)
        for pid in family:
            os.kill(pid, signal.SIGKILL)
        process.kill()
        process.wait()
        for pid in family:
            os.waitpid(pid, 0)


def forget_shared_memory(id: int) -> None:
    """Remove a segment that a killed process could not; the kernel would keep it until the machine is restarted."""
    ctypes.CDLL(None).shmctl(id, IPC_RMID, None)


@contextlib.contextmanager
def _adopting_orphans() -> Iterator[None]:
    """Become the parent of children's children whose parent ends: nobody else may be there to reap them, as in a container."""
    prctl = ctypes.CDLL(None).prctl
    with _adoption:
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        try:
            yield
        finally:
            prctl(PR_SET_CHILD_SUBREAPER, 0)
