"""Locks in rows, as SQL stores keep them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from duetime.clock import Instant
from duetime.model.fences import fence_of
from duetime.store.locks import LockRecord


def read_row(row: Sequence[Any], now: Instant, holder: str | None = None) -> LockRecord:
    """Return the lock in a row: name, holder, epoch, number, beat, by, lease, taken_at, beat_at, free_at."""
    name, its_holder, epoch, number, beat, by, lease, taken_at, beat_at, free_at = row
    return LockRecord(
        name=name,
        fence=fence_of(epoch, number),
        beat=beat,
        by=by,
        lease=lease,
        taken_at=taken_at,
        beat_at=beat_at,
        free_at=free_at,
        now=now,
        taken=holder is not None and holder == its_holder,
    )
