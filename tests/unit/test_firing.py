"""What becomes of occurrences: fired, missed, overlapping, paused. Every planned instant is accounted for, once. (Promise 8)"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from duetime.clock import SECOND, Instant
from duetime.errors import Conflict
from duetime.model import steering
from duetime.model.firing import FALLBACK, LOOK_WHEN_FULL, MOST_AT_ONCE, Step, due_of_occurrence, next_look, next_planned, step
from duetime.model.occurrences import LARGEST_RESULT, ended_run
from duetime.model.rules import AfterEnd, At, Cron, DayCalendar, Every, Plan, Rule, plan_of
from duetime.model.schedule import (
    MOST_RUNS,
    Ends,
    LastRun,
    Run,
    ScheduleFacts,
    ScheduleRecord,
    ScheduleSpec,
    Skip,
    SkipReason,
    occurrence_id,
)
from duetime.model.skips import MOST_COUNTED
from duetime.model.task import Edge, ErrorInfo, State, TaskRecord
from duetime.targets.occurrence import since_of

MINUTE = 60 * SECOND
START = 1_800_000_000 * SECOND  # a whole minute


def plan_for(spec: ScheduleSpec) -> Plan:
    return plan_of(spec.rule, start_at=spec.start_at, end_at=spec.end_at)


def made(rule: Rule | None = None, *, now: Instant = START, **options: Any) -> ScheduleRecord:
    """Return a schedule that was made at START and stored once. It fires every minute by default."""
    spec = ScheduleSpec(handler="sweep", rule=rule or Every(60), **options)
    return replace(steering.put("nightly", spec, plan_for(spec), now, id="own-id").record, version=1)


def stepped(record: ScheduleRecord, now: Instant, *ended: LastRun) -> Step:
    chosen = step(record, ScheduleFacts(plan_for(record.spec), Ends(ended)), now)
    return replace(chosen, record=replace(chosen.record, version=record.version + 1))


def with_run(record: ScheduleRecord, *tasks: str) -> ScheduleRecord:
    return replace(record, state=replace(record.state, runs=tuple(Run(task, START) for task in tasks), ended_at=None))


def an_end(task: str, state: State = State.SUCCEEDED, at: Instant = START) -> LastRun:
    return LastRun(task=task, state=state, planned_at=START, finished_at=at)


def minutes(chosen: Step) -> list[int]:
    """Return the occurrences that became tasks, in minutes after START."""
    return [((task.planned_at or 0) - START) // MINUTE for task in chosen.tasks]


def left_out(chosen: Step, reason: SkipReason) -> list[int]:
    return [(skip.planned_at - START) // MINUTE for skip in chosen.skips if skip.reason is reason]


# ---- on time ----


def test_an_occurrence_becomes_a_task_at_its_instant() -> None:
    record = made(Cron("0 9 * * *", tz="Europe/Berlin"), payload=msgspec.Raw(b'{"a":1}'), meta={"team": "x"}, priority=7, collection="eu")
    assert record.next_at is not None
    chosen = stepped(record, record.next_at)
    [task] = chosen.tasks
    assert (task.handler, task.payload, task.priority, task.collection) == ("sweep", b'{"a":1}', 7, "eu")
    assert (task.schedule, task.planned_at, task.due_at) == ("nightly", record.next_at, record.next_at)
    assert task.id == occurrence_id("own-id", record.next_at)
    assert task.meta == {
        "team": "x",
        "duetime.zone": "Europe/Berlin",
        "duetime.local": "2027-01-16T09:00:00+01:00",
        "duetime.since": "2027-01-15T08:00:00+00:00",
    }
    after = chosen.record
    assert after.state.runs == (Run(task.id, record.next_at),)
    assert (after.state.fired, after.state.missed, after.state.cursor) == (1, 0, record.next_at)
    assert after.next_at == record.next_at + 24 * 60 * MINUTE


@pytest.mark.parametrize(
    "rule", [Every(60), Cron("*/7 * * * *", tz="Europe/Berlin"), Every(60) | Cron("*/7 * * * *"), At([START, START + 9 * MINUTE])]
)
@pytest.mark.parametrize("missed", ["all", "latest"])
def test_the_interval_of_an_occurrence_begins_at_the_instant_that_the_rule_plans_before_it(rule: Rule, missed: str) -> None:
    record = made(Every(55), overlap="allow", missed=missed)
    tasks = list(stepped(record, START + MINUTE).tasks)  # by the rule before: not what the new one plans
    record = stepped(record, START + MINUTE).record
    spec = replace(record.spec, rule=rule)
    record = replace(record, spec=spec, next_at=START)
    plan = plan_for(spec)
    tasks.clear()
    for passed in (2, 3, 40, 41, 42):
        chosen = stepped(record, START + passed * MINUTE)
        tasks += chosen.tasks
        record = chosen.record
    assert tasks
    for task in tasks:
        planned_at = task.planned_at or 0
        before = plan.before(planned_at)
        found = since_of(task.meta or {})
        assert found == (planned_at if before is None else before)
        assert plan.between(found, planned_at, 2) == ([planned_at] if before is not None else []), "the intervals follow one another"


def test_a_rule_that_waits_has_the_run_before_it_as_the_begin_of_its_interval() -> None:
    record = made(AfterEnd(60))
    first = stepped(record, record.next_at or 0)
    [task] = first.tasks
    assert since_of(task.meta or {}) == task.planned_at
    ended = an_end(task.id, at=START + 5 * MINUTE)
    [second] = stepped(first.record, START + 6 * MINUTE, ended).tasks
    assert since_of(second.meta or {}) == task.planned_at


def test_nothing_happens_before_the_instant() -> None:
    record = made()
    chosen = stepped(record, START + MINUTE - 1)
    assert (chosen.tasks, chosen.skips, chosen.record.next_at) == ((), (), START + MINUTE)


def test_several_that_are_only_late_are_each_fired() -> None:
    chosen = stepped(made(Every(1), overlap="allow", missed="skip"), START + 4 * SECOND)
    assert [task.planned_at for task in chosen.tasks] == [START + number * SECOND for number in (1, 2, 3, 4)]


def test_a_step_back_of_the_clock_fires_nothing_twice() -> None:
    once = stepped(made(overlap="allow"), START + 5 * MINUTE).record
    again = stepped(once, START + 2 * MINUTE)
    assert (again.tasks, again.skips) == ((), ())
    assert again.record.state.cursor == once.state.cursor
    assert again.record.next_at == START + 6 * MINUTE


def test_jitter_moves_the_due_time_and_not_the_occurrence() -> None:
    record = made(jitter=30.0)
    dues = {due_of_occurrence(record, START + number * MINUTE) - START - number * MINUTE for number in range(200)}
    assert len(dues) > 190
    assert all(0 <= due < 30 * SECOND for due in dues)
    assert max(dues) > 25 * SECOND > 5 * SECOND > min(dues)
    [task] = stepped(record, START + MINUTE).tasks
    assert (task.planned_at, task.due_at) == (START + MINUTE, due_of_occurrence(record, START + MINUTE))


# ---- missed and overlapping, every combination ----

MISSED = {
    "skip": [],
    "latest": [10],
    "earliest": [1],
    "all": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10],
    "all within 5m": [6, 7, 8, 9, 10],
    "all at most 3": [8, 9, 10],
    "all within 5m at most 2": [9, 10],
    "all at 1/min": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10],
}
WITH_ONE_ON_TIME = {
    "skip": [10],
    "latest": [10],
    "earliest": [1, 10],
    "all": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10],
    "all within 5m": [6, 7, 8, 9, 10],
    "all at most 3": [7, 8, 9, 10],
    "all within 5m at most 2": [8, 9, 10],
    "all at 1/min": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10],
}
# how many more may become tasks while nothing is live, and while one run is
CAPACITY = {"skip": (1, 0), "queue one": (2, 1), "queue all": (10, 10), "cancel": (10, 10), "allow": (10, 10), "allow 2": (2, 1)}


@pytest.mark.parametrize("live", [0, 1])
@pytest.mark.parametrize("overlap", CAPACITY)
@pytest.mark.parametrize(
    ("now", "table"), [(START + 10 * MINUTE + 30 * SECOND, MISSED), (START + 10 * MINUTE + 5 * SECOND, WITH_ONE_ON_TIME)]
)
@pytest.mark.parametrize("missed", MISSED)
def test_after_an_outage_both_policies_decide(missed: str, now: Instant, table: dict[str, list[int]], overlap: str, live: int) -> None:
    record = made(missed=missed, overlap=overlap)
    if live:
        record = with_run(record, "running")
    chosen = stepped(record, now)
    wanted = table[missed]
    capacity = CAPACITY[overlap][live]
    assert minutes(chosen) == wanted[:capacity]
    assert left_out(chosen, SkipReason.OVERLAP) == wanted[capacity:]
    others = [minute for minute in range(1, 11) if minute not in wanted]
    assert sorted(left_out(chosen, SkipReason.MISSED) + left_out(chosen, SkipReason.FULL)) == others
    assert chosen.record.state.fired == len(chosen.tasks)
    assert chosen.record.state.missed == 10 - len(chosen.tasks)
    assert chosen.record.state.cursor == now

    before = ["running"] * live
    for task in chosen.tasks:
        if not before or overlap.startswith("allow"):
            assert task.edges == ()
        elif overlap == "cancel":
            assert task.edges == tuple(Edge(other, "end") for other in before)
        else:
            assert task.edges == (Edge(before[-1], "end"),)
        before.append(task.id)
    assert chosen.record.state.cancel == (tuple(before[:-1]) if overlap == "cancel" else ())
    assert chosen.record.next_at == (now if chosen.record.state.cancel else START + 11 * MINUTE)


def test_what_the_cap_leaves_out_is_told_from_what_is_too_old() -> None:
    chosen = stepped(made(missed="all within 5m at most 2", overlap="allow"), START + 10 * MINUTE + 30 * SECOND)
    assert left_out(chosen, SkipReason.MISSED) == [1, 2, 3, 4, 5]
    assert left_out(chosen, SkipReason.FULL) == [6, 7, 8]


def test_a_rate_spreads_due_times_from_now_on_and_over_several_steps() -> None:
    record = made(Every(1), missed="all at 2/s", overlap="allow")
    now = START + 700 * SECOND
    first = stepped(record, now)
    assert [task.due_at for task in first.tasks[:3]] == [now, now + SECOND // 2, now + SECOND]
    assert len(first.tasks) == MOST_AT_ONCE
    assert first.record.next_at == now
    second = stepped(first.record, now + 1)
    assert second.tasks[0].due_at == now + MOST_AT_ONCE * SECOND // 2


def test_given_up_runs_are_forgotten_once_they_have_been_told() -> None:
    chosen = stepped(with_run(made(overlap="cancel"), "running"), START + MINUTE)
    assert (chosen.record.state.cancel, chosen.record.next_at) == (("running",), START + MINUTE)
    again = stepped(chosen.record, START + MINUTE + 5)
    assert (again.tasks, again.record.state.cancel, again.record.next_at) == ((), (), START + 2 * MINUTE)


# ---- bounds ----


def test_a_step_is_bounded_and_the_next_one_goes_on() -> None:
    record, now = made(Every(1), missed="all at most 1200", overlap="allow"), START + 1_100 * SECOND
    fired: list[Instant | None] = []
    for _ in range(2):
        chosen = stepped(record, now)
        assert len(chosen.tasks) == MOST_AT_ONCE
        assert chosen.record.next_at == now
        record, fired = chosen.record, fired + [task.planned_at for task in chosen.tasks]
    assert fired == [START + number * SECOND for number in range(1, 1_001)]


def test_no_more_live_runs_are_remembered_than_allowed_and_the_rest_waits() -> None:
    record, now = made(Every(1), missed="all at most 5000", overlap="queue all"), START + 3_000 * SECOND
    for _ in range(2):
        record = stepped(record, now).record
    assert len(record.state.runs) == MOST_RUNS
    full = stepped(record, now)
    assert (full.tasks, full.skips, full.record.next_at) == ((), (), now + LOOK_WHEN_FULL)
    ended = [an_end(run.task) for run in record.state.runs[:10]]
    assert len(stepped(full.record, now + LOOK_WHEN_FULL, *ended).tasks) == 10


def test_without_catching_up_what_cannot_be_remembered_is_skipped() -> None:
    record = with_run(made(overlap="allow"), *map(str, range(MOST_RUNS)))
    chosen = stepped(record, START + MINUTE)
    assert (chosen.tasks, left_out(chosen, SkipReason.FULL)) == ((), [1])


@pytest.mark.parametrize("missed", ["skip", "latest", "earliest", "all at most 5"])
def test_an_outage_of_years_is_one_skip_with_its_count(missed: str) -> None:
    record = made(Every(1), missed=missed, overlap="allow", grace=0.5)
    now = START + MOST_COUNTED // 2 * SECOND + 900_000
    chosen = stepped(record, now)
    [skip] = chosen.skips
    assert skip.count + len(chosen.tasks) == MOST_COUNTED // 2
    assert chosen.record.state.missed == skip.count
    assert chosen.record.next_at == now + 100_000


@pytest.mark.slow
def test_more_than_can_be_counted_is_left_out_in_several_steps() -> None:
    record, now = made(Every(1), missed="all at most 5", overlap="allow"), START + 5 * MOST_COUNTED // 2 * SECOND
    chosen = stepped(record, now)
    assert (chosen.tasks, chosen.skips[0].count, chosen.record.next_at) == ((), MOST_COUNTED - 5, now)
    record, total = chosen.record, chosen.skips[0].count
    for _ in range(2):
        chosen = stepped(record, now)
        record, total = chosen.record, total + sum(skip.count for skip in chosen.skips)
    assert total + record.state.fired == 5 * MOST_COUNTED // 2


def test_up_to_a_hundred_are_recorded_singly_and_more_as_one() -> None:
    few = stepped(made(missed="skip"), START + 101 * MINUTE)
    assert len(few.skips) == 100
    many = stepped(made(missed="skip"), START + 102 * MINUTE)
    [skip] = many.skips
    assert (skip.planned_at, skip.until_at, skip.count) == (START + MINUTE, START + 101 * MINUTE, 101)
    assert skip.reason is SkipReason.MISSED
    overlapping = stepped(made(Every(1), missed="all", overlap="skip"), START + 300 * SECOND)
    [skip] = overlapping.skips
    assert (skip.count, skip.reason) == (299, SkipReason.OVERLAP)


# ---- count, end, failures ----


def test_a_schedule_fires_as_often_as_it_may_and_then_ends() -> None:
    record = made(missed="all", overlap="allow", count=3)
    chosen = stepped(record, START + 5 * MINUTE)
    assert minutes(chosen) == [1, 2, 3]
    assert chosen.skips == (), "what comes after the last one is not planned"
    assert next_planned(chosen.record, plan_for(record.spec)) is None
    assert chosen.record.next_at == START + 5 * MINUTE + FALLBACK, "to see how its runs end"
    over = stepped(chosen.record, START + 9 * MINUTE, *(an_end(run.task) for run in chosen.record.state.runs))
    assert (over.tasks, over.skips, over.record.next_at) == ((), (), None)


def test_the_earliest_of_many_may_be_the_last_one() -> None:
    chosen = stepped(made(missed="earliest", count=1), START + 9 * MINUTE)
    assert (minutes(chosen), chosen.skips) == ([1], ())


def test_a_rule_that_is_over_is_looked_at_until_its_last_run_has_ended() -> None:
    record = made(At(datetime(2027, 1, 15, 12, tzinfo=UTC)))
    assert record.next_at is not None
    chosen = stepped(record, record.next_at)
    assert len(chosen.tasks) == 1
    looked_at = chosen.record.next_at
    assert looked_at == record.next_at + FALLBACK
    assert stepped(chosen.record, looked_at, an_end(chosen.tasks[0].id)).record.next_at is None


def test_failed_runs_in_a_row_pause_it_before_it_fires_again() -> None:
    record = with_run(made(pause_after=2), "one", "two")
    chosen = stepped(record, START + MINUTE, an_end("one", State.FAILED), an_end("two", State.FAILED, START + 1))
    assert chosen.tasks == ()
    pause = chosen.record.state.paused
    assert pause is not None
    assert (pause.automatic, pause.note) == (True, "2 runs in a row have failed")
    assert chosen.record.next_at is None
    assert chosen.record.state.cursor == START, "what falls into the pause is accounted for when it ends"


@pytest.mark.parametrize(
    ("states", "failures"),
    [
        ([State.FAILED, State.FAILED], 2),
        ([State.FAILED, State.SUCCEEDED], 0),
        ([State.FAILED, State.CANCELLED], 1),
        ([State.DROPPED, State.EXPIRED], 0),
    ],
)
def test_failures_in_a_row_are_counted_by_ends(states: Sequence[State], failures: int) -> None:
    record = with_run(made(), "one", "two")
    ends = [an_end(name, state, START + number) for number, (name, state) in enumerate(zip(("one", "two"), states, strict=True))]
    assert stepped(record, START + 1, *ends).record.state.failures == failures


def test_the_last_result_is_handed_to_the_next_run() -> None:
    task = TaskRecord(
        id="one", handler="sweep", state=State.FAILED, payload=b"{}", due_at=START, submitted_at=START, finished_at=START + 7, result=b'"x"'
    )
    last = ended_run(Run("one", START), replace(task, error=ErrorInfo("ValueError", "no", "a long traceback")), START + 9)
    assert last is not None
    assert (last.finished_at, last.error) == (START + 7, ErrorInfo("ValueError", "no"))
    assert ended_run(Run("one", START), replace(task, state=State.RUNNING), START) is None
    large = ended_run(Run("one", START), replace(task, result=b"1" * (LARGEST_RESULT + 1)), START)
    assert large is not None
    assert large.result is None
    [fired] = stepped(with_run(made(), "one"), START + MINUTE, last).tasks
    assert fired.meta is not None
    assert msgspec.json.decode(fired.meta["duetime.last"], type=LastRun) == last


def test_a_run_that_is_not_stored_any_more_has_ended() -> None:
    record = with_run(made(), "pruned")
    chosen = step(record, ScheduleFacts(plan_for(record.spec), Ends((), ("pruned",))), START + MINUTE)
    assert minutes(chosen) == [1]
    assert (chosen.record.state.last, chosen.record.state.failures) == (None, 0)


# ---- rules that wait for the end of a run ----


def test_a_delay_is_counted_from_the_end_of_the_last_run() -> None:
    record = made(AfterEnd(90))
    assert record.next_at == START + 90 * SECOND, "the first one from when it was made"
    chosen = stepped(record, record.next_at)
    assert len(chosen.tasks) == 1
    assert chosen.record.next_at == record.next_at + FALLBACK, "in case nobody tells of the end"
    assert next_planned(chosen.record, plan_for(record.spec)) is None
    ended_at = START + 200 * SECOND
    woken = stepped(chosen.record, ended_at + 3, an_end(chosen.tasks[0].id, at=ended_at))
    assert (woken.tasks, woken.record.next_at) == ((), ended_at + 90 * SECOND)
    assert len(stepped(woken.record, ended_at + 90 * SECOND).tasks) == 1


@pytest.mark.parametrize("missed", ["skip", "latest", "earliest", "all"])
def test_a_delay_goes_on_after_an_outage_whatever_the_policy(missed: str) -> None:
    record, now = made(AfterEnd(90), missed=missed), START + 500 * MINUTE
    chosen = stepped(record, now)
    if missed == "skip":
        assert (chosen.tasks, chosen.record.next_at) == ((), now + 90 * SECOND)
        assert [skip.count for skip in chosen.skips] == [1]
    else:
        assert [task.planned_at for task in chosen.tasks] == [START + 90 * SECOND]


def test_a_delay_that_meets_a_triggered_run_counts_anew() -> None:
    record = made(AfterEnd(90))
    record = steering.trigger(record, ScheduleFacts(plan_for(record.spec)), START + 60 * SECOND).record
    chosen = stepped(record, START + 90 * SECOND)
    assert left_out(chosen, SkipReason.OVERLAP) == [1]
    assert chosen.record.next_at == START + 180 * SECOND


def test_a_delay_and_a_cron_rule_together() -> None:
    record = made(AfterEnd(90) | Cron("*/5 * * * *"))
    assert record.next_at == START + 90 * SECOND
    first = stepped(record, START + 90 * SECOND)
    by_cron = stepped(first.record, START + 5 * MINUTE, an_end(first.tasks[0].id, at=START + 4 * MINUTE))
    assert minutes(by_cron) == [5]
    nothing = stepped(by_cron.record, START + 330 * SECOND)
    assert (nothing.tasks, nothing.skips) == ((), ()), "as long as it runs no delay is counted"


# ---- operators ----


def test_pausing_and_resuming_from_now_fires_no_past_occurrence() -> None:
    record = made(missed="all", overlap="allow")
    plan = plan_for(record.spec)
    paused = steering.pause(record, plan, START + 30 * SECOND, by="ann", note="maintenance").record
    assert paused.next_at is None
    assert stepped(paused, START + 3 * MINUTE).tasks == ()
    resumed = steering.resume(paused, plan, START + 5 * MINUTE + 1)
    [skip] = resumed.skips
    assert (skip.planned_at, skip.until_at, skip.count) == (START + MINUTE, START + 5 * MINUTE, 5)
    assert skip.reason is SkipReason.PAUSED
    assert (resumed.record.state.paused, resumed.record.next_at) == (None, START + 6 * MINUTE)
    assert minutes(stepped(resumed.record, START + 6 * MINUTE)) == [6]
    assert steering.resume(record, plan, START + 9 * MINUTE).record == record, "it was not paused"


def test_resuming_and_catching_up_leaves_the_pause_to_the_policy() -> None:
    record = made(missed="all", overlap="allow")
    plan = plan_for(record.spec)
    paused = steering.pause(record, plan, START).record
    resumed = steering.resume(paused, plan, START + 5 * MINUTE + 1, catch_up=True)
    assert (resumed.skips, resumed.record.next_at) == ((), START + MINUTE)
    assert minutes(stepped(resumed.record, START + 5 * MINUTE + 2)) == [1, 2, 3, 4, 5]


def test_a_delay_goes_on_after_a_pause() -> None:
    record = made(AfterEnd(90))
    plan = plan_for(record.spec)
    resumed = steering.resume(steering.pause(record, plan, START + 1).record, plan, START + 50 * MINUTE)
    assert [skip.count for skip in resumed.skips] == [1]
    assert resumed.record.next_at == START + 50 * MINUTE + 90 * SECOND


def test_another_rule_begins_now() -> None:
    record = made(missed="all", overlap="allow")
    spec = replace(record.spec, rule=Every(3_600))
    now = START + 3 * MINUTE + 1
    changed = steering.put("nightly", spec, plan_for(spec), now, id="other", old=record, old_plan=plan_for(record.spec), by="ann")
    [skip] = changed.skips
    assert (skip.count, skip.reason) == (3, SkipReason.CHANGED)
    assert (changed.record.id, changed.record.revision, changed.record.changed_by) == ("own-id", 2, "ann")
    assert (changed.record.state.cursor, changed.record.state.missed) == (now, 3)
    assert changed.record.next_at == START + 60 * MINUTE
    caught_up = steering.put("nightly", spec, plan_for(spec), now, id="", old=record, old_plan=plan_for(record.spec), catch_up=True)
    assert (caught_up.skips, caught_up.record.state.cursor) == ((), START)


@pytest.mark.parametrize(
    "change", [{"payload": msgspec.Raw(b'{"b":2}')}, {"missed": "skip"}, {"overlap": "allow"}, {"priority": 9}, {"note": "x"}]
)
def test_other_changes_leave_the_cursor_alone(change: dict[str, Any]) -> None:
    record = made(missed="all")
    spec = replace(record.spec, **change)
    assert not steering.plan_differs(record.spec, spec)
    changed = steering.put("nightly", spec, plan_for(spec), START + 3 * MINUTE, id="", old=record, old_plan=plan_for(record.spec))
    assert (changed.skips, changed.record.state.cursor, changed.record.next_at) == ((), START, START + MINUTE)
    assert changed.record.revision == 2


def test_the_same_spec_again_changes_nothing() -> None:
    record = made()
    assert steering.put("nightly", record.spec, plan_for(record.spec), START + 9 * MINUTE, id="", old=record).record == record


def test_a_schedule_that_begins_in_the_past_begins_now_unless_asked_to_catch_up() -> None:
    spec = ScheduleSpec(handler="sweep", rule=Every(60), start_at=START - 10 * MINUTE, missed="all", overlap="allow")
    assert steering.put("nightly", spec, plan_for(spec), START, id="i").record.next_at == START + MINUTE
    caught_up = steering.put("nightly", spec, plan_for(spec), START, id="i", catch_up=True).record
    assert minutes(stepped(caught_up, START)) == list(range(-10, 1))


def test_a_changed_calendar_plans_anew_from_now_on() -> None:
    record = made(Cron("0 * * * *"), calendars=("closed",))
    days = {"closed": DayCalendar(mode="include", weekdays="mon-sun", times="00:00-01:00")}
    old = plan_of(record.spec.rule, calendars=days, within=("closed",))
    new = plan_for(record.spec)
    changed = steering.replan(record, old, new, START + 7 * MINUTE)
    assert changed.record.next_at == new.after(START + 7 * MINUTE)
    assert (changed.record.revision, changed.skips) == (record.revision, ())


def test_running_now_moves_neither_cursor_nor_count() -> None:
    record = steering.pause(made(count=1), plan_for(made().spec), START).record
    facts = ScheduleFacts(plan_for(record.spec))
    chosen = steering.trigger(record, facts, START + 5, payload=b'{"x":1}', by="ann")
    [task] = chosen.tasks
    assert (task.planned_at, task.due_at, task.payload, task.submitted_by) == (START + 5, START + 5, b'{"x":1}', "ann")
    assert task.id == occurrence_id("own-id", START + 5, "trigger", record.version)
    assert task.meta is not None
    assert task.meta["duetime.kind"] == "trigger"
    assert chosen.record.state.runs == (Run(task.id, START + 5, "trigger"),)
    assert (chosen.record.state.cursor, chosen.record.state.fired, chosen.record.state.paused) == (START, 0, record.state.paused)


@pytest.mark.parametrize(
    ("overlap", "live", "edges"),
    [("allow", 2, 0), ("allow 2", 1, 0), ("skip", 0, 0), ("queue one", 1, 1), ("queue all", 3, 1), ("cancel", 2, 2)],
)
def test_running_now_while_others_run(overlap: str, live: int, edges: int) -> None:
    record = with_run(made(), *map(str, range(live)))
    chosen = steering.trigger(record, ScheduleFacts(plan_for(record.spec)), START + 5, overlap=overlap)
    assert len(chosen.tasks[0].edges) == edges
    assert chosen.record.state.cancel == (("0", "1") if overlap == "cancel" else ())


@pytest.mark.parametrize(("overlap", "live"), [("skip", 1), ("queue one", 2), ("allow 2", 2), ("allow", MOST_RUNS)])
def test_a_trigger_is_refused_where_the_policy_permits_no_further_run(overlap: str, live: int) -> None:
    record = with_run(made(), *map(str, range(live)))
    with pytest.raises(Conflict, match="not ended"):
        steering.trigger(record, ScheduleFacts(plan_for(record.spec)), START + 5, overlap=overlap)


def test_a_triggered_run_counts_for_the_overlap_policy_and_a_backfill_does_not() -> None:
    record = made()
    triggered = replace(record, state=replace(record.state, runs=(Run("t", START, "trigger"),)))
    assert left_out(stepped(triggered, START + MINUTE), SkipReason.OVERLAP) == [1]
    filling = replace(record, state=replace(record.state, runs=(Run("b", START, "backfill"),)))
    assert minutes(stepped(filling, START + MINUTE)) == [1]
    ended = stepped(filling, START + MINUTE, an_end("b", State.FAILED))
    assert (ended.record.state.last, ended.record.state.failures) == (None, 0)


def test_when_to_look_is_the_next_occurrence() -> None:
    record = made()
    plan = plan_for(record.spec)
    assert next_look(record, record.state, plan, START) == next_planned(record, plan) == START + MINUTE


def test_a_skip_has_a_reason_and_a_time() -> None:
    [skip] = stepped(made(missed="skip"), START + 61 * SECOND + 10 * SECOND).skips
    assert skip == Skip(
        schedule="nightly", planned_at=START + MINUTE, until_at=START + MINUTE, count=1, reason=SkipReason.MISSED, at=START + 71 * SECOND
    )
