"""Operations: an act on all tasks that match a filter, stored, performed batch by batch, and its rules.

A batch is planned first: the ids of the next tasks, with the cursor behind them, are written into the operation. Then it is acted on, and
each transaction that acts also takes the ids out of the batch and counts the answers. So whoever dies wherever, each task is acted on and
counted once, and the next process goes on with what is left of the batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec
from msgspec.structs import replace

from duetime.clock import SECOND, Instant
from duetime.errors import InvalidValue
from duetime.model.query import Query
from duetime.model.task import FINAL, State, TaskRecord

BATCH = 500
MOST_RATE = 1_000_000.0
LAST_STAGE = 2  # of a canary: one task, a share of them, the rest


class Verb(StrEnum):
    """What is done to each task."""

    CANCEL = "cancel"
    RETRY = "retry"
    EDIT = "edit"


class OperationState(StrEnum):
    """RUNNING: it goes on. PAUSED: until somebody resumes it. DONE: all that matched were acted on. STOPPED: by somebody. FAILED: it
    cannot go on, and `note` says why."""

    RUNNING = "running"
    PAUSED = "paused"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"


ENDED = frozenset({OperationState.DONE, OperationState.STOPPED, OperationState.FAILED})

# All states of a verb are live, or all are final, so one walk meets each task once whatever its state becomes meanwhile.
_STATES = {
    Verb.CANCEL: (State.BLOCKED, State.PENDING, State.RUNNING),
    Verb.RETRY: (State.FAILED, State.CANCELLED, State.DROPPED, State.EXPIRED),
    Verb.EDIT: (State.BLOCKED, State.PENDING),
}


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """What an edit changes; None leaves a part as it is."""

    due_at: Instant | None = None
    priority: int | None = None
    collection: str | None = None


class Canary(msgspec.Struct, frozen=True, kw_only=True):
    """Retry one task first, then `share` percent of them, then the rest. Each stage waits until its tasks have ended, and the operation
    stops when more than `failed` percent of them have failed again.
    """

    share: float = 1.0
    failed: float = 10.0

    def __post_init__(self) -> None:
        if not 0 < self.share <= 100 or not 0 <= self.failed < 100:
            raise InvalidValue(
                f"a canary's share is over 0 and up to 100 percent, failed from 0 to below 100; got {self.share:g} and {self.failed:g}"
            )


def plan_text(count: int, canary: Canary | None = None, rate: float | None = None) -> str:
    """Return in words how so many tasks are retried: in which stages, when it stops, and how fast."""
    speed = "" if rate is None else f", at most {rate:g} a second"
    if canary is None:
        return f"{_tasks(count)}, one batch after the other{speed}"
    few = max(1, math.ceil(count * canary.share / 100))
    sizes = [1, min(few, count - 1), count - 1 - few]
    names = ["1 task first", f"then {sizes[1]:,} ({canary.share:g} %)", f"then the other {sizes[2]:,}"]
    stages = [name for name, size in zip(names, sizes, strict=True) if size > 0]
    waits = ", each stage when the one before it has ended" if len(stages) > 1 else ""
    return f"{', '.join(stages)}{waits}{speed}; it stops when more than {canary.failed:g} % of a stage fail again"


def _tasks(count: int) -> str:
    return "1 task" if count == 1 else f"{count:,} tasks"


class OperationSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody asked for. `rate` is at most so many tasks per second; `request` names the request that asked, for a repeat."""

    verb: Verb
    query: Query
    changes: Changes | None = None
    rate: float | None = None
    canary: Canary | None = None
    made_by: str = ""
    request: str = ""

    def __post_init__(self) -> None:
        query, possible = self.query, _STATES[self.verb]
        if query == Query(limit=query.limit, cursor=query.cursor, brief=query.brief, scan=query.scan):
            raise InvalidValue("a verb on many tasks needs at least one filter, for example a handler or a state")
        for state in query.wanted:
            if state not in possible:
                raise InvalidValue(f"tasks that are {state} cannot be changed so; possible are {', '.join(sorted(possible))}")
        if (self.changes is not None and self.changes != Changes()) != (self.verb is Verb.EDIT):
            raise InvalidValue("an edit needs something to change, and only an edit: due time, priority or collection")
        if self.canary is not None and self.verb is not Verb.RETRY:
            raise InvalidValue(f"a canary is for a retry, not for {self.verb}")
        if self.rate is not None and not 0 < self.rate <= MOST_RATE:
            raise InvalidValue(f"rate must be more than 0 and at most {MOST_RATE:,.0f} tasks per second, got {self.rate}")

    @property
    def states(self) -> tuple[State, ...]:
        """The states whose tasks it acts on; none if no task can match. Without a state, a retry is for those that failed."""
        if self.query.wanted or self.query.nothing:
            return self.query.wanted
        return (State.FAILED,) if self.verb is Verb.RETRY else _STATES[self.verb]


class OperationProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far it is. `cursor` is where the next page begins, and `planned` says that there is none. `next_at` is when the next batch may be
    planned. `answers` counts tasks by verdict.

    Of a canary: its `stage`, how many tasks that may take (`allowed`) and has `taken`, which of them have not ended yet (`watched`), and
    how many have failed again.
    """

    cursor: str | None = None
    planned: bool = False
    next_at: Instant = 0
    answers: Mapping[str, int] = {}
    note: str = ""
    stage: int = 0
    allowed: int = 1
    taken: int = 0
    failed: int = 0
    watched: tuple[str, ...] = ()


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """An operation as it is stored. `version` grows with each write; `batch` are the ids that were planned and not acted on yet."""

    id: str
    spec: OperationSpec
    state: OperationState = OperationState.RUNNING
    version: int = 0
    started_at: Instant = 0
    ended_at: Instant | None = None
    progress: OperationProgress = OperationProgress()
    batch: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """How many tasks were acted on."""
        return sum(self.progress.answers.values())


def next_page(operation: Operation) -> Query:
    """Return the query of the tasks to act on next: those of the filter that were there when it started, and were final by then."""
    spec, query = operation.spec, operation.spec.query
    beyond = operation.started_at + 1
    bounds = {"submitted_before": _earlier(query.submitted_before, beyond)}
    if spec.verb is Verb.RETRY:
        bounds["finished_before"] = _earlier(query.finished_before, beyond)
    size, cursor = batch_size(spec.rate), operation.progress.cursor
    if in_canary(operation):
        size = max(1, min(size, operation.progress.allowed - operation.progress.taken))
    return replace(query, state=None, states=spec.states, limit=size, cursor=cursor, brief=True, **bounds)


def in_canary(operation: Operation) -> bool:
    """Return whether the first one or the first few are tried."""
    return operation.spec.canary is not None and operation.progress.stage < LAST_STAGE


def awaits_canary(operation: Operation) -> bool:
    """Return whether all tasks of the present stage were retried, so that their ends decide."""
    progress = operation.progress
    return in_canary(operation) and not operation.batch and (progress.taken >= progress.allowed or progress.planned)


def judged(operation: Operation, found: Mapping[str, TaskRecord | None], total: int, now: Instant) -> Operation:
    """Return the operation after a look at tasks of its canary: it waits for others, begins the next stage, or stops.

    Only failures of the kind that the filter asks for count, if it asks for one. `total` is how many tasks match in all.
    """
    canary, progress, wanted = operation.spec.canary, operation.progress, operation.spec.query.fingerprint
    assert canary is not None
    over = {task: record for task, record in found.items() if record is None or record.state in FINAL}
    again = [each for each in over.values() if each is not None and each.state is State.FAILED and wanted in (None, _kind(each))]
    failed = progress.failed + len(again)
    watched = tuple(task for task in progress.watched if task not in over)
    if failed * 100 > canary.failed * max(1, progress.taken):
        note = f"canary: {failed:,} of {progress.taken:,} tasks failed again; the rest was left alone"
        stopped = replace(operation, progress=replace(progress, failed=failed, watched=()))
        return ended(stopped, OperationState.STOPPED, now, note)
    if watched or progress.planned:
        after = replace(progress, failed=failed, watched=watched, stage=progress.stage if watched else LAST_STAGE)
    else:
        after = replace(
            progress, stage=progress.stage + 1, allowed=max(1, math.ceil(total * canary.share / 100)), taken=0, failed=0, watched=()
        )
    return replace(operation, progress=after, version=operation.version + 1)


def _kind(record: TaskRecord) -> str:
    """Return the fingerprint of the failure that a task ended with."""
    return "" if record.error is None else record.error.fingerprint


def _earlier(given: Instant | None, bound: Instant) -> Instant:
    return bound if given is None else min(given, bound)


def batch_size(rate: float | None) -> int:
    """Return how many tasks to plan at once: no more than a second of a rate, so that it is even and a stop is heard soon."""
    return BATCH if rate is None else max(1, min(BATCH, math.floor(rate)))


def planned(operation: Operation, found: Sequence[TaskRecord], cursor: str | None, now: Instant) -> Operation:
    """Return the operation with its next batch, which is what a page has. A task that was told to stop before is not told again."""
    spec, progress = operation.spec, operation.progress
    batch = tuple(record.id for record in found if not (spec.verb is Verb.CANCEL and record.cancelling))
    after = replace(
        progress,
        cursor=cursor,
        planned=cursor is None,
        taken=progress.taken + len(batch),
        next_at=now if spec.rate is None else max(progress.next_at, now) + round(len(batch) / spec.rate * SECOND),
    )
    return replace(operation, progress=after, batch=batch, version=operation.version + 1)


def is_through(operation: Operation) -> bool:
    """Return whether nothing is left to plan or to act on."""
    through = not operation.batch and (operation.progress.planned or not operation.spec.states)
    return through and not operation.progress.watched


def ended(operation: Operation, state: OperationState, now: Instant, note: str = "") -> Operation:
    """Return the operation as it ends. What is left of its batch is not acted on."""
    progress = replace(operation.progress, note=note)
    return replace(operation, state=state, ended_at=now, progress=progress, batch=(), version=operation.version + 1)


def in_state(operation: Operation, state: OperationState) -> Operation:
    """Return the operation paused or running."""
    return replace(operation, state=state, version=operation.version + 1)


def acted(operation: Operation, verdicts: Mapping[str, str]) -> Operation:
    """Return the operation after some tasks of its batch were acted on: their answers are counted, and they are gone from the batch."""
    answers = dict(operation.progress.answers)
    for verdict in verdicts.values():
        answers[str(verdict)] = answers.get(str(verdict), 0) + 1
    batch = tuple(task for task in operation.batch if task not in verdicts)
    progress = replace(operation.progress, answers=answers)
    if in_canary(operation):
        progress = replace(progress, watched=progress.watched + tuple(task for task, verdict in verdicts.items() if verdict == "changed"))
    return replace(operation, progress=progress, batch=batch, version=operation.version + 1)
