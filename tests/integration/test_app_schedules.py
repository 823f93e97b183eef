"""What `app.schedules` and `app.calendars` store, show, change and refuse; on a clock that stands still unless it is moved."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import msgspec
import pytest

from duetime import (
    AfterEnd,
    App,
    At,
    Calendar,
    Conflict,
    Context,
    Cron,
    DayCalendar,
    Every,
    InvalidPayload,
    InvalidValue,
    RetryPolicy,
    Schedule,
    ScheduleNotFound,
    State,
    UnknownHandler,
    Window,
)
from duetime.clock import ManualClock, to_instant
from duetime.duties.firing import Firing
from duetime.model.schedule import SkipReason
from duetime.runtime.service import Alarms
from duetime.store.open import store_from_url
from duetime.store.schedules import ScheduleWrite
from duetime.store.values import NewWorker
from tests.conformance.build import ended
from tests.servers.waiting import PATIENCE

BERLIN = ZoneInfo("Europe/Berlin")
MONDAY = datetime(2030, 1, 7, 12, tzinfo=UTC)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(to_instant(MONDAY))


@pytest.fixture
async def app(store_url: str, clock: ManualClock) -> AsyncIterator[App]:
    app = App(store_url, user="anna@shop")

    @app.task(priority=7)
    async def sweep(ctx: Context, shop: int = 0) -> int:
        return shop

    async with app.using_store(store_from_url(store_url, clock=clock)):
        yield app


async def fire(app: App) -> int:
    """Do what the firing duty of a worker does, once."""
    alarms = Alarms()
    try:
        return await Firing(app.store, alarms).fire_due()
    finally:
        alarms.close()


async def planned(app: App) -> list[datetime]:
    found = [task.planned_at async for task in app.tasks(handler="sweep")]
    return sorted(each for each in found if each is not None)


async def test_a_schedule_is_stored_and_shown_with_its_next_instant_on_the_clock_of_its_zone(app: App) -> None:
    rule = Cron("30 9 * * *", tz="Europe/Berlin")
    info = await app.schedules.put(Schedule("morning", "sweep", rule, payload={"shop": 7}, note="ask anna"))
    assert info == await app.schedules.get("morning")
    assert (info.handler, info.rule, info.description) == ("sweep", rule, "cron 30 9 * * * Europe/Berlin")
    assert info.next_at == datetime(2030, 1, 8, 9, 30, tzinfo=BERLIN)
    assert info.next_at is not None
    assert info.next_at.hour == 9
    assert (info.health, info.fired, info.missed, info.failures, info.revision) == ("ok", 0, 0, 0, 1)
    assert (info.schedule.payload, info.schedule.note, info.schedule.priority) == ({"shop": 7}, "ask anna", 7)
    assert (info.created_at, info.changed_by, info.declared) == (MONDAY, "anna@shop", None)


async def test_the_schedule_that_a_stored_one_shows_creates_it_again(app: App) -> None:
    schedule = Schedule(
        "full",
        app.handler("sweep"),
        Cron("0 9 * * *") | Every(hours=6),
        payload={"shop": 1},
        start=MONDAY,
        end=MONDAY + timedelta(days=9),
        count=5,
        jitter=timedelta(seconds=3),
        missed="all within 6h at most 10 at 5/min",
        overlap="allow 3",
        grace=4,
        pause_after=3,
        collection="eu",
        priority=2,
        timeout=9,
        retry=RetryPolicy(tries=2),
        expires=60,
        meta={"tenant": "a"},
        note="n",
    )
    first = await app.schedules.put(schedule)
    again = await app.schedules.put(first.schedule)
    assert again == first
    changed = await app.schedules.put(msgspec.structs.replace(first.schedule, jitter=5))
    assert (changed.revision, changed.schedule.jitter, changed.schedule.missed) == (2, 5, first.schedule.missed)


async def test_if_exists_keeps_replaces_or_refuses(app: App) -> None:
    await app.schedules.put(Schedule("s", "sweep", Every(60)))
    kept = await app.schedules.put(Schedule("s", "sweep", Every(90)), if_exists="keep")
    assert kept.rule == Every(60)
    with pytest.raises(Conflict, match='if_exists="replace"'):
        await app.schedules.put(Schedule("s", "sweep", Every(90)), if_exists="error")
    assert (await app.schedules.put(Schedule("s", "sweep", Every(90)))).rule == Every(90)
    with pytest.raises(InvalidValue, match="if_exists must be one of"):
        await app.schedules.put(Schedule("s", "sweep", Every(90)), if_exists="maybe")  # type: ignore[arg-type]


async def test_schedules_are_listed_by_name_and_filtered(app: App) -> None:
    @app.task
    async def other() -> None: ...

    for name in ("b", "a.1", "a.2"):
        await app.schedules.put(Schedule(name, "sweep", Every(60)))
    await app.schedules.put(Schedule("c", other, Every(60)))
    await app.schedules.pause("b")
    assert [info.name for info in await app.schedules.list()] == ["a.1", "a.2", "b", "c"]
    assert [info.name for info in await app.schedules.list(handler=other)] == ["c"]
    assert [info.name for info in await app.schedules.list(paused=True)] == ["b"]
    assert [info.name for info in await app.schedules.list(prefix="a.")] == ["a.1", "a.2"]
    assert await app.schedules.list(declared=True) == []
    assert [info.name for info in await app.schedules.list(limit=2)] == ["a.1", "a.2"]
    assert [info.name for info in await app.schedules.list(after="a.2", limit=5)] == ["b", "c"]
    with pytest.raises(InvalidValue, match="limit must be"):
        await app.schedules.list(limit=0)


async def test_unknown_schedules_are_told_from_all_verbs(app: App) -> None:
    for call in (
        app.schedules.get("no"),
        app.schedules.delete("no"),
        app.schedules.pause("no"),
        app.schedules.resume("no"),
        app.schedules.trigger("no"),
        app.schedules.preview("no"),
        app.schedules.backfill("no", MONDAY, MONDAY),
    ):
        with pytest.raises(ScheduleNotFound, match="there is no schedule 'no'"):
            await call


async def test_a_new_schedule_fires_from_now_on_and_on_request_from_its_start(app: App, clock: ManualClock) -> None:
    start = MONDAY - timedelta(minutes=10)
    await app.schedules.put(Schedule("later", "sweep", Every(minutes=5), start=start, missed="all"))
    assert await fire(app) == 0
    await app.schedules.put(Schedule("since", "sweep", Every(minutes=5), start=start, missed="all"), catch_up=True)
    assert await fire(app) == 3
    clock.advance(300)
    assert await fire(app) == 2


async def test_editing_never_fires_the_past_and_records_what_was_left(app: App, clock: ManualClock) -> None:
    await app.schedules.put(Schedule("s", "sweep", Every(minutes=5), missed="all"))
    clock.advance(minutes(21))
    await app.schedules.put(Schedule("s", "sweep", Every(minutes=2), missed="all"))
    assert await fire(app) == 0
    [skip] = await app.schedules.skips("s")
    assert (skip.reason, skip.count, skip.planned_at) == (SkipReason.CHANGED, 4, MONDAY + timedelta(minutes=5))
    assert (await app.schedules.get("s")).next_at == MONDAY + timedelta(minutes=22)
    clock.advance(minutes(5))
    await app.schedules.put(Schedule("s", "sweep", Every(minutes=3), missed="all"), catch_up=True)
    assert await fire(app) == 1  # 12:24, by the new rule


def minutes(number: float) -> timedelta:
    return timedelta(minutes=number)


async def test_a_pause_is_noted_and_survives_a_change_and_resuming_begins_from_now(app: App, clock: ManualClock) -> None:
    await app.schedules.put(Schedule("s", "sweep", Every(minutes=5)))
    info = await app.schedules.pause("s", note="stock is counted")
    assert (info.health, info.next_at) == ("paused", None)
    assert info.paused is not None
    assert (info.paused.note, info.paused.by, info.paused.at, info.paused.automatic) == ("stock is counted", "anna@shop", MONDAY, False)
    clock.advance(minutes(12))
    info = await app.schedules.put(Schedule("s", "sweep", Every(minutes=4)))
    assert info.health == "paused"
    assert await fire(app) == 0
    info = await app.schedules.resume("s")
    assert (info.health, info.next_at) == ("ok", MONDAY + timedelta(minutes=16))
    assert await fire(app) == 0


async def test_resuming_can_catch_up(app: App, clock: ManualClock) -> None:
    await app.schedules.put(Schedule("s", "sweep", Every(minutes=5), missed="all"))
    await app.schedules.pause("s")
    clock.advance(minutes(12))
    await app.schedules.resume("s", catch_up=True)
    assert await fire(app) == 2
    assert await planned(app) == [MONDAY + timedelta(minutes=5), MONDAY + timedelta(minutes=10)]


async def test_a_trigger_runs_now_without_disturbing_the_rule(app: App, clock: ManualClock) -> None:
    before = await app.schedules.put(Schedule("s", "sweep", Every(minutes=5), payload={"shop": 3}, collection="eu", count=2))
    task = await app.schedules.trigger("s")
    assert (task.state, task.payload, task.schedule, task.collection) == (State.PENDING, {"shop": 3}, "s", "eu")
    assert (task.planned_at, task.submitted_by) == (MONDAY, "anna@shop")
    other = await app.schedules.trigger("s", payload={"shop": 4})
    assert other.payload == {"shop": 4}
    after = await app.schedules.get("s")
    assert (after.next_at, after.fired, after.running) == (before.next_at, 0, [task.id, other.id])
    with pytest.raises(Conflict, match='overlap="skip"'):
        await app.schedules.trigger("s", overlap="skip")
    waiting = await app.schedules.trigger("s", overlap="queue all")
    assert waiting.state is State.BLOCKED
    with pytest.raises(InvalidPayload, match="shop"):
        await app.schedules.trigger("s", payload={"shop": "x"})


async def test_the_end_of_a_run_is_shown_before_firing_takes_note_of_it(app: App, clock: ManualClock) -> None:
    await app.schedules.put(Schedule("s", "sweep", Every(minutes=5), overlap="allow"))
    clock.advance(minutes(5))
    await fire(app)
    [run] = (await app.schedules.get("s")).running
    await app.store.register(NewWorker(id="w", host="here", pid=os.getpid(), slots={"sweep": 1}))
    [claimed] = (await app.store.claim("w", 1, {"sweep": 1}, 1)).tasks
    await app.store.settle("w", [ended(claimed, State.FAILED, at=clock.now())])
    for info in (await app.schedules.get("s"), *await app.schedules.list()):
        assert (info.running, info.failures, info.health) == ([], 1, "failing")
        assert info.last is not None
        assert (info.last.task, info.last.state) == (run, State.FAILED)
    await app.schedules.pause("s")
    [record] = await app.store.schedules(["s"])
    assert record is not None
    assert [each.task for each in record.state.runs] == [run], "only shown"


async def test_many_triggers_and_changes_at_once_all_succeed(app: App) -> None:
    await app.schedules.put(Schedule("s", "sweep", Every(minutes=5)))
    tasks = await asyncio.gather(*(app.schedules.trigger("s") for _ in range(30)), *(app.schedules.pause("s") for _ in range(5)))
    assert len({task.id for task in tasks[:30] if not isinstance(task, tuple)}) == 30
    assert len((await app.schedules.get("s")).running) == 30


async def test_preview_returns_instants_of_a_stored_schedule_a_new_one_or_a_rule(app: App) -> None:
    await app.schedules.put(Schedule("s", "sweep", Cron("0 9 * * *", tz="Europe/Berlin"), count=2))
    nine = datetime(2030, 1, 8, 9, tzinfo=BERLIN)
    assert await app.schedules.preview("s") == [nine, nine + timedelta(days=1)]
    assert [each.isoformat() for each in await app.schedules.preview("s", count=1)] == ["2030-01-08T09:00:00+01:00"]
    assert await app.schedules.preview(Every(hours=1), count=1, after=MONDAY + minutes(1)) == [MONDAY + timedelta(hours=1)]
    schedule = Schedule("w", "nobody", At(MONDAY + minutes(1), MONDAY + minutes(2)))
    assert await app.schedules.preview(schedule) == [MONDAY + minutes(1), MONDAY + minutes(2)]
    with pytest.raises(InvalidValue, match="count must be 1 to 10,000"):
        await app.schedules.preview("s", count=0)


async def test_deleting_removes_the_schedule_and_leaves_its_tasks(app: App, clock: ManualClock) -> None:
    await app.schedules.put(Schedule("s", "sweep", Every(minutes=5)))
    clock.advance(minutes(5))
    assert await fire(app) == 1
    await app.schedules.delete("s")
    with pytest.raises(ScheduleNotFound):
        await app.schedules.get("s")
    assert len(await planned(app)) == 1


@pytest.mark.parametrize(("health", "seconds"), [("ok", 0), ("ok", 309), ("late", 311), ("gated", 311), ("paused", 311), ("ended", 311)])
async def test_health_says_what_to_look_at(app: App, clock: ManualClock, health: str, seconds: int) -> None:
    await app.schedules.put(Schedule("s", "sweep", Every(minutes=5), count=1))
    clock.advance(seconds)
    match health:
        case "gated":
            await app.gates.pause("sweep")
        case "paused":
            await app.schedules.pause("s")
        case "ended":
            await fire(app)
        case _:
            pass
    assert (await app.schedules.get("s")).health == health


async def test_a_rule_without_a_future_has_ended(app: App) -> None:
    info = await app.schedules.put(Schedule("s", "sweep", At(MONDAY - minutes(1))))
    assert (info.health, info.next_at) == ("ended", None)
    info = await app.schedules.put(Schedule("w", "sweep", AfterEnd(60)))
    assert (info.health, info.next_at) == ("ok", MONDAY + minutes(1))


async def test_a_schedule_is_checked_when_it_is_made() -> None:
    cases: list[tuple[Callable[[], Schedule], str]] = [
        (lambda: Schedule("", "h", Every(60)), "the name of a schedule must not be empty"),
        (lambda: Schedule("s", 7, Every(60)), "handler is given by its name"),  # type: ignore[arg-type]
        (lambda: Schedule("s", "h", 60), "rule must be a rule such as Cron"),  # type: ignore[arg-type]
        (lambda: Schedule("s", "h", "now and then"), "a rule must look like"),
        (lambda: Schedule("s", "h", Every(0.5)), "interval must be at least 1 second"),
        (lambda: Schedule("s", "h", Every(60), tz="UTC"), "tz is the zone of a cron expression in text"),
        (lambda: Schedule("s", "h", Every(60), payload=[1]), "payload must map the names"),  # type: ignore[arg-type]
        (lambda: Schedule("s", "h", Every(60), start=MONDAY, end=MONDAY - minutes(1)), "end must not lie before start"),
        (lambda: Schedule("s", "h", Every(60), start=datetime(2030, 1, 1)), "start must carry a time zone"),
        (lambda: Schedule("s", "h", Every(60), count=0), "count must be a whole number of at least 1"),
        (lambda: Schedule("s", "h", Every(60), pause_after=0), "pause_after must be"),
        (lambda: Schedule("s", "h", Every(60), jitter=-1), "jitter must be 0 seconds"),
        (lambda: Schedule("s", "h", Every(60), missed="some"), "missed must"),
        (lambda: Schedule("s", "h", Every(60), overlap="some"), "overlap must"),
        (lambda: Schedule("s", "h", Every(60), priority=12), "priority must be"),
        (lambda: Schedule("s", "h", Every(60), timeout=0), "timeout must be positive"),
        (lambda: Schedule("s", "h", Every(60), retry=RetryPolicy(only=(OSError,))), "live in code"),
        (lambda: Schedule("s", "h", Every(60), meta={"duetime.zone": "x"}), "written by Duetime itself"),
        (lambda: Schedule("s", "h", Every(60), note="x" * 1001), "note must be text"),
    ]
    for make, message in cases:
        with pytest.raises(InvalidValue, match=message):
            make()


async def test_a_rule_may_be_text_and_missed_all_queues_by_default() -> None:
    assert Schedule("s", "h", "*/5 * * * *", tz="Europe/Berlin").rule == Cron("*/5 * * * *", tz="Europe/Berlin")
    assert Schedule("s", "h", "every 10m").rule == Every(minutes=10)
    assert Schedule("s", "h", Every(60)).overlap == "skip"
    assert Schedule("s", "h", Every(60), missed="all").overlap == "queue all"
    assert Schedule("s", "h", Every(60), missed="all", overlap="skip").overlap == "skip"


async def test_putting_checks_handler_payload_and_calendars(app: App) -> None:
    with pytest.raises(UnknownHandler, match="did you mean sweep"):
        await app.schedules.put(Schedule("s", "sweap", Every(60)))
    assert (await app.schedules.put(Schedule("s", "sweap", Every(60)), allow_unknown=True)).handler == "sweap"
    with pytest.raises(InvalidPayload, match="shop"):
        await app.schedules.put(Schedule("s", "sweep", Every(60), payload={"shop": "x"}))
    with pytest.raises(InvalidPayload, match="shopp"):
        await app.schedules.put(Schedule("s", "sweep", Every(60), payload={"shopp": 1}))
    with pytest.raises(InvalidValue, match="calendar 'holidays' is unknown"):
        await app.schedules.put(Schedule("s", "sweep", Every(60), calendars="holidays"))


async def test_the_payload_for_a_handler_of_another_program_is_checked_by_its_declaration(app: App) -> None:
    await app.open()
    foreign = App("sqlite:///:memory:")
    async with foreign.using_store(app.store):
        with pytest.raises(InvalidPayload, match="shop must be of type integer"):
            await foreign.schedules.put(Schedule("s", "sweep", Every(60), payload={"shop": "x"}))
        info = await foreign.schedules.put(Schedule("s", "sweep", Every(60), payload={"shop": 1}))
        assert info.schedule.priority == 7
        await app.store.open()


async def test_a_schedule_that_others_keep_changing_is_a_conflict(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    await app.schedules.put(Schedule("s", "sweep", Every(60)))
    monkeypatch.setattr("duetime.client.schedules.writes.MAX_RETRIES", 3)
    written = app.store.write_schedules
    tries = 0

    async def overtaken(writes: list[ScheduleWrite], *, together: bool = False) -> list[bool]:
        nonlocal tries
        tries += 1
        [record] = await app.store.schedules(["s"])
        assert record is not None
        await written([ScheduleWrite(name="s", expected=record.version, record=record)])
        return await written(writes, together=together)

    monkeypatch.setattr(app.store, "write_schedules", overtaken)
    with pytest.raises(Conflict, match="changed by others 3 times"):
        await app.schedules.pause("s")
    assert tries == 3


async def test_calendars_are_stored_listed_and_deleted_unless_in_use(app: App) -> None:
    weekend = DayCalendar(weekdays="sat,sun")
    await app.calendars.put("weekend", weekend)
    await app.calendars.put("office", DayCalendar(mode="include", times="09:00-17:00", also=["weekend"]))
    assert await app.calendars.get("weekend") == weekend
    assert list(await app.calendars.list()) == ["office", "weekend"]
    with pytest.raises(Conflict, match="used by calendar 'office'"):
        await app.calendars.delete("weekend")
    await app.schedules.put(Schedule("s", "sweep", Every(hours=1), calendars=["office"]))
    with pytest.raises(Conflict, match="used by schedule 's'"):
        await app.calendars.delete("office")
    await app.schedules.delete("s")
    await app.calendars.delete("office")
    with pytest.raises(ScheduleNotFound, match="no calendar 'office'"):
        await app.calendars.get("office")
    with pytest.raises(InvalidValue, match="circle"):
        await app.calendars.put("weekend", DayCalendar(weekdays="sun", also=["weekend"]))
    with pytest.raises(InvalidValue, match="'nowhere'"):
        await app.calendars.put("x", DayCalendar(weekdays="sun", also=["nowhere"]))


async def test_business_days_of_a_calendar_in_use_keep_it(app: App) -> None:
    await app.calendars.put("holidays", DayCalendar(yearly="12-25"))
    await app.schedules.put(Schedule("s", "sweep", Calendar(unit="month", on="last business day", business="holidays") | Window(600)))
    with pytest.raises(Conflict, match="used by schedule 's'"):
        await app.calendars.delete("holidays")


@pytest.mark.each_store
@pytest.mark.covers("QZ.4")
async def test_editing_a_calendar_plans_its_schedules_anew_and_fires_nothing_that_has_passed(app: App, clock: ManualClock) -> None:
    await app.calendars.put("free", DayCalendar(weekdays="mon,tue"))
    await app.calendars.put("shut", DayCalendar(times="00:00-06:00", also="free"))
    await app.schedules.put(Schedule("direct", "sweep", Cron("0 9 * * *"), calendars=["free"], missed="all"))
    await app.schedules.put(Schedule("chained", "sweep", Cron("0 9 * * *"), calendars=["shut"], missed="all"))
    await app.schedules.put(Schedule("other", "sweep", Cron("0 9 * * *")))
    clock.advance(timedelta(days=1))  # Tuesday noon
    before = await app.schedules.get("direct")
    assert before.next_at == datetime(2030, 1, 9, 9, tzinfo=UTC)
    await app.calendars.put("free", DayCalendar(weekdays="wed"))  # Tuesday 09:00 is permitted now, and over
    for name in ("direct", "chained"):
        assert (await app.schedules.get(name)).next_at == datetime(2030, 1, 10, 9, tzinfo=UTC)
    assert await fire(app) == 1  # that of the other schedule, which was due
    assert {task.schedule async for task in app.tasks(handler="sweep")} == {"other"}


async def test_a_schedule_without_its_calendar_is_broken_and_can_still_be_paused(app: App) -> None:
    await app.calendars.put("free", DayCalendar(weekdays="sun"))
    await app.schedules.put(Schedule("s", "sweep", Every(60), calendars=["free"]))
    await app.store.put_calendar("free", None)
    info = await app.schedules.get("s")
    assert (info.health, info.next_at) == ("broken", None)
    assert "calendar 'free'" in info.problem
    assert (await app.schedules.pause("s")).paused is not None


async def test_the_next_run_is_told_how_the_last_one_went(tmp_path: object) -> None:
    app = App(f"sqlite:///{tmp_path}/duetime.db")
    seen: asyncio.Queue[object] = asyncio.Queue()

    @app.task(retry=RetryPolicy(tries=1))
    async def fragile(ctx: Context) -> int:
        assert ctx.occurrence is not None
        await seen.put(ctx.occurrence)
        if ctx.occurrence.last is None:
            raise ValueError("first one fails")
        return 7

    async with app.worker():
        await app.schedules.put(Schedule("f", fragile, AfterEnd(1)))
        async with asyncio.timeout(PATIENCE):
            occurrences = [await seen.get() for _ in range(3)]
    _, second, third = occurrences
    assert second.last.state == "failed"  # type: ignore[attr-defined]
    assert second.last.error.message == "first one fails"  # type: ignore[attr-defined]
    assert (third.last.state, third.last.result) == ("succeeded", 7)  # type: ignore[attr-defined]
    assert third.last.finished_at < third.planned_at  # type: ignore[attr-defined]


def test_all_of_it_works_from_synchronous_code(tmp_path: object) -> None:
    app = App(f"sqlite:///{tmp_path}/duetime.db")

    @app.task
    def sweep(shop: int = 0) -> int:
        return shop

    app.sync(app.calendars.put("free", DayCalendar(weekdays="sun")))
    app.sync(app.schedules.put(Schedule("s", sweep, Every(3600), calendars=["free"])))
    assert [info.name for info in app.sync(app.schedules.list())] == ["s"]
    assert len(app.sync(app.schedules.preview("s", count=3))) == 3
    assert app.sync(app.schedules.trigger("s")).handler == "sweep"
    app.sync(app.schedules.delete("s"))
    app.sync(app.close())


@pytest.mark.each_store
@pytest.mark.covers("QZ.4")
@pytest.mark.parametrize(
    ("calendar", "left_out"),
    [
        (DayCalendar(yearly="01-09"), {9}),
        (DayCalendar(dates="2030-01-10"), {10}),
        (DayCalendar(monthly=["11", "last"]), {11, 31}),
        (DayCalendar(weekdays="sat,sun"), {12, 13, 19, 20, 26, 27}),
        (DayCalendar(times="09:00-10:00"), set(range(1, 32))),
        (DayCalendar(cron="* 8-17 12,L * *"), {12, 31}),
        (DayCalendar(monthly="11", also="weekend"), {11, 12, 13, 19, 20, 26, 27}),
    ],
)
async def test_calendars_of_every_kind_leave_days_out(app: App, calendar: DayCalendar, left_out: set[int]) -> None:
    await app.calendars.put("weekend", DayCalendar(weekdays="sat,sun"))
    await app.calendars.put("free", calendar)
    await app.schedules.put(Schedule("s", "sweep", Cron("0 9 * * *"), calendars=["free"]))
    planned = await app.schedules.preview("s", count=40)
    days = {each.day for each in planned if each.month == 1 and each.year == 2030}
    assert days == set(range(8, 32)) - left_out
