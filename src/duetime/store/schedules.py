"""The roles of the seam that are about schedules, day calendars and the leases of duties; parts of `store.control`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol, TypeAlias

import msgspec

from duetime.clock import Instant
from duetime.model.rules import DayCalendar
from duetime.model.schedule import ScheduleRecord, Skip
from duetime.model.task import NewTask

ScheduleCursor: TypeAlias = tuple[Instant, str]  # next_at and name of a schedule: the order in which they wait
FIRST_CURSOR: Final[ScheduleCursor] = (-(1 << 63), "")


class ScheduleWrite(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule to write, with its new tasks and skips. `record.version` is ignored: the store counts versions.

    `expected` is the version that must be stored now; 0: there must be none of that name. `record` None removes the schedule. `moves`:
    only the state and `next_at` differ from what is stored at that version, so the store need not write the rest.
    """

    name: str
    expected: int
    record: ScheduleRecord | None
    tasks: tuple[NewTask[object], ...] = ()
    skips: tuple[Skip, ...] = ()
    moves: bool = False


class DueSchedules(msgspec.Struct, frozen=True):
    """Due schedules, the longest waiting first, the store's time, and `next_at` of the first schedule after them."""

    records: list[ScheduleRecord]
    now: Instant
    next_at: Instant | None


class ScheduleFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which schedules to list; all given parts must hold. `after` is the name that the page before ended with."""

    handler: str | None = None
    prefix: str | None = None
    paused: bool | None = None
    declared: bool | None = None
    after: str = ""
    limit: int = 1_000


class DutyLease(msgspec.Struct, frozen=True):
    """Who performs a duty, and until when at least. `granted`: the caller has the lease; in a list: the lease is not over."""

    granted: bool
    holder: str
    until_at: Instant
    now: Instant


class ScheduleStore(Protocol):
    """Where schedules live."""

    async def write_schedules(self, writes: Sequence[ScheduleWrite], *, together: bool = False) -> list[bool]:
        """Write schedules, each with its tasks and skips, in one transaction: schedules exist once, however many shards there are.

        True if the schedule was stored at exactly the expected version: then the record has the next version (1 for a new one), its
        tasks were added as by `add` (one whose id is stored already stays as it is), and its skips are kept. False if not: then nothing
        of that write was done. With `together`, one False makes all False and nothing is written. Names within a call differ.
        Tells listeners of SCHEDULES, and of DUE if tasks were added.
        """
        ...

    async def due_schedules(
        self, limit: int, closed: Sequence[tuple[str, str | None]] = (), *, after: ScheduleCursor | None = None
    ) -> DueSchedules:
        """Return schedules whose `next_at` has come, in the order of `next_at` and name, after a cursor.

        Those of closed (handler, collection) pairs are left out, here and in the answer's `next_at`; a pair without a collection means
        all of the handler's collections.
        """
        ...

    async def wake_schedules(self, names: Sequence[str]) -> None:
        """Set `next_at` to now for schedules that wait for the end of a run (their plan `waits`, and `next_at` is later or None).

        Changes no version. Unknown names are ignored. Tells listeners of SCHEDULES.
        """
        ...

    async def schedules(self, names: Sequence[str]) -> list[ScheduleRecord | None]:
        """Return schedules by name."""
        ...

    async def list_schedules(self, filter: ScheduleFilter) -> list[ScheduleRecord]:
        """Return one page of schedules in the order of their names (by code point).

        It has fewer than the limit where their specs would exceed `MAX_PAGE_BYTES` together, but at least one if there is one: only an
        empty page says that no more follow.
        """
        ...

    async def skips(self, schedule: str, limit: int, before: Instant | None = None) -> list[Skip]:
        """Return occurrences that became no task, the latest planned first, planned before an instant if one is given.

        They outlive their schedule, until `prune_skips`.
        """
        ...

    async def prune_skips(self, before: Instant, limit: int) -> int:
        """Remove up to `limit` skips that were decided before an instant; return how many."""
        ...

    async def put_calendar(self, name: str, calendar: DayCalendar | None) -> bool:
        """Store a day calendar under a name in place of an earlier one, or remove it; return whether there was one. Tells SCHEDULES."""
        ...

    async def calendars(self) -> dict[str, DayCalendar]:
        """Return all day calendars by name."""
        ...

    async def take_duty(self, duty: str, holder: str, seconds: float) -> DutyLease:
        """Take or renew the lease of a duty for `seconds`, unless another process has it by the store's clock.

        This only saves work: every duty is safe when several processes perform it. If the clock was set back, a lease that ends further
        ahead than the longest one allowed (60 s) is free.
        """
        ...

    async def leave_duty(self, duty: str, holder: str) -> None:
        """Release a lease, if `holder` has it."""
        ...

    async def duties(self) -> dict[str, DutyLease]:
        """Return who has the lease of each duty, or had it last."""
        ...
