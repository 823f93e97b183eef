"""Chapter 2: what a handler is given, what it may raise, and what runs around it."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

import duetime
from duetime import App, Context, Fatal, Handlers, Next, RetryLater, RetryPolicy, State, TaskCancelled, TaskFailed
from duetime.model.outcome import Outcome
from tests.guide.waiting import until
from tests.servers.waiting import PATIENCE


class Pool:
    def __init__(self) -> None:
        self.open = True


async def test_the_context_tells_about_the_attempt(app: App) -> None:
    @app.task(timeout=60)
    async def look(ctx: Context, number: int) -> list[object]:
        assert duetime.current() is ctx
        assert ctx.deadline - datetime.now(UTC) <= timedelta(seconds=60)
        return [ctx.task.id, ctx.task.handler, ctx.task.payload, ctx.attempt, ctx.fence, ctx.idempotency_key, ctx.cancelled]

    async with app.worker():
        task = await look.now(number=7)
        assert await app.result(task, timeout=PATIENCE) == [task.id, "look", {"number": 7}, 1, 1, task.id, False]


async def test_the_lifespan_provides_what_handlers_need(tmp_path: Path) -> None:
    pools = []

    @asynccontextmanager
    async def resources() -> AsyncIterator[Pool]:
        pools.append(Pool())
        yield pools[0]
        pools[0].open = False

    app = App(f"sqlite:///{tmp_path}/duetime.db", lifespan=resources)

    @app.task
    async def query(ctx: Context) -> bool:
        return ctx.get(Pool).open

    async with app.worker():
        assert await app.result(await query.now(), timeout=PATIENCE)
    assert [pool.open for pool in pools] == [False]


async def test_a_plain_function_runs_in_a_thread_and_may_submit_too(app: App) -> None:
    @app.task
    def shout(text: str) -> str:
        return f"{text.upper()} {threading.current_thread() is threading.main_thread()}"

    @app.task
    def parent(text: str) -> str:
        return app.sync(shout.now(text=text)).id

    async with app.worker():
        child = await app.result(await parent.now(text="hi"), timeout=PATIENCE)
        assert await app.result(child, timeout=PATIENCE) == "HI False"


class Line(msgspec.Struct):
    sku: str
    pieces: int = 1


async def test_arguments_and_results_keep_their_types(app: App) -> None:
    @app.task
    async def next_delivery(day: date, lines: list[Line], every: timedelta = timedelta(days=7)) -> date:
        assert lines == [Line("a"), Line("b", 2)]
        return day + every

    async with app.worker():
        task = await next_delivery.now(date(2030, 1, 1), lines=[Line("a"), Line("b", 2)])
        assert await app.result(task, timeout=PATIENCE) == date(2030, 1, 8)


@pytest.mark.covers("ATF.6", "DBS.5")
async def test_an_exception_is_retried_with_back_off_until_the_tries_are_used_up(app: App) -> None:
    calls: list[int] = []

    @app.task(retry=RetryPolicy(tries=3, base=0.02, jitter=0))
    async def flaky(ctx: Context, succeed_at: int) -> int:
        calls.append(ctx.attempt)
        if ctx.attempt < succeed_at:
            raise ValueError("not yet")
        return ctx.attempt

    async with app.worker():
        assert await app.result(await flaky.now(succeed_at=3), timeout=PATIENCE) == 3
        hopeless = await flaky.now(succeed_at=9)
        with pytest.raises(TaskFailed, match="ValueError: not yet"):
            await app.result(hopeless, timeout=PATIENCE)
        assert [attempt.outcome for attempt in await app.attempts(hopeless)] == [Outcome.FAILED] * 3
        assert calls == [1, 2, 3, 1, 2, 3]


@pytest.mark.covers("CEL.3")
async def test_only_some_exceptions_are_worth_another_try(app: App) -> None:
    @app.task(retry=RetryPolicy(tries=3, base=0.01, only=(ConnectionError,)))
    async def call(kind: str) -> None:
        raise ConnectionError("down") if kind == "network" else ValueError("wrong")

    async with app.worker():
        network, wrong = await call.now(kind="network"), await call.now(kind="other")
        for task in (network, wrong):
            with pytest.raises(TaskFailed):
                await app.result(task, timeout=PATIENCE)
        assert ((await app.get(network)).tries, (await app.get(wrong)).tries) == (3, 1)


@pytest.mark.covers("RMQ.7")
async def test_returning_acknowledges_fatal_rejects_and_retry_later_requeues(app: App) -> None:
    calls: list[str] = []

    @app.task(retry=RetryPolicy(tries=2, base=0.01))
    async def consume(ctx: Context, word: str) -> str:
        calls.append(word)
        if word == "reject":
            raise Fatal("cannot be used")
        if word == "requeue" and ctx.attempt <= 4:  # more often than there are tries
            raise RetryLater(0.01, "not now")
        return word

    async with app.worker():
        assert await app.result(await consume.now(word="acknowledge"), timeout=PATIENCE) == "acknowledge"
        rejected, requeued = await consume.now(word="reject"), await consume.now(word="requeue")
        with pytest.raises(TaskFailed, match="cannot be used"):
            await app.result(rejected, timeout=PATIENCE)
        assert await app.result(requeued, timeout=PATIENCE) == "requeue"
        outcomes = [attempt.outcome for attempt in await app.attempts(requeued)]
        assert outcomes == [Outcome.RETRY_LATER] * 4 + [Outcome.SUCCEEDED]
        assert (await app.get(requeued)).tries == 0
    assert (calls.count("acknowledge"), calls.count("reject"), calls.count("requeue")) == (1, 1, 5)


async def test_a_result_that_is_not_json_is_fatal_because_the_work_was_done(app: App) -> None:
    @app.task
    async def odd() -> object:
        return object()

    async with app.worker():
        task = await odd.now()
        with pytest.raises(TaskFailed, match="result cannot be stored"):
            await app.result(task, timeout=PATIENCE)
        assert len(await app.attempts(task)) == 1


@pytest.mark.covers("XXL.7", "YZ.3")
async def test_an_attempt_that_does_not_finish_in_its_time_comes_back_while_there_are_tries(app: App) -> None:
    states = set()

    @app.task(timeout=0.5, retry=RetryPolicy(tries=2, base=0.01))
    async def hang(ctx: Context, attempts: int) -> int:
        states.add((await app.get(ctx.task.id)).state)
        if ctx.attempt <= attempts:
            await asyncio.sleep(60)
        return ctx.attempt

    once, always = await hang.after(0.1, attempts=1), await hang.now(attempts=2)
    assert once.state is State.PENDING
    async with app.worker():
        assert await app.result(once, timeout=PATIENCE) == 2
        assert (await app.get(once)).state is State.SUCCEEDED
        assert [attempt.outcome for attempt in await app.attempts(once)] == [Outcome.TIMED_OUT, Outcome.SUCCEEDED]
        with pytest.raises(TaskFailed, match="TimedOut"):
            await app.result(always, timeout=PATIENCE)
        assert [attempt.outcome for attempt in await app.attempts(always)] == [Outcome.TIMED_OUT] * 2
    assert states == {State.RUNNING}


@pytest.mark.covers("QZ.8")
async def test_work_is_triggered_now_with_data_and_interrupted_by_hand_or_by_its_timeout(app: App) -> None:
    ended = []

    @app.task(retry=RetryPolicy.none())
    async def export(ctx: Context, name: str) -> None:
        ctx.progress(0)
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(name)

    async with app.worker():
        by_hand = await export.now(name="by hand")
        await until(app, by_hand, lambda task: task.progress is not None, "its start")
        by_itself = await export.options(timeout=0.05).now(name="by itself")
        with pytest.raises(TaskFailed, match="TimedOut"):
            await app.result(by_itself, timeout=PATIENCE)
        assert await app.cancel(by_hand) == "cancelling"
        with pytest.raises(TaskCancelled):
            await app.result(by_hand, timeout=PATIENCE)
        assert await app.cancel(by_hand) == "finished"
    assert ended == ["by itself", "by hand"]


async def test_middleware_stands_around_each_attempt_and_hooks_before_each_task(app: App) -> None:
    seen = []

    @app.on_submit
    def trace(task: duetime.NewTask[object]) -> dict[str, str]:
        return {"trace": f"t-{task.handler}"}

    @app.middleware
    async def outer(ctx: Context, call_next: Next) -> object:
        seen.append(f"before {ctx.task.meta['trace']}")
        try:
            return await call_next()
        finally:
            seen.append("after")

    @app.middleware
    async def inner(ctx: Context, call_next: Next) -> object:
        seen.append("inner")
        return await call_next()

    @app.task
    def work(fail: bool) -> str:
        seen.append("work")
        if fail:
            raise Fatal("no")
        return "done"

    async with app.worker():
        assert await app.result(await work.now(fail=False), timeout=PATIENCE) == "done"
        with pytest.raises(TaskFailed):
            await app.result(await work.now(fail=True), timeout=PATIENCE)
    assert seen == ["before t-work", "inner", "work", "after"] * 2


async def test_other_modules_declare_groups_and_objects_bring_their_methods(app: App) -> None:
    shop = Handlers(prefix="shop.")

    @shop.task
    async def price(sku: str) -> int:
        return len(sku)

    class Billing:
        def __init__(self, rate: int) -> None:
            self.rate = rate

        async def charge(self, ctx: Context, cents: int) -> int:
            return cents * self.rate

    app.include(shop)
    charge = app.task(Billing(2).charge)
    async with app.worker():
        assert await app.result(await price.now(sku="abc"), timeout=PATIENCE) == 3
        assert await app.result(await charge.now(cents=5), timeout=PATIENCE) == 10


async def test_a_renamed_handler_still_runs_what_was_stored_under_its_old_name(app: App) -> None:
    before = App(app.config.url)

    @before.task
    async def old_name(number: int) -> int:
        return number

    async with before:
        task = await old_name.now(number=7)

    @app.task(aliases=["old_name"])
    async def new_name(number: int) -> int:
        return number + 1

    async with app.worker():
        assert await app.result(task, timeout=PATIENCE) == 8


async def test_a_worker_can_be_given_some_handlers_only(app: App) -> None:
    @app.task
    async def mine() -> str:
        return "mine"

    @app.task
    async def theirs() -> str:
        return "theirs"

    async with app.worker(handlers=[mine]):
        waiting = await theirs.now()
        assert await app.result(await mine.now(), timeout=PATIENCE) == "mine"
        assert "no live worker runs theirs; there is 1 worker of other handlers" in (await app.why(waiting))[0].text
