"""More of `duetime.testing`: assertions, faults on purpose, what a block leaves as it was, plain tests, transactions, pytest."""

import asyncio
import os
import re
import sqlite3
import tempfile
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from duetime import (
    App,
    Callback,
    Context,
    Fatal,
    InvalidPayload,
    InvalidValue,
    Limit,
    NewTask,
    TaskFailed,
    TaskNotFound,
    UnknownHandler,
)
from duetime.ids import new_id
from duetime.testing import using
from tests.guide.shop import app, expire_order, flaky, note, opened, orders, place_order, seen
from tests.servers.waiting import PATIENCE

pytestmark = pytest.mark.usefixtures("fresh_shop")

# ---- assertions ----


class Item(msgspec.Struct):
    name: str
    count: int = 1


async def test_arguments_are_compared_as_the_handler_gets_them() -> None:
    own = App("sqlite:///:memory:")

    @own.task
    async def ship(ctx: Context, order: uuid.UUID, at: datetime, items: list[Item], express: bool = False) -> None: ...

    order, at = uuid.uuid4(), datetime(2030, 1, 1, 12, tzinfo=UTC)
    async with using(own) as t:
        await ship.after(5, order=order, at=at, items=[Item("Spaten")])
        t.assert_submitted(ship)
        t.assert_submitted(ship, order=order, at=at)
        t.assert_submitted(ship, order=str(order), items=[Item("Spaten", 1)])
        t.assert_submitted(ship, express=False)
        t.assert_submitted("ship", order=order)
        t.assert_not_submitted(ship, express=True)
        t.assert_not_submitted(ship, items=[])


async def test_a_failed_assertion_shows_what_was_submitted_instead() -> None:
    async with using(app, now=datetime(2030, 1, 1, tzinfo=UTC)) as t:
        with pytest.raises(AssertionError, match=r"expire_order\(order_id=7\) was not submitted\.\nTasks of expire_order: none$"):
            t.assert_submitted(expire_order, order_id=7)
        await place_order(8)
        await note.now(what="x")
        with pytest.raises(AssertionError) as failure:
            t.assert_submitted(expire_order, order_id=7)
        assert str(failure.value).splitlines() == [
            "expire_order(order_id=7) was not submitted.",
            "Tasks of expire_order: 1",
            "  expire_order(order_id=8) pending, due 2030-01-01T00:30:00+00:00, key 'order-8'",
            "Tasks of other handlers: 1",
            "  note(what='x') pending, due 2030-01-01T00:00:00+00:00",
        ]
        with pytest.raises(AssertionError, match=r"expire_order\(…\) was submitted once:\n  expire_order\(order_id=8\) pending"):
            t.assert_not_submitted(expire_order)


async def test_an_argument_that_the_handler_does_not_have_is_a_mistake_of_the_test() -> None:
    async with using(app) as t:
        with pytest.raises(InvalidValue, match="expire_order has no parameter 'ordr_id'; it has order_id"):
            t.assert_not_submitted(expire_order, ordr_id=7)
        with pytest.raises(InvalidValue, match="expire_order has no parameter 'ctx'"):
            t.submitted(expire_order, ctx=1)
        with pytest.raises(TaskNotFound):
            t.task("01234567-89ab-7cde-8f01-23456789abcd")


async def test_tasks_are_listed_in_the_order_of_submitting_whatever_became_of_them() -> None:
    async with using(app) as t:
        for number in (2, 0, 1):
            await note.options(key=f"key {number}").after(number, what=f"{number}")
        await t.advance(1)
        assert [task.payload["what"] for task in t.tasks()] == ["2", "0", "1"]
        assert [task.payload["what"] for task in t.tasks(state="succeeded")] == ["0", "1"]
        assert [task.payload["what"] for task in t.tasks(state="pending", handler=note)] == ["2"]


async def test_any_text_comes_through() -> None:
    text = "Käse 🧀 ﷽ \u0000 \u202e日本語 'quoted' \\ \n"
    async with using(app) as t:
        task = await note.options(key="schlüssel-🗝", collection="größe").now(what=text)
        assert t.assert_submitted(note, what=text).id == task.id
        assert await app.result(task) == text
        [ran] = t.tasks(collection="größe")
        assert (ran.key, ran.payload) == ("schlüssel-🗝", {"what": text})


# ---- failures on purpose ----


