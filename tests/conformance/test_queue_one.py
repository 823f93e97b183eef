"""`if_exists="queue_one"`: of the tasks with one key one runs and at most one waits, with the newest arguments."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from duetime.clock import SECOND, ManualClock
from duetime.model.gate import Gate, GateAction
from duetime.model.outcome import Outcome
from duetime.model.task import FINAL, State
from duetime.store import Store
from duetime.store.values import Added, AddVerdict
from tests.conformance.build import Worker, add, get, needs, new_task, put, state_of, task_in
from tests.conformance.conftest import Another


def payload(number: int) -> bytes:
    return b'{"n": %d}' % number


async def holder_of_k(store: Store) -> str | None:
    found = await store.find("work", "k")
    return None if found is None else found.id


async def line(store: Store, number: int, **options: Any) -> Added:
    return await put(store, key="k", if_exists="queue_one", payload=payload(number), **options)


@pytest.mark.parametrize("state", sorted(FINAL))
async def test_a_finished_task_has_nobody_behind_it(store: Store, worker: Worker, state: State) -> None:
    await task_in(store, worker, state, key="k")
    added = await line(store, 1)
    assert (added.verdict, added.record.state) == (AddVerdict.ADDED, State.PENDING)


@pytest.mark.parametrize("state", [State.BLOCKED, State.PENDING])
async def test_a_waiting_task_takes_the_newest_arguments(store: Store, worker: Worker, clock: ManualClock, state: State) -> None:
    holder = await task_in(store, worker, state, key="k", payload=payload(0))
    answer = await line(store, 1, priority=8, delay=60 * SECOND)
    assert (answer.verdict, answer.record.id, answer.record.payload, answer.record.state) == (
        AddVerdict.REPLACED,
        holder.id,
        payload(1),
        state,
    )
    assert (answer.record.priority, answer.record.due_at) == (8, clock.now() + 60 * SECOND)
    assert answer.record.merged is not None
    assert answer.record.merged.submissions == 2


async def test_behind_a_running_task_waits_one_with_the_newest_arguments(store: Store, worker: Worker) -> None:
    holder = await task_in(store, worker, State.RUNNING, key="k")
    first = await line(store, 1)
    assert (first.verdict, first.record.state, first.record.key) == (AddVerdict.ADDED, State.BLOCKED, "k")
    second = await line(store, 2, collection="eu")
    assert (second.verdict, second.record.id, second.record.payload) == (AddVerdict.REPLACED, first.record.id, payload(2))
    assert [edge.parent for edge in await store.unmet_edges(first.record.id)] == [holder.id]
    assert await worker.take() == []
    assert await holder_of_k(store) == holder.id


@pytest.mark.parametrize("if_exists", ["error", "keep", "replace"])
async def test_others_meet_the_running_task_and_not_the_one_behind_it(store: Store, worker: Worker, if_exists: str) -> None:
    holder = await task_in(store, worker, State.RUNNING, key="k")
    await line(store, 1)
    answer = await put(store, key="k", if_exists=if_exists)
    assert (answer.verdict, answer.record.id) == (AddVerdict.KEPT if if_exists == "keep" else AddVerdict.DUPLICATE, holder.id)


@pytest.mark.parametrize("end", ["succeeded", "failed", "cancelled", "quarantined"])
async def test_when_the_running_one_has_ended_the_next_has_the_key_and_starts(store: Store, worker: Worker, end: str) -> None:
    holder = await add(store, key="k")
    [running] = await worker.take()
    behind = (await line(store, 1)).record
    if end == "quarantined":
        await worker.end(running, State.FAILED, outcome=Outcome.LOST)
    else:
        if end == "cancelled":
            await store.cancel([holder.id])
        await worker.end(running, State(end))
    assert await holder_of_k(store) == behind.id
    assert (await put(store, key="k")).verdict is AddVerdict.DUPLICATE
    again = await line(store, 2)
    assert (again.verdict, again.record.id) == (AddVerdict.REPLACED, behind.id)
    [started] = await worker.take()
    assert (started.id, started.payload.encode()) == (behind.id, payload(2))
    after = await line(store, 3)
    assert (after.verdict, after.record.state) == (AddVerdict.ADDED, State.BLOCKED)


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.RETRY_LATER, Outcome.RELEASED, Outcome.LOST])
async def test_the_next_one_waits_while_the_first_is_tried_again(store: Store, worker: Worker, outcome: Outcome) -> None:
    holder = await add(store, key="k")
    [running] = await worker.take()
    behind = (await line(store, 1)).record
    await worker.end(running, State.PENDING, outcome=outcome)
    [retried] = await worker.take()
    assert retried.id == holder.id
    again = await line(store, 2)
    assert (again.verdict, again.record.id, again.record.state) == (AddVerdict.REPLACED, behind.id, State.BLOCKED)
    await worker.end(retried, State.SUCCEEDED)
    assert [task.id for task in await worker.take()] == [behind.id]


@pytest.mark.parametrize("end", ["cancelled", "dropped", "expired", "deleted"])
async def test_a_first_one_that_waits_for_a_retry_may_end_without_running(
    store: Store, worker: Worker, clock: ManualClock, end: str
) -> None:
    holder = await add(store, key="k", expires_at=clock.now() + 10 * SECOND)
    [running] = await worker.take()
    behind = (await line(store, 1)).record
    await worker.end(running, State.PENDING)
    match end:
        case "cancelled":
            await store.cancel([holder.id])
        case "expired":
            clock.advance(11)
            assert await store.expire(10) == 1
        case "deleted":
            await store.delete([holder.id])
        case _:
            await store.put_gate(Gate(handler="work", action=GateAction.DROP))
            assert await store.drop(10) == 1
    assert await holder_of_k(store) == behind.id
    assert await state_of(store, behind) is State.PENDING


async def test_the_one_that_waits_can_be_cancelled_and_another_takes_over(store: Store, worker: Worker) -> None:
    await task_in(store, worker, State.RUNNING, key="k")
    behind = (await line(store, 1)).record
    await store.cancel([behind.id])
    other = await line(store, 2)
    assert (other.verdict, other.record.state) == (AddVerdict.ADDED, State.BLOCKED)
    assert other.record.id != behind.id


async def test_an_older_submission_overwrites_no_newer_one(store: Store, worker: Worker) -> None:
    await task_in(store, worker, State.RUNNING, key="k")
    older, newer = [new_task(key="k", if_exists="queue_one", payload=payload(n)) for n in (1, 2)]
    [first] = await store.add([newer])
    [late] = await store.add([older])
    assert (late.verdict, late.record) == (AddVerdict.KEPT, first.record)
    newest = new_task(key="k", if_exists="queue_one", payload=payload(3))
    assert [(await store.add([newest]))[0].verdict for _ in range(2)] == [AddVerdict.REPLACED, AddVerdict.KEPT]
    [repeat] = await store.add([newer])
    assert (repeat.verdict, repeat.record.payload) == (AddVerdict.REPEATED, payload(3))


async def test_it_waits_for_what_it_needs_besides(store: Store, worker: Worker) -> None:
    parent = await add(store, "parent")
    await add(store, key="k")
    [running] = await worker.take()
    behind = (await line(store, 1, edges=(needs(parent),))).record
    await worker.end(running, State.SUCCEEDED)
    assert await holder_of_k(store) == behind.id
    assert await state_of(store, behind) is State.BLOCKED
    await worker.run(State.SUCCEEDED, "parent")
    assert [task.id for task in await worker.take()] == [behind.id]


async def test_what_it_needs_may_have_failed_already(store: Store, worker: Worker) -> None:
    parent = await task_in(store, worker, State.FAILED, handler="parent")
    await task_in(store, worker, State.RUNNING, key="k")
    vain = await line(store, 1, edges=(needs(parent),))
    assert (vain.verdict, vain.record.state, vain.record.key) == (AddVerdict.ADDED, State.CANCELLED, "k")
    assert (await line(store, 2)).record.state is State.BLOCKED


async def test_many_of_one_call_are_one_that_runs_and_one_that_waits(store: Store, worker: Worker) -> None:
    holder = await task_in(store, worker, State.RUNNING, key="k")
    answers = await store.add([new_task(key="k", if_exists="queue_one", payload=payload(n)) for n in range(5)])
    assert [answer.verdict for answer in answers] == [AddVerdict.ADDED, *[AddVerdict.REPLACED] * 4]
    assert len({answer.record.id for answer in answers} - {holder.id}) == 1
    assert answers[-1].record.payload == payload(4)


async def test_many_at_once_leave_one_behind_the_running_one(store: Store, another: Another, worker: Worker) -> None:
    second_store = await another()
    await task_in(store, worker, State.RUNNING, key="k")
    tasks = [new_task(key="k", if_exists="queue_one", payload=payload(n)) for n in range(20)]
    answers = await asyncio.gather(*[(store, second_store)[n % 2].add([task]) for n, task in enumerate(tasks)])
    [id] = {answer[0].record.id for answer in answers}
    record = await get(store, id)
    assert record.payload == payload(19)
    assert [answer[0].verdict for answer in answers].count(AddVerdict.ADDED) == 1


async def test_ends_and_submissions_at_once_lose_nothing(store: Store, another: Another, worker: Worker) -> None:
    """Whatever comes first, the newest arguments run, and never two at once."""
    second_store = await another()
    await add(store, key="k", payload=payload(0))
    [running] = await worker.take()
    for number in range(1, 16):
        task = new_task(key="k", if_exists="queue_one", payload=payload(number))
        await asyncio.gather(worker.end(running, State.SUCCEEDED), second_store.add([task]))
        [running] = await worker.take()
        assert running.payload.encode() == payload(number)
    await worker.end(running, State.SUCCEEDED)
    assert await worker.take() == []
