"""The forecast: the rules of all schedules in virtual time, and the load that follows from them.

It assumes that every occurrence is fired at its planned instant, that a run begins when it is due and takes as long as earlier runs of its
handler, that a live run ends after one more such time, and that gates are open. Runs of a backfill hold nothing up, as when
schedules fire. No run waits for a slot; where runs of several
schedules need more slots than there are, the forecast reports a collision.
"""

from __future__ import annotations

import heapq
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from duetime.clock import SECOND, Instant
from duetime.model.occurrences import due_of_occurrence
from duetime.model.overlap import decide_overlap
from duetime.model.policies import Overlap, read_overlap
from duetime.model.rules import Plan
from duetime.model.schedule import ScheduleRecord

HOUR = 3_600 * SECOND
MINUTE = 60 * SECOND
QUARTER = 15 * MINUTE
DEFAULT_DURATION = 1.0  # seconds: the assumed length of a run if no run of its handler has ended yet
MOST_OCCURRENCES = 1_000_000
MOST_COLLISIONS = 1_000  # kinds of them that are reported
_NAMES_SHOWN = 20


class ForecastInput(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as the forecast needs it. `duration` is in seconds; `measured`: it comes from runs that have ended."""

    record: ScheduleRecord
    plan: Plan
    duration: float = DEFAULT_DURATION
    measured: bool = False


class Hour(msgspec.Struct, frozen=True):
    """One hour: the runs that begin in it, the seconds of work, and the most runs at once."""

    at: Instant
    runs: int
    busy: float
    most: int


class Minute(msgspec.Struct, frozen=True):
    """The minute in which the most runs begin, and their schedules, the most frequent first."""

    at: Instant
    runs: int
    schedules: tuple[str, ...]
    further: int = 0  # schedules not named


class Quarter(msgspec.Struct, frozen=True):
    """A quarter of an hour: the runs that begin in it, and their schedules, the most frequent first."""

    at: Instant
    runs: int
    schedules: tuple[str, ...]
    further: int = 0  # schedules not named


class Collision(msgspec.Struct, frozen=True, kw_only=True):
    """Runs of one handler that need more slots at once than there are, made by at least two schedules.

    `times` counts the stretches with the same schedules, the first one at `first_at`; `seconds` is their total length.
    """

    handler: str
    schedules: tuple[str, ...]
    slots: int
    most: int
    times: int
    first_at: Instant
    seconds: float


class Outlook(msgspec.Struct, frozen=True, kw_only=True):
    """What one schedule will do. `skipped` counts the occurrences that the overlap policy skips."""

    schedule: str
    handler: str
    runs: int
    skipped: int
    busy: float
    duration: float
    measured: bool


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """The expected load between two instants. `cut`: there were too many occurrences, so it ends earlier than requested.

    `quarters` are those of the first 24 hours, without the ones in which nothing begins.
    """

    start_at: Instant
    until_at: Instant
    cut: bool
    occurrences: int
    runs: int
    skipped: int
    busy: float
    most: int
    hours: tuple[Hour, ...]
    quarters: tuple[Quarter, ...]
    busiest: Minute | None
    collisions: tuple[Collision, ...]
    further_collisions: int
    schedules: tuple[Outlook, ...]


def forecast(
    prospects: Sequence[ForecastInput],
    *,
    start_at: Instant,
    until_at: Instant,
    slots: Mapping[str, int] | None = None,
    limit: int = MOST_OCCURRENCES,
) -> Forecast:
    """Run the rules from `start_at` (exclusive) until `until_at` (inclusive). `slots` are those of each handler, where known."""
    runs = Runs(prospects, start_at)
    cut_at = runs.plan_until(until_at, limit)
    until_at = until_at if cut_at is None else cut_at
    hours = tuple(_hours(runs, start_at, until_at))
    collisions, further = _collisions(runs, until_at, slots or {})
    busy = runs.busy_until(until_at)
    return Forecast(
        start_at=start_at,
        until_at=until_at,
        cut=cut_at is not None,
        occurrences=runs.occurrences,
        runs=len(runs.starts),
        skipped=sum(runs.skipped),
        busy=sum(busy),
        most=max((hour.most for hour in hours), default=0),
        hours=hours,
        quarters=tuple(_quarters(runs, min(until_at, start_at + 24 * HOUR))),
        busiest=_busiest(runs, until_at),
        collisions=collisions,
        further_collisions=further,
        schedules=tuple(
            Outlook(
                schedule=prospect.record.name,
                handler=prospect.record.spec.handler,
                runs=runs.fired[number],
                skipped=runs.skipped[number],
                busy=busy[number],
                duration=prospect.duration,
                measured=prospect.measured,
            )
            for number, prospect in enumerate(prospects)
        ),
    )


class Runs:
    """All runs, in columns because there may be a million: start, end, and the index of the schedule."""

    def __init__(self, prospects: Sequence[ForecastInput], start_at: Instant) -> None:
        self.prospects = prospects
        self.starts = array("q")
        self.ends = array("q")
        self.owners = array("q")
        self.fired = [0] * len(prospects)
        self.skipped = [0] * len(prospects)
        self.occurrences = 0
        self._courses = [_VirtualSchedule(prospect, start_at) for prospect in prospects]

    def plan_until(self, until_at: Instant, limit: int) -> Instant | None:
        """Plan the occurrences of all schedules in the order of time. Return the instant at which the limit was reached, if it was."""
        heap = [(course.first, number) for number, course in enumerate(self._courses) if course.first is not None]
        heap = [entry for entry in heap if entry[0] <= until_at]
        heapq.heapify(heap)
        while heap:
            planned_at, number = heap[0]
            if self.occurrences >= limit:
                return planned_at - 1
            self.occurrences += 1
            course = self._courses[number]
            self._decide(number, course, planned_at)
            following = course.after(planned_at)
            if following is None or following > until_at:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, (following, number))
        return None

    def _decide(self, number: int, course: _VirtualSchedule, planned_at: Instant) -> None:
        """Plan a run for one occurrence, or skip it."""
        course.live = [end for end in course.live if end > planned_at]
        start = due_of_occurrence(course.record, planned_at)
        refused, waits_for = decide_overlap(course.overlap, course.live, len(course.live) + course.backfilling(planned_at))
        if refused is not None:
            self.skipped[number] += 1
            course.skip(planned_at)
            return
        if course.overlap.kind == "cancel":
            self._cancel(course, planned_at)
        elif waits_for:
            start = max(start, waits_for[-1])
        end = start + course.length
        course.fire(len(self.starts), end)
        self.fired[number] += 1
        self.starts.append(start)
        self.ends.append(end)
        self.owners.append(number)

    def _cancel(self, course: _VirtualSchedule, at: Instant) -> None:
        """End the live runs of a schedule; one that has not begun never does."""
        for index in course.indices:
            self.ends[index] = max(self.starts[index], min(self.ends[index], at))
        course.live = []
        course.indices = []

    def busy_until(self, until_at: Instant) -> list[float]:
        """Return the seconds of work of each schedule."""
        busy = [0] * len(self.prospects)
        for start, end, owner in zip(self.starts, self.ends, self.owners, strict=True):
            if start < until_at:
                busy[owner] += min(end, until_at) - start
        return [each / SECOND for each in busy]


class _VirtualSchedule:
    """One schedule while virtual time passes."""

    def __init__(self, prospect: ForecastInput, start_at: Instant) -> None:
        record = prospect.record
        state, spec = record.state, record.spec
        self.record = record
        self.plan = prospect.plan
        self.length = round(prospect.duration * SECOND)
        self.overlap: Overlap = read_overlap(spec.overlap)
        self.left = None if spec.count is None else max(0, spec.count - state.fired)
        ending_at = start_at + self.length
        self.live = [ending_at for run in state.runs if run.kind != "backfill"]  # the ends of its live runs, the latest last
        self._backfills = (len(state.runs) - len(self.live), ending_at)
        self.indices: list[int] = []  # of the live runs that the forecast has planned, for `cancel`
        self.ended_at = ending_at if any(run.kind == "rule" for run in state.runs) else state.ended_at
        self.first = self._first(start_at)

    def _first(self, start_at: Instant) -> Instant | None:
        if self.record.state.paused is not None or self.left == 0:
            return None
        found = self.plan.after(start_at, self.ended_at)
        if self.plan.waits and self.ended_at is not None:
            waited = self.plan.waited(self.record.state.cursor, self.ended_at)
            if waited is not None and waited <= start_at:
                return start_at + 1  # its delay is over: it fires at once
        return found

    def after(self, planned_at: Instant) -> Instant | None:
        return None if self.left == 0 else self.plan.after(planned_at, self.ended_at)

    def backfilling(self, at: Instant) -> int:
        """Return how many runs of a backfill go on: they hold nothing up, but a schedule remembers a limited number of runs."""
        number, until_at = self._backfills
        return number if at < until_at else 0

    def skip(self, planned_at: Instant) -> None:
        if self.plan.waits and self.after(planned_at) is None:
            self.ended_at = planned_at  # the delay starts again, as it does when a schedule fires

    def fire(self, index: int, end: Instant) -> None:
        if self.overlap.kind == "cancel":
            self.indices.append(index)
        self.live.append(end)
        self.live.sort()
        self.ended_at = self.live[-1]
        if self.left is not None:
            self.left -= 1


def _hours(runs: Runs, start_at: Instant, until_at: Instant) -> Iterator[Hour]:
    """Walk over starts and ends once and add up the runs of each hour."""
    pairs = [(start, min(end, until_at)) for start, end in zip(runs.starts, runs.ends, strict=True) if start <= until_at]
    starts = sorted(start for start, _ in pairs)
    lasting = [(start, end) for start, end in pairs if end > start]
    begins, ends = sorted(start for start, _ in lasting), sorted(end for _, end in lasting)
    started = begun = ended = going = 0
    for hour in range(start_at // HOUR * HOUR, until_at + 1, HOUR):
        stop = hour + HOUR
        busy, most, at, before = 0, going, hour, started
        while started < len(starts) and starts[started] < stop:
            started += 1
        while True:
            start = begins[begun] if begun < len(begins) else stop
            end = ends[ended] if ended < len(ends) else stop
            moment = min(start, end, stop)
            busy += going * (moment - at)
            at = moment
            if moment >= stop:
                break
            if end <= start:  # a run that ends frees its slot for one that begins at the same instant
                going, ended = going - 1, ended + 1
            else:
                going, begun = going + 1, begun + 1
                most = max(most, going)
        yield Hour(hour, started - before, busy / SECOND, most)


def _busiest(runs: Runs, until_at: Instant) -> Minute | None:
    starts = Counter(start // MINUTE for start in runs.starts if start <= until_at)
    if not starts:
        return None
    most = max(starts.values())
    minute = min(at for at, number in starts.items() if number == most)
    owners = Counter(owner for start, owner in zip(runs.starts, runs.owners, strict=True) if start // MINUTE == minute)
    return Minute(minute * MINUTE, most, *_names(runs, owners))


def _quarters(runs: Runs, until_at: Instant) -> Iterator[Quarter]:
    owners_of: dict[int, Counter[int]] = defaultdict(Counter)
    for start, owner in zip(runs.starts, runs.owners, strict=True):
        if start <= until_at:
            owners_of[start // QUARTER][owner] += 1
    for quarter, owners in sorted(owners_of.items()):
        yield Quarter(quarter * QUARTER, owners.total(), *_names(runs, owners))


def _names(runs: Runs, owners: Counter[int]) -> tuple[tuple[str, ...], int]:
    """Return the schedules with the most runs, and how many others there are."""
    names = tuple(runs.prospects[owner].record.name for owner, _ in owners.most_common(_NAMES_SHOWN))
    return names, max(0, len(owners) - _NAMES_SHOWN)


def _collisions(runs: Runs, until_at: Instant, slots: Mapping[str, int]) -> tuple[tuple[Collision, ...], int]:
    """Return where handlers need more slots than they have, the worst first, and how many collisions were not reported."""
    owners_of: dict[str, set[int]] = defaultdict(set)
    for number, prospect in enumerate(runs.prospects):
        owners_of[prospect.record.spec.handler].add(number)
    suspects = {handler for handler, owners in owners_of.items() if handler in slots and len(owners) > 1}
    handler_of = [prospect.record.spec.handler for prospect in runs.prospects]
    events: dict[str, list[tuple[Instant, int, int]]] = defaultdict(list)
    for start, end, owner in zip(runs.starts, runs.ends, runs.owners, strict=True):
        if handler_of[owner] in suspects and start < min(end, until_at):
            events[handler_of[owner]] += [(start, 1, owner), (min(end, until_at), -1, owner)]  # an end sorts before a start
    found: dict[tuple[str, frozenset[int]], list[tuple[Instant, Instant, int]]] = defaultdict(list)
    further = 0
    for handler, moments in events.items():
        for start, end, most, owners in _crowded(sorted(moments), slots[handler]):
            if (handler, owners) in found or len(found) < MOST_COLLISIONS:
                found[handler, owners].append((start, end, most))
            else:
                further += 1
    collisions = [
        Collision(
            handler=handler,
            schedules=tuple(sorted(runs.prospects[owner].record.name for owner in owners)),
            slots=slots[handler],
            most=max(most for _, _, most in stretches),
            times=len(stretches),
            first_at=stretches[0][0],
            seconds=sum(end - start for start, end, _ in stretches) / SECOND,
        )
        for (handler, owners), stretches in found.items()
    ]
    return tuple(sorted(collisions, key=lambda each: (each.slots - each.most, -each.seconds, each.first_at, each.handler))), further


def _crowded(moments: Sequence[tuple[Instant, int, int]], slots: int) -> Iterator[tuple[Instant, Instant, int, frozenset[int]]]:
    """Yield the stretches in which runs of at least two schedules need more slots than there are."""
    going: Counter[int] = Counter()
    number = most = 0
    since: Instant | None = None
    involved: set[int] = set()
    for at, change, owner in moments:
        number += change
        going[owner] += change
        if not going[owner]:
            del going[owner]
        if number > slots:
            if since is None:
                since, most, involved = at, number, set(going)
            most = max(most, number)
            involved.add(owner)
        elif since is not None:
            if len(involved) > 1 and at > since:
                yield since, at, most, frozenset(involved)
            since = None
