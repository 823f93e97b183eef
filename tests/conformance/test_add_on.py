"""Submitting inside the caller's own transaction."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from duetime.errors import InvalidValue, TaskNotFound
from duetime.ids import new_id
from duetime.model.task import Edge, State
from duetime.store import Store
from duetime.store.open import store_from_url
from duetime.store.values import AddVerdict
from tests.conformance.build import Worker, add, get, new_task, put, state_of
from tests.conformance.connections import Connection
from tests.conformance.stores import StoreKind


async def test_the_task_exists_when_the_caller_commits(store: Store, connection: Connection, worker: Worker) -> None:
    submitted = new_task(key="order-7", payload=b'{"order_id": 7}')
    connection.begin()
    connection.execute("insert into orders values (7, 'placed')")
    [added] = await store.add_on(connection.own, [submitted])
    assert (added.verdict, added.record.id, added.record.state) == (AddVerdict.ADDED, submitted.id, State.PENDING)
    assert connection.in_transaction, "committing is the caller's business"
    assert await store.get([submitted.id]) == [None]
    connection.commit()
    assert await get(store, submitted) == added.record
    assert [task.id for task in await worker.take()] == [submitted.id]


async def test_the_task_never_existed_if_the_caller_rolls_back(store: Store, connection: Connection, worker: Worker) -> None:
    submitted = new_task(key="order-7")
    connection.begin()
    connection.execute("insert into orders values (7, 'placed')")
    await store.add_on(connection.own, [submitted])
    connection.rollback()
    assert await store.get([submitted.id]) == [None]
    assert await store.find("work", "order-7") is None
    assert connection.rows("select count(*) from orders") == [(0,)]
    assert await worker.take() == []
    assert (await put(store, key="order-7")).verdict is AddVerdict.ADDED


async def test_keys_repeats_and_edges_are_the_same_as_for_add(store: Store, connection: Connection) -> None:
    holder = await add(store, key="k")
    connection.begin()
    first = new_task("other", key="k")
    answers = await store.add_on(
        connection.own,
        [
            new_task(key="k"),
            new_task(key="k", if_exists="keep"),
            new_task(key="k", if_exists="replace", payload=b'{"new": 1}'),
            first,
            first,
            new_task("child", edges=(Edge(first.id),)),
        ],
    )
    connection.commit()
    assert [added.verdict for added in answers] == [
        AddVerdict.DUPLICATE,
        AddVerdict.KEPT,
        AddVerdict.REPLACED,
        AddVerdict.ADDED,
        AddVerdict.REPEATED,
        AddVerdict.ADDED,
    ]
    assert {added.record.id for added in answers[:3]} == {holder.id}
    assert answers[-1].record.state is State.BLOCKED
    assert (await get(store, holder)).payload == b'{"new": 1}'


async def test_an_unknown_parent_stores_nothing_and_leaves_the_transaction_open(store: Store, connection: Connection) -> None:
    new_tasks = [new_task(), new_task(edges=(Edge(new_id()),))]
    connection.begin()
    connection.execute("insert into orders values (1, 'placed')")
    with pytest.raises(TaskNotFound):
        await store.add_on(connection.own, new_tasks)
    assert connection.in_transaction
    connection.commit()
    assert await store.get([submitted.id for submitted in new_tasks]) == [None, None]
    assert connection.rows("select count(*) from orders") == [(1,)]


async def test_several_calls_share_one_transaction(store: Store, connection: Connection, worker: Worker) -> None:
    connection.begin()
    for _ in range(3):
        await store.add_on(connection.own, [new_task(), new_task()])
    connection.commit()
    assert len(await worker.take()) == 6


async def test_a_savepoint_can_take_tasks_back(store: Store, connection: Connection, worker: Worker) -> None:
    kept, undone = new_task(), new_task()
    connection.begin()
    await store.add_on(connection.own, [kept])
    connection.execute("savepoint maybe")
    await store.add_on(connection.own, [undone])
    connection.execute("rollback to maybe")
    connection.commit()
    assert [task.id for task in await worker.take()] == [kept.id]


async def test_an_empty_batch_is_answered_with_an_empty_list(store: Store, connection: Connection) -> None:
    connection.begin()
    assert await store.add_on(connection.own, []) == []
    connection.rollback()


async def test_a_connection_without_a_transaction_is_refused(store: Store, connection: Connection) -> None:
    submitted = new_task()
    with pytest.raises(InvalidValue, match=r"(?i)transaction"):
        await store.add_on(connection.own, [submitted])
    assert not connection.in_transaction
    assert await store.get([submitted.id]) == [None]


async def test_a_connection_to_another_database_is_refused(store: Store, kind: StoreKind, tmp_path: Path) -> None:
    _, other = kind.databases.second(tmp_path)
    other.begin()
    with pytest.raises(InvalidValue):
        await store.add_on(other.own, [new_task()])
    other.rollback()
    other.close()


async def test_a_connection_to_another_store_is_refused(store: Store, kind: StoreKind, tmp_path: Path) -> None:
    """It has the same tables, and yet its tasks would never run here."""
    url, other = kind.databases.second(tmp_path)
    stranger = store_from_url(url)
    await stranger.open()
    submitted = new_task()
    other.begin()
    with pytest.raises(InvalidValue):
        await store.add_on(other.own, [submitted])
    other.commit()
    assert await stranger.get([submitted.id]) == [None]
    other.close()
    await stranger.close()


@pytest.mark.parametrize("thing", [None, "sqlite:///x.db", 7, object()])
async def test_something_that_is_no_connection_is_refused(store: Store, thing: object) -> None:
    with pytest.raises(InvalidValue, match=r"(?i)connection"):
        await store.add_on(thing, [new_task()])


async def test_with_a_synchronous_connection_the_call_never_suspends(store: Store, connection: Connection) -> None:
    submitted = new_task()
    await store.prepare([submitted])
    connection.begin()
    call = store.add_on(connection.own, [submitted])
    with pytest.raises(StopIteration) as stop:
        call.send(None)
    [added] = stop.value.value
    assert added.record.id == submitted.id
    connection.commit()
    assert await state_of(store, submitted) is State.PENDING


async def test_the_call_works_in_a_thread_of_the_callers_without_an_event_loop(
    store: Store, kind: StoreKind, connection: Connection, tmp_path: Path
) -> None:
    """A connection may refuse every thread but its own, so any step elsewhere would fail."""
    submitted = new_task()
    await store.prepare([submitted])
    problems: list[BaseException] = []

    def place_order() -> None:
        own = kind.databases.connect(tmp_path)
        try:
            own.begin()
            call = store.add_on(own.own, [submitted])
            with pytest.raises(StopIteration):
                call.send(None)
            own.commit()
        except BaseException as problem:
            problems.append(problem)
        finally:
            own.close()

    thread = threading.Thread(target=place_order)
    thread.start()
    thread.join()
    assert problems == []
    assert await state_of(store, submitted) is State.PENDING


async def test_tasks_that_were_not_prepared_are_prepared_by_the_call(store: Store, connection: Connection, worker: Worker) -> None:
    connection.begin()
    await store.add_on(connection.own, [new_task("new", collection="eu", priority=9), new_task("other")])
    connection.commit()
    assert {task.handler for task in await worker.take("new", "other")} == {"new", "other"}
