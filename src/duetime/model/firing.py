"""What becomes of a schedule when its time has come: which occurrences become tasks, which do not, and when to look again.

Every planned instant after the cursor and up to `now` is accounted for, once: as a task or as a part of a skip. One step does a bounded
part of that and moves the cursor; the next one goes on from there. `model.steering` has what operators do to a schedule.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import msgspec
from msgspec.structs import replace

from duetime.clock import SECOND, Instant
from duetime.model.occurrences import due_of_occurrence, task_of, waits_in_vain
from duetime.model.policies import Missed, read_missed, read_overlap
from duetime.model.rules import Plan
from duetime.model.schedule import MOST_RUNS, Ends, Pause, Run, ScheduleFacts, ScheduleRecord, ScheduleState, Skip, SkipReason
from duetime.model.skips import MOST_COUNTED, Skips, count_between
from duetime.model.task import Edge, NewTask, State

__all__ = ["Step", "due_of_occurrence", "next_look", "next_planned", "step"]

MOST_AT_ONCE: Final = 500  # occurrences that one step turns into tasks, or leaves out one by one
FALLBACK: Final = 60 * SECOND  # when to look for the end of a run that nobody has told of
LONGEST_LOOK: Final = 3_600 * SECOND
LOOK_FOR_ROOM: Final = 5 * SECOND


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as it shall be stored, with the tasks and skips that belong to that."""

    record: ScheduleRecord
    tasks: tuple[NewTask[object], ...] = ()
    skips: tuple[Skip, ...] = ()


def step(record: ScheduleRecord, facts: ScheduleFacts, now: Instant) -> Step:
    """Decide what to do for a schedule now. Who asks has told the tasks in `state.cancel` to stop."""
    state, spec = noted(record.state, facts.ends, now), record.spec
    if state.paused is None and spec.pause_after is not None and state.failures >= spec.pause_after:
        runs = "run has" if state.failures == 1 else "runs in a row have"
        state = replace(state, paused=Pause(at=now, note=f"{state.failures} {runs} failed", automatic=True))
    if state.paused is not None:
        return Step(record=moved(record, state, facts.plan, now))
    if has_ended(record, state):
        return Step(record=moved(record, replace(state, cursor=max(state.cursor, now)), facts.plan, now))
    return single(record, state, facts.plan, now) or Course(record, state, facts.plan, now).followed()


def noted(state: ScheduleState, ends: Ends, now: Instant) -> ScheduleState:
    """Take note of runs that have ended, and that what was to be cancelled has been."""
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
            # what is planned before the cursor is never fired, and an end may be told late
            ended_at = max(ended.finished_at, state.cursor, ended_at or 0)
    over = {ended.task for ended in ends.ended}.union(ends.gone)
    if any(kinds.get(task) == "rule" for task in ends.gone):
        ended_at = now
    runs = tuple(run for run in state.runs if run.task not in over)
    if any(run.kind == "rule" for run in runs):
        ended_at = None
    return replace(state, runs=runs, last=last, failures=failures, ended_at=ended_at, cancel=())


def moved(record: ScheduleRecord, state: ScheduleState, plan: Plan, now: Instant) -> ScheduleRecord:
    """Give the record in another state, with the instant at which to look at it again."""
    return replace(record, state=state, next_at=look_of(record, state, plan, now))


def next_look(record: ScheduleRecord, plan: Plan, now: Instant) -> Instant | None:
    """Give when to look at a schedule again, as it stands."""
    return look_of(record, record.state, plan, now)


