"""The life cycle of a task: one table of legal moves, and the rules that choose among them.

   ┌─────────────────────────┐  a step waits
   ▼                         │
blocked ──▶ pending ──▶ running ──▶ succeeded │ failed │ cancelled
   │           │  ▲         │
   │           │  └─────────┘  retry, retry later, lost worker, shutdown, parked, a step sleeps
   └─────┬─────┘
         ▼
cancelled │ dropped │ expired         any final state but succeeded ──▶ pending by an operator's retry
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from duetime.clock import DAY, SECOND, Instant, to_micros
from duetime.model.failures import fingerprint, is_failing
from duetime.model.flow import TAKES
from duetime.model.outcome import Ended, Outcome, Settlement
from duetime.model.retry import RetryPolicy, repeat_pause
from duetime.model.task import FINAL, ErrorInfo, State

MOVES: Mapping[State, frozenset[State]] = {
    State.BLOCKED: frozenset({State.PENDING, State.CANCELLED, State.EXPIRED}),
    State.PENDING: frozenset({State.RUNNING, State.CANCELLED, State.DROPPED, State.EXPIRED}),
    State.RUNNING: frozenset({State.PENDING, State.BLOCKED, State.SUCCEEDED, State.FAILED, State.CANCELLED}),
    State.SUCCEEDED: frozenset(),
    State.FAILED: frozenset({State.PENDING}),
    State.CANCELLED: frozenset({State.PENDING}),
    State.DROPPED: frozenset({State.PENDING}),
    State.EXPIRED: frozenset({State.PENDING}),
}

RETRY_LATER_BOUND = 7 * DAY
QUARANTINE_CRASHES = 3

_SUCCESS, _SUCCEEDED = Outcome.SUCCEEDED, State.SUCCEEDED  # looking up a member takes 0.1 µs, twice for each task


class AttemptFacts(Protocol):
    """What the end of an attempt depends on. `since_at` is the task's original due time, from which time limits count."""

    @property
    def id(self) -> str: ...
    @property
    def handler(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def tries(self) -> int: ...
    @property
    def crashes(self) -> int: ...
    @property
    def since_at(self) -> Instant: ...
    @property
    def expires_at(self) -> Instant | None: ...


def conclude(
    running: AttemptFacts,
    ended: Ended,
    policy: RetryPolicy,
    *,
    started_at: Instant | None,
    now: Instant,
    chance: float,
    probe: bool = False,
) -> Settlement:
    """Decide what becomes of a task whose attempt has ended. A `probe` (`model.disabling`) that fails uses up no try and waits again."""
    if ended.outcome is Outcome.SUCCEEDED:
        return succeed(running, ended.result, ended.detail, started_at, now)
    tries, crashes = running.tries, running.crashes
    state, due_at, error = State.PENDING, None, ended.error
    match ended.outcome:
        case Outcome.FATAL:
            state = State.FAILED
        case Outcome.CANCELLED:
            state = State.CANCELLED
        case Outcome.FAILED | Outcome.TIMED_OUT if probe:
            due_at = _after_pause(running, now, now, _last_start_at(running))
        case Outcome.FAILED | Outcome.TIMED_OUT:
            tries += 1
            delay = policy.delay(tries, chance) if ended.retriable else None
            due_at = None if delay is None else now + round(delay * SECOND)
            if due_at is None or due_at > _last_retry_at(running, policy):
                state, due_at = State.FAILED, None
        case Outcome.RETRY_LATER:
            asked_at, last_at = now + round(ended.delay * SECOND), _last_later_at(running, policy)
            due_at = _after_pause(running, asked_at, now, last_at)
            if asked_at > last_at or due_at <= now == last_at:  # at its last instant there is no later one
                state, due_at = State.FAILED, None
                error = ErrorInfo(
                    "RetryLater", "asked to run later than its expiry, its retry policy or seven days after its due time allow"
                )
        case Outcome.LOST:
            crashes += ended.crashed
            if ended.crashed and ended.alone and crashes >= QUARANTINE_CRASHES:
                state = State.FAILED
                error = ErrorInfo("Quarantined", f"the process that ran it died {crashes} times; fix the handler, then retry the task")
            else:
                due_at = _after_pause(running, now, now, _last_start_at(running))
        case Outcome.RELEASED:
            due_at = _after_pause(running, now, now, _last_start_at(running))
        case Outcome.PARKED:
            due_at = now
        case Outcome.SUSPENDED:
            if ended.suspension is not None and ended.suspension.wake_at is not None:
                due_at = ended.suspension.wake_at
            else:
                state = State.BLOCKED
    if error is not None and is_failing(ended.outcome, state):
        error = msgspec.structs.replace(error, fingerprint=fingerprint(running.handler, error, ended.detail))
    return Settlement(
        id=running.id,
        attempt=running.attempt,
        outcome=ended.outcome,
        state=state,
        tries=tries,
        crashes=crashes,
        started_at=started_at,
        finished_at=now,
        due_at=due_at,
        result=ended.result,
        detail=ended.detail,
        error=error,
        refused_by=ended.refused_by,
        handler=running.handler,
        suspension=ended.suspension,
    )


def without_parking(ended: Ended, meta: Mapping[str, str] | None) -> Ended:
    """Return an end, in which a member of a flow fails if what it takes from other nodes does not fit."""
    if ended.outcome is not Outcome.PARKED or meta is None or TAKES not in meta:
        return ended
    message = f"what it takes from {meta[TAKES]} does not fit: {'' if ended.error is None else ended.error.message}"
    return Ended(Outcome.FATAL, error=ErrorInfo("InvalidPayload", message))


def succeed(running: AttemptFacts, result: bytes | None, detail: bytes | None, started_at: Instant | None, now: Instant) -> Settlement:
    """Return the settlement of a success. Apart from `conclude`, because nearly all attempts succeed and nothing needs deciding."""
    return Settlement(
        running.id, running.attempt, _SUCCESS, _SUCCEEDED, running.tries, running.crashes, started_at, now, None, result, detail
    )


def as_cancelled(settlement: Settlement) -> Settlement:
    """Return the settlement of a task with a requested cancel: what would not be final becomes cancelled."""
    if settlement.state in FINAL:
        return settlement
    return Settlement(
        id=settlement.id,
        attempt=settlement.attempt,
        outcome=settlement.outcome,
        state=State.CANCELLED,
        tries=settlement.tries,
        crashes=settlement.crashes,
        started_at=settlement.started_at,
        finished_at=settlement.finished_at,
        detail=settlement.detail,
        error=settlement.error,
        handler=settlement.handler,
    )


def _after_pause(running: AttemptFacts, due_at: Instant, now: Instant, last_at: float) -> Instant:
    """Move a due time to the end of the pause that a task needs after many attempts without a try, but not beyond its last instant."""
    pause = repeat_pause(running.attempt - running.tries)
    return due_at if pause == 0 else max(due_at, int(min(now + round(pause * SECOND), last_at)))


def _last_start_at(running: AttemptFacts) -> float:
    return float("inf") if running.expires_at is None else running.expires_at - 1  # a task does not start at its expiry


def _last_retry_at(running: AttemptFacts, policy: RetryPolicy) -> float:
    last_at = _last_start_at(running)
    return last_at if policy.within is None else min(last_at, running.since_at + to_micros(policy.within))


def _last_later_at(running: AttemptFacts, policy: RetryPolicy) -> float:
    if running.expires_at is not None:
        return running.expires_at - 1
    return min(_last_retry_at(running, policy), running.since_at + RETRY_LATER_BOUND)


def unmet(parent: str) -> ErrorInfo:
    """Return the error of a task that needed the success of another."""
    return ErrorInfo("PredecessorFailed", f"task {parent}, whose success it needed, ended otherwise")
