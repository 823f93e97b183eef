"""Which lanes a claim looks into for fair handlers, and the weights of their collections. The rules are in `model.fairness`."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

import msgspec

from duetime.clock import Instant, monotonic
from duetime.model.claim_order import ClaimOrder
from duetime.model.fairness import ALL_EVERY, AT_ONCE, FEW, OVERLAP, Shares, WeightsRecord
from duetime.model.gate import Gates
from duetime.store.sqlite.database import OpenFile
from duetime.store.sqlite.gates import next_version, read_names
from duetime.store.sqlite.lanes import Lane, is_road
from duetime.store.sqlite.records import write_json
from duetime.store.sqlite.statements import SQL
from duetime.store.values import HintKind

_decode = msgspec.json.Decoder(dict[str, float]).decode


def read_weights(connection: sqlite3.Connection) -> list[WeightsRecord]:
    rows = connection.execute(SQL.all_fairness).fetchall()
    return [
        WeightsRecord(handler=handler, declared=bool(declared), weights=_decode(weights), note=note, set_by=set_by, set_at=set_at)
        for handler, declared, weights, note, set_by, set_at in rows
    ]


def learn(connection: sqlite3.Connection, order: ClaimOrder, version: int) -> None:
    """Read which handlers are fair if that may have changed: changes count as changes of gates do."""
    if order.fairness.version != version:
        order.fairness.learn(version, read_weights(connection), read_names(connection).all)


def divided(
    connection: sqlite3.Connection,
    lanes: Mapping[int, Lane],
    wants: Mapping[str, int],
    total: int,
    until: Instant,
    order: ClaimOrder,
    gates: Gates,
    now: Instant,
) -> tuple[dict[int, Lane], frozenset[str]]:
    """Return the lanes to claim from, and which handlers are fair among them.

    Of a fair handler of which more is due than it can have, these are lanes of the collections that come first; of others all of theirs.
    """
    chosen = dict(lanes)
    fair = {lane.handler for lane in lanes.values()} & order.fairness.weights.keys()
    alone = len({lane.handler for lane in lanes.values()}) == 1
    found = set()
    for handler in fair:
        shares, need = order.fairness.shares(handler), min(wants[handler], total)
        mine = {id: lane for id, lane in lanes.items() if lane.handler == handler}
        (due,) = connection.execute(SQL.due_of_ways, (write_json(list(mine)), until, need + 1)).fetchone()
        if due > need or (due and not alone):
            first = _first(connection, handler, mine, shares, need, until, gates, now)
            chosen = {id: lane for id, lane in chosen.items() if id not in mine} | first
            found.add(handler)
    return chosen, frozenset(found)


def _first(
    connection: sqlite3.Connection,
    handler: str,
    ways: Mapping[int, Lane],
    shares: Shares,
    need: int,
    until: Instant,
    gates: Gates,
    now: Instant,
) -> dict[int, Lane]:
    """Return lanes with so many due entries together, or with all there are: of the collections that have had least."""
    _look(connection, handler, ways, shares, until)
    priorities = {lane.priority for lane in ways.values()}
    most = AT_ONCE
    while True:
        names = shares.first(most)
        lanes, due = {}, 0
        ids = [id for name in names for id in shares.lanes[name]]
        for id, _, collection, priority, count in connection.execute(SQL.due_of_lanes, (write_json(ids), until, need)).fetchall():
            if not count or gates.holding(handler, collection or None, now) is not None:
                shares.emptied(collection, id)
            elif priority in priorities:
                lanes[id] = Lane(id, handler, collection, priority)
                due += count
        if due >= need or len(names) < most:
            return lanes
        most *= 4


def _look(connection: sqlite3.Connection, handler: str, ways: Mapping[int, Lane], shares: Shares, until: Instant) -> None:
    """Learn in which lanes something is due: in all of them from time to time, otherwise in those that come to it."""
    seconds = monotonic()
    if shares.looked_at is None or seconds - shares.looked_at > ALL_EVERY or until < shares.since or shares.few:
        rows = connection.execute(SQL.all_due_lanes, (handler, until)).fetchall()
        shares.looked_at, shares.few = seconds, len(rows) <= FEW
        shares.keep({lane for _, lane in rows})
    else:
        roads = [-id for id in ways if is_road(id)]
        rows = [row for road in roads for row in connection.execute(SQL.newly_due_lanes, (road, shares.since - OVERLAP, until))]
    shares.since = until
    for collection, lane in rows:
        shares.found(collection, lane)
    for id, way in ways.items():
        if not is_road(id):
            shares.found(way.collection, id)


def declare_fair(connection: sqlite3.Connection, handler: str, fair: bool) -> bool:
    """Note whether code says that a handler is fair; return whether that is new."""
    return connection.execute(SQL.declare_fairness, {"handler": handler, "declared": fair}).fetchone() is not None


def move_weights(connection: sqlite3.Connection, handler: str, former: str) -> None:
    """Let a handler have the weights that were set by a former name of it."""
    connection.execute(SQL.copy_weights, (handler, former))
    connection.execute(SQL.delete_weights, (former,))


class Weighing(OpenFile):
    """Where weights of collections live."""

    async def put_weights(self, handler: str, weights: Mapping[str, float], *, note: str, set_by: str) -> None:
        await self._write(lambda connection: _put(connection, handler, weights, note, set_by, self._clock.now()))
        self._hint(HintKind.GATES)

    async def weights(self) -> list[WeightsRecord]:
        return await self._read(read_weights)


def _put(connection: sqlite3.Connection, handler: str, weights: Mapping[str, float], note: str, set_by: str, now: Instant) -> None:
    present = read_names(connection).present(handler)
    connection.execute(SQL.put_weights, (present, write_json(dict(weights)), note, set_by, now if weights else None))
    next_version(connection)
