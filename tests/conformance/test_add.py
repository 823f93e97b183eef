"""Submitting: when a task is due, what is kept of it, and repeats."""

from __future__ import annotations

import pytest

from duetime.clock import LATEST, SECOND, ManualClock
from duetime.ids import new_id
from duetime.model.task import State, TaskRecord
from duetime.store import Store
from duetime.store.values import AddVerdict
from tests.conformance.build import Worker, add, get, new_task, put, task_in


async def test_a_task_without_a_time_is_due_now(store: Store, clock: ManualClock) -> None:
    record = await add(store)
    assert (record.state, record.due_at, record.submitted_at) == (State.PENDING, clock.now(), clock.now())


async def test_a_task_is_due_at_its_due_time(store: Store, clock: ManualClock) -> None:
    assert (await add(store, due_at=clock.now() + 1)).due_at == clock.now() + 1


async def test_a_delay_counts_from_the_stores_now(store: Store, clock: ManualClock) -> None:
    submitted = new_task(delay=30 * SECOND)
    clock.advance(3600)
    [added] = await store.add([submitted])
    assert added.record.due_at == clock.now() + 30 * SECOND


async def test_a_due_time_in_the_past_is_kept_as_it_was(store: Store, clock: ManualClock) -> None:
    assert (await add(store, due_at=clock.now() - 3600 * SECOND)).due_at == clock.now() - 3600 * SECOND
    assert (await add(store, due_at=1)).due_at == 1


async def test_a_due_time_in_the_year_9999_is_kept(store: Store, worker: Worker) -> None:
    record = await add(store, due_at=LATEST)
    assert (await get(store, record)).due_at == LATEST
    assert await worker.take() == []


async def test_an_expiry_is_an_instant_or_counts_from_the_due_time(store: Store, clock: ManualClock) -> None:
    now = clock.now()
    assert (await add(store)).expires_at is None
    assert (await add(store, expires_at=now + 7)).expires_at == now + 7
    assert (await add(store, due_at=now + 100, expires_in=20)).expires_at == now + 120
    assert (await add(store, delay=50, expires_in=20)).expires_at == now + 70


async def test_an_expiry_counts_from_a_due_time_in_the_past_too(store: Store, clock: ManualClock) -> None:
    assert (await add(store, due_at=clock.now() - 100, expires_in=20)).expires_at == clock.now() - 80


async def test_everything_in_a_task_is_kept(store: Store, clock: ManualClock) -> None:
    submitted = new_task(
        "orders.expire",
        b'{"order_id": 7}',
        due_at=clock.now() + 5,
        key="order-7",
        collection="eu",
        priority=9,
        timeout=12.5,
        retry=b'{"tries": 3}',
        expires_at=clock.now() + 9,
        meta={"trace": "00-ab", "tenant": "shop"},
        submitted_by="web-1",
        schedule="nightly",
        planned_at=clock.now() + 4,
    )
    [added] = await store.add([submitted])
    assert added.verdict is AddVerdict.ADDED
    assert added.record == TaskRecord(
        id=submitted.id,
        handler="orders.expire",
        state=State.PENDING,
        payload=b'{"order_id": 7}',
        due_at=clock.now() + 5,
        submitted_at=clock.now(),
        submitted_by="web-1",
        key="order-7",
        collection="eu",
        priority=9,
        timeout=12.5,
        retry=b'{"tries": 3}',
        expires_at=clock.now() + 9,
        meta={"trace": "00-ab", "tenant": "shop"},
        schedule="nightly",
        planned_at=clock.now() + 4,
    )
    assert await store.get([submitted.id]) == [added.record]


@pytest.mark.parametrize("priority", range(10))
async def test_every_priority_is_kept(store: Store, priority: int) -> None:
    assert (await add(store, priority=priority)).priority == priority


async def test_the_answers_come_in_the_order_of_the_tasks(store: Store) -> None:
    new_tasks = [new_task(handler) for handler in ("b", "a", "c", "a", "b")]
    answers = await store.add(new_tasks)
    assert [added.record.id for added in answers] == [submitted.id for submitted in new_tasks]
    assert [added.record.handler for added in answers] == ["b", "a", "c", "a", "b"]


@pytest.mark.parametrize("state", State)
async def test_a_task_whose_id_is_stored_is_a_repeat_in_every_state(store: Store, worker: Worker, clock: ManualClock, state: State) -> None:
    stored = await task_in(store, worker, state, key="k")
    clock.advance(60)
    again = await put(store, "elsewhere", b'{"other": 1}', id=stored.id, due_at=5, priority=1, key="other", if_exists="replace")
    assert again.verdict is AddVerdict.REPEATED
    assert again.record == stored
    assert await get(store, stored) == stored
    assert await store.find("elsewhere", "other") is None


async def test_a_repeat_with_the_same_key_is_no_duplicate(store: Store) -> None:
    stored = await add(store, key="k")
    for if_exists in ("error", "keep", "replace"):
        again = await put(store, id=stored.id, key="k", if_exists=if_exists, payload=b'{"new": 1}')
        assert (again.verdict, again.record) == (AddVerdict.REPEATED, stored)


async def test_a_finished_task_is_a_repeat_although_another_holds_its_key_by_now(store: Store, worker: Worker) -> None:
    finished = await task_in(store, worker, State.SUCCEEDED, key="k")
    holder = await add(store, key="k")
    for if_exists in ("error", "keep", "replace"):
        again = await put(store, id=finished.id, key="k", if_exists=if_exists, payload=b'{"new": 1}')
        assert (again.verdict, again.record) == (AddVerdict.REPEATED, finished)
    assert await get(store, holder) == holder


async def test_a_finished_task_is_a_repeat_although_an_earlier_task_of_the_call_takes_its_key(store: Store) -> None:
    finished = new_task(key="k")
    await store.add([finished])
    await store.cancel([finished.id])
    answers = await store.add([new_task(key="k"), finished])
    assert [(added.verdict, added.record.state) for added in answers] == [
        (AddVerdict.ADDED, State.PENDING),
        (AddVerdict.REPEATED, State.CANCELLED),
    ]


async def test_an_id_twice_in_one_call_is_stored_once(store: Store, worker: Worker) -> None:
    submitted = new_task()
    first, second = await store.add([submitted, submitted])
    assert (first.verdict, second.verdict) == (AddVerdict.ADDED, AddVerdict.REPEATED)
    assert second.record == first.record
    assert [task.id for task in await worker.take()] == [submitted.id]


async def test_a_whole_batch_can_be_repeated(store: Store) -> None:
    new_tasks = [new_task(key=str(number)) for number in range(20)]
    first = await store.add(new_tasks)
    second = await store.add(new_tasks)
    assert {added.verdict for added in second} == {AddVerdict.REPEATED}
    assert [added.record for added in second] == [added.record for added in first]


async def test_an_unknown_id_is_answered_with_none(store: Store) -> None:
    record = await add(store)
    assert await store.get([new_id(), record.id, new_id()]) == [None, record, None]
    assert await store.get([record.id, record.id]) == [record, record]
