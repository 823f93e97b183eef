"""One handler's flood does not hold up another's tasks."""

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from duetime import App, Context, State
from duetime.store.sqlite.store import SqliteStore
from duetime.store.values import NewWorker
from tests.chaos.fleet import until
from tests.servers.waiting import PATIENCE


@pytest.fixture
def app(tmp_path: Path) -> App:
    return App(f"sqlite:///{tmp_path / 'duetime.db'}")


@pytest.mark.covers("ATF.3")
async def test_a_handler_whose_slots_are_all_taken_leaves_the_others_theirs(app: App) -> None:
    running: set[str] = set()
    release = asyncio.Event()

    @app.task(concurrency=3)
    async def slow(ctx: Context) -> None:
        running.add(ctx.task.id)
        assert len(running) <= 3
        await release.wait()
        running.discard(ctx.task.id)

    @app.task(concurrency=2)
    def blocking(ctx: Context) -> None:
        while not release.is_set():
            ctx.check()
            time.sleep(0.01)

    @app.task
    async def fast() -> str:
        return "done"

    async with app.worker():
        flood = await app.submit_many([*(slow.new() for _ in range(500)), *(blocking.new() for _ in range(20))])
        await until("the flood fills its slots", lambda: len(running) == 3)
        others = await app.submit_many([fast.new() for _ in range(100)])
        assert [await app.result(task, timeout=PATIENCE) for task in others] == ["done"] * 100
        assert len(running) == 3
        held = [record.state for record in await app.store.get([task.id for task in flood[:500]]) if record is not None]
        assert held.count(State.RUNNING) <= 3, "a slow handler claims no more than it can run"
        release.set()
        await until("the flood is over", lambda: not running)
        await app.cancel_many(handler="slow")


async def test_one_slot_for_all_serves_the_handlers_round_robin(app: App) -> None:
    order: list[str] = []

    async def note(ctx: Context) -> None:
        order.append(ctx.task.handler)

    first, second, third = (app.task(name=name)(note) for name in ("a", "b", "c"))
    async with app:
        await app.submit_many([first.new() for _ in range(300)])
        await app.submit_many([second.new() for _ in range(5)] + [third.new() for _ in range(5)])
        async with app.worker(concurrency=1):
            await until("all have run", lambda: len(order) == 310)
    last = max(number for number, name in enumerate(order) if name != "a")
    assert last < 40, f"ten tasks of two handlers had to wait for {last} starts"


async def test_a_hundred_thousand_gated_tasks_do_not_make_claims_of_others_dearer(tmp_path: Path) -> None:
    steps: dict[str, int] = {}
    for name, gated in (("few", 10), ("many", 100_000)):
        app = App(f"sqlite:///{tmp_path / name}.db?synchronous=normal")

        @app.task
        async def held() -> None: ...

        @app.task
        async def free() -> None: ...

        async with app:
            assert isinstance(app.store, SqliteStore)
            await app.gates.pause("held")
            for _ in range(0, gated, 5_000):
                await app.submit_many([held.new() for _ in range(min(gated, 5_000))])
            await app.submit_many([free.new() for _ in range(200)])
            lease = await app.store.register(NewWorker(id="w", host="here", pid=1, slots={"held": 5, "free": 5}))
            steps[name] = await claim_steps(app.store, {"held": 10, "free": 10})
            lease.close()
    assert steps["many"] < 2 * steps["few"], f"steps of SQLite's machine for the same claims: {steps}"


async def claim_steps(store: SqliteStore, wants: Mapping[str, int]) -> int:
    """Count the steps of SQLite's virtual machine, in tens, that twenty claims take: the same on every machine."""
    counted = 0

    def count() -> int:
        nonlocal counted
        counted += 1
        return 0

    await store._write(lambda connection: connection.set_progress_handler(count, 10))
    for number in range(20):
        claim = await store.claim("w", number + 1, wants, 10)
        assert len(claim.tasks) == 10
    await store._write(lambda connection: connection.set_progress_handler(None, 0))
    return counted
