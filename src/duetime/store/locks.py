"""The role of the seam that is about locks; a part of `store.control`. Who decides what: `client/locks.py`."""

from __future__ import annotations

from typing import Protocol

import msgspec

from duetime.clock import Instant


class LockRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A lock that somebody holds, or that rests until `free_at`. `beat` grows several times in `lease` seconds while the holder lives.

    `taken`: this very call has taken it. `now` is the store's time.
    """

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


class Seen(msgspec.Struct, frozen=True):
    """A holder and its beat, which the caller has watched for a whole lease without a change."""

    fence: int
    beat: int


class LockStore(Protocol):
    """Where locks are. A name that nobody holds needs nothing."""

    async def take_lock(self, name: str, holder: str, by: str, lease: float, dead: Seen | None = None) -> LockRecord:
        """Take a lock if nobody holds it, or if its holder is still at the beat at which the caller has found it `dead`.

        The record says whether it was taken, and otherwise who has it. Each one that is taken has a higher fence than all before, of
        whatever name, also after a fail-over or a restored backup. `holder` is a secret of the caller's; a repeat with the same one is
        answered as the first.
        """
        ...

    async def renew_lock(self, name: str, holder: str) -> bool:
        """Prove that the holder lives; return whether it still has the lock."""
        ...

    async def free_lock(self, name: str, holder: str, rest: float = 0.0) -> bool:
        """Give a lock back, free after so many seconds by the store's clock; return whether this holder had it."""
        ...

    async def locks(self) -> list[LockRecord]:
        """List locks that are held or rest, by name."""
        ...

    async def remove_lock(self, name: str) -> bool:
        """Take a lock from whoever has it; return whether there was one."""
        ...

    async def prune_locks(self, before: Instant) -> int:
        """Forget locks that are free, or whose holders have not been heard of since an instant."""
        ...
