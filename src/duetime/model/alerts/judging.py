"""Which subjects a condition holds for, from facts. A fact that nobody has gathered is empty, so a condition never holds by chance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import assert_never

import msgspec

from duetime.clock import DAY, SECOND, Instant, to_datetime, to_seconds
from duetime.model.access import fits
from duetime.model.alerts.conditions import (
    OF_HANDLERS,
    OF_SCHEDULES,
    Backlog,
    Certificate,
    Condition,
    Deadline,
    Disabled,
    Failing,
    Late,
    Missed,
    Running,
    Slo,
    WorkerLost,
    subject_pattern,
)
from duetime.model.alerts.course import Observation
from duetime.model.figures import Distribution
from duetime.model.gate import Gate
from duetime.model.wording import count, span

OWN = "duetime."  # handlers of the system itself: what goes wrong with notices raises no notices
WORKERS = "workers"  # the subject of what is about no handler and no schedule


class Counts(msgspec.Struct, frozen=True):
    """How many attempts ended within a span, and how many of these failed."""

    attempts: int
    failed: int


class LongestRun(msgspec.Struct, frozen=True):
    """The attempt of a handler that has run for longest, and how many run for longer than was asked for."""

    task: str
    seconds: float
    tasks: int


class MissedRuns(msgspec.Struct, frozen=True):
    """Occurrences of a schedule that nobody fired in time; the last of them."""

    count: int
    planned_at: Instant


class Overdue(msgspec.Struct, frozen=True):
    """A schedule whose run has not succeeded by a time."""

    by: Instant
    planned_at: Instant
    state: str  # of the last run, "" if there is none


class AlertFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What conditions look at, gathered for one rule. Spans are those that the condition asks for."""

    now: Instant
    gates: Sequence[Gate] = ()
    oldest_due: Mapping[str, float] = {}  # seconds, by handler, without those whose tasks a gate holds back
    due: Mapping[str, int] = {}
    counts: Mapping[str, Counts] = {}
    failed_in_a_row: Mapping[str, tuple[int, str]] = {}  # of the last tasks that ended, with the last error
    starts: Mapping[str, tuple[Distribution, Distribution]] = {}  # lateness over the whole window, and over its last part
    running: Mapping[str, LongestRun] = {}
    certificates: Mapping[str, Instant] = {}
    missed: Mapping[str, MissedRuns] = {}
    overdue: Mapping[str, Overdue] = {}
    workers_lost: int = 0


def observe(condition: Condition, facts: AlertFacts) -> list[Observation]:
    """Return the subjects for which a condition holds."""
    pattern = (subject_pattern(condition),)
    own = isinstance(condition, OF_HANDLERS)
    named = isinstance(condition, OF_HANDLERS + OF_SCHEDULES)
    return [
        each
        for each in _seen(condition, facts)
        if not named or (fits(pattern, each.subject) and not (own and each.subject.startswith(OWN)))
    ]


def _seen(condition: Condition, facts: AlertFacts) -> Iterator[Observation]:
    match condition:
        case Failing():
            yield from _failing(condition, facts)
        case Disabled():
            yield from _disabled(facts)
        case Late():
            allowed = to_seconds(condition.oldest_due)
            for name, waited in facts.oldest_due.items():
                if waited > allowed:
                    text = f"The oldest due task of {name} has waited for {_span(waited)}; {_span(allowed)} are allowed."
                    yield Observation(subject=name, text=text)
        case Slo():
            yield from _slo(condition, facts)
        case Running():
            allowed = to_seconds(condition.longer_than)
            for name, run in facts.running.items():
                others = f", and {count(run.tasks - 1, 'more task')}" if run.tasks > 1 else ""
                text = f"Task {run.task} of {name} has run for {_span(run.seconds)}{others}; {_span(allowed)} are allowed."
                yield Observation(subject=name, text=text)
        case Backlog():
            for name, due in facts.due.items():
                if due > condition.due:
                    yield Observation(
                        subject=name,
                        text=f"{name} has {count(due, 'due task')}; {condition.due:,} {'is' if condition.due == 1 else 'are'} allowed.",
                    )
        case Certificate():
            yield from _certificates(condition, facts)
        case Missed():
            for name, missed in facts.missed.items():
                last = f"{to_datetime(missed.planned_at):%Y-%m-%d %H:%M:%S} UTC"
                what = "An occurrence" if missed.count == 1 else f"{missed.count:,} occurrences"
                were = "was" if missed.count == 1 else "were"
                text = f"{what} of the schedule {name} {were} missed; the last one was planned for {last}."
                yield Observation(subject=name, text=text)
        case Deadline():
            for name, late in facts.overdue.items():
                planned = f"{to_datetime(late.planned_at):%Y-%m-%d %H:%M} UTC"
                ended = f"its last run is {late.state}" if late.state else "it has not run"
                by = f"{condition.by} ({condition.tz})"
                text = f"No run of the schedule {name} has succeeded by {by}: it was planned for {planned}, and {ended}."
                yield Observation(subject=name, text=text)
        case WorkerLost():
            if facts.workers_lost:
                lost = "A worker was" if facts.workers_lost == 1 else f"{facts.workers_lost:,} workers were"
                text = f"{lost} lost within {_span(to_seconds(condition.within))}: killed, out of memory, or its machine is gone."
                yield Observation(subject=WORKERS, text=text)
        case _:
            assert_never(condition)


