"""The role of the seam that is about quotas of submissions; a part of `store.control`. The rules are in `model.quota`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from duetime.model.quota import QuotaAsk


class QuotaStore(Protocol):
    """Where it is counted what was submitted of handlers that have a quota."""

    async def spend_quotas(self, asks: Sequence[QuotaAsk]) -> list[int]:
        """Take what is asked of each handler's quota, as far as there is enough; return for how many microseconds to wait instead, or 0.

        All who ask for the same handler are answered one after another. Any name of a handler stands for all of them. What was taken stays
        taken, whatever becomes of the submission.
        """
        ...
