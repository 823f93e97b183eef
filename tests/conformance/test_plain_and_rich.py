"""Plain tasks beside tasks with more to tell: a store may keep them in different ways, and whatever happens to them is the same."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from duetime.clock import SECOND, ManualClock
from duetime.ids import new_id
from duetime.model.gate import Gate, GateAction
from duetime.model.outcome import Outcome, SettleVerdict
from duetime.model.query import Query
from duetime.model.task import NewTask, State, TaskRecord
from duetime.store import Store
from duetime.store.values import AddVerdict, CancelVerdict, ChangeVerdict, ClaimedTask, Edit
from tests.conformance.build import PLENTY, Worker, add, ended, get, needs, new_task
from tests.conformance.conftest import Hire

MANY = 80  # so many that neighbours can be settled by a shorter way
CARRIED = ("handler", "submitted_at", "submitted_by", "timeout", "key", "collection", "priority", "schedule", "planned_at")


def mixture(number: int = MANY, **options: Any) -> list[NewTask[object]]:
    """Make tasks of which every second one is plain, and the others have this or that besides."""
    rich: list[dict[str, Any]] = [
        {"meta": {"shop": "eu"}},
        {"timeout": 7.5},
        {"payload": b'{"text": "' + b"x" * 2_000 + b'"}'},
        {"retry": b'{"max_tries": 9}'},
    ]
    new_tasks = []
    for index in range(number):
        more = rich[index // 2 % len(rich)] if index % 2 else {}
        new_tasks.append(new_task(**({"payload": b'{"place": %d}' % index, "submitted_by": f"web-{index % 3}"} | options | more)))
    return new_tasks


async def mixed(store: Store, number: int = MANY, **options: Any) -> list[TaskRecord]:
    added = await store.add(mixture(number, **options))
    assert {each.verdict for each in added} == {AddVerdict.ADDED}
    return [each.record for each in added]


def carried(record: TaskRecord) -> list[object]:
    """Give what nothing that happens to a task may change."""
    return [record.payload, record.meta or None, record.retry, *(getattr(record, name) for name in CARRIED)]


async def check(store: Store, records: list[TaskRecord], state: State) -> list[TaskRecord]:
    """Compare tasks with what they were, and give what they are now."""
    now = [await get(store, record) for record in records]
    for before, after in zip(records, now, strict=True):
        assert carried(after) == carried(before)
        assert (after.state, after.expires_at) == (state, before.expires_at)
    counts = await store.counts()
    live = sum(lane.due + lane.later + lane.blocked + lane.running for lane in counts.lanes)
    assert live + sum(final.count for final in counts.finals) == len(records)
    assert await store.inspect(repair=False) == []
    return now


def same(task: ClaimedTask, record: TaskRecord) -> bool:
    facts = (task.payload.encode(), task.meta or None, None if task.retry is None else task.retry.encode(), task.since_at)
    return facts == (record.payload, record.meta or None, record.retry, record.due_at) and all(
        getattr(task, name) == getattr(record, name) for name in CARRIED
    )


async def take_all(worker: Worker, records: list[TaskRecord]) -> list[ClaimedTask]:
    """Claim all of them; each carries what it was submitted with."""
    tasks = {task.id: task for task in await worker.take()}
    assert tasks.keys() == {record.id for record in records}
    assert all(same(tasks[record.id], record) for record in records)
    return list(tasks.values())


@pytest.mark.parametrize("result", [None, b'"told"'], ids=["silent", "with results"])
async def test_they_succeed_in_one_batch(store: Store, worker: Worker, clock: ManualClock, result: bytes | None) -> None:
    records = await mixed(store)
    tasks = await take_all(worker, records)
    await check(store, records, State.RUNNING)
    clock.advance(1)
    settlements = [ended(task, State.SUCCEEDED, at=clock.now() + index, result=result) for index, task in enumerate(tasks)]
    assert await store.settle(worker.id, settlements) == [SettleVerdict.ACCEPTED] * MANY
    for record in await check(store, records, State.SUCCEEDED):
        assert (record.result, record.attempt, record.worker) == (result, 1, worker.id)
        assert record.due_at == records[0].due_at
    assert await store.settle(worker.id, settlements) == [SettleVerdict.ALREADY] * MANY


async def test_part_of_a_claim_succeeds_and_part_goes_back(store: Store, worker: Worker, clock: ManualClock) -> None:
    records = await mixed(store)
    tasks = await take_all(worker, records)
    clock.advance(2)
    await store.settle(worker.id, [ended(task, State.SUCCEEDED, at=clock.now()) for task in tasks[: MANY // 2]])
    await store.settle(worker.id, [ended(task, State.PENDING, at=clock.now()) for task in tasks[MANY // 2 :]])
    again = {task.id: task for task in await worker.take()}
    assert again.keys() == {task.id for task in tasks[MANY // 2 :]}
    by_id = {record.id: record for record in records}
    for task in again.values():
        assert same(task, by_id[task.id])
        assert (task.attempt, task.tries, task.due_at) == (2, 1, clock.now())
    await store.settle(worker.id, [ended(task, State.SUCCEEDED, at=clock.now()) for task in again.values()])
    await check(store, records, State.SUCCEEDED)


async def _by_an_edit(store: Store, worker: Worker, ids: list[str], clock: ManualClock) -> None:
    later = clock.now() + 10 * SECOND
    assert set(await store.edit([Edit(id=id, due_at=later) for id in ids])) == {ChangeVerdict.CHANGED}
    clock.advance(10)


async def _by_a_retry(store: Store, worker: Worker, ids: list[str], clock: ManualClock) -> None:
    await store.settle(worker.id, [ended(task, State.PENDING, at=clock.now()) for task in await worker.take()])


async def _by_a_release(store: Store, worker: Worker, ids: list[str], clock: ManualClock) -> None:
    tasks = await worker.take()
    await store.settle(worker.id, [ended(task, State.PENDING, at=clock.now(), outcome=Outcome.RELEASED) for task in tasks])


async def _by_a_cancel_and_an_operators_retry(store: Store, worker: Worker, ids: list[str], clock: ManualClock) -> None:
    assert set(await store.cancel(ids)) == {CancelVerdict.CANCELLED}
    assert set(await store.retry(ids)) == {ChangeVerdict.CHANGED}


async def _by_a_drop_and_an_operators_retry(store: Store, worker: Worker, ids: list[str], clock: ManualClock) -> None:
    await store.put_gate(Gate(handler="work", action=GateAction.DROP))
    assert await store.drop(PLENTY) == len(ids)
    await store.remove_gate("work", None)
    assert set(await store.retry(ids)) == {ChangeVerdict.CHANGED}


@pytest.mark.parametrize(
    "happens",
    [_by_an_edit, _by_a_retry, _by_a_release, _by_a_cancel_and_an_operators_retry, _by_a_drop_and_an_operators_retry],
    ids=lambda happens: happens.__name__.strip("_"),
)
async def test_they_come_back_as_they_were(
    store: Store, worker: Worker, clock: ManualClock, happens: Callable[[Store, Worker, list[str], ManualClock], Awaitable[None]]
) -> None:
    records = await mixed(store)
    await happens(store, worker, [record.id for record in records], clock)
    await check(store, records, State.PENDING)
    tasks = await worker.take()
    assert {task.id for task in tasks} == {record.id for record in records}
    await check(store, records, State.RUNNING)
    settlements = [ended(task, State.SUCCEEDED, at=clock.now()) for task in tasks]
    assert await store.settle(worker.id, settlements) == [SettleVerdict.ACCEPTED] * MANY
    await check(store, records, State.SUCCEEDED)


async def test_a_worker_that_leaves_gives_back_both(store: Store, worker: Worker, hire: Hire, clock: ManualClock) -> None:
    records = await mixed(store)
    leaving = await hire(store)
    assert len(await leaving.take()) == MANY
    clock.advance(1)
    await store.unregister(leaving.id)
    await check(store, records, State.PENDING)
    await take_all(worker, records)


async def test_a_cancel_reaches_both_while_they_run(store: Store, worker: Worker, clock: ManualClock) -> None:
    records = await mixed(store)
    tasks = await take_all(worker, records)
    assert set(await store.cancel([record.id for record in records])) == {CancelVerdict.CANCELLING}
    assert {(await get(store, record)).cancelling for record in records} == {True}
    await store.settle(worker.id, [ended(task, State.PENDING, at=clock.now()) for task in tasks])
    await check(store, records, State.CANCELLED)


async def test_what_is_said_again_is_known_wherever_the_tasks_are(store: Store, worker: Worker, clock: ManualClock) -> None:
    """The answer to a submit may be lost, and the caller says it again: alone, beside new tasks, or one by one."""
    new_tasks = mixture(12)
    await store.add(new_tasks)

    async def say_again() -> None:
        assert [added.verdict for added in await store.add(new_tasks)] == [AddVerdict.REPEATED] * len(new_tasks)
        assert {(await store.add([each]))[0].verdict for each in new_tasks} == {AddVerdict.REPEATED}
        new, keyed = new_task("other"), new_task("other", key=new_id())
        answers = await store.add([new, *new_tasks, keyed, new_task("other", edges=(needs(new_tasks[0], end=True),))])
        assert [added.verdict for added in answers] == [AddVerdict.ADDED, *[AddVerdict.REPEATED] * len(new_tasks), *[AddVerdict.ADDED] * 2]
        assert await store.inspect(repair=False) == []

    await say_again()
    tasks = await worker.take()
    assert len(tasks) == len(new_tasks)
    await say_again()
    assert await worker.take() == []
    await store.settle(worker.id, [ended(task, State.PENDING, at=clock.now()) for task in tasks])
    await say_again()
    tasks = await worker.take()
    assert len(tasks) == len(new_tasks)
    await say_again()
    await store.settle(worker.id, [ended(task, State.SUCCEEDED, at=clock.now()) for task in tasks])
    await say_again()
    assert await worker.take() == []


async def test_a_child_may_wait_for_both_wherever_they_are(store: Store, worker: Worker, clock: ManualClock) -> None:
    parents = mixture(4)
    await store.add(parents)
    waiting = [await add(store, "child", edges=tuple(map(needs, parents)))]
    tasks = await worker.take()
    waiting.append(await add(store, "child", edges=tuple(map(needs, parents))))
    await store.settle(worker.id, [ended(task, State.PENDING, at=clock.now()) for task in tasks])
    waiting.append(await add(store, "child", edges=tuple(map(needs, parents))))
    tasks = await worker.take()
    waiting.append(await add(store, "child", edges=tuple(map(needs, parents))))
    assert {(await get(store, child)).state for child in waiting} == {State.BLOCKED}
    await store.tidy()  # must not take parents for gone
    assert {(await get(store, child)).state for child in waiting} == {State.BLOCKED}
    await store.settle(worker.id, [ended(task, State.SUCCEEDED, at=clock.now()) for task in tasks])
    assert {(await get(store, child)).state for child in waiting} == {State.PENDING}
    assert await store.inspect(repair=False) == []


async def test_lists_tell_both_in_the_order_of_submitting(store: Store, worker: Worker, clock: ManualClock) -> None:
    records: list[TaskRecord] = []
    for state in (State.PENDING, State.RUNNING, State.SUCCEEDED, State.PENDING):
        records += (new := await mixed(store, 8, handler=f"h{len(records)}", collection="eu" if records else None))
        clock.advance(1)
        if state is not State.PENDING:
            tasks = await worker.take(new[0].handler)
            if state is State.SUCCEEDED:
                await store.settle(worker.id, [ended(task, state, at=clock.now()) for task in tasks])

    async def listed(**filters: Any) -> list[str]:
        found: list[str] = []
        cursor = None
        while True:
            page = await store.page(Query(limit=3, cursor=cursor, **filters))
            found += [record.id for record in page.items]
            cursor = page.next
            if cursor is None:
                return found

    def wanted(rule: Callable[[TaskRecord], bool]) -> list[str]:
        return sorted((record.id for record in records if rule(record)), reverse=True)

    now = {record.id: await get(store, record) for record in records}
    middle = records[12].submitted_at
    assert await listed() == wanted(lambda record: True)
    assert await listed(collection="eu") == wanted(lambda record: record.collection == "eu")
    assert await listed(handler="h8") == wanted(lambda record: record.handler == "h8")
    assert await listed(submitted_after=middle) == wanted(lambda record: record.submitted_at >= middle)
    assert await listed(submitted_before=middle) == wanted(lambda record: record.submitted_at < middle)
    assert await listed(due_after=middle) == wanted(lambda record: now[record.id].due_at >= middle)
    assert await listed(due_before=middle) == wanted(lambda record: now[record.id].due_at < middle)
    assert await listed(retrying=False) == wanted(lambda record: True)
    assert await listed(key="none") == []
    for state in (State.PENDING, State.RUNNING):
        of_state = [id for id in wanted(lambda record: True) if now[id].state is state]
        assert await listed(state=state) == of_state
        assert await listed(state=state, submitted_after=middle) == [id for id in of_state if now[id].submitted_at >= middle]
        assert await listed(state=state, due_before=middle) == [id for id in of_state if now[id].due_at < middle]
        assert await listed(state=state, handler="h0") == [id for id in of_state if now[id].handler == "h0"]
