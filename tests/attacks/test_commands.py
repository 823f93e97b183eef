"""Hostile commands: nothing of them is left when their attempt has ended, and what they use is bounded."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from duetime import App, RetryPolicy, Sandbox, State, Task, TaskFailed
from duetime.runtime.processes import children, start_of, with_environment
from duetime.targets.output import DEFAULT_CAP
from tests.attacks.commanding import daemon
from tests.chaos.fleet import until
from tests.servers.waiting import PATIENCE

pytestmark = pytest.mark.slow

ONCE = RetryPolicy.none()
NOBODYS = 61_234  # a user that has no other processes


class Signs:
    """The processes that a command has written down."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def pids(self) -> dict[str, int]:
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        return {kind: int(pid) for kind, pid in map(str.split, lines)}

    def living(self) -> set[str]:
        return {kind for kind, pid in self.pids().items() if start_of(pid) is not None}


@pytest.fixture
def app(tmp_path: Path) -> App:
    return App(f"sqlite:///{tmp_path / 'duetime.db'}", user="test")


@pytest.fixture
def signs(tmp_path: Path) -> Iterator[Signs]:
    signs = Signs(tmp_path / "signs")
    yield signs
    for kind in signs.living():
        os.kill(signs.pids()[kind], signal.SIGKILL)


async def is_in(app: App, task: Task[Any], state: State) -> bool:
    return (await app.get(task)).state is state


async def error_of(app: App, task: Task[Any]) -> str:
    with pytest.raises(TaskFailed) as raised:
        await app.result(task, timeout=PATIENCE)
    return str(raised.value)


def is_there(path: str) -> bool:
    return Path(path).exists()


def left_of(task: Task[Any]) -> set[int]:
    return {pid for pid in with_environment([f"DUETIME_TASK={task.id}".encode()]) if start_of(pid) is not None}


@pytest.mark.parametrize("code", [0, 1])
async def test_a_daemon_that_got_away_is_dead_when_the_attempt_has_ended(app: App, signs: Signs, code: int) -> None:
    leaves = app.command("leaves", daemon(signs.path, str(code)), retry=ONCE)
    async with app.worker():
        task = await leaves.now()
        with contextlib.nullcontext() if code == 0 else pytest.raises(TaskFailed):
            await app.result(task, timeout=PATIENCE)
        assert signs.pids().keys() == {"daemon", "command"}
        assert signs.living() == set()
        assert left_of(task) == set()


@pytest.mark.parametrize("way", ["timeout", "cancel", "stop"])
async def test_a_command_that_ignores_the_signal_is_killed_with_its_daemon_after_the_grace(app: App, signs: Signs, way: str) -> None:
    leaves = app.command("leaves", daemon(signs.path, "wait"), grace=0.1, retry=ONCE, timeout=2.0 if way == "timeout" else 300)
    async with app.worker(grace=0.0):
        task = await leaves.now()
        await until("the daemon got away", lambda: signs.living() == {"daemon", "command"})
        if way == "cancel":
            await app.cancel(task)
        if way != "stop":
            ended = State.CANCELLED if way == "cancel" else State.FAILED
            await until("the attempt has ended", partial(is_in, app, task, ended))
            assert signs.living() == set()
    assert signs.living() == set()
    assert left_of(task) == set()


async def test_all_of_a_command_dies_with_its_worker_and_the_worker_counts_as_alive_until_then(
    app: App, signs: Signs, tmp_path: Path
) -> None:
    """On SQLite a worker lives as long as its lock is held; supervisors hold it until they have killed everything."""
    command = [sys.executable, "-m", "tests.attacks.commanding", app.url, str(tmp_path)]
    worker = await asyncio.create_subprocess_exec(*command)
    try:
        await until("the daemon got away", lambda: signs.living() == {"daemon", "command"})
        [supervisor] = children(worker.pid)
    finally:
        worker.kill()
    async with app:
        left = signs.living()
        while any(each.alive is not False for each in await app.store.workers()):
            left = set()
        assert left | signs.living() == set()
    await until("its supervisor has ended", lambda: start_of(supervisor) is None)
    assert not is_there(signs.path.with_suffix(".folder").read_text())
    await worker.wait()


async def test_nothing_outlives_a_killed_supervisor_either(app: App, signs: Signs) -> None:
    leaves = app.command("leaves", daemon(signs.path, "wait"), grace=0.0)
    async with app.worker():
        task = await leaves.now()
        await until("the daemon got away", lambda: signs.living() == {"daemon", "command"})
        first = signs.pids()
        [supervisor] = [pid for pid in children(os.getpid()) if first["command"] in children(pid)]
        os.kill(supervisor, signal.SIGKILL)
        await until("it runs again", lambda: signs.pids()["command"] != first["command"])
        assert [start_of(pid) for pid in first.values()] == [None, None]
        await app.cancel(task)
        await until("it is cancelled", partial(is_in, app, task, State.CANCELLED))


async def test_a_fork_bomb_is_bounded_and_ends_with_its_attempt(app: App) -> None:
    """Root is not bound by the number of processes without a control group, so the bomb gives up root first."""
    bomb = ["perl", "-e", "while (1) {{ sleep 100 unless defined fork }}"]
    if os.geteuid() == 0:
        setpriv = shutil.which("setpriv")
        assert setpriv is not None
        bomb = [setpriv, f"--reuid={NOBODYS}", "--clear-groups", *bomb]
    forks = app.command("forks", bomb, sandbox=Sandbox(processes=100), grace=0.0, retry=ONCE)
    bound = 100 + 4 * sum(len(os.listdir(f"/proc/{pid}/task")) for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _mine(pid))
    async with app.worker():
        task = await forks.now()
        await until("it has grown", lambda: len(left_of(task)) > 30)
        assert len(left_of(task)) < bound
        await app.cancel(task)
        await until("it is cancelled", partial(is_in, app, task, State.CANCELLED))
        assert left_of(task) == set()


