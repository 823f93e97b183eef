"""What limits, pace and shares do for people, on each store, and what users of other systems look for. The page is docs/limits.md."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack

import pytest

from duetime import App, Context, Limit, Quota, QuotaExceeded, Rate, State
from tests.servers.waiting import PATIENCE

pytestmark = pytest.mark.slow


@pytest.mark.covers("RED.5")
async def test_a_queue_has_a_window_for_repeats_a_bound_on_what_comes_in_and_a_strict_order(app: App) -> None:
    """Redisson's reliable queue: deduplication for a time, a maximum size, one consumer at a time in the order of submitting."""
    order: list[int] = []

    @app.task(limits=[Limit("one", running=1, by="queue")], quota=Quota(20, per=3_600, burst=20))
    async def consume(queue: str, number: int) -> None:
        order.append(number)
        await asyncio.sleep(0)

    seldom = consume.options(key="message-0", throttle=600)
    first = await seldom.now(queue="a", number=0)
    assert (await seldom.now(queue="a", number=99)).id == first.id, "the same message within its window is the first one"
    tasks = await app.submit_many([consume.new(queue="a", number=number) for number in range(1, 17)])
    with pytest.raises(QuotaExceeded):
        await app.submit_many([consume.new(queue="a", number=number) for number in range(17, 22)])
    async with AsyncExitStack() as stack:
        for _ in range(2):
            await stack.enter_async_context(app.worker())
        for task in (first, *tasks):
            await app.result(task, timeout=PATIENCE)
    assert order == list(range(17))


@pytest.mark.covers("HF.7")
async def test_a_mutex_a_semaphore_and_a_window_by_arguments_wait_or_drop_what_is_too_much(app: App) -> None:
    now, most = Counter[str](), Counter[str]()
    release, begun = asyncio.Event(), asyncio.Event()

    async def count(name: str) -> None:
        now[name] += 1
        most[name] = max(most[name], now[name])
        await asyncio.sleep(0.002)
        now[name] -= 1

    @app.task(limits=[Limit("mutex", running=1, by="document")])
    async def write(document: int) -> None:
        await count(f"document {document}")

    @app.task(limits=[Limit("semaphore", running=3)])
    async def render(number: int) -> None:
        await count("renderers")

    @app.task(limits=[Limit("window", rate=[Rate(2, per=3_600, burst=2)], by="host", over="drop")])
    async def call(host: str) -> None:
        await count(host)

    @app.task(limits=[Limit("once", running=1, over="drop")])
    async def refresh() -> None:
        begun.set()
        await release.wait()

    async with app.worker():
        tasks = [*(write.new(document=number % 2) for number in range(20)), *(render.new(number=number) for number in range(20))]
        for task in await app.submit_many(tasks):
            await app.result(task, timeout=PATIENCE)
        calls = await app.submit_many([call.new(host=host) for host in ("a", "b") for _ in range(5)])
        running = await refresh.now()
        await asyncio.wait_for(begun.wait(), PATIENCE)
        dropped = await refresh.now()
        async with asyncio.timeout(PATIENCE):
            while [(await app.get(task)).state for task in (*calls, dropped)].count(State.DROPPED) < 7:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        release.set()
        await app.result(running, timeout=PATIENCE)
        done = Counter([str((await app.get(task)).state) for task in calls])
    assert most == {"document 0": 1, "document 1": 1, "renderers": most["renderers"], "a": most["a"], "b": most["b"]}
    assert most["renderers"] <= 3
    assert done == {"succeeded": 4, "dropped": 6}


@pytest.mark.covers("AIR.4", "FEN.5")
async def test_a_pool_has_slots_of_which_tasks_of_several_handlers_take_different_numbers(app: App) -> None:
    pool, used, most, ended = Limit("gpu", running=4), 0, 0, Counter[str]()

    async def use(takes: int, ctx: Context) -> None:
        nonlocal used, most
        used += takes
        most = max(most, used)
        await asyncio.sleep(0.002)
        used -= takes
        ended[ctx.task.handler] += 1

    @app.task(limits=[pool])
    async def resize(ctx: Context) -> None:
        await use(1, ctx)

    @app.task(limits=[pool.take(4)])
    async def train(ctx: Context) -> None:
        await use(4, ctx)

    async with app.worker():
        tasks = await app.submit_many([*(resize.new() for _ in range(30)), *(train.new() for _ in range(3))])
        for task in tasks:
            await app.result(task, timeout=PATIENCE)
        info = await app.limits.get("gpu")
    assert (most, ended) == (4, {"resize": 30, "train": 3})
    assert info.handlers == {"resize": 1, "train": 4}
