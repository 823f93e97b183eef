"""CPU time of a server with all the processes that it has started, those that have ended included."""

from __future__ import annotations

import os
from pathlib import Path

from tests.servers.processes import children

TICK = 1e6 / os.sysconf("SC_CLK_TCK")


def family_microseconds(pid: int) -> float:
    """Return the CPU time of a process and its children since they began.

    The kernel counts living ones in nanoseconds. Those that have ended are in their parent's sum, in steps of 10 ms.
    """
    while True:
        ended = _ended(pid)
        living = [_living(each) for each in (pid, *children(pid))]
        if _ended(pid) == ended and None not in living:  # otherwise one has ended while we looked
            return ended + sum(each for each in living if each is not None)


def _ended(pid: int) -> float:
    # the name, in parentheses, may contain anything, so count from its end
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[13]) + int(fields[14])) * TICK


def _living(pid: int) -> float | None:
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e3
    except (FileNotFoundError, ProcessLookupError):
        return None
