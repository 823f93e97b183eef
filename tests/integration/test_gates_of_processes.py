"""Gates and attempts in sub-processes, which take their time to start: what was confirmed holds for them too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from duetime import App, State, Task
from duetime.model.outcome import Ended
from duetime.store.values import ClaimedTask
from duetime.targets.python.children import ChildPool
from duetime.worker.worker import Worker
from tests.chaos.fleet import until
from tests.servers.waiting import PATIENCE


class SlowPool(ChildPool):
    """A pool whose children become ready, and begin, only when the test lets them, as on a busy machine."""

    def __init__(self) -> None:
        super().__init__("tests.integration.process_handlers:app")
        self.asked, self.ready, self.given, self.begun = (asyncio.Event() for _ in range(4))

    async def prepare(self) -> Ended | None:
        self.asked.set()
        await self.ready.wait()
        return await super().prepare()

    async def perform(self, claimed: ClaimedTask, *, began: Callable[[], None] = lambda: None, **rest: Any) -> Ended:
        self.given.set()
        performing = asyncio.ensure_future(super().perform(claimed, **rest))
        await self.begun.wait()
        began()
        return await performing


Apart: TypeAlias = tuple[App, Any, Worker, SlowPool]


@pytest.fixture
async def apart(tmp_path: Path) -> AsyncIterator[Apart]:
    """An app whose handler runs in sub-processes, with a worker that waits for them."""
    app = App(f"sqlite:///{tmp_path / 'duetime.db'}", user="test")

    @app.task(name="wait_for", isolation="process")
    async def wait_for(note: str, word: str) -> str:
        raise AssertionError("it runs in a sub-process")

    @app.task
    async def another() -> None: ...

    async with app.worker() as worker:
        worker.executor.host.children = pool = SlowPool()
        yield app, wait_for, worker, pool
        pool.begun.set()


async def test_a_gate_holds_for_an_attempt_whose_process_was_not_ready(apart: Apart, tmp_path: Path) -> None:
    app, wait_for, _, pool = apart
    note, word = tmp_path / "note", tmp_path / "word"
    task = await wait_for.now(note=str(note), word=str(word))
    await asyncio.wait_for(pool.asked.wait(), PATIENCE)
    assert (await app.gates.pause("wait_for", timeout=PATIENCE)).in_force
    pool.ready.set()
    await until("the attempt has gone back", partial(is_in, app, task, State.PENDING))
    assert not note.exists()
    assert not pool.given.is_set()
    pool.begun.set()
    word.write_text("go")
    await app.gates.open("wait_for")
    assert await app.result(task, timeout=PATIENCE) == "done"
    assert (await app.attempts(task))[0].outcome == "released"


async def test_a_gate_is_confirmed_only_when_no_process_is_just_beginning(apart: Apart, tmp_path: Path) -> None:
    app, wait_for, worker, pool = apart
    pool.ready.set()
    word = tmp_path / "word"
    task = await wait_for.now(note=str(tmp_path / "note"), word=str(word))
    await asyncio.wait_for(pool.given.wait(), PATIENCE)
    assert (await app.gates.pause("another", timeout=PATIENCE)).in_force  # of no concern to what is beginning
    unconfirmed = await app.gates.pause("wait_for", timeout=0.5)
    assert unconfirmed.waiting == [worker.id]
    pool.begun.set()
    await until("the worker has confirmed it", partial(confirmed, app, unconfirmed.version))
    word.write_text("go")
    assert await app.result(task, timeout=PATIENCE) == "done"


async def is_in(app: App, task: Task[str], state: State) -> bool:
    return (await app.get(task.id)).state is state


async def confirmed(app: App, version: int) -> bool:
    return all(worker.seen_gates >= version for worker in await app.store.workers())
