"""Chapter 3: see why a task waits, pause and drop kinds of work, replay what failed."""

import asyncio
from datetime import datetime

import pytest

from duetime import App, Context, Fatal, Handlers, RetryPolicy, Slo, State, TaskFailed
from duetime.model.why import ReasonKind
from tests.guide.waiting import until
from tests.servers.waiting import PATIENCE


@pytest.mark.covers("ATF.4", "REQ.14")
async def test_a_gate_pauses_or_drops_a_handler_or_one_of_its_collections(app: App) -> None:
    ran = []

    @app.task
    async def sync_stock(region: str) -> None:
        ran.append(region)

    async with app.worker():
        answer = await app.gates.pause("sync_stock", collection="eu", note="stock service down")
        assert (answer.in_force, len(answer.confirmed)) == (True, 1)
        held = await sync_stock.options(collection="eu").now(region="eu")
        free = await sync_stock.options(collection="us").now(region="us")
        await app.result(free, timeout=PATIENCE)
        [reason] = await app.why(held)
        assert reason.text == "a gate pauses sync_stock, collection eu until it is opened; set by anna@shop: stock service down"
        assert ran == ["us"]

        await app.gates.open("sync_stock", collection="eu")
        await app.result(held, timeout=PATIENCE)
        assert ran == ["us", "eu"]

        await app.gates.drop(sync_stock)
        dropped = await sync_stock.now(region="asia")
        with pytest.raises(TaskFailed, match="ended dropped"):
            await app.result(dropped, timeout=PATIENCE)
        assert ran == ["us", "eu"]


async def test_a_gate_can_open_by_itself(app: App) -> None:
    @app.task
    async def work() -> datetime:
        return datetime.now().astimezone()

    async with app.worker():
        answer = await app.gates.pause(work, lasting=0.3)
        done_at = await app.result(await work.now(), timeout=PATIENCE)
        assert answer.gate.until_at is not None
        assert done_at >= answer.gate.until_at


@pytest.mark.covers("AIR.10", "FEN.7")
async def test_why_says_what_holds_a_task(app: App) -> None:
    going_on = asyncio.Event()

    @app.task(retry=RetryPolicy(tries=3, base=60, jitter=0))
    async def unlucky() -> None:
        raise ValueError("no stock")

    @app.task(concurrency=1)
    async def job() -> None:
        await going_on.wait()

    later, no_worker = await app.why(await job.after(3600))
    assert (later.kind, no_worker.kind) == (ReasonKind.LATER, ReasonKind.NO_WORKER)
    assert no_worker.text.startswith("no live worker runs job;")
    async with app.worker() as worker:
        failing = await unlucky.now()
        await until(app, failing, lambda task: task.tries == 1, "the first failure")
        [reason] = await app.why(failing)
        assert reason.kind is ReasonKind.RETRY
        assert reason.text.startswith("try 1 of 3 failed (ValueError: no stock, at tests/guide/test_3_operating.py:61 in unlucky); ")

        running = await job.now()
        await until(app, running, lambda task: task.state is State.RUNNING, "the start")
        [reason] = await app.why(running)
        assert (reason.kind, reason.by) == (ReasonKind.RUNNING, worker.id)
        [reason] = await app.why(await job.now())
        assert (reason.kind, reason.text) == (ReasonKind.SLOTS_FULL, "all slots of job are taken: 1 run in 1 slot")
        going_on.set()
        await app.result(running, timeout=PATIENCE)
        [reason] = await app.why(running)
        assert (reason.kind, reason.text.partition(" ")[0]) == (ReasonKind.FINISHED, "it")


