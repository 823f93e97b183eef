"""Why a task is where it is: every kind of reason, and which hold together."""

from typing import Any

import pytest

from duetime.clock import SECOND
from duetime.ids import new_id
from duetime.model.gate import Gate, GateAction
from duetime.model.outcome import Outcome
from duetime.model.task import ErrorInfo, State, TaskRecord
from duetime.model.why import ReasonKind, WhyFacts, why

NOW = 1_800_000_000 * SECOND
BUSY: dict[str, Any] = {"live_workers": 2, "workers_of_handler": 2, "slots": 4, "running": 1}


def record(state: State = State.PENDING, **facts: Any) -> TaskRecord:
    return TaskRecord(
        **{"id": new_id(), "handler": "h", "state": state, "payload": b"{}", "due_at": NOW - SECOND, "submitted_at": NOW, **facts}
    )


def reasons(task: TaskRecord, **facts: Any) -> dict[ReasonKind, str]:
    return {reason.kind: reason.text for reason in why(task, WhyFacts(now=NOW, **facts))}


def test_a_due_time_in_the_future_is_a_reason() -> None:
    found = why(record(due_at=NOW + 90 * SECOND), WhyFacts(now=NOW, **BUSY))
    assert [reason.kind for reason in found] == [ReasonKind.LATER]
    assert found[0].text == "it is due in 1 min 30 s, at 2027-01-15 08:01:30 UTC"
    assert found[0].until_at is not None


def test_a_retry_tells_which_try_failed_and_how() -> None:
    task = record(due_at=NOW + 5 * SECOND, tries=2, attempt=3)
    found = reasons(task, **BUSY, tries_allowed=8, last_outcome=Outcome.FAILED, last_error=ErrorInfo("ValueError", "no"))
    assert found == {ReasonKind.RETRY: "try 2 of 8 failed (ValueError: no); the next is in 5.0 s, at 08:00:05 UTC"}


def test_a_handler_that_asked_for_later_is_named() -> None:
    task = record(due_at=NOW + 5 * SECOND, attempt=1)
    found = reasons(task, **BUSY, last_outcome=Outcome.RETRY_LATER, last_error=ErrorInfo("RetryLater", "stock closed"))
    assert found[ReasonKind.RETRY].startswith("its handler asked to run later: again in 5.0 s")


@pytest.mark.parametrize(
    ("gate", "text"),
    [
        (Gate(handler="h", action=GateAction.PAUSE, set_by="anna", note="down"), "a gate pauses h until it is opened; set by anna: down"),
        (
            Gate(handler="h", collection="eu", action=GateAction.DROP, until_at=NOW + 60 * SECOND, set_by="anna"),
            "a gate drops h, collection eu until 2027-01-15 08:01:00 UTC; set by anna",
        ),
    ],
)
def test_a_gate_tells_who_set_it_and_until_when(gate: Gate, text: str) -> None:
    assert reasons(record(), **BUSY, gate=gate) == {ReasonKind.GATE: text}


def test_no_worker_for_the_handler_is_told_apart_from_no_worker_at_all() -> None:
    assert "there is no worker at all" in reasons(record())[ReasonKind.NO_WORKER]
    assert "there is 1 worker of other handlers" in reasons(record(), live_workers=1)[ReasonKind.NO_WORKER]


def test_full_slots_are_counted() -> None:
    found = reasons(record(), live_workers=2, workers_of_handler=2, slots=4, running=4, due_before=7)
    assert found == {ReasonKind.SLOTS_FULL: "all slots of h are taken: 4 run in 4 slots, and 7 due tasks of it wait"}
    found = reasons(record(), live_workers=2, workers_of_handler=2, slots=4, running=4, due_before=1_000, more_due=True)
    assert found == {ReasonKind.SLOTS_FULL: "all slots of h are taken: 4 run in 4 slots, and 1,000+ due tasks of it wait"}


def test_everything_that_holds_a_task_is_told() -> None:
    gate = Gate(handler="h", action=GateAction.PAUSE)
    assert list(reasons(record(due_at=NOW + 1), gate=gate)) == [ReasonKind.LATER, ReasonKind.GATE, ReasonKind.NO_WORKER]
    assert list(reasons(record(State.BLOCKED), gate=gate)) == [ReasonKind.BLOCKED, ReasonKind.GATE, ReasonKind.NO_WORKER]


def test_a_task_that_nothing_holds_is_ready() -> None:
    assert reasons(record(), **BUSY) == {ReasonKind.READY: "nothing holds it: it has been due for 1.0 s and 3 slots of h are free"}


def test_a_running_task_tells_where_and_how_far() -> None:
    task = record(
        State.RUNNING, attempt=2, worker="w1", started_at=NOW - 3 * SECOND, progress=0.5, progress_text="halfway", cancelling=True
    )
    text = (
        "attempt 2 has been running for 3.0 s on worker w1, 50% done (halfway); a cancel has been asked for and it ends when its code does"
    )
    assert reasons(task) == {ReasonKind.RUNNING: text}


@pytest.mark.parametrize(
    ("state", "facts", "text"),
    [
        (State.SUCCEEDED, {"attempt": 2}, "it succeeded 2.0 s ago, in attempt 2"),
        (
            State.FAILED,
            {"tries": 5, "error": ErrorInfo("ValueError", "no")},
            "it failed 2.0 s ago after 5 of 5 tries (ValueError: no); to run it again: retry",
        ),
        (State.FAILED, {"error": ErrorInfo("Quarantined", "died 3 times")}, "it was quarantined 2.0 s ago: died 3 times"),
        (State.CANCELLED, {}, "it was cancelled 2.0 s ago"),
        (State.DROPPED, {}, "it came due 2.0 s ago under a gate that drops h"),
        (State.EXPIRED, {}, "it expired 2.0 s ago: it could not start before its expiry"),
    ],
)
def test_a_final_task_tells_how_it_ended(state: State, facts: dict[str, Any], text: str) -> None:
    assert reasons(record(state, finished_at=NOW - 2 * SECOND, **facts), tries_allowed=5) == {ReasonKind.FINISHED: text}


@pytest.mark.parametrize("state", list(State))
def test_every_state_has_a_reason(state: State) -> None:
    assert why(record(state), WhyFacts(now=NOW))
