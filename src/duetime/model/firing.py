"""Firing: which occurrences of a schedule become tasks, which are skipped, and when to look at it again.

Every planned instant after the cursor and up to `now` is accounted for once: as a task or as a part of a skip. One step does a bounded
part of that and moves the cursor; the next step continues from there. `model.steering` has what operators do to a schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from duetime.clock import SECOND, Instant
from duetime.model.occurrences import due_of_occurrence, has_nothing_to_wait_for, planned_after, task_of
from duetime.model.overlap import decide_overlap
from duetime.model.policies import Missed, read_missed, read_overlap
from duetime.model.rules import Plan
from duetime.model.schedule import MOST_RUNS, Ends, Pause, Run, ScheduleFacts, ScheduleRecord, ScheduleState, Skip, SkipReason
from duetime.model.skips import MOST_COUNTED, Skips, count_between
from duetime.model.task import Edge, NewTask, State

__all__ = ["Step", "due_of_occurrence", "next_look", "next_planned", "step"]

MOST_AT_ONCE: Final = 500  # occurrences that one step decides one by one
FALLBACK: Final = 60 * SECOND  # when to look for the end of a run that no worker has reported
LONGEST_LOOK: Final = 3_600 * SECOND
LOOK_WHEN_FULL: Final = 5 * SECOND


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """What to store: the schedule after the step, and the new tasks and skips."""

    record: ScheduleRecord
    tasks: tuple[NewTask[object], ...] = ()
    skips: tuple[Skip, ...] = ()


def step(record: ScheduleRecord, facts: ScheduleFacts, now: Instant) -> Step:
    """Decide what to do for a schedule now. The caller has already cancelled the tasks in `state.cancel`."""
    state, spec = with_ends(record.state, facts.ends, now), record.spec
    if state.paused is None and spec.pause_after is not None and state.failures >= spec.pause_after:
        runs = "run has" if state.failures == 1 else "runs in a row have"
        state = replace(state, paused=Pause(at=now, note=f"{state.failures} {runs} failed", automatic=True))
    if state.paused is not None:
        return Step(record=with_state(record, state, facts.plan, now))
    if has_ended(record, state):
        return Step(record=with_state(record, replace(state, cursor=max(state.cursor, now)), facts.plan, now))
    return single_step(record, state, facts.plan, now) or StepBuilder(record, state, facts.plan, now).build()


def with_ends(state: ScheduleState, ends: Ends, now: Instant) -> ScheduleState:
    """Return the state without the runs that have ended, and with nothing left to cancel."""
    if not ends.ended and not ends.gone:
        return replace(state, cancel=()) if state.cancel else state
    kinds = {run.task: run.kind for run in state.runs}
    last, failures, ended_at = state.last, state.failures, state.ended_at
    for ended in ends.ended:
        kind = kinds.get(ended.task, "backfill")
        if kind == "backfill":
            continue
        last = ended
        failures = failures + 1 if ended.state is State.FAILED else 0 if ended.state is State.SUCCEEDED else failures
        if kind == "rule":
            # what is planned before the cursor is never fired, and an end may be reported late
            ended_at = max(ended.finished_at, state.cursor, ended_at or 0)
    over = {ended.task for ended in ends.ended}.union(ends.gone)
    if any(kinds.get(task) == "rule" for task in ends.gone):
        ended_at = now
    runs = tuple(run for run in state.runs if run.task not in over)
    if any(run.kind == "rule" for run in runs):
        ended_at = None
    return replace(state, runs=runs, last=last, failures=failures, ended_at=ended_at, cancel=())


def with_state(record: ScheduleRecord, state: ScheduleState, plan: Plan, now: Instant) -> ScheduleRecord:
    """Return the record with another state, and with the instant at which to look at it again."""
    return replace(record, state=state, next_at=next_look(record, state, plan, now))


def next_look(record: ScheduleRecord, state: ScheduleState, plan: Plan, now: Instant) -> Instant | None:
    """Return when to look at a schedule again; None if never."""
    if state.cancel:
        return now
    if state.paused is None and not has_ended(record, state):
        found = plan.after(state.cursor, state.ended_at)
        if plan.waits and (found is None or state.ended_at is None) and (record.spec.end_at is None or now < record.spec.end_at):
            # a worker reports the end of its run; this is for a worker that could not
            found = now + FALLBACK if found is None else min(found, now + FALLBACK)
        if found is not None:
            return found
    if not state.runs:
        return None
    # nothing will be fired, but people want to see how the last run ended
    return now + min(max((now - (state.fired_at or now)) // 2, FALLBACK), LONGEST_LOOK)


def next_planned(record: ScheduleRecord, plan: Plan) -> Instant | None:
    """Return a schedule's next occurrence; None if it is paused or has ended, or if the next one depends on a live run."""
    state = record.state
    return None if state.paused is not None or has_ended(record, state) else plan.after(state.cursor, state.ended_at)


