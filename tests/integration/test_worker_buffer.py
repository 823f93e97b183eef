"""What a worker has claimed but not started: full batches for fast handlers, and given back whenever it may not start here."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from duetime import App, Context, Fatal, State, Task
from duetime.clock import SECOND
from duetime.model.claim_order import Below
from duetime.model.outcome import Settlement, SettleVerdict
from duetime.store import Store
from duetime.store.values import Claim
from duetime.worker import queues, settler
from tests.chaos.fleet import until


class Claims:
    """Notes how many tasks came with each claim of one store object."""

    def __init__(self, store: Store) -> None:
        self._claim: Callable[[str, int, Mapping[str, int], int], Awaitable[Claim]] = store.claim
        self.came: list[int] = []
        store.claim = self.claim  # type: ignore[method-assign]

    async def claim(
        self, worker: str, claim: int, wants: Mapping[str, int], total: int, *, ahead: int = 0, below: Below | None = None
    ) -> Claim:
        reply = await self._claim(worker, claim, wants, total)
        self.came.append(len(reply.tasks))
        return reply


@pytest.fixture
def app(tmp_path: Path) -> App:
    return App(f"sqlite:///{tmp_path / 'duetime.db'}?synchronous=normal")


async def states(app: App, tasks: Sequence[Task[Any]]) -> list[State]:
    return [record.state for record in await app.store.get([task.id for task in tasks]) if record is not None]


async def all_in(app: App, tasks: Sequence[Task[Any]], state: State) -> bool:
    return set(await states(app, tasks)) == {state}


async def test_a_fast_handler_is_fed_in_hundreds_at_the_default_concurrency(app: App) -> None:
    @app.task
    async def fast() -> None: ...

    @app.task
    async def idle() -> None: ...

    async with app:
        tasks = await app.submit_many([fast.new() for _ in range(10_000)])
        claims = Claims(app.store)
        async with app.worker():
            await until("all are done", lambda: all_in(app, tasks, State.SUCCEEDED))
    assert max(claims.came) >= 300, "50 slots, and 50 ms of work besides"
    found = [came for came in claims.came if came]
    assert len(found) <= 10_000 / 100, f"although another handler is idle, batches stay large: {found}"


async def test_a_handler_that_waits_long_is_fed_by_its_slots_alone(app: App) -> None:
    go_on = asyncio.Event()
    started = 0

    @app.task(concurrency=5)
    async def slow() -> None:
        nonlocal started
        started += 1
        await go_on.wait()

    async with app:
        tasks = await app.submit_many([slow.new() for _ in range(30)])
        async with app.worker() as worker:
            await until("the slots are taken", lambda: started == 5)
            assert len(worker.executor.attempts()) == 5
            assert (await states(app, tasks)).count(State.RUNNING) == 5
            go_on.set()
            await until("all are done", lambda: all_in(app, tasks, State.SUCCEEDED))


async def test_names_that_share_their_slots_do_not_claim_for_them_twice(app: App) -> None:
    go_on = asyncio.Event()
    started = 0

    @app.task(concurrency=6, aliases=["before", "long_before"])
    async def renamed() -> None:
        nonlocal started
        started += 1
        await go_on.wait()

    @app.task(concurrency=100)
    async def other() -> None: ...

    async with app:
        names = ("renamed", "before", "long_before")
        tasks = await app.submit_many([app.handler(name).new() for name in names for _ in range(10)])
        async with app.worker() as worker:
            await until("the slots are taken", lambda: started == 6)
            assert len(worker.executor.attempts()) == 6
            go_on.set()
            await until("all are done", lambda: all_in(app, tasks, State.SUCCEEDED))


async def test_a_worker_that_stops_gives_back_what_it_has_not_started(app: App) -> None:
    go_on = asyncio.Event()
    quick = 40

    @app.task(concurrency=2)
    async def handler(ctx: Context, number: int) -> None:
        if number < quick:
            await asyncio.sleep(0)
        else:
            await go_on.wait()

    async with app:
        tasks = await app.submit_many([handler.new(number=number) for number in range(quick + 200)])
        async with app.worker(grace=0) as worker:
            await until("some are claimed and wait", lambda: len(worker.executor.running) == 2 and len(worker.executor.attempts()) > 20)
        left = [task for task in await app.store.get([task.id for task in tasks]) if task is not None and task.state is State.PENDING]
        assert len(left) >= 200
        assert {task.tries for task in left} == {0}
        go_on.set()
        async with app.worker():
            await until("all are done", lambda: all_in(app, tasks, State.SUCCEEDED))


async def test_a_gate_that_closes_gives_back_what_waits_and_starts_nothing_more(app: App) -> None:
    go_on = asyncio.Event()
    starts: list[int] = []
    quick = 40

    @app.task(concurrency=2)
    async def handler(number: int) -> None:
        starts.append(number)
        if number < quick:
            await asyncio.sleep(0)
        else:
            await go_on.wait()

    async with app:
        tasks = await app.submit_many([handler.new(number=number) for number in range(quick + 200)])
        async with app.worker() as worker:
            await until("some are claimed and wait", lambda: len(worker.executor.running) == 2 and len(worker.executor.attempts()) > 20)
            await app.gates.pause("handler")
            before = len(starts)
            assert len(worker.executor.attempts()) == 2
            go_on.set()
            await until("what had started is done", lambda: not worker.executor.running)
            await until("the rest has gone back", lambda: no_more_running(app, tasks))
            assert len(starts) == before
            await app.gates.open("handler")
            await until("all are done", lambda: all_in(app, tasks, State.SUCCEEDED))
        assert len(starts) == len(tasks)


async def no_more_running(app: App, tasks: Sequence[Task[Any]]) -> bool:
    return State.RUNNING not in await states(app, tasks)


async def test_what_is_cancelled_while_it_waits_in_memory_never_starts(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "STALE_AFTER", 3600 * SECOND)  # on a busy machine it would go back before it is cancelled
    go_on = asyncio.Event()
    starts: list[int] = []
    quick = 40

    @app.task(concurrency=2)
    async def handler(number: int) -> None:
        starts.append(number)
        if number < quick:
            await asyncio.sleep(0)
        else:
            await go_on.wait()

    async with app:
        tasks = await app.submit_many([handler.new(number=number) for number in range(quick + 200)])
        async with app.worker() as worker:
            await until("some are claimed and wait", lambda: len(starts) == quick + 2 and len(worker.executor.attempts()) > 20)
            queued = [task for task in tasks if task.id in worker.executor.attempts() and task.id not in worker.executor.running]
            for task in queued[:5]:
                await app.cancel(task)
            await until("the worker knows", lambda: len(worker.executor.starts.cancels) == 5)
            go_on.set()
            await until("they are cancelled", lambda: all_in(app, queued[:5], State.CANCELLED))
            others = [task for task in tasks if task not in queued[:5]]
            await until("the others are done", lambda: all_in(app, others, State.SUCCEEDED))
            assert not worker.executor.starts.cancels
    assert len(starts) == len(tasks) - 5


async def test_a_task_that_was_cancelled_while_it_waited_in_memory_runs_after_an_operators_retry(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes back without having been looked at, because attempts before it became slow: its cancel must not be remembered."""
    monkeypatch.setattr(queues, "STALE_AFTER", 3600 * SECOND)
    go_on = asyncio.Event()
    starts: list[int] = []
    quick = 40

    @app.task(concurrency=2)
    async def handler(number: int) -> None:
        starts.append(number)
        if number < quick:
            await asyncio.sleep(0)
        else:
            await go_on.wait()

    async with app:
        tasks = await app.submit_many([handler.new(number=number) for number in range(quick + 200)])
        async with app.worker() as worker:
            await until("some are claimed and wait", lambda: len(starts) == quick + 2 and len(worker.executor.attempts()) > 20)
            cancelled = next(task for task in tasks if task.id in worker.executor.attempts() and task.id not in worker.executor.running)
            await app.cancel(cancelled)
            await until("the worker knows", lambda: cancelled.id in worker.executor.starts.cancels)
            monkeypatch.setattr(queues, "STALE_AFTER", -1)
            worker.executor.wants()
            await until("it is cancelled", lambda: all_in(app, [cancelled], State.CANCELLED))
            await app.retry(cancelled)
            go_on.set()
            await until("all are done", lambda: all_in(app, tasks, State.SUCCEEDED))
            assert not worker.executor.starts.cancels


