"""The order in which due tasks are claimed: within a handler by priority and age, between handlers round robin."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from duetime.model.fairness import Fairness, Shares

# Of so many claimed tasks of a handler, one is the task that has waited longest, whatever its priority.
OLDEST_EVERY = 16


class LaneFacts(NamedTuple):
    """What the order of claims depends on."""

    id: int
    handler: str
    priority: int
    collection: str = ""  # asked of fair handlers only


Below: TypeAlias = Mapping[str, Mapping[int, int]]  # by handler and priority: how many tasks may have a lower one

DueEntry = tuple[Any, ...]  # the position first, then what the store needs to compare and find the entry
Scan = Callable[[int, int], Iterator[DueEntry]]  # (lane, limit): the due entries of a lane in order


class ClaimOrder:
    """How many tasks each handler was given, and which handler came last. Lives as long as the store object."""

    def __init__(self) -> None:
        self.claimed: dict[str, int] = {}
        self.last_handler = ""
        self.fairness = Fairness()

    def count(self, handler: str, tasks: int) -> None:
        self.claimed[handler] = self.claimed.get(handler, 0) + tasks

    def take_back(self, handlers: Sequence[str], last_handler: str) -> None:
        """Undo a choice of which nothing came: these handlers, in order; before it, `last_handler` came last."""
        for name in handlers:
            self.claimed[name] -= 1
        if handlers and self.last_handler == handlers[-1]:  # otherwise others have chosen since
            self.last_handler = last_handler

    def rotation(self, handlers: Iterable[str]) -> list[str]:
        """Return handlers in the order in which they are served: the one after the one that came last goes first."""
        return sorted(handlers, key=lambda name: (name <= self.last_handler, name))


class Chosen(NamedTuple):
    """Due entries in the order to start them, each with its lane, and the lanes that have no further due entry."""

    entries: list[tuple[int, DueEntry]]
    exhausted: list[int]


class _Heads:
    """The next due entry of each lane of one handler."""

    def __init__(self, lanes: Iterable[LaneFacts], limit: int, scan: Scan) -> None:
        self._scans: dict[int, Iterator[DueEntry]] = {}
        self._heads: list[tuple[int, DueEntry, int]] = []  # minus priority, entry, lane
        self.exhausted: list[int] = []
        for lane in lanes:
            self._scans[lane.id] = scan(lane.id, limit + 1)
            self._advance(lane.id, -lane.priority)

    def _advance(self, lane: int, rank: int) -> None:
        entry = next(self._scans[lane], None)
        if entry is None:
            self.exhausted.append(lane)
        else:
            heapq.heappush(self._heads, (rank, entry, lane))

    def leave_out(self, least: int) -> None:
        """Hand out no more entries of lower priorities."""
        self._heads = [head for head in self._heads if -head[0] >= least]
        heapq.heapify(self._heads)

    def pop(self, *, oldest: bool) -> tuple[int, DueEntry] | None:
        """Remove and return the entry of the highest priority, or the oldest of all."""
        if not self._heads:
            return None
        if oldest and len(self._heads) > 1:
            head = min(self._heads, key=lambda head: head[1:])
            self._heads.remove(head)
            heapq.heapify(self._heads)
        else:
            head = heapq.heappop(self._heads)
        rank, entry, lane = head
        self._advance(lane, rank)
        return lane, entry


class _FairHeads:
    """The next due entry of each collection of a fair handler: of the one first that has had least for its weight."""

    def __init__(self, lanes: Iterable[LaneFacts], limit: int, scan: Scan, shares: Shares, weights: Mapping[str, float]) -> None:
        by_collection: dict[str, list[LaneFacts]] = {}
        for lane in lanes:
            by_collection.setdefault(lane.collection, []).append(lane)
        self._weights = weights
        self._heads = {name: _Heads(each, limit, scan) for name, each in by_collection.items()}
        self._had = [(shares.had(name), name) for name in by_collection]
        heapq.heapify(self._had)

    @property
    def exhausted(self) -> list[int]:
        return [lane for heads in self._heads.values() for lane in heads.exhausted]

    def leave_out(self, least: int) -> None:
        """Hand out no more entries of lower priorities."""
        for heads in self._heads.values():
            heads.leave_out(least)

    def pop(self, *, oldest: bool) -> tuple[int, DueEntry] | None:
        """Remove and return the entry of the highest priority of the collection that comes first, or its oldest."""
        while self._had:
            had, name = self._had[0]
            entry = self._heads[name].pop(oldest=oldest)
            if entry is not None:
                heapq.heapreplace(self._had, (had + 1 / self._weights.get(name, 1.0), name))
                return entry
            heapq.heappop(self._had)
        return None


def most_of(priority: int, below: Mapping[int, int] | None, want: int) -> int:
    """Return how many tasks of a priority may be claimed of a handler."""
    return min([want, *(most for least, most in below.items() if priority < least)]) if below else want


def choose(
    lanes: Iterable[LaneFacts],
    wants: Mapping[str, int],
    total: int,
    order: ClaimOrder,
    scan: Scan,
    below: Below | None = None,
    fair: Container[str] = (),
) -> Chosen:
    """Choose at most `wants[handler]` entries per handler and `total` in all, and note in `order` what was chosen.

    Of a handler in `below`, at most so many have a priority below each of these. Of one in `fair`, collections come in the order of what
    they have had.
    """
    by_handler: dict[str, list[LaneFacts]] = {}
    for lane in lanes:
        by_handler.setdefault(lane.handler, []).append(lane)
    handlers = order.rotation(by_handler)
    heads: dict[
        str, _Heads | _FairHeads
    ] = {}  # of those that were served: if there are more handlers than `total`, the others are not looked at
    left = {name: wants[name] for name in handlers}
    allowed = {name: dict(most) for name, most in (below or {}).items()}
    priorities = {lane.id: lane.priority for each in by_handler.values() for lane in each} if allowed else {}
    entries: list[tuple[int, DueEntry]] = []
    while handlers and len(entries) < total:
        for name in list(handlers):
            count = order.claimed.get(name, 0)
            if name not in heads:
                limit = min(wants[name], total)
                if name in fair:
                    shares, weights = order.fairness.shares(name), order.fairness.weights[name]
                    heads[name] = _FairHeads(by_handler[name], limit, scan, shares, weights)
                else:
                    heads[name] = _Heads(by_handler[name], limit, scan)
            entry = heads[name].pop(oldest=count % OLDEST_EVERY == OLDEST_EVERY - 1) if left[name] else None
            if entry is None:
                handlers.remove(name)
                continue
            order.claimed[name] = count + 1
            order.last_handler = name
            left[name] -= 1
            entries.append(entry)
            for least in allowed.get(name, ()):
                if priorities[entry[0]] < least:
                    allowed[name][least] -= 1
                    if allowed[name][least] <= 0:
                        heads[name].leave_out(least)
            if len(entries) == total:
                break
    return Chosen(entries, [lane for head in heads.values() for lane in head.exhausted])
