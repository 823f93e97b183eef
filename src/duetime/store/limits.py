"""The role of the seam that is about limits; a part of `store.control`. The rules are in `model.limit`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from duetime.clock import Instant
from duetime.model.limit import Allotment, Ask, LimitRecord


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

    async def put_limit(self, name: str, running: int, *, until_at: Instant | None, note: str, set_by: str) -> int | None:
        """Let a number hold instead of the declared one, until an instant if one is given; return the new version, None if unknown."""
        ...

    async def reset_limit(self, name: str) -> int | None:
        """Let the declared number hold again; return the new version, None if there is no limit of this name."""
        ...

    async def limits(self) -> list[LimitRecord]:
        """Return all limits by name, with who has permits."""
        ...
