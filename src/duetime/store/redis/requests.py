"""Named requests, in control. A request is stored before its task and holds its id, so a repeat completes what broke off in between."""

from __future__ import annotations

from collections.abc import Sequence

from duetime.clock import Instant
from duetime.store.redis.ledger import Ledger
from duetime.store.requests import NamedRequest, Requested, decide
from duetime.store.values import Added


class Requests(Ledger):
    """Where named requests live."""

    async def add_requested(self, requested: Sequence[Requested]) -> list[Added | NamedRequest]:
        if not requested:
            return []
        noted = await self._control.note_requests([request for _, request in requested if request is not None])
        decided = decide(requested, noted)
        added = await self.add(decided.tasks)
        await self._control.correct_requests(*decided.corrected(added))
        return decided.answered(added)

    async def note_requests(self, requests: Sequence[NamedRequest]) -> list[NamedRequest]:
        return await self._control.note_requests(requests)

    async def correct_requests(self, moved: Sequence[NamedRequest], forgotten: Sequence[NamedRequest]) -> None:
        await self._control.correct_requests(moved, forgotten)

    async def prune_requests(self, before: Instant, limit: int) -> int:
        return await self._control.prune_requests(before, limit)
