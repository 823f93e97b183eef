"""App from synchronous code, on the caller's connection, and from one event loop after the other."""

import asyncio
import contextvars
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import aiosqlite
import pytest

from duetime import App, InvalidPayload, InvalidValue, NewTask, UnknownHandler
from duetime.store.open import store_from_url
from tests.servers.waiting import PATIENCE

trace = contextvars.ContextVar("trace", default="none")


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    app = App(f"sqlite:///{tmp_path}/duetime.db")

    @app.task
    async def expire_order(order_id: int) -> None: ...

    yield app
    app.sync(app.close())


def connect(app: App) -> sqlite3.Connection:
    return sqlite3.connect(app.store.url.removeprefix("sqlite:///"), isolation_level=None)


def ids(app: App) -> set[str]:
    async def every() -> set[str]:
        return {task.id async for task in app.tasks()}

    return app.sync(every())


def test_a_call_runs_from_synchronous_code(app: App) -> None:
    task = app.sync(app.handler("expire_order").now(order_id=7))
    assert app.sync(app.get(task)).payload == {"order_id": 7}
    with pytest.raises(InvalidPayload):
        app.sync(app.handler("expire_order").now(order_id="x"))


async def test_inside_an_event_loop_it_says_to_await(app: App) -> None:
    with pytest.raises(RuntimeError, match="await the call instead"):
        app.sync(app.handler("expire_order").now(order_id=7))
    await app.handler("expire_order").now(order_id=7)
    await app.close()


def test_context_variables_of_the_caller_are_carried_over(app: App) -> None:
    @app.on_submit
    def note(task: NewTask[Any]) -> dict[str, str]:
        return {"trace": trace.get()}

    trace.set("t1")
    assert app.sync(app.handler("expire_order").now(order_id=7)).meta == {"trace": "t1"}


def portals() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "duetime-portal"}


def test_many_threads_share_the_portal(app: App) -> None:
    others = portals()  # tests before this one may have needed it, or have had one of their own
    with ThreadPoolExecutor(16) as pool:
        tasks = list(pool.map(lambda number: app.sync(app.handler("expire_order").now(order_id=number)), range(64)))
    assert ids(app) == {task.id for task in tasks}
    assert len(portals() - others) <= 1
    assert {thread.daemon for thread in portals()} == {True}


async def test_threads_use_the_loop_that_holds_the_app_open(app: App) -> None:
    loop = asyncio.get_running_loop()

    async def where() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    async with app:
        assert await asyncio.to_thread(lambda: app.sync(where())) is loop
    assert await asyncio.to_thread(lambda: app.sync(where())) is not loop


def test_one_event_loop_after_the_other(app: App) -> None:
    async def use(number: int) -> int:
        await app.handler("expire_order").now(order_id=number)
        return len([task async for task in app.tasks()])

    assert [asyncio.run(use(number)) for number in range(3)] == [1, 2, 3]
    assert len(ids(app)) == 3

    async def use_and_close() -> None:
        async with app:
            await use(3)

    asyncio.run(use_and_close())
    assert asyncio.run(use(4)) == 5


async def test_many_first_uses_at_once_open_it_once(app: App) -> None:
    before = set(threading.enumerate())
    tasks = await asyncio.gather(*(app.handler("expire_order").now(order_id=number) for number in range(20)))
    assert len({task.id for task in tasks}) == 20
    await app.close()
    assert [thread.name for thread in set(threading.enumerate()) - before if thread.name.startswith("duetime-writer")] == []


def test_a_thread_that_waits_for_a_loop_which_ends_is_told(app: App) -> None:
    waiting: list[Future[None]] = []

    async def leave_a_thread_waiting() -> None:
        begun = asyncio.Event()

        async def call() -> None:
            begun.set()
            await asyncio.sleep(60)

        await app.__aenter__()
        waiting.append(pool.submit(lambda: app.sync(call())))
        await asyncio.wait_for(begun.wait(), PATIENCE)

    with ThreadPoolExecutor(1) as pool:
        asyncio.run(leave_a_thread_waiting())
        with pytest.raises(RuntimeError, match="ended before the call was done"):
            waiting[0].result(PATIENCE)


async def test_another_store_can_stand_in_meanwhile(app: App) -> None:
    async with app:
        await app.handler("expire_order").now(order_id=1)
        async with app.using_store(store_from_url("sqlite:///:memory:")):
            await app.handler("expire_order").now(order_id=2)
            assert [task.payload async for task in app.tasks()] == [{"order_id": 2}]
        assert [task.payload async for task in app.tasks()] == [{"order_id": 1}]


