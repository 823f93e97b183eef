"""Chapter 5: schedules. Work that recurs, on the clock of your users, with a stated policy for everything that can go wrong.

The clock of these tests is moved by hand, with `duetime.testing`.
"""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest

from duetime import AfterEnd, App, Calendar, Context, Cron, DayCalendar, Every, InvalidValue, RetryPolicy, Schedule, Window, occurrences
from duetime.model.rules import Rule
from duetime.testing import Kit, using

BERLIN = ZoneInfo("Europe/Berlin")
NEW_YEAR = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def app(store_url: str) -> App:
    return App(store_url, user="anna@shop")


@pytest.fixture
async def t(app: App, store_url: str) -> AsyncIterator[Kit]:
    async with using(app, url=store_url, now=NEW_YEAR) as t:
        yield t


async def test_declare_a_schedule_where_its_code_is(app: App, t: Kit) -> None:
    @app.schedule(cron="30 9 * * MON-FRI", tz="Europe/Berlin")
    async def report(ctx: Context) -> str:
        assert ctx.occurrence is not None
        return f"{ctx.occurrence.local:%A %H:%M}"

    ran = await t.advance(days=5)
    assert [each.task.result for each in ran] == ["Friday 09:30", "Monday 09:30", "Tuesday 09:30"]


async def test_or_put_one_at_run_time_and_look_at_it(app: App, t: Kit) -> None:
    @app.task
    async def sweep(shop: int) -> None: ...

    await app.schedules.put(Schedule("sweep-7", sweep, Every(minutes=10), payload={"shop": 7}, note="asked for by the shop"))
    ran = await t.advance(minutes=25)
    assert [each.payload for each in ran] == [{"shop": 7}, {"shop": 7}]
    info = await app.schedules.get("sweep-7")
    assert (info.description, info.health, info.fired) == ("every 10 minutes", "ok", 2)
    assert info.next_at == NEW_YEAR + timedelta(minutes=30)
    assert info.last is not None
    assert info.last.state == "succeeded"


@pytest.mark.each_store
@pytest.mark.covers("AIR.2")
async def test_each_occurrence_stands_for_an_interval_that_a_backfill_gets_too(app: App, t: Kit) -> None:
    @app.schedule(cron="0 9 * * MON-FRI", tz="Europe/Berlin", overlap="skip")
    async def report(ctx: Context) -> str:
        assert ctx.occurrence is not None
        start, end = ctx.occurrence.interval
        assert end == ctx.occurrence.planned_at
        return f"{start:%a %d. %H:%M%z} to {end:%a %d. %H:%M%z}"

    ran = [each.task.result for each in await t.advance(days=2)]
    await app.schedules.pause("report")
    await t.advance(days=2)  # Saturday and Sunday, and on Monday it is paused
    await app.schedules.resume("report")
    ran += [each.task.result for each in await t.advance(days=1)]
    assert ran == ["Thu 01. 09:00+0100 to Fri 02. 09:00+0100", "Mon 05. 09:00+0100 to Tue 06. 09:00+0100"]
    missed = await app.schedules.backfill("report", NEW_YEAR, NEW_YEAR + timedelta(days=5), existing="all")
    again = [each.task.result for each in await t.drain()]
    assert len(missed.tasks) == 3
    assert again == [ran[0], "Fri 02. 09:00+0100 to Mon 05. 09:00+0100", ran[1]]


@pytest.mark.each_store
@pytest.mark.covers("AIR.2")
async def test_rules_join_and_calendars_leave_days_out(app: App, t: Kit) -> None:
    @app.task
    async def pay() -> None: ...

    await app.calendars.put("holidays", DayCalendar(yearly=["01-06"], tz="Europe/Berlin"))
    rule = Window(3600, "09:00", "10:00", days="mon-fri", tz="Europe/Berlin") | Calendar(unit="month", on="last business day", at="18:00")
    await app.schedules.put(Schedule("pay", pay, rule, calendars=["holidays"]))
    assert [f"{each:%d %H:%M}" for each in await app.schedules.preview("pay", count=6)] == [
        *("02 09:00", "02 10:00", "05 09:00", "05 10:00", "07 09:00", "07 10:00")
    ]


