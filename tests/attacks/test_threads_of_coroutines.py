"""Promise 3: an attempt has not ended as long as a thread works for it that its coroutine has started through an executor."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import uvloop

from duetime import App, Context, RetryPolicy, State, Task
from duetime.errors import AttemptCancelled
from duetime.targets.python import threads
from duetime.worker import executor
from tests.chaos.fleet import until
from tests.servers.waiting import PATIENCE

AGAIN = RetryPolicy(tries=5, base=0.0)


@pytest.fixture
def app(tmp_path: Path) -> App:
    return App(f"sqlite:///{tmp_path / 'duetime.db'}", user="test")


class Work:
    """Blocks in a thread until it is let go, whatever is thrown at it, and counts how many do so at once."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.begun = threading.Event()
        self.told = threading.Event()
        self.starts: list[int] = []
        self._lock = threading.Lock()
        self._running = self.most = 0

    def __call__(self, ctx: Context) -> str:
        with self._lock:
            self._running += 1
            self.most = max(self.most, self._running)
            self.starts.append(ctx.attempt)
        self.begun.set()
        give_up = time.monotonic() + PATIENCE  # a test that failed waits for its threads
        for _ in range(2):  # it is interrupted once, at any instruction
            with contextlib.suppress(AttemptCancelled):
                while not self.go.wait(0.01) and time.monotonic() < give_up:
                    if ctx.cancelled:
                        self.told.set()
        with self._lock:
            self._running -= 1
        return f"attempt {ctx.attempt}"


@pytest.fixture
def work() -> Iterator[Work]:
    work = Work()
    yield work
    work.go.set()  # a test that failed must not leave a thread behind


async def to_thread(work: Work, ctx: Context) -> str:
    return await asyncio.to_thread(work, ctx)


async def in_default_executor(work: Work, ctx: Context) -> str:
    return await asyncio.get_running_loop().run_in_executor(None, work, ctx)


async def in_own_executor(work: Work, ctx: Context) -> str:
    pool = ThreadPoolExecutor(1)
    try:
        return await asyncio.get_running_loop().run_in_executor(pool, work, ctx)
    finally:
        pool.shutdown(wait=False)


Way = Callable[[Work, Context], Awaitable[str]]
every_way = pytest.mark.parametrize("way", [to_thread, in_default_executor, in_own_executor])


async def has_begun_again(app: App, task: Task[str]) -> bool:
    info = await app.get(task)
    return info.finished_at is not None or info.attempt > 1


