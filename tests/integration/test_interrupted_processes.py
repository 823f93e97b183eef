"""What code in a sub-process is told to stop by, and that it is killed when it does not."""

from __future__ import annotations

import importlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from duetime import App, Task
from duetime.model.outcome import Outcome
from duetime.model.task import State
from duetime.targets.python import children
from tests.chaos.fleet import until
from tests.servers.waiting import PATIENCE

SLEEPERS = """
import asyncio, os, time
from pathlib import Path
from duetime import App, Context, Next, RetryPolicy
from duetime.errors import AttemptCancelled

app = App({url!r})
options = {{"isolation": "process", "retry": RetryPolicy.none(), "concurrency": 1, "kill_after": 60}}

@app.task(**options)
def function(marks: str) -> str:
    Path(marks, "begun").touch()
    try:
        time.sleep(60)
    except AttemptCancelled:
        Path(marks, "told").touch()
        raise
    return "late"

@app.task(**options)
async def coroutine(marks: str) -> None:
    Path(marks, "begun").touch()
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        Path(marks, "told").touch()
        raise

@app.task(**options)
def finishing(marks: str) -> str:
    Path(marks, "begun").touch()
    try:
        time.sleep(60)
    except AttemptCancelled:
        Path(marks, "told").touch()
    return "done all the same"

@app.task(**{{**options, "kill_after": 0}})
def at_once(marks: str) -> None:
    Path(marks, "begun").touch()
    try:
        time.sleep(60)
    finally:
        Path(marks, "told").touch()

@app.task(**options)
def process() -> int:
    return os.getpid()
"""
BETWEEN = """
@app.middleware
async def between(ctx: Context, call_next: Next) -> object:
    return await call_next()
"""


@pytest.fixture(params=["", BETWEEN], ids=["", "middleware"])
async def app(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[App]:
    (tmp_path / "sleepers.py").write_text(SLEEPERS.format(url=f"sqlite:///{tmp_path}/duetime.db") + request.param)
    monkeypatch.syspath_prepend(tmp_path)
    app: App = importlib.import_module("sleepers").app
    async with app.worker():
        yield app
    del sys.modules["sleepers"]


async def begun(marks: Path) -> None:
    async def is_there() -> bool:
        return (marks / "begun").exists()

    await until("the attempt has begun", is_there)


async def ended(app: App, task: Task[object], state: State) -> None:
    async def is_so() -> bool:
        return (await app.get(task)).state is state

    await until(f"the task is {state}", is_so)


pytestmark = pytest.mark.slow


@pytest.mark.parametrize("handler", ["function", "coroutine"])
async def test_a_cancel_interrupts_the_code_and_its_process_is_not_used_again(app: App, tmp_path: Path, handler: str) -> None:
    before = await app.result(await app.handler("process").now(), timeout=PATIENCE)
    task = await app.handler(handler).now(marks=str(tmp_path))
    await begun(tmp_path)
    await app.cancel(task)
    await ended(app, task, State.CANCELLED)
    assert (tmp_path / "told").exists()
    assert await app.result(await app.handler("process").now(), timeout=PATIENCE) != before


@pytest.mark.parametrize("handler", ["function", "coroutine"])
async def test_where_the_code_was_at_its_timeout_is_told(app: App, tmp_path: Path, handler: str) -> None:
    task = await app.handler(handler).options(timeout=0.3).now(marks=str(tmp_path))
    await ended(app, task, State.FAILED)
    [attempt] = await app.attempts(task)
    assert (attempt.outcome, attempt.error is not None and attempt.error.type) == (Outcome.TIMED_OUT, "TimedOut")
    assert attempt.error is not None
    assert "sleep(60)" in attempt.error.traceback
    assert (tmp_path / "told").exists()


async def test_what_finishes_although_it_was_told_to_stop_has_finished(app: App, tmp_path: Path) -> None:
    task = await app.handler("finishing").options(timeout=0.3).now(marks=str(tmp_path))
    assert await app.result(task, timeout=PATIENCE) == "done all the same"
    assert (tmp_path / "told").exists()


async def test_without_time_to_end_it_is_killed_at_once(app: App, tmp_path: Path) -> None:
    task = await app.handler("at_once").now(marks=str(tmp_path))
    await begun(tmp_path)
    await app.cancel(task)
    await ended(app, task, State.CANCELLED)
    assert not (tmp_path / "told").exists()


async def test_without_such_a_signal_it_is_killed_at_once(app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "INTERRUPT", None)
    task = await app.handler("function").now(marks=str(tmp_path))
    await begun(tmp_path)
    await app.cancel(task)
    await ended(app, task, State.CANCELLED)
    assert not (tmp_path / "told").exists()