def _mine(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return os.stat(f"/proc/{pid}/task").st_uid == os.getuid()
    return False


async def test_memory_beyond_the_limit_is_refused(app: App) -> None:
    hungry = app.command(
        "hungry", [sys.executable, "-I", "-S", "-c", "bytearray(100_000_000_000)"], sandbox=Sandbox(memory="200MB"), retry=ONCE
    )
    async with app.worker():
        task = await hungry.now()
        assert "exit code 1" in await error_of(app, task)
        [attempt] = await app.attempts(task)
    assert attempt.error is not None
    assert "MemoryError" in attempt.error.traceback
    assert attempt.detail is not None
    assert attempt.detail["peak_memory"] < 200_000_000


@pytest.mark.parametrize(
    ("sandbox", "code", "problem"),
    [
        (Sandbox(cpu=1), "while True: pass", "SIGXCPU"),
        (Sandbox(file_size="1MB"), "import signal; signal.signal(25, signal.SIG_DFL); open('f', 'wb').write(bytes(2_000_000))", "SIGXFSZ"),
        (Sandbox(files=20), "kept = [open('/dev/null') for _ in range(40)]", "exit code 1"),
    ],
    ids=["cpu", "file_size", "files"],
)
async def test_limits_of_a_sandbox_hold(app: App, sandbox: Sandbox, code: str, problem: str) -> None:
    greedy = app.command("greedy", [sys.executable, "-I", "-S", "-c", code], sandbox=sandbox, retry=ONCE)
    async with app.worker():
        assert problem in await error_of(app, await greedy.now())


async def test_a_command_in_a_sandbox_cannot_raise_its_limits_nor_gain_privileges(app: App) -> None:
    code = (
        "import resource\nstatus = open('/proc/self/status').read()\n"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE), status.split('NoNewPrivs:')[1].split()[0])"
    )
    shown = app.command("shown", [sys.executable, "-I", "-S", "-c", code], sandbox=Sandbox(files=20))
    async with app.worker():
        task = await shown.now()
        await app.result(task, timeout=PATIENCE)
        assert "".join(each.text for each in await app.output.read(task)) == "(20, 20) 1\n"


async def test_a_gigabyte_of_output_is_cut_and_costs_the_worker_no_memory(app: App) -> None:
    chatty = app.command("chatty", ["sh", "-c", "yes | head -c 1000000000; yes | head -c 100000000 >&3; echo end"], retry=ONCE)
    async with app.worker():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        task = await chatty.now()
        assert "PayloadTooLarge" in await error_of(app, task)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1_024
        text = "".join(each.text for each in await app.output.read(task))
    assert DEFAULT_CAP <= len(text) < DEFAULT_CAP + 1_000
    assert "the rest of the output was cut" in text
    assert grown < 50_000_000


async def test_a_command_cannot_make_the_output_of_the_next_one_fail(app: App) -> None:
    """A program that makes its stdout non-blocking, as many do, makes the pipe so, not only its own descriptor."""
    code = "import fcntl, os; [fcntl.fcntl(each, fcntl.F_SETFL, os.O_NONBLOCK) for each in (1, 3)]"
    spoils = app.command("spoils", [sys.executable, "-I", "-S", "-c", code])
    shown = app.command("shown", [sys.executable, "-I", "-S", "-c", "import os; print(*(os.get_blocking(each) for each in (1, 2, 3)))"])
    async with app.worker():
        await app.result(await spoils.now(), timeout=PATIENCE)
        task = await shown.now()
        await app.result(task, timeout=PATIENCE)
        assert "".join(each.text for each in await app.output.read(task)) == "True True True\n"


async def test_commands_of_a_worker_without_its_lease_are_killed_although_its_event_loop_is_blocked(app: App, signs: Signs) -> None:
    leaves = app.command("leaves", daemon(signs.path, "wait"), retry=ONCE)
    async with app.worker() as worker:
        task = await leaves.now()
        await until("the daemon got away", lambda: signs.living() == {"daemon", "command"})
        first = signs.pids()
        threading.Thread(target=worker.kill_children).start()
        while signs.living():  # nothing is awaited: the loop is blocked
            time.sleep(0.001)  # noqa: ASYNC251  # on purpose
        await until("it runs again", lambda: signs.pids() != first)
        attempt = (await app.attempts(task))[0]
        await app.cancel(task)
        await until("it is cancelled", partial(is_in, app, task, State.CANCELLED))
    assert (attempt.outcome, (await app.get(task)).crashes) == ("lost", 0)


async def test_a_command_that_never_reads_its_payload_blocks_nobody(app: App) -> None:
    deaf = app.command("deaf", ["true"])
    async with app.worker():
        await app.result(await deaf.now(text="x" * 900_000), timeout=PATIENCE)


async def test_folders_nested_too_deep_for_a_path_are_removed(app: App) -> None:
    code = "import os\nprint(os.getcwd())\nfor _ in range(1_500):\n    os.mkdir('d' * 50)\n    os.chdir('d' * 50)"
    deep = app.command("deep", [sys.executable, "-I", "-S", "-c", code])
    async with app.worker():
        task = await deep.now()
        await app.result(task, timeout=PATIENCE)
        [folder] = "".join(each.text for each in await app.output.read(task)).split()
    assert not is_there(folder)
