"""How an attempt ended (`Ended`), and what must be stored because of it (`Settlement`)."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from duetime.clock import Instant
from duetime.model.task import ErrorInfo, State


class Outcome(StrEnum):
    """How one attempt ended. Failed and TimedOut use up a try; the others do not."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    FATAL = "fatal"
    RETRY_LATER = "retry_later"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    LOST = "lost"
    RELEASED = "released"


class Ended(msgspec.Struct, frozen=True, gc=False):
    """What the handler returned or raised, or what was observed instead.

    `retriable` is False where the policy's exception filter forbids another try. `crashed` means that the process
    which ran the attempt died; `alone` that it ran nothing else, so the death can be blamed on this task.
    """

    outcome: Outcome
    result: bytes | None = None
    error: ErrorInfo | None = None
    delay: float = 0.0
    retriable: bool = True
    crashed: bool = False
    alone: bool = False


class Running(msgspec.Struct, frozen=True, gc=False):
    """The plain form of `lifecycle.AttemptFacts`."""

    id: str
    attempt: int
    tries: int
    crashes: int
    since_at: Instant
    expires_at: Instant | None


class Settlement(msgspec.Struct, frozen=True, gc=False):
    """What to store for an ended attempt: a final state, or `pending` with the next due time."""

    id: str
    attempt: int
    outcome: Outcome
    state: State
    tries: int
    crashes: int
    started_at: Instant | None
    finished_at: Instant
    due_at: Instant | None = None
    result: bytes | None = None
    error: ErrorInfo | None = None


class SettleVerdict(StrEnum):
    """A store's answer to a settlement: accepted now, accepted before (a repeat), or stale, because the claim is not this attempt's."""

    ACCEPTED = "accepted"
    ALREADY = "already"
    STALE = "stale"


class AttemptRecord(msgspec.Struct, frozen=True):
    """One ended or running attempt of a task."""

    attempt: int
    outcome: Outcome | None
    worker: str | None
    started_at: Instant | None
    finished_at: Instant | None
    error: ErrorInfo | None = None
