"""The life of a task as a row of segments: what it waited for, how late it started, how long each attempt took.

A task may wait for a month and run for a millisecond, so widths grow with the logarithm of the time; the words give the times. They are
measured against the longest segment: as parts of the whole, the segments of a task with many attempts had all the same width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

import msgspec

from duetime.client.insight import AttemptInfo
from duetime.model.task import Task
from duetime.web.words import duration

Kind = Literal["wait", "late", "succeeded", "failed", "running", "other"]
MOST_ATTEMPTS = 8
WIDEST = 24


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """One stretch of time. `share` is its width, from 1 to 24, which the longest has; the style sheet has a class for each."""

    kind: Kind
    name: str
    began_at: datetime
    seconds: float
    share: int = 1

    @property
    def lasted(self) -> str:
        return duration(self.seconds)


_KINDS: dict[str, Kind] = {"succeeded": "succeeded", "failed": "failed", "fatal": "failed", "timed_out": "failed", "lost": "failed"}


def segments(task: Task[Any], attempts: Sequence[AttemptInfo], now: datetime) -> list[Segment]:
    """Return the segments from submitting until the end, or until now. Only the last attempts of many are shown."""
    shown = [each for each in attempts if each.started_at is not None][-MOST_ATTEMPTS:]
    found: list[Segment] = []
    first_due = task.due_at if not shown else _first_due(task, shown[0])
    begin = task.submitted_at
    for index, each in enumerate(shown):
        assert each.started_at is not None
        if index == 0 and each.attempt > 1:
            found.append(_segment("other", f"attempt 1 to {each.attempt - 1}" if each.attempt > 2 else "attempt 1", begin, each.started_at))
        elif index == 0:
            due = min(max(first_due, begin), each.started_at)
            found += [_segment("wait", "waited until due", begin, due), _segment("late", "late", due, each.started_at)]
        else:
            found.append(_segment("wait", "waited for the next attempt", begin, each.started_at))
        ended = each.finished_at or now
        outcome = "running" if each.outcome is None else each.outcome.value
        kind: Kind = "running" if each.outcome is None else _KINDS.get(outcome, "other")
        found.append(_segment(kind, f"attempt {each.attempt} {outcome.replace('_', ' ')}", each.started_at, ended))
        begin = ended
    if not task.final and (not shown or shown[-1].finished_at is not None):
        due = min(max(task.due_at, begin), now)
        found += [_segment("wait", "waits until due", begin, due), _segment("late", "due and not started", due, now)]
    elif task.final and not shown and task.finished_at is not None:
        found.append(_segment("wait", "waited", begin, task.finished_at))
    found = [each for each in found if each.seconds >= 0.000_001]
    longest = max((each.seconds for each in found), default=0.0)
    return [msgspec.structs.replace(each, share=share(each.seconds, longest)) for each in found]


def share(seconds: float, longest: float) -> int:
    """Return how wide a segment is beside one of the longest time. It grows with the logarithm of milliseconds."""
    return 1 + round((WIDEST - 1) * math.log10(1 + seconds * 1_000) / math.log10(1 + longest * 1_000))


def _first_due(task: Task[Any], first: AttemptInfo) -> datetime:
    """Return when the first attempt was due, as far as it is known: the stored due time is that of the last one."""
    return task.due_at if task.attempt <= 1 or first.started_at is None else min(task.due_at, first.started_at)


def _segment(kind: Kind, name: str, start: datetime, end: datetime) -> Segment:
    return Segment(kind=kind, name=name, began_at=start, seconds=max(0.0, (end - start).total_seconds()))
