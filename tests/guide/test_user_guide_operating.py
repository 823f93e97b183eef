"""More of the guide: order, isolation, several programs on one store, gates, and what holds a task."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from duetime import App, Conflict, Context, Fatal, InvalidValue, State, TaskFailed, TaskNotFound
from duetime.model.outcome import Outcome
from duetime.model.why import ReasonKind
from tests.guide.waiting import until
from tests.servers.waiting import PATIENCE


@pytest.mark.covers("RMQ.5", "DBS.6", "QZ.5")
async def test_of_tasks_that_are_due_together_the_higher_priority_starts_first(app: App) -> None:
    started = []

    @app.task(concurrency=1, priority=4)
    async def push(name: str) -> None:
        started.append(name)

    due_at = datetime.now(UTC) + timedelta(seconds=0.1)
    await app.submit_many(
        [
            push.options(priority=0).new(name="lowest").at(due_at),
            push.new(name="the handler's own").at(due_at),
            push.options(priority=9).new(name="highest").at(due_at),
            push.options(priority=9).new(name="highest, submitted later").at(due_at),
            push.options(priority=5).new(name="middle").at(due_at),
        ]
    )
    await asyncio.sleep(0.1)
    async with app.worker():
        [lowest] = [task async for task in app.tasks(handler=push) if task.priority == 0]
        await app.result(lowest, timeout=PATIENCE)
    assert started == ["highest", "highest, submitted later", "middle", "the handler's own", "lowest"]


@pytest.mark.covers("REQ.2")
async def test_a_flood_of_low_priority_does_not_hold_up_the_high_and_is_not_starved_by_it(app: App) -> None:
    started: list[int] = []

    @app.task(concurrency=1)
    async def work(ctx: Context) -> None:
        started.append(ctx.task.priority)

    await app.submit_many([work.options(priority=0).new() for _ in range(2_000)])
    await app.submit_many([work.options(priority=9).new() for _ in range(64)])
    async with app.worker():
        async for task in app.tasks(handler=work, state="pending"):
            await app.result(task, timeout=PATIENCE)
    assert len(started) == 2_064
    starts = [number for number, priority in enumerate(started) if priority == 9]
    assert starts[-1] < 64 * 17 / 16  # one start in sixteen goes to what has waited longest
    assert started[:16].count(0) == 1


@pytest.mark.covers("ATF.2")
async def test_a_task_is_addressed_by_handler_collection_and_priority(app: App) -> None:
    started = []

    @app.task(concurrency=1)
    async def index(ctx: Context, document: int) -> None:
        started.append((ctx.task.collection, ctx.task.priority, document))

    @app.task
    async def other(document: int) -> None: ...

    new_tasks = [
        index.options(collection=collection, priority=priority).new(document=10 * priority + number)
        for priority in (2, 8)
        for number, collection in enumerate(("eu", "us"))
    ]
    await app.submit_many([*new_tasks, other.new(document=0)])
    assert [task.priority async for task in app.tasks(handler=index, collection="eu")] == [8, 2]
    await app.gates.pause(index, collection="eu")
    async with app.worker():
        us = [task async for task in app.tasks(handler=index, collection="us")]
        await asyncio.gather(*(app.result(task, timeout=PATIENCE) for task in us))
        assert started == [("us", 8, 81), ("us", 2, 21)]
        await app.gates.open(index, collection="eu")
        eu = [task async for task in app.tasks(handler=index, collection="eu")]
        await asyncio.gather(*(app.result(task, timeout=PATIENCE) for task in eu))
    assert started[2:] == [("eu", 8, 80), ("eu", 2, 20)]


@pytest.mark.covers("ATF.3", "XXL.13")
async def test_a_handler_that_floods_takes_its_own_slots_and_no_others(app: App) -> None:
    going_on = asyncio.Event()
    most = running = 0

    @app.task(concurrency=3)
    async def flood() -> None:
        nonlocal most, running
        running += 1
        most = max(most, running)
        await going_on.wait()
        running -= 1

    @app.task(concurrency=3)
    async def quiet(number: int) -> int:
        return number

    async with app.worker():
        flooded = await app.submit_many([flood.options(priority=9).new() for _ in range(200)])
        assert [await app.result(await quiet.options(priority=0).now(number=n), timeout=PATIENCE) for n in range(20)] == list(range(20))
        assert (await app.stats()).states[State.RUNNING] == 3
        going_on.set()
        await asyncio.gather(*(app.result(task, timeout=PATIENCE) for task in flooded))
    assert most == 3


@pytest.mark.covers("ATF.10")
async def test_teams_run_workers_of_their_own_which_register_themselves(app: App) -> None:
    @app.task
    async def bill(order_id: int) -> str:
        return f"billed {order_id}"

    theirs = App(app.config.url)

    @theirs.task(concurrency=2)
    async def ship(order_id: int) -> str:
        return f"shipped {order_id}"

    async with app.worker() as billing, theirs.worker() as shipping:
        shipped = await theirs.result(await app.handler("ship").now(order_id=1), timeout=PATIENCE)
        billed = await app.result(await theirs.handler("bill").now(order_id=1), timeout=PATIENCE)
        assert (shipped, billed) == ("shipped 1", "billed 1")
        workers = {worker.id: (worker.alive is not False, worker.pid, dict(worker.slots)) for worker in await app.workers()}
        assert workers == {billing.id: (True, os.getpid(), {"bill": 50}), shipping.id: (True, os.getpid(), {"ship": 2})}
        ran_by = {task.handler: task.worker async for task in app.tasks()}
        assert ran_by == {"bill": billing.id, "ship": shipping.id}
    assert await app.workers() == []


@pytest.mark.covers("SPA.1", "SPA.2", "SPA.3")
async def test_work_never_waits_behind_a_busy_worker_while_another_has_a_free_slot(app: App) -> None:
    going_on = asyncio.Event()

    async def work(ctx: Context, wait: bool) -> None:
        ctx.progress(0)
        if wait:
            await going_on.wait()

    other = App(app.config.url)
    task, _ = app.task(concurrency=1)(work), other.task(concurrency=1)(work)
    async with app.worker() as first:
        long = await task.now(wait=True)
        await until(app, long, lambda each: each.progress is not None, "its start")
        waiting = [await task.now(wait=False) for _ in range(5)]
        async with other.worker() as second:
            await asyncio.gather(*(app.result(each, timeout=PATIENCE) for each in waiting))
            assert {(await app.get(each)).worker for each in waiting} == {second.id}
            assert (await app.get(long)).worker == first.id
            going_on.set()
            await app.result(long, timeout=PATIENCE)


async def test_a_gate_on_a_collection_speaks_before_that_of_its_handler(app: App) -> None:
    @app.task
    async def sync(region: str) -> str:
        return region

    async with app.worker():
        assert (await app.gates.pause(sync)).in_force
        assert (await app.gates.drop(sync, collection="old", lasting=60, note="moved")).in_force
        held, dropped = await sync.now(region="new"), await sync.options(collection="old").now(region="old")
        with pytest.raises(TaskFailed, match="ended dropped"):
            await app.result(dropped, timeout=PATIENCE)
        assert (await app.get(held)).state is State.PENDING
        assert [(gate.collection, str(gate.action), gate.note) for gate in await app.gates.list()] == [
            (None, "pause", ""),
            ("old", "drop", "moved"),
        ]
        assert [await app.gates.open(sync), await app.gates.open(sync)] == [True, False]
        assert await app.result(held, timeout=PATIENCE) == "new"
        await app.gates.open(sync, collection="old")
        again = await app.retry(dropped)
        assert await app.result(again, timeout=PATIENCE) == "old"


async def test_what_runs_when_a_gate_closes_goes_on(app: App) -> None:
    going_on = asyncio.Event()

    @app.task(concurrency=1)
    async def work(ctx: Context) -> str:
        ctx.progress(0)
        await going_on.wait()
        return "finished"

    async with app.worker():
        running = await work.now()
        await until(app, running, lambda task: task.progress is not None, "its start")
        assert (await app.gates.pause(work)).in_force
        next_one = await work.now()
        going_on.set()
        assert await app.result(running, timeout=PATIENCE) == "finished"
        assert (await app.why(next_one))[0].kind is ReasonKind.GATE


async def test_verbs_say_when_they_come_too_late_or_for_nothing(app: App) -> None:
    @app.task
    async def work() -> str:
        return "done"

    async with app.worker():
        task = await work.now()
        await app.result(task, timeout=PATIENCE)
        assert await app.cancel(task) == "finished"
        with pytest.raises(Conflict, match="succeeded"):
            await app.retry(task)
        with pytest.raises(Conflict, match="must be waiting"):
            await app.reschedule(task, delay=60)
        assert await app.cancel(handler=work, key="none") == "unknown"
        with pytest.raises(TaskNotFound, match="not a task id"):
            await app.get("17")
        with pytest.raises(InvalidValue, match="at least one filter"):
            await app.cancel_many()
        with pytest.raises(TimeoutError):
            await app.result(await work.after(60), timeout=0.01)


async def test_many_failures_are_replayed_after_a_look(app: App) -> None:
    broken, reasons = True, ("unknown host", "certificate expired")

    @app.task
    async def call(number: int) -> int:
        if broken:
            raise Fatal(reasons[number % 2])
        return number

    async with app.worker():
        tasks = await app.submit_many([call.new(number=number) for number in range(10)])
        for task in tasks:
            with pytest.raises(TaskFailed):
                await app.result(task, timeout=PATIENCE)
        broken = False
        look = await app.retry_many(handler=call, error="certificate", dry_run=True)
        assert (look.matched, look.answers) == (5, {})
        assert (await app.retry_many(handler=call, error="certificate")).answers == {"changed": 5}
        assert [await app.result(task, timeout=PATIENCE) for task in tasks if task.payload["number"] % 2] == [1, 3, 5, 7, 9]
    assert (await app.stats()).states[State.FAILED] == 5


async def test_a_worker_that_stops_gives_back_what_it_has_not_finished_and_no_try_is_lost(app: App) -> None:
    app_in_a_hurry = App(app.config.url, grace=0)
    patience = [60.0]

    async def work(ctx: Context) -> int:
        ctx.progress(0)
        await asyncio.sleep(patience[0])
        return ctx.attempt

    app_in_a_hurry.task(work)
    async with app_in_a_hurry.worker():
        task = await app_in_a_hurry.handler("work").now()
        await until(app, task, lambda each: each.progress is not None, "its start")
    assert ((await app.get(task)).state, (await app.get(task)).tries) == (State.PENDING, 0)
    patience[0] = 0
    app.task(work)
    async with app.worker():
        assert await app.result(task, timeout=PATIENCE) == 2
        assert [attempt.outcome for attempt in await app.attempts(task)] == [Outcome.RELEASED, Outcome.SUCCEEDED]


PRINTER = """
import asyncio
from duetime import App, Context

