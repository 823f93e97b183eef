"""Gates and `def` handlers: what was handed over to threads and has not begun does not begin any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest

from duetime import App
from duetime.targets.python.threads import ThreadCall, Threads
from tests.servers.waiting import PATIENCE


async def looks() -> AsyncIterator[None]:
    async with asyncio.timeout(PATIENCE):
        while True:
            yield
            await asyncio.sleep(0.01)


async def test_a_call_that_waits_for_a_thread_does_not_begin_once_its_gate_is_confirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, ran, waiting = App(f"sqlite:///{tmp_path}/duetime.db"), list[str](), list[tuple[Threads, list[ThreadCall]]]()
    put = Threads.put

    def put_later(threads: Threads, calls: Iterable[ThreadCall]) -> None:
        waiting.append((threads, list(calls)))

    @app.task
    def work(name: str) -> None:
        ran.append(name)

    @app.task
    def other() -> None:
        ran.append("other")

    async with app.worker():
        monkeypatch.setattr(Threads, "put", put_later)
        task, free = await work.now(name="late"), await other.now()
        async for _ in looks():
            if sum(len(calls) for _, calls in waiting) == 2:
                break
        closed = await app.gates.pause("work")
        assert closed.in_force
        monkeypatch.undo()
        for threads, calls in waiting:
            put(threads, calls)
        await app.result(free, timeout=PATIENCE)
        async for _ in looks():
            if (await app.get(task)).state == "pending":
                break
        assert ran == ["other"]
        await app.gates.open("work")
        await app.result(task, timeout=PATIENCE)
        info = await app.get(task)
    assert (ran, info.tries) == (["other", "late"], 0)
