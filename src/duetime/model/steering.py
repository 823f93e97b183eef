"""What operators and programs do to a schedule: create, change, pause, resume, trigger. Each returns a step for a store to write.

No past occurrence becomes a task, unless the caller asks to catch up.
"""

from __future__ import annotations

from msgspec.structs import replace

from duetime.clock import Instant
from duetime.errors import Conflict
from duetime.model.firing import Step, has_ended, with_ends, with_state
from duetime.model.occurrences import SUBMITTED_BY, has_nothing_to_wait_for, task_of
from duetime.model.overlap import decide_overlap
from duetime.model.policies import read_overlap
from duetime.model.rules import Plan
from duetime.model.schedule import (
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

__all__ = ["pause", "plan_differs", "put", "replan", "resume", "trigger"]


def plan_differs(old: ScheduleSpec, new: ScheduleSpec) -> bool:
    """Return whether a change affects which instants are planned."""
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
    """Create a schedule, or change the spec of an old one. `id` is for a new one.

    A new schedule begins now; with `catch_up`, at its `start_at` if that has passed. If a change affects which instants are planned,
    the old schedule begins again now, and what the old plan had left becomes one skip; with `catch_up`, the new plan continues at the
    cursor. A rule that waits for the end of a run counts its first delay from now.
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
        return Step(record=with_state(record, state, plan, now))
    if old.spec == spec:
        return Step(record=old if old.declared == declared else replace(old, declared=declared))
    state = old.state
    skips: tuple[Skip, ...] = ()
    if plan_differs(old.spec, spec):
        state, skips = _begin_again(old, old_plan, plan, now, SkipReason.CHANGED) if not catch_up else (_waiting(state, plan, now), ())
    record = replace(old, spec=spec, revision=old.revision + 1, declared=declared, changed_at=now, changed_by=by)
    return Step(record=with_state(record, state, plan, now), skips=skips)


def replan(record: ScheduleRecord, old_plan: Plan | None, plan: Plan, now: Instant) -> Step:
    """Continue with another plan because a calendar has changed. What the old plan had left becomes one skip."""
    state, skips = _begin_again(record, old_plan, plan, now, SkipReason.CHANGED)
    return Step(record=with_state(record, state, plan, now), skips=skips)


def pause(record: ScheduleRecord, plan: Plan, now: Instant, *, by: str = "", note: str = "") -> Step:
    """Stop firing. What is planned meanwhile is neither fired nor recorded until `resume`. Pausing again changes the note."""
    since = now if record.state.paused is None else record.state.paused.at
    state = replace(record.state, paused=Pause(at=since, by=by, note=note))
    return Step(record=replace(with_state(record, state, plan, now), changed_at=now, changed_by=by))


def resume(record: ScheduleRecord, plan: Plan, now: Instant, *, by: str = "", catch_up: bool = False) -> Step:
    """Fire again: from now on, with one skip for the pause; with `catch_up`, by the policy for missed occurrences."""
    if record.state.paused is None:
        return Step(record=record)
    state, skips = (_waiting(record.state, plan, now), ()) if catch_up else _begin_again(record, plan, plan, now, SkipReason.PAUSED)
    state = replace(state, paused=None, failures=0)
    return Step(record=replace(with_state(record, state, plan, now), changed_at=now, changed_by=by), skips=skips)


def trigger(
    record: ScheduleRecord,
    facts: ScheduleFacts,
    now: Instant,
    *,
    payload: bytes | None = None,
    overlap: str = "allow",
    by: str = SUBMITTED_BY,
) -> Step:
    """Run a schedule's handler now, paused or not. The cursor and the rule's count stay as they are.

    `overlap` means the same as for an occurrence; where an occurrence would be skipped, this raises Conflict.
    """
    state, policy = with_ends(record.state, facts.ends, now), read_overlap(overlap)
    live = [run.task for run in state.runs if run.kind != "backfill"]
    refused, waits_for = decide_overlap(policy, live, len(state.runs))
    if refused is not None:
        raise Conflict(
            f'schedule {record.name!r} has {len(live)} run{"s" if len(live) > 1 else ""} that have not ended, and overlap="{policy}"'
            ' permits no further one; wait, or use overlap="allow"'
        )
    # the version grows with every write, so no two triggers share a number
    number = record.version
    task = task_of(
        record,
        facts.plan,
        now,
        kind="trigger",
        number=number,
        edges=tuple(Edge(task, "end") for task in waits_for),
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
    return Step(record=with_state(record, state, facts.plan, now), tasks=(task,))


def _begin_again(
    record: ScheduleRecord, old_plan: Plan | None, plan: Plan, now: Instant, reason: SkipReason
) -> tuple[ScheduleState, tuple[Skip, ...]]:
    """Move the cursor to the present. What was planned before and is not accounted for becomes one skip."""
    state = record.state
    skip = None
    if old_plan is not None and not has_ended(record, state):
        skip = skip_between(record.name, old_plan, state.ended_at, state.cursor, now, reason, now)
    missed = state.missed + (0 if skip is None else skip.count)
    state = _waiting(replace(state, cursor=max(state.cursor, now), missed=missed), plan, now)
    return state, () if skip is None else (skip,)


def _waiting(state: ScheduleState, plan: Plan, now: Instant) -> ScheduleState:
    """Let a rule that waits for the end of a run wait from now on, if it has no run to wait for."""
    if has_nothing_to_wait_for(plan, state.cursor, state.ended_at) and all(run.kind != "rule" for run in state.runs):
        return replace(state, ended_at=now)
    return state
