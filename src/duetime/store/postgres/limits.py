"""Limits of the whole fleet, and the permits that workers have of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from duetime.clock import Instant
from duetime.model.limit import Allotment, Ask, Holder, LimitRecord, RateRule
from duetime.store.postgres.connection import Link
from duetime.store.postgres.database import OpenSchema
from duetime.store.postgres.records import write_json
from duetime.store.values import HintKind

_uses = msgspec.json.Decoder(dict[str, int]).decode
_rules = msgspec.json.Decoder(list[RateRule]).decode


class Limiting(OpenSchema):
    """Where limits live."""

    async def allot(self, worker: str, number: int, asks: Sequence[Ask]) -> list[Allotment]:
        if not asks:
            return []
        columns = [
            *([ask.limit for ask in asks], [ask.declared for ask in asks], [write_json(dict(ask.uses)) for ask in asks]),
            *([ask.held for ask in asks], [ask.want for ask in asks], [ask.seen for ask in asks]),
            *([ask.least for ask in asks], [max(ask.want, ask.need) for ask in asks], [ask.waited for ask in asks]),
        ]

        async def send(link: Link) -> list[Sequence[Any]]:
            return await link.rows(self._sql.allot, [self._clock.parameter, worker, number, *columns, link.incarnation])

        rows = await self._opened.once(send)
        if any(row[9] for row in rows):
            self._hint(HintKind.LIMITS)
        found = {row[0]: Allotment(*row[:9]) for row in rows}
        return [found[ask.limit] for ask in asks if ask.limit in found]

    async def put_limit(
        self,
        name: str,
        running: int | None,
        *,
        until_at: Instant | None,
        note: str,
        set_by: str,
        rates: Sequence[RateRule] | None = None,
    ) -> int | None:
        own_rates = None if rates is None else write_json(list(rates))
        return await self._set([name, running, until_at, note, set_by, self._clock.parameter, True, own_rates])

    async def reset_limit(self, name: str) -> int | None:
        return await self._set([name, None, None, "", "", None, False, None])

    async def _set(self, row: Sequence[object]) -> int | None:
        found = await self._opened.rows(self._sql.put_limit, list(row))
        if found:
            self._hint(HintKind.LIMITS)
        return found[0][0] if found else None

    async def limits(self) -> list[LimitRecord]:
        rows = await self._opened.rows(self._sql.all_limits)
        sums = {row[0]: (int(row[1]), row[2]) for row in await self._opened.rows(self._sql.counted_sums)} if rows else {}
        holders: dict[str, list[Holder]] = {}
        for name, *holder in await self._opened.rows(self._sql.all_permits) if rows else ():
            holders.setdefault(name, []).append(Holder(*holder))
        return [
            LimitRecord(
                name=name,
                declared=declared,
                uses=_uses(uses),
                version=version,
                own=own,
                until_at=until_at,
                note=note,
                set_by=set_by,
                set_at=set_at,
                accepted=0 if name in sums else int(accepted),
                holders=holders.get(name, []),
                by=by,
                rates=_rules(rates),
                own_rates=None if own_rates is None else _rules(own_rates),
                over=over,
                counted=sums.get(name, (0, 0))[0],
                parked=sums.get(name, (0, 0))[1],
            )
            for name, declared, uses, version, own, until_at, note, set_by, set_at, accepted, by, rates, over, own_rates in rows
        ]