def look_of(record: ScheduleRecord, state: ScheduleState, plan: Plan, now: Instant) -> Instant | None:
    if state.cancel:
        return now
    if state.paused is None and not has_ended(record, state):
        found = plan.after(state.cursor, state.ended_at)
        if plan.waits and (found is None or state.ended_at is None) and (record.spec.end_at is None or now < record.spec.end_at):
            # the end of a run is told by the worker that had it; this is for a worker that could not
            found = now + FALLBACK if found is None else min(found, now + FALLBACK)
        if found is not None:
            return found
    if not state.runs:
        return None
    # nothing will be fired, but people want to see how the last run ended
    return now + min(max((now - (state.fired_at or now)) // 2, FALLBACK), LONGEST_LOOK)


def next_planned(record: ScheduleRecord, plan: Plan) -> Instant | None:
    """Give a schedule's next occurrence; None if it is paused or has ended, or if that depends on a run that has not."""
    state = record.state
    return None if state.paused is not None or has_ended(record, state) else plan.after(state.cursor, state.ended_at)


def has_ended(record: ScheduleRecord, state: ScheduleState) -> bool:
    """Tell whether a schedule has fired as often as it may."""
    return record.spec.count is not None and state.fired >= record.spec.count


@lru_cache(maxsize=4_096)  # schedules that fire together often share their plan and their cursor
def planned_after(plan: Plan, cursor: Instant) -> Instant | None:
    return plan.after(cursor)


def single(record: ScheduleRecord, state: ScheduleState, plan: Plan, now: Instant) -> Step | None:
    """Decide the case that nearly all steps are: one occurrence, in time, that nothing stands in the way of. None if it is another.

    Does what `Course` would do, in a third of the time.
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
    task = task_of(record, plan.zone, planned_at, due_at=due_at, last=state.last)
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


class Course:
    """One step on its way through the planned instants: from the cursor on, one occurrence or one whole stretch at a time."""

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
        self._room = MOST_AT_ONCE
        self._beyond: Instant | None = None  # the first occurrence after those that were taken
        self._full = False  # no more live runs can be remembered; the rest waits
        self._tasks: list[NewTask[object]] = []
        self._left_out = Skips(record.name, now)

    def followed(self) -> Step:
        """Go as far as one step may."""
        now, plan = self._now, self._plan
        done = True
        upcoming = self._upcoming()
        if upcoming is not None and upcoming <= now:
            on_time = now - int(self._spec.grace * SECOND)
            if upcoming < on_time:
                done = self._make_up(upcoming, on_time - 1)
                upcoming = self._upcoming() if done else None
            done = done and self._fire_until(now, upcoming)
            upcoming = self._beyond
        ended = self._all_fired
        cursor = max(self._cursor, now) if done or ended else self._cursor
        ended_at = self._ended_at
        if plan.waits and waits_in_vain(plan, cursor, ended_at) and all(run.kind != "rule" for run in self._runs):
            ended_at = now  # the occurrence was left out: the delay counts anew, or nothing would ever come
        state = self._moved(cursor, ended_at)
        next_at: Instant | None
        if not done and not ended:
            next_at = now + LOOK_FOR_ROOM if self._full else now
        elif self._cancel or ended or plan.waits or upcoming is None:
            next_at = look_of(self._record, state, plan, now)
        else:
            next_at = upcoming  # nothing is planned between the cursor's last place and it
        return Step(record=replace(self._record, state=state, next_at=next_at), tasks=tuple(self._tasks), skips=self._left_out.told())

    def _moved(self, cursor: Instant, ended_at: Instant | None) -> ScheduleState:
        state = self._state
        if not self._tasks and not self._left_out.count:
            return replace(state, cursor=cursor, ended_at=ended_at)
        return replace(
            state,
            cursor=cursor,
            ended_at=ended_at,
            runs=tuple(self._runs),
            cancel=self._cancel,
            fired=self._fired,
            missed=state.missed + self._left_out.count,
            paced_at=self._paced_at,
            fired_at=self._now if self._tasks else state.fired_at,
            planned_at=self._tasks[-1].planned_at if self._tasks else state.planned_at,
        )

    # ---- missed occurrences ----

    def _make_up(self, first: Instant, until: Instant) -> bool:
        """Do what the policy says about all that was planned up to an instant, `first` the earliest; tell whether all of it is done."""
        match self._missed.kind:
            case "skip":
                self._leave_out(until)
            case "latest":
                on_time = self._plan.after(until, self._ended_at)
                if on_time is not None and on_time <= self._now:
                    self._leave_out(until)
                else:
                    self._leave_out(self._last(until) - 1)
                    return self._fire_until(until, self._upcoming())
            case "earliest":
                if not self._take(first):
                    return False
                self._leave_out(until)
            case "all":
                return self._make_up_all(self._missed, until)
        return True

    def _make_up_all(self, policy: Missed, until: Instant) -> bool:
        if policy.within is not None:
            self._leave_out(min(until, self._now - int(policy.within * SECOND) - 1))
        surplus = self._count(until) - policy.at_most
        if surplus > 0:
            self._leave_out(self._place(surplus), SkipReason.FULL)
            if surplus + policy.at_most >= MOST_COUNTED:
                return False  # that was not all of them
        return self._fire_until(until, self._upcoming(), policy.interval)

    def _leave_out(self, until: Instant, reason: SkipReason = SkipReason.MISSED) -> None:
        """Leave out all that is planned up to an instant."""
        if until > self._cursor and not self._all_fired:
            self._left_out.stretch(self._plan, self._ended_at, self._cursor, until, reason)
            self._cursor = until

    def _last(self, until: Instant) -> Instant:
        """Give the last planned instant up to another; there is one."""
        found = (self._plan.last(self._cursor, until), self._waited())
        return max((instant for instant in found if instant is not None and instant <= until), default=until)

    def _count(self, until: Instant) -> int:
        return count_between(self._plan, self._ended_at, self._cursor, until)

    def _place(self, number: int) -> Instant:
        """Give the planned instant that is the number-th from the cursor on."""
        found = self._cursor
        for _ in range(number):
            found = self._plan.after(found, self._ended_at) or found
        return found

    def _upcoming(self) -> Instant | None:
        """Give the next occurrence."""
        if self._plan.waits:
            return self._plan.after(self._cursor, self._ended_at)
        return planned_after(self._plan, self._cursor)

    def _waited(self) -> Instant | None:
        return None if self._ended_at is None else self._plan.waited(self._cursor, self._ended_at)

    # ---- one by one ----

    def _fire_until(self, until: Instant, upcoming: Instant | None, interval: int = 0) -> bool:
        """Take each occurrence up to an instant, `upcoming` the next; tell whether all are done.

        With an interval their due times are spread from now on.
        """
        while upcoming is not None and upcoming <= until:
            if not self._take(upcoming, interval):
                return False
            upcoming = self._upcoming()
        self._beyond = upcoming
        self._cursor = max(self._cursor, until)
        return True

    def _take(self, planned_at: Instant, interval: int = 0) -> bool:
        """Make a task of an occurrence unless the overlap policy leaves it out; False if it has to wait for another step."""
        if self._room <= 0 or self._all_fired:
            return False
        if len(self._runs) >= MOST_RUNS and self._overlap.kind in ("queue all", "allow") and self._missed.kind == "all":
            self._full = True
            return False
        self._room -= 1
        self._cursor = planned_at
        reason = self._hindrance()
        if reason is not None:
            self._left_out.one(planned_at, reason)
        else:
            self._fire(planned_at, interval)
        return True

    @property
    def _all_fired(self) -> bool:
        return self._spec.count is not None and self._fired >= self._spec.count

    def _hindrance(self) -> SkipReason | None:
        """Judge by the runs that have not ended."""
        live, overlap = len(self._live), self._overlap
        match overlap.kind:
            case "skip" if live:
                return SkipReason.OVERLAP
            case "queue one" if live >= 2:
                return SkipReason.OVERLAP
            case "allow" if overlap.limit is not None and live >= overlap.limit:
                return SkipReason.OVERLAP
        return SkipReason.FULL if len(self._runs) >= MOST_RUNS else None

    def _fire(self, planned_at: Instant, interval: int) -> None:
        due_at = due_of_occurrence(self._record, planned_at)
        if interval:
            due_at = self._paced_at = max(self._now, (self._paced_at or 0) + interval)
        edges: tuple[Edge, ...] = ()
        if self._live and self._overlap.kind in ("queue one", "queue all"):
            edges = (Edge(self._live[-1], "end"),)
        elif self._live and self._overlap.kind == "cancel":
            edges = tuple(Edge(task, "end") for task in self._live)
            self._cancel = tuple(self._live)
        task = task_of(self._record, self._plan.zone, planned_at, due_at=due_at, edges=edges, last=self._state.last)
        self._tasks.append(task)
        self._runs.append(Run(task.id, planned_at))
        self._live.append(task.id)
        self._ended_at = None
        self._fired += 1
