"""Worker processes that tests start, stop, freeze and kill, and what the tests see of them."""

import asyncio
import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from duetime import App, NewTask, State, Task
from duetime.store.protocol import Store
from tests.chaos.history import History, Journal

ROOT = Path(__file__).resolve().parents[2]
APP = "tests.chaos.handlers:app"


async def until(what: str, condition: Callable[[], Awaitable[object] | object], *, seconds: float = 45.0) -> None:
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


class WorkerProcess:
    """One `duetime worker` of a test's own; signals go to its process id and to no other."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, journal: Journal) -> None:
        self._process = process
        self._log = log
        self._journal = journal
        self.frozen = False

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def _signal(self, number: signal.Signals) -> None:
        if self.running:
            self._process.send_signal(number)

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)
        self.frozen = True

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)
        self.frozen = False

    def kill(self) -> None:
        """Kill it at this very moment, and note when it certainly was still alive."""
        if self.running:
            self._journal.write_killed(self.pid)
            self._signal(signal.SIGKILL)
            self._process.wait()

    async def ended(self, *, seconds: float = 45.0) -> int:
        """Wait for its end and give the exit code."""
        await until(f"worker process {self.pid} has ended; its log:\n{self.log()[-2_000:]}", lambda: not self.running, seconds=seconds)
        return self._process.returncode


class Fleet:
    """Some workers on one SQLite file, a client on the same file, and the journal of what ran."""

    def __init__(self, folder: Path, *, query: str = "") -> None:
        self.folder = folder
        self.path = folder / "duetime.db"
        self.url = f"sqlite:///{self.path}{query}"
        self.journal = Journal(folder / "journal")
        self.app = App(self.url, user="chaos")
        self.workers: list[WorkerProcess] = []

    async def __aenter__(self) -> Self:
        await self.app.__aenter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        for worker in self.workers:
            if worker.frozen:
                worker.thaw()
            worker.kill()
            if error is not None:
                sys.stderr.write(f"--- worker {worker.pid}\n{worker.log()[-4_000:]}\n")
        await self.app.__aexit__(kind, error, traceback)
        self.journal.close()

    @property
    def store(self) -> Store:
        return self.app.store

    async def start(self, *arguments: str, app: str = APP, ready: bool = True, **environment: object) -> WorkerProcess:
        """Start a worker; unless `ready` is False, wait until it runs."""
        log = self.folder / f"worker-{len(self.workers)}.log"
        variables = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("DUETIME_", "CHAOS_", "COV_"))},
            "DUETIME_URL": self.url,
            "CHAOS_JOURNAL": str(self.journal.path),
            **{name.upper(): str(value) for name, value in environment.items()},
        }
        command = [sys.executable, "-m", "duetime.cli", "worker", app, *arguments]
        with log.open("wb") as output:
            process = subprocess.Popen(command, cwd=ROOT, env=variables, stdin=subprocess.DEVNULL, stdout=output, stderr=output)  # noqa: ASYNC220
        worker = WorkerProcess(process, log, self.journal)
        self.workers.append(worker)
        if ready:
            await self.is_ready(worker)
        return worker

    async def is_ready(self, worker: WorkerProcess) -> None:
        await until(f"worker process {worker.pid} is ready", lambda: " runs tests.chaos" in worker.log() or not worker.running)
        assert worker.running, worker.log()

    async def freeze_outside_a_write(self, worker: WorkerProcess) -> None:
        """Freeze a worker that does not hold SQLite's write lock at that moment: otherwise nobody could write until it thaws."""

        def can_write() -> bool:
            worker.freeze()
            with contextlib.closing(sqlite3.connect(self.path, timeout=0.2, isolation_level=None)) as connection:
                try:
                    connection.execute("begin immediate")
                except sqlite3.OperationalError:
                    worker.thaw()
                    return False
            return True

        await until("it is frozen outside a write", can_write)

    # ---- submitting ----

    def new(self, handler: str, /, **arguments: Any) -> NewTask[Any]:
        return self.app.handler(handler).new(**arguments)

    async def submit(self, tasks: Iterable[NewTask[Any]]) -> list[Task[Any]]:
        """Submit tasks and note in the journal that they were acknowledged."""
        stored = await self.app.submit_many(list(tasks), allow_unknown=True)
        for task in stored:
            self.journal.write("submitted", task=task.id, handler=task.handler)
        return stored

    async def one(self, handler: str, /, **arguments: Any) -> Task[Any]:
        [task] = await self.submit([self.new(handler, **arguments)])
        return task

    # ---- looking ----

    def history(self) -> History:
        return History.of(self.journal.path)

    def started(self, *tasks: Task[Any]) -> bool:
        """Tell whether every one of these has started at least once."""
        attempts = self.history().attempts
        return all(attempts.get(task.id) for task in tasks)

    async def states(self) -> dict[str, str]:
        """Give the state of every task that was acknowledged."""
        ids = sorted(self.history().submitted())
        records = [record for start in range(0, len(ids), 500) for record in await self.store.get(ids[start : start + 500])]
        return {record.id: record.state.value for record in records if record is not None}

    async def all_final(self) -> bool:
        stats = await self.store.counts()
        return not any(lane.due + lane.later + lane.blocked + lane.running for lane in stats.lanes)

    async def finish(self, *, seconds: float = 45.0) -> None:
        """Wait until every task is final."""
        await until("every task is final", self.all_final, seconds=seconds)

    async def in_state(self, task: Task[Any], *states: State) -> bool:
        return (await self.app.get(task.id)).state in states

    async def check(self) -> History:
        """Assert that no promise was broken and that the file is sound; give the history for more questions."""
        history = self.history()
        assert history.violations(await self.states()) == []
        assert await self.store.inspect(repair=False) == []
        with contextlib.closing(sqlite3.connect(self.path)) as connection:
            assert connection.execute("pragma integrity_check").fetchall() == [("ok",)]
        return history
