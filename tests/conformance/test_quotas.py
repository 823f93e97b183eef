"""Quotas of submissions: never more than the burst and what has come since, wherever it is asked from."""

from __future__ import annotations

import asyncio

from duetime.clock import SECOND, ManualClock
from duetime.model.quota import Quota, QuotaAsk
from duetime.store import Store
from duetime.store.values import Declaration
from tests.conformance.conftest import Another

QUOTA = Quota(10, per=5, burst=4)  # one each half second


def ask(tasks: int = 1, handler: str = "work", quota: Quota = QUOTA) -> QuotaAsk:
    return QuotaAsk(handler, quota.cost(tasks), quota.cost(quota.at_once))


async def test_a_burst_and_then_one_after_the_other(store: Store, clock: ManualClock) -> None:
    assert [(await store.spend_quotas([ask()]))[0] for _ in range(5)] == [0, 0, 0, 0, SECOND // 2]
    clock.advance(0.4)
    assert await store.spend_quotas([ask()]) == [SECOND // 10]
    clock.advance(0.1)
    assert await store.spend_quotas([ask()]) == [0]
    assert await store.spend_quotas([ask(2)]) == [SECOND]
    clock.advance(3_600)  # a pause is worth the burst and no more
    assert await store.spend_quotas([ask(5)]) == [SECOND // 2]
    assert await store.spend_quotas([ask(4)]) == [0]


async def test_what_is_refused_takes_nothing(store: Store) -> None:
    assert await store.spend_quotas([ask(5), ask(4, "other"), ask(3)]) == [SECOND // 2, 0, 0]
    assert await store.spend_quotas([ask(), ask()]) == [0, SECOND // 2]
    assert await store.spend_quotas([]) == []


async def test_all_processes_share_a_quota(store: Store, another: Another) -> None:
    stores = [store, await another(), await another()]
    waits = await asyncio.gather(*(each.spend_quotas([ask()]) for each in stores for _ in range(4)))
    assert sorted(waits)[:5] == [[0], [0], [0], [0], [SECOND // 2]]


async def test_names_of_a_handler_share_its_quota(store: Store) -> None:
    await store.declare([Declaration(name="new", aliases=("old",))])
    assert await store.spend_quotas([ask(3, "old"), ask(2, "new"), ask(1, "new")]) == [0, SECOND // 2, 0]


async def test_a_clock_that_is_set_back_blocks_nobody_for_long(store: Store, clock: ManualClock) -> None:
    assert await store.spend_quotas([ask(4)]) == [0]
    clock.set(clock.now() - 3_600 * SECOND)
    assert await store.spend_quotas([ask()]) == [SECOND // 2]
    clock.advance(0.5)
    assert await store.spend_quotas([ask()]) == [SECOND // 2]  # it counted as used up at the first look only
    smaller = Quota(10, per=5, burst=1)
    assert await store.spend_quotas([ask(quota=smaller)]) == [SECOND // 2]
