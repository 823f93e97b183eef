"""The verdict on a store: each finding at its bounds, worst first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from duetime.clock import SECOND
from duetime.model.gate import Gate, GateAction
from duetime.model.health import (
    FAILURES,
    LATE,
    OPENS_SOON,
    STUCK,
    FindingKind,
    FiringAlert,
    HandlerFacts,
    HealthFacts,
    ScheduleFacts,
    WorkerFacts,
    verdict,
)

NOW = 1_800_000_000 * SECOND


def kinds(**facts: Any) -> list[FindingKind]:
    return [each.kind for each in verdict(HealthFacts(now=NOW, **facts)).findings]


def handler(**facts: Any) -> list[HandlerFacts]:
    return [HandlerFacts(name="charge", **({"workers": 1} | facts))]


def gate(action: GateAction = GateAction.PAUSE, *, left: float | None = None, collection: str | None = None, note: str = "") -> list[Gate]:
    until_at = None if left is None else NOW + round(left * SECOND)
    return [Gate(handler="charge", collection=collection, action=action, until_at=until_at, note=note)]


def only_text(**facts: Any) -> str:
    [found] = verdict(HealthFacts(now=NOW, **facts)).findings
    return found.text


def test_with_nothing_to_say_all_is_well() -> None:
    found = verdict(HealthFacts(now=NOW, handlers=handler(due=5, oldest_due=LATE, attempts=1_000, failed=FAILURES - 1)))
    assert (found.well, found.text, found.findings) == (True, "All is well.", [])


def test_a_store_that_does_not_answer_is_all_there_is_to_say() -> None:
    found = verdict(HealthFacts(now=NOW, away="connection refused", handlers=handler(due=1, workers=0)))
    assert [each.kind for each in found.findings] == [FindingKind.STORE_AWAY]
    assert (found.well, found.text) == (False, "The store does not answer: connection refused")


def test_due_tasks_need_a_live_worker() -> None:
    assert kinds(handlers=handler(due=1, workers=0)) == [FindingKind.NO_WORKER]
    assert kinds(handlers=handler(due=1, workers=1)) == []
    assert kinds(handlers=handler(due=0, workers=0)) == []
    assert kinds(handlers=handler(due=1, workers=0), gates=gate()) == [], "they wait on purpose"
    assert kinds(handlers=handler(due=1, workers=0), gates=gate(collection="eu")) == [FindingKind.NO_WORKER]
    assert kinds(handlers=handler(due=1, workers=0), gates=gate(left=0)) == [FindingKind.NO_WORKER], "that gate has opened"
    text = only_text(handlers=handler(due=12, workers=0, oldest_due=240.0))
    assert text == "charge has 12 due tasks and no live worker; the oldest has waited for 4 min 0 s."


def test_the_oldest_due_task_may_wait_for_a_minute() -> None:
    assert kinds(handlers=handler(due=1, oldest_due=LATE)) == []
    assert kinds(handlers=handler(due=1, oldest_due=LATE + 0.001)) == [FindingKind.LATE]
    assert kinds(handlers=handler(due=1, oldest_due=LATE + 1), gates=gate()) == []
    assert kinds(handlers=handler(due=1, oldest_due=LATE + 1), gates=gate(collection="eu")) == [], "the oldest may be behind that gate"
    assert kinds(handlers=handler(due=1, oldest_due=LATE + 1, start_within=300.0)) == [], "its own objective"
    late = only_text(handlers=handler(due=1, oldest_due=6.0, start_within=5.0))
    assert late == "The oldest of 1 due task of charge has waited for 6.0 s; it should start within 5.0 s."
    assert only_text(handlers=handler(due=1, oldest_due=61.0)) == "The oldest of 1 due task of charge has waited for 1 min 1 s."


@pytest.mark.parametrize(
    ("failed", "attempts", "found"),
    [(10, 99, True), (10, 100, False), (9, 9, False), (10, 10, True), (11, 109, True), (0, 0, False)],
)
def test_a_handler_fails_with_ten_failures_that_are_more_than_a_tenth(failed: int, attempts: int, found: bool) -> None:
    assert kinds(handlers=handler(failed=failed, attempts=attempts)) == ([FindingKind.FAILING] if found else [])


def test_failing_is_told_in_numbers() -> None:
    text = only_text(handlers=handler(failed=40, attempts=1_200 // 10))
    assert text == "charge fails: 40 of 120 attempts in the last 5 minutes (33 %)."


def test_silent_and_ended_workers_are_told() -> None:
    silent = WorkerFacts(id="w1", host="db-1", running=3, handlers=("charge",), silent_for=42.0)
    assert only_text(workers=[silent]) == "A worker on db-1 has been silent for 42.0 s; it holds 3 attempts."
    ended = WorkerFacts(id="w1", host="db-1", running=1, handlers=("charge",))
    assert only_text(workers=[ended]) == "A worker on db-1 has ended without leaving; it holds 1 attempt."


@pytest.mark.parametrize(
    ("facts", "kind", "text"),
    [
        ({"health": "late", "late_for": 3_600.0}, FindingKind.SCHEDULE_LATE, "The schedule nightly is 1 h 0 min late: nobody fires it."),
        (
            {"health": "broken", "text": "no calendar x"},
            FindingKind.SCHEDULE_BROKEN,
            "The schedule nightly cannot be planned any more: no calendar x",
        ),
        ({"health": "failing", "failures": 1}, FindingKind.SCHEDULE_FAILING, "The last run of the schedule nightly failed."),
        ({"health": "failing", "failures": 3}, FindingKind.SCHEDULE_FAILING, "The last 3 runs of the schedule nightly failed."),
        ({"health": "paused"}, FindingKind.SCHEDULE_PAUSED, "The schedule nightly was paused by itself."),
        (
            {"health": "paused", "text": "5 failed runs"},
            FindingKind.SCHEDULE_PAUSED,
            "The schedule nightly was paused by itself: 5 failed runs",
        ),
    ],
)
def test_schedules_that_are_not_well_are_told(facts: dict[str, Any], kind: FindingKind, text: str) -> None:
    schedule = ScheduleFacts(name="nightly", handler="charge", **facts)
    assert kinds(schedules=[schedule]) == [kind]
    assert only_text(schedules=[schedule]) == text


def test_a_gate_that_drops_is_told_and_one_that_pauses_is_not() -> None:
    assert kinds(gates=gate()) == []
    assert only_text(gates=gate(GateAction.DROP)) == "A gate drops the tasks of charge."
    assert only_text(gates=gate(GateAction.DROP, collection="eu")) == "A gate drops the tasks of charge, collection eu."
    assert only_text(gates=gate(GateAction.DROP, collection="eu", note="stock")) == "A gate drops the tasks of charge, collection eu: stock"


def test_a_target_that_was_disabled_is_told_until_it_works_again() -> None:
    disabled = Gate(handler="charge", action=GateAction.PAUSE, note="disabled: 20 failures", automatic=True, probe_at=NOW, probe_every=9.0)
    assert kinds(gates=[disabled], handlers=handler(due=9, oldest_due=LATE + 1)) == [FindingKind.DISABLED]
    assert only_text(gates=[disabled]) == "A gate on charge closed by itself: disabled: 20 failures"
    asked_for = Gate(handler="charge", action=GateAction.PAUSE, note="Retry-After", automatic=True, until_at=NOW + 3_600 * SECOND)
    assert kinds(gates=[asked_for]) == []


def test_a_gate_that_is_about_to_open_is_a_note_and_all_is_well() -> None:
    assert kinds(gates=gate(left=OPENS_SOON + 1)) == []
    found = verdict(HealthFacts(now=NOW, gates=gate(left=OPENS_SOON)))
    assert [each.kind for each in found.findings] == [FindingKind.OPENS_SOON]
    assert (found.well, found.text, found.findings[0].level) == (True, "All is well.", "note")
    assert found.findings[0].text == "In 10 min 0 s the gate on charge opens by itself."
    assert kinds(gates=gate(left=0)) == [], "it is open"


@pytest.mark.parametrize(
    ("fact", "kind"),
    [
        ("lease_losses", FindingKind.LEASE_LOST),
        ("stale_writes", FindingKind.STALE_WRITES),
        ("blocked_loops", FindingKind.LOOP_BLOCKED),
    ],
)
def test_one_lost_lease_stale_write_or_blocked_loop_is_told(fact: str, kind: FindingKind) -> None:
    assert kinds(**{fact: 0}) == []
    assert kinds(**{fact: 1}) == [kind]


def test_a_duty_is_stuck_after_a_while() -> None:
    assert kinds(stuck=[("Firing schedules", STUCK)]) == []
    assert kinds(stuck=[("Firing schedules", STUCK + 1)]) == [FindingKind.MAINTENANCE_STUCK]


def everything() -> HealthFacts:
    healths: tuple[Any, ...] = ("late", "broken", "failing", "paused")
    return HealthFacts(
        now=NOW,
        handlers=[
            HandlerFacts(name="a", due=1),
            HandlerFacts(name="b", due=1, oldest_due=99.0, workers=1),
            HandlerFacts(name="c", failed=99, attempts=99),
        ],
        workers=[WorkerFacts(id="w", host="h", running=0, handlers=("a", "b"))],
        schedules=[ScheduleFacts(name=health, handler="c", health=health) for health in healths],
        gates=[
            Gate(handler="d", action=GateAction.DROP, until_at=NOW + SECOND),
            Gate(handler="e", action=GateAction.PAUSE, automatic=True),
        ],
        lease_losses=1,
        alerts=[FiringAlert(rule="late", subject="a", text="a is late.")],
        stale_writes=1,
        blocked_loops=1,
        stuck=[("pruner", 100.0)],
    )


def test_the_worst_comes_first_and_the_line_names_it() -> None:
    found = verdict(everything())
    assert [each.kind for each in found.findings] == [kind for kind in FindingKind if kind is not FindingKind.STORE_AWAY]
    assert found.text.startswith("a has 1 due task and no live worker;")
    assert found.text.endswith(" And 14 more findings.")
    levels = [each.level for each in found.findings]
    assert levels == sorted(levels, key=["problem", "warning", "note"].index)


def test_somebody_who_may_see_some_handlers_is_told_of_those_and_of_what_concerns_all() -> None:
    part = verdict(everything()).part(lambda name: name == "b")
    assert {each.kind for each in part.findings} == {
        FindingKind.LATE,
        FindingKind.SILENT_WORKER,
        FindingKind.MAINTENANCE_STUCK,
        FindingKind.LEASE_LOST,
        FindingKind.STALE_WRITES,
        FindingKind.LOOP_BLOCKED,
    }
    assert part.text.startswith("pruner")


def test_the_manual_lists_all_findings_with_their_levels() -> None:
    page = (Path(__file__).parents[2] / "docs" / "operating.md").read_text(encoding="utf-8")
    table = page.partition("| what is found | level | means |\n")[2].partition("\n\n")[0].splitlines()[1:]
    documented = {kind: row.split(" | ")[1] for row in table for kind in row.split(" | ")[0].removeprefix("| ").split(", ")}
    found = {each.kind.value: each.level for each in verdict(everything()).findings}
    assert documented == found | {"store away": "problem"}


def test_what_rules_fire_for_is_told_by_subject_and_summed_up_when_it_is_much() -> None:
    def fire(*subjects: str, **facts: Any) -> list[FiringAlert]:
        return [FiringAlert(rule="late", subject=each, text=f"{each} is late.", **facts) for each in subjects]

    found = verdict(HealthFacts(now=NOW, alerts=fire("a", "b")))
    assert [(each.kind, each.level, each.name, each.text, each.handlers) for each in found.findings] == [
        (FindingKind.ALERT, "problem", "late", "a is late.", ("a",)),
        (FindingKind.ALERT, "problem", "late", "b is late.", ("b",)),
    ]
    assert [each.text for each in found.part(lambda handler: handler == "b").findings] == ["b is late."]
    [acknowledged] = verdict(HealthFacts(now=NOW, alerts=fire("a", acknowledged=True))).findings
    assert acknowledged.level == "warning"
    gates = [Gate(handler="e", action=GateAction.PAUSE, automatic=True)]
    both = verdict(HealthFacts(now=NOW, alerts=fire("a", acknowledged=True), gates=gates)).findings
    late = fire("charge", condition="late")
    assert [each.kind for each in verdict(HealthFacts(now=NOW, alerts=late, handlers=handler(due=1, oldest_due=61.0))).findings] == [
        "alert"
    ]
    assert len(verdict(HealthFacts(now=NOW, alerts=late, handlers=handler(attempts=99, failed=99))).findings) == 2, "that is something else"
    assert [each.kind for each in both] == [FindingKind.DISABLED, FindingKind.ALERT], "what nobody has seen yet comes first"
    [many] = verdict(HealthFacts(now=NOW, alerts=fire("a", "b", "c", "d"))).findings
    assert many.text == "The alert 'late' fires for 4: a, b, c and others."
    assert many.handlers == ("a", "b", "c", "d")