async def test_failed_tasks_are_kept_and_can_be_replayed(app: App) -> None:
    broken = True

    @app.task
    async def deliver(ctx: Context, parcel: int) -> int:
        if broken:
            raise Fatal("van broken")
        return ctx.attempt

    async with app.worker():
        tasks = await app.submit_many([deliver.new(parcel=number) for number in range(5)])
        for task in tasks:
            with pytest.raises(TaskFailed, match="van broken"):
                await app.result(task, timeout=PATIENCE)
        broken = False
        dead = [task async for task in app.tasks(state="failed", handler=deliver)]
        assert {task.id for task in dead} == {task.id for task in tasks}
        again = await app.retry(dead[0])
        assert await app.result(again, timeout=PATIENCE) == 2
        assert (await app.retry_many(handler=deliver)).answers == {"changed": 4}
        assert [await app.result(task, timeout=PATIENCE) for task in tasks] == [2] * 5


async def test_an_overview_of_everything(app: App) -> None:
    @app.task(concurrency=7)
    async def quick(number: int) -> None:
        """Be quick."""

    async with app.worker(concurrency=3):
        tasks = await app.submit_many([quick.new(number=number) for number in range(10)])
        await asyncio.gather(*(app.result(task, timeout=PATIENCE) for task in tasks))
        await quick.after(3600, number=1)
        stats = await app.stats()
        assert (stats.states[State.SUCCEEDED], stats.states[State.PENDING], stats.workers) == (10, 1, 1)
        [handler] = await app.handlers()
        assert (handler.name, handler.doc, handler.concurrency, handler.workers) == ("quick", "Be quick.", 7, 1)
        [worker] = await app.workers()
        assert (worker.alive is not False, worker.silent_for, set(worker.slots)) == (True, None, {"quick"})


@pytest.mark.covers("QZ.7")
async def test_handlers_are_paused_by_pattern_or_all_at_once_and_so_are_schedules_and_a_worker(app: App) -> None:
    shop = Handlers(prefix="shop.")
    app.include(shop)

    @shop.task
    async def charge() -> str:
        return "charged"

    @app.task
    async def greet() -> str:
        return "hello"

    @app.schedule(every=3600, name="hourly")
    async def sweep() -> None: ...

    async with app.worker() as worker:
        [closed] = await app.gates.pause_all("shop.*", note="stock service down")
        assert (closed.gate.handler, closed.in_force, closed.confirmed) == ("shop.charge", True, [worker.id])
        held = await charge.now()
        assert await app.result(await greet.now(), timeout=PATIENCE) == "hello"
        everything = await app.gates.pause_all()
        assert {each.gate.handler for each in everything} >= {"shop.charge", "greet", "hourly"}
        assert all(each.in_force for each in everything)
        also = await greet.now()
        assert {each.handler for each in await app.gates.open_all("shop.*")} == {"shop.charge"}
        assert await app.result(held, timeout=PATIENCE) == "charged"
        assert (await app.get(also)).state == "pending"
        await app.gates.open_all()
        assert await app.result(also, timeout=PATIENCE) == "hello"
        assert await app.gates.list() == []
        await app.schedules.pause("hourly")
        assert (await app.schedules.get("hourly")).health == "paused"
        await app.schedules.resume("hourly")
        assert (await app.schedules.get("hourly")).health == "ok"
        await app.drain_worker(worker.id)
        assert (await app.get_worker(worker.id)).worker.draining


async def test_an_objective_for_lateness_warns_and_expires_nothing(app: App) -> None:
    going_on = asyncio.Event()

    @app.task(start_within=0.05, concurrency=1)
    async def charge() -> None:
        await going_on.wait()

    async with app.worker():
        tasks = await app.submit_many([charge.new() for _ in range(5)])

        async def told() -> list[str]:
            return [each.text for each in (await app.health()).findings if "; it should start within " in each.text]

        async with asyncio.timeout(PATIENCE):
            while not await told():  # noqa: ASYNC110  # the store's clock decides it
                await asyncio.sleep(0.02)
        going_on.set()
        await app.results(tasks, timeout=PATIENCE)
        assert await told() == []
    assert (await charge.info()).start_within == 0.05
    [rule] = [each for each in await app.alerts.suggest() if each.name == "on time: charge"]
    assert rule.when == Slo(handler="charge", start_within=0.05)
