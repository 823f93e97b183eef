"""Why a task is where it is: every kind of reason, and which hold together."""

from typing import Any

import pytest

from duetime.clock import SECOND
from duetime.ids import new_id
from duetime.model.gate import Gate, GateAction
from duetime.model.outcome import Outcome
from duetime.model.task import ErrorInfo, State, TaskRecord
from duetime.model.why import ReasonKind, WhyFacts, WorkerLoad, why

NOW = 1_800_000_000 * SECOND
BUSY: dict[str, Any] = {"live_workers": 2, "workers": [WorkerLoad(slots=2, running=1), WorkerLoad(slots=2, running=0)]}
FULL: dict[str, Any] = {"live_workers": 2, "workers": [WorkerLoad(slots=2, running=2)] * 2}


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


@pytest.mark.parametrize("outcome", [Outcome.RETRY_LATER, Outcome.RELEASED, Outcome.LOST])
def test_a_task_that_ran_often_without_a_try_is_told_why_it_waits(outcome: Outcome) -> None:
    task = record(due_at=NOW + 5 * SECOND, attempt=1_062, tries=2)
    text = reasons(task, **BUSY, last_outcome=outcome)[ReasonKind.RETRY]
    assert text.endswith("; after 1,060 attempts that used up no try the next waits at least 60 s")


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
    assert reasons(record(), **BUSY, gates=[gate]) == {ReasonKind.GATE: text}


def test_no_worker_for_the_handler_is_told_apart_from_no_worker_at_all() -> None:
    assert "there is no worker at all" in reasons(record())[ReasonKind.NO_WORKER]
    assert "there is 1 worker of other handlers" in reasons(record(), live_workers=1)[ReasonKind.NO_WORKER]


def test_full_slots_are_counted() -> None:
    found = reasons(record(), **FULL, due_before=7)
    assert found == {ReasonKind.SLOTS_FULL: "all slots of h are taken: 4 run in 4 slots, and 7 due tasks of it wait"}
    found = reasons(record(), **FULL, due_before=1_000, more_due=True)
    assert found == {ReasonKind.SLOTS_FULL: "all slots of h are taken: 4 run in 4 slots, and 1,000+ due tasks of it wait"}


def test_a_worker_whose_slots_over_all_handlers_are_taken_names_the_handlers_that_take_most() -> None:
    running = {"a": 1, "b": 4, "c": 2, "d": 3}
    found = reasons(record(), live_workers=1, workers=[WorkerLoad(slots=2, running=0, concurrency=10, by_handler=running)], due_before=1)
    taken = "10 run in 10 slots (4 of b, 3 of d, 2 of c, …), and 1 due task of it waits"
    advice = "More of them: duetime worker --concurrency, or another worker"
    assert found == {ReasonKind.WORKER_FULL: f"all slots over all handlers are taken: {taken}. {advice}"}


def test_a_handler_and_a_worker_can_be_full_in_different_workers() -> None:
    workers = [WorkerLoad(slots=1, running=1), WorkerLoad(slots=1, running=0, concurrency=2, by_handler={"g": 2})]
    found = reasons(record(), live_workers=2, workers=workers)
    assert list(found) == [ReasonKind.SLOTS_FULL, ReasonKind.WORKER_FULL]
    assert found[ReasonKind.SLOTS_FULL] == "all slots of h in 1 of 2 workers are taken: 1 run in 1 slot"
    assert found[ReasonKind.WORKER_FULL].startswith("all slots over all handlers in 1 of 2 workers are taken: 2 run in 2 slots (2 of g).")


def test_one_worker_with_a_free_slot_is_enough() -> None:
    workers = [WorkerLoad(slots=1, running=1), WorkerLoad(slots=5, running=0, concurrency=2, by_handler={"g": 1})]
    found = reasons(record(), live_workers=2, workers=workers)
    assert found == {ReasonKind.READY: "nothing holds it: it has been due for 1.0 s and 1 slot of h is free"}


def test_a_task_that_expires_says_when() -> None:
    found = reasons(record(expires_at=NOW + 60 * SECOND), **FULL)
    assert found[ReasonKind.SLOTS_FULL].endswith("; if it does not start before, it expires in 1 min 0 s, at 2027-01-15 08:01:00 UTC")


def test_everything_that_holds_a_task_is_told() -> None:
    gate = Gate(handler="h", action=GateAction.PAUSE)
    assert list(reasons(record(due_at=NOW + 1), gates=[gate])) == [ReasonKind.LATER, ReasonKind.GATE, ReasonKind.NO_WORKER]
    assert list(reasons(record(State.BLOCKED), gates=[gate])) == [ReasonKind.BLOCKED, ReasonKind.GATE, ReasonKind.NO_WORKER]


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
