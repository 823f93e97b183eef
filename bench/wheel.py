"""Compare the timing wheel with `heapq`, one million timers at a time.

The figure: with 90% of the timers cancelled the wheel takes at most half the time of a heap with lazy deletion.

Workloads (ticks are milliseconds, seeds are fixed, all input is made before the clock starts):

- cancelled: insert all timers, due at random within ten minutes; remove 90% of them in random order; then advance in steps
  of 1 to 1,000 ticks until all is over. This is the figure.
- kept: the same without removals, with a quarter of the timers.
- running: a quarter of the timers arrive throughout ten minutes while the clock runs, each due at random within the ten
  minutes that follow; 90% are removed after at most a second, like the timeouts of attempts that end in time.

The heap is the recipe of the `heapq` documentation: entries `[deadline, number, item]`; removing marks an entry and popping
skips the marked ones. The second heap also rebuilds itself when more than half of its entries are marked, as asyncio's event
loop does; the figure does not ask for it, but it is what one would write next. All have the interface of `Wheel`, all must
return the same items in the same order, and the garbage collector stays on, as it does in a worker. Each round times the three
one after the other on the same input, in the opposite order each time; a ratio is the median over the rounds.

Run it with `python -m bench.wheel`.
"""

import argparse
import gc
import random
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple, Protocol

from duetime.runtime.wheel import Wheel

HORIZON = 600_000
STEPS = (1, 2, 5, 10, 20, 50, 200, 1000)
REMOVED = object()


class Timers(Protocol):
    """What the workloads need of a wheel or a heap."""

    def insert(self, deadline: int, item: int, /) -> Any: ...
    def remove(self, timer: Any, /) -> bool: ...
    def advance(self, now: int, /) -> list[int]: ...


class LazyHeap:
    """A heap that marks removed entries and skips them when they come up."""

    __slots__ = ("_count", "_heap", "_next_number")

    def __init__(self, now: int) -> None:
        self._heap: list[list[Any]] = []
        self._next_number = count().__next__
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def insert(self, deadline: int, item: int) -> list[Any]:
        entry = [deadline, self._next_number(), item]
        heappush(self._heap, entry)
        self._count += 1
        return entry

    def remove(self, entry: list[Any]) -> bool:
        if entry[2] is REMOVED:
            return False
        entry[2] = REMOVED
        self._count -= 1
        return True

    def advance(self, now: int) -> list[int]:
        heap = self._heap
        expired: list[int] = []
        while heap and heap[0][0] <= now:
            entry = heappop(heap)
            item = entry[2]
            if item is not REMOVED:
                expired.append(item)
                entry[2] = REMOVED
        self._count -= len(expired)
        return expired


class RebuildingHeap(LazyHeap):
    """A lazy heap that throws the marked entries out when they are the majority."""

    __slots__ = ()

    def remove(self, entry: list[Any]) -> bool:
        if entry[2] is REMOVED:
            return False
        entry[2] = REMOVED
        self._count -= 1
        if self._count * 2 < len(self._heap) > 100:
            self._heap = [entry for entry in self._heap if entry[2] is not REMOVED]
            heapify(self._heap)
        return True


class Moment(NamedTuple):
    """One step of a workload: advance to `now`, then insert and remove."""

    now: int
    deadlines: list[int]
    removals: list[int]


Workload = tuple[int, list[Moment]]


def _clock(start: int, until: int, dice: random.Random) -> list[int]:
    ticks = [start]
    while ticks[-1] < until:
        ticks.append(ticks[-1] + dice.choice(STEPS))
    return ticks


def _all_at_once(timers: int, removed: float, dice: random.Random) -> Workload:
    start = dice.randrange(1 << 41)
    deadlines = [start + dice.randint(1, HORIZON) for _ in range(timers)]
    removals = dice.sample(range(timers), round(timers * removed))
    ticks = _clock(start, start + HORIZON, dice)
    return start, [Moment(start, deadlines, removals), *(Moment(tick, [], []) for tick in ticks[1:])]


def _running(timers: int, removed: float, dice: random.Random) -> Workload:
    start = dice.randrange(1 << 41)
    moments = [Moment(tick, [], []) for tick in _clock(start, start + 2 * HORIZON, dice)]
    arrivals = sorted(start + dice.randrange(HORIZON) for _ in range(timers))
    removals: list[tuple[int, int]] = []
    step = 0
    for number, arrival in enumerate(arrivals):
        while moments[step].now < arrival:
            step += 1
        deadline = moments[step].now + dice.randint(1, HORIZON)
        moments[step].deadlines.append(deadline)
        if dice.random() < removed:
            removals.append((min(moments[step].now + dice.randint(0, 1000), deadline - 1), number))
    step = 0
    for instant, number in sorted(removals):
        while moments[step + 1].now <= instant:
            step += 1
        moments[step].removals.append(number)
    return start, moments


def _play(make: Callable[[int], Timers], workload: Workload) -> tuple[float, list[int]]:
    start, moments = workload
    gc.collect()
    began = perf_counter()
    timers = make(start)
    insert, remove, advance = timers.insert, timers.remove, timers.advance
    receipts: list[Any] = []
    expired: list[int] = []
    for now, deadlines, removals in moments:
        expired += advance(now)
        receipts += [insert(deadline, number) for number, deadline in enumerate(deadlines, len(receipts))]
        for number in removals:
            remove(receipts[number])
    return perf_counter() - began, expired


CONTESTANTS: dict[str, Callable[[int], Timers]] = {"wheel": Wheel[int], "lazy_heap": LazyHeap, "rebuilding_heap": RebuildingHeap}
# How it is made, which part of the timers is removed, and which part of the number of timers it plays (1/1, 1/4).
WORKLOADS: dict[str, tuple[Callable[[int, float, random.Random], Workload], float, int]] = {
    "cancelled": (_all_at_once, 0.9, 1),
    "kept": (_all_at_once, 0.0, 4),
    "running": (_running, 0.9, 4),
}


def run(timers: int = 1_000_000, rounds: int = 5) -> dict[str, float]:
    """Return the median seconds of each contestant and the median ratios of the wheel to the heaps, by workload."""
    figures: dict[str, float] = {}
    for workload_name, (make_workload, removed, share) in WORKLOADS.items():
        seconds: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
        for number in range(rounds):
            workload = make_workload(timers // share, removed, random.Random(number))
            results = {}
            for name in sorted(CONTESTANTS, reverse=number % 2 == 0):
                elapsed, results[name] = _play(CONTESTANTS[name], workload)
                seconds[name].append(elapsed)
            if any(expired != results["wheel"] for expired in results.values()):
                raise AssertionError(f"{workload_name}: wheel and heap disagree about what expires when")
        for name, times in seconds.items():
            figures[f"{workload_name}.{name}.seconds"] = median(times)
            if name != "wheel":
                ratios = [wheel / heap for wheel, heap in zip(seconds["wheel"], times, strict=True)]
                figures[f"{workload_name}.wheel/{name}"] = median(ratios)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the timing wheel with heapq.")
    parser.add_argument("--timers", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    figures = run(arguments.timers, arguments.rounds)
    print(f"{arguments.timers:,} timers, median of {arguments.rounds} interleaved rounds; the figure is cancelled.wheel/lazy_heap <= 0.5")
    for name, value in figures.items():
        print(f"{name:36} {value:8.3f}")


if __name__ == "__main__":
    main()
