"""Which subjects the conditions of alerts hold for, each at its bounds."""

from __future__ import annotations

from typing import Any

from duetime.clock import DAY, SECOND
from duetime.model.alerts.conditions import (
    Backlog,
    Certificate,
    Condition,
    Deadline,
    Disabled,
    Failing,
    Late,
    Missed,
    Running,
    Slo,
    WorkerLost,
)
from duetime.model.alerts.judging import AlertFacts, Counts, LongestRun, MissedRuns, Overdue, observe
from duetime.model.figures import Distribution
from duetime.model.gate import Gate, GateAction

NOW = 1_800_000_000 * SECOND


def seen(condition: Condition, **facts: Any) -> list[str]:
    return [each.subject for each in observe(condition, AlertFacts(now=NOW, **facts))]


def text(condition: Condition, **facts: Any) -> str:
    [found] = observe(condition, AlertFacts(now=NOW, **facts))
    return found.text


def starts(within: int, beyond: int) -> Distribution:
    """Attempts that started within five seconds of being due, and later."""
    return Distribution(((5.0, within), (None, within + beyond)), 0.0)


def test_a_condition_is_about_the_subjects_it_names_and_never_about_notices() -> None:
    waited = {"shop.charge": 61.0, "shop.pack": 60.0, "mail": 100.0, "duetime.notify": 1_000.0}
    assert seen(Late(oldest_due=60), oldest_due=waited) == ["shop.charge", "mail"]
    assert seen(Late(oldest_due=60, handler="shop.*"), oldest_due=waited) == ["shop.charge"]
    assert seen(Late(oldest_due=60, handler="mail"), oldest_due=waited) == ["mail"]
    assert text(Late(oldest_due=60, handler="mail"), oldest_due=waited) == (
        "The oldest due task of mail has waited for 1 min 40 s; 1 min 0 s are allowed."
    )


def test_a_share_of_failures_needs_some_attempts_to_say_anything() -> None:
    half = Failing(ratio=0.5, least=10)
    assert seen(half, counts={"a": Counts(10, 6), "b": Counts(10, 5), "c": Counts(9, 9)}) == ["a"]
    assert text(half, counts={"a": Counts(10, 6)}) == "6 of 10 attempts of a failed within 5 min 0 s (60.0 %; 50 % are allowed)."


def test_failures_in_a_row_are_counted_to_the_number() -> None:
    condition = Failing(in_a_row=3)
    assert seen(condition, failed_in_a_row={"a": (3, "E: x"), "b": (2, "E: x")}) == ["a"]
    assert text(condition, failed_in_a_row={"a": (3, "E: x")}) == "The last 3 tasks of a failed, the last one with E: x."


def test_an_objective_fires_while_the_whole_window_and_its_end_burn_too_fast() -> None:
    condition = Slo(start_within=5, ratio=0.95, burn=2, least=20)  # a tenth may be late
    assert seen(condition, starts={"a": (starts(89, 11), starts(8, 2))}) == ["a"]
    assert seen(condition, starts={"a": (starts(90, 10), starts(8, 2))}) == [], "at the bound"
    assert seen(condition, starts={"a": (starts(89, 11), starts(10, 0))}) == [], "it is over"
    assert seen(condition, starts={"a": (starts(89, 11), starts(0, 0))}) == [], "nothing has started lately"
    assert seen(condition, starts={"a": (starts(0, 19), starts(0, 19))}) == [], "too few to say"
    told = text(condition, starts={"a": (starts(80, 20), starts(8, 2))})
    assert told.startswith("80.0 % of 100 attempts of a within 1 h 0 min started in time (within 5.0 s); the goal is 95 %.")
    assert "spent 4.0 times as fast as it may" in told


def test_a_gate_that_closed_by_itself_fires_and_one_that_somebody_closed_does_not() -> None:
    def gate(**facts: Any) -> Gate:
        return Gate(handler="charge", action=GateAction.PAUSE, note="20 failures since 14:02, last 503", **facts)

    assert seen(Disabled(), gates=[gate()]) == []
    assert seen(Disabled(), gates=[gate(automatic=True)]) == ["charge"]
    assert seen(Disabled(), gates=[gate(automatic=True, until_at=NOW + 60 * SECOND)]) == [], "its target asked for a while"
    assert text(Disabled(), gates=[gate(automatic=True)]) == "charge has disabled itself: 20 failures since 14:02, last 503"


def test_each_collection_that_disables_itself_makes_it_worse() -> None:
    def gate(collection: str, at: int) -> Gate:
        return Gate(handler="charge", collection=collection, action=GateAction.PAUSE, note="503", automatic=True, set_at=at)

    found = [observe(Disabled(), AlertFacts(now=NOW, gates=gates)) for gates in ([gate("eu", 1)], [gate("eu", 1), gate("us", 2)])]
    assert [[(each.subject, each.level) for each in seen] for seen in found] == [[("charge", 1)], [("charge", 2)]]
    assert found[0][0].text == "charge, collection eu, has disabled itself: 503"
    assert found[1][0].text == "charge, collection us, has disabled itself (1 other collection of it too): 503"


def test_a_certificate_is_graver_with_each_number_of_days() -> None:
    def level(days: float) -> list[int]:
        ends = {"charge": NOW + round(days * DAY)}
        return [each.level for each in observe(Certificate(days=(14, 3, 0)), AlertFacts(now=NOW, certificates=ends))]

    assert [level(days) for days in (14.01, 14, 3.01, 3, 0.01, 0, -5)] == [[], [1], [1], [2], [2], [3], [3]]
    assert "ends in 2 d" in text(Certificate(), certificates={"charge": NOW + 2 * DAY})
    assert "ended at" in text(Certificate(), certificates={"charge": NOW - 2 * DAY})


def test_the_others_say_what_is_wrong_in_a_sentence() -> None:
    assert text(Backlog(due=5), due={"a": 6, "b": 5}) == "a has 6 due tasks; 5 are allowed."
    longest = {"a": LongestRun("01", 3_700.0, 3)}
    assert text(Running(longer_than=60), running=longest) == "Task 01 of a has run for 1 h 1 min, and 2 more tasks; 1 min 0 s are allowed."
    missed = {"nightly": MissedRuns(1, NOW), "hourly": MissedRuns(5, NOW)}
    assert text(Missed(schedule="nightly"), missed=missed).startswith("An occurrence of the schedule nightly was missed; the last one")
    assert text(Missed(schedule="hourly"), missed=missed).startswith("5 occurrences of the schedule hourly were missed;")
    overdue = {"nightly": Overdue(by=NOW, planned_at=NOW, state="failed")}
    told = text(Deadline(schedule="nightly", by="07:00", tz="Europe/Berlin"), overdue=overdue)
    assert told.startswith("No run of the schedule nightly has succeeded by 07:00 (Europe/Berlin)")
    assert told.endswith("and its last run is failed.")
    assert (seen(WorkerLost()), seen(WorkerLost(), workers_lost=1)) == ([], ["workers"])
    assert text(WorkerLost(), workers_lost=2).startswith("2 workers were lost within 15 min 0 s")
