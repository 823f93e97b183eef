"""Fixtures: the command line inside this process, and as the program that people start."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from click.testing import CliRunner, Result

from duetime import App, Task
from duetime.cli.main import cli
from tests.servers.waiting import PATIENCE

ROOT = Path(__file__).resolve().parents[2]

T = TypeVar("T")


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide the outer environment from the test, and keep what it writes in its own folder."""
    for name in list(os.environ):
        if name.startswith("DUETIME_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def url(store_url: str) -> str:
    return store_url


class CommandLine:
    """Runs commands in this process."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __call__(self, *args: str, code: int = 0, input: str | bytes | None = None, url: str | None = None) -> Result:
        result = CliRunner().invoke(cli, args, input=input, env={"DUETIME_URL": url or self.url})
        assert result.exit_code == code, f"duetime {' '.join(args)} ended with {result.exit_code}:\n{result.output}"
        return result

    def lines(self, *args: str) -> list[str]:
        return self(*args).stdout.splitlines()

    def json(self, *args: str, code: int = 0) -> Any:
        return msgspec.json.decode(self(*args, "--json", code=code).stdout)

    def ids(self, *filters: str) -> list[str]:
        return [task["id"] for task in self.json("tasks", "--all", *filters)["items"]]

    def submit(self, *args: str) -> str:
        return self("submit", *args).stdout.strip()


@pytest.fixture
def duetime(url: str) -> CommandLine:
    return CommandLine(url)


class Shop:
    """A store with handlers, and tasks brought into every state, without a second process."""

    def __init__(self, url: str) -> None:
        self.app = App(url)

        @self.app.task
        async def greet(name: str, times: int = 1) -> str:
            """Say hello."""
            return f"hello {name}"

        @self.app.task
        async def fail(text: str) -> None:
            raise ValueError(text)

        self.do(self._open())

    async def _open(self) -> None:
        async with self.app:
            pass

    def do(self, call: Coroutine[Any, Any, T]) -> T:
        return asyncio.run(call)

    def work(self) -> None:
        """Run everything that is due, until it waits or is final."""

        async def work() -> None:
            async with self.app.worker():
                async for task in self.app.tasks():
                    if not task.final and task.due_at <= task.submitted_at:
                        await self.settled(task)

        self.do(work())

    def work_on(self, task_id: str) -> None:
        """Run one task until it has ended."""

        async def work() -> None:
            async with self.app.worker():
                await self.app.client.wait(task_id, timeout=PATIENCE)

        self.do(work())

    async def settled(self, task: Task[Any]) -> None:
        """Wait until a due task has ended, or waits for its next try."""
        async with asyncio.timeout(PATIENCE):
            while True:
                now = await self.app.get(task)
                if now.final or now.tries > task.tries:
                    return
                await asyncio.sleep(0.01)


@pytest.fixture
def shop(url: str) -> Shop:
    return Shop(url)


PLANNED = "01a1e112-c0d3-7403-88d7-6b1eec5cb647"
NEIGHBOUR = "01a1e112-c0d3-7403-88d7-6b1eec5cb648"
LATER = "01a1f000-0000-7403-88d7-6b1eec5cb647"


@pytest.fixture
def known_tasks(shop: Shop) -> None:
    """Three waiting tasks whose ids and keys are known; two of the ids begin alike."""
    greet, fail = shop.app.handler("greet"), shop.app.handler("fail")
    new = {PLANNED: greet.new(name="a"), NEIGHBOUR: fail.new(text="b"), LATER: greet.new(name="c")}
    keys = {PLANNED: "order-a", NEIGHBOUR: "order-b", LATER: "order-c"}

    async def submit() -> None:
        async with shop.app as app:
            await app.submit_many([msgspec.structs.replace(task.after(3600), id=each, key=keys[each]) for each, task in new.items()])

    shop.do(submit())


class Program:
    """Starts `duetime` as a process of its own, in the repository's folder, with the test's store."""

    def __init__(self, url: str) -> None:
        self.environment = {**os.environ, "DUETIME_URL": url, "PYTHONUNBUFFERED": "1"}

    @contextlib.contextmanager
    def start(self, *args: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
        """Run a command beside the block; it does not outlive it."""
        with self._start(*args, **options) as process:
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.kill()

    def _start(self, *args: str, **options: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "duetime.cli", *args],
            cwd=ROOT,
            env=self.environment,
            text=True,
            **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
        )

    def run(self, *args: str, code: int = 0, **options: Any) -> subprocess.CompletedProcess[str]:
        with self.start(*args, **options) as process:
            output, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == code, f"duetime {' '.join(args)} ended with {process.returncode}:\n{output}{errors}"
        return subprocess.CompletedProcess(args, code, output, errors)

    @contextlib.contextmanager
    def worker(self, *options: str) -> Iterator[RunningWorker]:
        """A worker of tests.cli.shop that has started; it is ended with the block if it has not ended before."""
        process = self._start("worker", "tests.cli.shop:app", *options, stdout=subprocess.DEVNULL)
        worker = RunningWorker(process)
        try:
            worker.until_said(r"^duetime: worker \S+ ")
            yield worker
        finally:
            if process.poll() is None:
                process.kill()
            worker.ended()


class RunningWorker:
    """A worker's process, and what it has said so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._said: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._said.append(line)

    @property
    def said(self) -> str:
        return "".join(self._said)

    @property
    def own_pid(self) -> int:
        """The worker's own process, below the guards of the one that was started."""
        return int(re.findall(r"^duetime: worker \S+ \(.*process (\d+)\) runs ", self.said, re.MULTILINE)[-1])

    def until_said(self, pattern: str, times: int = 1) -> None:
        def said() -> bool:
            if len(re.findall(pattern, self.said, re.MULTILINE)) >= times:
                return True
            assert self.process.poll() is None, f"it ended with {self.process.returncode}:\n{self.said}"
            return False

        until(said, lambda: f"{pattern!r} in what the worker says:\n{self.said}")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ended(self) -> int:
        """Wait for its end; return the exit code."""
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code


def until(holds: Callable[[], bool], what: Callable[[], str]) -> None:
    """Wait until something holds; fail with its description after a long time."""
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, f"waited {PATIENCE:g} s in vain for {what()}"
        time.sleep(0.02)


@pytest.fixture
def program(url: str) -> Program:
    return Program(url)