@pytest.mark.each_store
@pytest.mark.covers("HF.3", "XXL.2", "QZ.3")
@pytest.mark.parametrize(
    ("missed", "made_up_for"), [("skip", 0), ("latest", 1), ("earliest", 1), ("all", 6), ("all within 2h", 2), ("all at most 3", 3)]
)
async def test_say_what_becomes_of_occurrences_that_nobody_could_fire(app: App, t: Kit, missed: str, made_up_for: int) -> None:
    @app.task
    async def sweep() -> None: ...

    await app.schedules.put(Schedule("sweep", sweep, Every(hours=1), missed=missed, overlap="allow"))
    await app.gates.pause(sweep, lasting=timedelta(hours=6, minutes=30))
    ran = await t.advance(hours=6, minutes=45)
    assert [each.handler for each in ran] == ["sweep"] * made_up_for
    assert len({each.task.planned_at for each in ran}) == made_up_for, "each has the time of its own"
    skipped = sum(skip.count for skip in await app.schedules.skips("sweep"))
    assert made_up_for + skipped == 6, "every planned instant is accounted for"


async def test_a_delay_is_counted_from_the_end_of_the_last_run(app: App, t: Kit) -> None:
    @app.task
    async def poll() -> None: ...

    await app.schedules.put(Schedule("poll", poll, AfterEnd(timedelta(minutes=20))))
    assert len(await t.advance(hours=1)) == 3


@pytest.mark.each_store
@pytest.mark.covers("QZ.8")
async def test_pause_with_a_note_resume_run_now_and_repeat_the_past(app: App, t: Kit) -> None:
    @app.schedule(every=timedelta(hours=1))
    async def count(ctx: Context, shelf: int = 1) -> None: ...

    await t.drain()
    await app.schedules.pause("count", note="stocktaking until five")
    assert await t.advance(hours=3) == []
    await app.schedules.trigger("count", payload={"shelf": 7})
    assert [each.payload for each in await t.drain()] == [{"shelf": 7}]
    await app.schedules.resume("count")
    assert [each.payload for each in await t.advance(hours=1)] == [{}]
    done = await app.schedules.backfill("count", NEW_YEAR - timedelta(hours=2), NEW_YEAR, concurrency=1)
    ran = await t.drain()
    assert [each.task.planned_at for each in ran] == done.planned


@pytest.mark.each_store
@pytest.mark.covers("CJO.7")
async def test_a_schedule_can_pause_itself_when_its_runs_fail_in_a_row(app: App, t: Kit) -> None:
    @app.schedule(every=timedelta(hours=1), pause_after=3, retry=RetryPolicy(tries=1))
    async def fragile() -> None:
        raise ValueError("no stock service")

    assert len(await t.advance(hours=9, raise_errors=False)) == 3
    info = await app.schedules.get("fragile")
    assert (info.health, info.failures) == ("paused", 3)
    assert info.paused is not None
    assert info.paused.automatic


@pytest.mark.each_store
@pytest.mark.covers("COA.1")
async def test_remind_around_an_appointment_and_move_all_of_it(app: App, t: Kit) -> None:
    reminded: list[str] = []

    @app.task
    async def remind(ctx: Context, booking: int) -> None:
        reminded.append(ctx.task.meta["duetime.offset"])

    offsets = [timedelta(minutes=minutes) for minutes in (-90, -60, -15, 15)]
    appointment = NEW_YEAR + timedelta(hours=3)
    await app.around(appointment, key="booking-7", offsets=offsets).submit(remind.new(booking=7))
    await t.advance(hours=1, minutes=45)
    appointment += timedelta(hours=1)
    await app.around(appointment, key="booking-7", offsets=offsets).submit(remind.new(booking=7))
    await t.advance(hours=5)
    assert reminded == ["-90m", "-90m", "-1h", "-15m", "+15m"]


@pytest.mark.each_store
@pytest.mark.covers("COA.2")
async def test_ask_again_until_there_is_an_answer(app: App, t: Kit) -> None:
    asked: list[str] = []
    answers: set[int] = set()

    @app.task
    async def ask(ctx: Context, patient: int) -> None:
        around = app.around(datetime.fromisoformat(ctx.task.meta["duetime.event"]), key=f"patient-{patient}", offsets=[900, 3600, 86_400])
        if patient in answers:
            await around.cancel(ask)
        else:
            asked.append(ctx.task.meta["duetime.offset"])

    await app.around(NEW_YEAR, key="patient-3", offsets=[900, 3600, 86_400]).submit(ask.new(patient=3))
    await t.advance(minutes=30)
    answers.add(3)
    await t.advance(days=2)
    assert asked == ["+15m"]
    assert [task.state for task in t.tasks(handler="ask")] == ["succeeded", "succeeded", "cancelled"]


