"""The checker: reads from the journal whether the promises held.

It trusts nothing but the journal and, for what a task ended as and by which attempt, the store's answer.

| rule    | invariant | what it finds                                                                                          |
| ------- | --------- | ------------------------------------------------------------------------------------------------------ |
| lost    | I1        | an acknowledged task that is not final, or is called succeeded although no attempt of it returned       |
| unknown | I8        | an attempt of a task that nobody submitted, or whose submitting was rolled back                         |
| overlap | I5, I9    | two attempts of one task, or of one key, at once                                                        |
| early   | I6        | a start before the due time by the store's clock                                                        |
| fence   | I3        | a start whose number is not higher than those of all earlier starts of the task                         |
| stale   | I2, I3    | a task ended by an attempt that was not its last, or that did not return                                |
| again   | I4, I14   | an attempt after one that had returned in a worker which did not die                                    |
| slots   | I10       | more attempts of a handler in one worker than it has slots                                              |
| gate    | I15       | a start between the acknowledgement of a gate and its opening                                           |
| cancel  | I15       | a start after the answer `cancelled`                                                                    |

After a fail-over to an asynchronous replica what the old server acknowledged since the replica was cut off may be gone: such
tasks may be missing, or run again under a number that they had before. They must not overlap all the same.
"""

import itertools
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from tests.chaos.journal import Event, Journal, read

__all__ = ["Attempt", "Event", "History", "Journal", "read"]

FINAL = frozenset({"succeeded", "failed", "cancelled", "dropped", "expired"})
SETTLED_WITHIN = 5.0  # seconds from the end of an attempt to its settlement, and from a claim to its start, at the very most


class Attempt(msgspec.Struct):
    """One attempt as the journal tells it; without an end if its process died."""

    start: Event
    end: Event | None = None

    @property
    def returned(self) -> bool:
        return self.end is not None and self.end.how == "returned"


class Rewind(NamedTuple):
    """A fail-over that took back what happened between two instants."""

    severed_at: float
    promoted_at: float


