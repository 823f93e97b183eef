"""What people did with other schedulers, and how they do it here: batches, states, hooks, overlapping runs, versions, restarts."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import sqlite3
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from duetime import (
    App,
    Conflict,
    Context,
    Fatal,
    Handlers,
    InvalidValue,
    NewTask,
    Next,
    RetryPolicy,
    State,
    TaskEvent,
    TaskFailed,
    TaskNotFound,
)
from duetime.clock import ManualClock
from duetime.duties.pruner import Pruner
from duetime.model.task import FINAL
from duetime.runtime.service import Alarms
from duetime.store.open import store_from_url
from duetime.testing import using
from tests.guide.waiting import until
from tests.integration.callers import bare
from tests.servers.waiting import PATIENCE


async def until_so(holds: Callable[[], bool], what: str) -> None:
    """Wait until something holds; fail with a description after a long time."""
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, f"waited {PATIENCE:g} s in vain: {what}"
        await asyncio.sleep(0.02)


@pytest.mark.covers("DBS.3", "SCH.1")
async def test_workers_take_tasks_side_by_side_and_none_takes_what_another_has(app: App) -> None:
    other, going_on = App(app.config.url), asyncio.Event()
    running: list[int] = []

    async def work(number: int) -> None:
        running.append(number)
        await going_on.wait()

    task, _ = (each.task(concurrency=20)(work) for each in (app, other))
    async with app.worker() as first, other.worker() as second:
        tasks = await app.submit_many([task.new(number=number) for number in range(50)])
        await until_so(lambda: len(running) == 40, "all slots of both are taken")
        assert sorted(running) == sorted(set(running))
        workers = [each.worker async for each in app.tasks(state="running")]
        assert sorted(workers) == sorted([first.id, second.id] * 20)  # type: ignore[type-var]
        going_on.set()
        await app.results(tasks, timeout=PATIENCE)
    assert sorted(running) == list(range(50))
    assert {each.attempt async for each in app.tasks()} == {1}


@pytest.mark.covers("FEN.8")
async def test_a_task_is_ready_at_a_time_that_can_be_moved_and_what_runs_at_a_restart_runs_again(app: App) -> None:
    going_on = asyncio.Event()

    @app.task
    async def work() -> str:
        await going_on.wait()
        return "done"

    later, now = await work.after(3600), await work.now()
    async with app.worker(grace=0.01):
        await until(app, now, lambda each: each.state is State.RUNNING, "its start")
    given_back = await app.get(now)
    assert (given_back.state, given_back.tries, given_back.attempt) == (State.PENDING, 0, 1)
    going_on.set()
    await app.reschedule(later, due_at=datetime.now(UTC))
    async with app.worker():
        assert await app.results([later, now], timeout=PATIENCE) == ["done", "done"]
    assert (await app.get(now)).attempt == 2


@pytest.mark.covers("RSQ.4", "QZ.10")
async def test_code_stands_around_submitting_and_performing_may_refuse_and_hears_what_becomes_of_it(app: App) -> None:
    shop, seen = Handlers(prefix="shop."), []

    @app.on_submit
    def check(task: NewTask[object]) -> dict[str, str]:
        if task.handler == "shop.refund":
            raise InvalidValue("refunds are closed")
        return {"checked": "yes"}

    @app.middleware
    async def around(ctx: Context, call_next: Next) -> object:
        seen.append(f"before {ctx.task.handler} {ctx.task.meta['checked']}")
        try:
            return await call_next()
        finally:
            seen.append(f"after {ctx.task.handler}")

    @shop.task
    async def charge(good: bool) -> None:
        if not good:
            raise Fatal("no such card")

    @shop.task
    async def refund() -> None: ...

    @app.task
    async def greet() -> None: ...

    @shop.on("task.submitted", "task.started", "task.succeeded", "task.failed", "task.cancelled")
    async def listen(event: TaskEvent) -> None:
        seen.append(event.name)
        if event.name == "task.failed":  # a chain of listeners is a task that one submits
            await greet.now()

    app.include(shop)
    async with app.worker():
        cancelled = await charge.after(3600, good=True)
        assert await app.cancel(cancelled) == "cancelled"
        with pytest.raises(InvalidValue, match="refunds are closed"):
            await refund.now()
        bad = await charge.now(good=False)
        with pytest.raises(TaskFailed):
            await app.result(bad, timeout=PATIENCE)
        await until_so(lambda: "after greet" in seen and "task.cancelled" in seen, "all is heard")
    assert [task.handler async for task in app.tasks(handler="shop.refund")] == []
    assert seen.count("task.submitted") == 2
    assert [each for each in seen if each in ("before shop.charge yes", "after shop.charge", "task.failed", "before greet yes")] == [
        "before shop.charge yes",
        "after shop.charge",
        "task.failed",
        "before greet yes",
    ]


@pytest.mark.covers("HF.2", "KBL.6")
async def test_every_state_can_be_listed_and_code_around_an_attempt_decides_how_it_ends(app: App) -> None:
    going_on = asyncio.Event()

    @app.middleware
    async def judge(ctx: Context, call_next: Next) -> object:
        try:
            return await call_next()
        except KeyError as error:
            raise Fatal(f"no use in trying again: {error}") from error

    @app.task(retry=RetryPolicy(tries=5, base=0))
    async def work(kind: str) -> str:
        if kind == "bug":
            raise KeyError(kind)
        if kind == "wait":
            await going_on.wait()
        return kind

    async with app.worker():
        running = await work.now(kind="wait")
        blocked = await work.options(needs=[running]).now(kind="next")
        later, removed = await work.after(3600, kind="later"), await work.after(3600, kind="removed")
        await app.cancel(removed)
        bug, good = await work.now(kind="bug"), await work.now(kind="good")
        assert await app.result(good, timeout=PATIENCE) == "good"
        with pytest.raises(TaskFailed, match="no use in trying again"):
            await app.result(bug, timeout=PATIENCE)
        await until(app, running, lambda each: each.state is State.RUNNING, "its start")
        expected = {
            State.BLOCKED: blocked.id,
            State.PENDING: later.id,
            State.RUNNING: running.id,
            State.SUCCEEDED: good.id,
            State.FAILED: bug.id,
            State.CANCELLED: removed.id,
        }
        assert {state: [task.id async for task in app.tasks(state=state)] for state in expected} == {
            state: [task] for state, task in expected.items()
        }
        history = [task.id async for task in app.tasks(states=[State.SUCCEEDED, State.FAILED, State.CANCELLED])]
        assert sorted(history) == sorted([good.id, bug.id, removed.id])
        assert history[-1] == removed.id, "what ended last comes first"
        assert len(await app.attempts(bug)) == 1
        going_on.set()
        assert await app.result(blocked, timeout=PATIENCE) == "next"


@pytest.mark.covers("HF.4")
async def test_tries_delays_exceptions_and_what_is_kept_after_the_last_try_are_said_once(app: App) -> None:
    policy = RetryPolicy(tries=10, delays=[1, 60], jitter=0, only=(ConnectionError,), never=(ConnectionRefusedError,))

    @app.task(retry=policy, keep_failed=0)
    async def call(fault: str) -> None:
        raise {"away": ConnectionError, "refused": ConnectionRefusedError, "bug": KeyError}[fault]

    async with using(app, raise_errors=False) as t:
        tasks = [await call.now(fault=fault) for fault in ("away", "refused", "bug")]
        ran = await t.advance(minutes=8)
        assert [sum(each.task.id == task.id for each in ran) for task in tasks] == [9, 1, 1]
        away = [each.at for each in ran if each.task.id == tasks[0].id]
        assert [(after - before).total_seconds() for before, after in itertools.pairwise(away)] == [1, *[60] * 7]
        assert t.task(tasks[0]).state is State.PENDING
        await t.advance(minutes=1)
        assert t.task(tasks[0]).state is State.FAILED
    async with app.worker():
        bug = await call.now(fault="bug")
        with pytest.raises(TaskFailed):
            await app.result(bug, timeout=PATIENCE)
        pruner = Pruner(app.store, Alarms(), {state: timedelta(days=7) for state in FINAL})
        while await pruner.prune():
            pass
        with pytest.raises(TaskNotFound):
            await app.get(bug)


@pytest.mark.covers("XXL.3", "QZ.6")
async def test_a_run_that_overlaps_waits_is_left_out_or_ends_the_one_before(app: App) -> None:
    going_on, ended = asyncio.Event(), []

    @app.schedule(every=3600, name="hourly")
    async def sweep(ctx: Context) -> None:
        try:
            await going_on.wait()
            ended.append(ctx.task.id)
        except asyncio.CancelledError:
            ended.append("stopped")
            raise

    async with app.worker():
        first = await app.schedules.trigger("hourly")
        await until(app, first, lambda each: each.state is State.RUNNING, "its start")
        with pytest.raises(Conflict, match='overlap="skip"'):
            await app.schedules.trigger("hourly", overlap="skip")
        serial = await app.schedules.trigger("hourly", overlap="queue all")
        assert (await app.get(serial)).state is State.BLOCKED
        covering = await app.schedules.trigger("hourly", overlap="cancel")
        await until(app, first, lambda each: each.state is State.CANCELLED, "it is stopped")
        going_on.set()
        await until(app, covering, lambda each: each.final, "the last one ended")
    assert ended[0] == "stopped"
    assert first.id not in ended


@pytest.mark.covers("DBS.8")
async def test_tasks_that_only_a_newer_version_knows_wait_for_it_and_old_ones_are_removed(app: App) -> None:
    newer = App(app.config.url)

    @app.task
    async def greet() -> str:
        return "hello"

    @newer.task
    async def resize() -> str:
        return "resized"

    async with newer:
        waiting = [await resize.now() for _ in range(2)]
    async with app.worker():
        assert await app.result(await greet.now(), timeout=PATIENCE) == "hello"
        assert {(await app.get(each)).state for each in waiting} == {State.PENDING}
        assert "no live worker runs resize" in (await app.why(waiting[0]))[0].text
        old = await app.cancel_many(handler="resize", due_before=datetime.now(UTC) - timedelta(days=14))
        assert old.matched == 0, "what is not old stays"
        async with newer.worker():
            assert await app.results(waiting, timeout=PATIENCE) == ["resized"] * 2
        left = await newer.submit(resize.new().at(datetime.now(UTC) - timedelta(days=15)))
        assert (await app.cancel_many(handler="resize", due_before=datetime.now(UTC) - timedelta(days=14))).answers == {"cancelled": 1}
        assert (await app.get(left)).state is State.CANCELLED


@contextlib.contextmanager
def own_connection(url: str) -> Iterator[Any]:
    """A connection of the program's own, to the database that has its tasks."""
    opened = psycopg.connect(bare(url)) if url.startswith("postgresql") else sqlite3.connect(url.removeprefix("sqlite:///"))
    with contextlib.closing(opened) as connection:
        connection.execute("create temporary table orders (id int)")
        connection.commit()
        yield connection


