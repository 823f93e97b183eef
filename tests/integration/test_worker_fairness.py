"""Collections that share a handler's starts, as the handlers' own journal shows it."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from duetime import App, Context, InvalidValue
from tests.servers.waiting import PATIENCE


async def test_workers_share_their_starts_by_weight_together(tmp_path: Path) -> None:
    started: list[str] = []
    enough = asyncio.Event()

    def program() -> App:
        app = App(f"sqlite:///{tmp_path}/shop.db")

        @app.task(fair="collection", concurrency=50)
        async def work(ctx: Context) -> None:
            started.append(ctx.task.collection or "")
            if len(started) >= 1_100:
                enough.set()
            await asyncio.sleep(0.06)  # longer than the work that a worker takes along: thousands of quick ones would be all that there are

        return app

    first, second = program(), program()
    async with first, second:
        await first.weights.put("work", {"gold": 4, "trial": 0.5})
        for collection in ("gold", "silver", "trial"):  # by age alone the first would have every start
            await first.submit_many([first.handler("work").options(collection=collection).new() for _ in range(1_500)])
        async with first.worker(), second.worker(), asyncio.timeout(PATIENCE):
            await enough.wait()
            shares = Counter(started[:1_100])
    assert shares["gold"] == pytest.approx(800, rel=0.05)
    assert shares["silver"] == pytest.approx(200, rel=0.1)
    assert shares["trial"] == pytest.approx(100, rel=0.15)


async def test_why_says_that_collections_share() -> None:
    app, begun, over = App("sqlite:///:memory:"), asyncio.Event(), asyncio.Event()

    @app.task(fair="collection", concurrency=1)
    async def work() -> None:
        begun.set()
        await over.wait()

    async with app, app.worker(), asyncio.timeout(PATIENCE):
        await app.weights.put(work, {"gold": 4})
        await work.options(collection="gold").now()
        await begun.wait()
        waiting = await work.options(collection="gold").now()
        await work.options(collection="trial").now()
        assert "its collections share the starts, and gold weighs 4" in (await app.why(waiting))[0].text
        over.set()


def test_what_is_shared_is_named() -> None:
    app = App("sqlite:///:memory:")
    with pytest.raises(InvalidValue, match='fair must be "collection"'):

        @app.task(fair="user_id")  # type: ignore[call-overload, untyped-decorator]
        async def work() -> None: ...
