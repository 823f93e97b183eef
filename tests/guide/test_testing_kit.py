"""How to test a program that uses Duetime: `duetime.testing` moves the clock and runs what is due; the program is tests/guide/shop.py."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

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
)
from duetime.testing import using
from tests.guide.shop import Stock, app, expire_order, flaky, note, opened, orders, pay_order, place_order, seen

pytestmark = pytest.mark.usefixtures("fresh_shop")

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


async def test_the_limit_does_not_count_what_was_due() -> None:
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


async def test_a_task_can_be_deleted_unless_it_runs() -> None:
    own = App("sqlite:///:memory:")

    @own.task
    async def delete_yourself(ctx: Context) -> None:
        await own.delete(ctx.task)

    async with using(own) as t:
        waiting = await delete_yourself.after(60)
        await own.delete(waiting)
        await delete_yourself.options(retry=RetryPolicy(tries=1)).now()
        [ran] = await t.drain()
        assert "is running and cannot be deleted" in str(ran.error)
        await t.advance(minutes=2)
        assert await t.drain() == []


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


async def test_fake_resources_replace_the_lifespan() -> None:
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