@pytest.mark.covers("DBS.10")
async def test_what_a_transaction_stages_meets_interceptors_and_listeners_and_outlives_a_change_of_its_parameters(app: App) -> None:
    newer, seen = App(app.config.url), []

    @app.on_submit
    def stamp(task: NewTask[object]) -> dict[str, str]:
        return {"tenant": "shop"}

    @app.task
    async def expire(order_id: int) -> None: ...

    with own_connection(app.config.url) as connection:
        stage = expire.options(connection=connection)
        connection.execute("insert into orders values (1)")
        taken_back = await stage.now(order_id=1)
        connection.rollback()
        connection.execute("insert into orders values (2)")
        staged = await stage.now(order_id=2)
        connection.commit()

    @newer.middleware
    async def around(ctx: Context, call_next: Next) -> object:
        seen.append(f"before, of {ctx.task.meta['tenant']}")
        return await call_next()

    @newer.on("task.succeeded", handler="expire")
    async def listen(event: TaskEvent) -> None:
        seen.append(f"{event.name} {event.task == staged.id}")

    @newer.task(name="expire")
    async def expire_number(number: int, reason: str) -> str:
        return f"{number}: {reason}"

    @expire_number.upgrade
    def from_order_id(payload: dict[str, Any]) -> dict[str, Any]:
        return {"number": payload["order_id"], "reason": "unpaid"}

    async with newer.worker():
        assert await newer.result(staged.id, timeout=PATIENCE) == "2: unpaid"
        await until_so(lambda: len(seen) == 2, "the listener is called")
    assert seen == ["before, of shop", "task.succeeded True"]
    with pytest.raises(TaskNotFound):
        await newer.get(taken_back.id)


