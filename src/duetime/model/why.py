"""Why a task is in its state: facts in, reasons out, each a sentence that a person can act on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Literal, assert_never

import msgspec

from duetime.clock import SECOND, Instant, to_datetime
from duetime.model.gate import Gate, GateAction
from duetime.model.limit import LimitRecord, PartitionRecord
from duetime.model.outcome import Outcome
from duetime.model.retry import repeat_pause
from duetime.model.steps import StepKind, StepRecord
from duetime.model.task import PRIORITIES, ErrorInfo, State, TaskRecord
from duetime.model.wording import count, listed

MAX_PRIORITY = PRIORITIES[-1]
MOST_NAMED = 3  # handlers that are named as those which take a worker's slots, and tasks that another waits for


class ReasonKind(StrEnum):
    """What a task waits for, or how it ended."""

    LATER = "later"
    RETRY = "retry"
    GATE = "gate"
    NO_WORKER = "no_worker"
    LIMIT = "limit"
    SLOTS_FULL = "slots_full"
    WORKER_FULL = "worker_full"
    BLOCKED = "blocked"
    SUSPENDED = "suspended"
    PARKED = "parked"
    REQUESTED = "requested"
    READY = "ready"
    RUNNING = "running"
    ACCEPTED = "accepted"
    FINISHED = "finished"


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """One reason. `until_at` is when it ends by itself, if that is known; `by` is the user or worker behind it."""

    kind: ReasonKind
    text: str
    until_at: datetime | None = None
    by: str | None = None


class HandlerSource(StrEnum):
    """Where workers find out how a handler's attempts are performed; NOWHERE: nothing says it (any more)."""

    CODE = "code"
    STORED = "stored"
    STORED_COMMAND = "stored command"
    NOWHERE = "nowhere"


class WorkerLoad(msgspec.Struct, frozen=True, kw_only=True):
    """A live worker that runs the task's handler: its slots of that handler, how many are taken, and all that it runs by handler.

    `concurrency` is its slots over all handlers; None: there are enough for the slots of each.
    """

    slots: int
    running: int
    concurrency: int | None = None
    by_handler: Mapping[str, int] = {}

    @property
    def handler_full(self) -> bool:
        return self.running >= self.slots

    @property
    def full(self) -> bool:
        return self.concurrency is not None and sum(self.by_handler.values()) >= self.concurrency

    @property
    def free(self) -> int:
        """How many attempts of the handler it could start now."""
        free = self.slots - self.running
        if self.concurrency is not None:
            free = min(free, self.concurrency - sum(self.by_handler.values()))
        return max(0, free)


class Awaited(msgspec.Struct, frozen=True):
    """A task that a blocked one waits for. `name` says which: its id, and its handler if that may be seen."""

    name: str
    state: State | None
    needs: Literal["end", "success"]


class Under(msgspec.Struct, frozen=True):
    """What a parked task waits under, and how many wait before it."""

    limit: LimitRecord
    partition: PartitionRecord
    before: int


class WhyFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What `why` needs besides the task. `gates` hold it, the one that applies first; `workers` are live and run its handler.

    `draining` are ids of live ones that would run it, but drain.
    """

    now: Instant
    gates: Sequence[Gate] = ()
    live_workers: int = 0
    workers: Sequence[WorkerLoad] = ()
    limits: Sequence[LimitRecord] = ()  # that its handler takes something of
    under: Under | None = None  # the limit that has parked it
    weights: Mapping[str, float] | None = None  # of its handler's collections, if these share its starts
    reserve: Mapping[int, int] = {}  # slots of its handler that are kept for tasks of at least that priority
    draining: Sequence[str] = ()
    awaited: Sequence[Awaited] = ()
    awaited_in_all: int = 0
    source: HandlerSource = HandlerSource.CODE
    due_before: int = 0
    more_due: bool = False  # than were counted
    tries_allowed: int = 1
    step: StepRecord | None = None  # that it waits for
    last_outcome: Outcome | None = None
    last_error: ErrorInfo | None = None


def why(task: TaskRecord, facts: WhyFacts) -> list[Reason]:
    """Return everything that a task waits for, what decides first; for a running or final task, one reason that says so."""
    match task.state:
        case State.RUNNING:
            return [_running(task, facts)]
        case State.BLOCKED:
            return _expiring(
                task, facts, [_blocked(facts) if facts.step is None else _suspended(facts.step, facts), *_waiting(task, facts)]
            )
        case State.PENDING if task.parked:
            return _expiring(task, facts, [_parked(task, facts), *_waiting(task, facts)])
        case State.PENDING:
            return _expiring(task, facts, _waiting(task, facts) or [_ready(task, facts)])
        case State.SUCCEEDED | State.FAILED | State.CANCELLED | State.DROPPED | State.EXPIRED:
            return [_finished(task, facts)]
        case _:
            assert_never(task.state)


def _blocked(facts: WhyFacts) -> Reason:
    if not facts.awaited:
        return Reason(kind=ReasonKind.BLOCKED, text="it waits for other tasks to end")
    named = [
        f"{each.name}{'' if each.state is None else f' ({each.state})'} {'to succeed' if each.needs == 'success' else 'to end'}"
        for each in facts.awaited
    ]
    if facts.awaited_in_all > len(named):
        named.append(f"{facts.awaited_in_all - len(named):,} more")
    return Reason(kind=ReasonKind.BLOCKED, text=f"it waits for {listed(named)}")


def _suspended(step: StepRecord, facts: WhyFacts) -> Reason:
    since = f"for {_span(facts.now - step.at)}, since {to_datetime(step.at):%Y-%m-%d %H:%M:%S} UTC"
    until_at = None if step.wake_at is None else to_datetime(step.wake_at)
    if step.kind is StepKind.CALL:
        text = f"its step {step.name!r} waits {since}: {_blocked(facts).text.removeprefix('it ')}"
        return Reason(kind=ReasonKind.SUSPENDED, text=text)
    ending = "" if step.wake_at is None else f"; the time-out is in {_span(step.wake_at - facts.now)}, at {until_at:%Y-%m-%d %H:%M:%S} UTC"
    text = f"its step {step.name!r} waits for the signal {step.signal!r} {since}{ending}. To send it: duetime signals send"
    return Reason(kind=ReasonKind.SUSPENDED, text=text, until_at=until_at)


def requested(verbs: Sequence[str]) -> Reason:
    """Return the reason that says what callers' transactions have asked for and nobody has carried out yet: cancels and edits."""
    asked = " and ".join(f"{'an' if verb == 'edit' else 'a'} {verb}" for verb in dict.fromkeys(verbs))
    text = f"{asked} of it was committed in a caller's transaction and is not carried out yet; workers and servers look every second"
    return Reason(kind=ReasonKind.REQUESTED, text=text)


def _expiring(task: TaskRecord, facts: WhyFacts, reasons: list[Reason]) -> list[Reason]:
    """Return the reasons, the first one with the end of the wait, if the task expires."""
    if task.expires_at is None:
        return reasons
    left = task.expires_at - facts.now
    ending = (
        f"in {_span(left)}, at {to_datetime(task.expires_at):%Y-%m-%d %H:%M:%S} UTC" if left > 0 else "at the next look of the maintenance"
    )
    first = msgspec.structs.replace(reasons[0], text=f"{reasons[0].text}; if it does not start before, it expires {ending}")
    return [first, *reasons[1:]]


def _waiting(task: TaskRecord, facts: WhyFacts) -> list[Reason]:
    reasons = []
    if task.due_at > facts.now:
        reasons.append(_later(task, facts))
    reasons += [_gate(gate) for gate in facts.gates]
    if not facts.workers:
        reasons.append(Reason(kind=ReasonKind.NO_WORKER, text=_no_worker(task, facts)))
    elif task.due_at <= facts.now and not task.parked:
        reasons += [_limit(task, limit, facts) for limit in facts.limits if _is_reached(task, limit, facts)]
        reasons += _full(task, facts) or _kept(task, facts)
    return reasons


def _kept(task: TaskRecord, facts: WhyFacts) -> list[Reason]:
    """Return why a task waits although its handler has free slots: these are kept for higher priorities."""
    above = sorted(priority for priority in facts.reserve if priority > task.priority)
    kept = sum(facts.reserve[priority] for priority in above)
    if not kept or any(worker.free > kept for worker in facts.workers):
        return []
    who = f"priority {above[0]}{'' if above[0] == MAX_PRIORITY else ' and above'}"
    text = f"{kept} of its {max(worker.slots for worker in facts.workers)} slots are kept for {who}, and the others are taken"
    return [Reason(kind=ReasonKind.SLOTS_FULL, text=text)]


