"""How an attempt ended (`Ended`), and what must be stored because of it (`Settlement`)."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from duetime.clock import Instant
from duetime.model.steps import Suspension
from duetime.model.task import ErrorInfo, State

# Of a task's attempts the first and the last are kept; those between, and what they printed, are left out.
FIRST_ATTEMPTS_KEPT = 100
LAST_ATTEMPTS_KEPT = 400
MOST_ATTEMPTS_KEPT = FIRST_ATTEMPTS_KEPT + LAST_ATTEMPTS_KEPT


class Outcome(StrEnum):
    """How one attempt ended. Failed and TimedOut use up a try; the others do not.

    PARKED: the payload does not fit the worker's code. SUSPENDED: one of its steps sleeps or waits; the next attempt goes on from there.
    """

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    FATAL = "fatal"
    RETRY_LATER = "retry_later"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    LOST = "lost"
    RELEASED = "released"
    PARKED = "parked"
    SUSPENDED = "suspended"


class Unavailable(msgspec.Struct, frozen=True, gc=False):
    """A target as a whole takes no work now. It has said for how long, or one task at a time finds out, every `probe_every` seconds."""

    why: str
    probe_every: float | None = None


class Ended(msgspec.Struct, frozen=True, gc=False):
    """What the handler returned or raised, or what was observed instead.

    `retriable` is False where the policy's exception filter forbids another try. `crashed` means that the process
    which ran the attempt died; `alone` that it ran nothing else, so the death can be blamed on this task.
    `refused_by` is the digest of the declaration that the payload does not fit, of an attempt that is parked.
    `detail` is what the target observed, a JSON object made by `model.detail`. `unavailable`, beside RETRY_LATER: other tasks would fare
    the same until then. `suspension`, beside SUSPENDED: what it waits for.
    """

    outcome: Outcome
    result: bytes | None = None
    error: ErrorInfo | None = None
    delay: float = 0.0
    retriable: bool = True
    crashed: bool = False
    alone: bool = False
    refused_by: str | None = None
    detail: bytes | None = None
    unavailable: Unavailable | None = None
    suspension: Suspension | None = None


class Running(msgspec.Struct, frozen=True, gc=False):
    """The plain form of `lifecycle.AttemptFacts`."""

    id: str
    handler: str
    attempt: int
    tries: int
    crashes: int
    since_at: Instant
    expires_at: Instant | None


class Settlement(msgspec.Struct, frozen=True, gc=False):
    """What to store for an ended attempt: a final state, or `pending` with the next due time.

    With the outcome PARKED it waits as `pending`, but parked: until a worker comes whose declaration is not among those that refused it.
    With SUSPENDED it waits as `pending` for the end of a pause, or as `blocked` for the end of another step, its `suspension`.
    `handler` is told of failures only, whose kind it is a part of.
    """

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
    detail: bytes | None = None
    error: ErrorInfo | None = None
    refused_by: str | None = None
    handler: str = ""
    suspension: Suspension | None = None

    @property
    def fingerprint(self) -> str | None:
        """What it shares with failures of its kind; None if it is no failure."""
        return None if self.error is None else self.error.fingerprint or None


class Acceptance(msgspec.Struct, frozen=True, gc=False):
    """What to store for an attempt whose work somebody else has accepted: when it times out, at the latest or after `silence` seconds.

    `location` is where the work can be withdrawn, if its server has said so.
    """

    id: str
    attempt: int
    deadline_at: Instant
    silence: float | None = None
    location: str | None = None


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
    detail: bytes | None = None
