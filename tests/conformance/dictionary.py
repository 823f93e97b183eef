"""The store as a dictionary: what the verbs mean, without any concern for speed, time-outs or other processes.

Where the contract leaves a choice (which tasks a bounded upkeep takes, which of the due tasks a claim hands out), the
model checks that the store's choice is allowed and then follows it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TypeAlias

from duetime.clock import Instant, ManualClock
from duetime.model.gate import Gate, GateAction, Gates
from duetime.model.lifecycle import as_cancelled
from duetime.model.outcome import Outcome, Settlement, SettleVerdict
from duetime.model.task import FINAL, NewTask, State
from duetime.store.values import AddVerdict, CancelVerdict, ChangeVerdict, Edit

Lane: TypeAlias = tuple[str, str | None, int]


@dataclass
class Entry:
    """One task. `waits` are the parents that it waits for, with what it needs of them, and `vain` those that it waited for when it was
    cancelled because one did not succeed. `words` tells how attempts ended, by attempt and worker.
    """

    task: NewTask[object]
    state: State
    due_at: Instant
    priority: int
    collection: str | None
    expires_at: Instant | None
    payload: bytes
    attempt: int = 0
    tries: int = 0
    crashes: int = 0
    queued: bool = False
    worker: str | None = None
    cancelling: bool = False
    parked: bool = False
    refused: set[str] = field(default_factory=set)
    finished_at: Instant | None = None
    waits: dict[str, str] = field(default_factory=dict)
    vain: dict[str, str] = field(default_factory=dict)
    history: list[tuple[int, Outcome, str]] = field(default_factory=list)
    words: dict[tuple[int, str], Outcome] = field(default_factory=dict)


class Dictionary:
    """All tasks by id, and the gates."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.tasks: dict[str, Entry] = {}
        self.gates: dict[tuple[str, str | None], Gate] = {}

    @property
    def now(self) -> Instant:
        return self.clock.now()

    def holder(self, handler: str, key: str | None, *, queued: bool = False) -> Entry | None:
        """Give the task that has a key, or the one that is queued behind it."""
        same = (entry for entry in self.tasks.values() if (entry.task.handler, entry.task.key) == (handler, key) and key is not None)
        return next((entry for entry in same if entry.state not in FINAL and entry.queued is queued), None)

    def add(self, task: NewTask[object]) -> tuple[AddVerdict, str]:
        if task.id in self.tasks:
            return AddVerdict.REPEATED, task.id
        due_at = self.now + task.delay if task.due_at is None else task.due_at
        holder = self.holder(task.handler, task.key)
        needs: dict[str, str] = {edge.parent: edge.needs for edge in sorted(task.edges, key=lambda edge: edge.needs)}  # success counts
        behind = False
        if holder is not None and task.if_exists == "queue_one":
            first, holder = holder, self.holder(task.handler, task.key, queued=True) or holder
            if behind := holder.state is State.RUNNING:
                needs, holder = {first.task.id: "end", **needs}, None
        if holder is not None:
            if task.if_exists == "keep":
                return AddVerdict.KEPT, holder.task.id
            if task.if_exists == "error" or holder.state is State.RUNNING:
                return AddVerdict.DUPLICATE, holder.task.id
            holder.due_at, holder.priority, holder.collection = due_at, task.priority, task.collection
            holder.expires_at, holder.payload, holder.tries = task.expires_at, task.payload, 0
            self.unpark(holder)
            return AddVerdict.REPLACED, holder.task.id
        entry = Entry(task, State.PENDING, due_at, task.priority, task.collection, task.expires_at, task.payload)
        self.tasks[task.id], entry.queued = entry, behind
        if any(self.failed(parent, need) for parent, need in needs.items()):
            entry.vain = {parent: need for parent, need in needs.items() if not self.met(parent, need)}
            self.finish(entry, State.CANCELLED)
        else:
            self.wait(entry, needs)
        return AddVerdict.ADDED, task.id

    def wait(self, entry: Entry, needs: dict[str, str]) -> None:
        entry.waits = {parent: need for parent, need in needs.items() if not self.met(parent, need)}
        if entry.waits:
            entry.state = State.BLOCKED

    def failed(self, parent: str, need: str) -> bool:
        """Tell whether a parent cannot be what is needed of it any more, unless it is retried; one that is gone cannot."""
        return need == "success" and (parent not in self.tasks or self.in_vain(need, self.tasks[parent].state))

    def met(self, parent: str, need: str) -> bool:
        return not self.failed(parent, need) and (parent not in self.tasks or self.tasks[parent].state in FINAL)

    @staticmethod
    def in_vain(needs: str, end: State) -> bool:
        return needs == "success" and end in FINAL and end is not State.SUCCEEDED

    def finish(self, entry: Entry, state: State) -> None:
        entry.state, entry.finished_at, entry.cancelling, entry.parked, entry.queued = state, self.now, False, False, False
        entry.waits = {}
        for child in list(self.tasks.values()):
            if entry.task.id not in child.waits:
                continue
            if self.in_vain(child.waits[entry.task.id], state):
                child.vain = child.waits
                self.finish(child, State.CANCELLED)
            else:
                del child.waits[entry.task.id]
                child.queued = child.queued and self.holder(child.task.handler, child.task.key) is not None
                if not child.waits:
                    child.state = State.PENDING

    def forget(self, id: str) -> None:
        """Follow a task that was pruned."""
        del self.tasks[id]
        for child in self.tasks.values():
            if id in child.vain:
                child.vain = {} if child.vain[id] == "success" else {parent: need for parent, need in child.vain.items() if parent != id}

    def holding(self, entry: Entry) -> Gate | None:
        return Gates(0, self.gates.values()).holding(entry.task.handler, entry.collection, self.now)

    def expired(self, entry: Entry) -> bool:
        return entry.expires_at is not None and entry.expires_at < self.now

    def due(self, handler: str) -> list[Entry]:
        """Give the tasks that a claim may hand out or must record as expired."""
        return [entry for entry in self._open(handler) if not entry.parked]

    def fitting(self, handler: str, digest: str) -> list[Entry]:
        """Give the parked tasks that a worker with such a declaration may have."""
        parked = (entry for entry in self._open(handler) if entry.parked and not self.expired(entry))
        return [entry for entry in parked if digest not in entry.refused]

    def _open(self, handler: str) -> list[Entry]:
        pending = (entry for entry in self.tasks.values() if entry.task.handler == handler and entry.state is State.PENDING)
        return [entry for entry in pending if entry.due_at <= self.now and self.holding(entry) is None]

    @staticmethod
    def unpark(entry: Entry) -> None:
        """A task gets another payload, which may fit."""
        if entry.parked:
            entry.parked, entry.refused = False, set()

    def claim(self, id: str, attempt: int, worker: str, digest: str | None = None) -> None:
        """Follow a claim, or with a digest one of parked tasks."""
        entry = self.tasks[id]
        handler = entry.task.handler
        allowed = self.due(handler) if digest is None else self.fitting(handler, digest)
        assert entry in allowed, "handed out a task that was not due, not open or not pending"
        assert not self.expired(entry), "handed out a task past its expiry"
        entry.attempt += 1
        assert attempt == entry.attempt, "attempt numbers must go on without a gap"
        entry.state, entry.worker, entry.parked = State.RUNNING, worker, False

    def settle(self, worker: str, settlement: Settlement) -> SettleVerdict:
        entry = self.tasks.get(settlement.id)
        if entry is None:
            return SettleVerdict.STALE
        if entry.state is not State.RUNNING or (entry.attempt, entry.worker) != (settlement.attempt, worker):
            before = entry.words.get((settlement.attempt, worker))
            # what a reaper or a farewell wrote in a worker's name is not its own word
            theirs = before in (Outcome.LOST, Outcome.RELEASED) and before is not settlement.outcome
            return SettleVerdict.STALE if before is None or theirs else SettleVerdict.ALREADY
        self.end(entry, settlement)
        return SettleVerdict.ACCEPTED

    def end(self, entry: Entry, settlement: Settlement) -> None:
        assert entry.worker is not None
        settlement = as_cancelled(settlement) if entry.cancelling else settlement
        entry.history.append((entry.attempt, settlement.outcome, entry.worker))
        entry.words[entry.attempt, entry.worker] = settlement.outcome
        entry.tries, entry.crashes, entry.worker, entry.cancelling = settlement.tries, settlement.crashes, None, False
        if settlement.state is State.PENDING:
            assert settlement.due_at is not None
            entry.state, entry.due_at = State.PENDING, settlement.due_at
            if settlement.outcome is Outcome.PARKED:
                entry.parked = True
                entry.refused |= {settlement.refused_by} if settlement.refused_by else set()
        else:
            self.finish(entry, settlement.state)

    def cancel(self, id: str) -> CancelVerdict:
        entry = self.tasks[id]
        if entry.state in FINAL:
            return CancelVerdict.FINISHED
        if entry.state is State.RUNNING:
            entry.cancelling = True
            return CancelVerdict.CANCELLING
        self.finish(entry, State.CANCELLED)
        return CancelVerdict.CANCELLED

    def retry(self, id: str) -> ChangeVerdict:
        entry = self.tasks[id]
        if entry.state not in FINAL or entry.state is State.SUCCEEDED:
            return ChangeVerdict.REFUSED
        if self.holder(entry.task.handler, entry.task.key) is not None:
            return ChangeVerdict.DUPLICATE
        entry.state, entry.due_at, entry.finished_at, entry.tries, entry.crashes = State.PENDING, self.now, None, 0, 0
        entry.expires_at = None if self.expired(entry) else entry.expires_at
        entry.vain = {}
        for child in list(self.tasks.values()):
            needs = child.vain
            hopeless = any(self.failed(parent, need) for parent, need in needs.items())
            if id in needs and not hopeless and self.retry(child.task.id) is ChangeVerdict.CHANGED:
                self.wait(child, needs)
        return ChangeVerdict.CHANGED

    def edit(self, change: Edit) -> ChangeVerdict:
        entry = self.tasks[change.id]
        if entry.state in FINAL - {State.SUCCEEDED} and change.repairs:
            entry.payload = change.payload or b""
            return ChangeVerdict.CHANGED
        if entry.state not in (State.PENDING, State.BLOCKED):
            return ChangeVerdict.REFUSED
        if change.payload is not None:
            entry.payload = change.payload
            self.unpark(entry)
        entry.due_at = entry.due_at if change.due_at is None else change.due_at
        entry.priority = entry.priority if change.priority is None else change.priority
        entry.collection = entry.collection if change.collection is None else change.collection
        return ChangeVerdict.CHANGED

    def droppable(self) -> list[Entry]:
        due = (entry for entry in self.tasks.values() if entry.state is State.PENDING and entry.due_at <= self.now)
        gates = ((entry, self.holding(entry)) for entry in due)
        return [entry for entry, gate in gates if gate is not None and gate.action is GateAction.DROP]

    def expirable(self) -> list[Entry]:
        waiting = (entry for entry in self.tasks.values() if entry.state in (State.PENDING, State.BLOCKED))
        return [entry for entry in waiting if self.expired(entry)]

    def prunable(self, state: State, before: Instant) -> list[Entry]:
        finished = (entry for entry in self.tasks.values() if entry.state is state)
        return [entry for entry in finished if entry.finished_at is not None and entry.finished_at < before]

    def lanes(self) -> dict[Lane, Counter[str]]:
        """Count live tasks as `Counts` does."""
        lanes: dict[Lane, Counter[str]] = {}
        for entry in self.tasks.values():
            if entry.state not in FINAL:
                when = "due" if entry.due_at <= self.now else "later"
                what = "parked" if entry.parked else when if entry.state is State.PENDING else str(entry.state)
                lanes.setdefault((entry.task.handler, entry.collection, entry.priority), Counter())[what] += 1
        return lanes