def has_ended(record: ScheduleRecord, state: ScheduleState) -> bool:
    """Return whether a schedule has fired as often as it may."""
    return record.spec.count is not None and state.fired >= record.spec.count


def single_step(record: ScheduleRecord, state: ScheduleState, plan: Plan, now: Instant) -> Step | None:
    """Return the step of the usual case: one occurrence, on time, that no policy skips. Return None in any other case.

    `StepBuilder` would return the same; this takes a third of the time.
    """
    spec = record.spec
    if plan.waits or spec.count is not None or state.cancel:
        return None
    if state.runs and (spec.overlap != "allow" or len(state.runs) >= MOST_RUNS):
        return None
    planned_at = planned_after(plan, state.cursor)
    if planned_at is None or not now - int(spec.grace * SECOND) <= planned_at <= now:
        return None
    following = planned_after(plan, planned_at)
    if following is None or following <= now:
        return None
    due_at = due_of_occurrence(record, planned_at) if spec.jitter else planned_at
    task = task_of(record, plan, planned_at, due_at=due_at, last=state.last)
    fired = replace(
        state,
        cursor=max(state.cursor, now),
        ended_at=None,
        runs=(*state.runs, Run(task.id, planned_at)),
        fired=state.fired + 1,
        fired_at=now,
        planned_at=planned_at,
    )
    return Step(record=replace(record, state=fired, next_at=following), tasks=(task,))


