"""How to test a program that uses Duetime: `duetime.testing`, from the first assertion to faults on purpose.

The shop below is the program. Its store is a file in a folder that does not exist here, so a test that touched it would fail.
"""

import asyncio
import os
import re
import sqlite3
import tempfile
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import msgspec
import pytest

import duetime.testing
from duetime import (
    App,
    Context,
    DuplicateKey,
    Fatal,
    InvalidValue,
    NewTask,
    Next,
    RetryLater,
    RetryPolicy,
    Task,
    TaskFailed,
    TaskNotFound,
    UnknownHandler,
    current,
)
from duetime.testing import using

# ---- the program ----


class Stock:
    """What the shop has in store; stands for a connection pool."""

    def __init__(self) -> None:
        self.items = 0
        self.closed = False


@asynccontextmanager
async def resources() -> AsyncIterator[Stock]:
    stock = Stock()
    opened.append(stock)
    try:
        yield stock
    finally:
        stock.closed = True


app = App("sqlite:////nowhere/to/be/found/shop.db", lifespan=resources)
orders: dict[int, str] = {}
opened: list[Stock] = []
seen: list[object] = []


@app.task(retry=RetryPolicy(tries=4, base=10))
async def expire_order(ctx: Context, order_id: int) -> str:
    orders[order_id] = "expired"
    ctx.get(Stock).items += 1
    return f"order {order_id} expired"


@app.task
async def note(what: str, urgent: bool = False) -> str:
    seen.append(what)
    return what


@app.task(retry=RetryPolicy(tries=3, base=10, factor=2, jitter=0.5))
async def flaky(failures: int) -> str:
    ctx = current()
    seen.append(ctx.attempt)
    if ctx.attempt <= failures:
        raise ConnectionError(f"attempt {ctx.attempt} failed")
    return "done"


async def place_order(order_id: int) -> None:
    orders[order_id] = "unpaid"
    await expire_order.options(key=f"order-{order_id}").after(timedelta(minutes=30), order_id=order_id)


async def pay_order(order_id: int) -> None:
    orders[order_id] = "paid"
    await app.cancel(handler=expire_order, key=f"order-{order_id}")


@pytest.fixture(autouse=True)
def _fresh_shop() -> Iterator[None]:
    yield
    orders.clear()
    opened.clear()
    seen.clear()


# ---- time ----


@pytest.mark.covers("KBL.8")
async def test_an_unpaid_order_expires_after_half_an_hour() -> None:
    async with duetime.testing.using(app) as t:
        await place_order(7)
        task: Task[str] = t.assert_submitted(expire_order, order_id=7)
        assert task.due_at == t.now + timedelta(minutes=30)

        await t.advance(minutes=29, seconds=59)
        assert orders == {7: "unpaid"}

        [ran] = await t.advance(seconds=1)
        assert orders == {7: "expired"}
        assert (ran.handler, ran.outcome, ran.at, ran.task.result) == ("expire_order", "succeeded", t.now, "order 7 expired")


async def test_an_order_paid_in_time_does_not_expire() -> None:
    async with using(app) as t:
        await place_order(7)
        await t.advance(minutes=20)
        await pay_order(7)
        assert await t.advance(days=1) == []
        assert orders == {7: "paid"}
        assert t.assert_submitted(expire_order, order_id=7).state == "cancelled"


@pytest.mark.covers("RSQ.9")
async def test_drain_runs_what_is_due_now_and_nothing_runs_before() -> None:
    async with using(app) as t:
        await note.now(what="now")
        await note.after(60, what="later")
        await asyncio.sleep(0.05)
        assert seen == []
        assert [ran.task.result for ran in await t.drain()] == ["now"]
        assert await t.drain() == []
        await t.advance(60)
        assert seen == ["now", "later"]


async def test_tasks_run_in_the_order_in_which_they_come_due_each_at_its_instant() -> None:
    async with using(app) as t:
        start = t.now
        for minutes in (3, 1, 2):
            await note.after(timedelta(minutes=minutes), what=f"{minutes}")
        ran = await t.advance(timedelta(minutes=10))
        assert [(each.task.result, each.at - start) for each in ran] == [
            ("1", timedelta(minutes=1)),
            ("2", timedelta(minutes=2)),
            ("3", timedelta(minutes=3)),
        ]
        assert t.now == start + timedelta(minutes=10)
        assert [each.task.started_at for each in ran] == [each.at for each in ran]