@pytest.mark.covers("REQ.10", "YZ.4")
async def test_near_tasks_are_found_among_many_far_ones_in_order_and_a_restart_has_nothing_to_fill_again(app: App) -> None:
    ran: list[int] = []

    @app.task(concurrency=1)
    async def work(number: int) -> None:
        ran.append(number)

    now, order = datetime.now(UTC), list(range(2_000))
    random.Random(7).shuffle(order)
    await app.submit_many([work.new(number=number).at(now + timedelta(hours=1, seconds=number)) for number in order])
    async with app.worker():
        assert ran == []
    soon = datetime.now(UTC) + timedelta(seconds=2)
    near = [work.new(number=-number).at(soon - timedelta(milliseconds=number)) for number in range(1, 6)]
    await app.submit_many(near)
    async with app.worker():
        await until_so(lambda: len(ran) == 5, "what is near has run")
    assert ran == [-5, -4, -3, -2, -1]
    assert [task.payload["number"] for task in await work.upcoming(limit=100)] == list(range(100))


@pytest.mark.covers("RSQ.8")
async def test_schedules_of_code_and_of_run_time_are_fired_by_whichever_worker_there_is(app: App) -> None:
    other = App(app.config.url)

    async def sweep(shop: int = 1) -> int:
        return shop

    app.schedule(every=1, name="declared")(sweep)
    other.schedule(every=1, name="declared")(sweep)

    async def fired_beyond(number: int) -> int:
        deadline = time.monotonic() + PATIENCE
        while (count := (await app.count(schedule="declared", state="succeeded")).count) <= number:
            assert time.monotonic() < deadline, f"waited {PATIENCE:g} s in vain for run {number + 1}"
            await asyncio.sleep(0.05)
        return count

    async with app.worker():
        before = await fired_beyond(0)
    async with other.worker():
        await other.schedules.pause("declared")
        await other.schedules.resume("declared")
        await fired_beyond(before + 1)
    planned = [task.planned_at async for task in app.tasks(schedule="declared")]
    assert len(planned) == len(set(planned)), "each occurrence once, whoever fires"


