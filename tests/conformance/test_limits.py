"""Limits of the whole fleet: permits are never more than the limit, go with their worker, and count what others have accepted."""

from __future__ import annotations

import asyncio
import random

from duetime.clock import SECOND, ManualClock
from duetime.model.limit import Allotment, Ask
from duetime.store import Store
from tests.conformance.build import Worker, add
from tests.conformance.conftest import Dead, Hire


def ask(held: int = 0, want: int = 0, *, running: int = 4, limit: str = "erp", seen: int = 0, **uses: int) -> Ask:
    return Ask(limit=limit, declared=running, uses=uses or {"work": 1}, held=held, want=want, seen=seen)


async def allot(worker: Worker, number: int, *asks: Ask) -> list[int]:
    return [allotment.permits for allotment in await worker.store.allot(worker.id, number, asks)]


async def test_permits_are_given_as_long_as_some_are_left(store: Store, hire: Hire) -> None:
    first, second = await hire(), await hire()
    assert await allot(first, 1, ask(want=3)) == [3]
    [given] = await store.allot(second.id, 1, [ask(want=3)])
    assert given == Allotment("erp", 1, 4, 1, 4, 0, 2)
    [again] = await store.allot(first.id, 2, [ask(3, 3)])
    assert (again.permits, again.lacking) == (3, 2)
    assert await allot(first, 3, ask(1, 1)) == [1]
    assert await allot(second, 2, ask(1, 3)) == [3]


async def test_a_call_that_arrives_late_changes_nothing(store: Store, hire: Hire) -> None:
    first, second = await hire(), await hire()
    assert await allot(first, 2, ask(want=4)) == [4]
    assert await allot(first, 1, ask(0, 0)) == []
    assert await allot(second, 1, ask(want=1)) == [0]


async def test_each_limit_is_counted_by_itself(store: Store, hire: Hire) -> None:
    first, second = await hire(), await hire()
    assert await allot(first, 1, ask(want=9), ask(want=2, limit="gpu", running=2)) == [4, 2]
    assert await allot(second, 1, ask(want=1, limit="gpu", running=2), ask(want=1, limit="other")) == [0, 1]


async def test_permits_go_with_their_worker(store: Store, hire: Hire, dead_worker: Dead) -> None:
    first, second = await hire(), await hire()
    assert await allot(first, 1, ask(want=4)) == [4]
    await store.unregister(first.id)
    assert await allot(second, 1, ask(want=4)) == [4]
    assert await allot(first, 2, ask(want=1)) == []  # it is not registered
    assert [holder.worker for limit in await store.limits() for holder in limit.holders] == [second.id]


async def test_accepted_work_counts_by_what_its_handler_takes(store: Store, worker: Worker) -> None:
    await add(store)
    [task] = await worker.take()
    await worker.hand_over(task)
    [given] = await store.allot(worker.id, 1, [ask(want=4, work=3, other=1)])
    assert (given.permits, given.out) == (1, 4)
    [record] = await store.limits()
    assert (record.accepted, record.out, dict(record.uses)) == (3, 4, {"work": 3, "other": 1})


async def test_a_lowered_limit_takes_nothing_from_who_says_that_it_has_it(store: Store, hire: Hire) -> None:
    first, second = await hire(), await hire()
    assert await allot(first, 1, ask(want=4)) == [4]
    assert await store.put_limit("erp", 2, until_at=None, note="maintenance", set_by="ada") == 2
    [given] = await store.allot(first.id, 2, [ask(3, 4)])
    assert (given.permits, given.running, given.version, given.is_over) == (3, 2, 2, True)
    assert await allot(second, 1, ask(want=1)) == [0]
    [given] = await store.allot(first.id, 3, [ask(1, 1, seen=2)])
    assert (given.permits, given.is_over) == (1, False)
    assert await allot(second, 2, ask(want=4)) == [1]
    [record] = await store.limits()
    assert (record.own, record.note, record.set_by, record.holders[0].seen + record.holders[1].seen) == (2, "maintenance", "ada", 2)
    assert await store.reset_limit("erp") == 3
    assert await allot(second, 3, ask(1, 4)) == [3]
    assert await store.put_limit("unknown", 2, until_at=None, note="", set_by="") is None