async def test_failures_can_be_raised_in_the_test_with_their_traceback() -> None:
    async with using(app) as t:
        await flaky.now(failures=1)
        with pytest.raises(ConnectionError, match="attempt 1 failed") as failure:
            await t.drain(raise_errors=True)
        assert failure.traceback[-1].name == "flaky"
        t.raise_errors = True
        await t.advance(seconds=10)  # the retry succeeds
        await flaky.now(failures=1)
        with pytest.raises(ConnectionError):
            await t.advance(minutes=1)
        assert await t.advance(minutes=1, raise_errors=False) != []


async def test_a_result_that_is_not_json_is_raised_too() -> None:
    own = App("sqlite:///:memory:")

    @own.task
    async def bad() -> object:
        return object()

    async with using(own, raise_errors=True) as t:
        await bad.now()
        with pytest.raises(TaskFailed, match=r"attempt 1 of bad ended fatal: .*the result cannot be stored"):
            await t.drain()


async def test_failing_the_test_inside_a_handler_fails_the_test() -> None:
    own = App("sqlite:///:memory:")

    @own.task
    async def forbidden() -> None:
        pytest.fail("must not run")

    async with using(own) as t:
        await forbidden.now()
        with pytest.raises(pytest.fail.Exception, match="must not run"):
            await t.drain()


async def test_a_handler_can_be_made_to_fail() -> None:
    async with using(app) as t:
        t.fail_next(note, ConnectionError("mail server down"), times=2)
        t.fail_next("note", Fatal("no such mailbox"))
        await note.now(what="hello")
        ran = await t.advance(hours=1)
        assert [each.outcome for each in ran] == ["failed", "failed", "fatal"]
        assert seen == []
        await note.now(what="hello")
        await t.drain()
        assert seen == ["hello"]
        with pytest.raises(UnknownHandler, match="declares no handler 'nobody'"):
            t.fail_next("nobody", ValueError())


async def test_work_that_a_dying_worker_did_not_record_is_done_again() -> None:
    async with using(app) as t:
        await place_order(7)
        t.crash_next(expire_order)
        ran = await t.advance(minutes=30)
        assert [(each.attempt, each.outcome) for each in ran] == [(1, "lost"), (2, "succeeded")]
        assert opened[0].items == 2  # the stock went up twice: the handler is not idempotent yet
        assert ran[-1].task.crashes == 1


async def test_a_task_that_kills_its_worker_again_and_again_is_quarantined() -> None:
    async with using(app) as t:
        t.crash_next(note, times=3)
        task = await note.now(what="deadly")
        await t.drain()
        dead = t.task(task)
        assert (dead.state, dead.crashes, dead.error.type if dead.error else "") == ("failed", 3, "Quarantined")
        assert [attempt.outcome for attempt in await app.attempts(task)] == ["lost"] * 3


# ---- the block ----


async def test_the_app_is_as_it_was_afterwards() -> None:
    before = app.store, app.client, app.gates, app.insight

    async def fail() -> None:
        async with using(app):
            assert app.store is not before[0]
            await note.now(what="forgotten")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert (app.store, app.client, app.gates, app.insight) == before
    async with using(app) as t:
        assert t.tasks() == []


async def test_an_open_app_keeps_its_own_tasks(tmp_path: Path) -> None:
    own = App(f"sqlite:///{tmp_path}/own.db")

    @own.task
    async def work(number: int) -> None: ...

    async with own:
        kept = await work.after(3600, number=1)
        async with using(own) as t:
            await work.now(number=2)
            assert [ran.payload for ran in await t.drain()] == [{"number": 2}]
        assert [task.id async for task in own.tasks()] == [kept.id]


async def test_blocks_can_be_nested() -> None:
    async with using(app) as outer:
        await note.after(60, what="outer")
        async with using(app, now=datetime(2040, 1, 1, tzinfo=UTC)) as inner:
            assert inner.tasks() == []
            await note.after(60, what="inner")
            await inner.advance(minutes=1)
            assert seen == ["inner"]
        [task] = outer.tasks()
        await outer.advance(minutes=1)
        assert seen == ["inner", "outer"]
        assert await app.result(task) == "outer"
        assert await app.result(await note.now(what="waited for")) == "waited for"


async def test_two_apps_at_once_have_a_clock_each() -> None:
    other = App("sqlite:////nowhere/other.db")

    @other.task
    async def forward(what: str) -> None:
        await note.now(what=what)

    async with using(app) as t, using(other) as u:
        await forward.after(60, what="from the other side")
        assert len(await u.advance(minutes=1)) == 1
        assert t.clock.now() < u.clock.now()
        assert [ran.task.result for ran in await t.drain()] == ["from the other side"]


