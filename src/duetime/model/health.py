"""The verdict on a store: is all well, and if not, what is wrong, worst first.

One pure function, so that the dashboard, `duetime status` and a monitor say the same. A finding is a sentence about a subject that a page
can link to. Notes are worth knowing and nothing to act on: with notes alone all is well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from enum import StrEnum
from typing import Literal

import msgspec

from duetime.clock import SECOND, Instant
from duetime.model.gate import Gate, GateAction
from duetime.model.wording import count, span

LATE = 60.0  # seconds that the oldest due task of a handler may wait
FAILURES, FAILURE_SHARE = 10, 0.1  # so many failed attempts, and more than this share of all, within FAILING_WITHIN
FAILING_WITHIN = 300.0
TROUBLE_WITHIN = 900.0  # how long a lost lease, a stale write or a blocked loop is told
OPENS_SOON = 600.0  # seconds before a gate opens by itself in which that is told
EACH_ALERT = 3  # subjects of a rule that are told one by one
STUCK = 90.0  # seconds without progress of a loop, longer than any bound on a store's answer

SubjectKind = Literal["store", "handler", "worker", "schedule", "gate", "maintenance", "alert"]
Level = Literal["problem", "warning", "note"]


class FindingKind(StrEnum):
    """What can be found, worst first."""

    STORE_AWAY = "store away"
    NO_WORKER = "no worker"
    MAINTENANCE_STUCK = "maintenance stuck"
    FAILING = "failing"
    LATE = "late"
    ALERT = "alert"
    DISABLED = "disabled"
    SCHEDULE_BROKEN = "schedule broken"
    SCHEDULE_LATE = "schedule late"
    SILENT_WORKER = "silent worker"
    SCHEDULE_PAUSED = "schedule paused"
    SCHEDULE_FAILING = "schedule failing"
    LEASE_LOST = "lease lost"
    STALE_WRITES = "stale writes"
    LOOP_BLOCKED = "loop blocked"
    DROPPING = "dropping"
    OPENS_SOON = "opens soon"


_PROBLEMS = frozenset(
    {
        FindingKind.STORE_AWAY,
        FindingKind.NO_WORKER,
        FindingKind.MAINTENANCE_STUCK,
        FindingKind.FAILING,
        FindingKind.LATE,
        FindingKind.ALERT,
        FindingKind.DISABLED,
        FindingKind.SCHEDULE_BROKEN,
        FindingKind.SCHEDULE_LATE,
    }
)
_AS_ALERT = {FindingKind.FAILING: "failing", FindingKind.LATE: "late", FindingKind.DISABLED: "disabled"}
_LEVELS: tuple[Level, ...] = ("problem", "warning", "note")
_RANK = {kind: rank for rank, kind in enumerate(FindingKind)}


class HealthFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is not well. `text` is a sentence; `subject` and `name` say what it is about. `handlers`: whose business it is."""

    kind: FindingKind
    level: Level
    subject: SubjectKind
    name: str
    text: str
    handlers: tuple[str, ...] = ()


class HandlerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A handler: what is due and for how many seconds the oldest has waited, its live workers, and its attempts of the last minutes.

    `start_within` is its own objective, in place of `LATE`.
    """

    name: str
    due: int = 0
    oldest_due: float = 0.0
    start_within: float | None = None
    workers: int = 0
    attempts: int = 0
    failed: int = 0


class WorkerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that has ended without leaving, or has been silent for longer than its lease: for how many seconds, None if it has ended."""

    id: str
    host: str
    running: int
    handlers: tuple[str, ...]
    silent_for: float | None = None


class ScheduleFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule that is not well: its health, or `paused` if it was paused by itself; `text` is its problem or the pause's note."""

    name: str
    handler: str
    health: Literal["late", "broken", "failing", "paused"]
    late_for: float = 0.0
    failures: int = 0
    text: str = ""


class FiringAlert(msgspec.Struct, frozen=True, kw_only=True):
    """A subject that a rule fires for, in the rule's own sentence; `acknowledged`: somebody has taken notice. `condition`: `late`, …"""

    rule: str
    subject: str
    text: str
    acknowledged: bool = False
    condition: str = ""


class HealthFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the verdict depends on. `away` is why the store does not answer; then nothing else is known.

    The counts are of the last `TROUBLE_WITHIN` seconds. `stuck` are duties and loops without progress, with the seconds.
    """

    now: Instant
    away: str | None = None
    handlers: Sequence[HandlerFacts] = ()
    workers: Sequence[WorkerFacts] = ()
    schedules: Sequence[ScheduleFacts] = ()
    gates: Sequence[Gate] = ()
    alerts: Sequence[FiringAlert] = ()
    lease_losses: int = 0
    stale_writes: int = 0
    blocked_loops: int = 0
    stuck: Sequence[tuple[str, float]] = ()


class HealthVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Whether all is well, in one sentence, and what was found, worst first."""

    well: bool
    text: str
    findings: list[HealthFinding]

    def part(self, may_see: Callable[[str], bool]) -> HealthVerdict:
        """Return what somebody may see who may see some handlers."""
        return verdict_on([each for each in self.findings if not each.handlers or any(map(may_see, each.handlers))])


def verdict(facts: HealthFacts) -> HealthVerdict:
    """Judge the facts."""
    return verdict_on(findings(facts))


def verdict_on(found: Iterable[HealthFinding]) -> HealthVerdict:
    """Return findings with what they amount to."""
    ordered = sorted(found, key=lambda each: (_LEVELS.index(each.level), _RANK[each.kind], each.name))
    grave = [each for each in ordered if each.level != "note"]
    if not grave:
        return HealthVerdict(well=True, text="All is well.", findings=ordered)
    more = f" And {count(len(grave) - 1, 'more finding')}." if len(grave) > 1 else ""
    return HealthVerdict(well=False, text=grave[0].text + more, findings=ordered)


def findings(facts: HealthFacts) -> list[HealthFinding]:
    """Return everything that is not well, in no order."""
    if facts.away is not None:
        return [_finding(FindingKind.STORE_AWAY, "store", "store", f"The store does not answer: {facts.away}")]
    told = {(each.condition, each.subject) for each in facts.alerts}  # a rule says the same of its own bound
    return [
        *(each for each in _of_handlers(facts) if (_AS_ALERT.get(each.kind), each.name) not in told),
        *_of_workers(facts),
        *_of_schedules(facts),
        *(each for each in _of_gates(facts) if (_AS_ALERT.get(each.kind), each.name) not in told),
        *_of_alerts(facts),
        *_of_counts(facts),
        *(
            _finding(FindingKind.MAINTENANCE_STUCK, "maintenance", name, f"{name} has made no progress for {_span(seconds)}.")
            for name, seconds in facts.stuck
            if seconds > STUCK
        ),
    ]


def _of_handlers(facts: HealthFacts) -> Iterator[HealthFinding]:
    for each in facts.handlers:
        held = _holding(facts, each.name)
        if each.due and not each.workers and not held:
            text = f"{each.name} has {count(each.due, 'due task')} and no live worker; the oldest has waited for {_span(each.oldest_due)}."
            yield _of_handler(FindingKind.NO_WORKER, each.name, text)
        elif (
            each.oldest_due > (LATE if each.start_within is None else each.start_within)
            and not held
            and not _holding(facts, each.name, any_collection=True)
        ):
            # behind a gate on a collection tasks wait on purpose, and the oldest may be one of those
            goal = "" if each.start_within is None else f"; it should start within {_span(each.start_within)}"
            text = f"The oldest of {count(each.due, 'due task')} of {each.name} has waited for {_span(each.oldest_due)}{goal}."
            yield _of_handler(FindingKind.LATE, each.name, text)
        if each.failed >= FAILURES and each.failed > FAILURE_SHARE * each.attempts:
            share = round(100 * each.failed / each.attempts)
            text = f"{each.name} fails: {each.failed:,} of {each.attempts:,} attempts in the last 5 minutes ({share} %)."
            yield _of_handler(FindingKind.FAILING, each.name, text)


def _holding(facts: HealthFacts, handler: str, *, any_collection: bool = False) -> bool:
    """Return whether a closed gate holds all tasks of a handler back, or those of some collection."""
    return any(gate.handler == handler and gate.closed(facts.now) and (any_collection or gate.collection is None) for gate in facts.gates)


def _of_workers(facts: HealthFacts) -> Iterator[HealthFinding]:
    for each in facts.workers:
        how = "has ended without leaving" if each.silent_for is None else f"has been silent for {_span(each.silent_for)}"
        text = f"A worker on {each.host} {how}; it holds {count(each.running, 'attempt')}."
        yield _finding(FindingKind.SILENT_WORKER, "worker", each.id, text, each.handlers)


