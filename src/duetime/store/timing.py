"""How long the verbs of a store take in this process: counted only where somebody can read it, in servers and behind health ports."""

from __future__ import annotations

import functools
import inspect
import time
from bisect import bisect_left
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from duetime.store import Store
from duetime.store.control import Control
from duetime.store.shard import Shard

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)  # seconds
_KEPT = "_verb_times"


class VerbTimes(NamedTuple):
    """How often a verb was called and for how many seconds in all; `buckets` has how many calls took at most each of `BUCKETS`."""

    calls: int
    seconds: float
    buckets: tuple[int, ...]


class Timing:
    """Counts calls of a store's verbs."""

    def __init__(self) -> None:
        self._counts: dict[str, list[int]] = {}  # of each verb, by bucket; the last is beyond all
        self._seconds: dict[str, float] = {}

    def note(self, verb: str, seconds: float) -> None:
        counts = self._counts.get(verb)
        if counts is None:
            counts = self._counts[verb] = [0] * (len(BUCKETS) + 1)
            self._seconds[verb] = 0.0
        counts[bisect_left(BUCKETS, seconds)] += 1
        self._seconds[verb] += seconds

    def times(self) -> Mapping[str, VerbTimes]:
        """Return what was counted, by verb."""
        found = {}
        for verb, counts in sorted(self._counts.items()):
            upto, total = [], 0
            for number in counts:
                total += number
                upto.append(total)
            found[verb] = VerbTimes(total, self._seconds[verb], tuple(upto[:-1]))
        return found


def timing_of(store: Store) -> Timing:
    """Return what is counted of a store in this process; the first call begins to count."""
    kept: Timing | None = getattr(store, _KEPT, None)
    if kept is not None:
        return kept
    timing = Timing()
    setattr(store, _KEPT, timing)
    for verb in _verbs():
        if inspect.iscoroutinefunction(getattr(type(store), verb, None)):
            setattr(store, verb, _timed(store, verb, timing))
    return timing


def _timed(store: Store, verb: str, timing: Timing) -> Callable[..., Coroutine[Any, Any, Any]]:
    @functools.wraps(getattr(type(store), verb))
    async def call(*values: Any, **named: Any) -> Any:
        began = time.perf_counter()
        try:
            return await getattr(type(store), verb)(store, *values, **named)
        finally:
            timing.note(verb, time.perf_counter() - began)

    return call


def _verbs() -> Iterator[str]:
    for half in (Shard, Control):
        for role in half.__bases__:
            if role is not Protocol:
                yield from (name for name in vars(role) if not name.startswith("_"))
