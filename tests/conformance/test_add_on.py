"""Submitting inside the caller's own transaction."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import aiosqlite
import pytest

from duetime.errors import InvalidValue, TaskNotFound
from duetime.ids import new_id
from duetime.model.task import Edge, State
from duetime.store.protocol import AddVerdict, Store
from tests.conformance.build import Worker, add, get, put, state_of, wish


async def test_the_task_exists_when_the_caller_commits(store: Store, connection: sqlite3.Connection, worker: Worker) -> None:
    wished = wish(key="order-7", payload=b'{"order_id": 7}')
    connection.execute("begin immediate")
    connection.execute("insert into orders values (7, 'placed')")
    [added] = await store.add_on(connection, [wished])
    assert (added.verdict, added.record.id, added.record.state) == (AddVerdict.ADDED, wished.id, State.PENDING)
    assert connection.in_transaction, "committing is the caller's business"
    assert await store.get([wished.id]) == [None]
    connection.commit()
    assert await get(store, wished) == added.record
    assert [task.id for task in await worker.take()] == [wished.id]


async def test_the_task_never_existed_if_the_caller_rolls_back(store: Store, connection: sqlite3.Connection, worker: Worker) -> None:
    wished = wish(key="order-7")
    connection.execute("begin immediate")
    connection.execute("insert into orders values (7, 'placed')")
    await store.add_on(connection, [wished])
    connection.rollback()
    assert await store.get([wished.id]) == [None]
    assert await store.find("work", "order-7") is None
    assert connection.execute("select count(*) from orders").fetchone() == (0,)
    assert await worker.take() == []
    assert (await put(store, key="order-7")).verdict is AddVerdict.ADDED


async def test_keys_repeats_and_edges_are_the_same_as_for_add(store: Store, connection: sqlite3.Connection) -> None:
    holder = await add(store, key="k")
    connection.execute("begin immediate")
    first = wish("other", key="k")
    answers = await store.add_on(
        connection,
        [
            wish(key="k"),
            wish(key="k", if_exists="keep"),
            wish(key="k", if_exists="replace", payload=b'{"new": 1}'),
            first,
            first,
            wish("child", edges=(Edge(first.id),)),
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


async def test_an_unknown_parent_stores_nothing_and_leaves_the_transaction_open(store: Store, connection: sqlite3.Connection) -> None:
    wishes = [wish(), wish(edges=(Edge(new_id()),))]
    connection.execute("begin immediate")
    connection.execute("insert into orders values (1, 'placed')")
    with pytest.raises(TaskNotFound):
        await store.add_on(connection, wishes)
    assert connection.in_transaction
    connection.commit()
    assert await store.get([wished.id for wished in wishes]) == [None, None]
    assert connection.execute("select count(*) from orders").fetchone() == (1,)


async def test_several_calls_share_one_transaction(store: Store, connection: sqlite3.Connection, worker: Worker) -> None:
    connection.execute("begin immediate")
    for _ in range(3):
        await store.add_on(connection, [wish(), wish()])
    connection.commit()
    assert len(await worker.take()) == 6


async def test_a_savepoint_can_take_tasks_back(store: Store, connection: sqlite3.Connection, worker: Worker) -> None:
    kept, undone = wish(), wish()
    connection.execute("begin immediate")
    await store.add_on(connection, [kept])
    connection.execute("savepoint maybe")
    await store.add_on(connection, [undone])
    connection.execute("rollback to maybe")
    connection.commit()
    assert [task.id for task in await worker.take()] == [kept.id]


async def test_an_empty_batch_is_answered_with_an_empty_list(store: Store, connection: sqlite3.Connection) -> None:
    connection.execute("begin immediate")
    assert await store.add_on(connection, []) == []
    connection.rollback()


async def test_a_connection_without_a_transaction_is_refused(store: Store, connection: sqlite3.Connection) -> None:
    wished = wish()
    with pytest.raises(InvalidValue, match=r"(?i)begin"):
        await store.add_on(connection, [wished])
    assert not connection.in_transaction
    assert await store.get([wished.id]) == [None]


async def test_a_connection_to_another_database_is_refused(store: Store, tmp_path: Path) -> None:
    for target in (tmp_path / "other.db", ":memory:"):
        other = sqlite3.connect(target, isolation_level=None)
        other.execute("begin immediate")
        with pytest.raises(InvalidValue):
            await store.add_on(other, [wish()])
        other.rollback()
        other.close()


async def test_a_connection_to_another_duetime_database_is_refused(
    store: Store, connection: sqlite3.Connection, worker: Worker, tmp_path: Path
) -> None:
    """A copy has the same tables and yet is another database: its tasks would never run here."""
    other = sqlite3.connect(tmp_path / "copy.db", isolation_level=None)
    connection.backup(other)
    other.execute("begin immediate")
    with pytest.raises(InvalidValue):
        await store.add_on(other, [wish()])
    other.rollback()
    other.close()


@pytest.mark.parametrize("thing", [None, "sqlite:///x.db", 7, object()])
async def test_something_that_is_no_connection_is_refused(store: Store, thing: object) -> None:
    with pytest.raises(InvalidValue, match=r"(?i)connection"):
        await store.add_on(thing, [wish()])


async def test_with_a_synchronous_connection_the_call_never_suspends(store: Store, connection: sqlite3.Connection) -> None:
    wished = wish()
    connection.execute("begin immediate")
    call = store.add_on(connection, [wished])
    with pytest.raises(StopIteration) as stop:
        call.send(None)
    [added] = stop.value.value
    assert added.record.id == wished.id
    connection.commit()
    assert await state_of(store, wished) is State.PENDING


async def test_the_call_works_in_a_thread_of_the_callers_without_an_event_loop(store: Store, connection: sqlite3.Connection) -> None:
    """A connection of `sqlite3` refuses every thread but its own, so any step elsewhere would fail."""
    wished = wish()
    file = connection.execute("pragma database_list").fetchone()[2]
    problems: list[BaseException] = []

    def place_order() -> None:
        own = sqlite3.connect(file, isolation_level=None)
        try:
            own.execute("begin immediate")
            call = store.add_on(own, [wished])
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
    assert await state_of(store, wished) is State.PENDING


async def test_python_style_implicit_transactions_work(store: Store, connection: sqlite3.Connection, worker: Worker) -> None:
    """The default mode of `sqlite3` begins by itself before an insert, and `with connection` commits."""
    file = connection.execute("pragma database_list").fetchone()[2]
    own = sqlite3.connect(file)
    with own:
        own.execute("insert into orders values (1, 'placed')")
        await store.add_on(own, [wish()])
    own.close()
    assert len(await worker.take()) == 1


async def test_a_row_factory_of_the_caller_does_not_disturb(store: Store, connection: sqlite3.Connection, worker: Worker) -> None:
    connection.row_factory = lambda cursor, row: dict(zip([column[0] for column in cursor.description], row, strict=True))
    await check_that_factories_do_not_disturb(store, connection, worker)


async def test_a_text_factory_of_the_caller_does_not_disturb(store: Store, connection: sqlite3.Connection, worker: Worker) -> None:
    connection.text_factory = bytes
    await check_that_factories_do_not_disturb(store, connection, worker)


async def check_that_factories_do_not_disturb(store: Store, connection: sqlite3.Connection, worker: Worker) -> None:
    factories = (connection.row_factory, connection.text_factory)
    await add(store, key="k")
    connection.execute("begin immediate")
    try:
        first, second = await store.add_on(connection, [wish(key="k", if_exists="keep"), wish("other", meta={"a": "b"})])
        assert (first.verdict, first.record.key, second.record.meta) == (AddVerdict.KEPT, "k", {"a": "b"})
    finally:
        connection.commit()
    assert (connection.row_factory, connection.text_factory) == factories
    assert len(await worker.take("work", "other")) == 2


async def test_an_aiosqlite_connection_works_too(store: Store, connection: sqlite3.Connection, worker: Worker) -> None:
    file = connection.execute("pragma database_list").fetchone()[2]
    committed, undone = wish(), wish()
    async with aiosqlite.connect(file, isolation_level=None) as own:
        await own.execute("begin immediate")
        await store.add_on(own, [committed])
        await own.commit()
        await own.execute("begin immediate")
        await store.add_on(own, [undone])
        await own.rollback()
        with pytest.raises(InvalidValue, match=r"(?i)begin"):
            await store.add_on(own, [wish()])
    assert [task.id for task in await worker.take()] == [committed.id]