async def test_a_block_is_entered_once() -> None:
    block = using(app)
    async with block:
        with pytest.raises(RuntimeError, match="entered already"):
            await block.__aenter__()
    with pytest.raises(InvalidValue, match="using takes an App, got str"):
        using("shop:app")  # type: ignore[arg-type]


async def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    own = App("sqlite:///:memory:")

    @own.task
    def in_thread() -> None: ...

    @own.task
    async def waits() -> None:
        await asyncio.sleep(0)

    threads, tasks = set(threading.enumerate()), asyncio.all_tasks()
    async with using(own) as t:
        await in_thread.now()
        await waits.now()
        await t.drain()
    await until(
        lambda: not {thread for thread in threading.enumerate() if thread.name.startswith("duetime")} - threads, "threads have ended"
    )
    assert asyncio.all_tasks() == tasks
    assert os.listdir(tmp_path) == []


async def test_a_drain_that_is_cut_short_gives_the_task_back() -> None:
    own = App("sqlite:///:memory:")
    started = asyncio.Event()
    stopped: list[int] = []

    @own.task
    async def slow(ctx: Context) -> str:
        if ctx.attempt == 1:
            try:
                started.set()
                await asyncio.sleep(60)
            finally:
                stopped.append(ctx.attempt)
        return "done"

    async with using(own) as t:
        task = await slow.now()
        draining = asyncio.create_task(t.drain())
        await started.wait()
        draining.cancel()
        with pytest.raises(asyncio.CancelledError):
            await draining
        assert (stopped, t.task(task).state, t.task(task).tries) == ([1], "pending", 0)
        assert [(ran.attempt, ran.outcome) for ran in await t.drain()] == [(2, "succeeded")]


async def test_a_drain_may_be_cut_short_anywhere() -> None:
    async with using(app) as t:
        for pauses in range(60):
            task = await note.now(what=f"{pauses}")
            draining = asyncio.create_task(t.drain())
            for _ in range(pauses):
                await asyncio.sleep(0.0001)
            draining.cancel()
            await asyncio.wait([draining])
            await t.drain()
            assert t.task(task).state == "succeeded"


# ---- without an event loop ----


@pytest.mark.covers("KBL.8")
def test_a_plain_test_needs_no_event_loop() -> None:
    with using(app, now=datetime(2030, 1, 1, tzinfo=UTC)) as t:
        app.sync(place_order(7))
        t.assert_submitted(expire_order, order_id=7)
        [ran] = app.sync(t.advance(minutes=30))
        assert (ran.task.state, orders) == ("succeeded", {7: "expired"})
    assert opened[0].closed


def test_a_plain_block_whose_lifespan_fails_leaves_the_app_as_it_was() -> None:
    @asynccontextmanager
    async def broken() -> AsyncIterator[None]:
        raise ConnectionError("no database")
        yield

    own = App("sqlite:////nowhere/shop.db", lifespan=broken)
    before = own.store
    with pytest.raises(ConnectionError, match="no database"), using(own):
        raise AssertionError("never reached")
    assert own.store is before


def test_a_plain_block_ends_in_the_task_that_began_it() -> None:
    tasks: list[object] = []

    @asynccontextmanager
    async def particular() -> AsyncIterator[None]:
        async with asyncio.TaskGroup():
            tasks.append(asyncio.current_task())
            yield
            tasks.append(asyncio.current_task())

    own = App("sqlite:///:memory:", lifespan=particular)
    before = own.store
    with pytest.raises(ZeroDivisionError), using(own):
        raise ZeroDivisionError
    assert own.store is before
    assert len(tasks) == 2
    assert tasks[0] is tasks[1]


async def test_inside_an_event_loop_the_block_is_asynchronous() -> None:
    with pytest.raises(RuntimeError, match="write `async with using"), using(app):
        raise AssertionError("never reached")


# ---- inside the program's own transaction ----


async def test_code_that_submits_on_its_own_connection_is_tested_on_a_file(tmp_path: Path) -> None:
    database = tmp_path / "shop.db"
    async with using(app, file=database) as t:
        connection = sqlite3.connect(database, isolation_level=None)
        connection.execute("begin immediate")
        await note.options(connection=connection).now(what="rolled back")
        connection.execute("rollback")
        connection.execute("begin immediate")
        await note.options(connection=connection, expires=60).now(what="committed")
        connection.execute("commit")
        connection.close()
        t.assert_not_submitted(note, what="rolled back")
        assert [ran.task.result for ran in await t.drain()] == ["committed"]


