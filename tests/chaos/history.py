"""A journal that handlers write, and a checker that reads from it whether the promises held.

Every process appends one JSON line per event to one file. The checker trusts nothing but these lines and, for what a task
ended as, the store's answer. An attempt also holds a lock of the kernel's on a file of its task as long as its code runs:
if another attempt finds that lock taken, two ran at once, whatever the clocks say.

| rule    | what it finds                                                                                              |
| ------- | ---------------------------------------------------------------------------------------------------------- |
| lost    | an acknowledged task that is not final, or that is called succeeded although no attempt of it returned      |
| unknown | an attempt of a task that nobody submitted                                                                  |
| overlap | two attempts of one task at once                                                                            |
| early   | a start before the due time                                                                                 |
| fence   | a start whose number is not higher than those of all earlier starts of the task                             |
| gate    | a start between the acknowledgement of a gate and its opening                                               |
| cancel  | a start after the answer `cancelled`                                                                        |
"""

import contextlib
import fcntl
import itertools
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from duetime import Context

FINAL = frozenset({"succeeded", "failed", "cancelled", "dropped", "expired"})

Kind = Literal["submitted", "start", "end", "overlap", "killed", "gate", "opened", "cancelled"]


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of the journal. `at` is CLOCK_MONOTONIC, which all processes of a machine share; `wall` the time of day."""

    kind: Kind
    at: float
    wall: float = 0.0
    pid: int = 0
    task: str = ""
    fence: int = 0
    due: float = 0.0
    handler: str = ""
    collection: str | None = None
    how: str = ""


_decode = msgspec.json.Decoder(Event).decode


class Journal:
    """Appends events to a file that many processes share: one write per line, so that lines never mix."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._locks = path.parent / "attempts"
        self._locks.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def close(self) -> None:
        os.close(self._file)

    def write(self, kind: Kind, **fields: object) -> None:
        event = Event(kind=kind, at=time.monotonic(), wall=time.time(), pid=os.getpid(), **fields)  # type: ignore[arg-type]
        os.write(self._file, msgspec.json.encode(event) + b"\n")

    def write_killed(self, pid: int) -> None:
        """Note that a process was alive until now and is about to be killed."""
        os.write(self._file, msgspec.json.encode(Event(kind="killed", at=time.monotonic(), pid=pid)) + b"\n")

    @contextlib.contextmanager
    def attempt(self, ctx: Context) -> Iterator[None]:
        """Record one attempt from its first to its last instruction."""
        task, due = ctx.task, ctx.task.due_at.timestamp()
        facts = {"task": task.id, "fence": ctx.fence, "handler": task.handler, "collection": task.collection, "due": due}
        lock = os.open(self._locks / task.id, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.write("overlap", **facts)
            self.write("start", **facts)
            try:
                yield
            except BaseException as error:
                self.write("end", how=type(error).__name__, **facts)
                raise
            self.write("end", how="returned", **facts)
        finally:
            os.close(lock)


def read(path: Path) -> list[Event]:
    """Read all events in the order of the clock; a line that a kill cut short is left out."""
    events = []
    for line in path.read_bytes().splitlines():
        with contextlib.suppress(msgspec.DecodeError):
            events.append(_decode(line))
    return sorted(events, key=lambda event: event.at)


class Attempt(msgspec.Struct):
    """One attempt as the journal tells it; without an end if its process died."""

    start: Event
    end: Event | None = None


class History:
    """What happened, and what of it should not have."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.events = list(events)
        self.attempts: dict[str, list[Attempt]] = defaultdict(list)
        for event in self.events:
            if event.kind == "start":
                self.attempts[event.task].append(Attempt(event))
            elif event.kind == "end":
                for attempt in self.attempts[event.task]:
                    if attempt.end is None and (attempt.start.fence, attempt.start.pid) == (event.fence, event.pid):
                        attempt.end = event
                        break
        self.killed = {event.pid: event.at for event in self.events if event.kind == "killed"}

    @classmethod
    def of(cls, path: Path) -> "History":
        return cls(read(path))

    def submitted(self) -> set[str]:
        return {event.task for event in self.events if event.kind == "submitted"}

    def violations(self, finals: Mapping[str, str]) -> list[str]:
        """Give everything that broke a promise; `finals` is the state of each task as the store tells it."""
        return [*self._lost(finals), *self._unknown(), *self._overlaps(), *self._early(), *self._fences(), *self._gates(), *self._cancels()]

    def _lost(self, finals: Mapping[str, str]) -> Iterator[str]:
        for task in sorted(self.submitted()):
            state = finals.get(task, "not in the store")
            if state not in FINAL:
                yield f"lost: {task} was acknowledged, but is {state}"
            returned = any(attempt.end is not None and attempt.end.how == "returned" for attempt in self.attempts.get(task, []))
            if state == "succeeded" and not returned:
                yield f"lost: {task} is called succeeded, but none of its attempts returned"

    def _unknown(self) -> Iterator[str]:
        for task in sorted(self.attempts.keys() - self.submitted()):
            yield f"unknown: {task} ran, but nobody submitted it"

    def _overlaps(self) -> Iterator[str]:
        for event in self.events:
            if event.kind == "overlap":
                yield f"overlap: attempt {event.fence} of {event.task} began while another one held its lock"
        for task, attempts in self.attempts.items():
            for first, second in itertools.pairwise(attempts):
                over_at = first.end.at if first.end else self.killed.get(first.start.pid, 0.0)
                if over_at > second.start.at:
                    yield f"overlap: attempt {second.start.fence} of {task} began before attempt {first.start.fence} had ended"

    def _early(self) -> Iterator[str]:
        for attempts in self.attempts.values():
            for attempt in attempts:
                early = attempt.start.due - attempt.start.wall
                if early > 0:
                    yield f"early: attempt {attempt.start.fence} of {attempt.start.task} began {early:.6f} s before its due time"

    def _fences(self) -> Iterator[str]:
        for task, attempts in self.attempts.items():
            highest = 0
            for attempt in attempts:
                if attempt.start.fence <= highest:
                    yield f"fence: {task} began with number {attempt.start.fence} after number {highest}"
                highest = max(highest, attempt.start.fence)

    def _gates(self) -> Iterator[str]:
        closed: dict[tuple[str, str | None], float] = {}
        for event in self.events:
            place = (event.handler, event.collection)
            if event.kind == "gate":
                closed[place] = event.at
            elif event.kind == "opened":
                closed.pop(place, None)
            elif event.kind == "start" and (place in closed or (event.handler, None) in closed):
                yield f"gate: attempt {event.fence} of {event.task} ({event.handler}) began after the gate was acknowledged"

    def _cancels(self) -> Iterator[str]:
        cancelled: set[str] = set()
        for event in self.events:
            if event.kind == "cancelled":
                cancelled.add(event.task)
            elif event.kind == "start" and event.task in cancelled:
                yield f"cancel: attempt {event.fence} of {event.task} began after `cancelled` was answered"