class History:
    """What happened, and what of it should not have."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.events = list(events)
        self.attempts: dict[str, list[Attempt]] = defaultdict(list)
        self.killed: dict[int, float] = {}  # when the test killed a worker that lived until then
        self._deaths: dict[int, float] = {}  # when a worker was certainly dead, in whatever way
        self._steps: list[tuple[float, float]] = [(float("-inf"), 0.0)]  # since when the store's clock was off by how much
        self._rewinds: list[Rewind] = []
        self._interruptions: list[float] = []  # when the server went down or its clock was set
        for event in self.events:
            self._add(event)

    def _add(self, event: Event) -> None:
        if event.kind in ("down", "severed", "stepped"):
            self._interruptions.append(event.at)
        match event.kind:
            case "start":
                self.attempts[event.task].append(Attempt(event))
            case "end":
                for attempt in self.attempts[event.task]:
                    if attempt.end is None and (attempt.start.fence, attempt.start.pid) == (event.fence, event.pid):
                        attempt.end = event
                        break
            case "killed":
                self.killed[event.pid] = self._deaths[event.pid] = event.at
            case "died":
                self._deaths.setdefault(event.pid, event.at)
            case "stepped":
                self._steps.append((event.at, event.offset))
            case "severed":
                self._rewinds.append(Rewind(event.at, float("inf")))
            case "promoted":
                self._rewinds[-1] = self._rewinds[-1]._replace(promoted_at=event.at)

    @classmethod
    def of(cls, path: Path) -> "History":
        return cls(read(path)[0])

    def submitted(self) -> set[str]:
        return {event.task for event in self.events if event.kind == "submitted"}

    def violations(
        self, finals: Mapping[str, str], ended_by: Mapping[str, int] | None = None, slots: Mapping[str, int] | None = None
    ) -> list[str]:
        """Give everything that broke a promise.

        `finals` is the state of each task as the store tells it, `ended_by` the number of the attempt that ended it, and
        `slots` how many attempts of a handler a worker may run at once.
        """
        return [
            *(*self._lost(finals), *self._unknown(), *self._overlaps(), *self._early(), *self._fences()),
            *(*self._stale(finals, ended_by or {}), *self._again(), *self._slots(slots or {}), *self._gates(), *self._cancels()),
        ]

    # ---- figures ----

    def busy_kills(self) -> int:
        """Count the kills that hit a worker in the middle of an attempt."""
        busy: set[int] = set()
        for attempt in itertools.chain.from_iterable(self.attempts.values()):
            killed_at = self.killed.get(attempt.start.worker, 0.0)
            if attempt.start.at < killed_at and (attempt.end is None or attempt.end.at > killed_at):
                busy.add(attempt.start.worker)
        return len(busy)

    def recoveries(self, but: Iterable[str] = ()) -> list[float]:
        """Give the seconds from the kill of a worker to the next start of what ran in it.

        Handlers with a long queue are left out, and what the server put off because it was down or its clock was set.
        """
        left_out = set(but)
        seconds = []
        for attempts in self.attempts.values():
            for first, second in itertools.pairwise(attempts):
                killed_at = self.killed.get(first.start.worker)
                if first.end is None and killed_at is not None and first.start.handler not in left_out:
                    seconds += [] if self.interrupted(killed_at, second.start.at) else [second.start.at - killed_at]
        return seconds

    def interrupted(self, since: float, until: float) -> bool:
        """Tell whether the server went down or its clock was set in a span of time."""
        return any(since <= at <= until for at in self._interruptions)

    def gone(self, finals: Mapping[str, str]) -> set[str]:
        """Give acknowledged tasks that a fail-over took with it."""
        return {task for task in self._perhaps_gone() if task not in finals}

    def again(self) -> int:
        """Count the attempts that were not the first of their task."""
        return sum(len(attempts) - 1 for attempts in self.attempts.values() if attempts)

    # ---- rules ----

    def _perhaps_gone(self) -> set[str]:
        return {
            event.task
            for event in self.events
            if event.kind == "submitted" and any(each.severed_at <= event.at <= each.promoted_at for each in self._rewinds)
        }

    def _over_at(self, attempt: Attempt) -> float | None:
        """Tell until when an attempt ran; None if that is not known."""
        if attempt.end is not None:
            return attempt.end.at
        return self.killed.get(attempt.start.pid)

    def _rewound(self, attempts: Iterable[Attempt]) -> bool:
        """Tell whether a fail-over may have taken back the claim or the end of an attempt; it may begin after its claim is gone."""
        for rewind, attempt in itertools.product(self._rewinds, attempts):
            over_at = attempt.end.at if attempt.end else self._deaths.get(attempt.start.worker, float("inf"))
            if attempt.start.at - SETTLED_WITHIN <= rewind.promoted_at and over_at >= rewind.severed_at - SETTLED_WITHIN:
                return True
        return False

    def _lost(self, finals: Mapping[str, str]) -> Iterator[str]:
        perhaps_gone = self._perhaps_gone()
        for task in sorted(self.submitted()):
            state = finals.get(task)
            if state is None and task in perhaps_gone:
                continue
            if state not in FINAL:
                yield f"lost: {task} was acknowledged, but is {state or 'not in the store'}"
            if state == "succeeded" and not any(attempt.returned for attempt in self.attempts.get(task, [])):
                yield f"lost: {task} is called succeeded, but none of its attempts returned"

    def _unknown(self) -> Iterator[str]:
        perhaps = {event.task for event in self.events if event.kind == "perhaps"}
        for task in sorted(self.attempts.keys() - self.submitted() - perhaps):
            yield f"unknown: {task} ran, but nobody submitted it"

    def _overlaps(self) -> Iterator[str]:
        for event in self.events:
            if event.kind == "overlap":
                yield f"overlap: attempt {event.fence} of {event.task} began while another one held its lock"
        for task, attempts in self.attempts.items():
            for first, second in itertools.pairwise(attempts):
                if (self._over_at(first) or 0.0) > second.start.at:
                    yield f"overlap: attempt {second.start.fence} of {task} began before attempt {first.start.fence} had ended"

    def _early(self) -> Iterator[str]:
        for attempts in self.attempts.values():
            for attempt in attempts:
                early = attempt.start.due - attempt.start.wall - self._ahead(attempt.start.at)
                if early > 0:
                    yield f"early: attempt {attempt.start.fence} of {attempt.start.task} began {early:.6f} s before its due time"

    def _ahead(self, at: float) -> float:
        """Tell how far the store's clock was ahead at most, between the claim of what started at an instant and that instant."""
        last = bisect_right(self._steps, (at, float("inf")))
        first = max(0, bisect_right(self._steps, (at - SETTLED_WITHIN, float("inf"))) - 1)
        return max(offset for _, offset in self._steps[first:last])

    def _fences(self) -> Iterator[str]:
        for task, attempts in self.attempts.items():
            highest = 0
            for attempt in attempts:
                if attempt.start.fence <= highest:
                    yield f"fence: {task} began with number {attempt.start.fence} after number {highest}"
                highest = max(highest, attempt.start.fence)

    def _stale(self, finals: Mapping[str, str], ended_by: Mapping[str, int]) -> Iterator[str]:
        for task, number in ended_by.items():
            attempts = self.attempts.get(task, [])
            if self._rewound(attempts):
                continue
            highest = max((attempt.start.number for attempt in attempts), default=0)
            if finals[task] in FINAL and highest > number:
                yield f"stale: {task} is {finals[task]} by attempt {number}, but attempt {highest} had begun"
            if finals[task] == "succeeded" and not any(attempt.returned for attempt in attempts if attempt.start.number == number):
                yield f"stale: {task} is called succeeded by attempt {number}, which did not return"

    def _again(self) -> Iterator[str]:
        for task, attempts in self.attempts.items():
            for first, second in itertools.pairwise(attempts):
                if first.returned and first.start.worker not in self._deaths and not self._rewound([first]):
                    number, next_number = first.start.fence, second.start.fence
                    yield f"again: attempt {next_number} of {task} began although attempt {number} had returned and its worker lived on"

    def _slots(self, slots: Mapping[str, int]) -> Iterator[str]:
        changes: dict[tuple[int, str], list[tuple[float, int]]] = defaultdict(list)
        for attempt in itertools.chain.from_iterable(self.attempts.values()):
            owner = (attempt.start.worker, attempt.start.handler)
            over_at = self._over_at(attempt)
            if attempt.start.handler in slots and over_at is not None:
                changes[owner] += [(attempt.start.at, 1), (over_at, -1)]
        for (worker, handler), each in changes.items():
            most = max(itertools.accumulate(change for _, change in sorted(each)))
            if most > slots[handler]:
                yield f"slots: worker {worker} ran {most} attempts of {handler} at once, but has {slots[handler]} slots for it"

    def _gates(self) -> Iterator[str]:
        closed: dict[tuple[str, str | None], float] = {}
        for event in self.events:
            gate = (event.handler, event.collection)
            if event.kind == "gate":
                closed[gate] = event.at
            elif event.kind == "opened":
                closed.pop(gate, None)
            elif event.kind == "start" and (gate in closed or (event.handler, None) in closed):
                yield f"gate: attempt {event.fence} of {event.task} ({event.handler}) began after the gate was acknowledged"

    def _cancels(self) -> Iterator[str]:
        cancelled: set[str] = set()
        for event in self.events:
            if event.kind == "cancelled":
                if not any(each.severed_at <= event.at <= each.promoted_at for each in self._rewinds):
                    cancelled.add(event.task)
            elif event.kind == "start" and event.task in cancelled:
                yield f"cancel: attempt {event.fence} of {event.task} began after `cancelled` was answered"


def rules(violations: Iterable[str]) -> Counter[str]:
    """Count violations by rule."""
    return Counter(violation.partition(":")[0] for violation in violations)