app = App()

@app.task
async def print_label(ctx: Context, parcel: int) -> list[int]:
    ctx.progress(0.5)
    if ctx.attempt == 1:
        await asyncio.sleep(60)
    return [ctx.attempt, ctx.task.crashes]
"""


@contextlib.asynccontextmanager
async def worker_process(folder: Path, url: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run `duetime worker` as people do."""
    environment = {**os.environ, "DUETIME_URL": url}
    command = (sys.executable, "-m", "duetime.cli", "worker", "printer:app")
    process = await asyncio.create_subprocess_exec(*command, cwd=folder, env=environment, stderr=asyncio.subprocess.DEVNULL)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


@pytest.mark.slow
@pytest.mark.covers("CEL.4", "QZ.9", "DYN.9")
async def test_a_killed_worker_loses_nothing_and_the_next_attempt_knows(app: App, tmp_path: Path) -> None:
    (tmp_path / "printer.py").write_text(PRINTER)
    label = app.handler("print_label").options(allow_unknown=True)
    async with worker_process(tmp_path, app.config.url) as first:
        task = await label.now(parcel=7)
        await until(app, task, lambda each: each.progress is not None, "its first attempt")
        first.send_signal(signal.SIGKILL)
        await first.wait()
        assert (await app.get(task)).state is State.RUNNING  # nobody has looked yet
        async with worker_process(tmp_path, app.config.url):
            assert await app.result(task, timeout=PATIENCE) == [2, 1]
    assert [attempt.outcome for attempt in await app.attempts(task)] == [Outcome.LOST, Outcome.SUCCEEDED]


