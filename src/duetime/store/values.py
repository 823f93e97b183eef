"""What travels between the store and those who use it: facts and verdicts, frozen, without a connection inside."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from duetime.clock import Instant
from duetime.model.lazy import Lazy
from duetime.model.task import Extras, State, TaskRecord


class AddVerdict(StrEnum):
    """What became of a new task. DUPLICATE: a live task has the key and may not be kept or replaced."""

    ADDED = "added"
    REPEATED = "repeated"
    KEPT = "kept"
    REPLACED = "replaced"
    DUPLICATE = "duplicate"


class Added(msgspec.Struct, frozen=True, gc=False):
    """The verdict on a new task, with the task that is now stored: its own, or the live one that has the key."""

    verdict: AddVerdict
    record: TaskRecord


class AllNew(Lazy[Added]):
    """Answers to new tasks that were all stored."""


class Declaration(msgspec.Struct, frozen=True, kw_only=True):
    """A handler as a process declared it. `schema` is the JSON Schema of its payload, `retry` policy numbers."""

    name: str
    schema: bytes = b"{}"
    doc: str = ""
    timeout: float = 300.0
    priority: int = 5
    concurrency: int = 50
    isolation: str = "auto"
    retry: bytes = b"{}"
    declared_at: Instant = 0


class NewWorker(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that is about to claim: `id` is random per start, `slots` how many attempts it runs at once per handler.

    `lease` is how many seconds it counts as alive without a beat, where the store cannot tell by itself.
    """

    id: str
    host: str
    pid: int
    slots: Mapping[str, int]
    lease: float = 15.0


class WorkerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A registered worker. `alive` is known at once where the store can tell (file lock), else None: judge by `beat`.

    `pull`: it is a pull worker.
    """

    id: str
    host: str
    pid: int
    slots: Mapping[str, int]
    started_at: Instant
    beat: int
    beat_at: Instant | None
    seen_gates: int
    running: int
    alive: bool | None
    lease: float = 15.0
    pull: bool = False


class ClaimedTask(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One task handed to a worker: all that an attempt needs. `attempt` is the fence of this claim.

    Payload and retry numbers are JSON as text, and the whole is an array in JSON: a store may read a batch in one step.
    """

    id: str
    handler: str
    payload: str
    attempt: int
    tries: int
    crashes: int
    due_at: Instant
    since_at: Instant
    submitted_at: Instant
    submitted_by: str
    expires_at: Instant | None
    timeout: float | None
    retry: str | None
    extras: Extras | None
    key: str | None
    collection: str | None
    priority: int
    schedule: str | None
    planned_at: Instant | None

    @property
    def meta(self) -> Mapping[str, str]:
        return {} if self.extras is None or self.extras.meta is None else self.extras.meta


class Claim(msgspec.Struct, frozen=True):
    """The reply to a claim: tasks in the order to start them, the store's time, and when to look again at the latest.

    `next_at` is the earliest instant after `now` at which a task of the requested handlers may come due or a gate opens; None if nothing
    is in sight. For a claim ahead it is earlier by `ahead`: the instant at which to claim the next task ahead.
    """

    tasks: list[ClaimedTask]
    now: Instant
    next_at: Instant | None


class RunningAttempt(msgspec.Struct, frozen=True, gc=False):
    """An attempt that the store counts as a worker's own, with the counts that it was claimed with."""

    id: str
    attempt: int
    claim: int
    cancelling: bool
    tries: int = 0
    crashes: int = 0


class Renewal(msgspec.Struct, frozen=True):
    """The reply to a renewal. `known` False: the worker was reaped and must stop all its attempts now."""

    known: bool
    gates_version: int
    attempts: list[RunningAttempt]


class CancelVerdict(StrEnum):
    """CANCELLED: never starts (again). CANCELLING: running, told to stop. FINISHED: too late. UNKNOWN: no such task."""

    CANCELLED = "cancelled"
    CANCELLING = "cancelling"
    FINISHED = "finished"
    UNKNOWN = "unknown"


class ChangeVerdict(StrEnum):
    """The answer to an operator's retry or edit. REFUSED: the task's state does not allow it. OUTDATED: it differs from what was `seen`."""

    CHANGED = "changed"
    REFUSED = "refused"
    OUTDATED = "outdated"
    DUPLICATE = "duplicate"
    UNKNOWN = "unknown"


class Edit(msgspec.Struct, frozen=True, kw_only=True):
    """What to change on a waiting task; None leaves a part as it is. `seen`: only if the task is still exactly so."""

    id: str
    due_at: Instant | None = None
    priority: int | None = None
    collection: str | None = None
    seen: TaskRecord | None = None


class Progress(msgspec.Struct, frozen=True):
    """How far a running attempt says it is: a fraction from 0 to 1 and a short text."""

    id: str
    attempt: int
    fraction: float
    text: str


class LaneCount(msgspec.Struct, frozen=True, kw_only=True):
    """How many tasks a lane holds, by what they wait for. `oldest_due_at` is of those that are due."""

    handler: str
    collection: str | None
    priority: int
    due: int
    later: int
    blocked: int
    running: int
    oldest_due_at: Instant | None


class FinalCount(msgspec.Struct, frozen=True):
    """How many tasks of a handler are kept in a final state."""

    handler: str
    state: State
    count: int


class Counts(msgspec.Struct, frozen=True):
    """A consistent count of everything in the store at `now`."""

    now: Instant
    lanes: list[LaneCount]
    finals: list[FinalCount]


MOST_COUNTED = 1_000


class HandlerLoad(msgspec.Struct, frozen=True, kw_only=True):
    """How busy a handler is. `due` is counted up to MOST_COUNTED; `more`: there are further ones. `oldest_due_at` is of those counted."""

    running: int
    due: int
    more: bool
    oldest_due_at: Instant | None


class Inconsistency(msgspec.Struct, frozen=True):
    """An impossible state that `inspect` found: what it is, which rows, and whether it was repaired."""

    kind: str
    subject: str
    detail: str
    repaired: bool


class Pruned(msgspec.Struct, frozen=True):
    """A task that was removed from history, with its last attempt number."""

    id: str
    attempt: int


class HintKind(StrEnum):
    """What a wake-up is about. ANY: something was written, nobody said what."""

    DUE = "due"
    DONE = "done"
    GATES = "gates"
    CANCEL = "cancel"
    SCHEDULES = "schedules"
    ANY = "any"


class Hint(msgspec.Struct, frozen=True):
    """A wake-up: something may have changed. `at` is the earliest new position for DUE, the earliest `next_at` for SCHEDULES."""

    kind: HintKind
    at: Instant | None = None