async def test_see_the_difference_before_it_is_applied(app: App, t: Kit) -> None:
    @app.task
    async def sweep() -> None: ...

    await app.schedules.declare([Schedule("a", sweep, Every(60)), Schedule("b", sweep, Every(60))])
    wanted = [Schedule("a", sweep, Cron("0 9 * * *")), Schedule("c", sweep, Every(60))]
    plan = await app.schedules.plan(wanted)
    assert (plan.added, plan.changed, plan.removed, plan.unchanged) == (["c"], ["a"], ["b"], [])
    assert [change.field for change in plan.differences[0].fields] == ["rule"]
    await app.schedules.apply(wanted)
    assert not await app.schedules.plan(wanted)


@pytest.mark.each_store
@pytest.mark.covers("RED.1", "DBS.2", "QZ.2")
async def test_once_after_a_delay_at_a_rate_with_a_delay_between_runs_by_cron_by_calendar_or_not_at_all(app: App, t: Kit) -> None:
    @app.task
    async def sweep(how: str) -> None: ...

    berlin = "Europe/Berlin"
    rules: dict[str, Rule] = {
        "rate": Every(minutes=20),
        "delay": AfterEnd(timedelta(minutes=25)),
        "cron": Cron("0 14 * * *", tz=berlin),
        "daily": Calendar(at="14:30", tz=berlin),
        "window": Window(1200, "13:00", "13:30", days="mon-fri", tz=berlin),
    }
    for how, rule in rules.items():
        await app.schedules.put(Schedule(how, sweep, rule, payload={"how": how}))
    await app.schedules.put(Schedule("twice", sweep, Every(minutes=30), count=2, payload={"how": "twice"}))
    await app.schedules.put(Schedule("disabled", sweep, Every(minutes=1), payload={"how": "disabled"}))
    await app.schedules.pause("disabled")
    await sweep.after(3600, how="once")
    ran = [f"{each.task.due_at.astimezone(BERLIN):%H:%M} {each.payload['how']}" for each in await t.advance(hours=2)]
    assert sorted(ran) == sorted(
        [
            *("13:20 rate", "13:40 rate", "14:00 rate", "14:20 rate", "14:40 rate", "15:00 rate"),
            *("13:25 delay", "13:50 delay", "14:15 delay", "14:40 delay"),
            *("14:00 cron", "14:30 daily", "13:20 window", "13:30 twice", "14:00 twice", "14:00 once"),
        ]
    )


@pytest.mark.each_store
@pytest.mark.covers("QZ.1", "DBS.9", "QZ.6")
async def test_a_handler_has_many_schedules_with_data_outlives_them_and_knows_the_run_before(app: App, t: Kit) -> None:
    @app.task
    async def count(ctx: Context, step: int) -> int:
        assert ctx.occurrence is not None
        return (0 if ctx.occurrence.last is None else ctx.occurrence.last.result) + step

    for step in (1, 10):
        await app.schedules.put(Schedule(f"by-{step}", count, Every(minutes=10), payload={"step": step}))
    ran = await t.advance(minutes=30)
    assert sorted(each.task.result for each in ran) == [1, 2, 3, 10, 20, 30]
    for step in (1, 10):
        await app.schedules.delete(f"by-{step}")
    assert await t.advance(minutes=30) == []
    assert "count" in {each.name for each in await app.handlers()}


@pytest.mark.each_store
@pytest.mark.covers("CJO.1")
async def test_sets_of_minutes_hours_days_months_and_weekdays_in_a_zone_until_a_date(app: App, t: Kit) -> None:
    @app.task
    async def sweep() -> None: ...

    rule = Cron("15,45 8-9 1,15 1,3 MON-FRI", tz="America/New_York")
    await app.schedules.put(Schedule("sweep", sweep, rule, end=datetime(2026, 3, 31, tzinfo=UTC)))
    found = [f"{each:%m-%d %H:%M %Z}" for each in await app.schedules.preview("sweep", count=20)]
    days = [instant for instant in found if instant.endswith("08:15 EST")]
    assert found[0].endswith("08:15 EST")
    assert len(found) == 4 * len(days)
    assert {instant[:2] for instant in found} <= {"01", "03"}


@pytest.mark.covers("FEN.9")
def test_rules_are_a_library_without_a_store() -> None:
    holidays = DayCalendar(dates=["2026-01-06"], tz="Europe/Berlin")
    instants = occurrences(Cron("0 9 * * MON-FRI", tz="Europe/Berlin"), NEW_YEAR, calendars={"holidays": holidays})
    assert [f"{instant:%a %d %H:%M %Z}" for instant in islice(instants, 3)] == ["Fri 02 09:00 CET", "Mon 05 09:00 CET", "Wed 07 09:00 CET"]
    assert next(occurrences("every 10 minutes", NEW_YEAR)) == NEW_YEAR + timedelta(minutes=10)
    with pytest.raises(InvalidValue, match="without runs it has no instants"):
        occurrences(AfterEnd(60), NEW_YEAR)
