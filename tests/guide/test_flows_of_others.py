"""What users of Airflow, Celery, Hangfire and xxl-job know, said with flows, schedules and steps."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import duetime.testing
from duetime import (
    AfterEnd,
    App,
    At,
    CancelVerdict,
    Context,
    Cron,
    Every,
    Fatal,
    FlowFailed,
    InvalidPayload,
    Node,
    Plan,
    RetryLater,
    Schedule,
    TaskFailed,
    any_of,
    ended,
)
from duetime.model.flow import Condition
from duetime.testing import Kit

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
log: list[str] = []


class Shop:
    """Handlers that write down what they are called with."""

    def __init__(self, app: App) -> None:
        self.app = app

        @app.task
        async def note(text: str) -> str:
            log.append(text)
            return text

        @app.task
        async def square(number: int) -> int:
            return number * number

        @app.task
        async def add_up(numbers: list[int]) -> int:
            log.append(f"sum of {sorted(numbers)}")
            return sum(numbers)

        self.note, self.square, self.add_up = note, square, add_up


@pytest.fixture
def shop(store_url: str) -> Shop:
    log.clear()
    return Shop(App(store_url))


@pytest.fixture
async def t(shop: Shop, store_url: str) -> AsyncIterator[Kit]:
    async with duetime.testing.using(shop.app, url=store_url, now=NEW_YEAR, raise_errors=False) as t:
        yield t


@pytest.mark.covers("AIR.1")
@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("works", "works", {"all success", "all done", "one success", "none failed, one success"}),
        ("works", "fails", {"all done", "one failed", "one success"}),
        ("works", "skipped", {"all done", "none failed, one success", "one success"}),
        ("fails", "fails", {"all done", "one failed", "all failed"}),
        ("skipped", "skipped", {"all done"}),
    ],
)
async def test_trigger_rules_and_branching(shop: Shop, t: Kit, a: str, b: str, expected: set[str]) -> None:
    @shop.app.flow
    def ruled(plan: Plan) -> None:
        branch = plan.add(shop.note.new(text="take"), name="branch")

        def made(name: str, how: str) -> Node[int]:
            return plan.add(shop.square.new(number=1), name=name, needs=[branch.returned("leave" if how == "skipped" else "take")])

        one, other = made("a", a), made("b", b)
        rules: dict[str, list[Node[int] | Condition]] = {
            "all success": [one, other],
            "all done": [one.ended, other.ended],
            "one failed": [any_of(one.failed, other.failed)],
            "all failed": [one.failed, other.failed],
            "one success": [any_of(one, other)],
            "none failed, one success": [one.not_failed, other.not_failed, any_of(one, other)],
        }
        for name, needs in rules.items():
            plan.add(shop.note.new(text=name), name=name.replace(",", "").replace(" ", "-"), needs=needs)

    for how in (a, b):
        if how == "fails":
            t.fail_next(shop.square, Fatal("no"))
    await ruled.now()
    await t.drain()
    assert set(log) - {"take"} == expected


@pytest.mark.covers("AIR.1")
async def test_only_the_latest_run_is_made_up_for_and_one_waits_for_the_run_before(shop: Shop, t: Kit) -> None:
    @shop.app.task
    async def load(ctx: Context) -> None:
        assert ctx.occurrence is not None
        log.append(f"{ctx.occurrence.planned_at:%d} after {None if ctx.occurrence.last is None else ctx.occurrence.last.state}")

    await shop.app.schedules.put(Schedule("daily", load, Cron("0 3 * * *"), missed="latest", overlap="queue all"))
    await shop.app.schedules.pause("daily")
    await t.advance(days=3)
    await shop.app.schedules.resume("daily", catch_up=True)
    await t.advance(minutes=1)
    assert log == ["03 after None"]
    t.fail_next(load, RetryLater(2 * 86_400))  # the run of the 4th takes until the 6th
    await t.advance(days=2)
    assert log == ["03 after None"]
    await t.advance(days=1)
    assert log == ["03 after None", "04 after succeeded", "05 after succeeded", "06 after succeeded"]


@pytest.mark.covers("AIR.2")
async def test_timetables(shop: Shop, t: Kit) -> None:
    @shop.app.task
    async def run(ctx: Context) -> None:
        assert ctx.occurrence is not None
        start, end = ctx.occurrence.interval
        log.append(f"{ctx.occurrence.schedule} {start:%H:%M}-{end:%H:%M}")

    put = shop.app.schedules.put
    await put(Schedule("cron", run, Cron("0 6,18 * * *", tz="UTC")))
    await put(Schedule("several", run, Cron("0 7 * * *") | Cron("30 9 * * *")))
    await put(Schedule("delta", run, Every(hours=8)))
    await put(Schedule("events", run, At([NEW_YEAR + timedelta(hours=hour) for hour in (5, 11)])))
    await put(Schedule("asset-or-time", run, Cron("0 20 * * *")))
    await t.advance(hours=12)
    await shop.app.schedules.trigger("asset-or-time")  # whoever has made the data says so
    await t.advance(hours=11)
    assert sorted(log) == [
        "asset-or-time 20:00-12:00",
        "asset-or-time 20:00-20:00",
        "cron 06:00-18:00",
        "cron 18:00-06:00",
        "delta 00:00-08:00",
        "delta 08:00-16:00",
        "events 05:00-05:00",
        "events 05:00-11:00",
        "several 07:00-09:30",
        "several 09:30-07:00",
    ]


@pytest.mark.covers("AIR.5")
async def test_setup_and_teardown_around_a_map_and_a_group(shop: Shop, t: Kit) -> None:
    @shop.app.task
    async def numbers() -> list[int]:
        return [1, 2, 3]

    @shop.app.flow
    def cluster(plan: Plan) -> None:
        setup = plan.add(shop.note.new(text="setup"), name="setup")
        listed = plan.add(numbers.new(), needs=[setup])
        mapped = plan.map(listed.value, lambda number: shop.square.new(number=number))
        grouped = plan.group([shop.note.new(text=f"group {number}") for number in range(2)], needs=[setup])
        plan.add(shop.add_up.new(numbers=mapped.values))
        plan.add(shop.note.new(text="teardown"), name="teardown", needs=[setup, mapped.ended, grouped.ended])

    t.fail_next(shop.square, Fatal("no"))
    flow = await cluster.now()
    await t.drain()
    assert (log[0], log[-1]) == ("setup", "teardown")
    found = await shop.app.flows.get(flow)
    assert (found.node("square").failed, found.node("add_up").state) == (1, "skipped")


@pytest.mark.covers("AIR.6")
async def test_who_waits_takes_no_slot_and_goes_on_where_it_was(shop: Shop, t: Kit) -> None:
    files: list[str] = []

    @shop.app.task(concurrency=1)
    async def deferred(ctx: Context, number: int) -> str:
        await ctx.step("begin", log.append, f"begin {number}")
        return await ctx.wait("event", f"event-{number}", str)

    @shop.app.task(concurrency=1)
    async def sensor() -> str:
        if not files:
            raise RetryLater(60)
        return files[0]

    tasks = [await deferred.now(number) for number in range(3)]
    found = await sensor.now()
    await t.drain()
    assert [(await shop.app.get(task)).state for task in (*tasks, found)] == ["blocked", "blocked", "blocked", "pending"]
    for number in (2, 0, 1):
        await shop.app.signals.send(f"event-{number}", f"came {number}")
    files.append("part-0")
    await t.advance(minutes=1)
    assert await shop.app.results([*tasks, found]) == ["came 0", "came 1", "came 2", "part-0"]
    assert log == ["begin 0", "begin 1", "begin 2"], "what was done is not done again"


class Warehouse:
    """A connection that handlers find by its type."""

    def __init__(self) -> None:
        self.rows = ["a", "b"]


@pytest.mark.covers("AIR.7")
async def test_values_parameters_and_connections() -> None:
    @contextlib.asynccontextmanager
    async def lifespan() -> AsyncIterator[list[object]]:
        yield [Warehouse(), {"limit": 1}]

    app = App("sqlite:///:memory:", lifespan=lifespan)
    shop = Shop(app)

    @app.task
    async def read(ctx: Context, table: str) -> dict[str, list[str]]:
        return {table: ctx.get(Warehouse).rows[: ctx.get(dict)["limit"]]}

    @app.flow
    def export(plan: Plan, table: str, prefix: str = "x") -> Node[str]:
        rows = plan.add(read.new(table=table))
        return plan.add(shop.note.new(text=rows.value[table][0]))

    async with duetime.testing.using(app):
        assert await app.result(await export.now("orders")) == "a"
        with pytest.raises(InvalidPayload, match="table"):
            await export.now(7)  # type: ignore[arg-type]
        by_name = await app.handler("export").now(table="orders")
        await app.result(by_name)
        assert await app.result(by_name.id) == {"flow": by_name.id}


@pytest.mark.covers("AIR.8")
async def test_what_makes_the_data_starts_what_needs_it_in_its_own_transaction(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/shop.db")
    shop = Shop(app)
    log.clear()

    @app.flow
    def refresh(plan: Plan, table: str) -> None:
        plan.add(shop.note.new(text=f"refresh {table}"))

    @app.task
    async def both(ctx: Context) -> str:
        return await ctx.wait("orders", "orders-updated", str) + await ctx.wait("customers", "customers-updated", str)

    async with app.worker():
        waiting = await both.now()
        with sqlite3.connect(tmp_path / "shop.db") as connection:
            connection.execute("create table orders (id integer)")
        for number, kept in enumerate((False, True)):
            connection = sqlite3.connect(tmp_path / "shop.db", isolation_level=None)
            connection.execute("begin immediate")
            connection.execute("insert into orders values (?)", (number,))
            flow = await refresh.options(connection=connection).now(f"orders {number}")
            await app.signals.send("orders-updated", f"orders {number} ", connection=connection)
            connection.execute("commit" if kept else "rollback")
            connection.close()
        await app.signals.send("customers-updated", "customers")
        assert await app.result(waiting, timeout=60) == "orders 1 customers"
        await app.result(flow, timeout=60)
    assert log == ["refresh orders 1"]


@pytest.mark.covers("CEL.2")
async def test_the_canvas(shop: Shop, t: Kit) -> None:
    app, note, square, add_up = shop.app, shop.note, shop.square, shop.add_up

    @app.task
    async def squares(numbers: list[int]) -> list[int]:
        return [number * number for number in numbers]

    @app.task
    async def chained(number: int) -> list[int]:
        return list(range(number))

    @app.flow
    def canvas(plan: Plan) -> Node[int]:
        first = plan.add(square.new(number=2))  # chain, with a result handed on
        listed = plan.add(chained.new(number=first.value))
        mapped = plan.map(listed.value, lambda number: square.new(number=number), name="mapped")  # map
        chunks = plan.group([squares.new(numbers=list(chunk)) for chunk in batched_of(range(5), 2)], name="chunks")  # chunks
        plan.add(note.new(text="chunks are done"), needs=[chunks])  # link
        plan.add(note.new(text="nothing failed"), name="never", needs=[mapped.failed])  # link_error
        return plan.add(add_up.new(numbers=mapped.values), needs=[chunks])  # chord

    same = note.new(text="same")
    flow = await canvas.options(meta={"tenant": "blue"}).now()  # stamping
    assert await app.result(flow) == 14
    assert log == ["chunks are done", "sum of [0, 1, 4, 9]"]
    tasks = [task async for task in app.tasks(meta={"tenant": "blue"})]
    assert len(tasks) == 1 + 1 + 4 + 3 + 1 + 1
    assert [await app.result(await app.chain(same, same)) for _ in range(2)] == ["same", "same"], "what is submitted does not change"
    t.fail_next(square, Fatal("no"))
    failed = await app.group([square.new(number=1), square.new(number=2)], failed=note.new(text="link_error"))
    await t.drain()
    assert (log[-1], (await app.flows.get(failed)).state) == ("link_error", "succeeded")


def batched_of(numbers: range, size: int) -> list[list[int]]:
    return [list(numbers[start : start + size]) for start in range(0, len(numbers), size)]


@pytest.mark.each_store
@pytest.mark.covers("CEL.11")
async def test_results_of_one_of_many_and_of_a_group(shop: Shop, t: Kit) -> None:
    app, square = shop.app, shop.square
    one = await square.now(3)
    many = [await square.now(number) for number in range(3)]
    t_failed = await shop.note.now("fails later")
    assert await app.result(one) == 9
    assert await app.result(one.id) == 9, "by its id, in another process too"
    assert await app.results(many) == [0, 1, 4]
    t.fail_next(square, Fatal("broken"))
    broken = await square.now(4)
    with pytest.raises(TaskFailed, match="broken"):
        await app.result(broken)
    plan = Plan("group")
    plan.result(plan.add(shop.add_up.new(numbers=plan.group([square.new(number=number) for number in range(4)], name="parts").values)))
    group = await app.submit_flow(plan.new_flow())
    assert await app.result(group) == 14
    assert (await app.flows.get(group)).node("parts").ended == 4
    members = await app.flows.members(group, "parts")
    assert await app.results([member.task for member in members]) == [0, 1, 4, 9]
    await app.result(t_failed)


@pytest.mark.covers("HF.1")
async def test_jobs_at_once_later_again_and_again_and_after_others(shop: Shop, t: Kit) -> None:
    app, note, square = shop.app, shop.note, shop.square
    await note.now("now")
    await note.after(60, "in a minute")
    await app.schedules.put(Schedule("again", note, Every(minutes=10), payload={"text": "again"}))
    await app.schedules.put(Schedule("again", note, Every(minutes=30), payload={"text": "again"}))  # add or update
    works, fails, deleted = await square.after(5, 1), await square.after(10, 2), await square.after(15, 3)
    for name, task in (("works", works), ("fails", fails), ("deleted", deleted)):
        await note.options(needs=[task]).now(f"{name}: only succeeded")
        await note.options(needs=[ended(task)]).now(f"{name}: any finished")
    flow = await app.group([square.new(number=4).after(3_600)], failed=note.new(text="only if deleted"), succeeded=note.new(text="no"))
    await t.drain()
    assert await app.cancel(deleted) is CancelVerdict.CANCELLED
    await app.cancel((await app.flows.members(flow, "tasks"))[0].task)
    await t.advance(seconds=5)
    t.fail_next(square, Fatal("no"))
    await t.advance(minutes=59)
    after = ["works: only succeeded", "works: any finished", "fails: any finished", "deleted: any finished", "only if deleted"]
    assert sorted(log) == sorted(["now", "in a minute", "again", *after])


@pytest.mark.covers("HF.6")
async def test_batches_are_whole_are_followed_are_nested_and_are_cancelled(shop: Shop, t: Kit) -> None:
    app, note = shop.app, shop.note

    @app.flow
    def batch(plan: Plan, name: str) -> Node[str]:
        parts = plan.group([note.new(text=f"{name} {number}") for number in range(2)], name="parts")
        return plan.add(note.new(text=f"{name} done"), needs=[parts])

    @app.flow
    def outer(plan: Plan) -> Node[str]:
        nested = plan.group([batch.new("left"), batch.new("right")], name="nested")
        return plan.add(note.new(text="all done"), needs=[nested])

    with pytest.raises(InvalidPayload):
        await app.group([note.new(text="never"), app.handler("note").new(number=7)])
    assert (await t.drain(), log) == ([], []), "all of it or nothing"
    assert await app.result(await outer.now()) == "all done"
    assert log[-1] == "all done"
    assert log.index("left done") > max(log.index("left 0"), log.index("left 1"))
    log.clear()
    t.fail_next(note, RetryLater(60))
    cancelled = await outer.now()
    await t.drain()
    assert await app.cancel(cancelled) is CancelVerdict.CANCELLED
    log.clear()
    await t.advance(hours=1)
    assert log == []
    with pytest.raises(FlowFailed, match="cancelled"):
        await app.result(cancelled)


class Billing:
    """Any method is a handler."""

    def charge(self, order_id: int, amount: int = 10) -> dict[str, int]:
        return {"order": order_id, "amount": amount}

    async def tell(self, text: str) -> str:
        return f"told {text}"


@pytest.mark.covers("HF.9")
async def test_any_method_is_a_job_and_hands_its_result_on() -> None:
    app = App("sqlite:///:memory:")
    billing = Billing()
    charge, tell = app.task(billing.charge), app.task(billing.tell)

    @app.task
    async def receipt(charged: dict[str, int], heading: str) -> str:
        return f"{heading}: {charged['amount']} for order {charged['order']}"

    @app.flow
    def order(plan: Plan, order_id: int) -> Node[str]:
        charged = plan.add(charge.new(order_id, amount=25))
        written = plan.add(receipt.new(charged=charged.value, heading="Receipt"))
        return plan.add(tell.new(text=written.value))

    async with duetime.testing.using(app):
        assert await app.result(await order.now(7)) == "told Receipt: 25 for order 7"


@pytest.mark.covers("XXL.1", "XXL.8")
async def test_every_kind_of_trigger_and_children_on_success(shop: Shop, t: Kit) -> None:
    app, note = shop.app, shop.note
    put = app.schedules.put
    await put(Schedule("cron", note, Cron("30 * * * *"), payload={"text": "cron"}))
    await put(Schedule("rate", note, Every(minutes=30), payload={"text": "fixed rate"}))
    await put(Schedule("delay", note, AfterEnd(1_000), payload={"text": "fixed delay"}))
    await note.now("api")
    await app.schedules.trigger("cron", payload={"text": "manual"})
    parent = note.new(text="parent")
    flow = await app.group([parent], succeeded=note.new(text="child"))
    chain = await app.chain(note.new(text="job"), note.new(text="child job"))
    await t.advance(minutes=45)
    timed = ["cron", "fixed delay", "fixed delay", "fixed rate"]
    assert sorted(log) == sorted([*timed, "api", "manual", "parent", "child", "job", "child job"])
    assert log.index("child") > log.index("parent")
    assert [(await app.flows.get(each)).state for each in (flow, chain)] == ["succeeded"] * 2
    t.fail_next(note, Fatal("no"))
    await app.chain(note.new(text="bad job"), note.new(text="never"))
    await t.drain()
    assert "never" not in log
