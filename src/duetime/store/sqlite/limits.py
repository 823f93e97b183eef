"""Limits of the whole fleet, and the permits that workers have of them."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence

import msgspec

from duetime.clock import Instant
from duetime.model.limit import Allotment, Ask, Holder, LimitRecord, RateRule, granted, in_force, is_mixed, yields
from duetime.model.pulled import Left
from duetime.store.sqlite.database import OpenFile
from duetime.store.sqlite.records import write_json
from duetime.store.sqlite.statements import SQL
from duetime.store.values import HintKind

_uses = msgspec.json.Decoder(dict[str, int]).decode
_rules = msgspec.json.Decoder(list[RateRule]).decode


class Limiting(OpenFile):
    """Where limits live."""

    async def allot(self, worker: str, number: int, asks: Sequence[Ask]) -> list[Allotment]:
        if not asks:
            return []
        allotments, tells = await self._write(lambda connection: _allot(connection, worker, number, asks, self._clock.now()))
        if tells:
            self._hint(HintKind.LIMITS)
        return allotments

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
        return await self._set((name, running, until_at, note, set_by, self._clock.now(), own_rates))

    async def reset_limit(self, name: str) -> int | None:
        return await self._set((name, None, None, "", "", None, None))

    async def _set(self, row: tuple[object, ...]) -> int | None:
        def job(connection: sqlite3.Connection) -> list[tuple[int]]:
            connection.execute(SQL.begin_rates_anew, (row[0], row[6]))
            found: list[tuple[int]] = connection.execute(SQL.put_limit, row).fetchall()
            return found

        found = await self._write(job)
        if found:
            self._hint(HintKind.LIMITS)
        return found[0][0] if found else None

    async def limits(self) -> list[LimitRecord]:
        return await self._read(_limits)


def _allot(connection: sqlite3.Connection, worker: str, number: int, asks: Sequence[Ask], now: Instant) -> tuple[list[Allotment], bool]:
    """Answer what a worker asks for; also return whether others should look: something is free for them, or somebody wants more."""
    if not connection.execute(SQL.worker_known, (worker,)).fetchone():
        return [], False
    accepted = dict(connection.execute(SQL.accepted_by_handler).fetchall())
    allotments, tells = [], False
    for ask in asks:
        connection.execute(SQL.declare_limit, (ask.limit, ask.declared, write_json(dict(ask.uses))))
        declared, uses, version, own, until_at = connection.execute(SQL.limit, (ask.limit,)).fetchone()
        had, wanted, last, waited_since = connection.execute(SQL.permit, (ask.limit, worker)).fetchone() or (0, 0, -1, None)
        if last >= number:
            continue
        others, lacking, sharing = connection.execute(SQL.others_permits, (ask.limit, worker)).fetchone()
        others += _taken(_uses(uses), accepted)
        running, mixed = in_force(declared, own, until_at, now), is_mixed(_uses(uses))
        own_wait = (now - ask.waited, worker) if ask.waited else None
        yielding = mixed and yields(own_wait, connection.execute(SQL.longest_waiting, (ask.limit, worker)).fetchone())
        permits = granted(running, others, ask, yielding=yielding)
        since = own_wait[0] if own_wait is not None and permits < ask.least else None
        connection.execute(SQL.put_permit, (ask.limit, worker, permits, max(ask.want, ask.need), ask.seen, number, since))
        allotments.append(Allotment(ask.limit, permits, running, version, others + permits, lacking, sharing + 1, mixed, yielding))
        tells = tells or (permits < had and lacking > 0) or (permits < ask.want and (wanted <= had or max(ask.want, ask.need) > wanted))
        tells = tells or (since is None) != (waited_since is None)
    return allotments, tells


def left_of_limits(connection: sqlite3.Connection, wants: Mapping[str, int], now: Instant) -> list[Left]:
    """Return how much is left of the limits by permits that any of these handlers has: nothing while somebody is waited for."""
    awaited = {name for (name,) in connection.execute(SQL.limits_waited_for)}
    return [
        Left(record.name, record.uses, 0 if record.name in awaited and is_mixed(record.uses) else record.running_at(now) - record.out)
        for record in _limits(connection)
        if not record.is_counted and wants.keys() & record.uses.keys()
    ]


def _taken(uses: Mapping[str, int], accepted: Mapping[str, int]) -> int:
    return sum(uses.get(handler, 0) * count for handler, count in accepted.items())


def _limits(connection: sqlite3.Connection) -> list[LimitRecord]:
    accepted = dict(connection.execute(SQL.accepted_by_handler).fetchall())
    sums = {name: (counted, parked) for name, counted, parked in connection.execute(SQL.counted_sums)}
    holders: dict[str, list[Holder]] = {}
    for name, *holder in connection.execute(SQL.all_permits):
        holders.setdefault(name, []).append(Holder(*holder))
    records = []
    for row in connection.execute(SQL.all_limits):
        name, declared, text, version, own, until_at, note, set_by, set_at, by, rates, over, own_rates = row
        uses = _uses(text)
        records.append(
            LimitRecord(
                name=name,
                declared=declared,
                uses=uses,
                version=version,
                own=own,
                until_at=until_at,
                note=note,
                set_by=set_by,
                set_at=set_at,
                accepted=0 if name in sums else _taken(uses, accepted),
                holders=holders.get(name, []),
                by=by,
                rates=_rules(rates),
                own_rates=None if own_rates is None else _rules(own_rates),
                over=over,
                counted=sums.get(name, (0, 0))[0],
                parked=sums.get(name, (0, 0))[1],
            )
        )
    return records
