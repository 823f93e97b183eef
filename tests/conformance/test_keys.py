"""At most one live task per (handler, key), and what a task does that finds its key taken."""

from __future__ import annotations

from typing import Any

import pytest

from duetime.clock import SECOND, ManualClock
from duetime.model.task import FINAL, LIVE, State
from duetime.store import Store
from duetime.store.values import AddVerdict
from tests.conformance.build import Worker, add, get, new_task, put, state_of, task_in

IF_EXISTS = ("error", "keep", "replace")


@pytest.mark.parametrize("if_exists", IF_EXISTS)
@pytest.mark.parametrize("state", sorted(FINAL))
async def test_a_finished_task_does_not_hold_its_key(store: Store, worker: Worker, state: State, if_exists: str) -> None:
    before = await task_in(store, worker, state, key="k")
    added = await put(store, key="k", if_exists=if_exists)
    assert added.verdict is AddVerdict.ADDED
    assert added.record.id != before.id
    assert await get(store, before) == before


@pytest.mark.parametrize("state", sorted(LIVE))
async def test_error_answers_duplicate_and_stores_nothing(store: Store, worker: Worker, state: State) -> None:
    holder = await task_in(store, worker, state, key="k")
    submitted = new_task(key="k", payload=b'{"new": 1}')
    [answer] = await store.add([submitted])
    assert (answer.verdict, answer.record) == (AddVerdict.DUPLICATE, holder)
    assert await store.get([submitted.id, holder.id]) == [None, holder]


@pytest.mark.parametrize("state", sorted(LIVE))
async def test_keep_answers_with_the_live_task(store: Store, worker: Worker, state: State) -> None:
    holder = await task_in(store, worker, state, key="k")
    submitted = new_task(key="k", if_exists="keep", payload=b'{"new": 1}', due_at=1, priority=9)
    [answer] = await store.add([submitted])
    assert (answer.verdict, answer.record) == (AddVerdict.KEPT, holder)
    assert await store.get([submitted.id, holder.id]) == [None, holder]


def replacement(clock: ManualClock) -> dict[str, Any]:
    return {
        "payload": b'{"new": 1}',
        "due_at": clock.now() + 60 * SECOND,
        "priority": 8,
        "collection": "eu",
        "timeout": 4.0,
        "retry": b'{"tries": 2}',
        "expires_at": clock.now() + 90 * SECOND,
        "meta": {"trace": "new"},
        "planned_at": clock.now() + 60 * SECOND,
    }


@pytest.mark.parametrize("state", [State.BLOCKED, State.PENDING])
async def test_replace_gives_a_waiting_task_the_values_of_the_new_one(
    store: Store, worker: Worker, clock: ManualClock, state: State
) -> None:
    holder = await task_in(store, worker, state, key="k", payload=b'{"old": 1}', collection="us", meta={"trace": "old"}, timeout=1.0)
    clock.advance(1)
    submitted = new_task(key="k", if_exists="replace", **replacement(clock))
    [answer] = await store.add([submitted])
    assert answer.verdict is AddVerdict.REPLACED
    assert answer.record == await get(store, holder)
    assert (answer.record.id, answer.record.state, answer.record.submitted_at) == (holder.id, state, holder.submitted_at)
    assert {name: getattr(answer.record, name) for name in replacement(clock)} == replacement(clock)
    assert await store.get([submitted.id]) == [None]


async def test_replace_takes_away_what_the_new_task_does_not_have(store: Store, clock: ManualClock) -> None:
    await add(store, key="k", **replacement(clock))
    record = (await put(store, key="k", if_exists="replace")).record
    assert (record.due_at, record.priority, record.collection) == (clock.now(), 5, None)
    assert (record.timeout, record.retry, record.expires_at, record.meta or {}, record.planned_at) == (None, None, None, {}, None)


async def test_a_replaced_task_is_claimed_once_at_its_new_time_with_its_new_payload(
    store: Store, worker: Worker, clock: ManualClock
) -> None:
    holder = await add(store, key="k", delay=10 * SECOND)
    await put(store, key="k", if_exists="replace", delay=20 * SECOND, payload=b'{"new": 1}')
    clock.advance(10)
    assert await worker.take() == []
    clock.advance(10)
    [task] = await worker.take()
    assert (task.id, task.payload, task.attempt) == (holder.id, '{"new": 1}', 1)
    assert task.since_at == clock.now()


async def test_a_task_can_be_replaced_to_an_earlier_time(store: Store, worker: Worker) -> None:
    holder = await add(store, key="k", delay=3600 * SECOND)
    await put(store, key="k", if_exists="replace")
    assert [task.id for task in await worker.take()] == [holder.id]


