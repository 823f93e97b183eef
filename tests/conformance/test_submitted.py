"""Lists by the time of submitting begin at that time, and are right whatever clocks have done: the store's, and those that made the ids."""

from __future__ import annotations

import random

import pytest

from duetime.clock import DAY, MILLISECOND, SECOND, Instant, ManualClock
from duetime.ids import new_id
from duetime.model.query import Query
from duetime.model.task import State, TaskRecord
from duetime.store import Store
from tests.conformance.build import PLENTY, Worker, add, needs, new_task
from tests.conformance.connections import Connection
from tests.conformance.schedules import again, bringing, new, occurrence, put, stored
from tests.conformance.test_page import ids

HOUR = 3_600 * SECOND
LEADS = (-HOUR, 0, 0, 0, MILLISECOND, 20 * MILLISECOND, 1_500 * MILLISECOND, 40 * 60 * SECOND, DAY)


def id_at(instant: Instant) -> str:
    """Make an id as a process does whose clock tells this instant."""
    milliseconds = instant // MILLISECOND
    return f"{milliseconds >> 16:08x}-{milliseconds & 0xFFFF:04x}{new_id()[13:]}"


async def everything(store: Store) -> list[TaskRecord]:
    page = await store.page(Query(limit=1_000))
    assert page.next is None
    return page.items


async def check(store: Store, *instants: Instant) -> None:
    """Compare lists with what a look at every task says, at the instants and around those of submitting."""
    records = await everything(store)
    for instant in {*instants, *(record.submitted_at + step for record in records for step in (0, 1))}:
        before = [record for record in records if record.submitted_at < instant]
        assert await ids(store, limit=7, submitted_before=instant) == [record.id for record in before], instant
        for state in (State.PENDING, State.BLOCKED, State.FAILED):
            found = await ids(store, limit=7, state=state, submitted_before=instant)
            assert sorted(found) == sorted(record.id for record in before if record.state is state), (instant, state)
        after = [record.id for record in records if record.submitted_at >= instant]
        assert await ids(store, limit=7, submitted_after=instant) == after, instant
        within = [record.id for record in before if record.submitted_at >= instant - SECOND]
        assert await ids(store, limit=7, submitted_after=instant - SECOND, submitted_before=instant) == within, instant


async def test_ids_from_a_clock_that_is_an_hour_ahead(store: Store, clock: ManualClock) -> None:
    records = []
    for _ in range(5):
        records.append(await add(store, id=id_at(clock.now() + HOUR)))
        clock.advance(1)
        records.append(await add(store, id=id_at(clock.now())))
        clock.advance(1)
    middle = records[5].submitted_at
    assert set(await ids(store, limit=2, submitted_before=middle)) == {record.id for record in records[:5]}
    await check(store)


async def test_one_id_of_many_in_a_call_is_ahead(store: Store, clock: ManualClock) -> None:
    await store.add([new_task(id=id_at(clock.now() + lead)) for lead in (0, 3 * SECOND, -HOUR)])
    clock.advance(1)
    await store.add([new_task(id=id_at(clock.now()))])
    assert len(await ids(store, submitted_before=clock.now())) == 3
    await check(store)


async def test_the_stores_clock_is_set_back_by_an_hour(store: Store, clock: ManualClock) -> None:
    first = await add(store, id=id_at(clock.now()))
    clock.advance(1)
    high = await add(store, id=id_at(clock.now()))
    clock.advance(-3_600)
    for _ in range(3):
        low = await add(store, id=id_at(clock.now() + HOUR))  # made by a clock that was not set back
        clock.advance(1)
    assert low.id in await ids(store, submitted_before=first.submitted_at)
    assert high.id not in await ids(store, submitted_before=first.submitted_at)
    await check(store)
    clock.advance(3 * 3_600)
    await add(store, id=id_at(clock.now()))
    await check(store, clock.now(), clock.now() + HOUR)


async def test_a_clock_that_is_set_back_little_by_little(store: Store, clock: ManualClock) -> None:
    """The steps add up: each is compared with the latest time of all, not with the one before."""
    for _ in range(8):
        await add(store, id=id_at(clock.now()))
        clock.advance(-0.4)
    for _ in range(8):
        await add(store, id=id_at(clock.now()))
        clock.advance(0.3)
    await check(store)