async def test_the_clock_starts_where_the_test_says() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    async with using(app, now=datetime(2030, 3, 31, 1, 30, tzinfo=berlin)) as t:
        assert t.now == datetime(2030, 3, 31, 0, 30, tzinfo=UTC)
        await note.at(datetime(2030, 3, 31, 3, 0, tzinfo=berlin), what="summer time")
        [ran] = await t.advance_to(datetime(2030, 3, 31, 3, 0, tzinfo=berlin))
        assert ran.at - timedelta(minutes=30) == datetime(2030, 3, 31, 0, 30, tzinfo=UTC)
        with pytest.raises(InvalidValue, match="time does not run backwards"):
            await t.advance_to(datetime(2030, 3, 31, 1, 0, tzinfo=berlin))
        with pytest.raises(InvalidValue, match="must carry a time zone"):
            await t.advance_to(datetime(2031, 1, 1))
    with pytest.raises(InvalidValue, match="now must carry a time zone"):
        using(app, now=datetime(2030, 1, 1))


async def test_without_a_start_the_clock_begins_at_the_present_full_second() -> None:
    before = datetime.now(UTC)
    async with using(app) as t:
        assert before <= t.now <= datetime.now(UTC) + timedelta(seconds=1)
        assert t.now.microsecond == 0


@pytest.mark.parametrize("step", [0, -1, timedelta(0), timedelta(days=-1)])
async def test_time_moves_forward_only(step: float | timedelta) -> None:
    async with using(app) as t:
        with pytest.raises(InvalidValue, match="positive duration"):
            await t.advance(step)
        with pytest.raises(InvalidValue, match="positive duration"):
            await t.advance()
        with pytest.raises(InvalidValue, match="seconds or a timedelta"):
            await t.advance("1 minute")  # type: ignore[arg-type]
        with pytest.raises(InvalidValue, match="9999"):
            await t.advance(weeks=1_000_000)


async def test_a_handler_sees_the_clock_of_the_test() -> None:
    own = App("sqlite:///:memory:")

    @own.task(timeout=90)
    async def look(ctx: Context) -> str:
        return ctx.deadline.isoformat()

    async with using(own, now=datetime(2030, 1, 1, tzinfo=UTC)) as t:
        await look.after(60)
        [ran] = await t.advance(hours=1)
        assert ran.task.result == "2030-01-01T00:02:30+00:00"


# ---- retries ----


async def test_a_retry_waits_for_its_back_off_without_chance() -> None:
    async with using(app) as t:
        start = t.now
        task = await flaky.now(failures=2)
        assert [ran.outcome for ran in await t.drain()] == ["failed"]
        assert t.task(task).state == "pending"
        ran = await t.advance(minutes=5)
        assert [(each.attempt, each.outcome, each.at - start) for each in ran] == [
            (2, "failed", timedelta(seconds=10)),
            (3, "succeeded", timedelta(seconds=30)),
        ]
        assert t.task(task).result == "done"


async def test_a_task_that_fails_too_often_is_failed_for_good() -> None:
    async with using(app) as t:
        task = await flaky.options(retry=RetryPolicy(tries=2, base=3600, jitter=1.0)).now(failures=9)
        ran = await t.advance(hours=1)
        assert [type(each.error) for each in ran] == [ConnectionError, ConnectionError]
        dead = t.task(task)
        assert (dead.state, dead.tries, dead.error.message if dead.error else "") == ("failed", 2, "attempt 2 failed")
        with pytest.raises(TaskFailed, match="ConnectionError: attempt 2 failed"):
            await app.result(task)
        await app.retry(task)
        assert [each.attempt for each in await t.drain()] == [3]


async def test_retry_later_uses_up_no_try() -> None:
    own = App("sqlite:///:memory:")
    asked: list[int] = []

    @own.task(retry=RetryPolicy.none())
    async def poll(ctx: Context) -> str:
        asked.append(ctx.attempt)
        if ctx.attempt < 4:
            raise RetryLater(timedelta(minutes=1), "not ready")
        return "ready"

    async with using(own) as t:
        task = await poll.now()
        ran = await t.advance(minutes=2, seconds=59)
        assert [each.outcome for each in ran] == ["retry_later"] * 3
        assert t.task(task).tries == 0
        await t.advance(seconds=1)
        assert (t.task(task).result, asked) == ("ready", [1, 2, 3, 4])


async def test_a_fatal_error_is_not_retried() -> None:
    own = App("sqlite:///:memory:")

    @own.task
    async def ship(order_id: int) -> None:
        raise Fatal(f"order {order_id} is unknown")

    async with using(own) as t:
        await ship.now(order_id=3)
        [ran] = await t.advance(days=1)
        assert (ran.outcome, ran.task.state, str(ran.error)) == ("fatal", "failed", "order 3 is unknown")


