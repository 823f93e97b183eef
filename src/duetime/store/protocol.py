"""The seam between Duetime and where it keeps things: verbs in batches, each atomic, each answered per item.

Every sentence of a docstring here is a promise that `tests/conformance` checks on every store. What holds for all verbs:

* **Atomic.** A verb happens whole or not at all, also when the process or the server dies in the middle of it.
* **Durable.** When a verb that writes returns, its effect is committed with the durability that `durability` states.
* **Time.** The store's clock decides. A store is opened with a clock only by tests.
* **Answers in order.** A list of answers has one entry per item of the batch, in the order of the batch.
* **Empty batches** are answered with empty lists and touch nothing.
* **Unknown ids** are answered per item (None, or the verdict `UNKNOWN`), never by an exception.
* **Failure** of the store itself is `StoreUnavailable`, and then nothing of the verb was kept, or the caller cannot know:
  every verb may be repeated safely with the same arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Literal, Protocol, runtime_checkable

import msgspec

from duetime.clock import Instant
from duetime.model.gate import Gate, Gates
from duetime.model.lazy import Lazy
from duetime.model.outcome import AttemptRecord, Settlement, Verdict
from duetime.model.query import Page, Query
from duetime.model.task import NewTask, State, TaskRecord
from duetime.store.access import AccessStore
from duetime.store.figures import FigureStore
from duetime.store.guests import GuestStore
from duetime.store.output import OutputStore
from duetime.store.schedules import ScheduleStore


class AddVerdict(StrEnum):
    """What became of a wish. DUPLICATE: a live task holds the key and the wish did not allow for it."""

    ADDED = "added"
    REPEATED = "repeated"
    KEPT = "kept"
    REPLACED = "replaced"
    DUPLICATE = "duplicate"


class Added(msgspec.Struct, frozen=True, gc=False):
    """The verdict on a wish, with the task that is now stored: its own, or the one that holds the key."""

    verdict: AddVerdict
    record: TaskRecord


class AllNew(Lazy[Added]):
    """Answers to wishes of which each was stored as a new task."""


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
    """A worker that is about to claim: `id` is random per start, `slots` its room per handler.

    `lease` is how many seconds it counts as alive without a beat, where the store cannot tell by itself.
    """

    id: str
    host: str
    pid: int
    slots: Mapping[str, int]
    lease: float = 15.0


class WorkerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A registered worker. `alive` is known at once where the store can tell (file lock), else None: judge by `beat`.

    A guest speaks through a server, in any language.
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
    guest: bool = False


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
    meta: Mapping[str, str] | None
    key: str | None
    collection: str | None
    priority: int
    schedule: str | None
    planned_at: Instant | None


class Claim(msgspec.Struct, frozen=True):
    """The reply to a claim: tasks in the order to start them, the store's time, and when to look again at the latest.

    `next_at` is the earliest instant after `now` at which a task of the asked handlers may come due or a gate opens;
    None if nothing is in sight. A claim with a lead should be made that much before a task comes due, and is told so.
    """

    tasks: list[ClaimedTask]
    now: Instant
    next_at: Instant | None


class HeldAttempt(msgspec.Struct, frozen=True, gc=False):
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
    attempts: list[HeldAttempt]


class CancelVerdict(StrEnum):
    """CANCELLED: never starts (again). CANCELLING: running, told to stop. FINISHED: too late. UNKNOWN: no such task."""

    CANCELLED = "cancelled"
    CANCELLING = "cancelling"
    FINISHED = "finished"
    UNKNOWN = "unknown"


class ChangeVerdict(StrEnum):
    """The answer to an operator's retry or edit. REFUSED: the task's state does not allow it. OUTDATED: it is not as it was seen."""

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


class GateBarrier(msgspec.Struct, frozen=True):
    """Which live workers have confirmed a version of the gates."""

    confirmed: list[str]
    waiting: list[str]


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


class Problem(msgspec.Struct, frozen=True):
    """An impossible state that `inspect` found: what it is, which rows, and whether it was put right."""

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
    """A wake-up: there may be news. For DUE, `at` is the earliest position that was added, for SCHEDULES the earliest `next_at`."""

    kind: HintKind
    at: Instant | None = None


class Listener(Protocol):
    """A subscription to wake-ups."""

    def close(self) -> None: ...


@runtime_checkable
class HintReceiver(Protocol):
    """A duty that wants to know when gates, cancels or schedules may have changed."""

    def on_hint(self, hint: Hint) -> None: ...


class Lease(Protocol):
    """A worker's proof of life. Its methods are called from a thread of their own and may block."""

    def renew(self) -> Renewal:
        """Prove that the worker lives and return what the store counts as its attempts.

        Raises StoreUnavailable when it could not be proved. On a store whose liveness is a lock, the lock holds
        whether or not this succeeds.
        """
        ...

    def inheritable(self) -> Sequence[int]:
        """Give the file descriptors that children must hold so that the worker counts as alive until they end too."""
        ...

    def close(self) -> None:
        """Free the thread's own resources; the worker stays registered."""
        ...


