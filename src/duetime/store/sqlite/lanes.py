"""Which lanes a claim looks into, and what it chooses there.

A *way* is a lane that is on no road, or a road: all lanes with a collection of one handler and priority. A way knows from when on it may
have work, and where no gate tells the collections of a handler apart a claim walks along its roads, however many lanes they have.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from duetime.clock import Instant
from duetime.model.claim_order import Below, ClaimOrder, DueEntry, LaneFacts, choose, most_of
from duetime.model.gate import Gate, Gates
from duetime.store.sqlite.records import write_json
from duetime.store.sqlite.statements import SQL

_ROAD_BITS = 20  # of the number of a lane on a road, for the lane; the others are the road's number. The same is in the statements
_decode = msgspec.json.Decoder().decode


class Lane(NamedTuple):
    """A lane, or a road, whose number is between zero and those of lanes on roads."""

    id: int
    handler: str
    collection: str
    priority: int

    @property
    def is_on_road(self) -> bool:
        return self.id < -1 << _ROAD_BITS


def is_road(lane: int) -> bool:
    return -1 << _ROAD_BITS <= lane < 0


def _way(lane: int) -> int:
    return -(-lane >> _ROAD_BITS) if lane < -1 << _ROAD_BITS else lane


def scanning(lane: int) -> str:
    """Return the statement that reads a lane, or a road, in order."""
    return SQL.scan_road if is_road(lane) else SQL.scan_lane


def lowering(positions: Mapping[int, Instant]) -> Iterator[tuple[str, list[tuple[int, Instant]]]]:
    """Return statements, and what to run them with, that let claims look into lanes as early as these positions ask."""
    lowest: dict[int, Instant] = {}
    for lane, position in positions.items():
        way = _way(lane)
        lowest[way] = min(position, lowest.get(way, position))
    roads = [entry for entry in lowest.items() if entry[0] < 0]
    if roads:
        yield SQL.lower_road, roads
    if len(roads) < len(lowest):
        yield SQL.lower_lane, [entry for entry in lowest.items() if entry[0] > 0]


def raise_next(connection: sqlite3.Connection, lanes: Iterable[int]) -> None:
    """Remember that ways have nothing before their next entries."""
    ways = set(map(_way, lanes))
    roads = [way for way in ways if way < 0]
    if roads:
        connection.execute(SQL.raise_roads, (write_json(roads),))
    if len(roads) < len(ways):
        connection.execute(SQL.raise_lanes, (write_json([way for way in ways if way > 0]),))


def with_work(connection: sqlite3.Connection, until: Instant, gates: Gates, *, single: bool = False) -> list[Lane]:
    """Return the ways that may have something due; of roads whose lanes a gate tells apart (`single`: of all roads) each lane."""
    found = []
    for row in connection.execute(SQL.lanes_with_work, (until,)).fetchall():
        lane = Lane(*row)
        if is_road(lane.id) and (single or gates.divides(lane.handler)):
            found += [Lane(*row) for row in connection.execute(SQL.lanes_on_road, (lane.id,))]
        else:
            found.append(lane)
    return found


def open_lanes(
    connection: sqlite3.Connection, wants: Mapping[str, int], gates: Gates, now: Instant, until: Instant, through: Gate | None
) -> tuple[dict[int, Lane], Instant | None]:
    """Return the lanes that may have due work for us, and when the first of the gates in the way opens by itself."""
    lanes, opens_at = {}, None
    for lane in with_work(connection, until, gates, single=through is not None):
        if wants.get(lane.handler, 0) <= 0:
            continue
        if through is not None:
            if gates.probes(through, lane.handler, lane.collection or None, now):
                lanes[lane.id] = lane
            continue
        gate = gates.holding(lane.handler, lane.collection or None, now)
        if gate is None:
            lanes[lane.id] = lane
        elif gate.until_at is not None:
            opens_at = gate.until_at if opens_at is None else min(opens_at, gate.until_at)
    return lanes, opens_at


def choose_tasks(
    connection: sqlite3.Connection,
    lanes: Mapping[int, Lane],
    wants: Mapping[str, int],
    total: int,
    now: Instant,
    order: ClaimOrder,
    below: Below,
    fair: Container[str] = (),
) -> tuple[list[int], list[int]]:
    """Choose tasks: within a handler by priority and age, between handlers round robin. Also return which lanes are empty now.

    Of a handler in `fair`, collections come in the order of what they have had.
    """
    if len(lanes) == 1:
        # by far the most frequent case, worth its own path: no heap, one step
        (lane,) = lanes.values()
        limit = min(most_of(lane.priority, below.get(lane.handler), wants[lane.handler]), total)
        statement = SQL.first_on_road if is_road(lane.id) else SQL.first_in_lane
        tasks: list[int] = _read_rows(connection.execute(statement, (lane.id, now, limit)))
        order.count(lane.handler, len(tasks))
        return tasks, [lane.id] if len(tasks) < limit else []
    if not lanes or total <= 0:
        return [], []
    first = frozenset(order.rotation({lane.handler for lane in lanes.values()})[:total])
    near = [lane.id for lane in lanes.values() if lane.handler in first]
    few = total // len(near) + 2
    heads: dict[int, list[list[int]]] = dict(_read_rows(connection.execute(SQL.first_in_lanes, (write_json(near), now, few))))

    def scan(lane: int, limit: int) -> Iterator[DueEntry]:
        """Return entries; the task's number keeps the order of submitting among equal positions.

        The lanes that come first have their share read in one step; one that has to give more, or comes later, is read by itself.
        """
        head = heads.get(lane, [])
        yield from map(tuple, head)
        if len(head) == few or lane not in heads:
            yield from (row[1:3] for row in connection.execute(scanning(lane), (lane, now, limit, len(head))))

    facts = [LaneFacts(lane.id, lane.handler, lane.priority, lane.collection) for lane in lanes.values()]
    entries, exhausted = choose(facts, wants, total, order, scan, below, fair)
    return [entry[1] for _, entry in entries], exhausted


def next_at(connection: sqlite3.Connection, wants: Mapping[str, int], until: Instant, unfinished: Collection[int]) -> Instant | None:
    """Return the first position after an instant, in ways that are empty until then and in these lanes, which may not be."""
    instants = []
    for statement in (SQL.lanes_later, SQL.roads_later):
        for handler, position in connection.execute(statement, (until,)):
            if wants.get(handler, 0) > 0:
                instants.append(position)
                break
    if unfinished:
        (position,) = connection.execute(SQL.next_in_lanes, (until, write_json(list(unfinished)))).fetchone()
        if position is not None:
            instants.append(position)
    return min(instants, default=None)


def _read_rows(cursor: sqlite3.Cursor) -> list[Any]:
    """Read an answer that comes as one JSON array."""
    rows: list[Any] = _decode(cursor.fetchone()[0])
    return rows
