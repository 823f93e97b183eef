"""What guests say and what they are told, and how that becomes what the store keeps."""

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

MOST_NUMBER = 2**53  # claim numbers of guests, which every language can hold; those that we choose are greater
ISOLATION = "pull"  # what a handler's declaration says that only guests have declared


class LeaseOver(Conflict):
    """No guest of this id is registered: its lease is over, it has left, or it never came."""


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """A handler that a guest has: its slots, and what it declares of it; what is None is left as others have declared it."""

    slots: int = 1
    schema: bytes | None = None
    doc: str | None = None
    timeout: float | None = None
    retry: RetryPolicy | None = None


class Held(NamedTuple):
    """An attempt of a guest's, and until when it may run."""

    holding: RunningTask
    deadline_at: Instant


class Renewed(msgspec.Struct, frozen=True):
    """What a guest has to know: until when its lease lasts, what to stop, and what is no longer its own."""

    lease_until: Instant
    cancelled: list[str]
    lost: list[str]


class Completed(msgspec.Struct, frozen=True):
    """The answer to how an attempt ended, and the task's state now."""

    verdict: SettleVerdict
    state: State


class Told(msgspec.Struct, frozen=True):
    """The answer to progress or output: whether it counts, and whether the attempt shall stop."""

    verdict: SettleVerdict
    cancelling: bool


def over(id: str) -> LeaseOver:
    return LeaseOver(f"no worker {id[:80]!r} is registered: its lease is over, or it has left; stop what it runs and register anew")


def timed_out(held: Held) -> Ended:
    """Say of an attempt that it ran for too long."""
    allowed = (held.deadline_at - held.holding.claimed_at) / SECOND
    return Ended(Outcome.TIMED_OUT, error=ErrorInfo("TimedOut", f"ran longer than its timeout of {allowed:g} s"))


def own_number() -> int:
    """Choose a claim number that no guest can choose, and no two servers do."""
    return random.SystemRandom().randrange(MOST_NUMBER + 1, 2**63 - 1)


def room(guest: PullWorker, held: Sequence[Held]) -> dict[str, int]:
    """Give how many more tasks of each handler a guest has room for."""
    busy = Counter(each.holding.handler for each in held)
    return {handler: slots - busy[handler] for handler, slots in guest.slots.items() if slots > busy[handler]}


def cancelling(held: Sequence[Held]) -> list[str]:
    return [each.holding.id for each in held if each.holding.cancelling]


_running = derive(ClaimedTask, RunningTask, given=("claim", "cancelling", "claimed_at"))


def as_holdings(claim: Claim, number: int | None) -> list[RunningTask]:
    """Give what was claimed just now as it is held."""
    return [_running(task, number or 0, False, claim.now) for task in claim.tasks]


def declaration(name: str, offer: Offer, known: Declaration | None) -> Declaration | None:
    """Give what to declare of a handler; None if all that the guest says of it is known."""
    said: dict[str, Any] = {"schema": offer.schema, "doc": offer.doc, "timeout": offer.timeout}
    said["retry"] = None if offer.retry is None else offer.retry.numbers()
    said = {field: value for field, value in said.items() if value is not None}
    if known is None:
        new = Declaration(name=name, concurrency=offer.slots, isolation=ISOLATION, retry=RetryPolicy().numbers())
        return msgspec.structs.replace(new, **said)
    changed = msgspec.structs.replace(known, **said)
    return None if changed == known else changed