# ---- pytest ----

PROGRAM = """
from duetime import App

app = App("sqlite:////nowhere/shop.db")

@app.task
async def greet(name: str) -> str:
    return f"hello {name}"
"""


@pytest.mark.slow
def test_the_fixture_serves_plain_and_asynchronous_tests(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        shop=PROGRAM,
        test_shop="""
            import pytest
            from shop import app, greet

            def test_plain(duetime_using):
                with duetime_using(app) as t:
                    app.sync(greet.after(60, name="you"))
                    assert app.sync(t.advance(minutes=1))[0].task.result == "hello you"

            @pytest.mark.asyncio
            async def test_asynchronous(duetime_using):
                async with duetime_using(app) as t:
                    assert await app.result(await greet.now(name="you")) == "hello you"

            @pytest.mark.anyio
            @pytest.mark.parametrize("anyio_backend", ["asyncio"])
            async def test_with_anyio(duetime_using, anyio_backend):
                async with duetime_using(app) as t:
                    assert await app.result(await greet.now(name="you")) == "hello you"
        """,
    )
    result = pytester.runpytest_subprocess("-W", "error", "-o", "asyncio_mode=strict", "-o", "asyncio_default_fixture_loop_scope=function")
    result.assert_outcomes(passed=3)


@pytest.mark.slow
def test_the_fixture_costs_nothing_until_it_is_asked_for(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_nothing_was_loaded():
            assert "duetime.testing_plugin" in sys.modules
            assert not {"duetime.testing", "duetime.worker.executor", "duetime.store.sqlite.store"} & sys.modules.keys()
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:hypothesispytest", "-p", "no:randomly")
    result.assert_outcomes(passed=1)


@pytest.mark.slow
def test_the_page_about_testing_runs(pytester: pytest.Pytester, postgres_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", postgres_database)
    page = (Path(__file__).parents[2] / "docs" / "testing.md").read_text(encoding="utf-8")
    files = re.findall(r"^```python\n# (\w+)\.py\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(files) == page.count("```python"), "each example of the page names its file"
    tests = sum(code.count("def test_") for _, code in files)
    assert tests >= 8
    pytester.makepyfile(**dict(files))
    pytester.makeini("[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\nfilterwarnings = error\n")
    pytester.runpytest_subprocess().assert_outcomes(passed=tests)


async def until(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"waited in vain until {what}")
        await asyncio.sleep(0.005)


async def test_a_stored_payload_that_does_not_fit_fails_the_test_and_an_upgrade_reads_it() -> None:
    own = App("sqlite:///:memory:")

    @own.task
    async def bill(order_id: int) -> str:
        return f"order {order_id}"

    async with using(own) as t:
        former = NewTask[object](id=new_id(), handler="bill", payload=b'{"order": 7}', submitted_by="before")
        await own.store.add([former])
        with pytest.raises(InvalidPayload, match="order: unknown"):
            await t.drain(raise_errors=True)
        assert (await own.get(former.id)).parked
    bill.upgrade(lambda payload: {"order_id": payload["order"]})
    async with using(own) as t:
        await own.store.add([former])
        await t.drain()
        assert await own.result(former.id) == "order 7"


async def test_limits_hold_for_work_that_others_have_accepted_and_for_blocks() -> None:
    app, erp = App(), Limit("erp", running=2)
    app.http("book", "https://erp.example.com/book", callback=Callback(within=3_600), limits=[erp])

    @app.task
    async def look(ctx: Context) -> str:
        async with ctx.limit(erp):
            return "looked"

    async with using(app) as t:
        t.answer_next("book", status=202)
        first = await app.handler("book").now()
        await t.drain()
        assert (await app.limits.get("erp")).accepted == 1
        looked = await look.now()
        await t.drain()
        assert await app.result(looked) == "looked"
        await app.limits.put("erp", running=1)
        second = await app.handler("book").now()
        assert await t.drain() == []
        [reason] = await app.why(second)
        assert "the limit erp is reached: 1 of 1 are taken in the whole fleet (1 accepted elsewhere)" in reason.text
        assert "instead of 2" in reason.text
        await t.complete(first)
        t.answer_next("book", status=200)
        assert [ran.task.id for ran in await t.drain()] == [second.id]
