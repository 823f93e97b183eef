"""Leases of duties: one at a time by the store's clock, and only to spare work."""

from __future__ import annotations

import asyncio

import pytest

from duetime.clock import SECOND, ManualClock
from duetime.errors import InvalidValue
from duetime.store import Store
from duetime.store.schedules import DutyLease
from tests.conformance.conftest import Another


async def test_a_lease_is_taken_by_the_first_and_by_nobody_else_until_it_is_over(store: Store, clock: ManualClock) -> None:
    began_at = clock.now()
    assert await store.take_duty("firing", "ann", 10) == DutyLease(True, "ann", began_at + 10 * SECOND, began_at)
    assert await store.take_duty("firing", "bob", 10) == DutyLease(False, "ann", began_at + 10 * SECOND, began_at)
    clock.advance(9.999999)
    assert await store.take_duty("firing", "bob", 10) == DutyLease(False, "ann", began_at + 10 * SECOND, clock.now())
    clock.advance(0.000001)
    assert await store.take_duty("firing", "bob", 10) == DutyLease(True, "bob", clock.now() + 10 * SECOND, clock.now())
    assert (await store.take_duty("firing", "ann", 10)).granted is False


async def test_a_lease_is_kept_by_taking_it_again(store: Store, clock: ManualClock) -> None:
    await store.take_duty("firing", "ann", 10)
    for _ in range(5):
        clock.advance(8)
        assert await store.take_duty("firing", "ann", 10) == DutyLease(True, "ann", clock.now() + 10 * SECOND, clock.now())
        assert (await store.take_duty("firing", "bob", 10)).granted is False
    assert (await store.take_duty("firing", "ann", 0.5)).until_at == clock.now() + SECOND // 2


async def test_duties_have_leases_of_their_own(store: Store) -> None:
    assert (await store.take_duty("firing", "ann", 10)).granted
    assert (await store.take_duty("pruning", "bob", 10)).granted
    assert (await store.take_duty("firing", "bob", 10)).granted is False


async def test_a_lease_that_is_given_back_is_free_at_once(store: Store, clock: ManualClock) -> None:
    await store.take_duty("firing", "ann", 10)
    await store.leave_duty("firing", "ann")
    assert await store.take_duty("firing", "bob", 10) == DutyLease(True, "bob", clock.now() + 10 * SECOND, clock.now())


async def test_only_who_has_a_lease_can_give_it_back(store: Store) -> None:
    await store.leave_duty("firing", "ann")
    await store.take_duty("firing", "ann", 10)
    await store.leave_duty("firing", "bob")
    await store.leave_duty("pruning", "ann")
    assert (await store.take_duty("firing", "bob", 10)).granted is False


async def test_giving_back_a_lease_that_is_over_leaves_the_next_one_alone(store: Store, clock: ManualClock) -> None:
    await store.take_duty("firing", "ann", 10)
    clock.advance(20)
    await store.leave_duty("firing", "ann")
    assert (await store.duties())["firing"].until_at == clock.now() - 10 * SECOND
    await store.take_duty("firing", "bob", 10)
    await store.leave_duty("firing", "ann")
    assert (await store.duties())["firing"] == DutyLease(True, "bob", clock.now() + 10 * SECOND, clock.now())


async def test_leases_are_told_also_when_they_are_over(store: Store, clock: ManualClock) -> None:
    assert await store.duties() == {}
    began_at = clock.now()
    await store.take_duty("firing", "ann", 10)
    await store.take_duty("pruning", "bob", 30)
    assert await store.duties() == {
        "firing": DutyLease(True, "ann", began_at + 10 * SECOND, began_at),
        "pruning": DutyLease(True, "bob", began_at + 30 * SECOND, began_at),
    }
    clock.advance(10)
    assert await store.duties() == {
        "firing": DutyLease(False, "ann", began_at + 10 * SECOND, clock.now()),
        "pruning": DutyLease(True, "bob", began_at + 30 * SECOND, clock.now()),
    }
    await store.leave_duty("pruning", "bob")
    assert (await store.duties())["pruning"] == DutyLease(False, "bob", clock.now(), clock.now())


async def test_a_clock_that_was_set_back_frees_a_lease(store: Store, clock: ManualClock) -> None:
    await store.take_duty("firing", "ann", 60)
    assert (await store.take_duty("firing", "bob", 10)).granted is False
    clock.set(clock.now() - 1)
    assert (await store.duties())["firing"].granted is False
    assert (await store.take_duty("firing", "bob", 10)).granted
    clock.set(clock.now() - 50 * SECOND)
    assert (await store.take_duty("firing", "ann", 10)).granted is False  # 60 s ahead is as far as a turn may reach
    clock.set(clock.now() - 3600 * SECOND)
    assert await store.take_duty("firing", "ann", 10) == DutyLease(True, "ann", clock.now() + 10 * SECOND, clock.now())


@pytest.mark.parametrize("seconds", [0, -1, 60.1, 3600, float("nan"), float("inf")])
async def test_a_lease_of_no_length_or_of_more_than_a_minute_is_refused(store: Store, seconds: float) -> None:
    with pytest.raises(InvalidValue, match="at most 60 s"):
        await store.take_duty("firing", "ann", seconds)
    assert await store.duties() == {}


async def test_of_many_that_ask_at_once_exactly_one_has_the_lease(store: Store, another: Another, clock: ManualClock) -> None:
    stores = [store, *[await another() for _ in range(9)]]
    for _ in range(5):
        leases = await asyncio.gather(*(each.take_duty("firing", f"holder {index}", 10) for index, each in enumerate(stores)))
        [winner] = [index for index, lease in enumerate(leases) if lease.granted]
        assert {lease.holder for lease in leases} == {f"holder {winner}"}
        assert {(lease.until_at, lease.now) for lease in leases} == {(clock.now() + 10 * SECOND, clock.now())}
        clock.advance(10)
