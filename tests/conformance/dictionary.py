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
    """One task. `words` tells how attempts ended, by attempt and worker."""

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
    worker: str | None = None
    cancelling: bool = False
    finished_at: Instant | None = None
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

    def holder(self, handler: str, key: str | None) -> Entry | None:
        same = (entry for entry in self.tasks.values() if (entry.task.handler, entry.task.key) == (handler, key) and key is not None)
        return next((entry for entry in same if entry.state not in FINAL), None)

    def add(self, task: NewTask[object]) -> tuple[AddVerdict, str]:
        if task.id in self.tasks:
            return AddVerdict.REPEATED, task.id
        due_at = self.now + task.delay if task.due_at is None else task.due_at
        holder = self.holder(task.handler, task.key)
        if holder is not None:
            if task.if_exists == "keep":
                return AddVerdict.KEPT, holder.task.id
            if task.if_exists == "error" or holder.state is State.RUNNING:
                return AddVerdict.DUPLICATE, holder.task.id
            holder.due_at, holder.priority, holder.collection = due_at, task.priority, task.collection
            holder.expires_at, holder.payload, holder.tries = task.expires_at, task.payload, 0
            return AddVerdict.REPLACED, holder.task.id
        entry = Entry(task, State.PENDING, due_at, task.priority, task.collection, task.expires_at, task.payload)
        self.tasks[task.id] = entry
        ends = [self.tasks[edge.parent].state for edge in task.edges]
        if any(self.in_vain(edge.needs, end) for edge, end in zip(task.edges, ends, strict=True)):
            self.finish(entry, State.CANCELLED)
        elif not all(end in FINAL for end in ends):
            entry.state = State.BLOCKED
        return AddVerdict.ADDED, task.id

    @staticmethod
    def in_vain(needs: str, end: State) -> bool:
        return needs == "success" and end in FINAL and end is not State.SUCCEEDED

    def finish(self, entry: Entry, state: State) -> None:
        entry.state, entry.finished_at, entry.cancelling = state, self.now, False
        for child in list(self.tasks.values()):
            if child.state is State.BLOCKED and any(edge.parent == entry.task.id for edge in child.task.edges):
                ends = [(edge.needs, self.tasks[edge.parent].state) for edge in child.task.edges if edge.parent in self.tasks]
                if any(self.in_vain(needs, end) for needs, end in ends):
                    self.finish(child, State.CANCELLED)
                elif all(end in FINAL for _, end in ends):
                    child.state = State.PENDING

    def holding(self, entry: Entry) -> Gate | None:
        return Gates(0, self.gates.values()).holding(entry.task.handler, entry.collection, self.now)

    def expired(self, entry: Entry) -> bool:
        return entry.expires_at is not None and entry.expires_at < self.now

    def due(self, handler: str) -> list[Entry]:
        """Give the tasks that a claim may hand out or must record as expired."""
        pending = (entry for entry in self.tasks.values() if entry.task.handler == handler and entry.state is State.PENDING)
        return [entry for entry in pending if entry.due_at <= self.now and self.holding(entry) is None]

    def claim(self, id: str, attempt: int, worker: str) -> None:
        entry = self.tasks[id]
        assert entry in self.due(entry.task.handler), "handed out a task that was not due, not open or not pending"
        assert not self.expired(entry), "handed out a task past its expiry"
        entry.attempt += 1
        assert attempt == entry.attempt, "attempt numbers must go on without a gap"
        entry.state, entry.worker = State.RUNNING, worker

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
        return ChangeVerdict.CHANGED

    def edit(self, change: Edit) -> ChangeVerdict:
        entry = self.tasks[change.id]
        if entry.state not in (State.PENDING, State.BLOCKED):
            return ChangeVerdict.REFUSED
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
                what = when if entry.state is State.PENDING else str(entry.state)
                lanes.setdefault((entry.task.handler, entry.collection, entry.priority), Counter())[what] += 1
        return lanes
