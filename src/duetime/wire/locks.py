"""Locks in JSON."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from duetime.clock import to_datetime, to_instant
from duetime.store.locks import LockRecord, Seen
from duetime.wire.fields import Duration, Instant

Holder = Annotated[str, Meta(min_length=16, max_length=100, description="The caller's own secret, by which it renews and frees the lock.")]
Lease = Annotated[float, Meta(ge=0.5, le=3_600, description="Seconds without a renewal after which others may take the lock.")]


class SeenBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A holder that the caller has watched at the same beat for its whole lease, and so found dead."""

    fence: Annotated[int, Meta(ge=0, le=2**53)]
    beat: Annotated[int, Meta(ge=0, le=2**53)]


class TakeLockBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Who wants a lock."""

    holder: Holder
    lease: Lease = 15.0
    dead: SeenBody | UnsetType = UNSET


class HolderBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Who renews a lock."""

    holder: Holder


class FreeLockBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Who gives a lock back, and for how many seconds nobody shall have it."""

    holder: Holder
    rest: Duration = 0.0


class LockHeld(msgspec.Struct, frozen=True):
    """Whether the caller had the lock."""

    held: bool


class LockAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A lock that somebody holds, or that rests until `free_at`. `taken`: by this very request. `now` is the store's time."""

    name: str
    fence: int
    beat: int
    by: str
    lease: float
    taken_at: Instant
    beat_at: Instant
    free_at: Instant | None
    now: Instant
    taken: bool = False


class LockList(msgspec.Struct, frozen=True):
    """Locks that are held or rest, by name."""

    items: list[LockAnswer]


def lock_answer(record: LockRecord) -> LockAnswer:
    return LockAnswer(
        name=record.name,
        fence=record.fence,
        beat=record.beat,
        by=record.by,
        lease=record.lease,
        taken_at=to_datetime(record.taken_at),
        beat_at=to_datetime(record.beat_at),
        free_at=None if record.free_at is None else to_datetime(record.free_at),
        now=to_datetime(record.now),
        taken=record.taken,
    )


def record_of(answer: LockAnswer) -> LockRecord:
    return LockRecord(
        name=answer.name,
        fence=answer.fence,
        beat=answer.beat,
        by=answer.by,
        lease=answer.lease,
        taken_at=to_instant(answer.taken_at),
        beat_at=to_instant(answer.beat_at),
        free_at=None if answer.free_at is None else to_instant(answer.free_at),
        now=to_instant(answer.now),
        taken=answer.taken,
    )


def seen_of(body: SeenBody | UnsetType) -> Seen | None:
    return None if isinstance(body, UnsetType) else Seen(body.fence, body.beat)
