"""Events: hooks in the program, a stream to follow, and dead letters that go where one chooses."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from duetime import App, Fatal, GateEvent, Handlers, InvalidHandler, InvalidValue, RetryPolicy, ScheduleEvent, TaskEvent, WorkerEvent
from duetime.testing import using
from tests.servers.waiting import PATIENCE

NOW = datetime(2030, 1, 1, 9, tzinfo=UTC)


@pytest.fixture
def app() -> App:
    return App("sqlite:///:memory:", user="ada")


@pytest.mark.covers("RMQ.1")
async def test_dead_letters_go_to_a_chosen_destination(app: App) -> None:
    shop = Handlers("shop.")
    letters = app.publish("letters", "mqtt://broker.example", to="dead/{payload.handler}")

    @shop.task(retry=RetryPolicy(tries=2, base=1))
    async def charge(order_id: int) -> None:
        raise ValueError(f"no order {order_id}")

    @shop.on("task.failed", "task.expired")
    async def to_the_dead(event: TaskEvent) -> None:
        dead = await app.get(event.task)
        await letters.now(handler=event.handler, payload=dead.payload, why=event.error.message if event.error else event.name)

    app.include(shop)
    async with using(app, now=NOW, raise_errors=False) as t:
        t.answer_next(letters)
        t.answer_next(letters)
        await charge.now(order_id=7)
        await app.gates.pause("shop.charge", collection="eu")
        await charge.options(expires=60, collection="eu").now(order_id=8)
        await t.advance(minutes=10)
        sent = t.requests(letters)
    assert [each.to for each in sent] == ["dead/shop.charge", "dead/shop.charge"]
    assert [each.json["payload"] for each in sent] == [{"order_id": 7}, {"order_id": 8}]
    assert [each.json["why"] for each in sent] == ["no order 7", "task.expired"]


@pytest.mark.covers("RMQ.3")
async def test_a_hook_is_not_called_for_what_it_has_led_to(app: App) -> None:
    seen = []

    @app.task
    async def work(depth: int = 0) -> None:
        raise Fatal("always")

    @app.on("task.failed")
    async def again(event: TaskEvent) -> None:
        seen.append(event.task)
        await work.now(depth=1)

    async with using(app, raise_errors=False) as t:
        task = await work.now()
        ran = await t.drain()
    assert len(ran) == 2
    assert seen == [task.id]


async def test_hooks_hear_of_tasks_schedules_and_gates_in_order(app: App) -> None:
    heard: list[str] = []

    @app.task
    async def greet() -> None: ...

    @app.schedule(every=60)
    async def tick() -> None: ...

    @app.on("task.submitted", "task.started", "task.succeeded", handler="greet")
    def of_tasks(event: TaskEvent) -> None:
        heard.append(f"{event.name} {event.handler} {event.attempt}")

    @app.on("schedule.fired")
    async def of_schedules(event: ScheduleEvent) -> None:
        heard.append(f"{event.name} {event.schedule}")

    @app.on("gate.paused", "gate.opened")
    async def of_gates(event: GateEvent) -> None:
        heard.append(f"{event.name} {event.handler} {event.by}")

    async with using(app, now=NOW) as t:
        await greet.now()
        await t.drain()
        await app.gates.pause("greet")
        await app.gates.open("greet")
        await t.advance(61)
    assert heard[:3] == ["task.submitted greet 0", "task.started greet 1", "task.succeeded greet 1"]
    assert sorted(heard[3:]) == ["gate.opened greet ada", "gate.paused greet ada", "schedule.fired tick"]


async def test_what_a_hook_raises_fails_a_test(app: App) -> None:
    @app.task
    async def greet() -> None: ...

    @app.on("task.succeeded")
    async def broken(event: TaskEvent) -> None:
        raise RuntimeError("broken hook")

    async with using(app) as t:
        await greet.now()
        with pytest.raises(RuntimeError, match="broken hook"):
            await t.drain()


async def test_a_group_hears_of_its_own_handlers(app: App) -> None:
    shop = Handlers("shop.")
    heard = []

    @shop.task
    async def charge() -> None: ...

    @app.task
    async def other() -> None: ...

    @shop.on("task.succeeded")
    async def note(event: TaskEvent) -> None:
        heard.append(event.handler)

    app.include(shop)
    async with using(app) as t:
        await charge.now()
        await other.now()
        await t.drain()
    assert heard == ["shop.charge"]


def test_what_cannot_be_a_hook_is_refused(app: App) -> None:
    with pytest.raises(InvalidValue, match=r"there is no event 'task.fail'"):
        app.on("task.fail")  # type: ignore[call-overload]
    with pytest.raises(InvalidValue, match="of one noun"):
        app.on("task.failed", "gate.paused")  # type: ignore[call-overload]
    with pytest.raises(InvalidValue, match="of no handler"):
        app.on("worker.lost", handler="x")  # type: ignore[call-overload]
    with pytest.raises(InvalidHandler, match="function of one event"):
        app.on("task.failed")(lambda: None)  # type: ignore[type-var]

    @app.on("task.failed", name="mine")
    def note(event: TaskEvent) -> None: ...

    with pytest.raises(InvalidHandler, match="a hook called mine is already declared"):
        app.on("task.failed", name="mine")(note)


@pytest.mark.covers("CEL.12")
async def test_a_program_follows_what_happens(app: App) -> None:
    @app.task
    async def greet() -> None: ...

    async with app, app.worker(), asyncio.timeout(PATIENCE):
        stream = app.events("task.*", handler="gr*")
        first = asyncio.ensure_future(anext(stream))
        while not await app.store.followers():  # noqa: ASYNC110  # the store cannot call back
            await asyncio.sleep(0.01)
        task = await greet.now()
        heard = [await first]
        while heard[-1].name != "task.succeeded":
            heard.append(await anext(stream))
        await stream.aclose()
        assert [(event.name, event.task) for event in heard if isinstance(event, TaskEvent)] == [
            ("task.submitted", task.id),
            ("task.started", task.id),
            ("task.succeeded", task.id),
        ]
        resumed = app.events(after=heard[0].cursor)
        assert (await anext(resumed)).name == "task.started"
        await resumed.aclose()
        assert await app.store.followers() == []


async def test_a_worker_calls_hooks_again_after_a_failure(app: App) -> None:
    called: list[str] = []
    done = asyncio.Event()

    @app.task
    async def greet() -> None: ...

    @app.on("task.succeeded")
    async def note(event: TaskEvent) -> None:
        called.append(event.task)
        if len(called) == 1:
            raise ValueError("not yet")
        done.set()

    @app.on("worker.started")
    async def started(event: WorkerEvent) -> None: ...

    async with app, app.worker(), asyncio.timeout(PATIENCE):
        task = await greet.now()
        await done.wait()
    assert called == [task.id, task.id]