async def test_what_waits_behind_attempts_that_have_become_slow_runs_elsewhere(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "STALE_AFTER", 50_000)
    go_on = asyncio.Event()
    quick = 40

    @app.task(concurrency=2, name="handler")
    async def handler(number: int) -> str:
        if number < quick:
            await asyncio.sleep(0)
        else:
            await go_on.wait()
        return "here"

    elsewhere = App(app.store.url)

    @elsewhere.task(name="handler")
    async def same_handler(number: int) -> str:
        return "elsewhere"

    async with app, elsewhere:
        tasks = await app.submit_many([handler.new(number=number) for number in range(quick + 200)])
        async with app.worker() as worker:
            await until("some are claimed and wait", lambda: len(worker.executor.running) == 2 and len(worker.executor.attempts()) > 20)
            await until("they went back", lambda: len(worker.executor.attempts()) == 2)
            async with elsewhere.worker():
                rest = [task for task in tasks if task.id not in worker.executor.running]
                await until("the rest is done", lambda: all_in(app, rest, State.SUCCEEDED))
            assert len(worker.executor.running) == 2
            go_on.set()
            await until("all are done", lambda: all_in(app, tasks, State.SUCCEEDED))
        where = [await app.result(task) for task in tasks]
        assert where.count("here") < quick + 100
        assert where.count("elsewhere") >= 100


