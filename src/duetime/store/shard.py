"""The half of the seam that is about tasks on their way. Each verb can be carried out inside one shard, which is one atomic whole.

Every sentence of a docstring here is a promise that `tests/conformance` checks on every store. `duetime.store` says what holds for all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol, runtime_checkable

from duetime.clock import Instant
from duetime.model.claim_order import Below
from duetime.model.gate import Gate
from duetime.model.outcome import AttemptRecord, Settlement, SettleVerdict
from duetime.model.task import Edge, NewTask, TaskRecord
from duetime.store.accepting import Accepting
from duetime.store.pull_workers import PullWorkers
from duetime.store.values import (
    Added,
    CancelVerdict,
    ChangeVerdict,
    Claim,
    DeleteVerdict,
    Edit,
    Hint,
    NewWorker,
    Progress,
    Renewal,
    RunningAttempt,
    RunningCount,
    WorkerRecord,
)


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
        """Return the file descriptors that children must hold so that the worker counts as alive until they end too."""
        ...

    def close(self) -> None:
        """Free the thread's own resources; the worker stays registered."""
        ...


class Grouping(Protocol):
    """How the settlements of one worker are divided into calls of `settle`: the store knows what it can end in one step.

    This affects speed only: any other grouping is correct too.
    """

    def wait(self, waiting: Sequence[Settlement], at_most: int) -> float:
        """Return for how many seconds to wait for more that belong to the first ones; 0.0: settle now.

        A second call in a row returns 0.0.
        """
        ...

    def size(self, waiting: Sequence[Settlement], at_most: int) -> int:
        """Return how many of these, from the first on, to settle in the next call: at least one if there are any, at most `at_most`."""
        ...


class AsTheyCome:
    """The grouping of a store for which groups make no difference."""

    def wait(self, waiting: Sequence[Settlement], at_most: int) -> float:
        return 0.0

    def size(self, waiting: Sequence[Settlement], at_most: int) -> int:
        return min(len(waiting), at_most)


class Timekeeping(Protocol):
    """The store's clock, which decides what is due."""

    def now(self) -> Instant:
        """Return the store's time, as exactly as this process knows it."""
        ...

    def reached(self) -> Instant:
        """Return an instant that the store's clock has surely reached, unless it was set back since this process last learned of it."""
        ...


class Listening(Protocol):
    """Wake-ups: hints that there may be something to do. Polling must suffice without them."""

    def listen(self, on_hint: Callable[[Hint], None]) -> Listener:
        """Call `on_hint` in the running event loop whenever something may have changed. Hints can be lost, doubled and late."""
        ...


class Submitting(Protocol):
    """How tasks get in."""

    async def add(self, tasks: Sequence[NewTask[object]]) -> Sequence[Added]:
        """Store new tasks: each whole or not at all, and where `traits.atomic` is "call" all of one call.

        A task is due at `due_at`, or `delay` after the store's now. It waits as `pending`, or as `blocked` while any of
        its edges is unmet: a parent that is not final, or one that needed success and ended otherwise, in which case
        the task is recorded as `cancelled` at once. An edge to an unknown parent makes the whole call raise TaskNotFound.

        At most one live task exists per (handler, key). A new task whose key a live one has is answered by its
        `if_exists`: "error" → DUPLICATE and nothing stored; "keep" → KEPT; "replace" → REPLACED: the live task takes the
        new payload, due time, planned time, priority, collection, timeout, retry, expiry, meta and submitter, keeps its id and its
        attempt numbers, and starts with no tries used, unless it is running or has saved steps: then DUPLICATE. "queue_one" → as
        "replace" while the live task waits; while it runs, or has saved steps, the new one is stored, `blocked`, and waits for its
        end, and the next ones replace that one. It has the key as
        soon as the other has ended. What carries a newer submission (`model.merging`) is not replaced: KEPT. Debounced tasks are due once
        their key was quiet. A throttled one is KEPT while the window of its key is open and the task that opened it is stored. Each answer
        carries the task that now has the key, or is behind the one that has it, or opened the window. Within one call, later tasks see
        earlier ones. One DUPLICATE does not stop the rest.

        A task whose id is already stored, live or final, is a repeat: REPEATED with the stored task, unchanged.
        Listeners are woken after the commit.
        """
        ...


