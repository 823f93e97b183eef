"""Occurrences that become no task: gathered, and written down as few skips as tell it."""

from __future__ import annotations

from typing import Final

from duetime.clock import Instant
from duetime.model.rules import Plan
from duetime.model.schedule import Skip, SkipReason

MOST_COUNTED: Final = 1_000_000  # occurrences that are counted when they are left out as a whole
MOST_SINGLE: Final = 100  # occurrences in a row that are each recorded as a skip of their own; more of them become one skip


class Skips:
    """Gathers occurrences that are left out: each on its own as long as they are few, a long stretch as one."""

    def __init__(self, schedule: str, now: Instant) -> None:
        self._schedule, self._now = schedule, now
        self._told: list[Skip] = []
        self._row: list[Instant] = []  # occurrences in a row that are left out for the same reason
        self._reason = SkipReason.MISSED
        self.count = 0

    def one(self, planned_at: Instant, reason: SkipReason) -> None:
        if reason is not self._reason:
            self._end_row()
        self._reason = reason
        self._row.append(planned_at)
        self.count += 1

    def stretch(self, plan: Plan, ended_at: Instant | None, after: Instant, until: Instant, reason: SkipReason) -> None:
        """Leave out all that is planned after an instant and up to another."""
        planned = plan.between(after, until, MOST_SINGLE + 1, ended_at)
        if len(planned) <= MOST_SINGLE:
            for planned_at in planned:
                self.one(planned_at, reason)
            return
        self._end_row()
        skip = skip_between(self._schedule, plan, ended_at, after, until, reason, self._now)
        if skip is not None:
            self._told.append(skip)
            self.count += skip.count

    def told(self) -> tuple[Skip, ...]:
        self._end_row()
        return tuple(self._told)

    def _end_row(self) -> None:
        row, self._row = self._row, []
        if len(row) > MOST_SINGLE:
            self._add(row[0], row[-1], len(row))
        else:
            for planned_at in row:
                self._add(planned_at, planned_at, 1)

    def _add(self, planned_at: Instant, until_at: Instant, count: int) -> None:
        self._told.append(
            Skip(schedule=self._schedule, planned_at=planned_at, until_at=until_at, count=count, reason=self._reason, at=self._now)
        )


def skip_between(
    schedule: str, plan: Plan, ended_at: Instant | None, after: Instant, until: Instant, reason: SkipReason, now: Instant, note: str = ""
) -> Skip | None:
    """Leave out all that is planned after an instant and up to another, as one; None if nothing is."""
    first = plan.after(after, ended_at)
    if first is None or first > until:
        return None
    waited = None if ended_at is None else plan.waited(after, ended_at)
    last = max(instant for instant in (first, plan.last(after, until), waited) if instant is not None and instant <= until)
    count = count_between(plan, ended_at, after, until)
    return Skip(schedule=schedule, planned_at=first, until_at=last, count=count, reason=reason, at=now, note=note)


def count_between(plan: Plan, ended_at: Instant | None, after: Instant, until: Instant) -> int:
    """Count what is planned after an instant and up to another, no further than a million."""
    number = plan.count(after, until, MOST_COUNTED)
    if ended_at is not None:
        while (after_wait := plan.waited(after, ended_at)) is not None and after_wait <= until:
            number += plan.after(after_wait - 1) != after_wait
            after = after_wait
    return number