@pytest.mark.covers("AIR.6")
async def test_a_task_that_waits_takes_no_slot_and_goes_on_where_it_was(app: App) -> None:
    made: list[int] = []

    async def make_account(user: int) -> int:
        made.append(user)
        return 100 + user

    @app.task(concurrency=1)
    async def onboard(ctx: Context, user: int) -> str:
        account = await ctx.step("account", make_account, user)
        approved = await ctx.wait("approval", f"user-{user}-ok", bool)
        return f"{account} {approved}"

    async with app.worker():
        tasks = [await onboard.now(user=user) for user in (1, 2)]
        for task in tasks:
            await until(app, task, lambda each: each.state is State.BLOCKED, "it waits for its signal")
        assert sorted(made) == [1, 2], "the only slot was free again"
        await app.signals.send("user-2-ok", True)
        assert await app.result(tasks[1], timeout=PATIENCE) == "102 True"
        await app.signals.send("user-1-ok", False)
        assert await app.result(tasks[0], timeout=PATIENCE) == "101 False"
    assert sorted(made) == [1, 2], "what was saved did not run again"
    assert {(await app.get(task)).tries for task in tasks} == {0}


@pytest.mark.covers("KBL.4", "CJO.13")
async def test_many_nodes_hear_of_commits_and_what_is_old_is_cleaned_up(app: App) -> None:
    ran: list[str] = []

    async def work(node: str) -> None:
        ran.append(node)

    clock = ManualClock()
    nodes = [App(app.config.url) for _ in range(3)]
    handlers = [node.task(name="work")(work) for node in nodes]
    async with contextlib.AsyncExitStack() as stack:
        for node in nodes:
            await stack.enter_async_context(node.using_store(store_from_url(app.config.url, clock=clock)))
            await stack.enter_async_context(node.worker())
        tasks = [await handler.now(node=str(number)) for number, handler in enumerate(handlers)]
        await nodes[0].results(tasks, timeout=PATIENCE)
        assert sorted(ran) == ["0", "1", "2"], "whoever submitted it, one of them ran it"
        clock.advance(31 * 86_400)
        kept = await handlers[0].now(node="new")
        await nodes[0].result(kept, timeout=PATIENCE)
        pruner = Pruner(nodes[1].store, Alarms(), {state: timedelta(days=30) for state in FINAL})
        while await pruner.prune():
            pass
        assert [task.id async for task in nodes[2].tasks()] == [kept.id]
        with pytest.raises(TaskNotFound):
            await nodes[2].get(tasks[0])
