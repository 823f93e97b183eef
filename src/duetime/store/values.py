"""What travels between the store and those who use it: facts and verdicts, frozen, without a connection inside."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from enum import StrEnum

import msgspec

from duetime.clock import Instant
from duetime.errors import InvalidValue
from duetime.model.fences import fence_of
from duetime.model.lazy import Lazy
from duetime.model.quota import Quota
from duetime.model.task import Extras, State, TaskRecord

MAX_COLLECTIONS = 10_000  # of a handler


class TooManyCollections(InvalidValue):
    """Tasks would give a handler more collections than it may have. `refused` are all of this call that it may not have.

    Nothing was stored. The same call without the tasks of these collections is accepted.
    """

    def __init__(self, handler: str, refused: Iterable[str]) -> None:
        self.handler = handler
        self.refused = frozenset(refused)
        super().__init__(self.about(min(self.refused)))

    def about(self, collection: str) -> str:
        """Return what to tell whoever submitted a task of one of these collections."""
        return (
            f"handler {self.handler} has {MAX_COLLECTIONS:,} collections already and {collection!r} would be one more; "
            "a collection is a label of few values (region, tenant class): put other values into the payload or meta"
        )


class AddVerdict(StrEnum):
    """What became of a new task. DUPLICATE: a live task has the key and may not be kept or replaced."""

    ADDED = "added"
    REPEATED = "repeated"
    KEPT = "kept"
    REPLACED = "replaced"
    DUPLICATE = "duplicate"


class Added(msgspec.Struct, frozen=True, gc=False):
    """The verdict on a new task, with the task that is now stored: its own, or the live one that has the key.

    `met`: it repeats a request that stored no task of its own, because its key was kept or replaced.
    """

    verdict: AddVerdict
    record: TaskRecord
    met: bool = False


class AllNew(Lazy[Added]):
    """Answers to new tasks that were all stored."""


class Declaration(msgspec.Struct, frozen=True, kw_only=True):
    """A handler as a process declared it. `schema` is the JSON Schema of its payload, `retry` policy numbers.

    `aliases` are its former names. `upgrades` changes with the code that reads payloads of former schemas. `keep` is for how many seconds
    its finished tasks are kept, by state, where that differs from the settings. `reserve`: how many of its slots are kept for tasks of at
    least that priority. `fair`: its collections share its starts. `quota`: how much of it may be
    submitted. `start_within`: how many seconds after being due its tasks should start. `declared_at` is when this was first declared; all
    the rest is what `digest` stands for.
    """

    name: str
    schema: bytes = b"{}"
    doc: str = ""
    timeout: float = 300.0
    priority: int = 5
    concurrency: int = 50
    isolation: str = "auto"
    retry: bytes = b"{}"
    declared_at: Instant = 0
    aliases: tuple[str, ...] = ()
    upgrades: str = ""
    keep: dict[State, float] = {}
    reserve: dict[int, int] = {}
    fair: bool = False
    quota: Quota | None = None
    start_within: float | None = None

    @property
    def digest(self) -> str:
        """What tells it from other declarations of the same handler, in every process."""
        return hashlib.sha256(msgspec.json.encode(msgspec.structs.replace(self, declared_at=0))).hexdigest()[:16]


class NewWorker(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that is about to claim: `id` is random per start, `slots` how many attempts it runs at once per handler.

    `concurrency` is how many it runs at once over all handlers; None: as many as the slots of its handlers add up to. `lease` is how many
    seconds it counts as alive without a beat, where the store cannot tell by itself. `declared` is the digest of its declaration of each
    handler. `draining`: it registers again, and was draining before. `version` and `python` are those of Duetime and Python in it.
    """

    id: str
    host: str
    pid: int
    slots: Mapping[str, int]
    concurrency: int | None = None
    lease: float = 15.0
    declared: Mapping[str, str] = {}
    draining: bool = False
    version: str | None = None
    python: str | None = None


class WorkerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A registered worker. `alive` is known at once where the store can tell (file lock), else None: judge by `beat`.

    `pull`: it is a pull worker. `draining`: it claims nothing. `version` and `python` are those of Duetime and Python in it, if known.
    `lag`: how late its event loop answers, in seconds; 0 if in time.
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
    concurrency: int | None = None
    lease: float = 15.0
    pull: bool = False
    draining: bool = False
    version: str | None = None
    python: str | None = None
    lag: float = 0.0

    def slots_of(self, handler: str) -> int:
        """Return how many attempts of a handler it can run at once; none if it does not run the handler."""
        slots = self.slots.get(handler, 0)
        return slots if self.concurrency is None else min(slots, self.concurrency)