def _is_reached(task: TaskRecord, limit: LimitRecord, facts: WhyFacts) -> bool:
    return not limit.is_counted and limit.out + limit.uses.get(task.handler, 1) > limit.running_at(facts.now)


def _limit(task: TaskRecord, limit: LimitRecord, facts: WhyFacts) -> Reason:
    running, takes = limit.running_at(facts.now), limit.uses.get(task.handler, 1)
    if takes > running:
        text = f"it can never run: an attempt of {task.handler} takes {takes} of the limit {limit.name}, which allows {running}"
        return Reason(kind=ReasonKind.LIMIT, text=text)
    holders = sorted((holder for holder in limit.holders if holder.permits), key=lambda holder: -holder.permits)
    named = [f"{holder.permits} in worker {holder.worker}" for holder in holders[:MOST_NAMED]]
    if len(holders) > MOST_NAMED:
        named.append(f"{sum(holder.permits for holder in holders[MOST_NAMED:])} in others")
    if limit.accepted:
        named.append(f"{limit.accepted} accepted elsewhere")
    where = f" ({', '.join(named)})" if named else ""
    text = f"the limit {limit.name} is reached: {limit.out} of {running} are taken in the whole fleet{where}"
    if facts.due_before:
        text += f"; {facts.due_before:,} more of {task.handler} {'is' if facts.due_before == 1 else 'are'} due"
    if limit.own_at(facts.now) is not None:
        until = "" if limit.until_at is None else f" until {to_datetime(limit.until_at):%Y-%m-%d %H:%M:%S} UTC"
        text += f"; set by {limit.set_by or 'somebody'}{until} instead of {limit.declared}" + (f": {limit.note}" if limit.note else "")
    return Reason(kind=ReasonKind.LIMIT, text=text)


def _no_worker(task: TaskRecord, facts: WhyFacts) -> str:
    """Return why no live worker runs a handler, and what to do."""
    if facts.draining:
        one = len(facts.draining) == 1
        some = f"the only live worker that runs {task.handler} drains" if one else f"all live workers that run {task.handler} drain"
        named = ", ".join(facts.draining[:MOST_NAMED]) + (", …" if len(facts.draining) > MOST_NAMED else "")
        return f"{some}: nothing more starts there ({named}). Start another one, or: duetime workers drain --undo {facts.draining[0]}"
    others = f"{count(facts.live_workers, 'worker')} of other handlers" if facts.live_workers else "no worker at all"
    match facts.source:
        case HandlerSource.STORED:
            text = f"the target of {task.handler} is stored, and no live worker serves it; there is {others}."
            return f"{text} Start one: duetime worker --targets"
        case HandlerSource.STORED_COMMAND:
            return (
                f"the target of {task.handler} is a stored command, and no live worker runs those; there is {others}. "
                "Start one where it may run: duetime worker --targets --allow command"
            )
        case HandlerSource.NOWHERE:
            return (
                f"nothing says how to run {task.handler}: no code declares it, and no target is stored under its name (any more). "
                "Put one, `duetime handlers put`, or start a worker that declares it; or cancel the task"
            )
        case HandlerSource.CODE:
            return f"no live worker runs {task.handler}; there is {others}. Start one: duetime worker APP"


def _full(task: TaskRecord, facts: WhyFacts) -> list[Reason]:
    """Return what keeps every worker from starting it: the slots of its handler, those of the worker over all handlers, or both."""
    if any(worker.free for worker in facts.workers):
        return []
    reasons = []
    of_handler = [worker for worker in facts.workers if worker.handler_full]
    if of_handler:
        running = sum(worker.running for worker in of_handler)
        slots = count(sum(worker.slots for worker in of_handler), "slot")
        text = f"all slots of {task.handler}{_some(of_handler, facts)} are taken: {running} run in {slots}{_ahead(task, facts)}"
        reasons.append(Reason(kind=ReasonKind.SLOTS_FULL, text=text))
    of_worker = [worker for worker in facts.workers if worker.full]
    if of_worker:
        running_of: Counter[str] = Counter()
        for worker in of_worker:
            running_of.update(worker.by_handler)
        most = ", ".join(f"{number:,} of {handler}" for handler, number in running_of.most_common(MOST_NAMED))
        others = ", …" if len(running_of) > MOST_NAMED else ""
        slots = count(sum(worker.concurrency or 0 for worker in of_worker), "slot")
        text = (
            f"all slots over all handlers{_some(of_worker, facts)} are taken: {running_of.total():,} run in {slots} ({most}{others})"
            f"{'' if of_handler else _ahead(task, facts)}. More of them: duetime worker --concurrency, or another worker"
        )
        reasons.append(Reason(kind=ReasonKind.WORKER_FULL, text=text))
    return reasons