async def test_replace_keeps_attempt_numbers_and_forgets_tries(store: Store, worker: Worker) -> None:
    holder = await add(store, key="k")
    await worker.run(State.PENDING)
    await worker.run(State.PENDING)
    assert ((await get(store, holder)).tries, (await get(store, holder)).attempt) == (2, 2)
    answer = await put(store, key="k", if_exists="replace")
    assert (answer.verdict, answer.record.tries, answer.record.attempt) == (AddVerdict.REPLACED, 0, 2)
    task = await worker.take_one()
    assert (task.id, task.attempt, task.tries) == (holder.id, 3, 0)
    assert [attempt.attempt for attempt in await store.attempts(holder.id)] == [1, 2, 3]


async def test_a_running_task_cannot_be_replaced(store: Store, worker: Worker) -> None:
    holder = await task_in(store, worker, State.RUNNING, key="k")
    answer = await put(store, key="k", if_exists="replace", payload=b'{"new": 1}')
    assert (answer.verdict, answer.record) == (AddVerdict.DUPLICATE, holder)
    assert await get(store, holder) == holder


async def test_handlers_have_keys_of_their_own(store: Store) -> None:
    first = await add(store, "a", key="k")
    second = await add(store, "b", key="k")
    assert await store.find("a", "k") == first
    assert await store.find("b", "k") == second


async def test_keys_are_told_apart_exactly(store: Store) -> None:
    keys = ["order", "Order", "order ", "ördér", "o", "order%", "order_", "7", "07", "7.0"]
    answers = await store.add([new_task(key=key) for key in keys])
    assert {added.verdict for added in answers} == {AddVerdict.ADDED}
    for key in keys:
        found = await store.find("work", key)
        assert found is not None
        assert found.key == key


async def test_tasks_without_a_key_never_collide(store: Store) -> None:
    assert {added.verdict for added in await store.add([new_task() for _ in range(5)])} == {AddVerdict.ADDED}


async def test_later_tasks_of_a_call_see_earlier_ones(store: Store) -> None:
    new_tasks = [
        new_task(key="k", payload=b'{"n": 1}'),
        new_task(key="k", payload=b'{"n": 2}'),
        new_task(key="k", payload=b'{"n": 3}', if_exists="keep"),
        new_task(key="k", payload=b'{"n": 4}', if_exists="replace"),
        new_task(key="k", payload=b'{"n": 5}', if_exists="keep"),
    ]
    answers = await store.add(new_tasks)
    assert [added.verdict for added in answers] == [
        AddVerdict.ADDED,
        AddVerdict.DUPLICATE,
        AddVerdict.KEPT,
        AddVerdict.REPLACED,
        AddVerdict.KEPT,
    ]
    assert {added.record.id for added in answers} == {new_tasks[0].id}
    assert answers[-1].record.payload == b'{"n": 4}'
    assert await get(store, new_tasks[0]) == answers[-1].record
    assert await store.get([submitted.id for submitted in new_tasks[1:]]) == [None] * 4


async def test_one_duplicate_does_not_stop_the_rest(store: Store) -> None:
    holder = await add(store, key="taken")
    new_tasks = [new_task(key="a"), new_task(key="taken"), new_task(), new_task(key="b")]
    answers = await store.add(new_tasks)
    assert [added.verdict for added in answers] == [AddVerdict.ADDED, AddVerdict.DUPLICATE, AddVerdict.ADDED, AddVerdict.ADDED]
    assert answers[1].record == holder
    assert [await state_of(store, new_tasks[index]) for index in (0, 2, 3)] == [State.PENDING] * 3


async def test_a_task_that_goes_back_to_pending_keeps_its_key(store: Store, worker: Worker) -> None:
    holder = await add(store, key="k")
    await worker.run(State.PENDING)
    answer = await put(store, key="k")
    assert (answer.verdict, answer.record.id) == (AddVerdict.DUPLICATE, holder.id)


async def test_find_gives_the_task_that_finished_last_not_the_one_submitted_last(store: Store, worker: Worker, clock: ManualClock) -> None:
    first = await task_in(store, worker, State.FAILED, key="k")
    clock.advance(1)
    second = await task_in(store, worker, State.CANCELLED, key="k")
    assert await store.find("work", "k") == second
    clock.advance(1)
    await store.retry([first.id])
    await worker.run(State.SUCCEEDED)
    assert await store.find("work", "k") == await get(store, first)


async def test_find_gives_the_live_task_or_the_latest_finished_one(store: Store, worker: Worker, clock: ManualClock) -> None:
    assert await store.find("work", "k") is None
    first = await add(store, key="k")
    assert await store.find("work", "k") == first
    await worker.run(State.FAILED)
    assert await store.find("work", "k") == await get(store, first)
    clock.advance(1)
    second = await add(store, key="k")
    assert await store.find("work", "k") == second
    clock.advance(1)
    await store.cancel([second.id])
    assert await store.find("work", "k") == await get(store, second)
    await store.retry([first.id])
    assert await store.find("work", "k") == await get(store, first)
    assert await store.find("work", "other") is None
    assert await store.find("other", "k") is None
