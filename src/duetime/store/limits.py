"""The role of the seam that is about limits; a part of `store.control`. The rules are in `model.limit`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from duetime.clock import Instant
from duetime.model.limit import Allotment, Ask, CountedLimit, LimitRecord, PartitionRecord, RateRule


class ParkedUnder(NamedTuple):
    """What a parked task waits under, and how many of its partition are before it."""

    limit: str
    partition: str
    before: int


class LimitStore(Protocol):
    """Where limits live, and the permits that workers have of them."""

    async def allot(self, worker: str, number: int, asks: Sequence[Ask]) -> list[Allotment]:
        """Let a registered worker have permits as `model.limit.granted` says, and return what it has of each limit.

        All who ask for the same limit are answered one after another, so the sum of permits, with what was accepted elsewhere, is never
        raised above the limit. `number` is greater with each call of the worker: one that arrives after a later one changes nothing and is
        answered with nothing for that limit, and so is a worker that is not registered. The permits of a worker go with its row. Until a
        server that has taken over opens, nobody is granted more than they have. A limit that is not known is made; one that is
        declared differently has what was declared last, and takes another version.
        """
        ...

    async def put_limit(
        self,
        name: str,
        running: int | None,
        *,
        until_at: Instant | None,
        note: str,
        set_by: str,
        rates: Sequence[RateRule] | None = None,
    ) -> int | None:
        """Let a number, or rates, hold instead of the declared ones, until an instant if one is given; return the new version.

        What is None holds as declared. None is returned if the limit is unknown.
        """
        ...

    async def reset_limit(self, name: str) -> int | None:
        """Let the declared number hold again; return the new version, None if there is no limit of this name."""
        ...

    async def limits(self) -> list[LimitRecord]:
        """Return all limits by name, with who has permits."""
        ...

    # ---- limits that the store counts ----

    async def declare_counted(self, handlers: Sequence[str], limits: Sequence[CountedLimit]) -> None:
        """Keep all the limits by key, by rate or with another answer than to wait that these handlers have.

        From then on whoever claims tasks of these handlers is handed what `model.partitions.admit` admits, under the lock of the limit;
        the rest is parked, dropped, or stops what runs. A handler that had such a limit and has it no more loses it, and what was parked
        under it alone goes on; so does all of a limit whose key is another one now. What an attempt took is free again when it has ended,
        however it ended, and the first parked tasks of its partition go on; a look after the commit does that, and `look_at_limits`
        repeats it.
        """
        ...

    async def put_partition(
        self, name: str, partition: str, running: int | None, *, until_at: Instant | None, note: str, set_by: str
    ) -> bool:
        """Let a partition have a number of its own, or none with None; return whether there is a limit of this name."""
        ...

    async def partitions(self, name: str, *, only: str | None = None, after: str | None = None, limit: int = 100) -> list[PartitionRecord]:
        """Return partitions under which something runs or waits, or that have a number of their own, by name."""
        ...

    async def parked_under(self, task_id: str) -> ParkedUnder | None:
        """Return what a task waits under; None if it waits under no limit that the store counts."""
        ...

    async def look_at_limits(self) -> int:
        """Free what attempts took that are not open any more, and let parked tasks go on that can; return how many were found so."""
        ...
