"""Which lanes a claim looks into for fair handlers, and the weights of their collections. The rules are in `model.fairness`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from duetime.clock import Instant
from duetime.model.claim_order import DueEntry
from duetime.model.fairness import ALL_EVERY, AT_ONCE, FEW, OVERLAP, Shares, WeightsRecord
from duetime.model.gate import Gates
from duetime.store.postgres.database import OpenSchema
from duetime.store.postgres.gates import next_version
from duetime.store.postgres.lanes import Lane, Lanes
from duetime.store.postgres.records import write_json
from duetime.store.postgres.runner import Runner
from duetime.store.server_clock import ServerClock, monotonic
from duetime.store.sql import Statements
from duetime.store.values import HintKind

_decode = msgspec.json.Decoder(dict[str, float]).decode
_SECOND = 1_000_000
_SPARE = 8  # entries of a collection that are read beyond twice its share, in case others have less

Heads = dict[int, list[DueEntry]]


async def read_weights(run: Runner, sql: Statements) -> list[WeightsRecord]:
    return [
        WeightsRecord(handler=handler, declared=declared, weights=_decode(weights), note=note, set_by=set_by, set_at=set_at)
        for handler, declared, weights, note, set_by, set_at in await run.rows(sql.all_fairness)
    ]


class FairLanes:
    """Looks into the lanes of one fair handler, for one claim."""

    def __init__(self, run: Runner, sql: Statements, lanes: Lanes, clock: ServerClock, gates: Gates, lead: int) -> None:
        self._run = run
        self._sql = sql
        self._lanes = lanes
        self._clock = clock
        self._gates = gates
        self._lead = lead

    async def first(self, handler: str, ways: Iterable[Lane], shares: Shares, weights: Mapping[str, float], need: int) -> Heads | None:
        """Return the first entries of lanes, `need` together, of the collections that have had least; None if there are not so many.

        `ways` are the lanes and roads of the handler that are open and may be claimed from.
        """
        allowed = {way.id: way for way in ways}
        now, roads = self._clock.now(), [id for id, way in allowed.items() if way.is_road]
        looked = self._all_due(shares, now)
        if looked:
            await self._look_into_all(handler, shares, allowed)
        for way in allowed.values():
            if not way.is_road:
                shares.found(way.collection, way.id)
        most, each = AT_ONCE, 2
        since, by_id = shares.since - OVERLAP, self._lanes.by_id
        while True:
            names = shares.first(most)
            limits = self._limits(names, shares, weights, need, each)
            lanes = [by_id[id] for id in limits if id in by_id]
            parameters = [self._clock.parameter, [lane.id for lane in lanes], [self._floor(lane) for lane in lanes]]
            parameters += [[limits[lane.id] for lane in lanes], roads, since, self._lead]
            rows = await self._run.rows(self._sql.peek_each, parameters)
            shares.since = now
            heads: Heads = {}
            for id, positions in rows:
                lane = by_id.get(id)
                if lane is None:
                    continue  # it is new, and the claim will say so
                if positions and not self._holds(lane, now):
                    shares.found(lane.collection, id)
                    if id in allowed or self._lanes.way(lane).id in allowed:
                        heads[id] = [(position,) for position in positions]
                else:
                    shares.emptied(lane.collection, id)
            if sum(map(len, heads.values())) >= need:
                return heads
            if len(names) < most and all(len(heads.get(id, ())) < limit for id, limit in limits.items()):
                if looked:
                    return None
                looked = True
                await self._look_into_all(handler, shares, allowed)
            most, each = most * 4, each * 8

    def _all_due(self, shares: Shares, now: Instant) -> bool:
        return shares.few or shares.looked_at is None or monotonic() - shares.looked_at > ALL_EVERY * _SECOND or now < shares.since

    async def _look_into_all(self, handler: str, shares: Shares, allowed: Mapping[int, Lane]) -> None:
        lanes = [lane for lane in self._lanes.by_handler.get(handler, ()) if lane.id in allowed or self._lanes.way(lane).id in allowed]
        parameters = [self._clock.parameter, [lane.id for lane in lanes], [self._floor(lane) for lane in lanes], self._lead]
        found = [row[0] for row in await self._run.rows(self._sql.due_lanes, parameters)]
        shares.keep(set(found))
        for id in found:
            shares.found(self._lanes.by_id[id].collection, id)
        shares.looked_at, shares.few = monotonic(), len(lanes) <= FEW

    def _limits(self, names: Sequence[str], shares: Shares, weights: Mapping[str, float], need: int, each: int) -> dict[int, int]:
        """Return how many entries of each lane to read: more than the share of its collection, in case others have less."""
        whole = sum(weights.get(name, 1.0) for name in names)
        return {
            lane: min(need, int(each * need * weights.get(name, 1.0) / whole) + _SPARE) for name in names for lane in shares.lanes[name]
        }

    def _floor(self, lane: Lane) -> Instant:
        return max(lane.floor, self._lanes.way(lane).floor)

    def _holds(self, lane: Lane, now: Instant) -> bool:
        return self._gates.holding(lane.handler, lane.collection or None, now) is not None


async def declare_fair(run: Runner, sql: Statements, fair: Mapping[str, bool]) -> bool:
    """Note which handlers are fair as code says; return whether that is new of any."""
    return bool(await run.rows(sql.declare_fairness, [list(fair), list(fair.values())]))


class Weighing(OpenSchema):
    """Where weights of collections live."""

    async def put_weights(self, handler: str, weights: Mapping[str, float], *, note: str, set_by: str) -> None:
        async def job(run: Runner) -> None:
            await run.rows(self._sql.lock_gates)
            await run.rows(self._sql.put_weights, [handler, write_json(dict(weights)), note, set_by, self._clock.parameter])
            await next_version(run, self._sql)

        await self._opened.transaction(job)
        self._hint(HintKind.GATES)

    async def weights(self) -> list[WeightsRecord]:
        return await read_weights(self._opened, self._sql)