async def test_what_is_remembered_of_clocks_outlives_the_tasks(store: Store, worker: Worker, clock: ManualClock) -> None:
    await add(store, id=id_at(clock.now()))
    clock.advance(10)
    await add(store, id=id_at(clock.now()))
    clock.advance(-5)
    await add(store, handler="short", id=id_at(clock.now() + 5 * SECOND))
    await worker.run(State.SUCCEEDED, "short")
    await store.prune(State.SUCCEEDED, clock.now() + DAY, PLENTY)
    await store.tidy()
    clock.advance(1)
    await add(store, id=id_at(clock.now() + 5 * SECOND))
    await check(store)


async def test_an_id_that_is_a_day_ahead_and_one_from_long_ago(store: Store, clock: ManualClock) -> None:
    ahead = await add(store, id=id_at(clock.now() + DAY - SECOND))
    clock.advance(1)
    long_ago = await add(store, id=id_at(1_577_836_800 * SECOND))
    clock.advance(1)
    await store.add([new_task(id=id_at(clock.now())) for _ in range(20)])
    assert set(await ids(store, limit=5, submitted_before=clock.now())) == {ahead.id, long_ago.id}
    await check(store)


async def test_tasks_with_keys_and_parents_and_of_schedules_count_too(store: Store, clock: ManualClock) -> None:
    """Each way to become a task, in a call of its own: nothing but its own id tells how far ids are ahead then."""
    found = [await add(store, key="k", id=id_at(clock.now() + 2 * SECOND))]
    clock.advance(1)
    found.append(await add(store, edges=(needs(found[0]),), id=id_at(clock.now() + 6 * SECOND)))
    clock.advance(1)
    await put(store, bringing(new("a"), occurrence("a", clock.now() + 20 * SECOND)))
    clock.advance(1)
    await put(store, bringing(again(await stored(store, "a")), occurrence("a", clock.now() + HOUR)))
    clock.advance(1)
    await store.add([new_task(id=id_at(clock.now())) for _ in range(3)])
    await check(store)
    assert len(await ids(store, submitted_before=clock.now())) == 4


async def test_tasks_of_a_callers_transaction_count_too(store: Store, connection: Connection, clock: ManualClock) -> None:
    connection.begin()
    await store.add_on(connection.own, [new_task(id=id_at(clock.now() + HOUR))])
    connection.commit()
    clock.advance(-1)
    connection.begin()
    await store.add_on(connection.own, [new_task(id=id_at(clock.now()))])
    connection.commit()
    await check(store)


async def test_a_repeated_submit_keeps_what_is_remembered(store: Store, clock: ManualClock) -> None:
    """On SQLite a call that meets its own id is undone and done again."""
    first = new_task(id=id_at(clock.now() + HOUR))
    await store.add([first])
    clock.advance(-2)
    await store.add([first, new_task(id=id_at(clock.now() + HOUR))])
    await check(store)


@pytest.mark.parametrize("instant", [-(2**63), -1, 0, 1, 2**62, 2**63 - 1])
async def test_instants_far_away(store: Store, clock: ManualClock, instant: Instant) -> None:
    await store.add(
        [
            new_task(id=id_at(clock.now())),
            new_task(id=f"ffffffff-ffff-7fff-bfff-{'f' * 12}"),
            new_task(id=f"00000000-0000-7000-8000-{'0' * 12}"),
        ]
    )
    assert len(await ids(store, submitted_before=instant)) == (3 if instant > clock.now() else 0)
    assert len(await ids(store, submitted_after=instant)) == (0 if instant > clock.now() else 3)
    await check(store)


@pytest.mark.parametrize("seed", range(6))
async def test_any_history_of_clocks(store: Store, worker: Worker, clock: ManualClock, seed: int) -> None:
    """Clocks that jump in both directions, ids of any time, tasks that end, are retried and pruned: lists match a look at every task."""
    chance = random.Random(seed)
    for _ in range(14):
        for _ in range(chance.randrange(3)):
            lead = chance.choice(LEADS)
            await store.add([new_task(id=id_at(clock.now() + lead - later)) for later in range(0, chance.randrange(1, 4) * SECOND, SECOND)])
        match chance.randrange(6):
            case 0:
                clock.advance(-chance.choice([0.001, 1, 600, 3_600]))
            case 1:
                claimed = await worker.take(wants={"work": 3})
                for task in claimed:
                    await worker.end(task, chance.choice([State.SUCCEEDED, State.FAILED, State.PENDING]))
            case 2:
                await store.prune(State.SUCCEEDED, clock.now() + DAY, PLENTY)
                await store.retry(await ids(store, state=State.FAILED))
                await store.tidy()
            case _:
                clock.advance(chance.choice([0, 0.0005, 1, 900]))
    await check(store, clock.now(), clock.now() + DAY)
