"""The part of the seam that is about guests: workers in other languages, which a server speaks for. `store.protocol` joins it.

A guest is registered like any worker. `claim`, `settle`, `progress`, `attempts_of`, `unregister`, `reap` and `workers` treat it as one.
It differs in three things. Its life is told by beats in its row on every store, because there is no process here that could hold
a lock for it. It counts as having confirmed every version of the gates: it has no buffer, what a claim hands to it has started. And
its lease does not hold back claims after a fail-over: a guest cannot be stopped from here, only its word can be refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from duetime.clock import Instant

CONFIRMED_ALL = 2**63 - 1  # the version of the gates that a guest counts as having confirmed


class Guest(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that speaks through a server. `name` is for people; `lease` is how many seconds it counts as alive without a beat."""

    id: str
    name: str
    slots: Mapping[str, int]
    lease: float


class Holding(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """An attempt that the store counts as a worker's own, with all that is needed to hand it out again and to end it.

    It has what `lifecycle.conclude` asks for. Payload and retry numbers are JSON as text.
    """

    id: str
    handler: str
    payload: str
    attempt: int
    claim: int
    cancelling: bool
    claimed_at: Instant
    tries: int
    crashes: int
    due_at: Instant
    since_at: Instant
    submitted_at: Instant
    submitted_by: str
    expires_at: Instant | None
    timeout: float | None
    retry: str | None
    meta: Mapping[str, str] | None
    key: str | None
    collection: str | None
    priority: int
    schedule: str | None
    planned_at: Instant | None


class GuestStore(Protocol):
    """Where guests live."""

    async def admit(self, guest: Guest) -> None:
        """Register a guest before its first claim. One that is admitted again begins anew: its name, slots and lease are replaced, and
        it beats; what it holds stays its own. The id of a worker that is no guest is left as it is.
        """
        ...

    async def guest(self, id: str) -> Guest | None:
        """Give a registered guest; None if there is none of this id, also if a worker that is no guest has it."""
        ...

    async def renew_guest(self, id: str) -> bool:
        """Beat for a guest; tell whether it is still registered. Nothing beats for a worker that is no guest."""
        ...

    async def holdings(self, worker: str, ids: Sequence[str] | None = None) -> list[Holding]:
        """Give the attempts that a worker holds, of these tasks or of all, by claim; within a claim higher priority first, then by
        due time.
        """
        ...
