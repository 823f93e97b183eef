"""Keeps submissions within the quotas of their handlers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from duetime.clock import SECOND
from duetime.errors import QuotaExceeded
from duetime.model.quota import Quota, QuotaAsk
from duetime.model.task import NewTask
from duetime.store.quotas import QuotaStore


class OwnQuota(NamedTuple):
    """The quota of a handler, under its present name."""

    handler: str
    quota: Quota


class Quotas:
    """Takes what is submitted from the quotas of its handlers. `quota_of` says which quota a handler has, if any, by any of its names."""

    def __init__(self, store: QuotaStore, quota_of: Callable[[str], OwnQuota | None]) -> None:
        self._store = store
        self._quota_of = quota_of
        self.refused: Counter[str] = Counter()  # tasks, by handler

    async def take(self, tasks: Sequence[NewTask[Any]]) -> None:
        """Count new tasks. Raises QuotaExceeded if those of a handler are more than its quota allows now."""
        for error in (await self._refusals(Counter(task.handler for task in tasks))).values():
            raise error

    async def faults(self, tasks: Sequence[NewTask[Any]]) -> dict[int, QuotaExceeded]:
        """Count the tasks of a batch, all or none of each handler, and return which are refused, by index."""
        refused = await self._refusals(Counter(task.handler for task in tasks))
        return {index: refused[task.handler] for index, task in enumerate(tasks) if task.handler in refused} if refused else {}

    async def _refusals(self, counts: Counter[str]) -> dict[str, QuotaExceeded]:
        asked: dict[str, tuple[OwnQuota, int]] = {}
        for name, count in counts.items():
            found = self._quota_of(name)
            if found is not None:
                asked[name] = found, count
        if not asked:
            return {}
        asks = [QuotaAsk(own.handler, own.quota.cost(count), own.quota.cost(own.quota.at_once)) for own, count in asked.values()]
        refused: dict[str, QuotaExceeded] = {}
        for (name, (own, count)), wait in zip(asked.items(), await self._store.spend_quotas(asks), strict=True):
            if wait:
                refused[name] = _exceeded(own, count, wait)
                self.refused[own.handler] += count
        return refused


def _exceeded(own: OwnQuota, count: int, wait: int) -> QuotaExceeded:
    said = f"{own.handler} has a quota of {own.quota}"
    if count > own.quota.at_once:
        return QuotaExceeded(
            f"{said}: at most {own.quota.at_once:,} can be submitted at once, got {count:,}; submit fewer at a time", wait=None
        )
    seconds = wait / SECOND
    return QuotaExceeded(f"{said} for all programs together, and it is used up; try again in {seconds:.3g} s", wait=seconds)