class Store(ScheduleStore, AccessStore, FigureStore, GuestStore, OutputStore, Protocol):
    """Where tasks live. Opened before use, usable from several event loops one after the other."""

    @property
    def url(self) -> str:
        """The URL without secrets, for people to read."""
        ...

    @property
    def durability(self) -> str:
        """What a returned write survives, in one honest sentence."""
        ...

    @property
    def settles_at_once(self) -> int:
        """How many settles of one worker are worth having under way at a time: 1 where writes take turns anyway."""
        ...

    @property
    def lead(self) -> int:
        """How many microseconds before tasks are due a worker should claim them, because claiming takes its time; 0: not at all."""
        ...

    @property
    def liveness(self) -> Literal["lock", "lease"]:
        """How a dead worker is told: by a lock that the kernel frees, or by a lease that it must renew."""
        ...

    @property
    def output_folder(self) -> str | None:
        """Where workers gather the output of attempts beside this store, if it has a place in a file system."""
        ...

    async def open(self, *, migrate: bool = True) -> None:
        """Make the store ready, creating or upgrading its schema unless `migrate` is False. Opening twice is harmless.

        Any number of processes may open at once. A schema newer than this code is refused with StoreUnavailable.
        """
        ...

    async def close(self) -> None:
        """Finish what was begun and free all resources. Closing twice is harmless."""
        ...

    def now(self) -> Instant:
        """Tell the store's time, as near as this process knows it."""
        ...

    def reached(self) -> Instant:
        """Tell an instant that the store's clock has surely reached, unless it was set back since it was last heard of."""
        ...

    def script(self) -> str:
        """Give the statements that make or update the tables, for a person to read and run."""
        ...

    # ---- submitting ----

    async def add(self, tasks: Sequence[NewTask[object]]) -> Sequence[Added]:
        """Store wishes as tasks; all of one call in one transaction.

        A wish is due at `due_at`, or `delay` after the store's now. It waits as `pending`, or as `blocked` while any of
        its edges is unmet: a parent that is not final, or one that needed success and ended otherwise, in which case
        the task is recorded as `cancelled` at once. An edge to an unknown parent makes the whole call raise TaskNotFound.

        At most one live task exists per (handler, key). A wish whose key is held by a live task is answered by its
        `if_exists`: "error" → DUPLICATE and nothing stored; "keep" → KEPT; "replace" → REPLACED: the live task takes the
        new payload, due time, planned time, priority, collection, timeout, retry, expiry, meta and submitter, keeps its id and its
        attempt numbers, and starts with no tries used, unless it is running: then DUPLICATE. Each answer carries the task that
        now holds the key. Within one call, later wishes see earlier ones. One DUPLICATE does not stop the rest.

        A wish whose id is already stored, live or final, is a repeat: REPEATED with the stored task, unchanged.
        Listeners are woken after the commit.
        """
        ...

    async def prepare(self, tasks: Sequence[NewTask[object]]) -> None:
        """Make ready what adding these tasks on a caller's connection needs outside of the caller's transaction."""
        ...

    async def add_on(self, connection: object, tasks: Sequence[NewTask[object]]) -> Sequence[Added]:
        """Do the same as `add` on the caller's own connection, inside the transaction that is open there.

        The tasks exist when the caller commits and never did if the caller rolls back. With a synchronous connection
        the call never suspends once the tasks were prepared, so it runs wholly in the caller's thread. Raises InvalidValue
        for a connection of an unknown kind, of another database, or without an open transaction, and says what to do.
        """
        ...

    async def declare(self, declarations: Sequence[Declaration]) -> None:
        """Record handlers, replacing earlier declarations of the same names."""
        ...

    async def declarations(self) -> list[Declaration]:
        """List all declared handlers by name."""
        ...

    # ---- working ----

    async def register(self, worker: NewWorker) -> Lease:
        """Make a worker known before its first claim. From now on gates wait for its confirmation."""
        ...

    async def unregister(self, worker: str) -> None:
        """Forget a worker that stopped. Attempts that it still holds go back to pending as Released, without a try."""
        ...

    async def claim(self, worker: str, claim: int, wants: Mapping[str, int], total: int, *, lead: int = 0) -> Claim:
        """Hand due tasks to a worker: at most `wants[handler]` per handler and `total` in all.

        A task is due when its position, the later of its due time and its last insertion, is not after the store's now;
        never before. With a `lead` in microseconds those are handed out too that will be due within it: the worker must not begin
        them before the store's clock has surely reached their due time. Tasks under a closed gate and handlers not asked for are left
        alone, whatever their number.
        Within a handler higher priority goes first and then the earlier position, but one place in sixteen (counted per
        store object and handler) goes to the earliest position of any priority. Between handlers places are given in
        turn, so a total smaller than the sum of wants is shared. A due task whose expiry has passed is recorded as
        `expired` instead. Each claimed task becomes `running` with the next attempt number, owned by the worker under
        the claim number `claim`, which the worker chose and never uses twice. A worker that is not registered gets
        nothing. No task is ever handed to two.
        """
        ...

    async def claim_for(self, guest: str, claim: int, wants: Mapping[str, int], total: int) -> Claim:
        """Claim for a guest, whose requests may reach any server: as `claim`, but a number under which the guest still holds attempts
        brings nothing new. So whoever repeats a claim, at any server, takes no further tasks; `holdings` tells what the first one took.
        """
        ...

    async def settle(self, worker: str, settlements: Sequence[Settlement]) -> list[Verdict]:
        """Record how attempts ended.

        ACCEPTED if the worker holds exactly this (task, attempt): the task moves to the settlement's state. If a cancel
        was asked for meanwhile, a settlement that would go back to pending ends as `cancelled` instead. Going back to
        pending takes the position of the later of its due time and now; one that was claimed with a lead is not due before it was.
        A final state frees the key, frees children whose edges are now met, and cancels, in turn, those whose edges can no longer be met.
        ALREADY if this (task, attempt, worker) was settled before; STALE otherwise. Neither changes anything.
        """
        ...

    def portion(self, worker: str, settlements: Sequence[Settlement], at_most: int) -> int:
        """Tell how many of these, from the first, are best settled together: at most `at_most`; 0 if it is better to wait a moment
        for more. Only a matter of speed.
        """
        ...

    async def progress(self, worker: str, marks: Sequence[Progress]) -> None:
        """Note how far running attempts are. Marks of attempts that the worker does not hold are ignored."""
        ...

    async def confirm_gates(self, worker: str, version: int) -> None:
        """State that the worker starts nothing any more that gates up to this version forbid."""
        ...

    async def attempts_of(self, worker: str) -> list[HeldAttempt]:
        """List the attempts that the store counts as the worker's, with their cancel marks."""
        ...

    async def workers(self) -> list[WorkerRecord]:
        """List registered workers, also dead ones that have not been reaped."""
        ...

    async def reap(self, worker: str, beat: int) -> int | None:
        """Take everything from a dead worker: its attempts end as Lost and the worker is forgotten.

        Each lost task goes back to pending at once; `crashes` grows by one, and a task that was the worker's only
        attempt is quarantined as `failed` when its crashes reach the limit. A task with a cancel mark ends `cancelled`.
        Returns how many attempts were taken, or None if nothing was done because the worker is unknown, its beat is not
        `beat` any more, or the store knows it to be alive.
        """
        ...

    # ---- control ----

    async def cancel(self, ids: Sequence[str]) -> list[CancelVerdict]:
        """Cancel tasks. A waiting task ends `cancelled` and never starts. A running one is marked and its worker woken."""
        ...

    async def retry(self, ids: Sequence[str]) -> list[ChangeVerdict]:
        """Take finished tasks back to pending, due now: same id, attempt numbers go on, no tries or crashes counted.

        Any final state but `succeeded` allows it; others are REFUSED. DUPLICATE if a live task holds its key by now.
        """
        ...

    async def edit(self, edits: Sequence[Edit]) -> list[ChangeVerdict]:
        """Change due time, priority or collection of waiting tasks. Running and finished ones are REFUSED.

        One that differs from what was `seen` is OUTDATED and left alone, whatever its state: the comparison and the change are one
        step, so of several edits with the same `seen` that change anything exactly one succeeds.
        """
        ...

    async def put_gate(self, gate: Gate) -> int:
        """Set a gate in place of an earlier one for the same handler and collection; return the new gates version."""
        ...

    async def remove_gate(self, handler: str, collection: str | None) -> int | None:
        """Open a gate and wake workers; return the new version, or None if there was none."""
        ...

    async def gates(self) -> Gates:
        """Give all gates with their version. Gates whose time is over are left out."""
        ...

    async def barrier(self, version: int) -> GateBarrier:
        """Tell which live workers have confirmed at least this version and which have not. Dead workers do not count."""
        ...

    # ---- upkeep ----

    async def drop(self, limit: int) -> int:
        """Record up to `limit` due tasks under a closed drop gate as `dropped`; return how many."""
        ...

    async def expire(self, limit: int) -> int:
        """Record up to `limit` waiting tasks whose expiry has passed as `expired`; return how many."""
        ...

    def retention_step(self, state: State) -> int:
        """Tell in which steps of microseconds finished tasks are removed cheaply; 1 where it makes no difference."""
        ...

    async def tidy(self) -> None:
        """Do what the store itself needs from time to time to stay fast. Any process may do it, at any time."""
        ...

    async def prune(self, state: State, before: Instant, limit: int) -> list[Pruned]:
        """Remove up to `limit` tasks in this final state that finished before an instant, with their attempts and output.

        May remove fewer if they have much output; only when it removes none are none left. Never removes a live task.
        """
        ...

    async def inspect(self, *, repair: bool) -> list[Problem]:
        """Look for states that cannot be, and put them right if asked: no live task is lost, none is invented."""
        ...

    # ---- reading ----

    async def get(self, ids: Sequence[str]) -> list[TaskRecord | None]:
        """Give tasks by id, live or final."""
        ...

    async def find(self, handler: str, key: str) -> TaskRecord | None:
        """Give the live task that holds a key, or the latest finished one that did, or None."""
        ...

    async def page(self, query: Query) -> Page:
        """Give one page of tasks, newest submitted first; latest finished first when one final state is asked for.

        Following `next` visits every task that matches throughout exactly once, whatever is added meanwhile.
        """
        ...

    async def attempts(self, task: str) -> list[AttemptRecord]:
        """Give all attempts of a task in order, the running one last with no outcome; empty for an unknown id."""
        ...

    async def counts(self) -> Counts:
        """Count tasks by lane and by final state."""
        ...

    # ---- wake-ups ----

    def listen(self, heard: Callable[[Hint], None]) -> Listener:
        """Call `heard` in the running event loop whenever there may be news. Hints can be lost, doubled and late."""
        ...