class Claiming(Protocol):
    """How a worker gets tasks."""

    async def claim(
        self, worker: str, claim: int, wants: Mapping[str, int], total: int, *, ahead: int = 0, below: Below | None = None
    ) -> Claim:
        """Hand due tasks to a worker: at most `wants[handler]` per handler and `total` in all.

        A task is due when its position, the later of its due time and its last insertion, is not after the store's now;
        never before. With `ahead`, in microseconds, tasks that will be due within it are handed out too: the worker must not begin
        them before the store's clock has surely reached their due time. Tasks under a closed gate and handlers not in `wants` are left
        alone, whatever their number. Of a handler in `below` at most `below[handler][priority]` tasks have a lower priority than that.
        Of a fair handler (`store.weights`) with more due tasks than it can be given, collections have so many of them as their weights
        say, whatever their priorities. Within a handler, or a collection of a fair one, higher priority goes first and then the earlier
        position, but one start in sixteen (counted per store object and handler) goes to the earliest position of any priority. Handlers
        are served round robin, so a total smaller than the sum of wants is shared. A due task whose expiry has passed is recorded as
        `expired` instead. Each claimed task becomes `running` with the next attempt number, owned by the worker under
        the claim number `claim`, which the worker chose and never uses twice. A worker that is not registered gets
        nothing. No task is ever handed to two.
        """
        ...

    async def claim_probe(self, worker: str, claim: int, names: Collection[str], gate: Gate) -> Claim:
        """Hand out the first task that an automatic gate holds, and no other gate, to the worker that has taken its probe (`take_probe`).

        `names` are those of the gate's handler. Apart from the gate the task is chosen, and becomes `running`, as by `claim`.
        """
        ...

    async def claim_parked(self, worker: str, claim: int, declared: Mapping[str, str], wants: Mapping[str, int]) -> Claim:
        """Hand parked tasks to a worker that has code for them which has not refused them yet, at most `wants[handler]` per handler.

        `declared` is the digest of the worker's declaration of each handler. A parked task that is due, not past its expiry and not under a
        closed gate becomes `running` as by `claim`, without being pending for others in between; so no declaration meets a
        task twice that it refused, and a task that fits no code of any worker stays where it is. Higher priority goes first. A call may
        hand out fewer than it could; one that hands out nothing found nothing.
        """
        ...


class Settling(Protocol):
    """How a worker reports on its attempts."""

    async def settle(self, worker: str, settlements: Sequence[Settlement]) -> list[SettleVerdict]:
        """Record how attempts ended.

        ACCEPTED if the worker runs exactly this (task, attempt): the task moves to the settlement's state. If a cancel was requested
        meanwhile, a settlement that is not final ends as `cancelled` instead. Going back to
        pending takes the position of the later of its due time and now; one that was claimed ahead is not due before it was.
        With the outcome PARKED the task is parked as well: no claim but `claim_parked` hands it out, and `refused_by` is remembered
        until it ends or gets another payload. With a `suspension` and the state `blocked` it waits for that step, as `store.steps` says.
        A final state frees the key, frees children whose edges are now met, and cancels those whose edges can no longer be met,
        and their children likewise.
        ALREADY if this (task, attempt, worker) was settled before; STALE otherwise. Neither changes anything.
        """
        ...

    def grouping(self, worker: str) -> Grouping:
        """Return how this worker's settlements are best divided into calls of `settle`."""
        ...

    async def progress(self, worker: str, marks: Sequence[Progress]) -> None:
        """Note how far running attempts are. Marks of attempts that are not the worker's are ignored."""
        ...


