"""Locks: one holder at a time, fences that never repeat, a dead holder is taken over, a rest after it was given back."""

from __future__ import annotations

import asyncio

from duetime.clock import SECOND, ManualClock
from duetime.store import Store
from duetime.store.locks import Seen
from tests.conformance.conftest import Another


async def test_one_of_many_takes_a_lock(store: Store, another: Another) -> None:
    other = await another()
    answers = await asyncio.gather(*((store, other)[n % 2].take_lock("nightly", f"h{n}", f"by {n}", 15) for n in range(8)))
    [winner] = [each for each in answers if each.taken]
    assert {each.fence for each in answers} == {winner.fence}
    assert {each.by for each in answers} == {winner.by}
    assert [(each.name, each.fence, each.free_at) for each in await store.locks()] == [("nightly", winner.fence, None)]


async def test_a_repeat_is_answered_as_the_first(store: Store) -> None:
    first = await store.take_lock("a", "me", "anna", 15)
    again = await store.take_lock("a", "me", "anna", 15)
    assert (again.taken, again.fence) == (True, first.fence)


async def test_a_fence_is_higher_than_all_before_of_any_name(store: Store) -> None:
    fences: list[int] = []
    for name in ("a", "b", "a", "c", "a"):
        taken = await store.take_lock(name, f"h{len(fences)}", "", 15)
        assert taken.taken
        fences.append(taken.fence)
        await store.free_lock(name, f"h{len(fences) - 1}")
    assert fences == sorted(set(fences))


async def test_only_its_holder_renews_and_frees_it(store: Store) -> None:
    taken = await store.take_lock("a", "me", "", 15)
    assert not await store.renew_lock("a", "you")
    assert not await store.free_lock("a", "you")
    assert await store.renew_lock("a", "me")
    assert (await store.take_lock("a", "you", "", 15)).beat == taken.beat + 1
    assert await store.free_lock("a", "me")
    assert not await store.renew_lock("a", "me")
    assert await store.locks() == []


async def test_a_dead_holder_is_taken_over_by_who_has_watched_its_beat(store: Store) -> None:
    dead = await store.take_lock("a", "dead", "", 15)
    await store.renew_lock("a", "dead")
    assert not (await store.take_lock("a", "me", "", 15, Seen(dead.fence, dead.beat))).taken, "its beat has changed since"
    assert not (await store.take_lock("a", "me", "", 15, Seen(dead.fence - 1, dead.beat + 1))).taken, "that was another holder"
    taken = await store.take_lock("a", "me", "", 15, Seen(dead.fence, dead.beat + 1))
    assert taken.taken
    assert taken.fence > dead.fence
    assert not await store.renew_lock("a", "dead")


async def test_of_two_who_found_it_dead_one_takes_it(store: Store, another: Another) -> None:
    dead = await store.take_lock("a", "dead", "", 15)
    other = await another()
    seen = Seen(dead.fence, dead.beat)
    answers = await asyncio.gather(store.take_lock("a", "x", "", 15, seen), other.take_lock("a", "y", "", 15, seen))
    assert [each.taken for each in answers].count(True) == 1


async def test_a_lock_rests_after_it_was_given_back(store: Store, clock: ManualClock) -> None:
    taken = await store.take_lock("a", "me", "", 15)
    assert await store.free_lock("a", "me", 5)
    found = await store.take_lock("a", "you", "", 15, Seen(taken.fence, taken.beat))
    assert (found.taken, found.free_at) == (False, clock.now() + 5 * SECOND)
    assert [each.name for each in await store.locks()] == ["a"]
    clock.advance(5)
    assert await store.locks() == []
    assert (await store.take_lock("a", "you", "", 15)).taken


async def test_a_clock_that_was_set_back_does_not_make_the_rest_longer(store: Store, clock: ManualClock) -> None:
    await store.take_lock("a", "me", "", 15)
    await store.free_lock("a", "me", 5)
    clock.set(clock.now() - 3_600 * SECOND)
    assert (await store.take_lock("a", "you", "", 15)).taken


async def test_an_operator_takes_a_lock_away(store: Store) -> None:
    await store.take_lock("a", "me", "", 15)
    assert await store.remove_lock("a")
    assert not await store.remove_lock("a")
    assert not await store.renew_lock("a", "me")


async def test_what_is_free_or_long_silent_is_forgotten(store: Store, clock: ManualClock) -> None:
    await store.take_lock("rested", "me", "", 15)
    await store.free_lock("rested", "me", 5)
    await store.take_lock("silent", "me", "", 15)
    clock.advance(100)
    await store.take_lock("held", "me", "", 15)
    assert await store.prune_locks(clock.now() - 50 * SECOND) == 2
    assert [each.name for each in await store.locks()] == ["held"]
