"""Limits of the whole fleet: what handlers themselves see of how many run at once, in several workers on one store."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from duetime import App, Context, InvalidHandler, InvalidValue, Limit, LimitNotFound, RetryPolicy, TaskFailed
from duetime.model.why import ReasonKind
from tests.conformance.build import wait_until
from tests.servers.waiting import PATIENCE

pytestmark = pytest.mark.slow
TASKS = 40


class Journal:
    """What runs now, and the most that ever did, as the handlers say."""

    def __init__(self) -> None:
        self.now = self.most = self.ended = 0
        self.workers: set[str] = set()

    async def run(self, takes: int, worker: str) -> None:
        self.now += takes
        self.most = max(self.most, self.now)
        self.workers.add(worker)
        await asyncio.sleep(0.002)
        self.now -= takes
        self.ended += 1


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/duetime.db"
    return str(request.getfixturevalue("postgres_url"))


def make(url: str, journal: Journal, limit: Limit, number: int) -> App:
    app = App(url)

    @app.task(limits=[limit])
    async def one() -> None:
        await journal.run(1, f"worker {number}")

    @app.task(limits=[limit.take(2)])
    async def two() -> None:
        await journal.run(2, f"worker {number}")

    return app


async def until(condition: Callable[[], bool]) -> None:
    await wait_until(condition, "all tasks have ended")


async def test_never_more_run_than_the_limit_allows_in_all_workers_together(url: str) -> None:
    journal, limit = Journal(), Limit("erp", running=3)
    apps = [make(url, journal, limit, number) for number in range(3)]
    async with AsyncExitStack() as stack:
        await apps[0].submit_many([apps[0].handler("one" if number % 3 else "two").new() for number in range(TASKS)])
        for app in apps:
            await stack.enter_async_context(app.worker())
        await until(lambda: journal.ended == TASKS)
    assert journal.most <= 3


async def test_attempts_in_threads_keep_the_limit_too(url: str) -> None:
    app, lock, counts = App(url), threading.Lock(), [0, 0, 0]

    @app.task(limits=[Limit("erp", running=2)])
    def in_a_thread() -> None:
        with lock:
            counts[0] += 1
            counts[1] = max(counts[1], counts[0])
        time.sleep(0.005)
        with lock:
            counts[0] -= 1
            counts[2] += 1

    async with app.worker():
        await app.submit_many([in_a_thread.new() for _ in range(TASKS)])
        await until(lambda: counts[2] == TASKS)
    assert counts[1] <= 2


async def test_a_worker_that_leaves_or_is_idle_lets_the_others_have_its_permits(url: str) -> None:
    journal, limit = Journal(), Limit("erp", running=2)
    first, second = (make(url, journal, limit, number) for number in range(2))
    async with first.worker():
        await first.handler("one").now()
        await until(lambda: journal.ended == 1)
        async with second.worker():
            await second.submit_many([second.handler("one").new() for _ in range(TASKS)])
            await until(lambda: journal.ended == TASKS + 1)
    async with second.worker():
        await second.handler("two").now()
        await until(lambda: journal.ended == TASKS + 2)
    assert journal.most <= 2


@pytest.mark.parametrize("together", [True, False])
async def test_an_attempt_that_takes_many_is_waited_for_while_small_ones_never_end(url: str, together: bool) -> None:
    """Small ones go on until the large ones have run: each submits the next. Who takes all of the limit would never find it free."""
    journal, limit, done, large_ended = Journal(), Limit("pool", running=4), asyncio.Event(), [0]
    first, second = App(url), App(url)
    for app, has_small, has_large in ((first, True, together), (second, True, False), (App(url), False, not together)):
        if has_small:

            @app.task(name="small", limits=[limit])
            async def small(ctx: Context) -> None:
                await journal.run(1, "")
                if not done.is_set():
                    await first.handler("small").options(allow_unknown=True).now()

        if has_large:

            @app.task(name="large", limits=[limit.take(4)])
            async def large() -> None:
                await journal.run(4, "")
                large_ended[0] += 1
                if large_ended[0] == 3:
                    done.set()

        if has_large and not has_small:
            third = app

    async with AsyncExitStack() as stack:
        await first.submit_many([first.handler("small").new() for _ in range(20)])
        await stack.enter_async_context(first.worker())
        await stack.enter_async_context(second.worker())
        await until(lambda: journal.ended > 20)
        if not together:
            await stack.enter_async_context(third.worker())
        owner = first if together else third
        await owner.submit_many([owner.handler("large").new() for _ in range(3)])
        await until(done.is_set)
    assert journal.most <= 4


async def test_why_names_the_limit_and_who_has_its_permits(url: str) -> None:
    app = App(url)
    begun, end = asyncio.Event(), asyncio.Event()

    @app.task(limits=[Limit("erp", running=1)])
    async def hold() -> None:
        begun.set()
        await end.wait()

    async with app.worker():
        await hold.now()
        await asyncio.wait_for(begun.wait(), PATIENCE)
        waiting = await hold.now()
        reasons = await app.why(waiting)
        end.set()
        await app.result(waiting, timeout=PATIENCE)
    assert [reason.kind for reason in reasons] == [ReasonKind.LIMIT]
    assert "the limit erp is reached: 1 of 1 are taken in the whole fleet (1 in worker " in reasons[0].text


async def test_a_lowered_limit_is_answered_when_nothing_starts_beyond_it(url: str) -> None:
    """The answer says how many still run above it. None of them is stopped, none starts before enough of them have ended."""
    app, lock, ends, begun = App(url), threading.Lock(), threading.Semaphore(0), [0]

    @app.task(limits=[Limit("erp", running=6)])
    def hold() -> None:
        with lock:
            begun[0] += 1
        ends.acquire()

    async with app.worker(), asyncio.timeout(PATIENCE):
        await app.submit_many([hold.new() for _ in range(20)])
        await until(lambda: begun[0] == 6)
        done = await app.limits.put("erp", running=2, note="maintenance")
        assert (done.in_force, done.above, done.limit.out, done.limit.set_by) == (True, 4, 6, app.user)
        ends.release(4)
        while (await app.limits.get("erp")).out > 2:  # noqa: ASYNC110  # what is looked at cannot call back
            await asyncio.sleep(0.01)
        assert begun == [6]
        ends.release(1)
        await until(lambda: begun[0] == 7)
        assert (await app.limits.put("erp", running=9)).above == 0
        await until(lambda: begun[0] == 14)  # all at once
        assert (await app.limits.reset("erp")).running == 6
        ends.release(20)
        await until(lambda: begun[0] == 20)
        with pytest.raises(LimitNotFound, match=r"there is no limit 'epr'; did you mean erp\?"):
            await app.limits.put("epr", running=1)


async def test_running_attempts_hold_a_part_of_a_limit_for_a_block(url: str) -> None:
    app, vendor = App(url), Limit("vendor", running=2)
    inside, most, lock = [0], [0], threading.Lock()

    @contextlib.contextmanager
    def counted() -> Iterator[None]:
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
        yield
        with lock:
            inside[0] -= 1

    @app.task
    async def in_the_loop(ctx: Context) -> None:
        async with ctx.limit(vendor):
            with counted():
                await asyncio.sleep(0.003)

    @app.task
    def in_a_thread(ctx: Context) -> None:
        with ctx.limit(vendor), counted():
            time.sleep(0.003)

    @app.task(limits=[vendor])
    async def under_it() -> None:
        with counted():
            await asyncio.sleep(0.003)

    @app.task
    async def impatient(ctx: Context) -> str:
        async with ctx.limit(vendor.take(2)):
            try:
                async with ctx.limit("vendor", timeout=0):
                    return "in"
            except TimeoutError as error:
                return str(error)

    @app.task
    def unknown(ctx: Context) -> None:
        with ctx.limit("nobody"):
            pass

    async with app.worker():
        tasks = await app.submit_many([each.new() for each in (in_the_loop, in_a_thread, under_it) for _ in range(8)])
        for task in tasks:
            await app.result(task, timeout=PATIENCE)
        assert await app.result(await impatient.now(), timeout=PATIENCE) == "the limit vendor had no room within 0 s"
        with pytest.raises(TaskFailed, match="no handler of this worker has the limit 'nobody'"):
            await app.result(await unknown.options(retry=RetryPolicy.none()).now(), timeout=PATIENCE)
        assert await app.result(await impatient.now(), timeout=PATIENCE), "what was held is given back"
    assert most == [2]


def nothing() -> None:
    pass


def test_what_is_wrong_with_a_limit_is_said_where_it_is_declared() -> None:
    for running in (0, -1, True, 2.5, 1_000_001):
        with pytest.raises(InvalidValue, match=r"must be a whole number from 1 to 1,000,000; to stop work, use a gate; got"):
            Limit("erp", running=running)  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="a limit's name has up to 100 letters"):
        Limit("no spaces", running=1)
    with pytest.raises(InvalidValue, match=r"takes of the limit gpu must be a whole number from 1 to 2, or it could never run; got 3"):
        Limit("gpu", running=2).take(3)
    app = App("sqlite:///:memory:")
    gpu = Limit("gpu", running=2)
    with pytest.raises(InvalidValue, match="a limit is given twice: gpu"):
        app.task(nothing, name="twice", limits=[gpu, gpu])
    with pytest.raises(InvalidValue, match="limits must be a list such as"):
        app.task(nothing, name="wrong", limits=["gpu"])  # type: ignore[arg-type, list-item]
    app.task(nothing, name="first", limits=[gpu])
    with pytest.raises(InvalidHandler, match="the limit gpu allows 3 at once in second and 2 at once in first"):
        app.task(nothing, name="second", limits=[Limit("gpu", running=3)])
