"""More of the guide: how attempts end, come back, are bounded, interrupted and surrounded."""

import asyncio
import importlib
import itertools
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from duetime import App, Context, Fatal, Next, RetryPolicy, State, TaskCancelled, TaskFailed
from duetime.model.outcome import Outcome
from duetime.testing import using
from tests.guide.waiting import until
from tests.servers.waiting import PATIENCE


@pytest.mark.covers("KBL.7", "YZ.6")
async def test_a_ladder_of_delays_is_climbed_step_by_step_and_then_it_is_over(app: App) -> None:
    minute, hour = 60, 3600
    ladder = RetryPolicy.ladder(0, 0, 2 * minute, 10 * minute, 10 * minute, hour, 2 * hour, 6 * hour, 15 * hour)

    @app.task(retry=ladder)
    async def notify(order_id: int) -> None:
        raise ConnectionError("the shop does not answer")

    async with using(app) as t:
        task = await notify.now(order_id=7)
        ran = await t.advance(days=3)
        waits = [(after.at - before.at) // timedelta(seconds=1) for before, after in itertools.pairwise(ran)]
        assert waits == [0, 0, 120, 600, 600, 3600, 7200, 21600, 54000]
        assert (t.task(task).state, t.task(task).tries) == (State.FAILED, 10)


async def test_retrying_ends_so_long_after_the_due_time(app: App) -> None:
    @app.task(retry=RetryPolicy(tries=100, base=600, factor=1, cap=600, within=timedelta(hours=1)))
    async def notify() -> None:
        raise ConnectionError("the shop does not answer")

    async with using(app) as t:
        task = await notify.now()
        assert len(await t.advance(days=1)) == 7
        assert t.task(task).state is State.FAILED


async def test_a_task_may_bring_its_own_policy(app: App) -> None:
    @app.task(retry=RetryPolicy(tries=5, base=0.01, never=(KeyError,)))
    async def notify(fault: str) -> None:
        raise KeyError(fault) if fault == "bug" else ConnectionError(fault)

    async with app.worker():
        twice = notify.options(retry=RetryPolicy.fixed(0.01, tries=2))
        network, bug = await twice.now(fault="network"), await twice.now(fault="bug")
        for task in (network, bug):
            with pytest.raises(TaskFailed):
                await app.result(task, timeout=PATIENCE)
        assert [(await app.get(task)).tries for task in (network, bug)] == [2, 1]  # which errors count stays in the code


@pytest.mark.covers("RMQ.2")
async def test_a_dead_letter_tells_why_how_often_and_when(app: App) -> None:
    @app.task(retry=RetryPolicy.fixed(0.02, tries=3))
    async def deliver(ctx: Context, parcel: int) -> None:
        raise ConnectionError(f"no answer to call {ctx.attempt}") if ctx.attempt < 3 else ValueError("unknown address")

    async with app.worker():
        task = await deliver.now(parcel=7)
        with pytest.raises(TaskFailed):
            await app.result(task, timeout=PATIENCE)
    [dead] = [each async for each in app.tasks(state="failed", error="unknown address")]
    assert (dead.id, dead.tries, dead.payload) == (task.id, 3, {"parcel": 7})
    assert dead.error is not None
    assert (dead.error.type, "raise ConnectionError" in dead.error.traceback) == ("ValueError", True)
    history = await app.attempts(task)
    assert [(each.attempt, each.error and each.error.message) for each in history] == [
        (1, "no answer to call 1"),
        (2, "no answer to call 2"),
        (3, "unknown address"),
    ]
    times = [instant for each in history for instant in (each.started_at, each.finished_at)]
    assert None not in times
    assert times == sorted(times, key=str)
    assert all(each.worker for each in history)


@pytest.mark.covers("HF.10")
async def test_a_thread_looks_whether_it_shall_stop_and_counters_tell_what_happened(app: App) -> None:
    @app.task
    def crunch(ctx: Context, rounds: int) -> int:
        for done in range(rounds):
            ctx.check()  # or look at ctx.cancelled
            ctx.progress(done / rounds)
            time.sleep(0.002)
        return rounds

    async with app.worker():
        short = [await crunch.now(rounds=number) for number in (1, 2, 3)]
        assert [await app.result(task, timeout=PATIENCE) for task in short] == [1, 2, 3]
        endless = await crunch.now(rounds=1_000_000)
        await until(app, endless, lambda task: task.progress is not None, "its first progress")
        assert await app.cancel(endless) == "cancelling"
        with pytest.raises(TaskCancelled):
            await app.result(endless, timeout=PATIENCE)
        stats = await app.stats()
        assert (stats.states[State.SUCCEEDED], stats.states[State.CANCELLED], stats.states[State.RUNNING]) == (3, 1, 0)
        [counts] = stats.handlers
        assert (counts.handler, counts.due, counts.running) == ("crunch", 0, 0)


@pytest.mark.covers("RED.3")
async def test_a_life_cycle_can_be_listened_to(app: App) -> None:
    heard: list[str] = []

    @app.middleware
    async def listen(ctx: Context, call_next: Next) -> object:
        heard.append(f"{ctx.task.payload['name']} started")
        try:
            result = await call_next()
        except BaseException as error:
            heard.append(f"{ctx.task.payload['name']} ended with {type(error).__name__}")
            raise
        heard.append(f"{ctx.task.payload['name']} succeeded")
        return result

    @app.task(retry=RetryPolicy.none())
    async def work(ctx: Context, name: str) -> str:
        ctx.progress(0)
        if name == "wrong":
            raise ValueError(name)
        if name in ("cancelled", "slow"):
            await asyncio.sleep(60)
        return name

    async with app.worker():
        future = await work.now(name="good")
        assert await app.result(future, timeout=PATIENCE) == "good"
        for task in (await work.now(name="wrong"), await work.options(timeout=0.2).now(name="slow")):
            with pytest.raises(TaskFailed):
                await app.result(task, timeout=PATIENCE)
        cancelled = await work.now(name="cancelled")
        await until(app, cancelled, lambda task: task.progress is not None, "its start")
        await app.cancel(cancelled.id)
        with pytest.raises(TaskCancelled):
            await app.result(cancelled, timeout=PATIENCE)
    assert heard == [
        *("good started", "good succeeded", "wrong started", "wrong ended with ValueError"),
        *("slow started", "slow ended with CancelledError", "cancelled started", "cancelled ended with CancelledError"),
    ]


async def test_middleware_may_decide_how_an_attempt_ends(app: App) -> None:
    @app.middleware
    async def judge(ctx: Context, call_next: Next) -> object:
        try:
            return await call_next()
        except FileExistsError:
            return "was there already"
        except PermissionError as error:
            raise Fatal("nobody may do this") from error

    @app.task(retry=RetryPolicy(tries=3, base=0.01))
    async def copy(problem: str) -> str:
        raise {"exists": FileExistsError, "forbidden": PermissionError, "busy": BlockingIOError}[problem](problem)

    async with app.worker():
        exists, forbidden, busy = [await copy.now(problem=problem) for problem in ("exists", "forbidden", "busy")]
        assert await app.result(exists, timeout=PATIENCE) == "was there already"
        for task in (forbidden, busy):
            with pytest.raises(TaskFailed):
                await app.result(task, timeout=PATIENCE)
        states = [(info.state, info.tries) for info in [await app.get(task) for task in (exists, forbidden, busy)]]
        assert states == [(State.SUCCEEDED, 0), (State.FAILED, 0), (State.FAILED, 3)]


async def test_every_attempt_carries_the_same_key_and_a_growing_fence(app: App) -> None:
    seen: list[tuple[str, int]] = []

    @app.task(retry=RetryPolicy(tries=3, base=0.01))
    async def charge(ctx: Context) -> None:
        seen.append((ctx.idempotency_key, ctx.fence))
        raise ValueError

    async with app.worker():
        task = await charge.now()
        with pytest.raises(TaskFailed):
            await app.result(task, timeout=PATIENCE)
        await app.retry(task)
        await until(app, task, lambda task: task.final, "its second life to end")
    assert seen == [(task.id, number) for number in range(1, 7)]


async def test_the_lifespan_gives_several_things_and_lasts_as_long_as_the_worker(tmp_path: Path) -> None:
    said: list[str] = []

    class Mailer:
        def send(self, text: str) -> None:
            said.append(text)

    class Journal(list[str]): ...

    @asynccontextmanager
    async def resources() -> AsyncIterator[tuple[Mailer, Journal]]:
        said.append("opened")
        yield Mailer(), Journal()
        said.append("closed")

    app = App(f"sqlite:///{tmp_path}/duetime.db", lifespan=resources)

    @app.task
    async def send(ctx: Context, text: str) -> int:
        ctx.get(Mailer).send(text)
        ctx.get(Journal).append(text)
        return len(ctx.get(Journal))

    async with app.worker():
        assert await app.result(await send.now(text="one"), timeout=PATIENCE) == 1
        assert await app.result(await send.now(text="two"), timeout=PATIENCE) == 2
    assert said == ["opened", "one", "two", "closed"]


async def test_what_an_attempt_prints_and_logs_is_kept_apart_from_others(app: App) -> None:
    @app.task(retry=RetryPolicy(tries=2, base=0.01))
    async def speak(ctx: Context, silent: bool = False) -> None:
        if not silent:
            print(f"printed in attempt {ctx.attempt}")
            ctx.log.info("logged in attempt %d", ctx.attempt)
            if ctx.attempt == 1:
                raise ValueError

    async with app.worker():
        task, silent = await speak.now(), await speak.now(silent=True)
        await app.result(task, timeout=PATIENCE)
        await app.result(silent, timeout=PATIENCE)
    assert await app.output.read(silent) == []
    kept = await app.output.read(task)
    assert [each.attempt for each in kept] == [1, 2]
    for attempt, each in enumerate(kept, 1):
        printed, logged = each.text.splitlines()
        assert (printed, logged.endswith(f"logged in attempt {attempt}")) == (f"printed in attempt {attempt}", True)


PHOTOS = """
import asyncio, os, threading, time
from pathlib import Path
from duetime import App, Context, RetryPolicy

app = App({url!r})

@app.task(isolation="process", retry=RetryPolicy(tries=5, base=0.01))
def develop(ctx: Context, name: str) -> list[object]:
    if name == "poison":
        os._exit(3)
    return [os.getpid(), ctx.attempt]

@app.task(isolation="process", retry=RetryPolicy.none(), kill_after=0.1)
def deaf(marks: str) -> None:
    while True:
        try:
            time.sleep(60)
        except BaseException:
            Path(marks, "deaf was asked").touch()

@app.task(isolation="process", retry=RetryPolicy.none(), kill_after=60)
def tidy(marks: str) -> None:
    try:
        time.sleep(60)
    finally:
        Path(marks, "tidy has cleaned up").touch()

@app.task
async def on_the_loop() -> list[int]:
    return [os.getpid(), threading.get_ident()]

@app.task(concurrency=8)
def in_a_thread() -> list[int]:
    return [os.getpid(), threading.get_ident()]

@app.task(isolation="process", concurrency=1, recycle_after=2)
def twice() -> int:
    return os.getpid()

@app.task(isolation="process", concurrency=1, max_memory="300MB")
def hungry(megabytes: int) -> int:
    leaks.append(b"x" * megabytes * 1_000_000)
    return os.getpid()

leaks = []

@app.task(retry=RetryPolicy.none())
async def polite(marks: str) -> None:
    try:
        await asyncio.sleep(60)
    finally:
        Path(marks, "polite has cleaned up").touch()
"""


@pytest.fixture
def photos(store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    (tmp_path / "photos.py").write_text(PHOTOS.format(url=store_url))
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("photos").app
    del sys.modules["photos"]


@pytest.mark.slow
@pytest.mark.each_store
@pytest.mark.covers("RSQ.2", "RMQ.4")
async def test_a_process_of_its_own_contains_crashes_and_a_poisonous_task_is_quarantined(photos: App) -> None:
    async with photos.worker():
        poison = await photos.handler("develop").now(name="poison")
        with pytest.raises(TaskFailed, match="Quarantined"):
            await photos.result(poison, timeout=PATIENCE)
        child, attempt = await photos.result(await photos.handler("develop").now(name="cat"), timeout=PATIENCE)
        assert (child != os.getpid(), attempt) == (True, 1)
    dead = await photos.get(poison)
    assert (dead.state, dead.payload, dead.crashes, dead.tries) == (State.FAILED, {"name": "poison"}, 3, 0)
    history = await photos.attempts(poison)
    assert [each.outcome for each in history] == [Outcome.LOST] * 3
    assert "exit code 3" in (history[0].error.message if history[0].error else "")


@pytest.mark.slow
@pytest.mark.covers("CEL.10")
async def test_handlers_run_on_the_loop_in_threads_or_in_processes_that_are_replaced_before_they_leak(photos: App) -> None:
    async def results(handler: str, *arguments: dict[str, int]) -> list[Any]:
        tasks = [await photos.handler(handler).now(**each) for each in arguments]
        return [await photos.result(task, timeout=PATIENCE) for task in tasks]

    async with photos.worker():
        here = [os.getpid(), threading.get_ident()]
        assert await results("on_the_loop", {}) == [here]
        [[process, thread]] = await results("in_a_thread", {})
        assert (process == here[0], thread == here[1]) == (True, False)
        first, again, second = await results("twice", {}, {}, {})
        assert (first == again, first == second, here[0] in (first, second)) == (True, False, False)
        lean, full, fresh = await results("hungry", {"megabytes": 1}, {"megabytes": 400}, {"megabytes": 1})
        assert (lean == full, full == fresh) == (True, False)


@pytest.mark.slow
@pytest.mark.each_store
@pytest.mark.covers("CEL.5")
async def test_a_time_limit_is_soft_first_then_hard_and_set_per_task(photos: App, tmp_path: Path) -> None:
    async with photos.worker():
        for name, limit in (("polite", 0.1), ("tidy", 0.5), ("deaf", 0.5)):
            task = await photos.handler(name).options(timeout=limit).now(marks=str(tmp_path))
            with pytest.raises(TaskFailed, match=f"timeout of {limit:g} s"):
                await photos.result(task, timeout=PATIENCE)
            [attempt] = await photos.attempts(task)
            assert attempt.outcome is Outcome.TIMED_OUT
    for mark in ("polite has cleaned up", "tidy has cleaned up", "deaf was asked"):
        assert (tmp_path / mark).exists(), mark