@every_way
async def test_promise_3_a_timeout_waits_for_the_thread_before_the_next_attempt_begins(
    app: App, work: Work, way: Way, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(executor, "STUCK_AFTER", 0.1)

    @app.task(timeout=0.1, retry=AGAIN)
    async def slow(ctx: Context) -> str:
        return await way(work, ctx)

    async with app.worker(), app.worker():
        task = await slow.now()

        async def reported() -> bool:
            return "its code does not end" in caplog.text or await has_begun_again(app, task)

        await until("it was reported", reported)
        held = await app.get(task)
        assert (held.state, held.attempt) == (State.RUNNING, 1)
        work.go.set()
        assert await app.result(task, timeout=PATIENCE) == "attempt 2"
    assert (work.most, work.starts) == (1, [1, 2])


@every_way
async def test_promise_3_a_graceful_stop_waits_for_the_thread_before_another_worker_may_begin(app: App, work: Work, way: Way) -> None:

    @app.task(retry=AGAIN, concurrency=1)
    async def slow(ctx: Context) -> str:
        return await way(work, ctx)

    @app.task
    async def bystander() -> None: ...

    first = app.worker(grace=0.0)
    await first.__aenter__()
    task = await slow.now()
    await until("its thread works", lambda: work.starts)
    async with app.worker():
        stopping = asyncio.create_task(first.__aexit__(None, None, None))
        await until("it was told to stop", work.told.is_set)
        await app.result(await bystander.now(), timeout=PATIENCE)  # the other worker claims
        held = await app.get(task)
        assert (held.state, held.attempt) == (State.RUNNING, 1)
        work.go.set()
        assert await app.result(task, timeout=PATIENCE) == "attempt 2"
        await stopping
    assert (work.most, work.starts) == (1, [1, 2])
    assert (await app.get(task)).tries == 0


@every_way
async def test_promise_3_a_cancelled_task_is_running_until_its_thread_has_ended(app: App, work: Work, way: Way) -> None:

    @app.task(retry=AGAIN)
    async def slow(ctx: Context) -> str:
        return await way(work, ctx)

    @app.task
    async def bystander() -> None: ...

    async with app.worker():
        task = await slow.now()
        await until("its thread works", lambda: work.starts)
        assert await app.cancel(task) == "cancelling"
        await until("it was told to stop", work.told.is_set)
        await app.result(await bystander.now(), timeout=PATIENCE)
        assert (await app.get(task)).state is State.RUNNING
        work.go.set()
        await until("it is cancelled", partial(is_in, app, task, State.CANCELLED))
    assert work.starts == [1]


async def is_in(app: App, task: Task[str], state: State) -> bool:
    return (await app.get(task)).state is state


async def test_promise_3_an_attempt_that_fails_while_its_thread_works_is_not_tried_again_beside_it(app: App, work: Work) -> None:

    @app.task(retry=AGAIN)
    async def careless(ctx: Context) -> None:
        asyncio.get_running_loop().run_in_executor(None, work, ctx)
        if ctx.attempt == 1:
            work.begun.wait(PATIENCE)  # blocks the loop: an attempt that has never waited
            raise ValueError("without waiting for its thread")

    async with app.worker():
        task = await careless.now()
        await until("its thread works", lambda: work.starts)
        held = await app.get(task)
        assert (held.state, held.attempt) == (State.RUNNING, 1)
        work.go.set()
        await app.result(task, timeout=PATIENCE)
    assert (work.most, work.starts) == (1, [1, 2])


async def test_promise_3_a_success_counts_when_its_threads_have_finished(app: App, work: Work) -> None:

    @app.task
    async def hasty(ctx: Context) -> None:
        asyncio.get_running_loop().run_in_executor(None, work, ctx)

    async with app.worker():
        task = await hasty.now()
        await until("its thread works", lambda: work.starts)
        assert (await app.get(task)).state is State.RUNNING
        work.go.set()
        await app.result(task, timeout=PATIENCE)


async def test_a_thread_of_python_code_is_interrupted_as_a_handler_in_a_thread_is(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "THROW_AFTER", 0.05)
    ends: list[str] = []
    never = threading.Event()

    def endless() -> None:
        try:
            while not never.wait(0.001):
                pass
        except BaseException as error:
            ends.append(type(error).__name__)
            raise

    @app.task(timeout=0.1, retry=AGAIN)
    async def slow(ctx: Context) -> int:
        if ctx.attempt == 1:
            await asyncio.to_thread(endless)
        return await asyncio.to_thread(lambda: ctx.attempt)

    async with app.worker():
        assert await app.result(await slow.now(), timeout=PATIENCE) == 2
    assert ends == ["AttemptCancelled"]


async def test_a_call_that_waits_for_a_thread_never_begins_once_its_attempt_was_stopped(app: App) -> None:
    """The pool's only thread is busy with something else; what waits behind it must not run beside the next attempt."""
    busy, begun = threading.Event(), list[int]()
    pool = ThreadPoolExecutor(1)
    blocking = pool.submit(busy.wait, PATIENCE)

    @app.task(timeout=0.1, retry=AGAIN)
    async def slow(ctx: Context) -> int:
        if ctx.attempt == 1:
            await asyncio.shield(asyncio.get_running_loop().run_in_executor(pool, begun.append, ctx.attempt))
        return ctx.attempt

    async with app.worker():
        assert await app.result(await slow.now(), timeout=PATIENCE) == 2
        busy.set()
        await asyncio.wrap_future(blocking)
        await asyncio.wrap_future(pool.submit(int))
    pool.shutdown()
    assert begun == []


def double(number: int) -> int:
    return 2 * number


@pytest.mark.slow
async def test_other_executors_work_as_ever_and_their_pools_outlive_an_attempt_that_fails(app: App) -> None:
    with ProcessPoolExecutor(1) as pool:

        @app.task(retry=AGAIN)
        async def compute(ctx: Context, number: int) -> int:
            doubled = await asyncio.get_running_loop().run_in_executor(pool, double, number)
            if ctx.attempt == 1:
                raise ValueError("the pool's process was started by this attempt")
            return doubled

        async with app.worker():
            assert await app.result(await compute.now(number=21), timeout=PATIENCE) == 42


async def test_the_loop_is_as_before_when_its_last_worker_has_stopped(app: App) -> None:
    loop = asyncio.get_running_loop()
    before = set(vars(loop))
    async with app.worker():
        async with app.worker():
            assert "run_in_executor" in vars(loop)
        assert "run_in_executor" in vars(loop)
    assert set(vars(loop)) == before


def test_promise_3_a_timeout_waits_for_the_thread_on_uvloop_too(app: App, work: Work) -> None:

    @app.task(timeout=0.1, retry=AGAIN)
    async def slow(ctx: Context) -> str:
        return await asyncio.to_thread(work, ctx)

    async def main() -> None:
        async with app.worker():
            task = await slow.now()
            await until("it was told to stop", work.told.is_set)
            assert not await has_begun_again(app, task)
            work.go.set()
            assert await app.result(task, timeout=PATIENCE) == "attempt 2"

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
    assert work.most == 1
