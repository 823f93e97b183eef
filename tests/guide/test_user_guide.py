"""More of the guide, one capability at a time: how to say what shall run, when, once, and until when."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from duetime import (
    App,
    Context,
    DuplicateKey,
    DuplicateKeys,
    Handlers,
    InvalidPayload,
    InvalidValue,
    State,
    Task,
    TaskFailed,
    UnknownHandler,
)
from tests.guide.waiting import until
from tests.servers.waiting import PATIENCE


@pytest.mark.parametrize("app", ["sqlite"], indirect=True)  # its bound is met with ease, but not on a busy machine with a server beside it
@pytest.mark.covers("REQ.4")
async def test_submitting_is_acknowledged_at_once_and_due_tasks_start_within_five_seconds(app: App) -> None:
    started: dict[int, datetime] = {}
    stuck = asyncio.Event()

    @app.task(concurrency=1)
    async def slow() -> None:
        await stuck.wait()

    @app.task
    async def expire(order_id: int) -> None:
        started[order_id] = datetime.now(UTC)

    async with app.worker():
        unfinished = await slow.now()  # returns although the work has not even begun
        assert (await app.get(unfinished)).state in (State.PENDING, State.RUNNING)
        tasks = await app.submit_many([expire.new(order_id=number).after(number * 0.002) for number in range(500)])
        await asyncio.gather(*(app.result(task, timeout=PATIENCE) for task in tasks))
        assert not (await app.get(unfinished)).final
        stuck.set()
    lateness = [(started[number] - task.due_at).total_seconds() for number, task in enumerate(tasks)]
    assert min(lateness) >= 0
    assert sum(late <= 5 for late in lateness) >= 0.95 * len(lateness)


@pytest.mark.covers("CEL.1")
async def test_delay_time_expiry_collection_and_priority_are_options_of_a_task(app: App) -> None:
    @app.task
    async def push(device: int) -> None: ...

    seven = datetime(2030, 1, 31, 7, 0, tzinfo=UTC)
    task = await push.options(collection="floor-1", priority=9, expires=timedelta(minutes=10), meta={"trace": "a-1"}).at(seven, device=1)
    assert (task.due_at, task.expires_at) == (seven, seven + timedelta(minutes=10))
    stored = await app.get(task.id)
    assert (stored.collection, stored.priority, stored.meta, stored.submitted_by) == ("floor-1", 9, {"trace": "a-1"}, "anna@shop")
    later = await push.options(expires=datetime(2031, 1, 1, tzinfo=UTC)).after(timedelta(hours=1), device=2)
    assert timedelta(minutes=59) < later.due_at - later.submitted_at <= timedelta(hours=1)
    assert later.expires_at == datetime(2031, 1, 1, tzinfo=UTC)


@pytest.mark.covers("REQ.5")
async def test_a_task_that_cannot_start_in_time_expires_and_one_that_runs_too_long_is_ended(app: App) -> None:
    ran = []

    @app.task(timeout=0.1)
    async def work(name: str) -> None:
        ran.append(name)
        await asyncio.sleep(60)

    too_old = await work.options(expires=0.01).now(name="too old")
    await asyncio.sleep(0.02)
    async with app.worker():
        with pytest.raises(TaskFailed) as expired:
            await app.result(too_old, timeout=PATIENCE)
        slow = await work.now(name="slow")
        info = await until(app, slow, lambda task: task.tries == 1, "its first try to be over")
    assert (expired.value.state, ran) == ("expired", ["slow"])
    assert not info.final  # it will be tried again


@pytest.mark.covers("DYN.5")
async def test_a_task_is_stored_only_if_its_key_is_neither_waiting_nor_running(app: App) -> None:
    going_on = asyncio.Event()

    @app.task
    async def ship(ctx: Context, parcel: int) -> None:
        ctx.progress(0)
        await going_on.wait()

    ensure = ship.options(key="parcel-7", if_exists="keep")
    waiting = await ensure.after(0.05, parcel=7)
    assert (await ensure.now(parcel=7)).id == waiting.id
    with pytest.raises(DuplicateKey) as duplicate:
        await ship.options(key="parcel-7").now(parcel=7)
    assert duplicate.value.task_id == waiting.id
    async with app.worker():
        await until(app, waiting, lambda task: task.progress is not None, "its start")
        assert (await ensure.now(parcel=7)).id == waiting.id
        with pytest.raises(DuplicateKey, match="running"):
            await ensure.options(if_exists="replace").now(parcel=7)
        going_on.set()
        await app.result(waiting, timeout=PATIENCE)
        assert (await ensure.after(60, parcel=7)).id != waiting.id  # the key is free again
    assert len([task async for task in app.tasks(handler=ship)]) == 2


@pytest.mark.covers("HF.5")
async def test_a_key_also_keeps_two_runs_of_the_same_thing_apart_and_expiry_drops_what_is_too_old(app: App) -> None:
    together = most = 0

    @app.task
    async def rebuild(shop: str) -> None:
        nonlocal together, most
        together += 1
        most = max(most, together)
        await asyncio.sleep(0.02)
        together -= 1

    async with app.worker():
        for _ in range(20):
            last = await rebuild.options(key="shop-1", if_exists="keep").now(shop="1")
            await asyncio.sleep(0.005)
        await app.result(last, timeout=PATIENCE)
        await app.gates.pause(rebuild)
        stale = await rebuild.options(expires=0.05).now(shop="2")
        with pytest.raises(TaskFailed, match="ended expired"):
            await app.result(stale, timeout=PATIENCE)
    assert most == 1


async def test_of_many_tasks_only_those_with_taken_keys_are_refused(app: App) -> None:
    @app.task
    async def remind(user: int) -> None: ...

    held = await remind.options(key="user-3").after(60, user=3)
    with pytest.raises(DuplicateKeys) as refused:
        await app.submit_many([remind.options(key=f"user-{user}").new(user=user).after(60) for user in range(5)])
    assert refused.value.duplicates == {3: held.id}
    assert [task is None for task in refused.value.tasks] == [False, False, False, True, False]
    assert len([task async for task in app.tasks(handler=remind)]) == 5


async def test_a_task_can_be_made_first_and_submitted_later(app: App) -> None:
    @app.task
    async def remind(user: int) -> int:
        return user

    reminder = remind.new(user=7)
    async with app.worker():
        assert [task async for task in app.tasks()] == []
        assert await app.result(await app.submit(reminder.after(0.01)), timeout=PATIENCE) == 7
        assert (await app.submit(reminder)).state is State.SUCCEEDED  # submitted again, it is the same task and not a second one


async def test_wrong_arguments_are_refused_before_anything_is_stored(app: App) -> None:
    @app.task
    async def charge(order_id: int, cents: int = 0) -> None: ...

    by_name = app.handler("charge")
    for wrong in ({"order_id": "seven"}, {"order": 7}, {}, {"order_id": 7, "cents": 1.5}):
        with pytest.raises(InvalidPayload):
            await by_name.now(**wrong)
    with pytest.raises(InvalidPayload, match="did you mean order_id"):
        await app.submit_many([charge.new(order_id=1), by_name.new(order=2)])
    with pytest.raises(UnknownHandler, match="did you mean charge"):
        await app.handler("chrage").now(order_id=7)
    with pytest.raises(InvalidValue, match="time zone"):
        await charge.at(datetime(2030, 1, 1), order_id=7)
    with pytest.raises(InvalidValue, match="0 to 9"):
        charge.options(priority=10)
    assert [task async for task in app.tasks()] == []


SUBMITTER = """
import asyncio, sys
from datetime import datetime, timedelta, UTC
from duetime import App

