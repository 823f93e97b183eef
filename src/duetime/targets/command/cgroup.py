"""Control groups of Linux (version 2), where the worker may make some: one for each supervisor, with all that runs below it.

A process cannot leave its group, whatever it does with parents and sessions. So the group bounds the memory and the number of processes of
all of a command together, and kills them together, also when the supervisor itself was killed. Where there is none, limits hold for each
process alone (`setrlimit`). Used by supervisors, so it needs the standard library only.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from duetime.runtime.processes import start_of

_OWN_MEMORY = 32 * 1_048_576  # of the supervisor, which is in the group too
_CONTROLLERS = ("memory", "pids")


class Cgroup:
    """One group, by its folder."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def join(self) -> None:
        """Move this process into the group; what it starts later is born there."""
        (self.folder / "cgroup.procs").write_text("0")

    def limit(self, memory: int | None, processes: int | None) -> None:
        """Bound what runs in the group besides the supervisor; None takes the bound away. Without the controller nothing happens."""
        self._write("memory.max", "max" if memory is None else str(memory + _OWN_MEMORY))
        self._write("memory.swap.max", "max" if memory is None else "0")
        self._write("pids.max", "max" if processes is None else str(processes + 1))

    @property
    def bounds_memory(self) -> bool:
        return (self.folder / "memory.max").exists()

    @property
    def bounds_processes(self) -> bool:
        return (self.folder / "pids.max").exists()

    def out_of_memory(self) -> int:
        """Return how many of its processes the kernel has killed because the memory was used up."""
        with contextlib.suppress(OSError, ValueError):
            events = dict(line.split() for line in (self.folder / "memory.events").read_text().splitlines())
            return int(events.get("oom_kill", 0))
        return 0

    def kill(self) -> None:
        """Kill all that is in it."""
        self._write("cgroup.kill", "1")

    def remove(self) -> bool:
        """Remove the group; return False as long as something runs in it."""
        with contextlib.suppress(FileNotFoundError):
            try:
                self.folder.rmdir()
            except OSError:
                return False
        return True

    def _write(self, name: str, text: str) -> None:
        with contextlib.suppress(OSError), open(self.folder / name, "r+") as file:  # never makes a file
            file.write(text)


def parent_of_groups(own: Path | None = None) -> Path | None:
    """Return the group in which this process may make others; None if there is none.

    That is its own, or the one above if the service manager has handed that over (`Delegate=yes` with `DelegateSubgroup=` of systemd): a
    group with processes in it, as its own, cannot have controllers for the groups below, unless it is the root.
    """
    own = _own_group() if own is None else own
    if own is None:
        return None
    folder = own.parent if _is_handed_over(own.parent) else own
    for controller in _CONTROLLERS:
        with contextlib.suppress(OSError), open(folder / "cgroup.subtree_control", "r+") as file:
            file.write(f"+{controller}")
    trial = folder / f"duetime-{os.getpid()}-trial"
    with contextlib.suppress(OSError):
        trial.mkdir()
        usable = (trial / "cgroup.kill").exists()
        trial.rmdir()
        return folder if usable else None
    return None


def _is_handed_over(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        return os.getxattr(folder, "user.delegate") == b"1"
    return False


def _own_group() -> Path | None:
    with contextlib.suppress(OSError):
        mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        at = next((Path(fields[4]) for fields in mounts if fields[fields.index("-") + 1] == "cgroup2"), None)
        group = next((line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::")), None)
        if at is not None and group is not None:
            return at / group.strip("/")
    return None


def remove_left_groups(parent: Path) -> None:
    """Remove the empty groups of processes that were killed; `duetime-<process>-…` is how they are called."""
    for folder in parent.glob("duetime-*-*"):
        process = folder.name.split("-")[1]
        if process.isdigit() and start_of(int(process)) is None:
            Cgroup(folder).remove()


def containment(parent: Path | None) -> str:
    """Say in a sentence what holds a command together on this machine, for people."""
    if parent is None:
        return (
            "no writable control group: limits hold for each process, and a process that left its session may outlive a killed supervisor"
        )
    trial = Cgroup(parent / f"duetime-{os.getpid()}-look")
    try:
        trial.folder.mkdir()
        bounds = [name for name, has in (("memory", trial.bounds_memory), ("processes", trial.bounds_processes)) if has]
    except OSError:
        bounds = []
    finally:
        trial.remove()
    limits = f"bound {' and '.join(bounds)} of a whole command" if bounds else "kill a whole command; limits hold for each process"
    return f"control groups below {parent} {limits}"