# ---- gates, expiry, priority, keys ----


async def test_a_gate_holds_tasks_until_it_opens_by_itself() -> None:
    async with using(app) as t:
        start = t.now
        gate = await app.gates.pause(note, collection="eu", lasting=timedelta(minutes=10), note="stock service down")
        assert gate.in_force
        await note.options(collection="eu").now(what="held")
        await note.options(collection="us").now(what="free")
        assert [ran.task.result for ran in await t.drain()] == ["free"]
        [reason] = await app.why(t.assert_submitted(note, what="held"))
        assert "stock service down" in str(reason)
        [ran] = await t.advance(minutes=30)
        assert (ran.task.result, ran.at - start) == ("held", timedelta(minutes=10))


async def test_a_gate_can_be_opened_and_can_drop() -> None:
    async with using(app) as t:
        await app.gates.drop(note)
        await note.now(what="dropped")
        await note.after(60, what="dropped later")
        assert await t.advance(minutes=2) == []
        dropped = t.tasks(state="dropped")
        assert [task.payload["what"] for task in dropped] == ["dropped", "dropped later"]
        assert [task.finished_at for task in dropped] == [task.due_at for task in dropped]
        await note.after(60, what="kept")
        assert await app.gates.open(note)
        assert [ran.task.result for ran in await t.advance(minutes=1)] == ["kept"]


async def test_a_handler_may_close_a_gate() -> None:
    own = App("sqlite:///:memory:")

    @own.task
    async def trip(ctx: Context) -> bool:
        return (await own.gates.pause(work)).in_force

    @own.task
    async def work() -> None: ...

    async with using(own) as t:
        await trip.now()
        await work.now()
        assert [(ran.handler, ran.task.result) for ran in await t.drain()] == [("trip", True)]


async def test_a_task_that_nobody_could_start_expires_at_its_instant() -> None:
    async with using(app) as t:
        start = t.now
        await app.gates.pause(note)
        held = await note.options(expires=timedelta(minutes=5)).now(what="too late")
        in_time = await note.options(expires=timedelta(minutes=5), collection="b").after(60, what="in time")
        assert await t.advance(minutes=4) == []
        await app.gates.open(note, collection=None)
        await app.gates.pause(note, collection="b")
        assert [ran.task.result for ran in await t.drain()] == ["too late"]
        await t.advance(hours=1)
        assert t.task(held).state == "succeeded"
        late = t.task(in_time)
        assert (late.state, late.finished_at) == ("expired", start + timedelta(minutes=6))


async def test_an_expiry_before_the_due_time_is_met_exactly() -> None:
    async with using(app) as t:
        task = await note.options(expires=t.now + timedelta(minutes=1)).after(3600, what="never")
        assert await t.advance(hours=2) == []
        assert (t.task(task).state, t.task(task).finished_at) == ("expired", task.expires_at)


async def test_a_task_that_was_submitted_expired_does_not_hide_those_behind_it() -> None:
    async with using(app) as t:
        await note.options(expires=t.now - timedelta(minutes=1), priority=9).now(what="expired")
        await note.options(expires=t.now - timedelta(minutes=1), priority=9).now(what="expired too")
        await note.now(what="fine")
        assert [ran.task.result for ran in await t.drain()] == ["fine"]
        assert len(t.tasks(state="expired")) == 2


async def test_higher_priority_runs_first() -> None:
    async with using(app) as t:
        for priority in (1, 9, 5):
            await note.options(priority=priority).now(what=f"priority {priority}")
        await t.drain()
        assert seen == ["priority 9", "priority 5", "priority 1"]


async def test_a_key_keeps_tasks_apart() -> None:
    async with using(app) as t:
        first = await note.options(key="one").after(60, what="first")
        with pytest.raises(DuplicateKey):
            await note.options(key="one").after(60, what="second")
        assert (await note.options(key="one", if_exists="keep").now(what="third")).id == first.id
        await note.options(key="one", if_exists="replace").after(120, what="fourth")
        assert [(task.key, task.payload["what"]) for task in t.submitted(note)] == [("one", "fourth")]
        assert await t.advance(60) == []
        await t.advance(60)
        assert seen == ["fourth"]


# ---- handlers that use the app ----


