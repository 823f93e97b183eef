"""A store that goes by leases: a worker that cannot renew stops its attempts, and dies before anyone else may have them."""

import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar

import pytest

from duetime import State
from duetime.worker import keeper
from tests.chaos.fleet import ROOT, until
from tests.chaos.history import History
from tests.chaos.leased import leased_app


class Process:
    """A leased worker in a process of its own, and a client on its file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.app, _ = leased_app(folder, 1.0)
        self.log = (folder / "log").open("wb")
        command = [sys.executable, "-m", "tests.chaos.leased", str(folder), "1.0"]
        self.child = subprocess.Popen(command, cwd=ROOT, stdout=self.log, stderr=self.log)

    def cut(self) -> None:
        (self.folder / "cut").touch()

    def ends(self) -> list[str]:
        attempts = [attempt for each in History.of(self.folder / "journal").attempts.values() for attempt in each]
        return [attempt.end.how if attempt.end else "no end" for attempt in attempts]


@asynccontextmanager
async def process(folder: Path) -> AsyncIterator[Process]:
    process = Process(folder)
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
        await until("it has started", lambda: worker.ends() == ["no end"])
        worker.cut()
        await until("the process has ended", lambda: worker.child.poll() is not None)
        assert worker.child.returncode == -signal.SIGKILL
        assert worker.ends() == ["no end"]


async def test_a_frozen_worker_is_ended_by_the_kernel_without_waking_up(tmp_path: Path) -> None:
    async with process(tmp_path) as worker:
        task = await worker.app.handler("waits").now(seconds=60.0)
        await until("it has started", lambda: worker.ends() == ["no end"])
        worker.child.send_signal(signal.SIGSTOP)
        await until("the process has ended", lambda: worker.child.poll() is not None)
        assert worker.child.returncode == -signal.SIGKILL
        assert worker.ends() == ["no end"]
        assert (await worker.app.get(task)).state is State.RUNNING, "it is for a reaper to say what becomes of it"


class Disarmed:
    """Stands for the kernel's timer in this process, which is to live on."""

    armed: ClassVar[list[float]] = []

    def now(self) -> float:
        return 0.0

    def arm(self, seconds: float, since: float | None = None) -> None:
        self.armed.append(seconds)

    def disarm(self) -> None:
        self.armed.append(0.0)


async def test_a_worker_whose_line_comes_back_in_time_stops_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "DeadMan", Disarmed)
    app, store = leased_app(tmp_path, 1.0)
    async with app.using_store(store), app.worker() as worker:
        task = await app.handler("waits").now(seconds=1.5)
        await until("it has started", lambda: len(worker.executor.running) == 1)
        (tmp_path / "cut").touch()
        await until("its attempt was stopped", lambda: not worker.executor.running)
        assert worker.executor.wants() == ({}, 0), "it claims nothing while it cannot prove that it lives"
        (tmp_path / "cut").unlink()
        await app.result(task, timeout=30)
        after = await app.get(task)
    assert (after.state, after.tries, after.crashes) == (State.SUCCEEDED, 0, 0)
    assert after.attempt > 1
    [unknown] = History.of(tmp_path / "journal").violations({task.id: "succeeded"})
    assert unknown.startswith("unknown"), "this test submits without a note in the journal"
    assert Disarmed.armed[-1] == 0.0
