"""The role of the seam that is about pull workers: workers in any language that claim through a server; a part of `store.shard`.

A pull worker is registered like any worker. `claim`, `settle`, `progress`, `attempts_of`, `unregister`, `reap` and `workers` treat it as
one. It differs in three things. Beats in its row prove its life on every store, because there is no process here that could hold a lock
for it. It counts as having confirmed every version of the gates: it has no buffer, what a claim hands to it has started. And its lease
does not delay claims after a fail-over: a pull worker cannot be stopped from here, only what it reports can be refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from duetime.clock import Instant
from duetime.store.values import Claim, ClaimedTask

MOST_CLAIMED_BYTES = 32 * 1_024 * 1_024  # of payloads in a claim of a pull worker; on PostgreSQL in any claim
CONFIRMED_ALL = 2**63 - 1  # the version of the gates that a pull worker counts as having confirmed


class PullWorker(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that claims through a server. `name` is for people; `lease` is how many seconds it counts as alive without a beat.

    `declared` is the digest of its declaration, of the handlers whose parameters it has declared. `draining`: it is given nothing; only
    `drain` says that.
    """

    id: str
    name: str
    slots: Mapping[str, int]
    lease: float
    declared: Mapping[str, str] = {}
    draining: bool = False


class RunningTask(ClaimedTask, frozen=True, gc=False):
    """A task with an attempt that the store counts as a worker's own: all that is needed to hand it out again and to end it."""

    claim: int = 0
    cancelling: bool = False
    claimed_at: Instant = 0


class PullWorkers(Protocol):
    """Where pull workers live."""

    async def register_pull_worker(self, worker: PullWorker) -> None:
        """Make a pull worker known before its first claim.

        Registering again replaces its name, slots and lease and counts as a beat; what it runs stays its own. A worker of this id that
        is not a pull worker is left as it is.
        """
        ...

    async def pull_worker(self, id: str) -> PullWorker | None:
        """Return a registered pull worker; None if there is none of this id, also if another worker has it."""
        ...

    async def renew_pull_worker(self, id: str) -> bool:
        """Record a beat of a pull worker; return whether it is still registered. Other workers are left alone."""
        ...

    async def claim_for(self, worker: str, claim: int, wants: Mapping[str, int], total: int) -> Claim:
        """Claim for a pull worker as `claim` does, but hand out nothing new under a number of which the worker still runs attempts.

        So a claim that is repeated, at any server, takes no further tasks; `running_tasks` returns what the first one took. It takes no
        more than `MOST_CLAIMED_BYTES` of payloads, but at least one task: the rest stays due.
        """
        ...

    async def running_tasks(self, worker: str, ids: Sequence[str] | None = None, *, payloads: bool = True) -> list[RunningTask]:
        """Return the tasks that a worker runs, all or only `ids`, by claim; within a claim higher priority first, then by due time.

        Without `payloads` they are not read, and empty: a worker with a thousand slots may run a gigabyte of them.
        """
        ...
