"""Promise 3: the processes that an attempt has started end before the next attempt begins; those of a success are left alone."""

import asyncio
import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import uvloop

from duetime import App, Context, RetryPolicy, State, Task, TaskFailed
from duetime.runtime.processes import start_of
from tests.chaos.fleet import until
from tests.servers.waiting import PATIENCE

pytestmark = pytest.mark.slow

AGAIN = RetryPolicy(tries=2, base=0.0)


class Signs:
    """Where processes of a test give signs of life: each appends its number to a file, again and again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.path.touch()
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, *, new_session: bool = False) -> int:
        """Start such a process and wait for its first sign; return its number."""
        self._started.append(subprocess.Popen(self.command(), start_new_session=new_session))
        pid = self._started[-1].pid
        while pid not in self.pids():
            time.sleep(0.005)
        return pid

    def end(self) -> None:
        for pid in self.living():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self._started:
            process.wait()

    def command(self, children: int = 0) -> list[str]:
        """Return a command that gives signs of life without end, with so many children that do the same."""
        code = (
            "import os, sys, time\n"
            f"for _ in range({children}): os.fork() and None\n"
            f"path = {str(self.path)!r}\n"
            "while True:\n"
            "    with open(path, 'a') as file: file.write(f'{os.getpid()}\\n')\n"
            "    time.sleep(0.005)\n"
        )
        return [sys.executable, "-S", "-c", code]

    def pids(self) -> set[int]:
        return set(map(int, self.path.read_text().split("\n")[:-1]))

    def living(self) -> set[int]:
        return {pid for pid in self.pids() if start_of(pid) is not None}


@pytest.fixture
def app(tmp_path: Path) -> App:
    return App(f"sqlite:///{tmp_path / 'duetime.db'}", user="test")


@pytest.fixture
def signs(tmp_path: Path) -> Iterator[Signs]:
    signs = Signs(tmp_path / "signs")
    yield signs
    signs.end()


async def until_seen(signs: Signs, count: int = 1) -> None:
    await until(f"{count} processes have given signs of life", lambda: len(signs.pids()) >= count)


async def is_in(app: App, task: Task[object], state: State) -> bool:
    return (await app.get(task)).state is state


@pytest.mark.parametrize("options", [{}, {"start_new_session": True}], ids=["same session", "new session"])
async def test_promise_3_a_timeout_ends_the_processes_of_a_coroutine(app: App, signs: Signs, options: dict[str, bool]) -> None:
    beside: list[set[int]] = []

    @app.task(timeout=1.0, retry=AGAIN)
    async def runs_command(ctx: Context) -> None:
        beside.append(signs.living())
        if ctx.attempt == 1:
            process = await asyncio.create_subprocess_exec(*signs.command(children=1), **options)  # type: ignore[arg-type]
            await until_seen(signs, 2)
            await process.wait()

    async with app.worker():
        await app.result(await runs_command.now(), timeout=PATIENCE)
    assert beside == [set(), set()]
    assert len(signs.pids()) == 2


async def test_promise_3_a_cancel_ends_the_processes_of_a_coroutine(app: App, signs: Signs) -> None:
    @app.task
    async def runs_command() -> None:
        process = await asyncio.create_subprocess_shell(shlex.join(signs.command()))
        await process.wait()

    async with app.worker():
        task = await runs_command.now()
        await until_seen(signs)
        assert await app.cancel(task) == "cancelling"
        await until("it is cancelled", partial(is_in, app, task, State.CANCELLED))
        assert signs.living() == set()


async def test_promise_3_a_graceful_stop_ends_the_processes_of_a_coroutine(app: App, signs: Signs) -> None:
    @app.task
    async def runs_command() -> None:
        process = await asyncio.create_subprocess_exec(*signs.command())
        await process.wait()

    async with app.worker(grace=0.0):
        task = await runs_command.now()
        await until_seen(signs)
    assert signs.living() == set()
    assert (await app.get(task)).state is State.PENDING


async def test_promise_3_a_timeout_ends_the_processes_of_a_function_that_waits_for_them(app: App, signs: Signs) -> None:
    """A thread in `subprocess.run` cannot be interrupted: it comes back because its process was killed."""
    beside: list[set[int]] = []

    @app.task(timeout=1.0, retry=AGAIN)
    def runs_command(ctx: Context) -> None:
        beside.append(signs.living())
        if ctx.attempt == 1:
            subprocess.run(signs.command(children=1), check=False)

    async with app.worker():
        await app.result(await runs_command.now(), timeout=PATIENCE)
    assert beside == [set(), set()]
    assert signs.pids()


async def test_promise_3_a_timeout_ends_the_processes_of_a_thread_of_a_coroutine(app: App, signs: Signs) -> None:
    beside: list[set[int]] = []

    @app.task(timeout=1.0, retry=AGAIN)
    async def runs_command(ctx: Context) -> None:
        beside.append(signs.living())
        if ctx.attempt == 1:
            await asyncio.get_running_loop().run_in_executor(None, partial(subprocess.run, signs.command(), check=False))

    async with app.worker():
        await app.result(await runs_command.now(), timeout=PATIENCE)
    assert beside == [set(), set()]
    assert signs.pids()


async def test_promise_3_a_failure_ends_the_processes_before_the_retry(app: App, signs: Signs) -> None:
    beside: list[set[int]] = []

    @app.task(retry=AGAIN)
    def at_once(ctx: Context) -> None:
        beside.append(signs.living())
        if ctx.attempt == 1:
            signs.start()
            raise ValueError("its process goes on")

    @app.task(retry=AGAIN)
    async def without_waiting(ctx: Context) -> None:
        beside.append(signs.living())
        if ctx.attempt == 1:
            signs.start()
            raise ValueError("its process goes on")

    async with app.worker():
        for handler in (at_once, without_waiting):
            await app.result(await handler.now(), timeout=PATIENCE)
    assert beside == [set()] * 4


async def test_a_process_that_was_forked_is_ended_too(app: App, signs: Signs) -> None:
    @app.task(retry=RetryPolicy.none())
    def forks() -> None:
        if os.fork() == 0:
            command = signs.command()
            os.execv(command[0], command)
        while not signs.pids():
            time.sleep(0.01)
        raise ValueError("its process goes on")

    async with app.worker():
        with pytest.raises(TaskFailed):
            await app.result(await forks.now(), timeout=PATIENCE)
        assert signs.living() == set()


async def test_nothing_is_killed_after_a_success_nor_with_the_failure_of_another_attempt(app: App, signs: Signs) -> None:
    started: list[int] = []

    @app.task
    async def starts_daemon() -> None:
        started.append(signs.start(new_session=True))
        await asyncio.sleep(0)

    @app.task(retry=RetryPolicy.none())
    async def fails() -> None:
        started.append((await asyncio.create_subprocess_exec(*signs.command())).pid)
        raise ValueError("only its own process ends")

    async with app.worker():
        await app.result(await starts_daemon.now(), timeout=PATIENCE)
        with pytest.raises(TaskFailed):
            await app.result(await fails.now(), timeout=PATIENCE)
        await app.result(await starts_daemon.now(), timeout=PATIENCE)
    first, failed, second = started
    assert [start_of(pid) is not None for pid in (first, failed, second)] == [True, False, True]


def test_promise_3_a_timeout_ends_the_processes_of_a_coroutine_on_uvloop_too(app: App, signs: Signs) -> None:
    beside: list[set[int]] = []

    @app.task(timeout=1.0, retry=AGAIN)
    async def runs_command(ctx: Context) -> None:
        beside.append(signs.living())
        if ctx.attempt == 1:
            process = await asyncio.create_subprocess_exec(*signs.command())
            await process.wait()

    async def main() -> None:
        async with app.worker():
            await app.result(await runs_command.now(), timeout=PATIENCE)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
    assert beside == [set(), set()]
    assert signs.pids()
