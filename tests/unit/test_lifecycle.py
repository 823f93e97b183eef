"""What becomes of a task whose attempt has ended."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duetime.clock import DAY, SECOND
from duetime.model.failures import fingerprint
from duetime.model.lifecycle import MOVES, QUARANTINE_CRASHES, RETRY_LATER_BOUND, as_cancelled, conclude
from duetime.model.outcome import Ended, Outcome, Running, Settlement
from duetime.model.retry import REPEATS_AS_ASKED, RetryPolicy
from duetime.model.task import FINAL, LIVE, ErrorInfo, State

NOW = 1_800_000_000 * SECOND
UNTOLD = ErrorInfo("ValueError", "no such order")
ERROR = msgspec.structs.replace(UNTOLD, fingerprint=fingerprint("shop", UNTOLD, None))
PLAIN = RetryPolicy(tries=3, base=10, factor=2, jitter=0)


def running(**facts: Any) -> Running:
    defaults: dict[str, Any] = {"id": "t", "handler": "shop", "attempt": 1, "tries": 0, "crashes": 0, "since_at": NOW, "expires_at": None}
    return Running(**(defaults | facts))


def settled(outcome: Outcome, policy: RetryPolicy = PLAIN, *, chance: float = 0.0, of: Running | None = None, **facts: Any) -> Settlement:
    return conclude(of or running(), Ended(outcome, **facts), policy, started_at=NOW - 5, now=NOW, chance=chance)


def test_every_state_has_its_moves() -> None:
    assert set(MOVES) == set(State)
    assert set(State) == FINAL | LIVE
    assert not FINAL & LIVE


def test_only_an_operator_takes_a_task_out_of_a_final_state() -> None:
    for state in FINAL:
        assert MOVES[state] <= {State.PENDING}
    assert MOVES[State.SUCCEEDED] == frozenset()


def test_a_task_runs_only_from_pending_and_only_a_running_one_becomes_blocked() -> None:
    assert [state for state in State if State.RUNNING in MOVES[state]] == [State.PENDING]
    assert [state for state in State if State.BLOCKED in MOVES[state]] == [State.RUNNING]
    assert all(state not in moves for state, moves in MOVES.items())


@pytest.mark.parametrize("outcome", Outcome)
def test_every_outcome_leads_where_the_table_allows(outcome: Outcome) -> None:
    settlement = settled(outcome, error=ERROR)
    assert settlement.state in MOVES[State.RUNNING]
    assert (settlement.id, settlement.attempt, settlement.outcome) == ("t", 1, outcome)
    assert (settlement.started_at, settlement.finished_at) == (NOW - 5, NOW)
    assert (settlement.due_at is not None) == (settlement.state is State.PENDING)


def test_success_keeps_the_result() -> None:
    settlement = settled(Outcome.SUCCEEDED, result=b"42")
    assert (settlement.state, settlement.result, settlement.tries, settlement.error) == (State.SUCCEEDED, b"42", 0, None)


def test_fatal_fails_whatever_the_policy() -> None:
    settlement = settled(Outcome.FATAL, RetryPolicy(tries=100), error=ERROR)
    assert (settlement.state, settlement.error, settlement.tries) == (State.FAILED, ERROR, 0)


def test_cancelled_ends_cancelled() -> None:
    assert settled(Outcome.CANCELLED).state is State.CANCELLED


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.TIMED_OUT])
def test_a_failure_uses_up_a_try_and_waits_for_the_next(outcome: Outcome) -> None:
    settlement = settled(outcome, of=running(tries=1), error=ERROR)
    assert (settlement.state, settlement.tries, settlement.due_at, settlement.error) == (State.PENDING, 2, NOW + 20 * SECOND, ERROR)


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.TIMED_OUT])
def test_the_last_try_fails_the_task(outcome: Outcome) -> None:
    settlement = settled(outcome, of=running(tries=2), error=ERROR)
    assert (settlement.state, settlement.tries, settlement.due_at, settlement.error) == (State.FAILED, 3, None, ERROR)


def test_an_error_that_is_not_retriable_fails_the_task_at_once() -> None:
    settlement = settled(Outcome.FAILED, error=ERROR, retriable=False)
    assert (settlement.state, settlement.tries) == (State.FAILED, 1)


@pytest.mark.parametrize("outcome", [Outcome.RETRY_LATER, Outcome.RELEASED, Outcome.LOST])
def test_other_ways_back_use_up_no_try(outcome: Outcome) -> None:
    settlement = settled(outcome, RetryPolicy.none(), of=running(tries=0), delay=1)
    assert (settlement.state, settlement.tries) == (State.PENDING, 0)


def test_released_and_lost_tasks_are_due_at_once() -> None:
    assert settled(Outcome.RELEASED).due_at == NOW
    assert settled(Outcome.LOST, crashed=True).due_at == NOW


def test_chance_shortens_the_delay() -> None:
    policy = RetryPolicy(base=10, jitter=0.5)
    assert settled(Outcome.FAILED, policy, chance=1.0).due_at == NOW + 5 * SECOND


def test_a_retry_after_the_expiry_fails_the_task() -> None:
    due_at = NOW + 10 * SECOND
    assert settled(Outcome.FAILED, of=running(expires_at=due_at + 1)).state is State.PENDING
    assert settled(Outcome.FAILED, of=running(expires_at=due_at), error=ERROR).state is State.FAILED


def test_a_retry_beyond_the_policys_time_fails_the_task() -> None:
    policy = RetryPolicy(tries=9, base=10, jitter=0, within=60)
    assert settled(Outcome.FAILED, policy, of=running(since_at=NOW - 50 * SECOND)).state is State.PENDING
    assert settled(Outcome.FAILED, policy, of=running(since_at=NOW - 50 * SECOND - 1)).state is State.FAILED


def test_retry_later_waits_as_long_as_it_asks() -> None:
    settlement = settled(Outcome.RETRY_LATER, delay=90.5, error=ERROR)
    assert (settlement.state, settlement.due_at, settlement.tries) == (State.PENDING, NOW + round(90.5 * SECOND), 0)


def test_retry_later_without_an_expiry_ends_seven_days_after_the_due_time() -> None:
    assert RETRY_LATER_BOUND == 7 * DAY
    day = DAY / SECOND
    since = running(since_at=NOW - 6 * DAY)
    assert settled(Outcome.RETRY_LATER, of=since, delay=day).state is State.PENDING
    late = settled(Outcome.RETRY_LATER, of=since, delay=day + 0.001)
    assert (late.state, late.due_at) == (State.FAILED, None)
    assert late.error is not None
    assert late.error.type == "RetryLater"
    assert "seven days" in late.error.message


def test_an_expiry_replaces_the_seven_days() -> None:
    month = running(expires_at=NOW + 30 * DAY)
    assert settled(Outcome.RETRY_LATER, of=month, delay=20 * DAY / SECOND).state is State.PENDING
    assert settled(Outcome.RETRY_LATER, of=month, delay=31 * DAY / SECOND).state is State.FAILED
    soon = running(expires_at=NOW + SECOND)
    assert settled(Outcome.RETRY_LATER, of=soon, delay=0.999).state is State.PENDING
    assert settled(Outcome.RETRY_LATER, of=soon, delay=1).state is State.FAILED


def test_the_policys_time_bounds_retry_later_too() -> None:
    policy = RetryPolicy(within=3600)
    assert settled(Outcome.RETRY_LATER, policy, delay=3600).state is State.PENDING
    assert settled(Outcome.RETRY_LATER, policy, delay=3601).state is State.FAILED


@pytest.mark.parametrize("outcome", [Outcome.RETRY_LATER, Outcome.RELEASED, Outcome.LOST])
def test_many_attempts_without_a_try_come_ever_later(outcome: Outcome) -> None:
    assert settled(outcome, of=running(attempt=REPEATS_AS_ASKED)).due_at == NOW
    assert settled(outcome, of=running(attempt=REPEATS_AS_ASKED + 5)).due_at == NOW + SECOND // 2
    assert settled(outcome, of=running(attempt=REPEATS_AS_ASKED + 5, tries=5)).due_at == NOW, "a policy counts these"
    assert settled(outcome, of=running(attempt=1_000_000)).due_at == NOW + 60 * SECOND


def test_the_pause_never_shortens_a_delay_nor_moves_a_task_beyond_its_end() -> None:
    often = running(attempt=100, expires_at=NOW + 3 * SECOND)
    assert settled(Outcome.RETRY_LATER, of=running(attempt=100), delay=90).due_at == NOW + 90 * SECOND
    for outcome in (Outcome.RETRY_LATER, Outcome.RELEASED, Outcome.LOST):
        assert settled(outcome, of=often).due_at == NOW + 3 * SECOND - 1
    policy = RetryPolicy(within=5)
    assert settled(Outcome.RETRY_LATER, policy, of=running(attempt=100)).due_at == NOW + 5 * SECOND
    assert settled(Outcome.RETRY_LATER, policy, of=running(attempt=100, since_at=NOW - 6 * SECOND)).state is State.FAILED


def test_a_task_that_kills_its_process_alone_is_quarantined_at_the_limit() -> None:
    for crashes in range(QUARANTINE_CRASHES - 1):
        settlement = settled(Outcome.LOST, of=running(crashes=crashes), crashed=True, alone=True)
        assert (settlement.state, settlement.crashes) == (State.PENDING, crashes + 1)
    settlement = settled(Outcome.LOST, of=running(crashes=QUARANTINE_CRASHES - 1), crashed=True, alone=True)
    assert (settlement.state, settlement.crashes, settlement.tries) == (State.FAILED, QUARANTINE_CRASHES, 0)
    assert settlement.error is not None
    assert settlement.error.type == "Quarantined"
    assert f"{QUARANTINE_CRASHES} times" in settlement.error.message


@pytest.mark.parametrize("crashes", [0, 2, 50])
def test_a_task_that_was_not_alone_is_never_quarantined(crashes: int) -> None:
    settlement = settled(Outcome.LOST, of=running(crashes=crashes), crashed=True, alone=False)
    assert (settlement.state, settlement.crashes) == (State.PENDING, crashes + 1)


def test_a_loss_without_a_crash_counts_no_crash() -> None:
    settlement = settled(Outcome.LOST, of=running(crashes=9), crashed=False, alone=True)
    assert (settlement.state, settlement.crashes) == (State.PENDING, 9)


@given(
    outcome=st.sampled_from(Outcome),
    tries=st.integers(0, 20),
    crashes=st.integers(0, 20),
    delay=st.floats(0, 1e7),
    retriable=st.booleans(),
    crashed=st.booleans(),
    alone=st.booleans(),
    age=st.integers(0, 30 * DAY),
    lifetime=st.none() | st.integers(0, 30 * DAY),
    chance=st.floats(0, 1),
    allowed=st.integers(1, 10),
)
def test_a_conclusion_is_always_a_legal_move(
    outcome: Outcome,
    tries: int,
    crashes: int,
    delay: float,
    retriable: bool,
    crashed: bool,
    alone: bool,
    age: int,
    lifetime: int | None,
    chance: float,
    allowed: int,
) -> None:
    expires_at = None if lifetime is None else NOW - age + lifetime
    before = running(tries=tries, crashes=crashes, since_at=NOW - age, expires_at=expires_at)
    ended = Ended(outcome, delay=delay, retriable=retriable, crashed=crashed, alone=alone)
    settlement = conclude(before, ended, RetryPolicy(tries=allowed), started_at=None, now=NOW, chance=chance)
    assert settlement.state in MOVES[State.RUNNING]
    assert (settlement.due_at is None) == (settlement.state is not State.PENDING)
    assert settlement.tries - tries == (outcome in (Outcome.FAILED, Outcome.TIMED_OUT))
    assert settlement.crashes - crashes == (outcome is Outcome.LOST and crashed)
    if settlement.due_at is not None:
        assert settlement.due_at >= NOW
        if outcome in (Outcome.FAILED, Outcome.TIMED_OUT, Outcome.RETRY_LATER) and expires_at is not None:
            assert settlement.due_at < expires_at
    if outcome in (Outcome.FAILED, Outcome.TIMED_OUT) and settlement.tries >= allowed:
        assert settlement.state is State.FAILED


@pytest.mark.parametrize("outcome", Outcome)
def test_with_a_cancel_what_is_not_final_becomes_cancelled_and_final_states_stay(outcome: Outcome) -> None:
    settlement = settled(outcome, error=ERROR, result=b"1", delay=5)
    cancelled = as_cancelled(settlement)
    if settlement.state in FINAL:
        assert cancelled is settlement
        return
    same = msgspec.structs.replace(settlement, state=State.CANCELLED, due_at=None, result=None)
    assert cancelled == same