class Registering(Protocol):
    """Which workers there are, and what they run."""

    async def register(self, worker: NewWorker) -> Lease:
        """Make a worker known before its first claim. From now on gates wait for its confirmation."""
        ...

    async def change_slots(self, worker: NewWorker) -> bool:
        """Record what a registered worker runs now: its slots, concurrency and declarations; return whether it is registered."""
        ...

    async def drain(self, worker: str, draining: bool) -> bool:
        """Let a worker claim nothing more, or let it claim again; return whether it is registered.

        Once this has returned every claim of a draining worker is answered with nothing, whoever sends it. Its renewals tell it, so that
        it gives back what it has claimed and not started; what runs goes on. It stays registered, and drains until this is undone.
        """
        ...

    async def note_lag(self, worker: str, lag: float) -> None:
        """Record by how many seconds the event loop of a worker answered late, at most, in the last seconds; 0: in time."""
        ...

    async def unregister(self, worker: str) -> None:
        """Forget a worker that stopped. Attempts that it has not ended go back to pending as Released, without a try."""
        ...

    async def confirm_gates(self, worker: str, version: int) -> None:
        """Record that the worker no longer starts anything that gates up to this version forbid."""
        ...

    async def attempts_of(self, worker: str) -> list[RunningAttempt]:
        """List the attempts that the store counts as the worker's, with their cancel marks."""
        ...

    async def running_counts(self) -> list[RunningCount]:
        """Count the attempts of each worker by handler. Workers and handlers without any are left out."""
        ...

    async def workers(self) -> list[WorkerRecord]:
        """List registered workers, also dead ones that have not been reaped."""
        ...

    async def reap(self, worker: str, beat: int) -> int | None:
        """Take everything from a dead worker: its attempts end as Lost and the worker is forgotten.

        Each lost task goes back to pending at once; `crashes` grows by one, and a task that was the worker's only
        attempt is quarantined as `failed` when its crashes reach the limit. A task with a cancel mark ends `cancelled`.
        Returns how many attempts were taken, or None if nothing was done because the worker is unknown, its beat is not
        `beat` any more, or the store knows it to be alive. Where the store cannot tell (`alive` is None), the caller has seen
        that beat for a whole lease, or has seen the worker's process end.
        """
        ...


class Changing(Protocol):
    """What operators and callers do to single tasks."""

    async def cancel(self, ids: Sequence[str]) -> list[CancelVerdict]:
        """Cancel tasks. A waiting task ends `cancelled` and never starts. A running one is marked and its worker woken."""
        ...

    async def retry(self, ids: Sequence[str]) -> list[ChangeVerdict]:
        """Take finished tasks back to pending, due now: same id, attempt numbers go on, no tries or crashes counted.

        Any final state but `succeeded` allows it; others are REFUSED. DUPLICATE if a live task has its key by now.
        Children that were cancelled because it did not succeed are `blocked` again, and their children likewise, unless they need another
        task that did not succeed, or whose success is not stored any more, or a live task has their key by now.
        """
        ...

    async def delete(self, ids: Sequence[str]) -> list[DeleteVerdict]:
        """Remove tasks that wait or have ended, with their attempts and output. A running one is left as it is.

        Children that wait for a deleted task fare as if it had been cancelled. Its key is free.
        """
        ...

    async def edit(self, edits: Sequence[Edit]) -> list[ChangeVerdict]:
        """Change due time, priority, collection or payload of waiting tasks. Running and finished ones are REFUSED.

        A parked task that gets another payload is parked no more: every declaration may fit it. The payload alone can also be changed of a
        task that ended without success; it stays as it is until an operator's retry.

        One that differs from what was `seen` is OUTDATED and left alone, whatever its state: the comparison and the change are one
        step, so of several edits with the same `seen` that change anything exactly one succeeds.
        """
        ...


class Sweeping(Protocol):
    """Ending tasks that nobody will claim."""

    async def drop(self, limit: int) -> int:
        """Record up to `limit` due tasks under a closed drop gate as `dropped`; return how many."""
        ...

    async def expire(self, limit: int) -> int:
        """Record up to `limit` waiting tasks whose expiry has passed as `expired`; return how many."""
        ...


class LookingUp(Protocol):
    """Reading single tasks."""

    async def get(self, ids: Sequence[str]) -> list[TaskRecord | None]:
        """Return tasks by id, live or final."""
        ...

    async def find(self, handler: str, key: str) -> TaskRecord | None:
        """Return the live task that has a key, or the latest finished one that had it, or None."""
        ...

    async def unmet_edges(self, task: str) -> list[Edge]:
        """Return what a blocked task waits for, in the order of the parents' ids; nothing for any other task."""
        ...

    async def attempts(self, task: str, *, after: int = 0, limit: int | None = None) -> list[AttemptRecord]:
        """Return attempts of a task in order, the running one last with no outcome; empty for an unknown id.

        Those with numbers above `after`, at most `limit`, and fewer where their errors would exceed `MAX_PAGE_BYTES`, but at least one if
        there is one: only an empty answer, or the task's newest attempt, is the end.

        A task keeps its first 100 attempts and at least its last 400. The end of each further one that is not the task's removes one
        between them, with its output. Numbers have no other gaps, so they tell how many.
        """
        ...


class Shard(
    Timekeeping, Listening, Submitting, Claiming, Settling, Accepting, Registering, PullWorkers, Changing, Sweeping, LookingUp, Protocol
):
    """Tasks on their way, in one atomic whole."""
