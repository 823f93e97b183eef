"""The role of the seam that is about requests with a name of the caller's own (`Idempotency-Key`); a part of `store.control`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from duetime.clock import Instant


class NamedRequest(msgspec.Struct, frozen=True):
    """A request to submit a task. `key` is the caller's name for it, `digest` that of its body, `task` the id that its task has or gets."""

    caller: str
    key: str
    digest: str
    task: str


class RequestStore(Protocol):
    """Where named requests live. The row of a request is written before its task, and the task is added under the id that is stored here:
    a repeat of the request adds the same id again, and so repairs what a crash between the two left.
    """

    async def note_requests(self, requests: Sequence[NamedRequest]) -> list[NamedRequest]:
        """Store requests, and return what is stored under the caller and key of each: of several, also at once, the first one wins."""
        ...

    async def prune_requests(self, before: Instant, limit: int) -> int:
        """Remove up to `limit` of the oldest requests from before an instant; return how many."""
        ...