def _disabled(facts: AlertFacts) -> Iterator[Observation]:
    """Of a handler with several such collections each that is added makes it worse, and so is told."""
    closed: dict[str, list[Gate]] = {}
    for gate in facts.gates:
        if gate.automatic and gate.until_at is None and gate.closed(facts.now):
            closed.setdefault(gate.handler, []).append(gate)
    for name, gates in closed.items():
        last = max(gates, key=lambda gate: gate.set_at)
        of = name if last.collection is None else f"{name}, collection {last.collection},"
        others = f" ({count(len(gates) - 1, 'other collection')} of it too)" if len(gates) > 1 else ""
        yield Observation(subject=name, text=f"{of} has disabled itself{others}: {last.note}", level=len(gates))


def _failing(condition: Failing, facts: AlertFacts) -> Iterator[Observation]:
    if condition.in_a_row is not None:
        for name, (failed, error) in facts.failed_in_a_row.items():
            if failed >= condition.in_a_row:
                why = f", the last one with {error}" if error else ""
                tasks = "task" if condition.in_a_row == 1 else f"{condition.in_a_row} tasks"
                yield Observation(subject=name, text=f"The last {tasks} of {name} failed{why}.")
        return
    assert condition.ratio is not None
    for name, counts in facts.counts.items():
        if counts.attempts >= condition.least and counts.failed > condition.ratio * counts.attempts:
            ratio = 100 * counts.failed / counts.attempts
            text = f"{counts.failed:,} of {counts.attempts:,} attempts of {name} failed within {_span(to_seconds(condition.within))}"
            yield Observation(subject=name, text=f"{text} ({ratio:.1f} %; {100 * condition.ratio:g} % are allowed).")


def _slo(condition: Slo, facts: AlertFacts) -> Iterator[Observation]:
    allowed, budget = to_seconds(condition.start_within), 1 - condition.ratio
    for name, (whole, last) in facts.starts.items():
        if whole.count < condition.least or not last.count:
            continue
        late, recent = 1 - whole.within(allowed), 1 - last.within(allowed)
        if min(late, recent) > condition.burn * budget:
            within = _span(to_seconds(condition.window))
            text = (
                f"{100 * (1 - late):.1f} % of {count(whole.count, 'attempt')} of {name} within {within} started in time "
                f"(within {_span(allowed)}); the goal is {100 * condition.ratio:g} %. "
                f"The error budget is spent {late / budget:.1f} times as fast as it may."
            )
            yield Observation(subject=name, text=text)


def _certificates(condition: Certificate, facts: AlertFacts) -> Iterator[Observation]:
    for name, ends_at in facts.certificates.items():
        reached = [days for days in condition.days if ends_at - facts.now <= days * DAY]
        if reached:
            level = sum(days >= min(reached) for days in set(condition.days))
            left = (ends_at - facts.now) / SECOND
            when = f"{to_datetime(ends_at):%Y-%m-%d %H:%M} UTC"
            told = f"ends in {_span(left)}, at {when}" if left > 0 else f"ended at {when}"
            yield Observation(subject=name, text=f"The certificate of the server that {name} calls {told}.", level=level)


def _span(seconds: float) -> str:
    return span(timedelta(seconds=seconds))
