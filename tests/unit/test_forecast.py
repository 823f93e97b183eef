"""Forecasts: rules in virtual time, and the load that follows."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from duetime.cli.schedules.forecast import BLOCKS, plot
from duetime.clock import SECOND, to_datetime, to_instant
from duetime.model.forecast import HOUR, Forecast, ForecastInput, forecast
from duetime.model.occurrences import due_of_occurrence
from duetime.model.rules import AfterEnd, At, Cron, Every, Rule, plan_of
from duetime.model.schedule import MOST_RUNS, Pause, Run, RunKind, ScheduleRecord, ScheduleSpec, ScheduleState

START = to_instant(datetime(2030, 1, 7, tzinfo=UTC))


def prospect(name: str, rule: Rule, duration: float = 1.0, *, handler: str = "sweep", **spec: Any) -> ForecastInput:
    made = ScheduleSpec(handler=handler, rule=rule, **spec)
    plan = plan_of(rule, start_at=made.start_at, end_at=made.end_at)
    state = ScheduleState(cursor=START, ended_at=START)
    record = ScheduleRecord(name=name, id=f"id of {name}", version=1, revision=1, spec=made, state=state, next_at=None)
    return ForecastInput(record=record, plan=plan, duration=duration, measured=True)


def look(*prospects: ForecastInput, hours: float = 24, slots: Mapping[str, int] | None = None, **options: Any) -> Forecast:
    return forecast(prospects, start_at=START, until_at=START + round(hours * HOUR), slots=slots, **options)


def at(*seconds: float) -> At:
    return At([to_datetime(START + round(second * SECOND)) for second in seconds])


def test_every_hour_tells_starts_work_and_how_many_go_on_at_once() -> None:
    found = look(prospect("a", at(60, 120, 3_590), 20.0, overlap="allow"), prospect("b", at(70), 3_600.0), hours=3)
    assert [(hour.at - START, hour.runs, hour.busy, hour.most) for hour in found.hours] == [
        (0, 4, 20 + 20 + 10 + 3_530, 2),
        (HOUR, 0, 10 + 70, 2),
        (2 * HOUR, 0, 0, 0),
        (3 * HOUR, 0, 0, 0),
    ]
    assert (found.runs, found.busy, found.most, found.occurrences, found.cut) == (4, 3_660, 2, 4, False)


def test_hours_are_whole_hours_even_if_it_begins_within_one() -> None:
    found = forecast([prospect("a", Every(600))], start_at=START + HOUR // 2, until_at=START + 2 * HOUR)
    assert [(hour.at, hour.runs) for hour in found.hours] == [(START, 2), (START + HOUR, 6), (START + 2 * HOUR, 1)]


def test_a_run_that_ends_frees_its_slot_for_one_that_begins_then() -> None:
    assert look(prospect("a", Every(10), 10.0), hours=1).most == 1
    assert look(prospect("a", Every(10), 10.001, overlap="allow"), hours=1).most == 2


@pytest.mark.parametrize(
    ("overlap", "runs", "skipped", "busy", "most"),
    [
        ("skip", 2, 4, 50.0, 1),  # starts at 10 and 40
        ("queue one", 4, 2, 100.0, 1),  # at 10, 35, 60 and 85
        ("queue all", 6, 0, 150.0, 1),
        ("cancel", 6, 0, 75.0, 1),  # five of 10 s, the last one whole
        ("allow", 6, 0, 150.0, 3),
        ("allow 2", 4, 2, 100.0, 2),  # at 10, 20, 40 and 50
    ],
)
def test_overlapping_runs_follow_the_policy(overlap: str, runs: int, skipped: int, busy: float, most: int) -> None:
    found = look(prospect("a", at(10, 20, 30, 40, 50, 60), 25.0, overlap=overlap), hours=1)
    assert (found.runs, found.skipped, found.busy, found.most) == (runs, skipped, busy, most)


def test_a_delay_is_counted_from_the_end_of_the_run_before() -> None:
    found = look(prospect("a", AfterEnd(60), 30.0), hours=1)
    assert found.runs == 3_600 // 90  # the first one 60 s after the start
    assert found.skipped == 0


def test_a_delay_that_is_over_fires_at_once() -> None:
    one = prospect("a", AfterEnd(60), 30.0)
    long_ago = replace(one.record.state, cursor=START - HOUR, ended_at=START - HOUR)
    found = look(replace(one, record=replace(one.record, state=long_ago)), hours=0.01)
    assert found.runs == 1


def test_runs_that_go_on_now_are_taken_to_last_once_more() -> None:
    one = prospect("a", at(10, 20, 30), 15.0)
    record = replace(one.record, state=replace(one.record.state, runs=(Run("t", START - SECOND),)))
    found = look(replace(one, record=record), hours=1)
    assert (found.runs, found.skipped) == (1, 2)  # 10 comes during the run from before, 20 runs, 30 comes during that


@pytest.mark.parametrize(("kind", "runs", "skipped"), [("rule", 1, 2), ("trigger", 1, 2), ("backfill", 2, 1)])
def test_runs_of_a_backfill_hold_nothing_up_as_when_it_fires(kind: RunKind, runs: int, skipped: int) -> None:
    one = prospect("a", at(10, 20, 30), 15.0)
    record = replace(one.record, state=replace(one.record.state, runs=(Run("t", START - SECOND, kind),)))
    found = look(replace(one, record=record), hours=1)
    assert (found.runs, found.skipped) == (runs, skipped)


@pytest.mark.parametrize(("kind", "runs", "skipped"), [("rule", 0, 0), ("trigger", 1, 3), ("backfill", 1, 0)])
def test_a_delay_is_counted_from_the_end_of_a_run_of_the_rule_only(kind: RunKind, runs: int, skipped: int) -> None:
    one = prospect("a", AfterEnd(60), 200.0)
    state = replace(one.record.state, ended_at=None if kind == "rule" else START, runs=(Run("t", START - SECOND, kind),))
    found = look(replace(one, record=replace(one.record, state=state)), hours=250 / 3_600)
    assert (found.runs, found.skipped) == (runs, skipped)  # a skipped occurrence lets the delay start again: 60, 120, 180, and 240 runs


def test_a_schedule_that_remembers_as_many_runs_as_it_can_skips_the_next_also_if_they_are_a_backfill() -> None:
    one = prospect("a", at(10, 20, 30), 15.0, overlap="allow")
    many = tuple(Run(f"t{number}", START - SECOND, "backfill") for number in range(MOST_RUNS))
    found = look(replace(one, record=replace(one.record, state=replace(one.record.state, runs=many))), hours=1)
    assert (found.runs, found.skipped) == (2, 1)  # they are taken to last until 15


def test_count_bounds_what_is_left_and_paused_schedules_do_nothing() -> None:
    counted = prospect("counted", Every(60), count=10)
    counted = replace(counted, record=replace(counted.record, state=replace(counted.record.state, fired=7)))
    paused = prospect("paused", Every(60))
    paused = replace(paused, record=replace(paused.record, state=replace(paused.record.state, paused=Pause(START))))
    assert [each.runs for each in look(counted, paused).schedules] == [3, 0]


def test_jitter_is_the_one_that_firing_will_take() -> None:
    one = prospect("a", Every(3_600), jitter=600.0)
    found = look(one)
    dues = [due_of_occurrence(one.record, START + hour * HOUR) for hour in range(1, 25)]
    assert len({due % HOUR for due in dues}) > 20
    assert found.busiest is not None
    assert found.busiest.at // HOUR == dues[0] // HOUR
    assert [hour.runs for hour in found.hours[1:24]] == [1] * 23


def test_the_busiest_minute_is_named_with_its_schedules() -> None:
    found = look(prospect("often", Every(20)), prospect("nine", Cron("0 9 * * *")), prospect("nine too", Cron("0 9 * * *")))
    assert found.busiest is not None
    assert (found.busiest.at, found.busiest.runs) == (START + 9 * HOUR, 5)
    assert found.busiest.schedules == ("often", "nine", "nine too")
    many = look(*(prospect(f"s{number}", Cron("0 9 * * *")) for number in range(30)))
    assert many.busiest is not None
    assert (len(many.busiest.schedules), many.busiest.further) == (20, 10)
    assert look().busiest is None


def test_quarters_of_the_first_day_are_named_with_their_schedules() -> None:
    found = look(prospect("often", Every(600)), prospect("nine", Cron("5 9 * * *")), prospect("none", Cron("0 9 1 2 *")), hours=48)
    assert sum(quarter.runs for quarter in found.quarters) == 24 * 6 + 1
    [nine] = [quarter for quarter in found.quarters if quarter.at == START + 9 * HOUR]
    assert (nine.runs, nine.schedules, nine.further) == (3, ("often", "nine"), 0)
    assert all(quarter.at <= START + 24 * HOUR for quarter in found.quarters)
    for hour in found.hours[:24]:
        assert hour.runs == sum(quarter.runs for quarter in found.quarters if quarter.at // HOUR == hour.at // HOUR)
    many = look(*(prospect(f"s{number}", Cron("0 9 * * *")) for number in range(30)))
    assert [(len(quarter.schedules), quarter.further) for quarter in many.quarters] == [(20, 10)]


def test_a_collision_needs_more_slots_than_there_are_and_two_schedules() -> None:
    first, second = prospect("first", Cron("0 * * * *"), 600.0), prospect("second", Cron("5 9,10 * * *"), 600.0)
    other = prospect("other", Cron("0 * * * *"), 600.0, handler="mail")
    [collision] = look(first, second, other, slots={"sweep": 1, "mail": 1}).collisions
    assert (collision.handler, collision.schedules, collision.slots, collision.most) == ("sweep", ("first", "second"), 1, 2)
    assert (collision.times, collision.first_at, collision.seconds) == (2, START + 9 * HOUR + 300 * SECOND, 600.0)
    assert look(first, second, slots={"sweep": 2}).collisions == ()
    assert look(first, second, slots={}).collisions == ()
    alone = prospect("alone", Every(10), 60.0, overlap="allow")
    assert look(alone, slots={"sweep": 1}, hours=1).collisions == ()


def test_the_worst_collision_comes_first() -> None:
    three = [prospect(f"a{number}", Cron("0 9 * * *"), 60.0, handler="a") for number in range(3)]
    two = [prospect(f"b{number}", Cron("0 8 * * *"), 60.0, handler="b") for number in range(2)]
    assert [each.handler for each in look(*two, *three, slots={"a": 1, "b": 1}).collisions] == ["a", "b"]


def test_it_is_cut_at_an_instant_up_to_which_it_is_complete() -> None:
    found = look(prospect("a", Every(60)), prospect("b", Every(60, phase=30)), limit=100)
    assert (found.cut, found.occurrences, found.runs) == (True, 100, 100)
    assert found.until_at == START + 50 * 60 * SECOND + 30 * SECOND - 1
    assert sum(hour.runs for hour in found.hours) == 100
    assert not look(prospect("a", Every(60)), hours=1, limit=60).cut


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([Every(60), Every(97), Cron("*/7 * * * *"), Cron("0 * * * *"), AfterEnd(45), Every(600) | AfterEnd(120)]),
            st.floats(0.001, 4_000),
            st.sampled_from(["skip", "queue one", "queue all", "cancel", "allow", "allow 3"]),
            st.sampled_from([0.0, 30.0]),
        ),
        max_size=5,
    ),
    st.floats(0.1, 6),
)
def test_nothing_is_counted_twice_or_forgotten(chosen: list[tuple[Rule, float, str, float]], hours: float) -> None:
    prospects = [
        prospect(str(number), rule, duration, overlap=overlap, jitter=jitter)
        for number, (rule, duration, overlap, jitter) in enumerate(chosen)
    ]
    found = look(*prospects, hours=hours, slots={"sweep": 2})
    assert found.runs + found.skipped == found.occurrences
    assert found.runs == sum(each.runs for each in found.schedules) >= sum(hour.runs for hour in found.hours)
    assert sum(hour.busy for hour in found.hours) == pytest.approx(found.busy)
    assert sum(each.busy for each in found.schedules) == pytest.approx(found.busy)
    assert all(hour.busy <= hour.most * 3_600 for hour in found.hours)
    assert all(collision.most > collision.slots and len(collision.schedules) > 1 for collision in found.collisions)


# ---- the plot ----


def test_the_plot_has_a_line_per_day_and_fits_80_columns() -> None:
    found = look(prospect("a", Cron("0 0-11 * * *"), 600.0), prospect("b", Cron("0 9 * * *"), 2_400.0), hours=24 * 7)
    lines = list(plot(found.hours, UTC))
    assert len(lines) == 1 + 8 + 1
    assert max(map(len, lines)) <= 80
    assert lines[1] == f"Mon 01-07 |{'  ' + BLOCKS[2] * 2 * 8 + BLOCKS[8] * 2 + BLOCKS[2] * 2 * 2 + '  ' * 12}| 12 runs"
    assert lines[-1] == "a full block is 50 min 0 s of work in an hour"


def test_the_plot_shows_local_days_and_even_the_smallest_load() -> None:
    from zoneinfo import ZoneInfo

    found = look(prospect("a", Cron("30 23 * * *"), 0.001), prospect("b", Cron("0 12 * * *"), 3_000.0))
    lines = list(plot(found.hours, ZoneInfo("Europe/Berlin")))
    assert [line[:9] for line in lines[1:-1]] == ["Mon 01-07", "Tue 01-08"]
    assert lines[1][11 + 2 * 13] == BLOCKS[8]
    assert lines[2][11] == BLOCKS[1]


def test_the_plot_of_nothing_is_empty() -> None:
    lines = list(plot(look().hours, UTC))
    assert all("|" + " " * 48 + "|" in line for line in lines[1:-1])
