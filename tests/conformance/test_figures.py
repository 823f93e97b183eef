"""What workers count is added up, whoever counts, and never shrinks."""

from __future__ import annotations

import asyncio

from duetime.clock import SECOND, ManualClock
from duetime.model.figures import ATTEMPTS, STALE_WRITES, FigureKey
from duetime.store import Store
from tests.conformance.conftest import Another

SUCCEEDED = FigureKey(ATTEMPTS, "work", "succeeded")
FAILED = FigureKey(ATTEMPTS, "work", "failed")
STALE = FigureKey(STALE_WRITES)


async def test_counts_of_all_processes_are_added_up(store: Store) -> None:
    assert await store.figures() == {}
    await store.add_figures("a", 1, {SUCCEEDED: 3, STALE: 1})
    await store.add_figures("b", 1, {SUCCEEDED: 4, FAILED: 1})
    await store.add_figures("a", 2, {SUCCEEDED: 10})
    assert await store.figures() == {SUCCEEDED: 17, FAILED: 1, STALE: 1}


async def test_a_write_that_is_repeated_is_counted_once(store: Store) -> None:
    for _ in range(3):
        await store.add_figures("a", 1, {SUCCEEDED: 3})
    await store.add_figures("a", 2, {SUCCEEDED: 1})
    await store.add_figures("a", 1, {SUCCEEDED: 3})
    assert await store.figures() == {SUCCEEDED: 4}


async def test_a_write_of_nothing_changes_nothing(store: Store) -> None:
    await store.add_figures("a", 1, {})
    await store.add_figures("a", 1, {SUCCEEDED: 1})
    assert await store.figures() == {SUCCEEDED: 1}


async def test_counts_are_as_large_as_they_get_and_names_are_any_text(store: Store) -> None:
    odd = FigureKey(ATTEMPTS, "größer'; drop table x --", "succeeded")
    await store.add_figures("a", 1, {odd: 1 << 60})
    await store.add_figures("a", 2, {odd: 5})
    assert await store.figures() == {odd: (1 << 60) + 5}


async def test_folding_changes_no_sum(store: Store, clock: ManualClock) -> None:
    await store.add_figures("a", 1, {SUCCEEDED: 3, STALE: 1})
    await store.add_figures("b", 1, {SUCCEEDED: 4})
    clock.advance(100)
    await store.add_figures("c", 1, {SUCCEEDED: 5})
    before = await store.figures()
    assert await store.fold_figures(clock.now() - 50 * SECOND) == 2
    assert await store.fold_figures(clock.now() - 50 * SECOND) == 0
    assert await store.figures() == before
    clock.advance(100)
    assert await store.fold_figures(clock.now() - 50 * SECOND) == 1
    assert await store.figures() == before


async def test_a_process_that_was_silent_for_long_goes_on_counting(store: Store, clock: ManualClock) -> None:
    await store.add_figures("a", 1, {SUCCEEDED: 3})
    clock.advance(100)
    await store.fold_figures(clock.now())
    await store.add_figures("a", 2, {SUCCEEDED: 2})
    assert await store.figures() == {SUCCEEDED: 5}


async def test_processes_that_write_at_once_while_others_fold_lose_nothing(store: Store, another: Another, clock: ManualClock) -> None:
    stores = [store, await another(), await another()]

    async def count(index: int, at: Store) -> None:
        for number in range(1, 31):
            await at.add_figures(f"process {index}", number, {SUCCEEDED: 1, FAILED: 2})

    async def fold(at: Store) -> None:
        for _ in range(20):
            await at.fold_figures(clock.now() + SECOND)

    await asyncio.gather(*(count(index, stores[index % 3]) for index in range(6)), *(fold(at) for at in stores))
    assert await store.figures() == {SUCCEEDED: 180, FAILED: 360}
