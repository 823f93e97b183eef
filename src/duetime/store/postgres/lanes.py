"""Lanes as a process remembers them, and how far each is known to be empty.

`hint` is where the last claim ended; claims in full flow begin there, and it may be wrong (I9). `floor` is proved by looks: no entry is
below it and none will be (I5). Without these a claim would walk over every row that was ever deleted at the head of the index and is not
vacuumed yet. docs/design/postgres.md has the invariants and a timeline of a floor.

All lanes with a collection of one handler and priority lie on a road. Where no gate tells them apart a claim walks along the road, as if
it were one lane: however many collections there are, it costs the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from duetime.clock import SECOND, Instant
from duetime.errors import StoreUnavailable
from duetime.store.postgres.connection import Database
from duetime.store.postgres.runner import Runner
from duetime.store.server_clock import monotonic
from duetime.store.sql import Statements
from duetime.store.values import MAX_COLLECTIONS, TooManyCollections

LOOK_EVERY = SECOND // 4
FORGET_EVERY = 3_600 * SECOND  # floors are found again every hour, as a safeguard
BEHIND = 20_000  # how far before the last claimed position a claim in full flow begins
REMEMBERED = 64
MAX_RETRIES = 5

ROAD_BITS = 15  # of the number of a lane on a road, for the lane; the others are the road's number

LaneKey = tuple[str, str, int]  # handler, collection, priority


class Lane:
    """One lane, or a road. `flowing`: the last claim got all that it asked for, so there is more, right behind it."""

    __slots__ = ("collection", "first", "floor", "flowing", "handler", "hint", "id", "priority")

    def __init__(self, id: int, handler: str, collection: str, priority: int, floor: Instant) -> None:
        self.id = id
        self.handler = handler
        self.collection = collection
        self.priority = priority
        self.floor = floor
        self.hint = floor
        self.flowing = False
        self.first: Instant | None = None  # the first entry, as the last look found it

    @property
    def is_road(self) -> bool:
        return -1 << (ROAD_BITS + 1) <= self.id < 0

    @property
    def start(self) -> Instant:
        return max(self.hint, self.floor) if self.flowing else self.floor


class _Look(NamedTuple):
    now: Instant
    next: int  # the number after its own transaction's


class Lanes:
    """All lanes of a store. `version` is the one that they were read at."""

    def __init__(self, database: Database, sql: Statements) -> None:
        self._database = database
        self._sql = sql
        self._by_key: dict[LaneKey, Lane] = {}
        self._asked = self._answered = 0
        self._looks: deque[_Look] = deque()
        self._looked_at = 0
        self._begun_at = monotonic()
        self.by_id: dict[int, Lane] = {}
        self.by_handler: dict[str, list[Lane]] = {}
        self.ways: dict[str, list[Lane]] = {}  # by handler: its roads, and its lanes that are on none
        self.version = -1
        self.era = 0  # counts how often floors were forgotten: what was looked at before proves nothing after
        self._set_backs = 0  # of the server's clock; floors that were proved before the last one prove nothing

    async def load(self, run: Runner | None = None) -> None:
        """Read all lanes, keeping what is known of their floors unless the clock was set back."""
        self._asked = number = self._asked + 1
        rows = await (run or self._database).rows(self._sql.all_lanes)
        if number < self._answered:
            return  # the answer to a later read is known already
        self._answered = number
        [*_, self.version, set_backs] = rows[0]
        if set_backs != self._set_backs:
            self._set_backs = set_backs
            self.forget()
        known, self.by_id, self._by_key, self.by_handler = self.by_id, {}, {}, {}
        roads: dict[int, list[Lane]] = {}
        floors: dict[int, Instant] = {}
        for id, handler, collection, priority, floor, road_floor, _, _ in rows:
            if id is not None:
                lane = known.get(id) or Lane(id, handler, collection, priority, floor)
                self.by_id[id] = self._by_key[handler, collection, priority] = lane
                self.by_handler.setdefault(handler, []).append(lane)
                if id < 0:
                    roads.setdefault(id >> ROAD_BITS, []).append(lane)
                    floors[id >> ROAD_BITS] = road_floor
        for number, lanes in roads.items():
            first = lanes[0]
            if all(lane.handler == first.handler and lane.priority == first.priority for lane in lanes):  # or a fail-over has mixed them
                self.by_id[number] = known.get(number) or Lane(number, first.handler, "", first.priority, floors[number])
        self.ways = {handler: list(dict.fromkeys(map(self.way, lanes))) for handler, lanes in self.by_handler.items()}

    def way(self, lane: Lane) -> Lane:
        """Return the road that a lane lies on, or the lane itself."""
        return self.by_id.get(lane.id >> ROAD_BITS, lane) if lane.id < 0 else lane

    def single(self, handler: str) -> list[Lane]:
        """Return all lanes of a handler, each for itself; what is proved of a road holds for its lanes."""
        lanes = self.by_handler.get(handler, [])
        for lane in lanes:
            lane.floor = max(lane.floor, self.way(lane).floor)
        return lanes

    def __getitem__(self, key: LaneKey) -> Lane:
        return self._by_key[key]

    def know(self, keys: Collection[LaneKey]) -> bool:
        return all(key in self._by_key for key in keys)

    async def ensure(self, keys: Collection[LaneKey]) -> None:
        """Make the lanes that are missing, in a transaction of our own: they exist whatever becomes of the caller's."""
        if all(key in self._by_key for key in keys):
            return
        await self.load()
        missing = [key for key in keys if key not in self._by_key]
        if not missing:
            return
        self._refuse_too_many(missing)
        # Numbers are random, and a lane whose number is taken is left out. Of 10,000 lanes that happens to one in every forty batches, so
        # it is tried again with another number.
        for _ in range(MAX_RETRIES):
            missing.sort()  # everybody in the same order, so that no two wait for each other
            await self._database.rows(self._sql.add_lanes, [list(column) for column in zip(*missing, strict=True)])
            await self.load()
            missing = [key for key in missing if key not in self._by_key]
            if not missing:
                return
        raise StoreUnavailable(
            f"a lane for {missing[0][0]} could not be made, because its number is taken or the server has just changed; try again"
        )

    def _refuse_too_many(self, missing: Sequence[LaneKey]) -> None:
        used = {handler: {lane.collection for lane in self.by_handler.get(handler, ())} for handler in {key[0] for key in missing}}
        refused: dict[str, list[str]] = {}
        for handler, collection, _ in missing:
            if collection and collection not in used[handler] and len(used[handler]) >= MAX_COLLECTIONS:
                refused.setdefault(handler, []).append(collection)
            else:
                used[handler].add(collection)
        for handler, collections in refused.items():
            raise TooManyCollections(handler, collections)

    async def restore(self, link: Runner) -> None:
        """Create lanes again that a server which has taken over does not have, with their old numbers: other processes know only those."""
        known = self._by_key
        if known:
            lanes = sorted((lane.id, *key) for key, lane in known.items())  # everybody in the same order
            await link.rows(self._sql.restore_lanes, [list(column) for column in zip(*lanes, strict=True)])
        self.forget()
        await self.load(link)
        lost = [key for key, lane in known.items() if key not in self._by_key or self._by_key[key].id != lane.id]
        if lost:
            handler, collection, priority = lost[0]
            raise StoreUnavailable(
                f"another server has taken over, where tasks of {handler} {collection} with priority {priority} stand elsewhere; try again"
            )

    # ---- floors ----

    def due_for_look(self) -> bool:
        return monotonic() - self._looked_at >= LOOK_EVERY

    def looked(self, at: Instant, oldest: int, next_number: int, firsts: Sequence[Instant | None], lanes: Sequence[Lane]) -> None:
        """Move floors as far as a look proves."""
        self._looked_at = monotonic()
        if self._looked_at - self._begun_at > FORGET_EVERY:
            self.forget()
        proved = 0
        for look in self._looks:
            if look.next <= oldest:
                proved = max(proved, look.now)
        while self._looks and self._looks[0].next <= oldest:
            self._looks.popleft()
        if len(self._looks) < REMEMBERED:
            self._looks.append(_Look(at, next_number))
        for lane, first in zip(lanes, firsts, strict=True):
            floor = proved if first is None else min(proved, first)
            lane.floor = max(lane.floor, floor - BEHIND)
            if first is not None and first == lane.first and first < lane.hint:
                lane.flowing = False  # it was there at two looks in a row, so no claim in progress has it
            lane.first = first

    def forget(self) -> None:
        """Forget all proofs and begin again."""
        self.era += 1
        self._begun_at = monotonic()
        self._looks.clear()
        for lane in self.by_id.values():
            lane.floor = lane.hint = 0
            lane.flowing = False

    async def publish(self) -> None:
        """Let processes that start later begin at our floors."""
        moved = [way for ways in self.ways.values() for way in ways if way.floor > 0]
        roads = [way for way in moved if way.is_road]
        lanes = [way for way in moved if not way.is_road]
        for statement, each in ((self._sql.publish_floors, lanes), (self._sql.publish_roads, roads)):
            if each:
                await self._database.rows(statement, [self._set_backs, [way.id for way in each], [way.floor for way in each]])

    def taken(self, lane: Lane, last: Instant, *, full: bool) -> None:
        """Remember where a claim ended."""
        lane.hint = max(lane.hint, last - BEHIND)
        lane.flowing = full


def keys_of(tasks: Iterable[Any]) -> Collection[LaneKey]:
    """Return the lanes of tasks, each once, in the order in which they are first named."""
    return {(task.handler, task.collection or "", task.priority): None for task in tasks}