async def test_a_task_submitted_by_a_handler_runs_at_its_own_time_in_the_same_step() -> None:
    own = App("sqlite:///:memory:")

    @own.task
    async def remind(times: int) -> None:
        if times > 1:
            await remind.after(timedelta(hours=1), times=times - 1)

    async with using(own) as t:
        start = t.now
        await remind.after(timedelta(hours=1), times=3)
        ran = await t.advance(days=1)
        assert [each.at - start for each in ran] == [timedelta(hours=1), timedelta(hours=2), timedelta(hours=3)]
        assert [task.payload["times"] for task in t.submitted(remind)] == [3, 2, 1]


async def test_a_task_that_submits_itself_for_now_does_not_run_for_ever() -> None:
    own = App("sqlite:///:memory:")

    @own.task
    async def again() -> None:
        await again.now()

    async with using(own, limit=20) as t:
        await again.now()
        with pytest.raises(RuntimeError, match=r"41 attempts ran at .* the last was of again\. Does a handler submit itself"):
            await t.drain()
        with pytest.raises(RuntimeError, match="the last was of again"):
            await t.advance(minutes=1)


async def test_the_limit_leaves_room_for_what_was_due() -> None:
    async with using(app, limit=10) as t:
        await app.submit_many([note.new(what=f"{number}") for number in range(50)])
        assert len(await t.drain()) == 50
    with pytest.raises(InvalidValue, match="limit must be"):
        using(app, limit=0)


async def test_a_handler_may_cancel_another_task_that_is_due_too() -> None:
    own = App("sqlite:///:memory:")

    @own.task
    async def close_account() -> str:
        return await own.cancel(handler=dun, key="account")

    @own.task
    async def dun() -> None: ...

    async with using(own) as t:
        dunned = await dun.options(key="account").now()
        await close_account.now()
        assert [(ran.handler, ran.task.result) for ran in await t.drain()] == [("close_account", "cancelled")]
        assert t.task(dunned).state == "cancelled"


async def test_a_running_task_can_be_cancelled() -> None:
    own = App("sqlite:///:memory:")

    @own.task
    async def stop_yourself(ctx: Context) -> None:
        await own.cancel(ctx.task)
        await asyncio.sleep(60)

    async with using(own) as t:
        task = await stop_yourself.now()
        assert [ran.outcome for ran in await t.drain()] == ["cancelled"]
        assert t.task(task).state == "cancelled"


async def test_waiting_for_a_result_runs_what_is_due() -> None:
    async with using(app) as t:
        task = await note.now(what="wanted")
        assert await app.result(task) == "wanted"
        later = await note.after(60, what="later")
        with pytest.raises(TimeoutError, match=r"nothing more can run: move the clock with `await t\.advance"):
            await app.result(later)
        with pytest.raises(TimeoutError, match="still pending after 10 seconds"):
            await app.result(later, timeout=10)
        await t.advance(minutes=1)
        assert await app.result(later) == "later"


async def test_a_handler_may_wait_for_another_task() -> None:
    own = App("sqlite:///:memory:")

    @own.task
    async def inner(number: int) -> int:
        return number + 1

    @own.task(concurrency=1)
    async def outer(number: int) -> int:
        return 10 * await own.result(await inner.now(number=number))

    @own.task
    def in_thread(number: int) -> int:
        return 100 * own.sync(own.result(own.sync(outer.now(number=number))))

    async with using(own) as t:
        task = await in_thread.now(number=1)
        [ran] = await t.drain()
        assert ran.task.result == 2000
        assert await own.result(task) == 2000
        assert [each.state for each in t.tasks()] == ["succeeded"] * 3


async def test_a_handler_that_waits_in_vain_is_told_so_at_once() -> None:
    own = App("sqlite:///:memory:")

    @own.task(concurrency=1)
    async def turtle(depth: int) -> None:
        await own.result(await turtle.now(depth=depth + 1))  # its only slot is taken, by itself

    async with using(own, raise_errors=True) as t:
        await turtle.now(depth=0)
        with pytest.raises(TimeoutError, match="nothing more can run"):
            await t.drain()


async def test_a_handler_cannot_move_the_clock() -> None:
    own = App("sqlite:///:memory:")
    kits: list[duetime.testing.Kit] = []

    @own.task
    async def cheat() -> None:
        await kits[0].advance(minutes=1)

    async with using(own, raise_errors=True) as t:
        kits.append(t)
        await cheat.now()
        with pytest.raises(RuntimeError, match="a handler cannot move the clock"):
            await t.drain()


async def test_the_clock_is_moved_by_one_at_a_time() -> None:
    async with using(app) as t:
        await note.now(what="x")
        first = asyncio.create_task(t.advance(minutes=1))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="under way already"):
            await t.drain()
        assert len(await first) == 1


# ---- the parts of an app ----


