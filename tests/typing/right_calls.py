"""Calls that a type checker must accept, with the types that it must see. Never run; test_typing.py has mypy read it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

from duetime import (
    AfterEnd,
    App,
    At,
    Basic,
    Bearer,
    Bulk,
    Calendar,
    CancelVerdict,
    Context,
    Cron,
    DayCalendar,
    Event,
    Every,
    Flow,
    FlowHandler,
    GateEvent,
    GateSet,
    Group,
    Handler,
    Handlers,
    Lock,
    NewTask,
    Next,
    Node,
    Occurrence,
    Plan,
    Reason,
    Results,
    RetryPolicy,
    Sandbox,
    Schedule,
    ScheduleInfo,
    Task,
    TaskEvent,
    Window,
    any_of,
    at_least,
)


class Pool:
    pass


@asynccontextmanager
async def resources() -> AsyncIterator[Pool]:
    yield Pool()


app = App("sqlite:///:memory:", lifespan=resources, imports=["shop.tasks"], lease=5, keep_failed=timedelta(days=1))


@app.task
async def async_with_context(ctx: Context, order_id: int, note: str = "") -> str:
    assert_type(ctx.get(Pool), Pool)
    assert_type(ctx.attempt, int)
    return note


@app.task
async def async_without(order_id: int) -> str:
    return str(order_id)


@app.task
def sync_with_context(ctx: Context, order_id: int) -> list[int]:
    return [order_id]


@app.task
def sync_without(order_id: int) -> float:
    return order_id / 2


@app.task
async def nothing() -> None: ...


@app.task(timeout=30, retry=RetryPolicy(tries=8, base=1, cap=300), concurrency=50, priority=7)
async def with_options(ctx: Context, order_id: int) -> str:
    return ""


@app.task(name="other", aliases=["older"], isolation="process", timeout=timedelta(minutes=1))
def with_options_sync(order_id: int) -> bytes:
    return b""


@with_options.upgrade
def former(payload: dict[str, Any]) -> dict[str, Any]:
    return {"order_id": payload["order"]}


@app.task
async def clashing(delay: int, when: str, key: str, self: int = 0) -> None: ...


shop = Handlers(prefix="shop.")
app.include(shop)


@shop.task
async def grouped(ctx: Context, sku: str) -> int:
    return 1


class Billing:
    async def charge(self, cents: int) -> str:
        return ""

    def refund(self, ctx: Context, cents: int) -> bool:
        return True


class Mailer:
    def __call__(self, to: str) -> int:
        return 0


@app.on("task.failed", "task.lost", handler="shop.*")
async def failed(event: TaskEvent) -> None:
    assert_type(event.task, str)


@shop.on("gate.paused")
def paused(event: GateEvent) -> None: ...


@app.lock("nightly", max_hold=timedelta(minutes=10))
async def nightly(day: int) -> str:
    return ""


@app.lock("hourly", min_hold=5, wait=1)
def hourly() -> int:
    return 1


async def lock() -> None:
    assert_type(await nightly(1), str | None)
    assert_type(hourly(), int | None)
    assert_type(await app.locks.take("a", max_hold=5), Lock | None)
    async with app.lock("a") as held:
        assert_type(held.fence, int)
    with app.lock("a") as held_here:
        held_here.extend(5)


async def follow() -> None:
    async for event in app.events("task.*", "gate.paused", handler="shop.*", after="7"):
        assert_type(event, Event)


billing = Billing()
charge = app.task(billing.charge)
refund = app.task(billing.refund)
mail = app.task(Mailer(), name="mail", timeout=5)
moment = datetime(2030, 1, 1, tzinfo=UTC)


@app.schedule(cron="*/5 * * * *", tz="Europe/Berlin", missed="all within 6h", timeout=30, calendars=["holidays"])
async def swept(ctx: Context, depth: int = 1) -> int:
    assert_type(ctx.occurrence, Occurrence | None)
    return depth


@shop.schedule(every=timedelta(minutes=1), name="shop-sweep", payload={"depth": 2}, overlap="queue one", jitter=3)
def swept_in_thread(depth: int) -> str:
    return ""


@app.schedule(rule=Cron("0 9 * * *") | Every(hours=6) | At(moment) | AfterEnd(60) | Window(600) | Calendar(2, "weeks", on="monday"))
async def joined() -> None: ...


class Charge:
    def __init__(self, order_id: int, amount: float = 1.0) -> None: ...


class Receipt:
    number: str


charge_typed = app.http("charge", "https://a.example/{payload.order_id}", payload=Charge, result=Receipt, auth=Bearer("x"), timeout=20)
charge_open = shop.http("open", "https://a.example/", method="PUT", body={"a": ["{payload.a}"]}, headers={"X": "1"}, fatal=(404, 422))
charge_known = app.http("known", "https://a.example/", payload=async_without, auth=Basic("ada", "x"), redirects="same-host")
charge_result = app.http("result", "https://a.example/", result=int)

dump_typed = app.command("dump", ["pg_dump", "{payload.order_id}"], payload=Charge, result=Receipt, sandbox=Sandbox(cpu=60, memory="1GB"))
dump_open = shop.command("open", ["ls"], env={"A": "b"}, keep_env=["PATH"], exits={3: "fatal"}, stop="SIGINT", grace=2, stdin=None)
dump_result = app.command("result", ["ls"], result=int, timeout=20)


async def commands() -> None:
    assert_type(await dump_typed.after(60, order_id=7), Task[Receipt])
    assert_type(await dump_open.now(anything=1), Task[Any])
    assert_type(await dump_result.now(anything=1), Task[int])


async def requests() -> None:
    assert_type(await charge_typed.after(60, order_id=7), Task[Receipt])
    assert_type(await app.result(await charge_typed.now(7, amount=2.5)), Receipt)
    assert_type(await charge_open.now(anything=1), Task[Any])
    assert_type(await charge_result.now(anything=1), Task[int])
    assert_type(charge_known.new(order_id=7), NewTask[Any])


@app.middleware
async def report(ctx: Context, call_next: Next) -> object:
    return await call_next()


@app.on_submit
def trace(task: NewTask[Any]) -> dict[str, str]:
    return {"trace": task.id}


def handlers() -> None:
    assert_type(app.handler("anything"), Handler[..., Any, Callable[..., Any]])
    taken: Callable[[int], Coroutine[Any, Any, str]] = async_without.__call__
    assert_type(nothing, Handler[[], None, Callable[[], Coroutine[Any, Any, None]]])


async def submitting() -> None:
    assert_type(await async_with_context.now(order_id=7), Task[str])
    assert_type(await async_with_context.now(7, "note"), Task[str])
    assert_type(await async_with_context.after(60, order_id=7), Task[str])
    assert_type(await async_with_context.after(timedelta(minutes=1), 7, note="x"), Task[str])
    assert_type(await async_with_context.at(moment, order_id=7), Task[str])
    assert_type(await async_without.now(order_id=7), Task[str])
    assert_type(await sync_with_context.now(order_id=7), Task[list[int]])
    assert_type(await sync_without.now(7), Task[float])
    assert_type(await nothing.now(), Task[None])
    assert_type(await with_options.after(1.5, order_id=7), Task[str])
    assert_type(await with_options_sync.now(order_id=7), Task[bytes])
    assert_type(await clashing.after(5, delay=1, when="x", key="k"), Task[None])
    assert_type(await grouped.now(sku="a"), Task[int])
    assert_type(await charge.now(cents=5), Task[str])
    assert_type(await refund.now(cents=5), Task[bool])
    assert_type(await mail.now(to="me"), Task[int])
    assert_type(await app.handler("anything").after(60, order_id=7, whatever=[1]), Task[Any])
    assert_type(await asyncio.create_task(async_without.now(order_id=7)), Task[str])
    await asyncio.gather(async_without.now(order_id=7), sync_without.now(order_id=7))


async def with_call_options(connection: object) -> None:
    assert_type(await async_with_context.options(key="order-7", if_exists="replace", priority=9).now(order_id=7), Task[str])
    chosen = async_without.options(collection="eu", timeout=timedelta(seconds=5), retry=RetryPolicy.none(), expires=3600, meta={"a": "b"})
    assert_type(await chosen.at(moment, order_id=7), Task[str])
    assert_type(await sync_without.options(connection=connection, expires=moment, allow_unknown=True).now(7), Task[float])


async def many() -> None:
    assert_type(async_without.new(order_id=7), NewTask[str])
    assert_type(async_without.new(order_id=7).at(moment), NewTask[str])
    assert_type(async_without.new(order_id=7).after(60), NewTask[str])
    assert_type(await app.submit(sync_without.new(7)), Task[float])
    assert_type(await app.submit_many([async_without.new(order_id=n).after(n) for n in range(3)]), Sequence[Task[str]])
    await app.submit_many([async_without.new(order_id=1), sync_without.new(order_id=2)])
    mixed: list[NewTask[Any]] = [async_without.new(order_id=1), sync_without.new(order_id=2)]
    assert_type(await app.submit_many(mixed), Sequence[Task[Any]])


async def asking() -> None:
    task = await async_with_context.now(order_id=7)
    assert_type(await app.result(task, timeout=10), str)
    assert_type(await app.result(task.id), Any)
    assert_type(await app.results([task, task], timeout=10), list[str])
    assert_type(await app.results([task], return_exceptions=True), list[str | Exception])
    assert_type(await app.results([task.id]), list[Any])
    assert_type(await app.get(task), Task[str])
    assert_type(await app.get(task.id), Task[Any])
    assert_type(await app.retry(task), Task[str])
    assert_type(await app.reschedule(task, due_at=moment), Task[str])
    assert_type(await app.reschedule(task.id, delay=60), Task[Any])
    assert_type(await app.cancel(task), CancelVerdict)
    assert_type(await app.cancel(handler="expire_order", key="order-7"), CancelVerdict)
    assert_type(await app.cancel(handler=async_with_context, key="order-7"), CancelVerdict)
    assert_type(await app.why(task), list[Reason])
    async for dead in app.tasks(state="failed", handler=async_with_context, due_before=moment):
        assert_type(dead, Task[Any])
    assert_type(await app.gates.pause("expire_order", collection="eu", lasting=600, note="down"), GateSet)
    assert_type(await app.gates.drop(async_with_context), GateSet)
    await app.cancel_many(handler="expire_order", state="pending", dry_run=True)


async def schedules() -> None:
    assert_type(await swept.now(depth=3), Task[int])
    assert_type(await swept_in_thread.now(depth=3), Task[str])
    late = Schedule("late", swept, "every 10m", payload={"depth": 3}, start=moment, grace=5)
    assert_type(await app.schedules.put(late, if_exists="keep", catch_up=True), ScheduleInfo)
    assert_type(await app.schedules.put(Schedule("b", handler="swept", rule=Every(60))), ScheduleInfo)
    assert_type(await app.schedules.list(handler=swept, paused=False), list[ScheduleInfo])
    assert_type(await app.schedules.preview(Cron("@daily"), count=3), list[datetime])
    assert_type(await app.schedules.trigger("late", payload={"depth": 1}), Task[Any])
    assert_type((await app.schedules.backfill("late", moment, moment, existing="failed", concurrency=3)).tasks, list[str])
    assert_type((await app.schedules.apply([late])).removed, list[str])
    await app.calendars.put("holidays", DayCalendar(yearly=["12-25"]))
    assert_type(await app.calendars.list(), dict[str, DayCalendar])
    reminders = app.around(moment, key="booking-7", offsets=[-5400, timedelta(minutes=15)])
    assert_type(await reminders.submit(async_without.new(order_id=7)), list[Task[str]])
    assert_type(await reminders.cancel(async_without), Bulk)


def synchronously() -> None:
    assert_type(app.sync(async_with_context.now(order_id=7)), Task[str])
    assert_type(app.sync(app.result(app.sync(sync_without.now(7)))), float)


async def called_directly(ctx: Context) -> None:
    assert_type(await async_with_context(ctx, 7), str)
    assert_type(await asyncio.create_task(async_with_context(ctx, 7, note="x")), str)
    assert_type(sync_without(7), float)


async def lifetimes() -> None:
    async with app:
        pass
    async with app.worker(handlers=[async_without, "other"], concurrency=5):
        pass


@app.flow
def thumbnails(plan: Plan, bucket: str, width: int = 200) -> Node[str]:
    listed = plan.add(async_without.new(order_id=1))
    assert_type(listed, Node[str])
    group = plan.group([async_without.new(order_id=2)], needs=[listed, listed.failed], tolerate=0.5)
    assert_type(group, Group[str])
    assert_type(group.values, list[str])
    assert_type(listed.value, str)
    return plan.add(async_without.new(order_id=3), needs=[any_of(listed, group.ended), at_least(1, group), listed.returned("a")])


@app.task
async def yielding(ctx: Context, order_id: int) -> AsyncIterator[int]:
    yield order_id


@app.task(timeout=5)
def yielding_in_a_thread(order_id: int) -> Iterator[str]:
    yield str(order_id)


@app.task
async def reading(sizes: Results[int], note: str = "") -> float:
    return sum([assert_type(size, int) async for size in sizes]) / 2


@app.task
def reading_in_a_thread(names: Results[str]) -> list[str]:
    return [assert_type(name, str) for name in names]


@app.flow
def streaming(plan: Plan) -> Node[list[int]]:
    made = plan.add(yielding.new(order_id=1))
    assert_type(made, Node[list[int]])
    assert_type(made.stream, Results[int])
    named = plan.add(yielding_in_a_thread.new(order_id=1))
    assert_type(named.value, list[str])
    sizes = plan.map(made.value, lambda number: halved.new(number=assert_type(number, int)))
    assert_type(sizes.stream, Results[int])
    plan.add(reading.new(sizes=sizes.stream, note="x"))
    plan.add(reading.new(sizes=made.stream))
    plan.add(reading_in_a_thread.new(names=named.stream))
    return made


@app.task
async def halved(number: int) -> int:
    return number // 2


async def reading_alone() -> None:
    assert_type(await reading.now(sizes=Results.of([1, 2])), Task[float])
    assert_type(await reading(Results.of([1])), float)
    assert_type(await app.result(await yielding.now(order_id=1)), list[int])
    async for size in yielding(Context.__new__(Context), 1):
        assert_type(size, int)
    async for each in app.flows.results("id", "node"):
        assert_type(each, Any)


@app.schedule("0 3 * * *")
@app.flow
def undone(plan: Plan) -> Node[str]:
    first = plan.add(async_without.new(order_id=1), undo=async_without.new(order_id=2))
    made = plan.add(async_without.new(order_id=1), undo=lambda text: async_without.new(order_id=len(assert_type(text, str))))
    assert_type(made, Node[str])
    return first


assert_type(undone, FlowHandler[[], str])


@app.flow(on_failure="stop", deadline=timedelta(hours=2))
def without_result(plan: Plan) -> None:
    plan.add(async_without.new(order_id=1))


@shop.flow
def grouped_flow(plan: Plan, number: int) -> Node[str]:
    return plan.add(async_without.new(order_id=number))


async def flows() -> None:
    flow = await thumbnails.now(bucket="b")
    assert_type(flow, Flow[str])
    assert_type(await app.result(flow, timeout=5), str)
    assert_type(await app.retry(flow), Flow[str])
    assert_type(await app.cancel(flow), CancelVerdict)
    await thumbnails.options(connection=object(), meta={"a": "b"}).after(60, "b", width=5)
    assert_type(await without_result.at(datetime.now(UTC)), Flow[None])
    assert_type(await grouped_flow.now(number=5), Flow[str])
    assert_type((await app.flows.list(state="failed")).items, list[Flow[Any]])
    assert_type(await app.chain(async_without.new(order_id=1)), Flow[Any])
    assert_type(await app.group([async_without.new(order_id=1)], succeeded=async_without.new(order_id=2)), Flow[Any])