def _some(workers: Sequence[WorkerLoad], facts: WhyFacts) -> str:
    return "" if len(workers) == len(facts.workers) else f" in {len(workers):,} of {count(len(facts.workers), 'worker')}"


def _ahead(task: TaskRecord, facts: WhyFacts) -> str:
    if not facts.due_before:
        return ""
    due = f"{facts.due_before:,}+ due tasks" if facts.more_due else count(facts.due_before, "due task")
    shared = ""
    if facts.weights is not None:
        mine = task.collection or "no collection"
        shared = f"; its collections share the starts, and {mine} weighs {facts.weights.get(task.collection or '', 1.0):g}"
    return f", and {due} of it {'waits' if facts.due_before == 1 else 'wait'}{shared}"


def _under_limit(task: TaskRecord, under: Under, facts: WhyFacts) -> Reason:
    limit, partition = under.limit, under.partition
    who = f" for {limit.by} {partition.name}" if limit.by and partition.name else f" for tasks without {limit.by}" if limit.by else ""
    takes = limit.uses.get(task.handler, 1)
    if partition.running and takes > partition.running:
        allowed = f"the limit {limit.name}, which allows {partition.running}{who}"
        return Reason(kind=ReasonKind.LIMIT, text=f"it can never run: an attempt of {task.handler} takes {takes} of {allowed}")
    parts = []
    if partition.running:
        parts.append(f"{partition.running:,} at a time")
    parts += [str(rate) for rate in limit.rates_at(facts.now)]
    text = f"the limit {limit.name} allows {' and '.join(parts)}{who}"
    if partition.counted:
        named = ", ".join(partition.tasks[:MOST_NAMED])
        running = f"{partition.counted:,} {'is' if partition.counted == 1 else 'are'} taken"
        text += f": {running}" + (f" (by {named}{', …' if len(partition.tasks) > MOST_NAMED else ''})" if named else "")
    if partition.next_at is not None:
        text += f"; the next may start at {to_datetime(partition.next_at):%Y-%m-%d %H:%M:%S.%f}"[:-4] + " UTC"
    text += f"; {count(under.before, 'task')} {'waits' if under.before == 1 else 'wait'} before it"
    own, until_at, note, set_by = partition.own, partition.until_at, partition.note, partition.set_by
    if own is None and limit.is_own_at(facts.now):
        own, until_at, note, set_by = limit.own, limit.until_at, limit.note, limit.set_by
    if own is not None or limit.is_own_at(facts.now):
        until = "" if until_at is None else f" until {to_datetime(until_at):%Y-%m-%d %H:%M:%S} UTC"
        declared = [*([str(limit.declared)] if limit.declared else []), *map(str, limit.rates)]
        text += f"; set by {set_by or 'somebody'}{until} instead of {' and '.join(declared)}" + (f": {note}" if note else "")
    return Reason(kind=ReasonKind.LIMIT, text=text)


def _parked(task: TaskRecord, facts: WhyFacts) -> Reason:
    if facts.under is not None:
        return _under_limit(task, facts.under, facts)
    problem = "" if task.error is None else f" ({task.error.message})"
    running = count(len(facts.workers), "live worker")
    text = (
        f"it is parked: its payload does not fit the code of any worker that has tried it{problem}; {running} of {task.handler} now. "
        "It runs when a worker with fitting code starts, or when its payload is edited: duetime edit --payload"
    )
    return Reason(kind=ReasonKind.PARKED, text=text)