class ClaimedTask(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One task handed to a worker: all that an attempt needs. `epoch` is the store's, for the attempt's fence.

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
    epoch: int = 0

    @property
    def fence(self) -> int:
        """A number that is higher than that of every earlier attempt of the task."""
        return fence_of(self.epoch, self.attempt)

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


def may_fit(digest: str | None, refused: str) -> bool:
    """Return whether a declaration may fit tasks that others have refused; `refused` names those, between spaces."""
    return digest is not None and digest not in refused.split(" ")


class RunningAttempt(msgspec.Struct, frozen=True, gc=False):
    """An attempt that the store counts as a worker's own, with the counts that it was claimed with."""

    id: str
    attempt: int
    claim: int
    cancelling: bool
    tries: int = 0
    crashes: int = 0


class RunningCount(msgspec.Struct, frozen=True):
    """How many attempts a worker has of a handler, by the name that their tasks were submitted by."""

    worker: str
    handler: str
    count: int


class Renewal(msgspec.Struct, frozen=True):
    """The reply to a renewal. `known` False: the worker was reaped and must stop all its attempts now.

    `draining`: it must start nothing more.
    """

    known: bool
    gates_version: int
    attempts: list[RunningAttempt]
    targets_version: int = 0
    draining: bool = False


class CancelVerdict(StrEnum):
    """CANCELLED: never starts (again). CANCELLING: running, told to stop. FINISHED: too late. UNKNOWN: no such task.

    REQUESTED: part of the caller's transaction, and carried out after its commit; no store answers that.
    """

    CANCELLED = "cancelled"
    CANCELLING = "cancelling"
    FINISHED = "finished"
    UNKNOWN = "unknown"
    REQUESTED = "requested"


class ChangeVerdict(StrEnum):
    """The answer to an operator's retry or edit. REFUSED: the task's state does not allow it. OUTDATED: it differs from what was `seen`.

    REQUESTED: part of the caller's transaction, and carried out after its commit; no store answers that.
    """

    CHANGED = "changed"
    REFUSED = "refused"
    OUTDATED = "outdated"
    DUPLICATE = "duplicate"
    UNKNOWN = "unknown"
    REQUESTED = "requested"


class DeleteVerdict(StrEnum):
    """DELETED: nothing of it is left. RUNNING: it was left alone, because its attempt goes on. UNKNOWN: no such task."""

    DELETED = "deleted"
    RUNNING = "running"
    UNKNOWN = "unknown"


class Edit(msgspec.Struct, frozen=True, kw_only=True):
    """What to change on a task; None leaves a part as it is. `seen`: only if the task is still exactly so."""

    id: str
    due_at: Instant | None = None
    priority: int | None = None
    collection: str | None = None
    payload: bytes | None = None
    seen: TaskRecord | None = None

    @property
    def repairs(self) -> bool:
        """Whether it changes the payload alone, as a task can have it changed that has ended without success."""
        return self.payload is not None and (self.due_at, self.priority, self.collection) == (None, None, None)


class Progress(msgspec.Struct, frozen=True):
    """How far a running attempt says it is: a fraction from 0 to 1 and a short text."""

    id: str
    attempt: int
    fraction: float
    text: str


MOST_IN_LANE = 1_000_000  # tasks of a lane that are counted one by one


class LaneCount(msgspec.Struct, frozen=True, kw_only=True):
    """How many tasks a lane holds, by what they wait for. `oldest_due_at` is of those that are due, `accepted` are among the running.

    `more`: counting ended at its bound. Then more tasks are due than `due` says, and `later` need not be right.
    """

    handler: str
    collection: str | None
    priority: int
    due: int
    later: int
    blocked: int
    running: int
    oldest_due_at: Instant | None
    parked: int = 0
    accepted: int = 0
    more: bool = False


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
    """What of a handler is due: counted up to MOST_COUNTED; `more`: there are further ones. `oldest_due_at` is of those counted."""

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
    """What a wake-up is about. INTENTS: a caller's transaction has left some. OPERATIONS: one has started, changed or ended.

    ANY: something was written, nobody said what.
    """

    DUE = "due"
    DONE = "done"
    GATES = "gates"
    CANCEL = "cancel"
    SCHEDULES = "schedules"
    PARKED = "parked"
    TARGETS = "targets"
    INTENTS = "intents"
    OPERATIONS = "operations"
    LIMITS = "limits"
    ANY = "any"


class Hint(msgspec.Struct, frozen=True):
    """A wake-up: something may have changed. `at` is the earliest new position for DUE, the earliest `next_at` for SCHEDULES."""

    kind: HintKind
    at: Instant | None = None
