"""What a worker logs about failures, and how a flood of them is kept small."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from duetime.clock import SECOND
from duetime.model.outcome import Outcome, Settlement
from duetime.model.task import ErrorInfo, State
from duetime.worker.failures import IN_FULL, MOST_KINDS, SUMMARY_EVERY, WINDOW, FailureLog

NOW = 1_800_000_000 * SECOND
REFUSED = ErrorInfo("ValueError", "card refused", "Traceback …\nValueError: card refused\n", "shop/tasks.py:42 in charge")


def settlement(
    outcome: Outcome = Outcome.FAILED, state: State = State.PENDING, error: ErrorInfo | None = REFUSED, *, attempt: int = 1
) -> Settlement:
    due_at = NOW + 2 * SECOND if state is State.PENDING else None
    return Settlement("some-task", attempt, outcome, state, 1, 0, NOW, NOW, due_at, error=error)


class Later:
    """A clock, and what is to be called later."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.calls: list[tuple[float, Callable[[], None]]] = []

    def __call__(self, seconds: float, call: Callable[[], None]) -> None:
        self.calls.append((self.now + seconds, call))

    def advance(self, seconds: float) -> None:
        self.now += seconds
        due = [call for at, call in self.calls if at <= self.now]
        self.calls = [(at, call) for at, call in self.calls if at > self.now]
        for call in due:
            call()


@pytest.fixture
def later() -> Later:
    return Later()


@pytest.fixture
def log(later: Later, caplog: pytest.LogCaptureFixture) -> FailureLog:
    caplog.set_level(logging.WARNING, logger="duetime")
    return FailureLog(later, lambda: later.now)


def test_an_attempt_that_is_tried_again_is_a_warning(log: FailureLog, caplog: pytest.LogCaptureFixture) -> None:
    log.note("charge", settlement(attempt=2))
    [record] = caplog.records
    assert (record.levelname, record.name) == ("WARNING", "duetime.failures")
    assert record.getMessage() == (
        "charge failed in attempt 2 of task some-task: ValueError: card refused (shop/tasks.py:42 in charge); it runs again in 2 s"
    )
    fields = {name: value for name, value in vars(record).items() if name.startswith("duetime_")}
    assert fields == {
        "duetime_task": "some-task",
        "duetime_handler": "charge",
        "duetime_attempt": 2,
        "duetime_outcome": "failed",
        "duetime_error": "ValueError",
        "duetime_location": "shop/tasks.py:42 in charge",
        "duetime_final": False,
    }
    assert "ValueError: card refused\n" in caplog.text
    assert "Traceback …" in caplog.text


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.FATAL, Outcome.TIMED_OUT, Outcome.LOST, Outcome.RETRY_LATER])
def test_a_task_that_failed_for_good_is_an_error(outcome: Outcome, log: FailureLog, caplog: pytest.LogCaptureFixture) -> None:
    log.note("charge", settlement(outcome, State.FAILED))
    [record] = caplog.records
    assert record.levelname == "ERROR"
    assert record.getMessage().endswith("; the task has failed")


@pytest.mark.parametrize("outcome", [Outcome.RETRY_LATER, Outcome.RELEASED, Outcome.CANCELLED, Outcome.SUCCEEDED])
def test_other_ends_are_not_logged(outcome: Outcome, log: FailureLog, caplog: pytest.LogCaptureFixture) -> None:
    log.note("charge", settlement(outcome))
    log.note("charge", settlement(Outcome.LOST, error=None))
    assert caplog.records == []


def test_a_flood_of_the_same_failure_is_counted_after_the_first_ones(
    log: FailureLog, later: Later, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(1, 1_001):
        log.note("charge", settlement(attempt=number))
    assert len(caplog.records) == IN_FULL
    assert len(later.calls) == 1
    later.advance(SUMMARY_EVERY)
    summary = caplog.records[-1]
    assert summary.getMessage() == (
        f"charge failed {1_000 - IN_FULL:,} more times like this: ValueError (shop/tasks.py:42 in charge); "
        "the last was attempt 1000 of task some-task"
    )
    assert (summary.levelname, vars(summary)["duetime_count"], summary.exc_text) == ("WARNING", 1_000 - IN_FULL, None)
    later.advance(SUMMARY_EVERY)
    assert len(caplog.records) == IN_FULL + 1  # nothing new, so nothing is said


def test_different_failures_do_not_hide_each_other(log: FailureLog, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(100):
        log.note("charge", settlement())
    elsewhere = ErrorInfo("ValueError", "card refused", "", "shop/tasks.py:99 in refund")
    log.note("charge", settlement(error=elsewhere))
    log.note("refund", settlement())
    log.note("charge", settlement(state=State.FAILED))
    assert len(caplog.records) == IN_FULL + 3


def test_after_a_minute_a_failure_is_logged_in_full_again(log: FailureLog, later: Later, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(IN_FULL + 1):
        log.note("charge", settlement())
    later.advance(WINDOW)
    log.note("charge", settlement())
    assert "1 more time like this" in caplog.messages[IN_FULL]
    assert "; it runs again" in caplog.messages[IN_FULL + 1]


def test_the_number_of_kinds_is_bounded(log: FailureLog, later: Later, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(3 * MOST_KINDS):
        log.note("charge", settlement(error=ErrorInfo(f"Error{number}", "")))
    assert len(caplog.records) == MOST_KINDS + IN_FULL
    later.advance(SUMMARY_EVERY)
    assert f"charge failed {2 * MOST_KINDS - IN_FULL:,} more times like this: different errors" in caplog.messages[-1]
    later.advance(WINDOW)
    log.note("charge", settlement(error=ErrorInfo("Another", "")))
    assert "Another" in caplog.messages[-1]  # those of the last minute are forgotten


def test_what_nobody_wants_to_see_costs_nothing(log: FailureLog, later: Later, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="duetime")
    for _ in range(100):
        log.note("charge", settlement())
    assert (caplog.records, later.calls) == ([], [])


def test_a_message_cannot_forge_log_lines(log: FailureLog, caplog: pytest.LogCaptureFixture) -> None:
    forged = "no\n2026-01-01T00:00:00Z CRITICAL root: all is lost\x1b[2J" + "x" * 10_000
    log.note("charge", settlement(error=ErrorInfo("ValueError", forged)))
    [message] = caplog.messages
    assert message.isprintable()
    assert len(message) < 600
