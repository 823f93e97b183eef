"""The role of the seam that is about accepted attempts: somebody outside works on them and reports the end; a part of `store.shard`.

An accepted attempt runs, but no worker holds it: no slot, no lease, nothing to reap. It belongs to its deadline. `get`, lists, counts,
repeats, keys, edges, cancels and edits treat its task as running; `attempts` names the worker that handed the work over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from duetime.clock import SECOND, Instant
from duetime.model.outcome import Acceptance, Settlement, SettleVerdict
from duetime.store.pull_workers import RunningTask

NO_WORKER = ""  # who holds accepted attempts, in the tables of SQL stores
CANCEL_WITHIN = 30 * SECOND  # how long an accepted attempt may go on after a cancel


class OpenAttempt(msgspec.Struct, frozen=True):
    """A task with a running attempt, whoever has it. `deadline_at`: it is accepted, and times out then unless something is reported."""

    task: RunningTask
    worker: str | None
    deadline_at: Instant | None


class Report(msgspec.Struct, frozen=True):
    """What whoever works on an accepted attempt says of it: how far it is, if anything, and for how many seconds it may be silent now."""

    id: str
    attempt: int
    fraction: float | None = None
    text: str = ""
    extend: float | None = None


class Heard(msgspec.Struct, frozen=True):
    """The answer to a report: STALE if no such attempt is accepted, else ACCEPTED, whether it has to stop, and when it times out now."""

    verdict: SettleVerdict
    cancelling: bool = False
    deadline_at: Instant | None = None


class Withdrawal(msgspec.Struct, frozen=True):
    """An accepted attempt that was told to stop, and where its server takes the work back."""

    id: str
    attempt: int
    location: str


class Accepting(Protocol):
    """Attempts whose work somebody outside has accepted."""

    async def accept(self, worker: str, acceptances: Sequence[Acceptance]) -> list[SettleVerdict]:
        """Take attempts from a worker because somebody else does their work now.

        ACCEPTED if the worker runs exactly this (task, attempt): it stays `running`, has no worker, and times out at its deadline, or
        after `silence` seconds without a report. One that was told to stop times out within 30 s. ALREADY if this worker has handed it
        over before, or it ended as this worker's or after that; STALE otherwise. Neither changes anything.
        """
        ...

    async def open_attempts(self, ids: Sequence[str]) -> list[OpenAttempt]:
        """Return those of these tasks that have a running attempt, accepted or not, in no order and without payloads."""
        ...

    async def complete(self, settlements: Sequence[Settlement], *, overdue: bool = False) -> list[SettleVerdict]:
        """Record how attempts ended that somebody else has accepted, as `settle` does; the attempt's worker is the one that handed it over.

        An attempt that a worker still runs counts too: the end may be known before the worker could say that it was accepted. With
        `overdue` only accepted ones whose time is over count. ALREADY if the attempt has ended by such a report; STALE otherwise.
        """
        ...

    async def hear(self, reports: Sequence[Report]) -> list[Heard]:
        """Note what is said of accepted attempts: each begins its silence anew, or `extend` seconds of it, never beyond its deadline."""
        ...

    async def take_withdrawals(self, handlers: Sequence[str], limit: int) -> list[Withdrawal]:
        """Return accepted attempts of these handlers that were told to stop and have a location, in no order.

        Each is returned once, to one caller, who tells the server: the store has forgotten the location then.
        """
        ...

    async def overdue(self, limit: int) -> list[OpenAttempt]:
        """Return accepted attempts that have timed out, earliest first."""
        ...
