"""What a worker counts reaches the store: when it stops, also if answers are lost, and as far as it was written if it is killed."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from duetime import App, Context, RetryPolicy, StoreUnavailable
from duetime.clock import ManualClock
from duetime.duties import Pruner
from duetime.ids import new_id
from duetime.model.figures import ATTEMPTS, ATTEMPTS_LOST, LATENESS, LEASE_LOSSES, STALE_WRITES, STORE_ERRORS, SUM, WORKERS_LOST, FigureKey
from duetime.model.lifecycle import conclude
from duetime.model.outcome import Ended, Outcome, Running
from duetime.runtime.service import Alarms
from duetime.store.sqlite.store import SqliteStore
from duetime.worker.metrics import FigureWriter
from tests.chaos.fleet import until
from tests.servers.waiting import PATIENCE

SUCCEEDED = FigureKey(ATTEMPTS, "work", "succeeded")


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/duetime.db"
    found: str = request.getfixturevalue("postgres_url")
    return found


@pytest.fixture
def app(url: str) -> App:
    return App(url)


async def test_a_drain_is_counted_task_by_task(app: App) -> None:
    @app.task
    async def work(number: int) -> None:
        if number % 10 == 0:
            await asyncio.sleep(0)

    @app.task
    def threaded() -> None: ...

    async with app:
        tasks = await app.submit_many([work.new(number=number) for number in range(500)])
        others = await app.submit_many([threaded.new() for _ in range(5)])
        async with app.worker():
            for task in (*tasks, *others):
                await app.client.wait(task, timeout=PATIENCE)
        figures = await app.store.figures()
    assert figures[SUCCEEDED] == 500
    assert figures[FigureKey(ATTEMPTS, "threaded", "succeeded")] == 5
    late = {key.part: count for key, count in figures.items() if (key.name, key.handler) == (LATENESS, "work")}
    assert late.pop(SUM) > 0
    assert sum(late.values()) == 500


async def test_outcomes_of_tasks_that_are_not_the_workers_are_stale_writes(app: App) -> None:
    @app.task
    async def work() -> None: ...

    async with app.worker() as worker:
        now = app.store.now()
        facts = Running(new_id(), "", 1, 0, 0, now, None)  # a task that it does not have
        worker.settler.put(conclude(facts, Ended(Outcome.SUCCEEDED), RetryPolicy(), started_at=now, now=now, chance=0.0))
        await until("the store has refused it", lambda: worker.settler.stale == 1)
    async with app:
        assert (await app.store.figures())[FigureKey(STALE_WRITES)] == 1


async def test_a_worker_that_was_taken_for_dead_counts_the_loss_of_its_lease(app: App) -> None:
    attempts: list[int] = []

    @app.task
    async def work(ctx: Context) -> None:
        attempts.append(ctx.attempt)
        if ctx.attempt == 1:
            await asyncio.sleep(60)

    async with app.worker(lease=5) as worker:
        task = await work.now()
        await until("it runs", lambda: bool(attempts))
        await app.store.unregister(worker.id)  # as if it had been found dead
        await app.result(task, timeout=PATIENCE)
    async with app:
        figures = await app.store.figures()
    assert figures[FigureKey(LEASE_LOSSES)] == 1
    assert figures[SUCCEEDED] == 1
    assert attempts == [1, 2]


async def test_a_write_whose_answer_was_lost_is_repeated_and_counted_once(tmp_path: Path) -> None:
    class LosesAnswers(SqliteStore):
        lost = 2

        async def add_figures(self, source: str, number: int, increments: Mapping[FigureKey, int]) -> None:
            await super().add_figures(source, number, increments)
            if self.lost:
                self.lost -= 1
                raise StoreUnavailable("the answer was lost")

    store = LosesAnswers(str(tmp_path / "duetime.db"))
    await store.open()
    count = 3
    writer = FigureWriter(store, "a process", Alarms(), lambda: {SUCCEEDED: count})
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await writer.write()
        count += 4  # more comes meanwhile
    await writer.write()
    await writer.write()
    assert await store.figures() == {SUCCEEDED: 11}
    await store.close()


async def test_runs_of_loops_that_fail_because_of_the_store_are_counted(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/duetime.db?timeout=0.05")

    @app.task
    async def work() -> None: ...

    async with app.worker() as worker:
        connection = sqlite3.connect(tmp_path / "duetime.db", isolation_level=None)
        connection.execute("begin immediate")
        await until("a loop has met the lock", lambda: any(loop.failures for loop in worker.health().loops))
        connection.execute("rollback")
        connection.close()
    async with app:
        assert (await app.store.figures())[FigureKey(STORE_ERRORS)] >= 1


async def test_nothing_is_written_while_nothing_happens(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "duetime.db"))
    await store.open()
    writes: list[int] = []

    class Watched(FigureWriter):
        async def _send(self) -> None:
            writes.append(1)
            await super()._send()

    totals = {SUCCEEDED: 1}
    writer = Watched(store, "a process", Alarms(), lambda: dict(totals))
    for _ in range(3):
        await writer.write()
    assert len(writes) == 1
    totals[SUCCEEDED] = 2
    await writer.write()
    assert (len(writes), await store.figures()) == (2, totals)
    await store.close()


async def test_a_killed_worker_takes_nothing_back_that_was_written(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/duetime.db")

    @app.task
    async def work() -> None: ...

    async with app:
        await app.store.add_figures("worker of before", 1, {SUCCEEDED: 5})
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", _CHILD.format(path=tmp_path / "duetime.db"))
        task = await work.now()

        async def claimed() -> bool:
            return (await app.get(task)).state == "running"

        async with asyncio.timeout(PATIENCE):
            while not await claimed():  # noqa: ASYNC110  # another process does it
                await asyncio.sleep(0.02)
        process.kill()
        await process.wait()
        async with app.worker():
            await app.result(task, timeout=PATIENCE)
        figures = await app.store.figures()
    assert figures[SUCCEEDED] == 6
    assert (figures[FigureKey(WORKERS_LOST)], figures[FigureKey(ATTEMPTS_LOST)]) == (1, 1)


_CHILD = """
import asyncio
from duetime import App
app = App("sqlite:///{path}")

@app.task
async def work() -> None:
    await asyncio.sleep(600)

async def main() -> None:
    async with app.worker():
        await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_the_pruner_adds_up_what_processes_have_counted_that_are_gone(tmp_path: Path) -> None:
    clock = ManualClock()
    store = SqliteStore(str(tmp_path / "duetime.db"), clock=clock)
    await store.open()
    for number in range(3):
        await store.add_figures(f"process {number}", 1, {SUCCEEDED: 2})
    clock.advance(2 * 3600)
    await Pruner(store, Alarms(), {}).prune()
    assert await store.figures() == {SUCCEEDED: 6}
    with sqlite3.connect(tmp_path / "duetime.db") as connection:
        assert connection.execute("select count(*) from duetime_figure").fetchone() == (1,)
        assert connection.execute("select count(*) from duetime_figure_source").fetchone() == (0,)
    connection.close()
    await store.close()
