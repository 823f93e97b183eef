"""`app.schedules`: what programs, the HTTP API and the command line do with schedules, in a store (`local`) or over HTTP (`remote`)."""

from __future__ import annotations

import builtins
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from duetime.client.schedules.backfill import Backfill, Existing
from duetime.client.schedules.declaring import SchedulePlan
from duetime.client.schedules.forecasting import Ahead
from duetime.client.schedules.info import ScheduleInfo, SkipInfo
from duetime.client.schedules.reconciling import Refuse
from duetime.client.schedules.schedule import Named, Schedule
from duetime.errors import (
    DuetimeError,
    InvalidValue,
)
from duetime.model.forecast import MOST_OCCURRENCES
from duetime.model.query import MAX_PAGE
from duetime.model.rules import Rule
from duetime.model.task import IfStored, Task
from duetime.store.schedules import ScheduleFilter

MOST_PREVIEWED = 10_000
MOST_SKIPS = 10_000


class Stored(msgspec.Struct, frozen=True):
    """A schedule that was put, and whether it is new."""

    info: ScheduleInfo
    created: bool


def refuse_nobody(handler: str) -> None:
    return None


class Schedules(Protocol):
    """`app.schedules`: stored rules that create tasks, one per planned instant."""

    def on_behalf_of(self, user: str, refuse: Refuse = refuse_nobody, *, revision: int | None = None) -> Schedules:
        """Return the same service for another user. `refuse` returns why they may not use a handler's schedules, None if they may.

        What they may not use does not exist for them, except that its name is taken. `refuse` is called where a
        change is decided, so there is no race with other changes.
        """
        ...

    async def get(self, name: str) -> ScheduleInfo:
        """Return a schedule; raise ScheduleNotFound if there is none."""
        ...

    async def page(self, chosen: ScheduleFilter) -> tuple[builtins.list[ScheduleInfo], str | None]:
        """Return one page of at most the filter's limit, and the name after which the next one begins, None on the last page."""
        ...

    async def preview(self, what: str | Rule | Schedule, *, count: int = 10, after: datetime | None = None) -> builtins.list[datetime]:
        """Return the next planned instants after now, or `after` an instant, in local time of the rule's zone.

        `what` is the name of a stored schedule, a rule, or a `Schedule`. A fixed delay is counted from the last end; when the next run
        will end is not known.
        """
        ...

    async def skips(self, name: str, *, limit: int = 100, before: datetime | None = None) -> builtins.list[SkipInfo]:
        """Return the skips of a schedule, the latest planned first; also of a deleted one."""
        ...

    async def forecast(self, *, days: float = 7.0, limit: int = MOST_OCCURRENCES) -> Ahead:
        """Forecast the load of all schedules from now on. It ends earlier if there are more occurrences than `limit`."""
        ...

    async def upsert(
        self,
        schedule: Schedule,
        *,
        if_exists: IfStored = "replace",
        catch_up: bool = False,
        allow_unknown: bool = False,
        seen: Collection[str] | None = None,
    ) -> Stored:
        """Do what `put` does, and also return whether the schedule is new."""
        ...

    async def delete(self, name: str, *, seen: Collection[str] | None = None) -> None:
        """Remove a schedule; raise ScheduleNotFound if there is none. Its tasks and skips stay.

        `seen` are tags: the schedule must have one of them, or this raises ChangedMeanwhile.
        """
        ...

    async def pause(self, name: str, *, note: str = "") -> ScheduleInfo:
        """Stop a schedule from firing until it is resumed. Its live tasks continue."""
        ...

    async def resume(self, name: str, *, catch_up: bool = False) -> ScheduleInfo:
        """Let a paused schedule fire again. With `catch_up`, its policy for missed occurrences decides about those of the pause."""
        ...

    async def trigger(self, name: str, *, payload: Mapping[str, Any] | None = None, overlap: str = "allow") -> Task[Any]:
        """Run a schedule's handler now, paused or not. The rule is not affected. `payload` replaces the schedule's own.

        `overlap` is a policy like that of a schedule; where it would skip an occurrence, this raises Conflict.
        """
        ...

    async def plan(self, schedules: Sequence[Schedule] | None = None, *, prefix: str = "") -> SchedulePlan:
        """Return what `apply` would do, and change nothing."""
        ...

    async def faults(self, schedules: Sequence[Schedule]) -> dict[int, DuetimeError]:
        """Return, by index, why schedules cannot be declared: an unknown handler or calendar, or a payload that does not match."""
        ...

    async def backfill(
        self, name: str, start: datetime, end: datetime, *, existing: Existing = "skip", concurrency: int = 1, dry_run: bool = False
    ) -> Backfill:
        """Run the occurrences that were planned from `start` to `end`, both included, now; at most 10,000.

        `existing` is about those that have a task already: "skip" leaves them out, "failed" runs those again that ended without success,
        "all" runs all again that are not live. At most `concurrency` run at once, in the order of their planned instants. The schedule
        itself is not affected; occurrences that it has not reached yet are left to it.
        """
        ...

    async def _reconcile(self, schedules: Sequence[Schedule] | None, *, remove: bool, prefix: str) -> SchedulePlan: ...

    async def list(
        self,
        *,
        handler: str | Named | None = None,
        paused: bool | None = None,
        prefix: str | None = None,
        declared: bool | None = None,
        after: str = "",
        limit: int | None = None,
    ) -> list[ScheduleInfo]:
        """Return all schedules that match, by name: of a handler, paused or not, declared by code or not, with a prefix.

        For one page: those `after` a name, at most `limit` of them.
        """
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
            raise InvalidValue(f"limit must be a whole number of at least 1, got {limit!r}; leave it out for all")
        name = None if handler is None else handler if isinstance(handler, str) else handler.name
        chosen = ScheduleFilter(handler=name, paused=paused, prefix=prefix, declared=declared)
        found: list[ScheduleInfo] = []
        cursor: str | None = after
        while cursor is not None and (limit is None or len(found) < limit):
            size = MAX_PAGE if limit is None else min(MAX_PAGE, limit - len(found))
            page, cursor = await self.page(replace(chosen, after=cursor, limit=size))
            found += page
        return found

    async def put(
        self,
        schedule: Schedule,
        *,
        if_exists: IfStored = "replace",
        catch_up: bool = False,
        allow_unknown: bool = False,
        seen: Collection[str] | None = None,
    ) -> ScheduleInfo:
        """Store a schedule. If there is one of that name, replace it, keep it, or raise Conflict (`if_exists`).

        Nothing that was planned before now is fired, neither for a new schedule nor for one whose rule, calendars, bounds or count change.
        With `catch_up`, the policy for missed occurrences decides about what was planned since the start, or was not fired yet. A pause
        stays. `seen` are tags: the stored schedule must have one of them ("*": any), and an empty `seen` requires that there is none of
        that name; otherwise this raises ChangedMeanwhile.
        """
        stored = await self.upsert(schedule, if_exists=if_exists, catch_up=catch_up, allow_unknown=allow_unknown, seen=seen)
        return stored.info

    async def copy(self, name: str, to: str) -> ScheduleInfo:
        """Store what a schedule is under another name, fired from now on. A pause is not copied, nor what it counts.

            await app.schedules.copy("reports/nightly", "reports/nightly-us")

        Raises ScheduleNotFound if there is none, and ChangedMeanwhile if the other name is taken.
        """
        found = await self.get(name)
        return await self.put(replace(found.schedule, name=to), seen=())

    async def declare(self, schedules: Sequence[Schedule] | None = None) -> SchedulePlan:
        """Store what a program declares, all or nothing; by default the schedules of `@app.schedule`. Workers do it when they start.

        Removes nothing. A schedule that operators have changed stays so until its declaration changes; one that a newer revision
        (`App(revision=…)`) has declared stays as it is. Pauses stay. Nothing planned before now is fired.
        """
        return await self._reconcile(schedules, remove=False, prefix="")

    async def apply(self, schedules: Sequence[Schedule] | None = None, *, prefix: str = "") -> SchedulePlan:
        """Declare, and remove the schedules that code no longer declares, of those whose names begin with `prefix`.

        If several programs declare schedules in one store, use a prefix for each.
        """
        return await self._reconcile(schedules, remove=True, prefix=prefix)
