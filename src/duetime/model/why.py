"""Why a task is in its state: facts in, reasons out, each a sentence that a person can act on."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import assert_never

import msgspec

from duetime.clock import SECOND, Instant, to_datetime
from duetime.model.gate import Gate, GateAction
from duetime.model.outcome import Outcome
from duetime.model.task import ErrorInfo, State, TaskRecord


class ReasonKind(StrEnum):
    """What a task waits for, or how it ended."""

    LATER = "later"
    RETRY = "retry"
    GATE = "gate"
    NO_WORKER = "no_worker"
    SLOTS_FULL = "slots_full"
    BLOCKED = "blocked"
    READY = "ready"
    RUNNING = "running"
    FINISHED = "finished"


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """One reason. `until_at` is when it ends by itself, if that is known; `by` is the user or worker behind it."""

    kind: ReasonKind
    text: str
    until_at: datetime | None = None
    by: str | None = None


class WhyFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What `why` needs besides the task. Slots and running tasks are the handler's, over all live workers."""

    now: Instant
    gate: Gate | None = None
    live_workers: int = 0
    workers_of_handler: int = 0
    slots: int = 0
    running: int = 0
    due_before: int = 0
    more_due: bool = False  # than were counted
    tries_allowed: int = 1
    last_outcome: Outcome | None = None
    last_error: ErrorInfo | None = None


def why(task: TaskRecord, facts: WhyFacts) -> list[Reason]:
    """Return everything that a task waits for; for a running or final task, one reason that says so."""
    match task.state:
        case State.RUNNING:
            return [_running(task, facts)]
        case State.BLOCKED:
            return [Reason(kind=ReasonKind.BLOCKED, text="it waits for other tasks to end"), *_waiting(task, facts)]
        case State.PENDING:
            return _waiting(task, facts) or [_ready(task, facts)]
        case State.SUCCEEDED | State.FAILED | State.CANCELLED | State.DROPPED | State.EXPIRED:
            return [_finished(task, facts)]
        case _:
            assert_never(task.state)


def _waiting(task: TaskRecord, facts: WhyFacts) -> list[Reason]:
    reasons = []
    if task.due_at > facts.now:
        reasons.append(_later(task, facts))
    if facts.gate is not None:
        reasons.append(_gate(facts.gate))
    if facts.workers_of_handler == 0:
        others = f"{_count(facts.live_workers, 'worker')} of other handlers" if facts.live_workers else "no worker at all"
        text = f"no live worker runs {task.handler}; there is {others}. Start one: duetime worker APP"
        reasons.append(Reason(kind=ReasonKind.NO_WORKER, text=text))
    elif task.due_at <= facts.now and facts.gate is None and facts.running >= facts.slots:
        count = f"{facts.due_before:,}+ due tasks" if facts.more_due else _count(facts.due_before, "due task")
        ahead = f", and {count} of it wait" if facts.due_before else ""
        text = f"all slots of {task.handler} are taken: {facts.running} run in {_count(facts.slots, 'slot')}{ahead}"
        reasons.append(Reason(kind=ReasonKind.SLOTS_FULL, text=text))
    return reasons


def _later(task: TaskRecord, facts: WhyFacts) -> Reason:
    due_at = to_datetime(task.due_at)
    left = _span(task.due_at - facts.now)
    if facts.last_outcome is Outcome.RETRY_LATER:
        text = f"its handler asked to run later: again in {left}, at {due_at:%Y-%m-%d %H:%M:%S} UTC{_said(facts.last_error)}"
        return Reason(kind=ReasonKind.RETRY, text=text, until_at=due_at)
    if task.tries > 0:
        text = f"try {task.tries} of {facts.tries_allowed} failed{_said(facts.last_error)}; the next is in {left}, at {due_at:%H:%M:%S} UTC"
        return Reason(kind=ReasonKind.RETRY, text=text, until_at=due_at)
    return Reason(kind=ReasonKind.LATER, text=f"it is due in {left}, at {due_at:%Y-%m-%d %H:%M:%S} UTC", until_at=due_at)


def _gate(gate: Gate) -> Reason:
    tasks = gate.handler if gate.collection is None else f"{gate.handler}, collection {gate.collection}"
    verb = "pauses" if gate.action is GateAction.PAUSE else "drops"
    until_at = None if gate.until_at is None else to_datetime(gate.until_at)
    ending = "until it is opened" if until_at is None else f"until {until_at:%Y-%m-%d %H:%M:%S} UTC"
    note = f": {gate.note}" if gate.note else ""
    text = f"a gate {verb} {tasks} {ending}; set by {gate.set_by or 'somebody'}{note}"
    return Reason(kind=ReasonKind.GATE, text=text, until_at=until_at, by=gate.set_by or None)


def _ready(task: TaskRecord, facts: WhyFacts) -> Reason:
    free = _count(facts.slots - facts.running, "slot")
    return Reason(
        kind=ReasonKind.READY,
        text=f"nothing holds it: it has been due for {_span(facts.now - task.due_at)} and {free} of {task.handler} are free",
    )


def _running(task: TaskRecord, facts: WhyFacts) -> Reason:
    since = "" if task.started_at is None else f" for {_span(facts.now - task.started_at)}"
    far = "" if task.progress is None else f", {task.progress:.0%} done"
    said = f" ({task.progress_text})" if task.progress_text else ""
    stop = "; a cancel has been asked for and it ends when its code does" if task.cancelling else ""
    text = f"attempt {task.attempt} has been running{since} on worker {task.worker or '?'}{far}{said}{stop}"
    return Reason(kind=ReasonKind.RUNNING, text=text, by=task.worker)


def _finished(task: TaskRecord, facts: WhyFacts) -> Reason:
    ago = "" if task.finished_at is None else f" {_span(facts.now - task.finished_at)} ago"
    match task.state:
        case State.SUCCEEDED:
            text = f"it succeeded{ago}, in attempt {task.attempt}"
        case State.FAILED if task.error is not None and task.error.type == "Quarantined":
            text = f"it was quarantined{ago}: {task.error.message}"
        case State.FAILED:
            tries = f"{task.tries} of {_count(facts.tries_allowed, 'try', 'tries')}"
            text = f"it failed{ago} after {tries}{_said(task.error)}; to run it again: retry"
        case State.CANCELLED:
            text = f"it was cancelled{ago}{_said(task.error)}"
        case State.DROPPED:
            text = f"it came due{ago} under a gate that drops {task.handler}"
        case _:
            text = f"it expired{ago}: it could not start before its expiry"
    return Reason(kind=ReasonKind.FINISHED, text=text, by=task.worker)


def _said(error: ErrorInfo | None) -> str:
    if error is None:
        return ""
    return f" ({error.type}: {error.message})" if error.message else f" ({error.type})"


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def _span(micros: int) -> str:
    """Return a duration in its two largest units."""
    seconds = max(0, micros) / SECOND
    if seconds < 1:
        return f"{seconds * 1_000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, hours, days = int(seconds // 60), int(seconds // 3_600), int(seconds // 86_400)
    if minutes < 60:
        return f"{minutes} min {int(seconds % 60)} s"
    return f"{hours} h {minutes % 60} min" if hours < 48 else f"{days} days {hours % 24} h"
