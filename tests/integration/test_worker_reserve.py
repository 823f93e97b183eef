"""A handler that keeps slots for high priorities: long tasks of lower ones cannot hold them up."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from duetime import App, Context, Handlers, InvalidValue
from tests.servers.waiting import PATIENCE


class Fleet:
    """Attempts that hold their slots until they are let go, and what their own code has seen."""

    def __init__(self) -> None:
        self.running: Counter[int] = Counter()
        self.most_low = 0
        self.begun: list[int] = []
        self.changed = asyncio.Condition()
        self.open = False

    async def hold(self, ctx: Context) -> None:
        priority = ctx.task.priority
        self.begun.append(priority)
        self.running[priority] += 1
        self.most_low = max(self.most_low, sum(n for each, n in self.running.items() if each < 9))
        async with self.changed:
            self.changed.notify_all()
            await self.changed.wait_for(lambda: self.open)
        self.running[priority] -= 1

    async def until(self, condition: Callable[[], bool]) -> None:
        async def wait() -> None:
            async with self.changed:
                await self.changed.wait_for(condition)

        await asyncio.wait_for(wait(), PATIENCE)

    async def let_go(self) -> None:
        async with self.changed:
            self.open = True
            self.changed.notify_all()


@pytest.mark.covers("REQ.2")
async def test_long_tasks_of_low_priority_do_not_take_the_slots_that_are_kept() -> None:
    fleet = Fleet()
    app = App("sqlite:///:memory:")
    long = app.task(name="long", concurrency=6, reserve={9: 2})(fleet.hold)
    async with app, app.worker():
        for _ in range(20):
            await long.options(priority=5).now()
        await fleet.until(lambda: fleet.running[5] == 4)
        waiting = [task async for task in app.tasks(state="pending")]
        for expected in (1, 2):  # each starts at once, although sixteen wait that came before
            await long.options(priority=9).now()
            await fleet.until(lambda expected=expected: fleet.running[9] == expected)  # type: ignore[misc]
            if expected == 1:
                assert "2 of its 6 slots are kept for priority 9" in " ".join(reason.text for reason in await app.why(waiting[0]))
        assert (fleet.most_low, fleet.running[5]) == (4, 4)
        await fleet.let_go()
        await fleet.until(lambda: len(fleet.begun) == 22)
    assert fleet.most_low == 4


async def test_what_is_kept_is_for_all_of_higher_priorities_and_the_rest_for_all() -> None:
    fleet = Fleet()
    app = App("sqlite:///:memory:")
    long = app.task(name="long", concurrency=6, reserve={9: 1, 7: 2})(fleet.hold)
    async with app, app.worker():
        await app.submit_many([long.options(priority=priority).new() for priority in (1, 7, 8) for _ in range(8)])
        await fleet.until(lambda: sum(fleet.running.values()) == 5)
        assert fleet.running[9] == 0
        await app.submit_many([long.options(priority=9).new() for _ in range(3)])
        await fleet.until(lambda: fleet.running[9] == 1)
        await fleet.let_go()
        await fleet.until(lambda: len(fleet.begun) == 27)


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"reserve": {9: 5}, "concurrency": 5}, "keeps 5 of 5 slots"),
        ({"reserve": {9: 3, 8: 3}, "concurrency": 6}, "keeps 6 of 6 slots"),
        ({"reserve": {9: 0}}, "at least 1"),
        ({"reserve": {9: 1.5}}, "at least 1"),
        ({"reserve": {10: 1}}, "priority must be a whole number from 0 to 9"),
        ({"reserve": {0: 1}}, "leave it out"),
        ({"reserve": 5}, "such as {9: 5}"),
        ({"reserve": {9: 5}, "isolation": "process", "concurrency": 2}, "keeps 5 of 2 slots"),
    ],
)
def test_a_reserve_that_makes_no_sense_is_refused(options: dict[str, Any], wrong: str) -> None:
    async def handler() -> None: ...

    with pytest.raises(InvalidValue, match=wrong):
        Handlers().task(**options)(handler)
