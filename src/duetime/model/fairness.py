"""Fairness: the collections of a handler share its starts by weight, so that a flood of one does not hold up the others.

A *fair* handler is one that is declared with `fair="collection"`, or whose collections somebody has given weights. As long as more of its
tasks are due than a claim takes, the claim takes them collection by collection: first of the one that has had least for its weight.
Inside a collection priority and age decide, as they do without.

What a collection has had is counted as virtual time (start-time fair queueing): its starts divided by its weight. Who had nothing due for a
while begins at the present of the others, so idleness is not saved up. Each process counts what it claims itself, and nothing is stored:
processes whose shares are each right have right shares together.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Literal, TypeAlias

import msgspec

from duetime.clock import Instant
from duetime.errors import InvalidValue

Fair: TypeAlias = Literal["collection"]

LEAST_WEIGHT, MOST_WEIGHT = 0.001, 1_000_000.0
MOST_WEIGHTS = 10_000
AT_ONCE = 64  # collections that a claim visits at first: more of each of few costs less than one of each of many
ALL_EVERY = 5.0  # seconds after which all collections are looked into; between, those of what has become due since
OVERLAP = 200_000  # microseconds before the last look: what was added then may have been committed after it
FEW = 64  # where so few collections have something due they are found anew each time


class WeightsRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How the collections of a handler share its starts. `declared`: its code says that they do, whatever their weights."""

    handler: str
    declared: bool
    weights: Mapping[str, float] = {}
    note: str = ""
    set_by: str = ""
    set_at: Instant | None = None

    @property
    def is_fair(self) -> bool:
        return self.declared or bool(self.weights)


def check_fair(handler: str, fair: object) -> Fair | None:
    """Return how a handler is fair; raise InvalidValue for anything unknown."""
    if fair is None or fair == "collection":
        return "collection" if fair else None
    raise InvalidValue(f'{handler}: fair must be "collection", so that collections share its starts, or None; got {fair!r}')


def check_weights(handler: str, weights: object) -> dict[str, float]:
    """Return weights by collection; raise InvalidValue unless each is a number that makes sense."""
    if not isinstance(weights, Mapping) or not weights:
        raise InvalidValue(f'{handler}: weights say how much each collection counts, such as {{"gold": 4, "trial": 0.5}}, got {weights!r}')
    if len(weights) > MOST_WEIGHTS:
        raise InvalidValue(f"{handler}: at most {MOST_WEIGHTS:,} collections can have a weight, got {len(weights):,}; the others count 1")
    checked = {}
    for collection, weight in weights.items():
        if not isinstance(collection, str) or "\0" in collection or len(collection) > 200:
            raise InvalidValue(f'{handler}: a collection is a text of at most 200 characters ("" stands for none), got {collection!r}')
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not LEAST_WEIGHT <= weight <= MOST_WEIGHT:
            raise InvalidValue(
                f"{handler}: the weight of {collection!r} must be a number from {LEAST_WEIGHT} to {MOST_WEIGHT:,.0f}, got {weight!r}; "
                "to stop a collection, use a gate"
            )
        checked[collection] = float(weight)
    return checked


class Shares:
    """What the collections of one handler have had, and in which lanes something may be due. Lives as long as the store object."""

    def __init__(self) -> None:
        self._had: dict[str, float] = {}  # virtual time: starts divided by the weight
        self._present = 0.0  # virtual time that every collection with something due has reached
        self._latest = 0.0  # the most that one has had
        self._order: list[tuple[float, str]] = []  # a heap of collections by what they had when they were put there
        self.lanes: dict[str, set[int]] = {}  # of collections with something due
        self.looked_at: float | None = None  # when all lanes were looked into, in seconds
        self.behind = False  # whether more was due than the last claim could take
        self.few = True  # whether so few lanes had something due that all are looked into each time
        self.since: Instant = 0  # until when what became due is known

    def had(self, collection: str) -> float:
        return max(self._had.get(collection, 0.0), self._present)

    def count(self, collections: Iterable[str], weights: Mapping[str, float]) -> None:
        """Count starts, by the collections of their tasks."""
        for name in collections:
            self._had[name] = had = self.had(name) + 1 / weights.get(name, 1.0)
            self._latest = max(self._latest, had)

    def found(self, collection: str, lane: int) -> None:
        """Note that something may be due in a lane."""
        if collection not in self.lanes:
            self._advance()
            self.lanes[collection] = set()
            heapq.heappush(self._order, (self.had(collection), collection))
        self.lanes[collection].add(lane)

    def emptied(self, collection: str, lane: int) -> None:
        """Note that nothing is due in a lane."""
        lanes = self.lanes.get(collection, set())
        lanes.discard(lane)
        if not lanes:
            self.lanes.pop(collection, None)

    def keep(self, found: Collection[int]) -> None:
        """Note that nothing is due in lanes that are not among these."""
        for collection, lanes in list(self.lanes.items()):
            lanes.intersection_update(found)
            if not lanes:
                del self.lanes[collection]

    def first(self, most: int) -> list[str]:
        """Return so many of the collections that may have something due, those that have had least first."""
        self._advance()
        first: dict[str, None] = {}
        while len(first) < most and (name := self._next()) is not None:
            heapq.heappop(self._order)
            first[name] = None
        for name in first:
            heapq.heappush(self._order, (self.had(name), name))
        return list(first)

    def _advance(self) -> None:
        """Let nobody begin before those that have something due; if none has, all begin anew."""
        self._present = max(self._present, self._latest if self._next() is None else self._order[0][0])

    def _next(self) -> str | None:
        """Return the collection that has had least of those with something due; it comes first in the order."""
        while self._order:
            had, name = self._order[0]
            if name not in self.lanes:
                heapq.heappop(self._order)
            elif had < self.had(name):
                heapq.heapreplace(self._order, (self.had(name), name))
            else:
                return name
        return None


class Fairness:
    """Which handlers are fair, by every name that they have, and what their collections have had."""

    def __init__(self) -> None:
        self.version = -1
        self.weights: dict[str, Mapping[str, float]] = {}
        self._shares: dict[str, Shares] = {}

    def __bool__(self) -> bool:
        return bool(self.weights)

    def learn(self, version: int, records: Iterable[WeightsRecord], names: Callable[[str], Collection[str]]) -> None:
        """Go by these weights from now on."""
        self.version = version
        self.weights = {}
        for shares in self._shares.values():
            shares.looked_at = None  # a gate that has opened shows other lanes
        for record in records:
            if record.is_fair:
                self.weights |= dict.fromkeys(names(record.handler), record.weights)

    def shares(self, handler: str) -> Shares:
        return self._shares.setdefault(handler, Shares())

    def count(self, claimed: Iterable[tuple[str, str | None]]) -> None:
        """Count claimed tasks, by handler and collection."""
        for handler, collection in claimed:
            if handler in self.weights:
                self.shares(handler).count((collection or "",), self.weights[handler])