async def test_middleware_and_submit_hooks_run() -> None:
    own = App("sqlite:///:memory:")
    around: list[str] = []

    @own.middleware
    async def report(ctx: Context, call_next: Next) -> object:
        around.append(f"before {ctx.task.meta['tenant']}")
        try:
            return await call_next()
        except LookupError as error:
            around.append(f"caught {error}")
            raise
        finally:
            around.append("after")

    @own.on_submit
    def tenant(task: NewTask[object]) -> dict[str, str]:
        return {"tenant": "acme"}

    @own.task(retry=RetryPolicy.none())
    def work(fails: bool) -> None:
        if fails:
            raise LookupError("lost")

    async with using(own) as t:
        await work.now(fails=False)
        await t.drain()
        assert around == ["before acme", "after"]
        await work.now(fails=True)
        await t.drain()
        assert around[2:] == ["before acme", "caught lost", "after"]


async def test_the_lifespan_runs_once_for_the_block() -> None:
    async with using(app) as t:
        await place_order(1)
        await place_order(2)
        await t.advance(hours=1)
        assert [stock.items for stock in opened] == [2]
        assert not opened[0].closed
    assert opened[0].closed


async def test_fake_resources_take_the_place_of_the_lifespan() -> None:
    fake = Stock()
    async with using(app, resources=[fake]) as t:
        await place_order(1)
        await t.advance(hours=1)
    assert (fake.items, opened) == (1, [])


async def test_a_lifespan_that_fails_leaves_the_app_as_it_was() -> None:
    @asynccontextmanager
    async def broken() -> AsyncIterator[None]:
        raise ConnectionError("no database")
        yield

    own = App("sqlite:////nowhere/shop.db", lifespan=broken)
    before = own.store
    with pytest.raises(ConnectionError, match="no database"):
        async with using(own):
            raise AssertionError("never reached")
    assert own.store is before


async def test_plain_functions_run_in_threads_and_process_handlers_in_the_test_itself() -> None:
    own = App("sqlite:///:memory:")

    @own.task
    def in_thread() -> str:
        return threading.current_thread().name

    @own.task(isolation="process")
    def apart() -> int:
        return os.getpid()

    async with using(own) as t:
        thread, process = await in_thread.now(), await apart.now()
        await t.drain()
        assert t.task(thread).result == "duetime-handler"
        assert t.task(process).result == os.getpid()


async def test_handlers_declared_inside_the_block_run_too() -> None:
    own = App("sqlite:///:memory:")
    async with using(own) as t:
        assert await t.drain() == []

        @own.task(aliases=["former"])
        async def newcomer() -> str:
            return "hello"

        await newcomer.now()
        await own.handler("former").now()
        assert [ran.task.result for ran in await t.drain()] == ["hello", "hello"]
        assert len(t.submitted(newcomer)) == 2


async def test_a_timeout_follows_the_real_clock_as_a_safety_net() -> None:
    own = App("sqlite:///:memory:")

    @own.task(timeout=0.05, retry=RetryPolicy.fixed(60, tries=2))
    async def hang() -> None:
        await asyncio.sleep(60)

    async with using(own) as t:
        await hang.now()
        ran = await t.advance(minutes=1)
        assert [(each.outcome, type(each.error)) for each in ran] == [("timed_out", TimeoutError)] * 2
        assert ran[-1].task.state == "failed"


async def test_what_handlers_print_goes_where_the_tests_output_goes(capsys: pytest.CaptureFixture[str]) -> None:
    own = App("sqlite:///:memory:")

    @own.task
    async def talk(ctx: Context) -> None:
        ctx.progress(0.5, "half")
        print("grüß dich")

    async with using(own) as t:
        await talk.now()
        await t.drain()
    assert capsys.readouterr().out == "grüß dich\n"


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
        for turns in range(60):
            task = await note.now(what=f"{turns}")
            draining = asyncio.create_task(t.drain())
            for _ in range(turns):
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
def test_the_page_about_testing_runs(pytester: pytest.Pytester) -> None:
    page = (Path(__file__).parents[2] / "docs" / "testing.md").read_text(encoding="utf-8")
    files = re.findall(r"^```python\n# (\w+)\.py\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(files) == page.count("```python"), "each example of the page names its file"
    tests = sum(code.count("def test_") for _, code in files)
    assert tests >= 8
    pytester.makepyfile(**dict(files))
    pytester.makeini("[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\nfilterwarnings = error\n")
    pytester.runpytest_subprocess().assert_outcomes(passed=tests)


async def until(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + 10
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"waited in vain until {what}")
        await asyncio.sleep(0.005)
