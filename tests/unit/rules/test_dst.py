"""Gaps and folds: what becomes of local times when the wall's clock jumps."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from itertools import chain
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duetime.clock import LATEST, SECOND, to_datetime, to_instant
from duetime.model.rules import Calendar, Cron, Rule, Window, plan_of, zones
from duetime.model.rules.cron import read_expression
from duetime.model.rules.days import MonthDays
from duetime.model.rules.wall import ClockTimes, FixedTimes, MatchingTimes
from duetime.model.rules.zones import Zone, zone_of
from tools.cron_scan import ALWAYS, Tally, cases_of, changes, check


def local(rule: Rule, day: str, days: int = 1) -> list[str]:
    """Return what a rule plans on local days, as local times with their offset."""
    plan = plan_of(rule)
    zone = ZoneInfo(plan.zone)
    start = datetime.fromisoformat(day).replace(tzinfo=zone)
    end = start + timedelta(days=days)
    found = plan.between(to_instant(start) - 1, to_instant(end) - 1, 2000)
    return [to_datetime(instant).astimezone(zone).isoformat(timespec="minutes") for instant in found]


def test_a_fixed_time_in_a_gap_runs_once_at_the_first_instant_after_it() -> None:
    assert local(Cron("30 2 * * *", tz="Europe/Berlin"), "2026-03-29") == ["2026-03-29T03:00+02:00"]
    assert local(Calendar(at="02:30", tz="Europe/Berlin"), "2026-03-29") == ["2026-03-29T03:00+02:00"]


def test_a_fixed_time_in_a_gap_can_be_skipped() -> None:
    assert local(Cron("30 2 * * *", tz="Europe/Berlin", gap="skip"), "2026-03-29", 2) == ["2026-03-30T02:30+02:00"]
    assert local(Calendar(at="02:30", tz="Europe/Berlin", gap="skip"), "2026-03-29", 2) == ["2026-03-30T02:30+02:00"]


def test_several_times_in_one_gap_are_one() -> None:
    assert local(Cron("0,20,40 2,3 * * *", tz="Europe/Berlin"), "2026-03-29") == [
        "2026-03-29T03:00+02:00",
        "2026-03-29T03:20+02:00",
        "2026-03-29T03:40+02:00",
    ]


def test_a_gap_is_asked_about_right_up_to_its_edge() -> None:
    plan = plan_of(Cron("30 2 * * *", tz="Europe/Berlin"))
    after_the_gap = to_instant(datetime(2026, 3, 29, 1, tzinfo=UTC))
    assert plan.after(after_the_gap - 1) == after_the_gap
    assert plan.after(after_the_gap - 1_000_000) == after_the_gap
    assert plan.after(after_the_gap) != after_the_gap


def test_a_fixed_time_in_a_fold_runs_once_in_the_first_pass() -> None:
    assert local(Cron("30 2 * * *", tz="Europe/Berlin"), "2026-10-25") == ["2026-10-25T02:30+02:00"]
    assert local(Calendar(at="02:30", tz="Europe/Berlin"), "2026-10-25") == ["2026-10-25T02:30+02:00"]
    assert local(Cron("0 2,3 * * *", tz="Europe/Berlin"), "2026-10-25") == ["2026-10-25T02:00+02:00", "2026-10-25T03:00+01:00"]


def test_a_wildcard_runs_at_every_real_matching_instant() -> None:
    assert local(Cron("*/30 1-3 * * *", tz="Europe/Berlin"), "2026-03-29") == [
        *("2026-03-29T01:00+01:00", "2026-03-29T01:30+01:00", "2026-03-29T03:00+02:00", "2026-03-29T03:30+02:00")
    ]
    assert local(Cron("*/30 2 * * *", tz="Europe/Berlin"), "2026-10-25") == [
        *("2026-10-25T02:00+02:00", "2026-10-25T02:30+02:00", "2026-10-25T02:00+01:00", "2026-10-25T02:30+01:00")
    ]
    assert len(local(Cron("0 * * * *", tz="Europe/Berlin"), "2026-10-25")) == 25
    assert len(local(Cron("* * * * *", tz="Europe/Berlin"), "2026-03-29")) == 23 * 60


def test_a_gap_over_midnight_moves_a_slot_to_the_next_day() -> None:
    nuuk = Cron("30 23 * * *", tz="America/Nuuk")
    assert local(nuuk, "2026-03-28", 2) == ["2026-03-29T00:00-01:00", "2026-03-29T23:30-01:00"]


def test_half_an_hour_of_lord_howe() -> None:
    assert local(Cron("15 2 * * *", tz="Australia/Lord_Howe"), "2026-10-04") == ["2026-10-04T02:30+11:00"]
    assert local(Cron("45 1 * * *", tz="Australia/Lord_Howe"), "2026-04-05") == ["2026-04-05T01:45+11:00"]
    assert local(Cron("45 */1 * * *", tz="Australia/Lord_Howe"), "2026-04-05")[1:3] == ["2026-04-05T01:45+11:00", "2026-04-05T01:45+10:30"]


def test_a_day_that_does_not_exist() -> None:
    noon = Cron("0 12 * * *", tz="Pacific/Apia")
    assert local(noon, "2011-12-29", 3) == ["2011-12-29T12:00-10:00", "2011-12-31T00:00+14:00", "2011-12-31T12:00+14:00"]
    assert len(local(Cron("0 */6 * * *", tz="Pacific/Apia"), "2011-12-29", 3)) == 8


def test_a_window_counts_elapsed_time_through_a_gap_and_a_fold() -> None:
    window = Window(3600, "01:00", "04:00", tz="Europe/Berlin")
    assert local(window, "2026-03-29") == ["2026-03-29T01:00+01:00", "2026-03-29T03:00+02:00", "2026-03-29T04:00+02:00"]
    assert local(window, "2026-10-25") == [
        *("2026-10-25T01:00+02:00", "2026-10-25T02:00+02:00", "2026-10-25T02:00+01:00", "2026-10-25T03:00+01:00", "2026-10-25T04:00+01:00")
    ]


def test_a_window_that_starts_in_a_gap_starts_after_it_or_is_left_out() -> None:
    assert local(Window(1800, "02:15", "04:00", tz="Europe/Berlin"), "2026-03-29") == [
        *("2026-03-29T03:00+02:00", "2026-03-29T03:30+02:00", "2026-03-29T04:00+02:00")
    ]
    assert local(Window(1800, "02:15", "04:00", tz="Europe/Berlin", gap="skip"), "2026-03-29") == []
    assert local(Window(1800, "02:15", "02:45", tz="Europe/Berlin"), "2026-03-29") == ["2026-03-29T03:00+02:00"]


@pytest.mark.slow
def test_cron_agrees_with_a_scan_of_real_minutes_around_changes_of_offset() -> None:
    dice = random.Random("a seeded sample of what `make cron` does")
    others = sorted(available_timezones() - set(ALWAYS))
    names = list(ALWAYS)
    while sum(len(changes(name)) for name in names) < 600:
        names.append(dice.choice(others))
    sample = dice.sample([(zone, change_at) for zone in names for change_at in changes(zone)], 230)
    assert {zone for zone, _ in sample} >= set(ALWAYS)
    tally = Tally()
    check(chain.from_iterable(cases_of(zone, 22, dice, only=[change_at]) for zone, change_at in sample), tally)
    assert tally.wrong == []
    assert tally.cases >= 5_000


@pytest.mark.slow
def test_segments_say_what_zoneinfo_says() -> None:
    dice = random.Random(1)
    for name in available_timezones():
        zone, info = Zone(name), ZoneInfo(name)
        for _ in range(8):
            at = dice.randrange(-2_208_988_800, 4_102_444_800)  # 1900 to 2100
            when = datetime.fromtimestamp(at, info)
            segment = zone.segment(at)
            assert segment.start <= at < segment.end
            assert timedelta(seconds=segment.offset) == when.utcoffset(), when


@pytest.mark.parametrize("name", ["Europe/Berlin", *ALWAYS])
def test_where_a_zone_is_cut_into_chunks_makes_no_difference(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expression = read_expression("0,20,40 0-4,22-23 * * *")
    days = MonthDays(lambda _year, month, length, first: expression.days_of(month, length, first))
    times = ClockTimes(expression.hours, expression.minutes, expression.seconds)

    def walk(kind: type[FixedTimes | MatchingTimes], zone: Zone, change_at: int) -> list[int]:
        rule, found = kind(days, times, zone), [(change_at - 40_000) * SECOND]
        while found[-1] < (change_at + 40_000) * SECOND:
            found.append(rule.after(found[-1]) or LATEST)
        return found

    some = random.Random(name).sample(changes(name), 10)
    whole = {(kind, at): walk(kind, Zone(name), at) for kind in (FixedTimes, MatchingTimes) for at in some}
    monkeypatch.setattr(zones, "_CHUNK_BITS", 10)  # 17 minutes, so that every gap and fold has borders before, in and after it
    assert whole == {(kind, at): walk(kind, Zone(name), at) for kind, at in whole}


@given(st.sampled_from(["Europe/Berlin", *ALWAYS]), st.integers(946_684_800, 2_208_988_800))
def test_the_wall_is_first_reached_when_it_is(name: str, at: int) -> None:
    zone = zone_of(name)
    wall = at + zone.segment(at).offset
    found, exact = zone.first_at(wall)
    assert exact
    assert found <= at
    assert found + zone.segment(found).offset == wall
    assert found == at or at - found < 86_400  # the first pass of a fold
