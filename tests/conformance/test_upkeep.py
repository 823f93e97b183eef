"""Dropping, expiring, pruning and inspecting: bounded, and never a live task lost."""

from __future__ import annotations

from contextlib import suppress

import pytest

from duetime.clock import SECOND, ManualClock
from duetime.errors import InvalidValue
from duetime.model.gate import Gate, GateAction
from duetime.model.task import FINAL, LIVE, State
from duetime.store import Store
from duetime.store.values import AddVerdict, Pruned
from tests.conformance.build import PLENTY, Worker, add, error, get, new_task, put, state_of, task_in


def gate(action: GateAction, collection: str | None = None, until_at: int | None = None) -> Gate:
    return Gate(handler="work", collection=collection, action=action, until_at=until_at)


async def test_due_tasks_under_a_drop_gate_are_recorded_as_dropped(store: Store, worker: Worker, clock: ManualClock) -> None:
    record = await add(store, key="k")
    later = await add(store, delay=60 * SECOND)
    other = await add(store, "other")
    await store.put_gate(gate(GateAction.DROP))
    clock.advance(1)
    assert await store.drop(PLENTY) == 1
    after = await get(store, record)
    assert (after.state, after.finished_at, after.attempt) == (State.DROPPED, clock.now(), 0)
    assert [await state_of(store, task) for task in (later, other)] == [State.PENDING, State.PENDING]
    assert await store.drop(PLENTY) == 0
    clock.advance(60)
    assert await store.drop(PLENTY) == 1
    await store.remove_gate("work", None)
    assert await worker.take() == []
    assert (await put(store, key="k")).verdict is AddVerdict.ADDED


async def test_a_pause_drops_nothing(store: Store) -> None:
    await add(store)
    assert await store.drop(PLENTY) == 0
    await store.put_gate(gate(GateAction.PAUSE))
    assert await store.drop(PLENTY) == 0


async def test_a_drop_gate_on_a_collection_drops_only_that(store: Store) -> None:
    inside, outside, without = await add(store, collection="eu"), await add(store, collection="us"), await add(store)
    await store.put_gate(gate(GateAction.DROP, "eu"))
    assert await store.drop(PLENTY) == 1
    assert [await state_of(store, task) for task in (inside, outside, without)] == [State.DROPPED, State.PENDING, State.PENDING]


async def test_a_collections_own_gate_speaks_before_its_handlers(store: Store) -> None:
    paused, dropped = await add(store, collection="eu"), await add(store, collection="us")
    await store.put_gate(gate(GateAction.DROP))
    await store.put_gate(gate(GateAction.PAUSE, "eu"))
    assert await store.drop(PLENTY) == 1
    assert [await state_of(store, task) for task in (paused, dropped)] == [State.PENDING, State.DROPPED]


async def test_a_timed_drop_gate_drops_until_its_instant(store: Store, worker: Worker, clock: ManualClock) -> None:
    await store.put_gate(gate(GateAction.DROP, until_at=clock.now() + 10 * SECOND))
    during = await add(store, delay=9 * SECOND)
    clock.advance(9)
    assert await store.drop(PLENTY) == 1
    after = await add(store, delay=SECOND)
    clock.advance(1)
    assert await store.drop(PLENTY) == 0
    assert await state_of(store, during) is State.DROPPED
    assert [task.id for task in await worker.take()] == [after.id]


@pytest.mark.parametrize("state", sorted(set(State) - {State.PENDING}))
async def test_only_pending_tasks_are_dropped(store: Store, worker: Worker, state: State) -> None:
    record = await task_in(store, worker, state)
    await store.put_gate(gate(GateAction.DROP))
    assert await store.drop(PLENTY) == 0
    assert await get(store, record) == record


async def test_dropping_stops_at_its_limit(store: Store) -> None:
    answers = await store.add([new_task(collection=str(number % 3), priority=number % 10) for number in range(25)])
    await store.put_gate(gate(GateAction.DROP))
    assert [await store.drop(10) for _ in range(4)] == [10, 10, 5, 0]
    assert {await state_of(store, added.record) for added in answers} == {State.DROPPED}


async def test_waiting_tasks_whose_expiry_has_passed_are_recorded_as_expired(store: Store, worker: Worker, clock: ManualClock) -> None:
    due = await add(store, key="k", expires_in=10 * SECOND)
    later = await add(store, delay=3600 * SECOND, expires_at=clock.now() + 10 * SECOND)
    blocked = await task_in(store, worker, State.BLOCKED, expires_at=clock.now() + 10 * SECOND)
    await store.put_gate(gate(GateAction.PAUSE))
    fine = [await add(store, expires_in=60 * SECOND), await add(store)]
    assert await store.expire(PLENTY) == 0
    clock.advance(11)
    assert await store.expire(PLENTY) == 3
    for record in (due, later, blocked):
        after = await get(store, record)
        assert (after.state, after.finished_at, after.attempt) == (State.EXPIRED, clock.now(), 0)
    assert [await state_of(store, record) for record in fine] == [State.PENDING, State.PENDING]
    assert (await put(store, key="k")).verdict is AddVerdict.ADDED
    assert await store.expire(PLENTY) == 0


