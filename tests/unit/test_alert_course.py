"""The course of an alert: who is told what, and when."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from duetime.clock import MINUTE, SECOND, to_instant
from duetime.errors import InvalidValue
from duetime.model.alerts.conditions import Backlog, Certificate, Condition, Deadline, Failing, Late, Slo, WorkerLost
from duetime.model.alerts.course import AT_ONCE, MOST_LISTED, AlertState, Change, ChangeKind, Observation, Pace, advance, paced
from duetime.model.alerts.rule import AlertRule, StoredRule

NOON = to_instant(datetime(2026, 3, 2, 12, tzinfo=UTC))
SICK = Observation(subject="charge", text="charge is ill.")
WELL = None


def rule(**changes: Any) -> StoredRule:
    return StoredRule(rule=AlertRule(name="r", when=Late(oldest_due=60), channels=("ops",), **changes), id="1", changed_at=0, changed_by="")


class Course:
    """A subject that is looked at again and again."""

    def __init__(self, stored: StoredRule) -> None:
        self.stored = stored
        self.state: AlertState | None = None
        self.now = NOON

    def see(self, seen: Observation | None, *, after: float = 5.0) -> str:
        self.now += round(after * SECOND)
        self.state, change = advance(self.stored, self.state, seen, "charge", self.now)
        return "" if change is None else change.kind.value


def test_it_is_told_once_and_its_end_once() -> None:
    course = Course(rule())
    assert [course.see(each) for each in (WELL, SICK, SICK, SICK, WELL, WELL)] == ["", "firing", "", "", "recovered", ""]


def test_what_does_not_last_is_never_told() -> None:
    course = Course(rule(sustained=60))
    assert [course.see(each, after=20) for each in (SICK, SICK, SICK, WELL)] == ["", "", "", ""]
    assert course.state is None
    assert [course.see(SICK, after=20) for _ in range(4)] == ["", "", "", "firing"]


def test_it_is_repeated_until_somebody_acknowledges_it() -> None:
    course = Course(rule(repeat=600))
    assert [course.see(SICK, after=300) for _ in range(5)] == ["firing", "", "repeated", "", "repeated"]
    assert course.state is not None
    course.state = msgspec.structs.replace(course.state, acknowledged_by="anna", acknowledged_at=course.now)
    assert [course.see(each, after=700) for each in (SICK, SICK, WELL)] == ["", "", "recovered"]
    assert course.state.acknowledged_at is None


def test_quiet_hours_keep_everything_back_until_they_end() -> None:
    course = Course(rule(quiet=("12:00", "13:00"), repeat=60))
    assert [course.see(SICK, after=600) for _ in range(6)] == ["", "", "", "", "", "firing"]
    over = Course(rule(quiet=("12:00", "13:00")))
    assert [over.see(each, after=1_200) for each in (SICK, WELL, WELL, WELL)] == ["", "", "", ""], "nobody has heard of it"
    late = Course(rule(quiet=("12:01", "13:00")))
    assert [late.see(each, after=seconds) for each, seconds in ((SICK, 10), (WELL, 300), (WELL, 3_600))] == ["firing", "", "recovered"]


def test_quiet_hours_over_midnight_are_of_the_rules_zone() -> None:
    quiet = rule(quiet=("22:00", "07:00"), tz="Europe/Berlin").rule
    at = {hour: to_instant(datetime(2026, 7, 1, hour, 30, tzinfo=UTC)) for hour in range(24)}
    assert [hour for hour, instant in at.items() if quiet.is_quiet(instant)] == [0, 1, 2, 3, 4, 20, 21, 22, 23]


def test_a_muted_rule_tells_nothing_until_its_time_is_over() -> None:
    stored = rule()
    course = Course(msgspec.structs.replace(stored, muted_until=NOON + 100 * SECOND))
    assert [course.see(SICK, after=40) for _ in range(3)] == ["", "", "firing"]


def test_what_comes_and_goes_is_told_once_as_such_and_when_it_is_over_for_an_hour() -> None:
    course = Course(rule())
    told = [course.see(each, after=60) for each in (SICK, WELL) * 8]
    assert told == ["firing", "recovered"] * 3 + ["flapping"] + [""] * 9
    assert [course.see(WELL, after=600) for _ in range(6)] == ["", "", "", "", "", "recovered"]
    assert course.state is None


def test_what_flaps_and_then_stays_is_told_after_an_hour() -> None:
    course = Course(rule())
    for each in (SICK, WELL) * 4:
        course.see(each, after=60)
    assert [course.see(SICK, after=600) for _ in range(8)][-2:] == ["firing", ""]
    assert course.see(WELL) == "recovered"


def test_slow_changes_do_not_flap() -> None:
    course = Course(rule())
    assert [course.see(each, after=1_800) for each in (SICK, WELL) * 6] == ["firing", "recovered"] * 6


def test_what_gets_worse_is_told_again() -> None:
    course = Course(rule())
    levels = [msgspec.structs.replace(SICK, level=level) for level in (1, 1, 2, 1, 2, 3)]
    assert [course.see(each) for each in levels] == ["firing", "", "worse", "", "", "worse"]


def test_a_rule_that_was_put_again_alarms_again() -> None:
    course = Course(rule())
    assert course.see(SICK) == "firing"
    course.stored = msgspec.structs.replace(course.stored, id="2")
    assert [course.see(SICK), course.see(SICK)] == ["firing", ""]


def test_a_clock_that_is_set_back_or_forth_tells_nothing_twice() -> None:
    course = Course(rule(sustained=60, repeat=3_600))
    assert [course.see(SICK, after=seconds) for seconds in (5, -3_600, 30, 31)] == ["", "", "", "firing"]
    assert [course.see(SICK, after=seconds) for seconds in (-7_200, 5, 5, 7_200)] == ["", "", "", "repeated"]


def change(n: int) -> Change:
    return Change(kind=ChangeKind.FIRING, rule="r", subject=f"s{n}", text="t", at=NOON, since=NOON)


def test_few_changes_are_a_message_each() -> None:
    pace, messages = paced(Pace(), [change(n) for n in range(AT_ONCE)], NOON)
    assert [len(listed) for listed, _ in messages] == [1] * AT_ONCE
    assert len(pace.sent) == AT_ONCE


def test_a_flood_is_one_message_a_minute() -> None:
    pace, first = paced(Pace(), [change(n) for n in range(500)], NOON)
    assert [(len(listed), more) for listed, more in first] == [(MOST_LISTED, 400)]
    pace, second = paced(pace, [change(n) for n in range(7)], NOON + 10 * SECOND)
    assert (second, len(pace.waiting)) == ((), 7)
    pace, third = paced(pace, [], NOON + MINUTE)
    assert [len(listed) for listed, _ in third] == [1] * 7
    pace, later = paced(pace, [], NOON + 3 * MINUTE)
    assert (pace, later) == (Pace(), ())


def test_what_waits_is_bounded_and_counted() -> None:
    pace, now = Pace(sent=(NOON,) * AT_ONCE), NOON
    for n in range(5):
        pace, messages = paced(pace, [change(m) for m in range(60)], now + n)
        assert messages == ()
    assert (len(pace.waiting), pace.more) == (MOST_LISTED, 200)
    _, messages = paced(pace, [], now + MINUTE)
    assert [(len(listed), more) for listed, more in messages] == [(MOST_LISTED, 200)]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Failing(), "in_a_row= or ratio="),
        (lambda: Failing(in_a_row=5, ratio=0.1), "in_a_row= or ratio="),
        (lambda: Failing(in_a_row=0), "whole number from 1 to 100"),
        (lambda: Failing(ratio=5), "between 0 and 1"),
        (lambda: Late(oldest_due=0), "from 1 to"),
        (lambda: Late(oldest_due=60, handler="a*b"), "prefix"),
        (lambda: Slo(burn=50), "can never be reached"),
        (lambda: Backlog(due=True), "whole number"),
        (lambda: Deadline(by="7:00"), "such as 07:00"),
        (lambda: Deadline(by="07:00", tz="Mars/Phobos"), "time zone"),
        (lambda: Certificate(days=()), "days"),
        (lambda: WorkerLost(within=1), "from 60"),
        (lambda: rule(quiet=("22:00", "22:00")), "whole day"),
        (lambda: rule(repeat=1), "repeat must be from 60"),
        (lambda: AlertRule(name="a/b", when=WorkerLost(), channels=("x",)), "the name of a rule"),
        (lambda: AlertRule(name="a", when=WorkerLost(), channels=()), "channels"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_what_is_expected(make: Any, said: str) -> None:
    with pytest.raises(InvalidValue, match=said):
        make()


def test_rules_are_the_same_after_json() -> None:
    conditions: list[Condition] = [
        Failing(in_a_row=3),
        Slo(handler="shop.*"),
        Deadline(schedule="nightly", by="07:00"),
        Certificate(),
        WorkerLost(),
    ]
    for each in conditions:
        made = AlertRule(name="ä 1", when=each, channels=("ops", "mail"), quiet=("22:00", "06:30"), sustained=5)
        assert msgspec.json.decode(msgspec.json.encode(made), type=AlertRule) == made
