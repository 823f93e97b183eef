"""Worker processes that tests start, stop, freeze and kill."""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from duetime.runtime.processes import children
from tests.chaos.journal import Journal
from tests.servers.waiting import PATIENCE


async def until(what: str, condition: Callable[[], Awaitable[object] | object], *, seconds: float = PATIENCE) -> None:
    """Wait until a condition holds; the bound is generous, because nothing here measures time."""
    deadline = time.monotonic() + seconds
    while True:
        holds = condition()
        if isinstance(holds, Awaitable):
            holds = await holds
        if holds:
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:g} s in vain until {what}")
        await asyncio.sleep(0.02)


def below_guards(pid: int) -> int:
    """Return the worker of the command with this number; the command itself as long as there is no other process."""
    for _guard in ("outer", "inner"):
        pid = next(iter(children(pid)), pid)
    return pid


class WorkerProcess:
    """One `duetime worker` of a test's own; it is frozen and killed itself, not its guards."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, journal: Journal) -> None:
        self._process = process
        self._log = log
        self._journal = journal
        self._stopped: int | None = None  # the process that got SIGSTOP
        self.told = False  # whether the journal knows of its death
        self.killed_at: float | None = None

    @property
    def pid(self) -> int:
        """The worker's own process, below its guards; the one that was started as long as there is no other."""
        said = re.findall(r" process (\d+)\) runs tests\.", self.log())
        return int(said[-1]) if said else below_guards(self._process.pid)

    @property
    def guard(self) -> int:
        """The process that was started."""
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def ready(self) -> bool:
        return " runs tests." in self.log()

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def frozen(self) -> bool:
        return self._stopped is not None

    def _signal(self, pid: int, number: signal.Signals) -> None:
        if self.running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def terminate(self, number: signal.Signals = signal.SIGTERM) -> None:
        if self.running:
            self._process.send_signal(number)

    def freeze(self) -> None:
        self._stopped = self.pid  # of one that still starts it may be a guard, and another process when it thaws
        self._signal(self._stopped, signal.SIGSTOP)
        self._journal.write("frozen", pid=self._stopped)

    def thaw(self) -> None:
        if self._stopped is not None:
            self._signal(self._stopped, signal.SIGCONT)
            self._stopped = None

    def kill(self) -> None:
        """Kill it at this very moment, and note when it certainly was still alive."""
        if self.running:
            self._journal.write("killed", pid=self.pid)
            self.told = True
            self._signal(self.pid, signal.SIGKILL)
            self._process.wait(PATIENCE)  # its guards end when nothing is left of it
            self.killed_at = time.monotonic()

    def note_death(self) -> None:
        """Let the journal know if it has ended by itself."""
        if not self.running and not self.told:
            self.told = True
            self._journal.write("died", pid=self.pid, how=str(self._process.returncode))

    async def ended(self, *, seconds: float = PATIENCE) -> int:
        """Wait for its end and give the exit code."""
        await until(f"worker process {self.pid} has ended; its log:\n{self.log()[-2_000:]}", lambda: not self.running, seconds=seconds)
        self.note_death()
        return self._process.returncode
