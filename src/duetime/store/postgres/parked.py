"""Parked tasks: their payload fits no code that has met them, so they wait for a worker that has other code."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import astuple

from duetime.store.postgres.connection import Link
from duetime.store.postgres.counting import read_usages
from duetime.store.postgres.gates import read_gates
from duetime.store.postgres.work import Admitted, Working
from duetime.store.rows.extras import read_running_task
from duetime.store.values import Claim, ClaimedTask, may_fit

AT_ONCE = 100  # tasks of one claim: their payloads may be long
_FIELDS = len(ClaimedTask.__struct_fields__)


class Parking(Working):
    """How parked tasks go on."""

    async def claim_parked(self, worker: str, claim: int, declared: Mapping[str, str], wants: Mapping[str, int]) -> Claim:
        ids = await self._fitting(declared, wants)
        if not ids:
            return Claim([], self._clock.now(), None)

        async def take(link: Link) -> tuple[Claim, Admitted | None]:
            async with link.connection.transaction():
                parameters = [self._clock.parameter, worker, claim, ids, link.incarnation]
                [[now, some]] = await link.rows(self._sql.claim_parked, parameters)
                rows = await link.rows(self._sql.holdings, [worker, ids, True]) if some else []
                running = [read_running_task(row) for row in rows]
                tasks = [ClaimedTask(*astuple(task)[:_FIELDS]) for task in running if task.claim == claim]
                usages = await read_usages(link, self._sql) if tasks else {}
                return Claim(tasks, now, None), await self._claims.admit(link, worker, claim, tasks, usages)

        claimed, admitted = await self._opened.once(take)
        refused = self._claims.note(admitted)
        if self._claims.freed or self._claims.replaced:
            await self._after_admission()
        return Claim([task for task in claimed.tasks if task.id not in refused], claimed.now, None) if refused else claimed

    async def _fitting(self, declared: Mapping[str, str], wants: Mapping[str, int]) -> list[str]:
        """Return the parked tasks that a worker may have: as many as it wants, at most AT_ONCE, none under a closed gate."""
        kinds = [row for row in await self._opened.rows(self._sql.parked_kinds) if may_fit(declared.get(row[1]), row[3])]
        if not kinds:
            return []
        gates, now = await read_gates(self._opened, self._sql, self._clock.parameter), self._clock.now()
        open_kinds = [row for row in kinds if wants.get(row[1], 0) > 0 and gates.holding(row[1], row[2] or None, now) is None]
        quotas = [min(wants[handler], AT_ONCE) for _, handler, _, _ in open_kinds]
        columns = [[row[0] for row in open_kinds], [row[3] for row in open_kinds], quotas]
        found = await self._opened.rows(self._sql.parked_of, [self._clock.parameter, *columns])
        left, chosen = dict(wants), list[str]()
        for task_id, handler in found:
            if left[handler] > 0 and len(chosen) < AT_ONCE:
                left[handler] -= 1
                chosen.append(task_id)
        return chosen