class StepBuilder:
    """Walks through the planned instants from the cursor on, one occurrence or one whole stretch at a time."""

    def __init__(self, record: ScheduleRecord, state: ScheduleState, plan: Plan, now: Instant) -> None:
        spec = record.spec
        self._record, self._spec, self._state, self._plan, self._now = record, spec, state, plan, now
        self._missed = read_missed(spec.missed)
        self._overlap = read_overlap(spec.overlap)
        self._cursor, self._ended_at, self._paced_at = state.cursor, state.ended_at, state.paced_at
        self._runs = list(state.runs)
        self._live = [run.task for run in state.runs if run.kind != "backfill"]
        self._cancel: tuple[str, ...] = ()
        self._fired = state.fired
        self._left = MOST_AT_ONCE  # occurrences that this step may still decide
        self._following: Instant | None = None  # the first occurrence after those that were decided
        self._full = False  # no more live runs can be remembered; the rest waits
        self._tasks: list[NewTask[object]] = []
        self._skips = Skips(record.name, now)

    def build(self) -> Step:
        """Go as far as one step may."""
        now, plan = self._now, self._plan
        done = True
        upcoming = self._upcoming()
        if upcoming is not None and upcoming <= now:
            on_time = now - int(self._spec.grace * SECOND)
            if upcoming < on_time:
                done = self._catch_up(upcoming, on_time - 1)
                upcoming = self._upcoming() if done else None
            done = done and self._fire_until(now, upcoming)
            upcoming = self._following
        ended = self._all_fired
        cursor = max(self._cursor, now) if done or ended else self._cursor
        ended_at = self._ended_at
        if plan.waits and has_nothing_to_wait_for(plan, cursor, ended_at) and all(run.kind != "rule" for run in self._runs):
            ended_at = now  # the occurrence was skipped: the delay starts again, or nothing would ever follow
        state = self._new_state(cursor, ended_at)
        next_at: Instant | None
        if not done and not ended:
            next_at = now + LOOK_WHEN_FULL if self._full else now
        elif self._cancel or ended or plan.waits or upcoming is None:
            next_at = next_look(self._record, state, plan, now)
        else:
            next_at = upcoming  # nothing is planned between the cursor and it
        return Step(record=replace(self._record, state=state, next_at=next_at), tasks=tuple(self._tasks), skips=self._skips.collected())

    def _new_state(self, cursor: Instant, ended_at: Instant | None) -> ScheduleState:
        state = self._state
        if not self._tasks and not self._skips.count:
            return replace(state, cursor=cursor, ended_at=ended_at)
        return replace(
            state,
            cursor=cursor,
            ended_at=ended_at,
            runs=tuple(self._runs),
            cancel=self._cancel,
            fired=self._fired,
            missed=state.missed + self._skips.count,
            paced_at=self._paced_at,
            fired_at=self._now if self._tasks else state.fired_at,
            planned_at=self._tasks[-1].planned_at if self._tasks else state.planned_at,
        )

    # ---- missed occurrences ----

    def _catch_up(self, first: Instant, until: Instant) -> bool:
        """Apply the policy to all missed occurrences up to an instant; `first` is the earliest. Return whether all are done."""
        match self._missed.kind:
            case "skip":
                self._skip_until(until)
            case "latest":
                on_time = self._plan.after(until, self._ended_at)
                if on_time is not None and on_time <= self._now:
                    self._skip_until(until)
                else:
                    self._skip_until(self._last(until) - 1)
                    return self._fire_until(until, self._upcoming())
            case "earliest":
                if not self._decide(first):
                    return False
                self._skip_until(until)
            case "all":
                return self._catch_up_all(self._missed, until)
        return True

    def _catch_up_all(self, policy: Missed, until: Instant) -> bool:
        if policy.within is not None:
            self._skip_until(min(until, self._now - int(policy.within * SECOND) - 1))
        surplus = self._count(until) - policy.at_most
        if surplus > 0:
            self._skip_until(self._nth(surplus), SkipReason.FULL)
            if surplus + policy.at_most >= MOST_COUNTED:
                return False  # that was not all of them
        return self._fire_until(until, self._upcoming(), policy.interval)

    def _skip_until(self, until: Instant, reason: SkipReason = SkipReason.MISSED) -> None:
        """Skip everything that is planned up to an instant."""
        if until > self._cursor and not self._all_fired:
            self._skips.add_stretch(self._plan, self._ended_at, self._cursor, until, reason)
            self._cursor = until

    def _last(self, until: Instant) -> Instant:
        """Return the last planned instant up to another. There is one."""
        found = (self._plan.last(self._cursor, until), self._waited())
        return max((instant for instant in found if instant is not None and instant <= until), default=until)

    def _count(self, until: Instant) -> int:
        return count_between(self._plan, self._ended_at, self._cursor, until)

    def _nth(self, number: int) -> Instant:
        """Return the number-th planned instant after the cursor."""
        found = self._cursor
        for _ in range(number):
            found = self._plan.after(found, self._ended_at) or found
        return found

    def _upcoming(self) -> Instant | None:
        if self._plan.waits:
            return self._plan.after(self._cursor, self._ended_at)
        return planned_after(self._plan, self._cursor)

    def _waited(self) -> Instant | None:
        return None if self._ended_at is None else self._plan.waited(self._cursor, self._ended_at)

    # ---- one by one ----

    def _fire_until(self, until: Instant, upcoming: Instant | None, interval: int = 0) -> bool:
        """Decide each occurrence up to an instant; `upcoming` is the next. Return whether all are done.

        With an interval, due times are that far apart, from now on.
        """
        while upcoming is not None and upcoming <= until:
            if not self._decide(upcoming, interval):
                return False
            upcoming = self._upcoming()
        self._following = upcoming
        self._cursor = max(self._cursor, until)
        return True

    def _decide(self, planned_at: Instant, interval: int = 0) -> bool:
        """Make a task of an occurrence, or a skip if the overlap policy says so. Return False if it has to wait for another step."""
        if self._left <= 0 or self._all_fired:
            return False
        if len(self._runs) >= MOST_RUNS and self._overlap.kind in ("queue all", "allow") and self._missed.kind == "all":
            self._full = True
            return False
        self._left -= 1
        self._cursor = planned_at
        refused, waits_for = decide_overlap(self._overlap, self._live, len(self._runs))
        if refused is not None:
            self._skips.add(planned_at, refused)
        else:
            self._fire(planned_at, interval, waits_for)
        return True

    @property
    def _all_fired(self) -> bool:
        return self._spec.count is not None and self._fired >= self._spec.count

    def _fire(self, planned_at: Instant, interval: int, waits_for: Sequence[str]) -> None:
        due_at = due_of_occurrence(self._record, planned_at)
        if interval:
            due_at = self._paced_at = max(self._now, (self._paced_at or 0) + interval)
        edges = tuple([Edge(task, "end") for task in waits_for])
        if waits_for and self._overlap.kind == "cancel":
            self._cancel = tuple(waits_for)
        near = self._tasks[-1].planned_at if self._tasks else None
        task = task_of(self._record, self._plan, planned_at, due_at=due_at, edges=edges, last=self._state.last, near=near)
        self._tasks.append(task)
        self._runs.append(Run(task.id, planned_at))
        self._live.append(task.id)
        self._ended_at = None
        self._fired += 1
