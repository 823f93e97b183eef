"""What pull workers and servers say to each other, and how it becomes what the store takes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from duetime.clock import SECOND, Instant
from duetime.errors import Conflict
from duetime.model.outcome import Ended, Outcome, SettleVerdict
from duetime.model.retry import RetryPolicy
from duetime.model.shapes import derive
from duetime.model.task import ErrorInfo, State
from duetime.store.pull_workers import PullWorker, RunningTask
from duetime.store.values import Claim, ClaimedTask, Declaration

MOST_NUMBER = 2**53  # claim numbers of pull workers, which every language can hold; those of servers are greater
ISOLATION = "pull"  # of a handler that only pull workers have declared


class LeaseOver(Conflict):
    """No pull worker of this id is registered: its lease is over, it has left, or it never registered."""


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """A handler of a pull worker: its slots and its declaration. What is None stays as others have declared it."""

    slots: int = 1
    schema: bytes | None = None
    doc: str | None = None
    timeout: float | None = None
    retry: RetryPolicy | None = None
    keep: dict[State, float] | None = None


class PulledAttempt(NamedTuple):
    """An attempt of a pull worker, and until when it may run."""

    task: RunningTask
    deadline_at: Instant


class Renewed(msgspec.Struct, frozen=True):
    """The answer to a renewal: until when the lease lasts, what to stop, and what is no longer the worker's."""

    lease_until: Instant
    cancelled: list[str]
    lost: list[str]


class Completed(msgspec.Struct, frozen=True):
    """The answer to the report of an end: whether it counts, and the task's state now."""

    verdict: SettleVerdict
    state: State


class Report(msgspec.Struct, frozen=True):
    """How an attempt of a pull worker ended, as it says."""

    task: str
    attempt: int
    ended: Ended


class ReportAnswer(msgspec.Struct, frozen=True):
    """The answer to progress or logs: whether they count, and whether the attempt has to stop."""

    verdict: SettleVerdict
    cancelling: bool


def lease_over(id: str) -> LeaseOver:
    return LeaseOver(f"no worker {id[:80]!r} is registered: its lease is over, or it has left; stop what it runs and register anew")


def timed_out(attempt: PulledAttempt) -> Ended:
    """Return the end of an attempt that ran for too long."""
    allowed = (attempt.deadline_at - attempt.task.claimed_at) / SECOND
    return Ended(Outcome.TIMED_OUT, error=ErrorInfo("TimedOut", f"ran longer than its timeout of {allowed:g} s"))


def server_claim_number() -> int:
    """Return a claim number that no pull worker and no other server chooses."""
    return random.SystemRandom().randrange(MOST_NUMBER + 1, 2**63 - 1)


def free_slots(worker: PullWorker, attempts: Sequence[PulledAttempt]) -> dict[str, int]:
    """Return how many free slots a pull worker has for each handler."""
    busy = Counter(each.task.handler for each in attempts)
    return {handler: slots - busy[handler] for handler, slots in worker.slots.items() if slots > busy[handler]}


def cancelling(attempts: Sequence[PulledAttempt]) -> list[str]:
    return [each.task.id for each in attempts if each.task.cancelling]


_running = derive(ClaimedTask, RunningTask, given=("claim", "cancelling", "claimed_at"))


def as_running(claim: Claim, number: int | None) -> list[RunningTask]:
    """Return the tasks of a claim as running ones."""
    return [_running(task, number or 0, False, claim.now) for task in claim.tasks]


def declaration(name: str, offer: Offer, known: Declaration | None) -> Declaration:
    """Return what a pull worker declares of a handler: what it says, and for the rest what is declared already."""
    declared: dict[str, Any] = {"schema": offer.schema, "doc": offer.doc, "timeout": offer.timeout, "keep": offer.keep}
    declared["retry"] = None if offer.retry is None else offer.retry.numbers()
    declared = {field: value for field, value in declared.items() if value is not None}
    if known is None:
        new = Declaration(name=name, concurrency=offer.slots, isolation=ISOLATION, retry=RetryPolicy().numbers())
        return msgspec.structs.replace(new, **declared)
    return msgspec.structs.replace(known, **declared)
