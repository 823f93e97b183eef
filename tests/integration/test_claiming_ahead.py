"""Workers on PostgreSQL claim tasks a few milliseconds before they are due. Until then these wait, and nothing has begun.

Tasks are claimed two minutes ahead here instead of milliseconds, so that what happens meanwhile need not hurry.
"""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import msgspec
import pytest

from duetime import App, State, Task
from duetime.clock import SECOND, to_datetime
from tests.chaos.processes import until
from tests.servers.waiting import PATIENCE

AHEAD = 120 * SECOND
begun: list[int] = []


def claim_ahead(app: App, micros: int) -> None:
    app.store.traits = msgspec.structs.replace(app.store.traits, claim_ahead=micros)  # type: ignore[misc]


@pytest.fixture
async def app(postgres_url: str) -> AsyncIterator[App]:
    made = App(postgres_url)
    claim_ahead(made, AHEAD)
    begun.clear()

    @made.task
    async def work(number: int) -> None:
        begun.append(number)

    async with made:
        yield made


async def claimed_ahead(app: App, number: int = 7, seconds: float = 60) -> Task[object]:
    """Return a task that a worker has claimed long before it is due."""
    task = await app.handler("work").after(timedelta(seconds=seconds), number=number)

    async def running() -> bool:
        return (await app.get(task)).state is State.RUNNING

    await until("the task is claimed", running)
    return task


async def test_a_task_begins_when_it_is_due_although_it_was_claimed_before(app: App) -> None:
    async with app.worker():
        task = await claimed_ahead(app, seconds=4)
        assert begun == []
        await app.result(task, timeout=PATIENCE)
    ended = await app.get(task)
    assert ended.started_at is not None
    assert ended.started_at >= ended.due_at


async def test_many_begin_in_the_order_of_their_due_times(app: App) -> None:
    async with app.worker():
        at = to_datetime(app.store.now() + 2 * SECOND)
        await app.submit_many([app.handler("work").new(number=number).at(at - timedelta(milliseconds=number)) for number in range(20)])
        await until("all have ended", lambda: len(begun) == 20)
    assert begun == sorted(begun, reverse=True)


async def test_a_cancel_keeps_it_from_beginning(app: App) -> None:
    async with app.worker():
        task = await claimed_ahead(app)
        assert await app.cancel(task) == "cancelling"
        await until("it is cancelled", lambda: _is(app, task, State.CANCELLED))
        assert begun == []


async def test_a_gate_takes_it_back(app: App) -> None:
    async with app.worker():
        task = await claimed_ahead(app)
        assert (await app.gates.pause("work")).in_force
        await until("it is pending again", lambda: _is(app, task, State.PENDING))
        assert (begun, (await app.get(task)).due_at) == ([], task.due_at)


@pytest.mark.covers("XXL.14")
async def test_a_worker_that_stops_gives_it_back(app: App) -> None:
    async with app.worker():
        task = await claimed_ahead(app)
    assert (await app.get(task)).state is State.PENDING
    assert (begun, (await app.get(task)).due_at) == ([], task.due_at)


async def test_what_is_due_now_does_not_wait_for_what_was_claimed_ahead(app: App) -> None:
    async with app.worker():
        await asyncio.gather(*[claimed_ahead(app, number) for number in range(5)])
        await app.result(await app.handler("work").now(number=99), timeout=PATIENCE)
        assert begun == [99]


async def test_if_the_clock_of_the_store_is_set_back_it_is_not_held_for_longer(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    async with app.worker() as worker:
        task = await claimed_ahead(app)
        reached = app.store.reached
        claim_ahead(app, SECOND)  # as if it had been claimed a second before its due time
        monkeypatch.setattr(app.store, "reached", lambda: reached() - 3_600 * SECOND)
        worker.executor._ahead.start_due()
        await until("it is pending again", lambda: _is(app, task, State.PENDING))
        assert begun == []


async def _is(app: App, task: Task[object], state: State) -> bool:
    return (await app.get(task)).state is state
