"""What people are told only when it is as safe as `durable=` of the URL says: tasks, and what they change about them.

Claims, beats and ends of attempts do not wait. What is lost of them at a fail-over is done again: the task runs again.
"""

from __future__ import annotations

from collections.abc import Sequence

from duetime.model.task import NewTask
from duetime.store.redis.changing import Changing
from duetime.store.values import Added, CancelVerdict, ChangeVerdict, DeleteVerdict, Edit


class Confirmed(Changing):
    """The verbs that wait for disks and replicas."""

    async def _incarnation(self) -> str:
        return "" if self._address.durable == "memory" else (await self._opened.link()).incarnation

    async def _is_safe(self, incarnation: str) -> None:
        if self._address.durable != "memory":
            await self._opened.waiting.until(self._address.durable, incarnation)

    async def add(self, tasks: Sequence[NewTask[object]]) -> list[Added]:
        incarnation = await self._incarnation()
        added = await super().add(tasks)
        await self._is_safe(incarnation)
        return added

    async def cancel(self, ids: Sequence[str]) -> list[CancelVerdict]:
        incarnation = await self._incarnation()
        verdicts = await super().cancel(ids)
        await self._is_safe(incarnation)
        return verdicts

    async def edit(self, edits: Sequence[Edit]) -> list[ChangeVerdict]:
        incarnation = await self._incarnation()
        verdicts = await super().edit(edits)
        await self._is_safe(incarnation)
        return verdicts

    async def retry(self, ids: Sequence[str]) -> list[ChangeVerdict]:
        incarnation = await self._incarnation()
        verdicts = await super().retry(ids)
        await self._is_safe(incarnation)
        return verdicts

    async def delete(self, ids: Sequence[str]) -> list[DeleteVerdict]:
        incarnation = await self._incarnation()
        verdicts = await super().delete(ids)
        await self._is_safe(incarnation)
        return verdicts
