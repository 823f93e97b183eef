"""Tasks around an event: submitted, moved and cancelled as one set, also inside the caller's transaction."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from duetime import App, Context, DuplicateKey, Handler, InvalidValue, State, Task
from duetime.app.around import label_of
from duetime.clock import ManualClock, to_instant
from duetime.store.open import store_from_url
from duetime.store.values import NewWorker
from tests.integration.callers import bare
from tests.servers.waiting import PATIENCE

NOON = datetime(2030, 1, 7, 12, tzinfo=UTC)
OFFSETS = [-5400, -3600, -900, 900]
Remind = Handler[..., None, Any]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(to_instant(NOON - timedelta(hours=5)))


@pytest.fixture
async def app(store_url: str, clock: ManualClock) -> AsyncIterator[App]:
    app = App(store_url, user="anna@shop")

    @app.task
    async def remind(ctx: Context, booking: int) -> None: ...

    async with app.using_store(store_from_url(store_url, clock=clock)):
        yield app


@pytest.fixture
def remind(app: App) -> Remind:
    return app.handler("remind")


async def live(app: App) -> dict[str, datetime]:
    found = [task async for task in app.tasks(handler="remind") if not task.final]
    return {str(task.key): task.due_at for task in sorted(found, key=lambda task: task.due_at)}


def minutes(number: float) -> timedelta:
    return timedelta(minutes=number)


def test_offsets_are_named_in_the_largest_unit_that_divides_them() -> None:
    offsets = [-5400, -3600, -900, 0, 900, 86_400, 1.5]
    assert [label_of(round(offset * 1_000_000)) for offset in offsets] == ["-90m", "-1h", "-15m", "0", "+15m", "+1d", "+1500ms"]


async def test_one_task_for_each_offset_that_lies_ahead(app: App, remind: Remind, clock: ManualClock) -> None:
    clock.set(to_instant(NOON - minutes(61)))
    tasks = await app.around(NOON, key="booking-7", offsets=OFFSETS).submit(remind.options(meta={"tenant": "a"}).new(booking=7))
    assert [task.key for task in tasks] == ["booking-7@-1h", "booking-7@-15m", "booking-7@+15m"]
    assert [task.due_at - NOON for task in tasks] == [minutes(-60), minutes(-15), minutes(15)]
    first: Task[Any] = tasks[0]
    assert (first.planned_at, first.payload, first.schedule) == (NOON - minutes(60), {"booking": 7}, None)
    assert (first.meta["duetime.event"], first.meta["duetime.offset"], first.meta["tenant"]) == (NOON.isoformat(), "-1h", "a")
    clock.set(to_instant(NOON + timedelta(days=1)))
    assert await app.around(NOON, key="booking-8", offsets=OFFSETS).submit(remind.new(booking=8)) == []


async def test_submitting_again_moves_the_set_with_the_event(app: App, remind: Remind) -> None:
    before = await app.around(NOON, key="b", offsets=OFFSETS).submit(remind.new(booking=7))
    later = NOON + timedelta(hours=2)
    after = await app.around(later, key="b", offsets=OFFSETS).submit(remind.new(booking=8))
    assert [task.id for task in before] == [task.id for task in after]
    assert list((await live(app)).values()) == [later + timedelta(seconds=offset) for offset in OFFSETS]
    info = await app.get(after[0])
    assert (info.payload, info.planned_at, info.meta["duetime.event"]) == ({"booking": 8}, info.due_at, later.isoformat())


async def test_an_event_that_moves_nearer_cancels_what_has_passed_by_then(app: App, remind: Remind, clock: ManualClock) -> None:
    await app.around(NOON, key="b", offsets=OFFSETS).submit(remind.new(booking=7))
    now = NOON - timedelta(hours=5)
    await app.around(now + minutes(30), key="b", offsets=OFFSETS).submit(remind.new(booking=7))
    assert list(await live(app)) == ["b@-15m", "b@+15m"]
    assert (await app.find("remind", "b@-90m")).state is State.CANCELLED


async def test_offsets_that_are_no_longer_listed_are_cancelled(app: App, remind: Remind) -> None:
    await app.around(NOON, key="b", offsets=OFFSETS).submit(remind.new(booking=7))
    await app.around(NOON, key="b", offsets=[-3600, -1800]).submit(remind.new(booking=7))
    assert list(await live(app)) == ["b@-1h", "b@-30m"]
    await app.around(NOON, key="b", offsets=[-60], formerly=[-3600]).submit(remind.new(booking=7))
    assert list(await live(app)) == ["b@-1m"]


@pytest.mark.each_store
@pytest.mark.covers("COA.3")
async def test_cancelling_ends_what_is_left_of_the_set_and_no_other(app: App, remind: Remind) -> None:
    await app.around(NOON, key="b", offsets=OFFSETS).submit(remind.new(booking=7))
    await app.around(NOON, key="c", offsets=[-60]).submit(remind.new(booking=8))
    done = await app.around(NOON, key="b", offsets=[-3600]).cancel(remind)
    assert (done.matched, dict(done.answers)) == (4, {"cancelled": 4})
    assert list(await live(app)) == ["c@-1m"]
    assert (await app.around(NOON, key="b", offsets=OFFSETS).cancel("remind")).matched == 0


async def test_one_that_runs_cannot_be_replaced_and_the_others_stand(app: App, remind: Remind, clock: ManualClock) -> None:
    await app.around(NOON, key="b", offsets=OFFSETS).submit(remind.new(booking=7))
    clock.set(to_instant(NOON - minutes(90)))
    await app.store.register(NewWorker(id="w", host="h", pid=1, slots={"remind": 1}))
    assert len((await app.store.claim("w", 1, {"remind": 1}, 1)).tasks) == 1
    later = NOON + timedelta(hours=2)
    with pytest.raises(DuplicateKey, match="it is running"):
        await app.around(later, key="b", offsets=[-5400, -3600]).submit(remind.new(booking=7))
    assert list((await live(app)).items()) == [("b@-90m", NOON - minutes(90)), ("b@-1h", later - minutes(60))]


async def test_what_makes_no_sense_is_refused(app: App, remind: Remind) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"offsets": []}, "offsets must be 1 to 100"),
        ({"offsets": [60, timedelta(minutes=1)]}, "offsets must differ"),
        ({"offsets": ["1h"]}, "an offset must be seconds or a timedelta"),
        ({"offsets": 60}, "offsets must be a list"),
        ({"offsets": [1e10]}, "within 10 years"),
        ({"key": ""}, "key must not be empty"),
        ({"key": "x" * 200}, "key and offset together"),
    ]
    for change, message in cases:
        with pytest.raises(InvalidValue, match=message):
            app.around(NOON, **{"key": "b", "offsets": OFFSETS, **change})
    with pytest.raises(InvalidValue, match="event_at must carry a time zone"):
        app.around(datetime(2030, 1, 1), key="b", offsets=[1])
    around = app.around(NOON, key="b", offsets=OFFSETS)
    with pytest.raises(InvalidValue, match="get their keys from"):
        await around.submit(remind.options(key="k").new(booking=7))
    with pytest.raises(InvalidValue, match=r"leave out \.at"):
        await around.submit(remind.new(booking=7).after(3))
    with pytest.raises(InvalidValue, match="takes a new task"):
        await around.submit(7)  # type: ignore[arg-type]


@pytest.fixture
def shop(tmp_path: Path, app: App) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    yield connection
    connection.close()


async def test_moving_and_cancelling_are_part_of_the_callers_transaction(app: App, remind: Remind, shop: sqlite3.Connection) -> None:
    shop.execute("begin immediate")
    tasks = await app.around(NOON, key="b", offsets=OFFSETS).submit(remind.new(booking=7), connection=shop)
    assert len(tasks) == 4
    shop.execute("commit")
    before = await live(app)
    shop.execute("begin immediate")
    await app.around(NOON + minutes(60), key="b", offsets=[-5400]).submit(remind.new(booking=7), connection=shop)
    shop.execute("rollback")
    assert await live(app) == before
    shop.execute("begin immediate")
    await app.around(NOON + minutes(60), key="b", offsets=[-5400]).submit(remind.new(booking=7), connection=shop)
    shop.execute("commit")
    assert await app.store.expire(100) == 3
    assert await live(app) == {"b@-90m": NOON - minutes(30)}
    shop.execute("begin immediate")
    done = await app.around(NOON, key="b", offsets=[-5400]).cancel(remind, connection=shop)
    shop.execute("commit")
    assert (done.matched, dict(done.answers)) == (1, {"cancelled": 1})
    assert await app.store.expire(100) == 1
    assert await live(app) == {}


def test_the_same_from_synchronous_code(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/duetime.db")

    @app.task
    def remind(booking: int) -> None: ...

    event = datetime.now(UTC) + timedelta(days=1)
    app.sync(app.open())
    shop = sqlite3.connect(tmp_path / "duetime.db", isolation_level=None)
    shop.execute("begin immediate")
    assert len(app.sync(app.around(event, key="b", offsets=OFFSETS).submit(remind.new(booking=7), connection=shop))) == 4
    shop.execute("commit")
    shop.execute("begin immediate")
    assert len(app.sync(app.around(event, key="b", offsets=[-900]).submit(remind.new(booking=7), connection=shop))) == 1
    shop.execute("commit")
    shop.execute("begin immediate")
    assert app.sync(app.around(event, key="b", offsets=[-900]).cancel(remind, connection=shop)).matched > 0
    shop.execute("commit")
    shop.close()
    assert app.sync(app.around(event, key="c", offsets=[-900]).cancel(remind)).matched == 0
    app.sync(app.close())


async def test_the_set_moves_inside_a_transaction_on_postgresql(postgres_url: str) -> None:
    app = App(postgres_url)

    @app.task
    async def remind(booking: int) -> None: ...

    event = datetime.now(UTC) + timedelta(days=1)
    async with app:
        connection = await asyncpg.connect(bare(postgres_url))
        try:
            async with connection.transaction():
                await app.around(event, key="b", offsets=OFFSETS).submit(remind.new(booking=7), connection=connection)
            assert len(await live(app)) == 4
            async with connection.transaction():
                await app.around(event + minutes(5), key="b", offsets=[900]).submit(remind.new(booking=7), connection=connection)
        finally:
            await connection.close()
        while await app.store.expire(100):
            pass
        assert await live(app) == {"b@+15m": event + minutes(20)}
        assert (await app.find("remind", "b@+15m")).planned_at == event + minutes(20)


async def test_a_handler_can_end_its_own_set_without_ending_itself(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/duetime.db")
    asked: list[str] = []

    @app.task
    async def ask(ctx: Context, patient: int) -> str:
        asked.append(ctx.task.meta["duetime.offset"])
        event = datetime.fromisoformat(ctx.task.meta["duetime.event"])
        left = await app.around(event, key=f"patient-{patient}", offsets=[0, 3600, 7200]).cancel(ask)
        return f"answered, {left.matched} left out"

    async with app.worker():
        event = datetime.now(UTC) + timedelta(hours=1)
        tasks = await app.around(event, key="patient-3", offsets=[0, 3600, 7200]).submit(ask.new(patient=3))
        await app.reschedule(tasks[0], delay=0)
        async with asyncio.timeout(PATIENCE):
            assert await app.result(tasks[0]) == "answered, 2 left out"
        assert [(await app.get(task)).state for task in tasks] == [State.SUCCEEDED, State.CANCELLED, State.CANCELLED]
    assert asked == ["0"]
