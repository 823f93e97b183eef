"""Quotas of submissions in the database."""

from __future__ import annotations

from collections.abc import Sequence

from duetime.model.quota import QuotaAsk
from duetime.store.postgres.database import OpenSchema


class Quotas(OpenSchema):
    """Where it is counted what was submitted of handlers that have a quota."""

    async def spend_quotas(self, asks: Sequence[QuotaAsk]) -> list[int]:
        if not asks:
            return []
        columns = [list(column) for column in zip(*asks, strict=True)]
        rows = await self._opened.rows(self._sql.spend_quotas, [self._clock.parameter, *columns])
        return [wait for (wait,) in rows]
