"""Some workers on one store, a client of the same store, and what the tests see of them."""

import asyncio
import contextlib
import os
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from duetime import App, NewTask, State, Task
from duetime.errors import StoreUnavailable
from duetime.store import Store
from duetime.store.open import store_from_url
from tests.chaos.history import Attempt, History
from tests.chaos.journal import HOLDING, Event, Journal, read
from tests.chaos.processes import WorkerProcess, until
from tests.chaos.skewed import OFF
from tests.servers.waiting import PATIENCE

__all__ = ["ROOT", "Fleet", "WorkerProcess", "until"]

ROOT = Path(__file__).resolve().parents[2]
APP = "tests.chaos.handlers:app"
AT_ONCE = 500


class Fleet:
    """Workers and a client on the store at `url`, by default a SQLite file, and the journal of what ran.

    With `look_url` the tests themselves see the store by another way than the workers and the client, who may be cut off.
    """

    def __init__(self, folder: Path, *, url: str | None = None, look_url: str | None = None, query: str = "") -> None:
        self.folder = folder
        self.path = folder / "duetime.db"
        self.url = url or f"sqlite:///{self.path}{query}"
        self.journal = Journal(folder / "journal")
        self.app = App(self.url, user="chaos")
        self.workers: list[WorkerProcess] = []
        self._look: Store | None = store_from_url(look_url) if look_url else None
        self._events: list[Event] = []
        self._read_to = 0
        self._running: Counter[int] = Counter()  # attempts by worker
        self._counted_to = 0

    async def __aenter__(self) -> Self:
        await self.app.__aenter__()
        if self._look is not None:
            await self._look.open()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        for worker in self.workers:
            if worker.frozen:
                worker.thaw()
            worker.kill()
            if error is not None:
                sys.stderr.write(f"--- worker {worker.pid}\n{worker.log()[-4_000:]}\n")
        await self.app.__aexit__(kind, error, traceback)
        if self._look is not None:
            await self._look.close()
        self.journal.close()

    @property
    def store(self) -> Store:
        """The store as the tests see it."""
        return self._look or self.app.store

    async def look_at(self, url: str) -> None:
        """See the store at another address from now on."""
        if self._look is not None:
            await self._look.close()
        self._look = store_from_url(url)
        await self._look.open()

    # ---- workers ----

    async def start(
        self, *arguments: str, app: str = APP, ready: bool = True, clock_off: float = 0.0, guarded: bool = True, **environment: object
    ) -> WorkerProcess:
        """Start a worker, perhaps on a host with a wrong clock, or without guards; unless `ready` is False, wait until it runs."""
        log = self.folder / f"worker-{len(self.workers)}.log"
        variables = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("DUETIME_", "CHAOS_", "COV_"))},
            "DUETIME_URL": self.url,
            "CHAOS_JOURNAL": str(self.journal.path),
            OFF: str(clock_off),
            **{name.upper(): str(value) for name, value in environment.items()},
        }
        module = "tests.chaos.skewed" if clock_off else "duetime.cli" if guarded else "tests.chaos.unguarded"
        command = [sys.executable, "-m", module, "worker", app, *arguments]
        with log.open("wb") as output:
            process = subprocess.Popen(command, cwd=ROOT, env=variables, stdin=subprocess.DEVNULL, stdout=output, stderr=output)  # noqa: ASYNC220
        worker = WorkerProcess(process, log, self.journal)
        self.workers.append(worker)
        if ready:
            await self.is_ready(worker)
        return worker

    async def start_some(self, count: int, *arguments: str, **environment: object) -> list[WorkerProcess]:
        """Start several at once and wait until all run."""
        workers = [await self.start(*arguments, ready=False, **environment) for _ in range(count)]  # type: ignore[arg-type]
        for worker in workers:
            await self.is_ready(worker)
        return workers

    async def is_ready(self, worker: WorkerProcess) -> None:
        await until(f"worker process {worker.pid} is ready", lambda: worker.ready or not worker.running)
        assert worker.running, worker.log()

    @property
    def alive(self) -> list[WorkerProcess]:
        return [worker for worker in self.workers if worker.running and not worker.frozen]

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
        """Submit tasks, if need be again until that is acknowledged, and note it in the journal."""
        new_tasks = list(tasks)
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                stored = await self.app.submit_many(new_tasks, allow_unknown=True)
                break
            except StoreUnavailable:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.05)
        for task in stored:
            self.journal.write("submitted", task=task.id, handler=task.handler)
        return list(stored)

    async def one(self, handler: str, /, **arguments: Any) -> Task[Any]:
        [task] = await self.submit([self.new(handler, **arguments)])
        return task

    async def make_due(self, *tasks: Task[Any]) -> None:
        """Let tasks that wait for a later time be due now, if need be again until that is acknowledged."""
        for task in tasks:

            async def is_due(id: str = task.id) -> bool:
                with contextlib.suppress(StoreUnavailable):
                    if (await self.app.get(id)).due_at.timestamp() > time.time():
                        await self.app.reschedule(id, delay=0)
                    return True
                return False

            await until("it is due", is_due)

    def hold(self) -> None:
        """Let attempts of tasks with `held=True` go on until `let_go`, so that nothing depends on how long anything takes."""
        (self.folder / HOLDING).touch()

    def let_go(self) -> None:
        (self.folder / HOLDING).unlink()

    # ---- looking ----

    def history(self) -> History:
        events, self._read_to = read(self.journal.path, start=self._read_to)
        self._events = sorted([*self._events, *events], key=lambda event: event.at)
        return History(self._events)

    def attempts(self, task: Task[Any]) -> list[Attempt]:
        return self.history().attempts.get(task.id, [])

    def started(self, *tasks: Task[Any]) -> bool:
        """Tell whether every one of these has started at least once."""
        attempts = self.history().attempts
        return all(attempts.get(task.id) for task in tasks)

    def busy(self) -> set[int]:
        """Give the workers that run something, as far as the journal tells."""
        events, self._counted_to = read(self.journal.path, start=self._counted_to)
        for event in events:
            self._running[event.worker] += {"start": 1, "end": -1}.get(event.kind, 0)
        return {worker for worker, count in self._running.items() if count > 0}

    async def states(self) -> dict[str, str]:
        """Give the state of every task that was acknowledged."""
        return {task: state for task, (state, _) in (await self.facts()).items()}

    async def facts(self) -> dict[str, tuple[str, int]]:
        """Give the state of every task that was acknowledged, and its newest attempt."""
        ids = sorted(self.history().submitted())
        chunks = [await self.store.get(ids[start : start + AT_ONCE]) for start in range(0, len(ids), AT_ONCE)]
        return {record.id: (record.state.value, record.attempt) for chunk in chunks for record in chunk if record is not None}

    async def all_final(self) -> bool:
        stats = await self.store.counts()
        return not any(lane.due + lane.later + lane.blocked + lane.running for lane in stats.lanes)

    async def finish(self, *, seconds: float = PATIENCE) -> None:
        """Wait until every task is final."""
        try:
            await until("every task is final", self.all_final, seconds=seconds)
        except AssertionError as error:
            lanes = (await self.store.counts()).lanes
            raise AssertionError(
                f"{error}; left are {[lane for lane in lanes if lane.due + lane.later + lane.blocked + lane.running]}"
            ) from None

    async def in_state(self, task: Task[Any], *states: State) -> bool:
        return (await self.app.get(task.id)).state in states

    async def violations(self) -> list[str]:
        """Give every promise that was broken."""
        for worker in self.workers:
            worker.note_death()
        facts = await self.facts()
        slots = {each.name: each.concurrency for each in await self.store.declarations()}
        states, ended_by = {task: state for task, (state, _) in facts.items()}, {task: number for task, (_, number) in facts.items()}
        return self.history().violations(states, ended_by, slots)

    async def check(self) -> History:
        """Assert that no promise was broken and that the store is sound; give the history for more questions."""
        violations = await self.violations()
        assert not violations, "\n".join(violations[:20])
        problems = await self.store.inspect(repair=False)
        assert not problems, problems
        if self.path.exists():
            with contextlib.closing(sqlite3.connect(self.path)) as connection:
                assert connection.execute("pragma integrity_check").fetchall() == [("ok",)]
        return self.history()
