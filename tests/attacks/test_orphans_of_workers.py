"""Promise 3: what a handler has started does not outlive its worker, however that ends, so the next attempt never runs beside it."""

import contextlib
import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from duetime import State, Task
from duetime.runtime.processes import children, start_of
from tests.chaos.fleet import Fleet, WorkerProcess, until

pytestmark = pytest.mark.slow

APP = "tests.attacks.handlers:app"
every_kind = pytest.mark.parametrize("kind", ["plain", "session", "daemon"])


class Signs:
    """What the processes wrote down that handlers have started."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def all(self) -> list[tuple[int, float]]:
        """Return all signs of life: process and time."""
        lines = self._path.read_text().split("\n")[:-1] if self._path.exists() else []
        return [(int(pid), float(at)) for _, pid, at in map(str.split, lines)]

    def living(self) -> set[int]:
        return {pid for pid, _ in self.all() if start_of(pid) is not None}


@pytest.fixture
def signs(tmp_path: Path) -> Iterator[Signs]:
    signs = Signs(tmp_path / "signs")
    yield signs
    for pid in signs.living():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


async def running(fleet: Fleet, signs: Signs, handler: str, kind: str) -> tuple[WorkerProcess, Task[Any]]:
    """Start a worker and let it run an attempt whose process gives signs of life."""
    worker = await fleet.start("--lease", "1s", app=APP)
    task = await fleet.one(handler, kind=kind)
    await until("its process lives", signs.all)
    return worker, task


async def the_next_attempt_ran_alone(fleet: Fleet, task: Task[Any], signs: Signs) -> None:
    """Wait for the second attempt in another worker; then compare its start with the last sign of life of the first one's process."""
    await fleet.start("--lease", "1s", app=APP)
    await until("it has run again", partial(fleet.in_state, task, State.SUCCEEDED))
    first, second = fleet.attempts(task)
    assert signs.living() == set()
    assert first.start.at < max(at for _, at in signs.all()) < second.start.at


@every_kind
async def test_promise_3_a_killed_worker_takes_the_processes_of_its_coroutines_along(any_fleet: Fleet, signs: Signs, kind: str) -> None:
    worker, task = await running(any_fleet, signs, "coroutine", kind)
    worker.kill()
    await the_next_attempt_ran_alone(any_fleet, task, signs)


@every_kind
async def test_promise_3_whoever_kills_the_process_that_was_started_ends_all_of_it(fleet: Fleet, signs: Signs, kind: str) -> None:
    worker, task = await running(fleet, signs, "function", kind)
    os.kill(worker.guard, signal.SIGKILL)
    await the_next_attempt_ran_alone(fleet, task, signs)
    assert start_of(worker.pid) is None


async def test_promise_3_a_killed_inner_guard_ends_all_of_it_too(fleet: Fleet, signs: Signs) -> None:
    worker, task = await running(fleet, signs, "function", "daemon")
    [inner] = children(worker.guard)
    os.kill(inner, signal.SIGKILL)
    assert await worker.ended() == -signal.SIGKILL
    assert signs.living() == set()
    await the_next_attempt_ran_alone(fleet, task, signs)


@pytest.mark.parametrize("kind", ["plain", "session"])
async def test_promise_3_a_sub_process_of_its_own_takes_along_what_it_has_started(fleet: Fleet, signs: Signs, kind: str) -> None:
    worker, task = await running(fleet, signs, "boxed", kind)
    worker.kill()
    await the_next_attempt_ran_alone(fleet, task, signs)


@pytest.mark.parametrize("kind", ["plain", "session"])
async def test_promise_3_a_cancelled_attempt_in_a_sub_process_takes_along_what_it_has_started(
    fleet: Fleet, signs: Signs, kind: str
) -> None:
    _, task = await running(fleet, signs, "boxed", kind)
    assert await fleet.app.cancel(task) == "cancelling"
    await until("it is cancelled", partial(fleet.in_state, task, State.CANCELLED))
    assert signs.living() == set()


async def test_promise_3_an_attempt_that_fails_in_a_sub_process_takes_along_what_it_has_started(fleet: Fleet, signs: Signs) -> None:
    await fleet.start(app=APP)
    task = await fleet.one("boxed_failing", kind="plain")
    await until("it has run again", partial(fleet.in_state, task, State.SUCCEEDED))
    first, second = fleet.attempts(task)
    assert first.start.at < max(at for _, at in signs.all()) < second.start.at


async def test_promise_3_a_second_signal_ends_what_handlers_have_started(fleet: Fleet, signs: Signs) -> None:
    worker, task = await running(fleet, signs, "function", "daemon")
    worker.terminate()
    await until("it stops", lambda: "SIGTERM: stopping" in worker.log())
    worker.terminate(signal.SIGINT)  # another SIGTERM right after the first would be the same
    assert await worker.ended() == 130
    assert signs.living() == set()
    await the_next_attempt_ran_alone(fleet, task, signs)


async def test_a_daemon_of_a_success_survives_the_orderly_end_of_its_worker(fleet: Fleet, signs: Signs) -> None:
    worker = await fleet.start(app=APP)
    task = await fleet.one("starts_daemon", kind="session")
    await until("it is done", partial(fleet.in_state, task, State.SUCCEEDED))
    worker.terminate()
    assert await worker.ended() == 0
    assert len(signs.living()) == 1


@contextlib.contextmanager
def stopped(*pids: int) -> Iterator[None]:
    """Stop processes for the block; a test that fails in it must not leave them so, because whoever waits for them would hang."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


async def test_promise_3_nobody_takes_the_tasks_before_the_guards_have_tidied_up(fleet: Fleet, signs: Signs) -> None:
    """The worker is dead, but the guards are stopped and what it had started lives: on SQLite they hold its lock, for a lease at most."""
    worker, task = await running(fleet, signs, "function", "daemon")
    with stopped(worker.guard, *children(worker.guard)):
        os.kill(worker.pid, signal.SIGKILL)
        await until("it is dead", lambda: start_of(worker.pid) is None)
        other = await fleet.start("--lease", "1h", app=APP)
        await until("the other one works", partial(fleet.in_state, await fleet.one("starts_daemon", kind="session"), State.SUCCEEDED))
        assert {each.pid: each.alive for each in await fleet.app.workers()} == {worker.pid: None, other.pid: True}
        assert await fleet.in_state(task, State.RUNNING)
    assert await worker.ended() == -signal.SIGKILL
    await until("it has run again", partial(fleet.in_state, task, State.SUCCEEDED))
    assert len(fleet.attempts(task)) == 2