async def test_a_number_that_was_set_for_a_time_ends_by_itself(store: Store, worker: Worker, clock: ManualClock) -> None:
    await allot(worker, 1, ask())
    await store.put_limit("erp", 1, until_at=clock.now() + SECOND, note="", set_by="ada")
    assert await allot(worker, 2, ask(want=4)) == [1]
    clock.advance(SECOND)
    assert await allot(worker, 3, ask(1, 4)) == [4]


async def test_who_has_waited_longest_comes_first_where_attempts_take_different_numbers(store: Store, hire: Hire) -> None:
    many, few, late = await hire(), await hire(), await hire()

    async def given(worker: Worker, number: int, held: int, want: int, least: int = 0, waited: int = 0) -> tuple[int, bool]:
        uses = {"many": 4, "few": 1}
        asked = Ask(limit="erp", declared=4, uses=uses, held=held, want=want, least=least, waited=waited)
        [allotment] = await store.allot(worker.id, number, [asked])
        assert allotment.mixed
        return allotment.permits, allotment.yields

    assert await given(few, 1, 0, 3) == (3, False)
    assert await given(many, 1, 0, 4, least=4, waited=2 * SECOND) == (0, False)
    assert await given(few, 2, 2, 4) == (2, True)  # there is room, but not for it
    assert await given(late, 1, 0, 4, least=4, waited=SECOND) == (0, True)
    assert await given(few, 3, 0, 4, waited=SECOND // 2) == (0, True)
    assert await given(late, 2, 0, 4, least=4, waited=SECOND) == (0, True)
    assert await given(many, 2, 0, 4, least=4, waited=2 * SECOND) == (4, False)
    assert await given(few, 4, 0, 4) == (0, True)  # now the other one is waited for
    assert await given(many, 3, 0, 0) == (0, True)
    assert await given(late, 3, 0, 4, least=4, waited=SECOND) == (4, False)
    assert await given(late, 4, 1, 1) == (1, False)
    assert await given(few, 5, 0, 4) == (3, False)


async def test_nobody_is_waited_for_where_all_attempts_take_the_same(store: Store, hire: Hire) -> None:
    first, second = await hire(), await hire()
    assert await allot(first, 1, ask(want=3)) == [3]
    await store.allot(second.id, 1, [Ask(limit="erp", declared=4, uses={"work": 1}, held=0, want=4, least=2, waited=SECOND)])
    [given] = await store.allot(first.id, 2, [ask(3, 4)])
    assert (given.permits, given.mixed, given.yields) == (4, False, False)


async def test_what_was_declared_last_holds_and_keeps_an_operators_number(store: Store, worker: Worker) -> None:
    await allot(worker, 1, ask(running=4))
    await store.put_limit("erp", 2, until_at=None, note="", set_by="ada")
    [given] = await store.allot(worker.id, 2, [ask(want=9, running=8, other=2)])
    assert (given.running, given.version) == (2, 3)
    [record] = await store.limits()
    assert (record.declared, dict(record.uses)) == (8, {"work": 1, "other": 2})


async def test_the_sum_is_never_above_the_limit_whoever_asks_at_once(store: Store, hire: Hire) -> None:
    workers = [await hire() for _ in range(4)]
    chance = random.Random(21)
    held = dict.fromkeys((worker.id for worker in workers), 0)

    async def ask_again(worker: Worker) -> None:
        for number in range(1, 13):
            want = chance.randint(0, 9)
            held[worker.id] = min(held[worker.id], want)  # its own number first
            [given] = await store.allot(worker.id, number, [ask(held[worker.id], want, running=7)])
            held[worker.id] = given.permits
            assert sum(held.values()) <= 7

    await asyncio.gather(*map(ask_again, workers))
