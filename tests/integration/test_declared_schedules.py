"""Schedules as code: `@app.schedule`, and how what a program declares becomes what is stored."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from duetime import App, Context, Cron, Every, Handlers, InvalidHandler, InvalidValue, Schedule, UnknownHandler
from duetime.clock import ManualClock, to_instant
from duetime.store import Store
from duetime.store.open import store_from_url
from duetime.store.schedules import ScheduleWrite
from tests.integration.test_app_schedules import fire
from tests.servers.waiting import PATIENCE

MONDAY = datetime(2030, 1, 7, 12, tzinfo=UTC)
OFTEN = Every(minutes=5)
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(to_instant(MONDAY))


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/duetime.db"
    address: str = request.getfixturevalue("postgres_url")
    return address


@pytest.fixture
async def store(url: str, clock: ManualClock) -> AsyncIterator[Store]:
    store = store_from_url(url, clock=clock)
    await store.open()
    yield store
    await store.close()


def program(revision: int = 0, rule: Cron | Every = OFTEN, **options: object) -> App:
    """One version of a program that declares one schedule."""
    app = App("sqlite:///:memory:", revision=revision)

    @app.schedule(rule=rule, **options)  # type: ignore[arg-type]
    async def sweep(ctx: Context, shop: int = 0) -> None: ...

    return app


def test_a_declaration_makes_a_handler_and_a_schedule_of_its_name() -> None:
    app = App("sqlite:///:memory:")

    @app.schedule(cron="*/5 * * * *", tz="Europe/Berlin", missed="skip", timeout=9, concurrency=2)
    async def sweep(ctx: Context, shop: int = 7) -> int:
        return shop

    [schedule] = app.declared_schedules()
    assert (schedule.name, schedule.handler_name, schedule.rule) == ("sweep", "sweep", Cron("*/5 * * * *", tz="Europe/Berlin"))
    assert schedule.missed == "skip"
    assert sweep.spec is not None
    assert (sweep.spec.timeout, sweep.spec.concurrency) == (9, 2)


def test_one_handler_can_have_several_schedules_and_groups_declare_them_too() -> None:
    app = App("sqlite:///:memory:")
    shop = Handlers(prefix="shop.")

    @shop.schedule(every=60, name="weekend", payload={"full": True})
    @shop.schedule(every=timedelta(minutes=5))
    def count(full: bool = False) -> None: ...

    app.include(shop)

    @shop.schedule(at=[MONDAY], payload={"name": "x"})
    def late(name: str) -> None: ...

    found = {schedule.name: schedule for schedule in app.declared_schedules()}
    assert list(found) == ["shop.count", "shop.weekend", "shop.late"]
    assert (found["shop.weekend"].handler_name, found["shop.weekend"].payload) == ("shop.count", {"full": True})
    assert found["shop.count"].rule == Every(300)


def test_what_cannot_be_declared_is_refused_where_it_is_written() -> None:
    app = App("sqlite:///:memory:")

    def wants(order: int) -> None: ...
    def fine() -> None: ...

    with pytest.raises(InvalidHandler, match="nobody gives 'order' when the schedule fires"):
        app.schedule(every=60)(wants)
    assert list(app.declared()) == []
    with pytest.raises(InvalidValue, match="exactly one of cron="):
        app.schedule(timeout=3)
    with pytest.raises(InvalidValue, match="got cron, every"):
        app.schedule(cron="* * * * *", every=60)
    with pytest.raises(InvalidValue, match="tz is the zone of a cron expression"):
        app.schedule(every=60, tz="UTC")
    with pytest.raises(InvalidValue, match="missed"):
        app.schedule(every=60, missed="perhaps")(fine)
    handler = app.schedule(every=60)(fine)
    with pytest.raises(InvalidHandler, match="a schedule called fine is already declared"):
        app.schedule(every=90)(handler)
    with pytest.raises(InvalidHandler, match="timeout belongs where that is done"):
        app.schedule(every=90, name="b", timeout=3)(handler)
    with pytest.raises(InvalidHandler, match="known by name only"):
        app.schedule(every=60, name="x")(app.handler("elsewhere"))


async def test_a_client_declares_nothing_and_a_worker_does(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/duetime.db")

    @app.schedule(every=3600)
    async def sweep() -> None: ...

    async with app:
        assert await app.schedules.list() == []
        async with app.worker():
            [info] = await app.schedules.list()
            assert (info.name, info.declared, info.revision) == ("sweep", 0, 1)


async def test_declaring_again_changes_nothing_and_a_changed_declaration_does(store: Store, clock: ManualClock) -> None:
    async with program().using_store(store) as first:
        assert (await first.schedules.declare()).added == ["sweep"]
        before = (await store.schedules(["sweep"]))[0]
        assert (await first.schedules.declare()).unchanged == ["sweep"]
        assert (await store.schedules(["sweep"]))[0] == before
    await store.open()
    clock.advance(timedelta(minutes=11))
    async with program(rule=Every(minutes=3), missed="all").using_store(store) as second:
        plan = await second.schedules.plan()
        [difference] = plan.differences
        assert (difference.action, bool(plan)) == ("change", True)
        assert {each.field for each in difference.fields} == {"rule", "missed", "overlap"}
        assert (await second.schedules.declare()).changed == ["sweep"]
        assert await fire(second) == 0, "nothing that has passed is fired by a deployment"
        assert (await second.schedules.get("sweep")).rule == Every(minutes=3)
        assert not await second.schedules.plan()


async def test_what_an_operator_has_changed_stays_until_the_declaration_changes(store: Store) -> None:
    async with program().using_store(store) as app:
        await app.schedules.declare()
        await app.schedules.put(Schedule("sweep", "sweep", Every(minutes=30)))
        await app.schedules.pause("sweep", note="night shift")
        plan = await app.schedules.declare()
        assert plan.unchanged == ["sweep"]
        assert [each.field for each in plan.differences[0].fields] == ["rule"]
        assert (await app.schedules.get("sweep")).rule == Every(minutes=30)
    await store.open()
    async with program(rule=Every(minutes=7)).using_store(store) as app:
        await app.schedules.declare()
        info = await app.schedules.get("sweep")
        assert (info.rule, info.health) == (Every(minutes=7), "paused")
        assert info.paused is not None
        assert info.paused.note == "night shift"


async def test_an_older_revision_never_rewrites_a_newer_declaration(store: Store) -> None:
    async with program(revision=2, rule=Every(minutes=2)).using_store(store) as newer:
        await newer.schedules.declare()
    await store.open()
    async with program(revision=1, rule=Every(minutes=1)).using_store(store) as older:
        plan = await older.schedules.declare()
        assert [each.action for each in plan.differences] == ["older"]
        assert (await older.schedules.apply([])).removed == []
        assert (await older.schedules.get("sweep")).rule == Every(minutes=2)
    await store.open()
    async with program(revision=3, rule=Every(minutes=2)).using_store(store) as newest:
        assert [each.action for each in (await newest.schedules.declare()).differences] == ["adopt"]
        assert (await newest.schedules.get("sweep")).declared == 3


async def test_only_apply_removes_and_only_what_code_has_declared(store: Store) -> None:
    async with program().using_store(store) as app:
        await app.schedules.put(Schedule("by-hand", "sweep", Every(60)))
        schedules = [Schedule(name, "sweep", Every(60)) for name in ("a", "b", "other.c")]
        await app.schedules.declare(schedules)
        assert (await app.schedules.declare(schedules[:1])).removed == []
        assert (await app.schedules.plan(schedules[:1])).removed == ["b", "other.c"]
        assert (await app.schedules.apply(schedules[:1], prefix="b")).removed == ["b"]
        assert (await app.schedules.apply(schedules[:1])).removed == ["other.c"]
        assert [info.name for info in await app.schedules.list()] == ["a", "by-hand"]


async def test_one_that_was_made_by_hand_can_be_taken_over(store: Store) -> None:
    async with program().using_store(store) as app:
        await app.schedules.put(Schedule("sweep", "sweep", Every(minutes=5)))
        assert [each.action for each in (await app.schedules.declare()).differences] == ["adopt"]
        info = await app.schedules.get("sweep")
        assert (info.declared, info.revision) == (0, 1)


async def test_declarations_are_stored_together_or_not_at_all(store: Store) -> None:
    async with program().using_store(store) as app:
        good, bad = Schedule("good", "sweep", Every(60)), Schedule("bad", "nobody", Every(60))
        with pytest.raises(UnknownHandler):
            await app.schedules.declare([good, bad])
        with pytest.raises(InvalidValue, match="unknown"):
            await app.schedules.declare([good, Schedule("bad", "sweep", Every(60), calendars=["none"])])
        with pytest.raises(InvalidValue, match="declared twice"):
            await app.schedules.declare([good, good])
        assert await app.schedules.list() == []


@pytest.mark.parametrize("number", [50])
async def test_fifty_that_deploy_at_once_make_no_duplicate_lose_none_and_fire_nothing_old(
    url: str, store: Store, clock: ManualClock, number: int
) -> None:
    schedules = [Schedule(f"s{number}", "sweep", Every(minutes=5), missed="all") for number in range(20)]
    async with program().using_store(store) as app, AsyncExitStack() as stack:
        await app.schedules.declare(schedules[:10])
        clock.advance(timedelta(minutes=11))
        changed = [Schedule(schedule.name, "sweep", Every(minutes=2), missed="all") for schedule in schedules]
        count = number if url.startswith("sqlite") else number // 5  # connections of a small server are few
        apps = [await stack.enter_async_context(program(1).using_store(store_from_url(url, clock=clock))) for _ in range(count)]
        await asyncio.gather(*(each.schedules.declare(changed) for each in apps))
        found = await app.schedules.list()
        assert sorted(info.name for info in found) == sorted(schedule.name for schedule in schedules)
        assert {(info.rule, info.declared) for info in found} == {(Every(minutes=2), 1)}
        assert {info.revision for info in found if int(info.name[1:]) < 10} == {2}, "changed once"
        assert {info.revision for info in found if int(info.name[1:]) >= 10} == {1}, "made once"
        assert sum(await asyncio.gather(*(fire(each) for each in apps))) == 0
        clock.advance(timedelta(minutes=1))
        await asyncio.gather(*(fire(each) for each in apps))
        counts = await store.counts()
        assert sum(lane.due for lane in counts.lanes) == len(schedules), "one task per occurrence"


async def test_schedules_that_fire_all_the_time_do_not_keep_a_deployment_from_its_end(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with program().using_store(store) as app:
        schedules = [Schedule(f"s{number}", "sweep", Every(minutes=5)) for number in range(20)]
        await app.schedules.declare(schedules)
        write = store.write_schedules
        tries = 0

        async def overtaken(writes: Sequence[ScheduleWrite], *, together: bool = False) -> list[bool]:
            """Let somebody else write another schedule just before each write."""
            nonlocal tries
            [record] = await store.schedules([f"s{tries % 20}"])
            tries += 1
            assert record is not None
            await write([ScheduleWrite(name=record.name, expected=record.version, record=record)])
            return await write(writes, together=together)

        monkeypatch.setattr(store, "write_schedules", overtaken)
        monkeypatch.setattr("duetime.client.schedules.reconciling.TOGETHER", 3)
        plan = await app.schedules.declare([Schedule(schedule.name, "sweep", Every(minutes=7)) for schedule in schedules])
        assert sorted(plan.changed) == sorted(schedule.name for schedule in schedules)
        assert {(info.rule, info.revision) for info in await app.schedules.list()} == {(Every(minutes=7), 2)}
        assert 3 < tries < 10


async def test_processes_that_start_at_once_store_each_declaration_once(tmp_path: Path, run_many: Callable[[int, str], list[str]]) -> None:
    printed = await asyncio.to_thread(run_many, 8, f"sqlite:///{tmp_path}/duetime.db")
    assert set(printed) == {"rarely:1 seldom:1 yearly:1"}
    async with App(f"sqlite:///{tmp_path}/duetime.db") as app:
        assert [info.fired for info in await app.schedules.list()] == [0, 0, 0]


@pytest.fixture
def run_many() -> Callable[[int, str], list[str]]:
    def run(number: int, url: str) -> list[str]:
        command = [sys.executable, "-m", "tests.integration.deploying", url]
        started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) for _ in range(number)]
        ended = [process.communicate(timeout=PATIENCE)[0].strip() for process in started]
        assert [process.returncode for process in started] == [0] * number
        return ended

    return run
