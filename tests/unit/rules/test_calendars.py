"""Named calendars: what they permit, alone and chained."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duetime.clock import LATEST, SECOND, Instant, to_datetime, to_instant
from duetime.errors import InvalidValue
from duetime.model.rules import AfterEnd, Cron, DayCalendar, Every, Rule, plan_of
from duetime.model.rules.calendars import Permission
from tests.unit.rules.strategies import cron_calendars, day_calendars, expressions, instants, rules

BERLIN = ZoneInfo("Europe/Berlin")


def berlin(text: str) -> Instant:
    return to_instant(datetime.fromisoformat(text).replace(tzinfo=BERLIN))


def test_holidays_are_excluded_on_the_days_of_their_zone() -> None:
    holidays = DayCalendar(dates=["2026-04-06"], yearly=["12-25", "12-26"], tz="Europe/Berlin")
    assert holidays.permits(berlin("2026-04-05T23:59:59"))
    assert not holidays.permits(berlin("2026-04-06T00:00"))
    assert not holidays.permits(berlin("2026-04-06T23:59:59"))
    assert holidays.permits(berlin("2026-04-07T00:00"))
    assert not holidays.permits(berlin("2031-12-26T12:00"))


def test_days_of_the_month_are_counted_from_its_start_or_its_end() -> None:
    shut = DayCalendar(monthly=[15, "last", "1"], tz="Europe/Berlin")
    assert shut.monthly == ("1", "15", "last")
    days = {day: shut.permits(berlin(f"2028-02-{day:02}T12:00")) for day in range(1, 30)}
    assert [day for day, permitted in days.items() if not permitted] == [1, 15, 29]
    assert shut.permits(berlin("2026-03-29T12:00"))
    assert not shut.permits(berlin("2026-03-31T23:59"))


def test_business_hours_are_included_up_to_their_end() -> None:
    hours = DayCalendar(mode="include", weekdays="mon-fri", times=["09:00-12:00", "13:00-17:00"], tz="Europe/Berlin")
    day = "2026-04-08T"  # a Wednesday
    assert [hours.permits(berlin(day + time)) for time in ("08:59", "09:00", "11:59", "12:00", "13:00", "16:59", "17:00")] == [
        *(False, True, True, False, True, True, False)
    ]
    assert not hours.permits(berlin("2026-04-11T10:00"))


def test_hours_over_midnight_are_the_early_and_the_late_hours_of_a_day() -> None:
    nights = DayCalendar(weekdays="sat", times="22:00-06:00", tz="Europe/Berlin")
    assert not nights.permits(berlin("2026-04-11T05:59"))
    assert nights.permits(berlin("2026-04-11T06:00"))
    assert not nights.permits(berlin("2026-04-11T22:00"))
    assert nights.permits(berlin("2026-04-12T00:00"))


def test_a_calendar_may_ask_for_others() -> None:
    calendars = {
        "holidays": DayCalendar(yearly="12-25"),
        "hours": DayCalendar(mode="include", times="09:00-17:00", also=["week"]),
        "week": DayCalendar(weekdays="sat,sun", also=["holidays"]),
    }
    plan = plan_of(Cron("0 8,12 * * *"), calendars=calendars, within=["hours"])
    start = to_instant(datetime(2026, 12, 23, 20, tzinfo=UTC))
    assert [to_datetime(instant).day for instant in plan.between(start, LATEST, 3)] == [24, 28, 29]
    assert not calendars["hours"].permits(to_instant(datetime(2026, 12, 25, 12, tzinfo=UTC)), calendars)
    assert calendars["hours"].permits(to_instant(datetime(2026, 12, 24, 12, tzinfo=UTC)), calendars)


def test_unknown_names_and_circles_are_refused() -> None:
    with pytest.raises(InvalidValue, match="calendar 'holidays' is unknown; there are: none yet"):
        plan_of(Every(60), within=["holidays"])
    with pytest.raises(InvalidValue, match=r"calendar 'b' \(named by `also` of a\) is unknown; there are: a"):
        plan_of(Every(60), within=["a"], calendars={"a": DayCalendar(weekdays="sat", also=["b"])})
    circle = {"a": DayCalendar(weekdays="sat", also=["b"]), "b": DayCalendar(weekdays="sun", also="a")}
    with pytest.raises(InvalidValue, match="circle: a → b → a"):
        plan_of(Every(60), within=["a"], calendars=circle)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DayCalendar(), "a calendar must say which time it means"),
        (lambda: DayCalendar(mode="allow", weekdays="sat"), "mode must be 'exclude' or 'include'"),  # type: ignore[arg-type]
        (lambda: DayCalendar(dates="2026-02-30"), "dates must be a date"),
        (lambda: DayCalendar(dates=[datetime(2026, 1, 1)]), "dates must be a date"),  # type: ignore[list-item]
        (lambda: DayCalendar(monthly="32"), "monthly must be a day of the month"),
        (lambda: DayCalendar(yearly="13-01"), "yearly must be month and day"),
        (lambda: DayCalendar(yearly="04-31"), "yearly: April never has a day 31"),
        (lambda: DayCalendar(weekdays="weekend"), "weekdays must name weekdays"),
        (lambda: DayCalendar(times="9-17"), "times must be a time of day"),
        (lambda: DayCalendar(cron="* 25 * * *"), "hour must be 0–23"),
        (lambda: DayCalendar(cron="0 * 5 * * *"), "has 5 fields, because it means whole minutes"),
        (lambda: DayCalendar(cron="* 5 * * *", weekdays="sat"), "leave out dates, yearly, monthly, weekdays and times"),
        (lambda: DayCalendar(times="09:00"), "times must be a range of times"),
        (lambda: DayCalendar(times="09:00-09:00"), "times must be a range of times"),
        (lambda: DayCalendar(weekdays="sat", tz="Nowhere"), "tz must be an IANA time zone"),
        (lambda: DayCalendar(weekdays="sat", also=[5]), "also must name other calendars"),  # type: ignore[list-item]
    ],
)
def test_a_bad_calendar_is_refused_with_its_field(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        make()


def test_calendars_are_written_in_one_way() -> None:
    assert DayCalendar(dates=[date(2026, 5, 1)]) == DayCalendar(dates=("2026-05-01",))  # type: ignore[list-item]
    assert DayCalendar(weekdays=["Saturday", "sun"]) == DayCalendar(weekdays="sat-sun")
    assert DayCalendar(times="9:00-17:00").times == ("09:00-17:00",)


@given(st.one_of(day_calendars, cron_calendars))
def test_a_calendar_survives_json(calendar: DayCalendar) -> None:
    encoded = msgspec.json.encode(calendar)
    decoded = msgspec.json.decode(encoded, type=DayCalendar)
    assert (decoded, hash(decoded), msgspec.json.encode(decoded)) == (calendar, hash(calendar), encoded)


@given(day_calendars, instants)
def test_exclude_permits_what_include_does_not(calendar: DayCalendar, instant: Instant) -> None:
    other = "include" if calendar.mode == "exclude" else "exclude"
    assert calendar.permits(instant) is not msgspec.structs.replace(calendar, mode=other).permits(instant)


@given(day_calendars, instants)
def test_a_calendar_looks_at_nothing_but_the_local_day_and_time(calendar: DayCalendar, instant: Instant) -> None:
    when = to_datetime(instant).astimezone(ZoneInfo(calendar.tz))
    clock = f"{when:%H:%M}"
    ranges = [text.split("-") for text in calendar.times]
    in_times = any(start <= clock < end if start < end else clock >= start or clock < end for start, end in ranges)
    week = {"": "", "sat,sun": "SatSun", "mon-fri": "MonTueWedThuFri", "mon,fri-sun": "MonFriSatSun"}[str(calendar.weekdays)]
    days_named = bool(calendar.dates or calendar.yearly or calendar.monthly or calendar.weekdays)
    on_day = when.date().isoformat() in calendar.dates or f"{when:%m-%d}" in calendar.yearly or f"{when:%a}" in week
    last = (when + timedelta(days=1)).day == 1
    on_day = on_day or str(when.day) in calendar.monthly or (last and "last" in calendar.monthly)
    matches = (on_day or not days_named) and in_times
    assert calendar.permits(instant) is (matches if calendar.mode == "include" else not matches)


@given(expressions.filter(lambda text: len(text.split()) == 5), instants)
def test_a_calendar_of_cron_matches_each_minute_in_which_the_expression_would_fire(expression: str, instant: Instant) -> None:
    minute = instant - instant % (60 * SECOND)
    fires = bool(plan_of(Cron(expression)).between(minute - 1, minute, 1))
    assert DayCalendar(mode="include", cron=expression).permits(instant) is fires


@given(st.lists(st.one_of(day_calendars, cron_calendars), min_size=1, max_size=3), instants)
def test_the_first_permitted_instant_is_the_first(calendars: list[DayCalendar], instant: Instant) -> None:
    found = Permission(calendars).first(instant)
    horizon = instant + 3 * 86_400 * SECOND
    # permission changes at whole half hours of some zone at the earliest, so this looks at every stretch
    looked_at = [instant, *range(instant - instant % (900 * SECOND) + 900 * SECOND, horizon, 900 * SECOND)]
    expected = next((at for at in looked_at if all(calendar.permits(at) for calendar in calendars)), None)
    assert found == expected or (expected is None and (found is None or found >= horizon))
    assert found is None or all(calendar.permits(found) for calendar in calendars)


@given(rules, st.one_of(day_calendars, cron_calendars), instants)
def test_a_plan_within_a_calendar_is_what_the_calendar_permits_of_it(rule: Rule, calendar: DayCalendar, instant: Instant) -> None:
    until = instant + 40 * 86_400 * SECOND
    everything = plan_of(rule).between(instant, until, 300)
    until = everything[-1] if len(everything) == 300 else until
    within = plan_of(rule, within=["it"], calendars={"it": calendar}).between(instant, until, 301)
    assert within == [planned_at for planned_at in everything if calendar.permits(planned_at)]


def test_a_delay_that_ends_at_a_bad_time_waits_for_a_good_one() -> None:
    hours = {"hours": DayCalendar(mode="include", times="09:00-17:00")}
    plan = plan_of(AfterEnd(3600), within=["hours"], calendars=hours)
    ended_at = to_instant(datetime(2026, 1, 1, 16, 30, tzinfo=UTC))
    assert plan.after(ended_at, ended_at) == to_instant(datetime(2026, 1, 2, 9, tzinfo=UTC))
    assert plan.after(ended_at - 4 * 3600 * SECOND, ended_at - 4 * 3600 * SECOND) == ended_at - 3 * 3600 * SECOND


@pytest.mark.parametrize("rule", [Every(1), Cron("0 12 * * *"), Cron("0 12 * * *") | Every(3600), AfterEnd(60)])
def test_a_search_that_finds_nothing_comes_to_an_end(rule: Rule) -> None:
    never = {
        "never": DayCalendar(weekdays="mon-sun"),
        "weekdays": DayCalendar(weekdays="mon-fri"),
        "weekends": DayCalendar(weekdays="sat,sun", tz="Asia/Tokyo"),
        "noon": DayCalendar(times="00:00-24:00"),
    }
    for within in (["never"], ["noon"]):
        assert plan_of(rule, within=within, calendars=never).after(0, ended_at=0) is None
    assert plan_of(Cron("0 12 * * *"), within=["weekdays", "weekends"], calendars=never).after(0) is None
    assert plan_of(Cron("0 12 * * *"), within=["lunch"], calendars={"lunch": DayCalendar(times="11:00-13:00")}).after(0) is None
    thrice = timedelta(days=3) // timedelta(microseconds=1)
    assert plan_of(rule, within=["never"], calendars=never).last(0, 10 * thrice) is None
