"""Cancels and edits inside the caller's own transaction: an intent is left there, and carried out after the commit."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from duetime.errors import InvalidValue
from duetime.ids import new_id
from duetime.model.task import State
from duetime.store import Store
from duetime.store.intents import Intent
from duetime.store.open import store_from_url
from duetime.store.values import ChangeVerdict, Edit
from tests.conformance.build import PLENTY, Worker, add, get, needs, new_task, state_of, task_in
from tests.conformance.conftest import Another
from tests.conformance.connections import Connection
from tests.conformance.stores import StoreKind

DUE = 4_000_000_000_000_000


async def ask(store: Store, connection: Connection, *intents: Intent) -> None:
    """Leave intents in a transaction of their own."""
    connection.begin()
    await store.intend(connection.own, intents)
    connection.commit()


# ---- when ----


async def test_a_cancel_is_carried_out_after_the_commit(store: Store, connection: Connection, worker: Worker) -> None:
    task = await add(store)
    connection.begin()
    connection.execute("insert into orders values (7, 'paid')")
    await store.intend(connection.own, [Intent(task.id)])
    assert connection.in_transaction, "committing is the caller's business"
    assert await store.intents(task.id) == []
    assert await state_of(store, task) is State.PENDING
    connection.commit()
    assert await state_of(store, task) is State.PENDING
    assert await store.intents(task.id) == [Intent(task.id)]
    assert await store.carry_out(PLENTY) == 1
    assert await state_of(store, task) is State.CANCELLED
    assert await worker.take() == []


async def test_nothing_happens_if_the_caller_rolls_back(store: Store, connection: Connection, worker: Worker) -> None:
    task = await add(store)
    connection.begin()
    await store.intend(connection.own, [Intent(task.id), Intent(task.id, Edit(id=task.id, priority=9))])
    connection.rollback()
    assert await store.carry_out(PLENTY) == 0
    assert await get(store, task) == task
    assert [claimed.id for claimed in await worker.take()] == [task.id]


async def test_a_savepoint_can_take_an_intent_back(store: Store, connection: Connection) -> None:
    kept, undone = await add(store), await add(store)
    connection.begin()
    await store.intend(connection.own, [Intent(kept.id)])
    connection.execute("savepoint maybe")
    await store.intend(connection.own, [Intent(undone.id)])
    connection.execute("rollback to maybe")
    connection.commit()
    assert await store.carry_out(PLENTY) == 1
    assert [await state_of(store, kept), await state_of(store, undone)] == [State.CANCELLED, State.PENDING]


async def test_a_task_that_was_submitted_in_the_same_transaction_is_cancelled(store: Store, connection: Connection, worker: Worker) -> None:
    submitted = new_task(key="order-7")
    connection.begin()
    await store.add_on(connection.own, [submitted])
    await store.intend(connection.own, [Intent(submitted.id)])
    connection.commit()
    assert await store.carry_out(PLENTY) == 1
    assert await state_of(store, submitted) is State.CANCELLED
    assert await worker.take() == []


# ---- what ----


async def test_a_running_task_is_told_to_stop(store: Store, connection: Connection, worker: Worker) -> None:
    task = await task_in(store, worker, State.RUNNING)
    await ask(store, connection, Intent(task.id))
    assert await store.carry_out(PLENTY) == 1
    assert [(attempt.id, attempt.cancelling) for attempt in await store.attempts_of(worker.id)] == [(task.id, True)]


async def test_the_children_of_a_cancelled_task_are_freed_and_its_key_too(store: Store, connection: Connection, worker: Worker) -> None:
    parent = await add(store, "parent", key="k")
    child, doomed = await add(store, edges=(needs(parent, end=True),)), await add(store, edges=(needs(parent),))
    await ask(store, connection, Intent(parent.id))
    await store.carry_out(PLENTY)
    assert [claimed.id for claimed in await worker.take()] == [child.id]
    assert await state_of(store, doomed) is State.CANCELLED
    await add(store, "parent", key="k")


async def test_an_edit_changes_what_it_names_and_nothing_else(store: Store, connection: Connection) -> None:
    task = await add(store, collection="eu", priority=3, payload=b'{"old":1}')
    edits = [
        Edit(id=task.id, due_at=DUE),
        Edit(id=task.id, priority=9),
        Edit(id=task.id, collection="us"),
        Edit(id=task.id, payload=b'{"new":1}'),
    ]
    for edit in edits:
        await ask(store, connection, Intent(task.id, edit))
        assert await store.intents(task.id) == [Intent(task.id, edit)]
        assert await store.carry_out(PLENTY) == 1
    record = await get(store, task)
    assert (record.due_at, record.priority, record.collection, record.payload) == (DUE, 9, "us", b'{"new":1}')
    assert record.state is State.PENDING


async def test_the_payload_of_a_task_that_failed_can_be_edited(store: Store, connection: Connection, worker: Worker) -> None:
    task = await task_in(store, worker, State.FAILED)
    await ask(store, connection, Intent(task.id, Edit(id=task.id, payload=b'{"new":1}')))
    assert await store.carry_out(PLENTY) == 1
    record = await get(store, task)
    assert (record.state, record.payload) == (State.FAILED, b'{"new":1}')


async def test_intents_are_carried_out_in_the_order_of_the_transaction(store: Store, connection: Connection) -> None:
    first, second = await add(store), await add(store)
    await ask(
        store,
        connection,
        Intent(first.id, Edit(id=first.id, priority=9, payload=b'{"n":1}')),
        Intent(first.id, Edit(id=first.id, priority=8)),
        Intent(first.id),
        Intent(second.id),
        Intent(second.id, Edit(id=second.id, priority=9)),
        Intent(first.id, Edit(id=first.id, payload=b'{"n":2}')),
        Intent(second.id),
    )
    assert await store.carry_out(PLENTY) == 7
    one, two = await get(store, first), await get(store, second)
    assert (one.state, one.priority, one.payload) == (State.CANCELLED, 8, b'{"n":2}')
    assert (two.state, two.priority) == (State.CANCELLED, second.priority)
    assert await store.carry_out(PLENTY) == 0


# ---- without effect ----


@pytest.mark.parametrize("state", [State.SUCCEEDED, State.FAILED, State.CANCELLED])
async def test_intents_about_a_task_that_ended_meanwhile_have_no_effect_and_are_gone(
    store: Store, connection: Connection, worker: Worker, state: State
) -> None:
    record = await task_in(store, worker, state)
    await ask(store, connection, Intent(record.id), Intent(record.id, Edit(id=record.id, priority=9)))
    assert await store.carry_out(PLENTY) == 2
    assert await get(store, record) == record
    assert await store.intents(record.id) == []
    assert await store.carry_out(PLENTY) == 0


async def test_an_edit_of_a_task_that_runs_meanwhile_has_no_effect_and_is_gone(
    store: Store, connection: Connection, worker: Worker
) -> None:
    record = await task_in(store, worker, State.RUNNING)
    await ask(store, connection, Intent(record.id, Edit(id=record.id, priority=9, payload=b'{"n":1}')))
    assert await store.carry_out(PLENTY) == 1
    assert await get(store, record) == record
    assert await store.carry_out(PLENTY) == 0


async def test_intents_about_unknown_tasks_have_no_effect_and_are_gone(store: Store, connection: Connection) -> None:
    ids = [new_id(), new_id(), "order-7"]
    await ask(store, connection, *(Intent(each) for each in ids), Intent(ids[0], Edit(id=ids[0], priority=9)))
    await store.carry_out(PLENTY)
    assert [await store.intents(each) for each in ids] == [[], [], []]
    assert await store.carry_out(PLENTY) == 0


async def test_a_repeat_is_harmless(store: Store, connection: Connection, worker: Worker) -> None:
    task = await add(store)
    await ask(store, connection, Intent(task.id), Intent(task.id))
    assert await store.carry_out(PLENTY) == 2
    await ask(store, connection, Intent(task.id))
    assert await store.carry_out(PLENTY) == 1
    assert await state_of(store, task) is State.CANCELLED


async def test_an_intent_has_its_effect_once(store: Store, connection: Connection) -> None:
    """Otherwise one that is not forgotten would cancel a task again that an operator has retried."""
    task = await add(store)
    await ask(store, connection, Intent(task.id))
    await store.carry_out(PLENTY)
    assert await store.retry([task.id]) == [ChangeVerdict.CHANGED]
    assert await store.carry_out(PLENTY) == 0
    assert await state_of(store, task) is State.PENDING


async def test_an_empty_batch_leaves_nothing(store: Store, connection: Connection) -> None:
    connection.begin()
    await store.intend(connection.own, [])
    assert await store.get_on(connection.own, []) == []
    connection.commit()
    assert await store.carry_out(PLENTY) == 0


# ---- many ----


async def test_a_call_carries_out_no_more_than_its_limit_the_oldest_first(store: Store, connection: Connection) -> None:
    tasks = [await add(store) for _ in range(7)]
    await ask(store, connection, *(Intent(task.id) for task in tasks))
    assert [await store.carry_out(3) for _ in range(4)] == [3, 3, 1, 0]
    assert {await state_of(store, task) for task in tasks} == {State.CANCELLED}


async def test_several_processes_carry_out_each_intent_once(store: Store, connection: Connection, another: Another) -> None:
    tasks = [added.record for added in await store.add([new_task() for _ in range(60)])]
    others = [await another() for _ in range(3)]
    await ask(
        store,
        connection,
        *(Intent(task.id, Edit(id=task.id, priority=9)) for task in tasks),
        *(Intent(task.id) for task in tasks[:30]),
    )
    done = 0
    while done < 90:
        done += sum(await asyncio.gather(*(each.carry_out(40) for each in (store, *others))))
    assert done == 90
    records = [await get(store, task) for task in tasks]
    assert [record.state for record in records] == [State.CANCELLED] * 30 + [State.PENDING] * 30
    assert {record.priority for record in records} == {9}


# ---- on the caller's connection ----


async def test_the_caller_sees_the_tasks_of_the_transaction(store: Store, connection: Connection) -> None:
    before, submitted = await add(store, key="before"), new_task(key="k", payload=b'{"n":1}')
    connection.begin()
    [added] = await store.add_on(connection.own, [submitted])
    assert await store.get_on(connection.own, [submitted.id, before.id, new_id()]) == [added.record, before, None]
    assert await store.find_on(connection.own, "work", "k") == added.record
    assert await store.find_on(connection.own, "work", "before") == before
    assert await store.find_on(connection.own, "work", "other") is None
    connection.rollback()


async def test_a_connection_without_a_transaction_is_refused(store: Store, connection: Connection) -> None:
    task = await add(store)
    for call in (store.intend(connection.own, [Intent(task.id)]), store.get_on(connection.own, [task.id])):
        with pytest.raises(InvalidValue, match=r"(?i)transaction"):
            await call
    with pytest.raises(InvalidValue, match=r"(?i)transaction"):
        await store.find_on(connection.own, "work", "k")
    assert not connection.in_transaction
    assert await store.carry_out(PLENTY) == 0


async def test_a_connection_to_another_store_is_refused(store: Store, kind: StoreKind, connection: Connection, tmp_path: Path) -> None:
    url, other = kind.databases.second(tmp_path)
    stranger = store_from_url(url)
    await stranger.open()
    task = await add(store)
    other.begin()
    with pytest.raises(InvalidValue):
        await store.intend(other.own, [Intent(task.id)])
    other.commit()
    assert await stranger.carry_out(PLENTY) == 0
    other.close()
    await stranger.close()


@pytest.mark.parametrize("thing", [None, "sqlite:///x.db", 7, object()])
async def test_something_that_is_no_connection_is_refused(store: Store, thing: object) -> None:
    with pytest.raises(InvalidValue, match=r"(?i)connection"):
        await store.intend(thing, [Intent(new_id())])


async def test_the_calls_work_in_a_thread_of_the_callers_without_an_event_loop(
    store: Store, kind: StoreKind, connection: Connection, tmp_path: Path
) -> None:
    """They never suspend; and a connection may refuse every thread but its own."""
    task = await add(store, key="k")
    problems: list[BaseException] = []

    def pay() -> None:
        own = kind.databases.connect(tmp_path)
        try:
            own.begin()
            calls = (
                store.get_on(own.own, [task.id]),
                store.find_on(own.own, "work", "k"),
                store.intend(own.own, [Intent(task.id)]),
            )
            for call in calls:
                with pytest.raises(StopIteration):
                    call.send(None)
            own.commit()
        except BaseException as problem:
            problems.append(problem)
        finally:
            own.close()

    thread = threading.Thread(target=pay)
    thread.start()
    thread.join()
    assert problems == []
    assert await store.carry_out(PLENTY) == 1
    assert await state_of(store, task) is State.CANCELLED
