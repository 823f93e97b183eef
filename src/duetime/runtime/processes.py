"""Processes that this one has started, directly or not: find them, kill them, see that they are gone. Read from /proc, so Linux only.

Elsewhere nothing is found, and only whole process groups can be killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path

SET_DEATH_SIGNAL, SET_SUBREAPER, SET_NO_NEW_PRIVILEGES = 1, 36, 38  # of prctl(2)

_PROC = Path("/proc")


def children_of_thread(thread: int) -> set[int]:
    """Return the children that a thread of this process has started and that have not been collected; by its kernel number."""
    return _numbers(_PROC / "self" / "task" / str(thread) / "children")


def children(pid: int) -> set[int]:
    """Return the children of a process, the dead ones that have not been collected too."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return set()
    found = {child for thread in threads for child in _numbers(_PROC / str(pid) / "task" / thread / "children")}
    return found or (set() if (_PROC / "self" / "task" / str(os.getpid()) / "children").exists() else _children_by_search(pid))


def _numbers(path: Path) -> set[int]:
    try:
        return set(map(int, path.read_bytes().split()))
    except OSError:
        return set()


def _children_by_search(pid: int) -> set[int]:
    """Search all processes, for kernels that were built without the list of children."""
    parents = ((int(path.parent.name), _fields(path)) for path in _PROC.glob("[0-9]*/stat"))
    return {child for child, fields in parents if fields and int(fields[1]) == pid}


def start_of(pid: int) -> str | None:
    """Return when a process was started, in the kernel's ticks: its number may later be another's. None if it does not run any more."""
    fields = _fields(f"/proc/{pid}/stat")
    return fields[19] if fields and fields[0] not in "ZX" else None


def resident(pid: int) -> int:
    """Return how many bytes of memory a process uses; 0 if that cannot be told."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def _fields(stat: str | Path) -> list[str]:
    """Return what follows the name, which is in parentheses and may contain blanks: state, parent, group … An empty list if it is gone."""
    try:
        with open(stat, "rb", 0) as file:
            return file.read().rpartition(b")")[2].decode().split()
    except OSError:
        return []


def kill_with_descendants(pid: int) -> dict[int, str]:
    """Kill a process and everything below it; return those that ran, by number, and when each was started. They need a moment to go.

    Each is stopped before its children are listed: a process with a pending signal cannot fork, so none is born unseen.
    """
    found: dict[int, str] = {}
    waiting = {pid}
    while waiting:
        each = waiting.pop()
        started = start_of(each)
        if started is not None:
            found[each] = started
            send(each, signal.SIGSTOP)
            waiting |= children(each).difference(found)
    for each in found:
        send(each, signal.SIGKILL)
    return found


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal, if the process is there and ours."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def group_lives(group: int, *, thorough: bool) -> bool:
    """Return whether a process of the group still runs; if `thorough`, zombies do not count."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return not thorough or _runs_any(group, _PROC.glob("[0-9]*/stat")) or not (_PROC / "self" / "stat").exists()


def group_has_others(group: int) -> bool:
    """Return whether more than its leader runs in a group."""
    return _runs_any(group, (path for path in _PROC.glob("[0-9]*/stat") if path.parent.name != str(group)))


def _runs_any(group: int, stats: Iterable[Path]) -> bool:
    return any(fields and int(fields[2]) == group and fields[0] not in "ZX" for fields in map(_fields, stats))


def become_subreaper() -> bool:
    """Let processes below this one that lose their parent become its children; return whether the kernel can."""
    return sys.platform == "linux" and prctl(SET_SUBREAPER, 1)


def prctl(option: int, value: int) -> bool:
    """Set an attribute of this process; return whether the kernel did."""
    import ctypes  # takes some milliseconds, and most programs never need it

    try:
        return bool(ctypes.CDLL(None).prctl(option, value, 0, 0, 0) == 0)
    except (AttributeError, OSError):
        return False


def end_all_children() -> None:
    """Kill all children of this process and everything below them, and wait until nothing is left.

    Of a subreaper these are all that were ever started below it, also those that forked twice and left their session.
    """
    pause = 0.001
    while _collect_ended():
        for child in children(os.getpid()):
            kill_with_descendants(child)
        time.sleep(pause)
        pause = min(2 * pause, 0.05)


def _collect_ended() -> bool:
    """Collect children that have ended; return whether others are left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def with_environment(marks: Iterable[bytes]) -> set[int]:
    """Return the processes that were started with all of these `NAME=value` in their environment; only those that may be looked at."""
    wanted = set(marks)
    found = set()
    for path in _PROC.glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if wanted <= set(path.read_bytes().split(b"\0")):
                found.add(int(path.parent.name))
    return found
