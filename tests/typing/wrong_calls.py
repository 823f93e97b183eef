"""Calls that a type checker must refuse: every line that is marked, and no other. Never run; test_typing.py has mypy read it."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime

from duetime import App, Context, Every, GateEvent, Handlers, NewTask, Next, Node, Plan, Results, RetryPolicy, Schedule, TaskEvent

app = App("sqlite:///:memory:")
moment = datetime(2030, 1, 1, tzinfo=UTC)


@app.task
async def expire_order(ctx: Context, order_id: int, note: str = "") -> str:
    return note


@app.task(priority=7)
def halve(number: int) -> float:
    return number / 2


def charge(order_id: int) -> None: ...


class Receipt:
    number: str


called = app.http("charge", "https://a.example/", payload=charge, result=Receipt)
ran = app.command("dump", ["ls"], payload=charge, result=Receipt)
app.command("dump", ["ls"], exits={3: "success"})  # error
app.command("dump", ["ls"], sandbox={"cpu": 1})  # error
app.http("charge", "https://a.example/", redirects="all")  # error
app.http("charge", "https://a.example/", auth="sesame")  # error
app.http("charge", "https://a.example/", callback=60)  # error


async def requesting() -> None:
    await called.now(order_id="7")  # error
    await called.now(order=7)  # error
    await ran.now(order=7)  # error
    (await app.result(await called.now(order_id=7))).nummer  # error


async def upgrading() -> None:
    expire_order.upgrade(str)  # error
    expire_order.upgrade(halve)  # error
    await app.edit("id", payload=[1])  # error


async def submitting(ctx: Context) -> None:
    await expire_order.now()  # error
    await expire_order.now(order_id="7")  # error
    await expire_order.now(order_id=7, ctx=ctx)  # error
    await expire_order.now(ctx, 7)  # error
    await expire_order.now(order_id=7, order=8)  # error
    await expire_order.now(7, "note", 8)  # error
    await expire_order.after(order_id=7)  # error
    await expire_order.after("60", order_id=7)  # error
    await expire_order.after(delay=60, order_id=7)  # error
    await expire_order.at(60, order_id=7)  # error
    await expire_order.at("2030-01-01", order_id=7)  # error
    await halve.now(number=None)  # error
    await halve.now(number=1.5)  # error
    expire_order.new(order="7")  # error


async def with_options() -> None:
    await expire_order.options(priority="high").now(order_id=7)  # error
    await expire_order.options(if_exists="ignore").now(order_id=7)  # error
    await expire_order.options(retry=3).now(order_id=7)  # error
    await expire_order.options(meta={"a": 1}).now(order_id=7)  # error
    await expire_order.options(delay=60).now(order_id=7)  # error
    await expire_order.options("key").now(order_id=7)  # error
    await expire_order.options(key="k").now(order="7")  # error


async def results() -> None:
    task = await expire_order.now(order_id=7)
    number: int = await app.result(task)  # error
    number = (await halve.now(4)).nothing  # error
    await app.result(7)  # error
    await app.result(task, 10)  # error
    await app.submit(task)  # error
    await app.submit_many([task])  # error
    await app.submit_many(expire_order.new(order_id=7))  # error
    new_task: NewTask[int] = expire_order.new(order_id=7)  # error
    await app.cancel(task, key=7)  # error
    await app.reschedule(task, moment)  # error
    await app.gates.pause("expire_order", "eu")  # error
    async for other in app.tasks(status="failed"):  # error
        print(other)


async def schedules() -> None:
    Schedule("s", "h")  # error
    Schedule("s", "h", Every(60), misses="all")  # error
    Schedule("s", "h", Every(60), "payload")  # error
    Schedule("s", 7, Every(60))  # error
    await app.schedules.put("s")  # error
    await app.schedules.put(Schedule("s", "h", Every(60)), if_exists="maybe")  # error
    await app.schedules.backfill("s", moment, moment, existing="some")  # error
    await app.schedules.preview(7)  # error
    app.schedule(cron=5)  # error
    app.schedule(crons="* * * * *")  # error
    app.around(moment, offsets=[1])  # error
    await app.around(moment, key="k", offsets=[1]).submit(expire_order)  # error
    await app.calendars.put("c", Every(60))  # error


def synchronously() -> None:
    app.sync(expire_order)  # error
    name: int = app.sync(expire_order.now(order_id=7)).handler  # error


async def called_directly(ctx: Context) -> None:
    await expire_order(7)  # error
    await expire_order(ctx, order="7")  # error
    halve("x")  # error


def declaring() -> None:
    app.task(7)  # error
    app.task(retry=3)  # error
    app.task(isolation="container")  # error
    app.task(prio=3)  # error
    app.task(print, prio=3)  # error
    App("sqlite:///:memory:", leese=3)  # error
    App(lifespan=3)  # error
    app.include(app)  # error
    Handlers("a", "b")  # error
    RetryPolicy(3)  # error


@app.middleware  # error
async def too_few(ctx: Context) -> object:
    return None


@app.middleware  # error
def not_async(ctx: Context, call_next: Next) -> object:
    return None


@app.on_submit  # error
def hook(task: str) -> None: ...


@app.on("task.failed")  # error
def wrong_event(event: GateEvent) -> None: ...


@app.on("task.fialed")  # error
def misspelt(event: TaskEvent) -> None: ...


@app.on("task.failed", "gate.paused")  # error
def mixed(event: TaskEvent) -> None: ...
@app.flow
def billing(plan: Plan, order_id: int) -> Node[str]:
    first = plan.add(expire_order.new(order_id=order_id))
    plan.add(halve.new(number=1), needs=first)  # error
    plan.add(halve.new(number=1), undo=halve)  # error
    plan.add(halve.new(number=1), needs=[expire_order])  # error
    plan.add(halve.now(number=1))  # error
    plan.add(halve.new(number=1), needs=[first.returned(5)])  # error
    return first


@app.task
async def lengths(order_id: int) -> AsyncIterator[int]:
    yield order_id


@app.task
async def add_names(names: Results[str]) -> str:
    return "".join([name async for name in names])


@app.flow
def streaming(plan: Plan) -> None:
    made = plan.add(lengths.new(order_id="7"))  # error
    single = plan.add(expire_order.new(order_id=7))
    group = plan.group([expire_order.new(order_id=7)])
    plan.add(add_names.new(names=made.stream))  # error
    plan.add(add_names.new(names=group.values))  # error
    plan.add(add_names.new(names=single.stream))  # error
    plan.add(add_names.new(names=group.stream))
    plan.add(add_names.new(names=Results.of([1])))  # error


@app.flow(on_failure="ignore")  # error
def ignoring(plan: Plan) -> None: ...


async def flowing() -> None:
    await billing.now(order_id="7")  # error
    await billing.now()  # error
    (await app.result(await billing.now(order_id=7))).nothing  # error
    await app.chain("a")  # error
