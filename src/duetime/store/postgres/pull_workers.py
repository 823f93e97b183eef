"""Pull workers in the database: workers in other languages, whose beats a server writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from duetime.model.pulled import Left, bounded, orders
from duetime.store.postgres.connection import Link, Rejected
from duetime.store.postgres.records import is_uuid, write_json
from duetime.store.postgres.work import Working
from duetime.store.pull_workers import PullWorker, RunningTask
from duetime.store.rows.extras import read_running_task
from duetime.store.values import Claim

_decode_slots = msgspec.json.Decoder(dict[str, int]).decode
_decode_declared = msgspec.json.Decoder(dict[str, str]).decode


class PullWorkers(Working):
    """Where pull workers live."""

    async def register_pull_worker(self, worker: PullWorker) -> None:
        slots = msgspec.json.encode(dict(worker.slots)).decode()
        parameters = [self._clock.parameter, worker.id, worker.name, slots, worker.lease, write_json(worker.declared)]
        await self._opened.rows(self._sql.insert_pull_worker, parameters)

    async def pull_worker(self, id: str) -> PullWorker | None:
        rows = await self._opened.rows(self._sql.pull_worker_by_id, [id])
        if not rows:
            return None
        name, slots, lease, declared, draining = rows[0]
        return PullWorker(id=id, name=name, slots=_decode_slots(slots), lease=lease, declared=_decode_declared(declared), draining=draining)

    async def renew_pull_worker(self, id: str) -> bool:
        return bool(await self._opened.rows(self._sql.renew_pull_worker, [self._clock.parameter, id]))

    async def claim_for(self, worker: str, claim: int, wants: Mapping[str, int], total: int) -> Claim:
        limits = [name for (name,) in await self._opened.rows(self._sql.limits_of_handlers, [list(wants)])]
        try:
            if limits:
                claimed = await self._opened.once(lambda link: self._claim_within(link, limits, worker, claim, wants, total))
                await self._after_admission()
                return claimed
            return await self.claim(worker, claim, wants, total)
        except Rejected:  # the number is in use, by the primary key of claims
            return Claim([], self._clock.now(), None)
        finally:
            self._claims.forget(worker)  # it may settle at another server and claim there, and then what is remembered here is wrong

    async def _claim_within(self, link: Link, names: list[str], worker: str, claim: int, wants: Mapping[str, int], total: int) -> Claim:
        """Claim under the lock of the limits that these handlers have."""
        async with link.connection.transaction():
            rows = await link.rows(self._sql.left_of_limits, [self._clock.parameter, names])
            limits = [Left(name, _decode_slots(uses), int(free)) for name, uses, free in rows]
            for order in orders(wants, limits, self._claims.rotation(wants)):
                claimed = await self._claims.claim(worker, claim, bounded(wants, total, limits, order), total, 0, inside=link)
                if claimed.tasks:
                    break
            return claimed

    async def running_tasks(self, worker: str, ids: Sequence[str] | None = None, *, payloads: bool = True) -> list[RunningTask]:
        if ids is not None and not ids:
            return []
        rows = await self._opened.rows(self._sql.holdings, [worker, None if ids is None else [id for id in ids if is_uuid(id)], payloads])
        return [read_running_task(row) for row in rows]
