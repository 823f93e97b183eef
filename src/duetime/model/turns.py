"""Whose task is next: within a handler by priority and age, between handlers in turn."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

# Of so many places of a handler one goes to the task that has waited longest, whatever its priority.
FAIR_PLACE = 16


class LaneFacts(NamedTuple):
    """What the order of claims depends on."""

    id: int
    handler: str
    priority: int


Place = tuple[Any, ...]  # position first, then whatever makes it comparable and known to the store
Scan = Callable[[int, int], Iterator[Place]]  # due places of a lane in order, at most so many


class Turns:
    """Places given per handler, and which handler was served last. Memory of one store object."""

    def __init__(self) -> None:
        self.places: dict[str, int] = {}
        self.last_handler = ""

    def count(self, handler: str, places: int) -> None:
        self.places[handler] = self.places.get(handler, 0) + places


class Chosen(NamedTuple):
    """Places in the order to start them, each with its lane, and the lanes that have no further due place."""

    places: list[tuple[int, Place]]
    exhausted: list[int]


class _Heads:
    """The next due place of each lane of one handler, handed out by priority and now and then by age."""

    def __init__(self, lanes: Iterable[LaneFacts], limit: int, scan: Scan) -> None:
        self._scans: dict[int, Iterator[Place]] = {}
        self._heads: list[tuple[int, Place, int]] = []  # minus priority, place, lane
        self.exhausted: list[int] = []
        for lane in lanes:
            self._scans[lane.id] = scan(lane.id, limit + 1)
            self._advance(lane.id, -lane.priority)

    def _advance(self, lane: int, rank: int) -> None:
        place = next(self._scans[lane], None)
        if place is None:
            self.exhausted.append(lane)
        else:
            heapq.heappush(self._heads, (rank, place, lane))

    def pop(self, *, oldest: bool) -> tuple[int, Place] | None:
        if not self._heads:
            return None
        if oldest and len(self._heads) > 1:
            head = min(self._heads, key=lambda entry: entry[1:])
            self._heads.remove(head)
            heapq.heapify(self._heads)
        else:
            head = heapq.heappop(self._heads)
        rank, place, lane = head
        self._advance(lane, rank)
        return lane, place


def choose(lanes: Iterable[LaneFacts], wants: Mapping[str, int], total: int, turns: Turns, scan: Scan) -> Chosen:
    """Choose at most `wants[handler]` per handler and `total` in all, and note whose turn it is next."""
    by_handler: dict[str, list[LaneFacts]] = {}
    for lane in lanes:
        by_handler.setdefault(lane.handler, []).append(lane)
    # the handler after the one that was served last goes first
    order = sorted(by_handler, key=lambda name: (name <= turns.last_handler, name))
    heads = {name: _Heads(by_handler[name], min(wants[name], total), scan) for name in order}
    left = {name: wants[name] for name in order}
    places: list[tuple[int, Place]] = []
    while order and len(places) < total:
        for name in list(order):
            count = turns.places.get(name, 0)
            place = heads[name].pop(oldest=count % FAIR_PLACE == FAIR_PLACE - 1) if left[name] else None
            if place is None:
                order.remove(name)
                continue
            turns.places[name] = count + 1
            turns.last_handler = name
            left[name] -= 1
            places.append(place)
            if len(places) == total:
                break
    return Chosen(places, [lane for head in heads.values() for lane in head.exhausted])
