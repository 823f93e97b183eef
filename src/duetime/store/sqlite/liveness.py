"""Whether a worker is alive, by a file lock: each worker and its children hold a lock on a file of its own.

The lock is free when the last process that holds it has ended. No lease, no clock, nothing to renew through the database's write lock:
beside four busy writers a renewal through it waited up to 5.6 s. A stopped worker, or an orphan that still runs its task, is not taken for
dead.

But a lock can be held without right: by a fork that C code made, or by anybody who may read the file. So its owner counts too. If the
lock is held although the worker's process is gone, nobody is sure (None), and an observer waits for a lease. Children that die with their
worker, and a supervisor that cleans up after it, are gone long before.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
from functools import cache
from pathlib import Path

from duetime.clock import Clock, Instant
from duetime.runtime.forks import forget_in_forks
from duetime.runtime.permissions import PRIVATE, make_folder, share

_MARK = struct.Struct("<qqq")  # beat, instant of the beat, confirmed gates version


class WorkerLock:
    """A worker's own file: locked as long as it or a child of it lives, and holding its beat and confirmed gates.

    Children are given the descriptor on purpose; a fork that a handler makes closes it.
    """

    def __init__(self, folder: Path, worker: str, clock: Clock) -> None:
        make_folder(folder, like=folder.parent)
        self.path = folder / worker
        self._clock = clock
        self._beat = 0
        self._seen_gates = 0
        self._guard = threading.Lock()  # the keeper's thread beats while the event loop confirms and releases
        self.descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
        share(self.path, like=folder)
        fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        forget_in_forks(self)
        self._write()

    def beat(self) -> None:
        with self._guard:
            self._beat += 1
            self._write()

    def confirm(self, version: int) -> None:
        with self._guard:
            self._seen_gates = max(self._seen_gates, version)
            self._write()

    def _write(self) -> None:
        if self.descriptor >= 0:
            os.pwrite(self.descriptor, _MARK.pack(self._beat, self._clock.now(), self._seen_gates), 0)

    def release(self) -> None:
        """Release the lock; children that still run keep it."""
        with self._guard:
            if self.descriptor >= 0:
                self.path.unlink(missing_ok=True)
                os.close(self.descriptor)
                self.descriptor = -1

    def forget_after_fork(self) -> None:
        self._guard = threading.Lock()  # a thread that did not come along may have held it
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def read_mark(path: Path) -> tuple[int, Instant | None, int]:
    """Read a worker's beat, the instant of it and its confirmed gates; zeros if there is no file."""
    try:
        content = path.read_bytes()
    except OSError:
        content = b""
    if len(content) < _MARK.size:
        return 0, None, 0
    beat, at, seen = _MARK.unpack_from(content)
    return beat, at, seen


def is_alive(path: Path, process: str) -> bool | None:
    """Return whether a worker lives: its lock is held, and its process exists.

    None: the lock is held although the process is gone, so only time can tell. If the file is gone (someone cleaned up), the process
    alone decides; None if it lies in another process namespace and so cannot be judged from here.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return _process_lives(process)
    except PermissionError:  # the worker of a user who does not share the store
        return _process_lives(process) or None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None if _process_lives(process) is False else True
    finally:
        os.close(descriptor)
    return False


def process_mark(pid: int | None = None) -> str:
    """Return a name for a process that no later process can have: boot, process namespace, pid, start time."""
    pid = os.getpid() if pid is None else pid
    return f"{_boot()} {_namespace()} {pid} {_started(pid)}"


def _process_lives(mark: str) -> bool | None:
    boot, namespace, pid, started = mark.split(" ")
    if boot != _boot():
        return False
    if namespace != _namespace():
        return None
    return _started(int(pid)) == started


@cache
def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "-"


@cache
def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return "-"


def _started(pid: int) -> str:
    """Return the start time of a process, or "-" if there is none, or only what its parent has not collected yet."""
    try:
        # the second field is the command in parentheses and may contain blanks
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "-" if state in "ZX" else fields[18]
    except (OSError, IndexError):
        return "-"