def _of_schedules(facts: HealthFacts) -> Iterator[HealthFinding]:
    for each in facts.schedules:
        match each.health:
            case "late":
                kind, text = FindingKind.SCHEDULE_LATE, f"The schedule {each.name} is {_span(each.late_for)} late: nobody fires it."
            case "broken":
                kind, text = FindingKind.SCHEDULE_BROKEN, f"The schedule {each.name} cannot be planned any more: {each.text}"
            case "failing":
                runs = "last run" if each.failures <= 1 else f"last {each.failures:,} runs"
                kind, text = FindingKind.SCHEDULE_FAILING, f"The {runs} of the schedule {each.name} failed."
            case "paused":
                note = f": {each.text}" if each.text else "."
                kind, text = FindingKind.SCHEDULE_PAUSED, f"The schedule {each.name} was paused by itself{note}"
        yield _finding(kind, "schedule", each.name, text, (each.handler,))


def _of_gates(facts: HealthFacts) -> Iterator[HealthFinding]:
    for gate in facts.gates:
        if not gate.closed(facts.now):
            continue
        of = gate.handler if gate.collection is None else f"{gate.handler}, collection {gate.collection}"
        if gate.automatic and gate.until_at is None:  # one with an end only does what a target asked for
            text = f"A gate on {of} closed by itself: {gate.note}"
            yield _finding(FindingKind.DISABLED, "gate", gate.handler, text, (gate.handler,))
        if gate.action is GateAction.DROP:
            text = f"A gate drops the tasks of {of}{f': {gate.note}' if gate.note else '.'}"
            yield _finding(FindingKind.DROPPING, "gate", gate.handler, text, (gate.handler,))
        left = None if gate.until_at is None else (gate.until_at - facts.now) / SECOND
        if left is not None and left <= OPENS_SOON:
            text = f"In {_span(left)} the gate on {of} opens by itself."
            yield _finding(FindingKind.OPENS_SOON, "gate", gate.handler, text, (gate.handler,))


def _of_alerts(facts: HealthFacts) -> Iterator[HealthFinding]:
    """Tell each subject of a rule, or only how many there are: one cause can make hundreds of handlers ill."""
    by_rule: dict[str, list[FiringAlert]] = {}
    for alert in facts.alerts:
        by_rule.setdefault(alert.rule, []).append(alert)
    for rule, alerts in by_rule.items():
        subjects = tuple(each.subject for each in alerts)
        told: list[tuple[list[FiringAlert], str, tuple[str, ...]]] = [([each], each.text, (each.subject,)) for each in alerts]
        if len(alerts) > EACH_ALERT:
            told = [(alerts, f"The alert {rule!r} fires for {len(alerts):,}: {', '.join(subjects[:EACH_ALERT])} and others.", subjects)]
        for each, text, about in told:
            level: Level = "warning" if all(alert.acknowledged for alert in each) else "problem"
            yield HealthFinding(kind=FindingKind.ALERT, level=level, subject="alert", name=rule, text=text, handlers=about)


def _of_counts(facts: HealthFacts) -> Iterator[HealthFinding]:
    within = "in the last 15 minutes"
    if facts.lease_losses:
        yield _finding(FindingKind.LEASE_LOST, "worker", "", f"Workers lost their lease {count(facts.lease_losses, 'time')} {within}.")
    if facts.stale_writes:
        text = f"{count(facts.stale_writes, 'outcome')} came too late {within}: the attempts had been given to others."
        yield _finding(FindingKind.STALE_WRITES, "worker", "", text)
    if facts.blocked_loops:
        text = f"Code blocked the event loop of a worker {count(facts.blocked_loops, 'time')} {within}."
        yield _finding(FindingKind.LOOP_BLOCKED, "worker", "", text)


def _of_handler(kind: FindingKind, handler: str, text: str) -> HealthFinding:
    return _finding(kind, "handler", handler, text, (handler,))


def _finding(kind: FindingKind, subject: SubjectKind, name: str, text: str, handlers: tuple[str, ...] = ()) -> HealthFinding:
    level: Level = "problem" if kind in _PROBLEMS else "note" if kind is FindingKind.OPENS_SOON else "warning"
    return HealthFinding(kind=kind, level=level, subject=subject, name=name, text=text, handlers=handlers)


def _span(seconds: float) -> str:
    return span(timedelta(seconds=seconds))
