"""One look for all viewers: shared, never piled up, and honest about its age."""

from __future__ import annotations

import asyncio

import pytest

from duetime.clock import ManualClock
from duetime.errors import StoreUnavailable
from duetime.web.sight import STALEST, Sight


class Reading:
    """Something slow to read."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.calls = 0
        self.takes = 0.0
        self.broken = False
        self.hold: asyncio.Event | None = None

    async def __call__(self) -> int:
        self.calls += 1
        number = self.calls
        self.clock.advance(self.takes)
        if self.hold is not None:
            await self.hold.wait()
        if self.broken:
            raise StoreUnavailable("gone")
        return number


async def test_many_viewers_cause_one_look_in_a_second() -> None:
    clock = ManualClock()
    sight, read = Sight(clock), Reading(clock)
    for second in range(1, 5):
        seen = await asyncio.gather(*(sight.see("x", read) for _ in range(100)))
        assert {each.value for each in seen} == {second}
        clock.advance(1)
    assert read.calls == 4


async def test_what_is_expensive_is_read_a_twentieth_of_the_time() -> None:
    clock = ManualClock()
    sight, read = Sight(clock), Reading(clock)
    read.takes = 1.0
    for _ in range(60):
        await sight.see("x", read)
        clock.advance(1)
    assert read.calls <= 4


async def test_while_a_look_takes_long_the_last_one_is_shown_with_its_age() -> None:
    clock = ManualClock()
    sight, read = Sight(clock), Reading(clock)
    assert (await sight.see("x", read)).value == 1
    read.hold = asyncio.Event()
    clock.advance(5)
    for _ in range(3):
        seen = await sight.see("x", read)
        assert (seen.value, seen.age, seen.is_old) == (1, 5.0, True)
    assert read.calls == 2, "looks must not pile up"
    read.hold.set()
    await asyncio.sleep(0)
    assert (await sight.see("x", read)).value >= 2
    sight.close()


async def test_a_store_that_is_gone_is_told_and_the_last_facts_stay() -> None:
    clock = ManualClock()
    sight, read = Sight(clock), Reading(clock)
    read.broken = True
    with pytest.raises(StoreUnavailable, match="gone"):
        await sight.see("x", read)
    read.broken = False
    await sight.see("x", read)
    read.broken = True
    clock.advance(STALEST)
    seen = await sight.see("x", read)
    assert (seen.trouble, seen.age) == ("gone", STALEST)


async def test_after_an_action_everything_is_read_again() -> None:
    clock = ManualClock()
    sight, read = Sight(clock), Reading(clock)
    await sight.see("x", read)
    sight.forget()
    assert (await sight.see("x", read)).value == 2