def test_an_interrupted_wait_cancels_the_call(app: App) -> None:
    code = f"""
import asyncio, os, signal, threading
from duetime import App
app = App({app.config.url!r})
begun, ended = threading.Event(), threading.Event()
async def forever():
    begun.set()
    try:
        await asyncio.sleep(60)
    finally:
        ended.set()
threading.Thread(target=lambda: (begun.wait(), os.kill(os.getpid(), signal.SIGINT))).start()
try:
    app.sync(forever())
except KeyboardInterrupt:
    print(ended.wait({PATIENCE}))
"""
    assert run(code) == "True"


def test_an_app_that_was_never_closed_does_not_keep_the_interpreter_alive(app: App) -> None:
    code = f"""
import asyncio
from duetime import App
app = App({app.config.url!r})
app.task(name="f")(lambda: None)
app.sync(app.handler("f").now())
asyncio.run(app.stats())
print("done")
"""
    assert run(code) == "done"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_opens_its_own_connections(app: App) -> None:
    code = f"""
import os, sys
from duetime import App
app = App({app.config.url!r})
app.task(name="f")(lambda: None)
app.sync(app.handler("f").now())
child = os.fork()
if child == 0:
    app.sync(app.handler("f").now())
    os._exit(0)
_, status = os.waitpid(child, 0)
async def count():
    return len([task async for task in app.tasks()])
print(status, app.sync(count()))
"""
    assert run(code) == "0 2"


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# ---- on the caller's connection ----


def test_a_task_on_the_callers_connection_lives_and_dies_with_its_transaction(app: App) -> None:
    app.sync(app.open())
    connection = connect(app)
    handler = app.handler("expire_order").options(connection=connection)
    connection.execute("begin immediate")
    app.sync(handler.now(order_id=1))
    connection.execute("rollback")
    assert ids(app) == set()
    connection.execute("begin immediate")
    task = app.sync(handler.now(order_id=2))
    connection.execute("commit")
    assert ids(app) == {task.id}
    connection.close()


def test_the_write_happens_in_the_callers_thread_also_when_nothing_is_open_yet(app: App) -> None:
    app.sync(app.open())
    app.sync(app.close())
    connection = connect(app)  # sqlite3 itself refuses to be used in another thread
    connection.execute("begin")
    many = app.sync(app.submit_many([app.handler("expire_order").new(order_id=number) for number in range(3)], connection=connection))
    one = app.sync(app.submit(app.handler("expire_order").new(order_id=9), connection=connection))
    connection.execute("commit")
    assert ids(app) == {one.id, *(task.id for task in many)}
    connection.close()


def test_a_handler_of_another_process_is_known_before_the_callers_thread_writes(app: App) -> None:
    app.sync(app.open())
    other = App(app.config.url)
    other.sync(other.open())
    connection = connect(app)
    connection.execute("begin immediate")
    assert other.sync(other.handler("expire_order").options(connection=connection).now(order_id=1)).handler == "expire_order"
    with pytest.raises(UnknownHandler):
        other.sync(other.handler("unheard_of").options(connection=connection).now(order_id=1))
    tolerated = other.handler("unheard_of").options(connection=connection, allow_unknown=True)
    assert other.sync(tolerated.now(order_id=1)).handler == "unheard_of"
    connection.execute("commit")
    connection.close()
    other.sync(other.close())


def test_a_connection_without_a_transaction_is_refused(app: App) -> None:
    app.sync(app.open())
    connection = connect(app)
    with pytest.raises(InvalidValue, match=r"(?i)begin immediate"):
        app.sync(app.handler("expire_order").options(connection=connection).now(order_id=1))
    connection.close()


def test_a_connection_of_another_kind_is_refused(app: App) -> None:
    with pytest.raises(InvalidValue, match="connection"):
        app.sync(app.handler("expire_order").options(connection=object()).now(order_id=1))


async def test_an_asynchronous_connection_is_awaited_in_its_own_loop(app: App) -> None:
    async with app, aiosqlite.connect(app.store.url.removeprefix("sqlite:///"), isolation_level=None) as connection:
        await connection.execute("begin immediate")
        task = await app.handler("expire_order").options(connection=connection).now(order_id=1)
        await connection.commit()
        assert (await app.get(task)).payload == {"order_id": 1}


async def test_a_call_on_a_connection_is_a_coroutine_like_any_other(app: App) -> None:
    async with app:
        connection = connect(app)
        connection.execute("begin immediate")
        task = await asyncio.create_task(app.handler("expire_order").options(connection=connection).now(order_id=1))
        tasks = await asyncio.gather(app.handler("expire_order").options(connection=connection).now(order_id=2))
        connection.execute("commit")
        connection.close()
        assert {each.id async for each in app.tasks()} == {task.id, tasks[0].id}