async def test_a_store_that_takes_outcomes_slowly_is_not_run_away_from(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settler, "MOST_WAITING", 400)
    takes_them = asyncio.Event()

    @app.task
    async def fast() -> None: ...

    @app.task
    async def fails() -> None:
        raise Fatal("no")

    async with app:
        settle = app.store.settle

        async def slowly(worker: str, settlements: Sequence[Settlement]) -> list[SettleVerdict]:
            await takes_them.wait()
            return await settle(worker, settlements)

        app.store.settle = slowly  # type: ignore[method-assign]
        tasks = await app.submit_many([fast.new() for _ in range(10_000)])
        failing = await app.submit_many([fails.new() for _ in range(1_000)])
        async with app.worker() as worker:
            await until("the settler cannot take more", lambda: len(worker.settler) > 400)
            await until("the buffer is full", lambda: worker.executor.wants() == ({}, 0))
            assert len(worker.settler) < 5_000, "it goes on to the end of a burst and no further"
            assert not worker.executor.running
            takes_them.set()
            await until("all are done", lambda: all_in(app, tasks, State.SUCCEEDED))
            await until("all have failed", lambda: all_in(app, failing, State.FAILED))


async def test_handlers_that_wait_and_handlers_that_do_not_share_a_worker(app: App) -> None:
    ends: dict[str, int] = {}

    @app.task(concurrency=20)
    async def waits(number: int) -> None:
        await asyncio.sleep(0.001)
        ends["waits"] = ends.get("waits", 0) + 1

    @app.task
    async def goes_on(number: int) -> None:
        ends["goes_on"] = ends.get("goes_on", 0) + 1

    @app.task(concurrency=4)
    def in_thread(number: int) -> None:
        ends["in_thread"] = ends.get("in_thread", 0) + 1

    async with app:
        new_tasks = [handler.new(number=number) for number in range(500) for handler in (waits, goes_on, in_thread)]
        tasks = await app.submit_many(new_tasks)
        async with app.worker(concurrency=16) as worker:
            await until("all are done", lambda: all_in(app, tasks, State.SUCCEEDED))
            assert worker.executor.finished == 1_500
            assert not worker.executor.running
    assert ends == {"waits": 500, "goes_on": 500, "in_thread": 500}