@pytest.mark.covers("SPA.5")
async def test_a_handler_starts_tasks_first_come_first_served_by_priority_or_user_by_user(app: App) -> None:
    started: dict[str, list[str]] = {"by_age": [], "by_priority": [], "by_user": []}

    def record(ctx: Context) -> None:
        started[ctx.task.handler].append(ctx.task.collection or "")

    def record_slowly(ctx: Context) -> None:
        record(ctx)
        time.sleep(0.06)  # longer than the work that a worker takes along: of quick tasks it would take all at once

    plain = app.task(name="by_age", concurrency=1)(record)
    urgent = app.task(name="by_priority", concurrency=1)(record)
    shared = app.task(name="by_user", concurrency=1, fair="collection")(record_slowly)
    number = {"by_age": 20, "by_priority": 20, "by_user": 6}
    for user in ("ada", "bob", "cyd"):
        priority = {"ada": 0, "bob": 9, "cyd": 5}[user]
        for handler in (plain, urgent, shared):
            await app.submit_many(
                [
                    handler.options(collection=user, priority=priority if handler is urgent else None).new()
                    for _ in range(number[handler.name])
                ]
            )
    async with app.worker():
        async with asyncio.timeout(PATIENCE):
            while any(len(each) < 3 * number[name] for name, each in started.items()):  # noqa: ASYNC110  # the handlers have no event loop of their own
                await asyncio.sleep(0.01)
    assert started["by_age"] == ["ada"] * 20 + ["bob"] * 20 + ["cyd"] * 20
    most = [user for user in started["by_priority"][:40] if user != "ada"]  # one start in sixteen is for who has waited longest
    assert len(most) >= 37
    assert most[:17] == ["bob"] * 17
    assert all({*started["by_user"][index : index + 3]} == {"ada", "bob", "cyd"} for index in range(0, 18, 3))
