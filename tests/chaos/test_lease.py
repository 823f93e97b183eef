"""A store that goes by leases: a worker that cannot renew stops its attempts, and dies before anyone else may have them.

One inside a user's program does not end that program. It stops what can be stopped.
"""

import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar, Literal

import pytest

from duetime import State
from duetime.worker import keeper
from tests.chaos.fleet import ROOT, until
from tests.chaos.history import Attempt, History
from tests.chaos.leased import leased_app
from tests.servers.waiting import PATIENCE

LEASE = 1.0


class Process:
    """A leased worker in a process of its own, and a client on its file."""

    def __init__(self, folder: Path, on_lease_lost: str) -> None:
        self.folder = folder
        self.app, _ = leased_app(folder, LEASE)
        self.log = (folder / "log").open("wb")
        command = [sys.executable, "-m", "tests.chaos.leased", str(folder), str(LEASE), on_lease_lost]
        self.child = subprocess.Popen(command, cwd=ROOT, stdout=self.log, stderr=self.log)

    def cut(self) -> None:
        (self.folder / "cut").touch()

    def said(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def attempts(self) -> list[Attempt]:
        return [attempt for each in History.of(self.folder / "journal").attempts.values() for attempt in each]

    def ends(self) -> list[str]:
        return [attempt.end.how if attempt.end else "no end" for attempt in self.attempts()]

    def runs(self) -> bool:
        """Return whether the newest attempt runs. A busy machine may have made the worker lose its lease, and others, before."""
        return self.ends()[-1:] == ["no end"]

    def pid(self) -> int:
        """Return the process of the newest attempt."""
        return self.attempts()[-1].start.pid

    async def stops_when_cut(self, end: str) -> None:
        """Cut the line: its attempt ends like this, it lives on for two leases, and starts nothing meanwhile."""
        pid = self.pid()
        self.cut()
        await until("its code has ended", lambda: not self.runs() if pid == self.child.pid else not alive(pid))
        ends = self.ends()
        assert ends[-1] in end.split(" or "), "a sub-process is told to stop and killed; which of both its code notices is chance"
        await self.outlives_its_lease()
        assert self.ends() == ends, "nothing starts without a lease"

    async def outlives_its_lease(self) -> None:
        deadline = time.monotonic() + 2 * LEASE
        await until("two leases have passed", lambda: time.monotonic() > deadline)
        assert self.child.poll() is None, self.said()


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


@asynccontextmanager
async def process(folder: Path, on_lease_lost: str = "exit") -> AsyncIterator[Process]:
    process = Process(folder, on_lease_lost)
    try:
        async with process.app:
            yield process
    finally:
        process.child.kill()
        process.child.wait()
        process.log.close()


@pytest.mark.parametrize("handler", ["clings", "holds", "sleeps"])
async def test_a_worker_that_cannot_renew_is_ended_by_the_kernel_whatever_its_handlers_do(tmp_path: Path, handler: str) -> None:
    async with process(tmp_path) as worker:
        await worker.app.handler(handler).now()
        await until("it has started", worker.runs)
        worker.cut()
        await until("the process has ended", lambda: worker.child.poll() is not None)
        assert worker.child.returncode == -signal.SIGKILL
        assert worker.ends() == ["no end"]


async def test_a_worker_begins_as_soon_as_it_can_prove_that_it_lives(tmp_path: Path) -> None:
    """It is neither ended nor refused because its first renewals take too long, and it runs nothing before one has succeeded."""
    (tmp_path / "cut").touch()
    async with process(tmp_path) as worker:
        await worker.app.handler("waits").now()
        (tmp_path / "go").touch()
        await worker.outlives_its_lease()
        assert worker.ends() == []
        (tmp_path / "cut").unlink()
        await until("it has begun", lambda: worker.ends()[-1:] == ["returned"])


async def test_a_frozen_worker_is_ended_by_the_kernel_without_waking_up(tmp_path: Path) -> None:
    async with process(tmp_path) as worker:
        task = await worker.app.handler("waits").now()
        await until("it has started", worker.runs)
        worker.child.send_signal(signal.SIGSTOP)
        await until("the process has ended", lambda: worker.child.poll() is not None)
        assert worker.child.returncode == -signal.SIGKILL
        assert worker.runs()
        assert (await worker.app.get(task)).state is State.RUNNING, "it is for a reaper to say what becomes of it"


ends = pytest.mark.parametrize(
    ("handler", "end"), [("waits", "CancelledError"), ("heeds", "AttemptCancelled"), ("boxed", "AttemptCancelled or no end")]
)


@ends
async def test_a_worker_in_which_everything_has_stopped_outlives_its_lease_and_goes_on(tmp_path: Path, handler: str, end: str) -> None:
    """The kernel ends it for code that runs on, and there is none; so an outage of the store is no crash."""
    async with process(tmp_path) as worker:
        task = await worker.app.handler(handler).now()
        await until("it has started", worker.runs)
        await worker.stops_when_cut(end)
        stopped = len(worker.ends())
        (tmp_path / "cut").unlink()
        await until("it goes on", lambda: len(worker.ends()) > stopped)
        after = await worker.app.get(task)
        # a machine that is busy for a whole second may make it lose its lease once more, before or after it begins
        assert after.attempt > 1
        assert (after.tries, after.crashes) == (0, 0)
        worker.cut()
        worker.child.send_signal(signal.SIGSTOP)
        await until("it is ended as before", lambda: worker.child.poll() is not None)
        assert worker.child.returncode == -signal.SIGKILL


# ---- inside a user's program ----


@ends
async def test_a_program_outlives_its_workers_lease_and_what_ran_in_it_has_stopped(tmp_path: Path, handler: str, end: str) -> None:
    async with process(tmp_path, "cancel") as worker:
        await worker.app.handler(handler).now()
        await until("it has started", worker.runs)
        await worker.stops_when_cut(end)
        assert "stopping all attempts" in worker.said()


@pytest.mark.parametrize("handler", ["clings", "sleeps"])
async def test_a_program_is_not_ended_for_code_that_does_not_stop(tmp_path: Path, handler: str) -> None:
    async with process(tmp_path, "cancel") as worker:
        await worker.app.handler(handler).now()
        await until("it has started", worker.runs)
        worker.cut()
        await until("it was told to stop", lambda: "stopping all attempts" in worker.said())
        await worker.outlives_its_lease()
        assert worker.ends() == ["no end"], "this is where only the fence protects"


async def test_children_are_killed_in_time_although_the_event_loop_is_blocked(tmp_path: Path) -> None:
    async with process(tmp_path, "cancel") as worker:
        await worker.app.handler("boxed").now()
        await until("it has started", worker.runs)
        child = worker.pid()
        await worker.app.handler("blocks").now()
        await until("the loop is blocked", lambda: any(attempt.start.handler == "blocks" for attempt in worker.attempts()))
        worker.cut()
        await until("the child is dead", lambda: not alive(child))
        assert worker.child.poll() is None
        assert worker.runs(), "the loop is still blocked"


async def test_attempts_are_stopped_in_time_although_a_renewal_does_not_return(tmp_path: Path) -> None:
    async with process(tmp_path, "cancel") as worker:
        await worker.app.handler("waits").now()
        await until("it has started", worker.runs)
        (tmp_path / "hang").touch()
        await until("it was cancelled", lambda: worker.ends()[-1] == "CancelledError")
        await worker.outlives_its_lease()


class Disarmed:
    """Stands for the kernel's timer in this process, which is to live on."""

    armed: ClassVar[list[float]] = []

    def now(self) -> float:
        return 0.0

    def arm(self, seconds: float, since: float | None = None) -> None:
        self.armed.append(seconds)

    def disarm(self) -> None:
        self.armed.append(0.0)


@pytest.mark.parametrize("how", ["exit", "cancel"])
async def test_a_worker_whose_line_comes_back_in_time_stops_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: Literal["exit", "cancel"]
) -> None:
    monkeypatch.setattr(keeper, "DeadMan", Disarmed)
    Disarmed.armed.clear()
    app, store = leased_app(tmp_path, 1.0)
    async with app.using_store(store), app.worker(on_lease_lost=how) as worker:
        assert worker.health().proved
        task = await app.handler("waits").now()
        await until("it has started", lambda: len(worker.executor.running) == 1)
        (tmp_path / "cut").touch()
        await until("its attempt was stopped", lambda: not worker.executor.running)
        assert worker.executor.wants() == ({}, 0), "it claims nothing while it cannot prove that it lives"
        assert not worker.health().proved
        assert "the store has not taken its proof of life" in worker.health().problems[-1]
        (tmp_path / "cut").unlink()
        (tmp_path / "go").touch()
        await app.result(task, timeout=PATIENCE)
        after = await app.get(task)
        await until("it can prove again that it lives", lambda: worker.health().proved)
    assert (after.state, after.tries, after.crashes) == (State.SUCCEEDED, 0, 0)
    assert after.attempt > 1
    [unknown] = History.of(tmp_path / "journal").violations({task.id: "succeeded"})
    assert unknown.startswith("unknown"), "this test submits without a note in the journal"
    assert (Disarmed.armed[-1] == 0.0) if how == "exit" else (Disarmed.armed == []), "only a process of its own hangs on the kernel's timer"