async def main():
    async with App(sys.argv[1], user="web@front") as web:
        double = web.handler("double")
        print((await double.now(number=4)).id)
        print((await double.at(datetime.now(UTC) + timedelta(seconds=0.2), number=21)).id)

asyncio.run(main())
"""


@pytest.mark.covers("ATF.1")
async def test_another_process_submits_by_name_for_now_and_for_a_time(app: App) -> None:
    @app.task
    async def double(number: int) -> int:
        return number * 2

    async with app.worker():
        command = [sys.executable, "-W", "error", "-c", SUBMITTER, app.config.url]
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        said, _ = await process.communicate()
        now, later = said.decode().split()
        assert [await app.result(each, timeout=PATIENCE) for each in (now, later)] == [8, 42]
        assert (await app.get(now)).submitted_by == "web@front"
        info = await app.get(later)
        assert info.started_at is not None
        assert info.started_at >= info.due_at > info.submitted_at


async def test_a_task_may_be_submitted_before_its_handler_exists(app: App) -> None:
    early = await app.handler("brew").options(allow_unknown=True).now(cups=2)

    @app.task
    async def other() -> None: ...

    async with app.worker():
        await app.result(await other.now(), timeout=PATIENCE)
        assert (await app.get(early)).state is State.PENDING  # left alone by workers that do not know it

    @app.task
    async def brew(cups: int) -> int:
        return cups

    async with app.worker():
        assert await app.result(early, timeout=PATIENCE) == 2


@pytest.mark.covers("KBL.1")
async def test_a_future_event_carries_its_data_a_token_and_two_keys_to_find_it_by(app: App) -> None:
    @app.task
    async def invoice(account: str, amount: int) -> None: ...

    due_at = datetime.now(UTC) + timedelta(days=30)
    event = invoice.options(key="subscription-9", collection="tenant-2", meta={"user": "token-1"})
    stored = await event.at(due_at, account="A", amount=5)
    await invoice.options(key="subscription-8", collection="tenant-2").after(60, account="B", amount=6)
    await invoice.options(key="subscription-10", collection="tenant-3").after(60, account="C", amount=7)

    assert (await app.find(invoice, "subscription-9")).id == stored.id
    assert len([task async for task in app.tasks(handler=invoice, collection="tenant-2")]) == 2
    [found] = [task async for task in app.tasks(handler=invoice, collection="tenant-2", key="subscription-9")]
    assert (found.payload, found.meta, found.due_at) == ({"account": "A", "amount": 5}, {"user": "token-1"}, due_at)


@pytest.mark.covers("KBL.3")
async def test_entries_are_searched_updated_and_removed_whether_future_running_or_past(app: App) -> None:
    going_on = asyncio.Event()

    @app.task
    async def invoice(ctx: Context, amount: int) -> None:
        ctx.progress(0.5)
        if amount == 2:
            await going_on.wait()

    async def found(tasks: AsyncIterator[Task[Any]]) -> list[tuple[State, int]]:
        return sorted([(task.state, task.payload["amount"]) async for task in tasks])

    mine = invoice.options(collection="tenant-1")
    async with app.worker():
        past = await mine.options(key="a").now(amount=1)
        await app.result(past, timeout=PATIENCE)
        running = await mine.options(key="b").now(amount=2)
        await until(app, running, lambda task: task.progress is not None, "its start")
        future = await mine.options(key="c").after(3600, amount=3)
        assert await found(app.tasks(handler=invoice, collection="tenant-1")) == [
            (State.PENDING, 3),
            (State.RUNNING, 2),
            (State.SUCCEEDED, 1),
        ]
        assert await found(app.tasks(handler=invoice, collection="tenant-1", key="b")) == [(State.RUNNING, 2)]

        updated = await mine.options(key="c", if_exists="replace").after(7200, amount=4)
        assert updated.id == future.id
        assert await found(app.tasks(handler=invoice, collection="tenant-1", state="pending")) == [(State.PENDING, 4)]
        assert (await app.cancel_many(handler=invoice, collection="tenant-1", key="c")).answers == {"cancelled": 1}
        assert await found(app.tasks(handler=invoice, collection="tenant-1")) == [
            (State.CANCELLED, 4),
            (State.RUNNING, 2),
            (State.SUCCEEDED, 1),
        ]
        going_on.set()
        await app.result(running, timeout=PATIENCE)


@pytest.mark.covers("RSQ.7")
async def test_delayed_tasks_are_removed_run_now_or_pushed_back_by_selection(app: App) -> None:
    ran = []

    @app.task
    async def mail(to: str) -> str:
        ran.append(to)
        return to

    hours = {"anna": 1, "ben": 2, "cleo": 3, "dora": 4}
    for name, hour in hours.items():
        await mail.options(collection="odd" if hour % 2 else "even").after(timedelta(hours=hour), to=name)
    soon = datetime.now(UTC) + timedelta(minutes=150)
    assert (await app.cancel_many(handler=mail, collection="odd", due_before=soon)).answers == {"cancelled": 1}
    async for task in app.tasks(handler=mail, state="pending", due_before=soon):
        await app.reschedule(task, delay=0)
    [cleo] = [task async for task in app.tasks(handler=mail, state="pending", collection="odd")]
    pushed = await app.reschedule(cleo, due_at=cleo.due_at + timedelta(days=1))
    assert pushed.due_at - cleo.due_at == timedelta(days=1)
    async with app.worker():
        [ben] = [task async for task in app.tasks(handler=mail, due_before=datetime.now(UTC), collection="even")]
        await app.result(ben, timeout=PATIENCE)
    assert ran == ["ben"]
    left = [task.payload["to"] async for task in app.tasks(handler=mail, state="pending")]
    assert sorted(left) == ["cleo", "dora"]


async def test_a_group_with_a_prefix_is_included_once_and_submits_through_its_app(app: App) -> None:
    shop = Handlers(prefix="shop.")

    @shop.task(aliases=["cost"])
    async def price(sku: str) -> int:
        return len(sku)

    with pytest.raises(TypeError, match="include"):
        await price.now(sku="abc")
    app.include(shop)
    async with app.worker():
        assert await app.result(await app.handler("shop.price").now(sku="abc"), timeout=PATIENCE) == 3
    with pytest.raises(TypeError, match="exactly one"):
        App("sqlite:///:memory:").include(shop)


def test_synchronous_programs_use_every_verb_through_one_door(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/duetime.db")

    @app.task
    def double(number: int) -> list[int]:
        return [number * 2, os.getpid()]

    async def work() -> list[int]:
        async with app.worker():
            return await app.result(await double.now(number=21), timeout=PATIENCE)

    assert app.sync(work()) == [42, os.getpid()]
    task = app.sync(double.after(60, number=1))
    assert app.sync(app.reschedule(task, delay=120)).due_at > task.due_at
    assert app.sync(app.cancel(task)) == "cancelled"
    assert app.sync(app.retry(task)).state is State.PENDING
    app.sync(app.close())
