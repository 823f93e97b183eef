"""What operators and programs do to a schedule: make, change, pause, resume, run now. Pure; a store writes what comes of it.

Nothing here makes a task of an occurrence that lies in the past, unless catching up is asked for.
"""

from __future__ import annotations

from msgspec.structs import replace

from duetime.clock import Instant
from duetime.errors import Conflict
from duetime.model.firing import Step, has_ended, moved, noted
from duetime.model.occurrences import SUBMITTED_BY, task_of, waits_in_vain
from duetime.model.policies import read_overlap
from duetime.model.rules import Plan
from duetime.model.schedule import (
    MOST_RUNS,
    Pause,
    Run,
    ScheduleFacts,
    ScheduleRecord,
    ScheduleSpec,
    ScheduleState,
    Skip,
    SkipReason,
)
from duetime.model.skips import skip_between
from duetime.model.task import Edge

__all__ = ["edited", "pause", "put", "replan", "resume", "trigger"]


def edited(old: ScheduleSpec, new: ScheduleSpec) -> bool:
    """Tell whether a change touches which instants are planned."""
    return (old.rule, old.calendars, old.start_at, old.end_at, old.count) != (new.rule, new.calendars, new.start_at, new.end_at, new.count)


def put(
    name: str,
    spec: ScheduleSpec,
    plan: Plan,
    now: Instant,
    *,
    id: str,
    old: ScheduleRecord | None = None,
    old_plan: Plan | None = None,
    by: str = "",
    declared: int | None = None,
    catch_up: bool = False,
) -> Step:
    """Make a schedule, or give an old one another spec.

    A new one begins now; with `catch_up` at its `start_at`, if that is over. If the change touches which instants are planned, an old
    one begins anew now, and what the old plan had left is one skip; with `catch_up` the new plan goes on where the old one was. `id` is
    for a new one. A rule that waits for the end of a run counts its first delay from now.
    """
    if old is None:
        cursor = spec.start_at - 1 if catch_up and spec.start_at is not None and spec.start_at <= now else now
        state = ScheduleState(cursor=cursor, ended_at=now if plan.waits else None)
        record = ScheduleRecord(
            name=name,
            id=id,
            version=0,
            revision=1,
            spec=spec,
            state=state,
            next_at=None,
            declared=declared,
            created_at=now,
            changed_at=now,
            changed_by=by,
        )
        return Step(record=moved(record, state, plan, now))
    if old.spec == spec:
        return Step(record=old if old.declared == declared else replace(old, declared=declared))
    state = old.state
    skips: tuple[Skip, ...] = ()
    if edited(old.spec, spec):
        state, skips = _anew(old, old_plan, plan, now, SkipReason.CHANGED) if not catch_up else (_waiting(state, plan, now), ())
    record = replace(old, spec=spec, revision=old.revision + 1, declared=declared, changed_at=now, changed_by=by)
    return Step(record=moved(record, state, plan, now), skips=skips)


def replan(record: ScheduleRecord, old_plan: Plan | None, plan: Plan, now: Instant) -> Step:
    """Go on with another plan because a calendar has changed; what the old one had left is one skip."""
    state, skips = _anew(record, old_plan, plan, now, SkipReason.CHANGED)
    return Step(record=moved(record, state, plan, now), skips=skips)


def pause(record: ScheduleRecord, plan: Plan, now: Instant, *, by: str = "", note: str = "") -> Step:
    """Stop firing; what is planned meanwhile is neither fired nor recorded until it is resumed. Pausing again changes the note."""
    since = now if record.state.paused is None else record.state.paused.at
    state = replace(record.state, paused=Pause(at=since, by=by, note=note))
    return Step(record=replace(moved(record, state, plan, now), changed_at=now, changed_by=by))


def resume(record: ScheduleRecord, plan: Plan, now: Instant, *, by: str = "", catch_up: bool = False) -> Step:
    """Fire again: from now on, with one skip for the pause; or catching up, as the policy for missed occurrences says."""
    if record.state.paused is None:
        return Step(record=record)
    state, skips = (_waiting(record.state, plan, now), ()) if catch_up else _anew(record, plan, plan, now, SkipReason.PAUSED)
    state = replace(state, paused=None, failures=0)
    return Step(record=replace(moved(record, state, plan, now), changed_at=now, changed_by=by), skips=skips)


def trigger(
    record: ScheduleRecord,
    facts: ScheduleFacts,
    now: Instant,
    *,
    payload: bytes | None = None,
    overlap: str = "allow",
    by: str = SUBMITTED_BY,
) -> Step:
    """Run a schedule's handler now, paused or not; neither the cursor nor the count of the rule moves.

    `overlap` is judged by the runs that have not ended, as for an occurrence; where that one would be left out, this is a Conflict.
    """
    state, policy = noted(record.state, facts.ends, now), read_overlap(overlap)
    live = [run.task for run in state.runs if run.kind != "backfill"]
    limits = {"skip": 1, "queue one": 2, "allow": policy.limit or MOST_RUNS}
    if len(live) >= limits.get(policy.kind, MOST_RUNS) or len(state.runs) >= MOST_RUNS:
        raise Conflict(
            f'schedule {record.name!r} has {len(live)} run{"s" if len(live) > 1 else ""} that have not ended, and overlap="{policy}"'
            ' leaves no room for another; wait, or use overlap="allow"'
        )
    edges: tuple[Edge, ...] = ()
    if live and policy.kind != "allow":
        edges = tuple(Edge(task, "end") for task in (live if policy.kind == "cancel" else live[-1:]))
    # the version grows with every write, so no two triggers share a number
    number = record.version
    task = task_of(
        record,
        facts.plan.zone,
        now,
        kind="trigger",
        number=number,
        edges=edges,
        due_at=now,
        payload=payload,
        last=state.last,
        submitted_by=by,
    )
    state = replace(
        state,
        runs=(*state.runs, Run(task.id, now, "trigger")),
        cancel=tuple(live) if policy.kind == "cancel" else record.state.cancel,
        fired_at=now,
    )
    return Step(record=moved(record, state, facts.plan, now), tasks=(task,))


def _anew(
    record: ScheduleRecord, old_plan: Plan | None, plan: Plan, now: Instant, reason: SkipReason
) -> tuple[ScheduleState, tuple[Skip, ...]]:
    """Begin at the present; what was planned before and not accounted for is one skip."""
    state = record.state
    skip = None
    if old_plan is not None and not has_ended(record, state):
        skip = skip_between(record.name, old_plan, state.ended_at, state.cursor, now, reason, now)
    missed = state.missed + (0 if skip is None else skip.count)
    state = _waiting(replace(state, cursor=max(state.cursor, now), missed=missed), plan, now)
    return state, () if skip is None else (skip,)


def _waiting(state: ScheduleState, plan: Plan, now: Instant) -> ScheduleState:
    """See to it that a rule which waits for the end of a run has one to wait for, or the present."""
    if waits_in_vain(plan, state.cursor, state.ended_at) and all(run.kind != "rule" for run in state.runs):
        return replace(state, ended_at=now)
    return state
