"""What happened when: counts and samples in buckets of time, and the values read from them.

A bucket is a span of 10 seconds, 5 minutes or an hour since the epoch, so neither time zones nor daylight saving time move it. It has
what was counted for each handler, and under ALL for all of them together. What processes write, a **piece**, is added to the buckets of all
three steps at once: sums of sums do not depend on the order, so a piece that comes late, after a clock was set, is added like any other.

Samples say how many tasks wait and run. A sample names only handlers that have some, or had some in the sample before. So a handler that
a sampled bucket does not name has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Literal, TypeAlias, get_args

import msgspec

from duetime.clock import DAY, SECOND, Instant
from duetime.errors import InvalidValue
from duetime.model import figures
from duetime.model.figures import FigureKey, distributions
from duetime.model.outcome import Outcome

Step = Literal[10, 300, 3600]
STEPS: tuple[Step, ...] = get_args(Step)
KEPT: Mapping[Step, int] = {10: 3_600 * SECOND, 300: 2 * DAY, 3600: 92 * DAY}  # for how long the buckets of a step are kept
MOST_BUCKETS = 2_500  # of one answer: 92 days of hours are 2,208

ALL = ""  # the handler under which everything is added up
SAMPLED = "samples"  # how many samples there are of a bucket, under ALL
DUE, LATER, RUNNING, OLDEST_DUE = "due", "later", "running", "oldest_due"
SAMPLES = (DUE, LATER, RUNNING, OLDEST_DUE)
SUM, MOST, LAST = "sum", "most", "last"  # the parts of a sampled value

Counted: TypeAlias = dict[str, dict[str, int]]  # numbers by name and part, of one handler in one bucket
Piece: TypeAlias = dict[str, Counted]  # by handler
Buckets: TypeAlias = dict[tuple[Instant, str], Counted]  # by the beginning of the bucket and handler


class Load(msgspec.Struct, frozen=True):
    """What waits and runs of a handler: `oldest_due` is for how many microseconds its oldest due task has waited, 0 if none is due."""

    due: int = 0
    later: int = 0
    running: int = 0
    oldest_due: int = 0


class Sample(msgspec.Struct, frozen=True):
    """What waits and runs at an instant, by handler. Handlers without such tasks are left out."""

    at: Instant
    handlers: dict[str, Load]

    @property
    def total(self) -> Load:
        loads = self.handlers.values()
        return Load(
            due=sum(load.due for load in loads),
            later=sum(load.later for load in loads),
            running=sum(load.running for load in loads),
            oldest_due=max((load.oldest_due for load in loads), default=0),
        )

    @property
    def quiet(self) -> bool:
        """Whether nothing is due and nothing runs."""
        return not any(load.due or load.running for load in self.handlers.values())

    def says_more_than(self, last: Sample | None) -> bool:
        """Return whether it is worth keeping after the last one that was kept. While a store lies idle it is not: nothing is written."""
        return last is None or not self.quiet or self.handlers != last.handlers


# ---- writing ----


def bucket_of(instant: Instant, step: Step) -> Instant:
    """Return the beginning of the bucket that an instant belongs to."""
    return instant - instant % (step * SECOND)


def piece_of(increments: Mapping[FigureKey, int]) -> Piece:
    """Return what a process has counted as a piece."""
    piece: Piece = {}
    for (name, handler, part), count in increments.items():
        piece.setdefault(handler, {}).setdefault(name, {})[part] = count
    return piece


def piece_of_sample(sample: Sample, last: Sample | None) -> Piece:
    """Return a sample as a piece; a handler that has no tasks any more is named once."""
    gone = {} if last is None else dict.fromkeys(last.handlers.keys() - sample.handlers.keys(), Load())
    piece = {handler: _sampled(load) for handler, load in {**gone, **sample.handlers, ALL: sample.total}.items()}
    piece[ALL][SAMPLED] = {SUM: 1}
    return piece


def _sampled(load: Load) -> Counted:
    return {name: dict.fromkeys((SUM, MOST, LAST), getattr(load, name)) for name in SAMPLES}


def add(into: Counted, more: Counted) -> None:
    """Add what was counted or sampled later in the same bucket."""
    for name, parts in more.items():
        sums = into.setdefault(name, {})
        for part, number in parts.items():
            if part == MOST:
                sums[part] = max(sums.get(part, number), number)
            elif part == LAST:
                sums[part] = number
            else:
                sums[part] = sums.get(part, 0) + number


def folded(pieces: Iterable[tuple[Instant, Piece]], step: Step) -> Buckets:
    """Add pieces up, in the order in which they were written, each with the instant of its writing."""
    buckets: Buckets = {}
    for instant, piece in pieces:
        at = bucket_of(instant, step)
        for handler, counted in piece.items():
            add(buckets.setdefault((at, handler), {}), counted)
            if handler != ALL:  # samples of all handlers together are taken as such
                counts = {name: parts for name, parts in counted.items() if name not in SAMPLES}
                if counts:
                    add(buckets.setdefault((at, ALL), {}), counts)
    return buckets


# ---- reading ----


class SeriesName(StrEnum):
    """What a series can show.

    Attempts are counted at their end: `attempts` are all, then follow those of each outcome. `lateness` is from due to start, `duration`
    from start to end, both in seconds. `due`, `later` and `running` are the last sample of ten seconds and the average over longer times,
    `oldest_due` is for how many seconds the oldest due task had waited at most. What is about workers and not about a handler is counted
    for all handlers only.
    """

    ATTEMPTS = "attempts"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    FATAL = "fatal"
    RETRY_LATER = "retry_later"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    LOST = "lost"
    RELEASED = "released"
    PARKED = "parked"
    SUSPENDED = "suspended"
    RETRIES = "retries"
    TASKS_FAILED = "tasks_failed"
    LATENESS_P50 = "lateness_p50"
    LATENESS_P95 = "lateness_p95"
    LATENESS_P99 = "lateness_p99"
    DURATION_P50 = "duration_p50"
    DURATION_P95 = "duration_p95"
    DURATION_P99 = "duration_p99"
    DUE = "due"
    LATER = "later"
    RUNNING = "running"
    OLDEST_DUE = "oldest_due"
    STALE_WRITES = "stale_writes"
    LEASE_LOSSES = "lease_losses"
    WORKERS_LOST = "workers_lost"
    ATTEMPTS_LOST = "attempts_lost"
    STORE_ERRORS = "store_errors"
    BLOCKED_LOOPS = "blocked_loops"


_OUTCOMES = frozenset(Outcome)


def read_names(names: Iterable[str]) -> list[SeriesName]:
    """Return names of series; all of them if none is given."""
    found = []
    for name in names:
        try:
            found.append(SeriesName(name))
        except ValueError:
            raise InvalidValue(f"there is no series {name[:80]!r}; there are {', '.join(SeriesName)}") from None
    return list(dict.fromkeys(found)) or list(SeriesName)


def chosen_step(since: Instant, now: Instant, step: int | None = None) -> Step:
    """Return the finest step whose buckets are kept since an instant, or check the one that was asked for."""
    if step is not None:
        for each in STEPS:
            if each == step:
                return each
        raise InvalidValue(f"step must be {', '.join(map(str, STEPS[:-1]))} or {STEPS[-1]} seconds, got {step}")
    return next((each for each in STEPS if since >= now - KEPT[each]), STEPS[-1])


def beginnings(since: Instant, until: Instant, step: Step) -> range:
    """Return the beginnings of all buckets that a span of time touches."""
    found = range(bucket_of(since, step), until, step * SECOND)
    if len(found) > MOST_BUCKETS:
        raise InvalidValue(
            f"{len(found):,} values of {step} seconds are too many, at most {MOST_BUCKETS:,}; ask for a shorter time or a longer step"
        )
    return found


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """The buckets of a span of time, read for one handler or for ALL. `last` is the last sample that was kept, if there is one."""

    buckets: Mapping[tuple[Instant, str], Counted]
    last: Sample | None
    step: Step
    now: Instant

    def values(self, name: SeriesName, handler: str, at: Sequence[Instant]) -> list[float | None]:
        """Return one value for each bucket, None for those of which nothing is known.

        Nothing is known of what is not kept any more, of lateness and duration without attempts, and of what waits while nobody took
        samples. After a sample that found nothing due and nothing running the next one is taken when that changes: until then it holds.
        """
        if name.value in SAMPLES:
            return self._samples(name.value, handler, at)
        oldest = bucket_of(self.now - KEPT[self.step], self.step)
        return [None if each < oldest or each > self.now else _count(self.buckets.get((each, handler), {}), name) for each in at]

    def _samples(self, name: str, handler: str, at: Sequence[Instant]) -> list[float | None]:
        holding: float | None = None
        if self.last is not None and at and self.last.at < at[0] and self.last.quiet:
            load = self.last.total if handler == ALL else self.last.handlers.get(handler, Load())
            holding = _unit(name, getattr(load, name))
        found: list[float | None] = []
        for each in at:
            total = self.buckets.get((each, ALL), {})
            samples = total.get(SAMPLED, {}).get(SUM, 0)
            if samples:
                parts = self.buckets.get((each, handler), {}).get(name, {})
                if name == OLDEST_DUE:
                    value: float = parts.get(MOST, 0)
                else:  # a process that begins takes a sample too: the finest step shows what was found last
                    value = parts.get(LAST, 0) if self.step == STEPS[0] else parts.get(SUM, 0) / samples
                found.append(_unit(name, value))
                quiet = not total[DUE][LAST] and not total[RUNNING][LAST]
                holding = _unit(name, parts.get(LAST, 0)) if quiet else None
            else:
                found.append(holding if each <= self.now else None)
        return found


def _unit(name: str, value: float) -> float:
    return round(value / SECOND if name == OLDEST_DUE else value, 6)


def _count(counted: Counted, name: SeriesName) -> float | None:
    if name.value in _OUTCOMES:
        return counted.get(figures.ATTEMPTS, {}).get(name.value, 0)
    of, _, share = name.value.rpartition("_p")
    if of in (figures.LATENESS, figures.DURATION) and share.isdigit():
        own = {FigureKey(of, "", part): number for part, number in counted.get(of, {}).items()}
        value = distributions(own, of)[""].quantile(int(share) / 100) if own else None
        return None if value is None else round(value, 6)
    return sum(counted.get(name.value, {}).values())
