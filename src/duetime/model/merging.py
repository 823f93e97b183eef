"""Several submissions with one key that become one task: `if_exists="queue_one"`, `debounce` and `throttle`.

The newest arguments win. Which submission is newer is told by when it was made, which its id says, so that one that was delayed on its
way, or is repeated, does not overwrite what came after it. Ids are made by the clocks of the hosts that submit; where such a clock is ahead
of the store's, or behind by more than `TRUSTED`, the order of arrival decides.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from duetime.clock import MILLISECOND, SECOND, Instant, to_datetime, to_instant

TRUSTED = 60 * SECOND


class Pace(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """How often a key starts tasks, in microseconds: once it was quiet for `debounce`, `max_wait` after the first at the latest; or once
    within `throttle`.
    """

    debounce: int = 0
    max_wait: int = 0
    throttle: int = 0


class Merged(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """For how many submissions a task stands, which one is the newest and when that was made; when it is due at the latest."""

    newest: str
    made_at: datetime
    submissions: int = 1
    latest_at: datetime | None = None


def made_at(task_id: str, now: Instant) -> Instant:
    """Return when a submission was made, as far as its id can be trusted."""
    said = int(task_id[:8] + task_id[9:13], 16) * MILLISECOND
    return said if now - TRUSTED <= said <= now else now


def first(task_id: str, pace: Pace | None, now: Instant) -> Merged:
    """Return what a task stands for that begins a new wait."""
    latest = None if pace is None or not pace.max_wait else to_datetime(now + pace.max_wait)
    return Merged(newest=task_id, made_at=to_datetime(made_at(task_id, now)), latest_at=latest)


def join(task_id: str, pace: Pace | None, waiting: Merged, started: bool, now: Instant) -> Merged | None:
    """Return what a waiting task stands for with one submission more; None if it has newer arguments, or these.

    One that has been `started` and waits for its next attempt begins a new wait.
    """
    made = to_datetime(made_at(task_id, now))
    if (waiting.made_at, waiting.newest) >= (made, task_id):
        return None
    latest = first(task_id, pace, now).latest_at if started or waiting.latest_at is None else waiting.latest_at
    return Merged(newest=task_id, made_at=made, submissions=waiting.submissions + 1, latest_at=latest)


def due_at(pace: Pace, merged: Merged, now: Instant) -> Instant:
    """Return when a debounced task is due."""
    quiet = now + pace.debounce
    return quiet if merged.latest_at is None else min(quiet, to_instant(merged.latest_at))