def _later(task: TaskRecord, facts: WhyFacts) -> Reason:
    due_at = to_datetime(task.due_at)
    left = _span(task.due_at - facts.now)
    if facts.last_outcome is Outcome.RETRY_LATER:
        text = f"its handler asked to run later: again in {left}, at {due_at:%Y-%m-%d %H:%M:%S} UTC{_said(facts.last_error)}"
        return Reason(kind=ReasonKind.RETRY, text=text + _repeats(task), until_at=due_at)
    if facts.step is not None and facts.step.kind is StepKind.SLEEP and facts.step.wake_at == task.due_at:
        text = f"it sleeps in its step {facts.step.name!r} for another {left}, until {due_at:%Y-%m-%d %H:%M:%S} UTC"
        return Reason(kind=ReasonKind.SUSPENDED, text=text, until_at=due_at)
    if facts.last_outcome in (Outcome.RELEASED, Outcome.LOST) and (repeats := _repeats(task)):
        return Reason(kind=ReasonKind.RETRY, text=f"it runs again in {left}, at {due_at:%H:%M:%S} UTC{repeats}", until_at=due_at)
    if task.tries > 0:
        text = f"try {task.tries} of {facts.tries_allowed} failed{_said(facts.last_error)}; the next is in {left}, at {due_at:%H:%M:%S} UTC"
        return Reason(kind=ReasonKind.RETRY, text=text, until_at=due_at)
    return Reason(kind=ReasonKind.LATER, text=f"it is due in {left}, at {due_at:%Y-%m-%d %H:%M:%S} UTC", until_at=due_at)


def _repeats(task: TaskRecord) -> str:
    """Return why a task waits longer than asked for after many attempts without a try: the rest of the sentence, or nothing."""
    repeats = task.attempt - task.tries
    pause = repeat_pause(repeats)
    return f"; after {repeats:,} attempts that used up no try the next waits at least {pause:g} s" if pause else ""


def _gate(gate: Gate) -> Reason:
    tasks = gate.handler if gate.collection is None else f"{gate.handler}, collection {gate.collection}"
    verb = "pauses" if gate.action is GateAction.PAUSE else "drops"
    until_at = None if gate.until_at is None else to_datetime(gate.until_at)
    ending = "until it is opened" if until_at is None else f"until {until_at:%Y-%m-%d %H:%M:%S} UTC"
    note = f": {gate.note}" if gate.note else ""
    if gate.automatic and gate.probe_at is not None:
        ending = "until a task of it succeeds"
        note += f". From {to_datetime(gate.probe_at):%Y-%m-%d %H:%M:%S} UTC on, one tries; to open it now: duetime gates open"
    text = f"a gate {verb} {tasks} {ending}; set by {gate.set_by or 'somebody'}{note}"
    return Reason(kind=ReasonKind.GATE, text=text, until_at=until_at, by=gate.set_by or None)


def _ready(task: TaskRecord, facts: WhyFacts) -> Reason:
    free = sum(worker.free for worker in facts.workers)
    slots = f"{count(free, 'slot')} of {task.handler} {'is' if free == 1 else 'are'} free"
    return Reason(kind=ReasonKind.READY, text=f"nothing holds it: it has been due for {_span(facts.now - task.due_at)} and {slots}")


def _running(task: TaskRecord, facts: WhyFacts) -> Reason:
    since = "" if task.started_at is None else f" for {_span(facts.now - task.started_at)}"
    far = "" if task.progress is None else f", {task.progress:.0%} done"
    said = f" ({task.progress_text})" if task.progress_text else ""
    if task.deadline_at is not None:
        left = task.deadline_at - facts.now
        ending = f"in {_span(left)}, at {to_datetime(task.deadline_at):%Y-%m-%d %H:%M:%S} UTC" if left > 0 else "at once"
        after = "it ends as cancelled" if task.cancelling else "it times out"
        asked = "; a cancel has been asked for" if task.cancelling else ""
        work = f"somebody outside works on attempt {task.attempt}{since}{far}{said}{asked}"
        text = f"{work}; unless something is reported, {after} {ending}"
        return Reason(kind=ReasonKind.ACCEPTED, text=text, until_at=to_datetime(task.deadline_at))
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
            tries = f"{task.tries} of {count(facts.tries_allowed, 'try', 'tries')}"
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
    return f" ({error}, at {error.location})" if error.location else f" ({error})"


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
