"""Plans: all ways of asking give the same answer."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duetime.clock import LATEST, SECOND, Instant, to_instant
from duetime.model.rules import At, Cron, DayCalendar, Every, Rule, Union, Window, plan_of
from tests.unit.rules.strategies import day_calendars, instants, rules, singles

DAY = 86_400 * SECOND
lengths = st.sampled_from([SECOND, 3600 * SECOND, DAY, 40 * DAY, 800 * DAY])


@given(rules, instants)
def test_instants_grow_strictly(rule: Rule, instant: Instant) -> None:
    plan = plan_of(rule)
    for _ in range(50):
        planned_at = plan.after(instant)
        if planned_at is None:
            break
        assert type(planned_at) is int
        assert planned_at > instant
        instant = planned_at


@given(singles, instants, st.integers(0, 400 * DAY))
def test_asking_from_anywhere_before_gives_the_same_instant(rule: Rule, instant: Instant, back: int) -> None:
    plan = plan_of(rule)
    planned_at = plan.after(instant)
    if planned_at is not None:
        assert plan.after(planned_at - 1) == planned_at
        assert planned_at in plan.between(max(instant - back, planned_at - 3600 * SECOND), planned_at, 100_000)


@given(rules, instants, lengths, st.none() | day_calendars)
def test_between_last_and_count_agree_with_after(rule: Rule, after: Instant, length: int, calendar: DayCalendar | None) -> None:
    plan = plan_of(rule, within=["it"] if calendar else [], calendars={"it": calendar} if calendar else {})
    until = after + length
    found = plan.between(after, until, 400)
    assert found == sorted(set(found))
    if len(found) == 400:
        until = found[-1]
    assert plan.last(after, until) == (found[-1] if found else None)
    assert plan.count(after, until, 1000) == len(found)
    assert plan.count(after, until, 3) == min(3, len(found))
    assert plan.between(after, until, 3) == found[:3]
    if found:
        assert plan.after(found[0] - 1) == found[0]
        assert plan.last(found[-1] - 1, until) == found[-1]
        assert plan.last(found[-1], until) is None
        assert all(plan.before(later) == earlier for earlier, later in pairwise(found[-5:]))
        bounded = plan_of(rule, within=["it"] if calendar else [], calendars={"it": calendar} if calendar else {}, start_at=found[-1])
        assert bounded.before(found[-1] + 1) == found[-1]
        assert bounded.before(found[-1]) == plan.before(found[-1]), "bounds do not change what the rule plans"


@given(st.lists(singles, min_size=1, max_size=4), instants)
def test_a_union_is_the_merge_of_its_parts(parts: list[Rule], instant: Instant) -> None:
    until = instant + 30 * DAY
    merged: set[Instant] = set()
    for part in parts:
        found = plan_of(part).between(instant, until, 300)
        until = found[-1] if len(found) == 300 else until
        merged.update(found)
    expected = sorted(planned_at for planned_at in merged if planned_at <= until)
    assert plan_of(Union(rules=parts)).between(instant, until, 1500) == expected


@given(rules, instants, st.integers(0, 100 * DAY), st.integers(0, 100 * DAY))
def test_start_and_end_bound_a_plan_and_belong_to_it(rule: Rule, instant: Instant, start: int, length: int) -> None:
    start_at, end_at = instant + start, instant + start + length
    bounded = plan_of(rule, start_at=start_at, end_at=end_at)
    expected = plan_of(rule).between(start_at - 1, end_at, 50)
    assert bounded.between(instant - 1, LATEST, 50) == expected
    assert bounded.after(end_at) is None
    if expected:
        exact = plan_of(rule, start_at=expected[0], end_at=expected[0])
        assert exact.between(0, LATEST, 5) == expected[:1]
        assert exact.last(0, LATEST) == expected[0]
        assert exact.count(0, LATEST, 5) == 1


@pytest.mark.covers("FEN.9")
def test_cron_and_interval_rules_are_a_library_that_needs_no_store() -> None:
    start = to_instant(datetime(2026, 1, 1, tzinfo=UTC))
    by_cron = plan_of(Cron("*/20 9-17 * * MON-FRI")).between(start, LATEST, 1000)
    by_interval = plan_of(Every(minutes=20)).between(start, by_cron[-1], 10_000)
    assert set(by_cron) < set(by_interval)
    assert {later - earlier for earlier, later in pairwise(by_interval)} == {1200 * SECOND}


def test_the_last_of_very_many_is_found_at_once() -> None:
    start = to_instant(datetime(1990, 1, 1, tzinfo=UTC))
    until = to_instant(datetime(2030, 5, 5, 5, 5, 5, 5, tzinfo=UTC))
    second = to_instant(datetime(2030, 5, 5, 5, 5, 5, tzinfo=UTC))
    calendars = {"days": DayCalendar(mode="include", times="04:00-05:00")}
    assert plan_of(Every(1)).last(start, until) == second
    assert plan_of(Cron("* * * * * *")).last(start, until) == second
    assert plan_of(Cron("* * * * * *") | Every(7)).last(start, until) == second
    assert plan_of(Window(1)).last(start, until) == second
    assert plan_of(Every(1), within=["days"], calendars=calendars).last(start, until) == second - 306 * SECOND
    assert plan_of(Cron("0 0 * 2 MON#5")).last(start, until) == to_instant(datetime(2016, 2, 29, tzinfo=UTC))
    assert plan_of(Every(1)).count(start, until, 10**12) == (second - start) // SECOND
    assert plan_of(Every(1)).count(start, until, 5000) == 5000


def test_a_plan_ends() -> None:
    assert plan_of(At(5, 7)).after(7) is None
    assert plan_of(Every(1)).after(LATEST) is None
    for rule in (Cron("* * * * *"), Cron("0 0 * * *", tz="Asia/Tokyo"), Window(60, tz="America/New_York"), Every(hours=1)):
        assert plan_of(rule).after(LATEST) is None
        assert plan_of(rule).after(LATEST * 10) is None
        before_christ = plan_of(rule).after(-LATEST)
        assert before_christ is not None
        assert before_christ > -LATEST


def test_rules_far_apart_are_found() -> None:
    plan = plan_of(Cron("0 0 29 2 *", tz="Europe/Berlin"))
    found = plan.between(to_instant(datetime(2096, 3, 1, tzinfo=UTC)), LATEST, 1)
    assert found == [to_instant(datetime(2104, 2, 29, tzinfo=UTC)) - timedelta(hours=1) // timedelta(microseconds=1)]
