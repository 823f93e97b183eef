"""Hooks under SIGKILL: a process that dies while it calls one leaves the event to the next, and the order of each task's events holds."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from duetime import App
from tests.servers.waiting import PATIENCE

TASKS, KILLS = 12, 3
# A worker whose hook writes down each event when it begins and when it has dealt with it.
WORKER = """
import asyncio, sys
from duetime import App, TaskEvent
from duetime.duties import hooks

hooks.LEASE = 1.0  # seconds: after a kill somebody else calls the hook soon
app = App(sys.argv[1], lease=1)

@app.task
async def work(number: int) -> None: ...

@app.on("task.submitted", "task.started", "task.succeeded", handler="work", name="journal")
async def note(event: TaskEvent) -> None:
    with open(sys.argv[2], "a") as journal:
        print(event.task, event.name, flush=True, file=journal)
    print("noted", flush=True)
    await asyncio.sleep(0.005)

async def main():
    async with app.worker():
        print("ready", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/store.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")


@contextlib.contextmanager
def killed(worker: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """Kill a worker at the end of the block, however that ends."""
    with worker:
        try:
            yield worker
        finally:
            worker.kill()


@pytest.mark.slow
async def test_no_event_is_lost_although_every_caller_of_the_hook_is_killed(url: str, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    journal.touch()
    tasks: list[str] = []

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen([sys.executable, "-c", WORKER, url, str(journal)], stdout=subprocess.PIPE, text=True, env=dict(os.environ))

    def said(worker: subprocess.Popen[str], word: str) -> None:
        assert worker.stdout is not None
        for line in worker.stdout:
            if line.strip() == word:
                return
        raise AssertionError(f"the worker ended before it said {word}")

    async with App(url) as app:
        for _ in range(KILLS):
            with killed(start()) as worker:
                await asyncio.to_thread(said, worker, "ready")
                new = [app.handler("work").new(number=number) for number in range(TASKS)]
                tasks += [task.id for task in await app.submit_many(new)]
                await asyncio.to_thread(said, worker, "noted")  # it is in the middle of its calls
        with killed(start()) as last:
            assert last.poll() is None
            wanted = {f"{task} {name}" for task in tasks for name in ("task.submitted", "task.started", "task.succeeded")}
            async with asyncio.timeout(PATIENCE):
                while not wanted <= set(journal.read_text().splitlines()):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
    lines = journal.read_text().splitlines()
    for task in tasks:
        first = [lines.index(f"{task} {name}") for name in ("task.submitted", "task.started", "task.succeeded")]
        assert first == sorted(first), "events of one task come in order"
