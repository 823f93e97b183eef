"""Skips: occurrences that become no task, recorded one by one while they are few and as a stretch when they are many."""

from __future__ import annotations

from typing import Final

from duetime.clock import Instant
from duetime.model.rules import Plan
from duetime.model.schedule import Skip, SkipReason

MOST_COUNTED: Final = 1_000_000  # occurrences of one stretch that are counted
MOST_SINGLE: Final = 100  # occurrences in a row that are recorded one by one; more of them become one skip


class Skips:
    """Collects the skips of one step."""

    def __init__(self, schedule: str, now: Instant) -> None:
        self._schedule, self._now = schedule, now
        self._skips: list[Skip] = []
        self._row: list[Instant] = []  # occurrences in a row with the same reason, not yet in `_skips`
        self._reason = SkipReason.MISSED
        self.count = 0

    def add(self, planned_at: Instant, reason: SkipReason) -> None:
        if reason is not self._reason:
            self._end_row()
        self._reason = reason
        self._row.append(planned_at)
        self.count += 1

    def add_stretch(self, plan: Plan, ended_at: Instant | None, after: Instant, until: Instant, reason: SkipReason) -> None:
        """Skip everything that is planned after an instant and up to another."""
        planned = plan.between(after, until, MOST_SINGLE + 1, ended_at)
        if len(planned) <= MOST_SINGLE:
            for planned_at in planned:
                self.add(planned_at, reason)
            return
        self._end_row()
        skip = skip_between(self._schedule, plan, ended_at, after, until, reason, self._now)
        if skip is not None:
            self._skips.append(skip)
            self.count += skip.count

    def collected(self) -> tuple[Skip, ...]:
        self._end_row()
        return tuple(self._skips)

    def _end_row(self) -> None:
        row, self._row = self._row, []
        if len(row) > MOST_SINGLE:
            self._append(row[0], row[-1], len(row))
        else:
            for planned_at in row:
                self._append(planned_at, planned_at, 1)

    def _append(self, planned_at: Instant, until_at: Instant, count: int) -> None:
        self._skips.append(
            Skip(schedule=self._schedule, planned_at=planned_at, until_at=until_at, count=count, reason=self._reason, at=self._now)
        )


def skip_between(
    schedule: str, plan: Plan, ended_at: Instant | None, after: Instant, until: Instant, reason: SkipReason, now: Instant, note: str = ""
) -> Skip | None:
    """Return one skip for everything that is planned after an instant and up to another; None if nothing is."""
    first = plan.after(after, ended_at)
    if first is None or first > until:
        return None
    waited = None if ended_at is None else plan.waited(after, ended_at)
    last = max(instant for instant in (first, plan.last(after, until), waited) if instant is not None and instant <= until)
    count = count_between(plan, ended_at, after, until)
    return Skip(schedule=schedule, planned_at=first, until_at=last, count=count, reason=reason, at=now, note=note)


def count_between(plan: Plan, ended_at: Instant | None, after: Instant, until: Instant) -> int:
    """Count what is planned after an instant and up to another, at most MOST_COUNTED."""
    number = plan.count(after, until, MOST_COUNTED)
    if ended_at is not None:
        while (after_wait := plan.waited(after, ended_at)) is not None and after_wait <= until:
            number += plan.after(after_wait - 1) != after_wait
            after = after_wait
    return number