async def test_a_retry_that_waits_beyond_its_expiry_expires(store: Store, worker: Worker, clock: ManualClock) -> None:
    record = await add(store, expires_in=10 * SECOND)
    await worker.run(State.PENDING, due_at=clock.now() + 9 * SECOND, error=error())
    clock.advance(11)
    assert await store.expire(PLENTY) == 1
    after = await get(store, record)
    assert (after.state, after.attempt, after.tries) == (State.EXPIRED, 1, 1)
    assert len(await store.attempts(record.id)) == 1


@pytest.mark.parametrize("state", sorted(set(State) - {State.PENDING, State.BLOCKED}))
async def test_running_and_finished_tasks_do_not_expire(store: Store, worker: Worker, clock: ManualClock, state: State) -> None:
    record = await task_in(store, worker, state, expires_at=clock.now() + SECOND)
    clock.advance(60)
    assert await store.expire(PLENTY) == 0
    assert await get(store, record) == record


async def test_expiring_stops_at_its_limit(store: Store, clock: ManualClock) -> None:
    await store.add([new_task(expires_in=SECOND) for _ in range(25)])
    clock.advance(2)
    assert [await store.expire(10) for _ in range(4)] == [10, 10, 5, 0]


@pytest.mark.parametrize("state", sorted(FINAL))
async def test_pruning_removes_what_finished_before_an_instant(store: Store, worker: Worker, clock: ManualClock, state: State) -> None:
    old = await task_in(store, worker, state, key="k")
    clock.advance(10)
    limit_at = clock.now()
    young = await task_in(store, worker, state, key="k")
    assert await store.prune(state, limit_at - 10 * SECOND, PLENTY) == []
    assert await store.prune(state, limit_at, PLENTY) == [Pruned(old.id, old.attempt)]
    assert await store.get([old.id, young.id]) == [None, young]
    assert await store.attempts(old.id) == []
    assert await store.find("work", "k") == young
    assert await store.prune(state, limit_at, PLENTY) == []


@pytest.mark.parametrize("state", sorted(FINAL))
async def test_pruning_one_state_leaves_the_others(store: Store, worker: Worker, clock: ManualClock, state: State) -> None:
    records = {each: await task_in(store, worker, each, handler=each) for each in State}
    clock.advance(60)
    assert [pruned.id for pruned in await store.prune(state, clock.now(), PLENTY)] == [records[state].id]
    for each, record in records.items():
        assert await store.get([record.id]) == [None if each is state else record]


@pytest.mark.parametrize("state", sorted(LIVE))
async def test_pruning_never_removes_a_live_task(store: Store, worker: Worker, clock: ManualClock, state: State) -> None:
    record = await task_in(store, worker, state)
    clock.advance(1000)
    with suppress(InvalidValue):  # refusing the question is as good as answering it with nothing
        assert await store.prune(state, clock.now() + 1, PLENTY) == []
    for final in FINAL:
        assert await store.prune(final, clock.now() + 1, PLENTY) == []
    assert await get(store, record) == record


async def test_a_task_that_was_retried_is_live_and_not_pruned(store: Store, worker: Worker, clock: ManualClock) -> None:
    record = await task_in(store, worker, State.FAILED)
    await store.retry([record.id])
    clock.advance(60)
    assert await store.prune(State.FAILED, clock.now(), PLENTY) == []
    assert (await worker.take_one()).attempt == 2
    assert [attempt.attempt for attempt in await store.attempts(record.id)] == [1, 2]


async def test_pruning_stops_at_its_limit_and_takes_attempts_along(store: Store, worker: Worker, clock: ManualClock) -> None:
    records = [await add(store) for _ in range(25)]
    for task in await worker.take():
        await worker.end(task, State.PENDING)
    for task in await worker.take():
        await worker.end(task, State.FAILED)
    clock.advance(1)
    batches = [await store.prune(State.FAILED, clock.now(), 10) for _ in range(4)]
    assert [len(batch) for batch in batches] == [10, 10, 5, 0]
    assert sorted((pruned.id, pruned.attempt) for batch in batches for pruned in batch) == sorted((record.id, 2) for record in records)
    assert [await store.attempts(record.id) for record in records] == [[]] * 25


async def test_a_pruned_id_is_free_again(store: Store, worker: Worker, clock: ManualClock) -> None:
    record = await task_in(store, worker, State.SUCCEEDED)
    await store.prune(State.SUCCEEDED, clock.now() + 1, PLENTY)
    added = await put(store, id=record.id)
    assert (added.verdict, added.record.attempt) == (AddVerdict.ADDED, 0)


@pytest.mark.parametrize("repair", [False, True])
async def test_a_healthy_store_has_no_problems(store: Store, worker: Worker, clock: ManualClock, repair: bool) -> None:
    assert await store.inspect(repair=repair) == []
    records = [await task_in(store, worker, state, handler=state, key="k", collection="eu") for state in State]
    await store.put_gate(Gate(handler="pending", action=GateAction.PAUSE, until_at=clock.now() + SECOND))
    await store.add([new_task(delay=SECOND), new_task(due_at=1), new_task(expires_in=5 * SECOND)])
    await store.cancel([record.id for record in records if record.state is State.RUNNING])
    before = await store.get([record.id for record in records])
    clock.advance(3)
    assert await store.inspect(repair=repair) == []
    assert await store.get([record.id for record in records]) == before
