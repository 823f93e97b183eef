"""Gathering what the conditions of alerts look at: small looks, each taken once for all rules of an evaluation."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any, Protocol, TypeVar

import msgspec

from duetime.clock import DAY, MINUTE, SECOND, Instant, to_datetime, to_instant, to_seconds
from duetime.errors import InvalidValue
from duetime.model import figures
from duetime.model.access import fits
from duetime.model.alerts.conditions import (
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
    clock_time,
    zone_named,
)
from duetime.model.alerts.judging import OWN, AlertFacts, Counts, LongestRun, MissedRuns, Overdue
from duetime.model.figures import Distribution, FigureKey, distributions
from duetime.model.gate import Gate
from duetime.model.query import Query
from duetime.model.rules import DayCalendar, plan_of
from duetime.model.schedule import ScheduleRecord, SkipReason
from duetime.model.series import ALL, STEPS, Buckets, Counted, Sample, Step, bucket_of, chosen_step
from duetime.model.task import FINAL, State, TaskRecord
from duetime.store.alerts import DocumentKind
from duetime.store.control import Control
from duetime.store.schedules import ScheduleFilter
from duetime.store.shard import LookingUp, Timekeeping
from duetime.targets.notices.documents import certificates_of, change

T = TypeVar("T")

_ENDED = tuple(state for state in State if state in FINAL)
_FAILED = ("failed", "fatal", "timed_out", "lost")
RECENT_FAILURES = 2 * DAY  # a handler without a failed task for so long is not failing in a row
MOST_RUNNING_READ = 5_000
CERTIFICATES_EVERY = 10 * MINUTE
STREAKS_EVERY = MINUTE  # how often a handler's last tasks are looked at although none has ended: somebody may have run them again
MOST_STREAKS = 10_000
MOST_SKIPS = 100
SET_BACK = DAY  # figures from so far ahead of now are read too: after the store's clock was set back they are the newest ones


class AlertFactsStore(Control, Timekeeping, LookingUp, Protocol):
    """What the facts are gathered from."""


class _Ended(msgspec.Struct, frozen=True):
    """Of an attempt's detail, when the certificate of its server ends."""

    certificate_expires: str | None = None


class Gathering:
    """The facts of one evaluation."""

    def __init__(self, store: AlertFactsStore, memory: Memory) -> None:
        self.now = store.now()
        self._store = store
        self._memory = memory
        self._known: dict[str, Any] = {}

    async def facts(self, condition: Condition) -> AlertFacts:
        """Return what a condition looks at."""
        now = self.now
        match condition:
            case Failing(in_a_row=None):
                return AlertFacts(now=now, counts=await self._counts(to_seconds(condition.within)))
            case Failing():
                assert condition.in_a_row is not None
                return AlertFacts(now=now, failed_in_a_row=await self._in_a_row(condition.handler, condition.in_a_row))
            case Disabled():
                return AlertFacts(now=now, gates=await self._gates())
            case Late():
                return AlertFacts(now=now, oldest_due=await self._oldest_due())
            case Backlog():
                sample = await self._sample()
                return AlertFacts(now=now, due={name: load.due for name, load in sample.handlers.items()})
            case Slo():
                return AlertFacts(now=now, starts=await self._starts(to_seconds(condition.window)))
            case Running():
                return AlertFacts(now=now, running=await self._running(to_seconds(condition.longer_than)))
            case Certificate():
                return AlertFacts(now=now, certificates=await self._memory.certificates.read(self._store, condition.handler, now))
            case Missed():
                return AlertFacts(now=now, missed=await self._missed(condition))
            case Deadline():
                return AlertFacts(now=now, overdue=await self._overdue(condition))
            case WorkerLost():
                return AlertFacts(now=now, workers_lost=await self._workers_lost(to_seconds(condition.within)))

    async def _once(self, what: str, read: Callable[[], Awaitable[T]]) -> T:
        if what not in self._known:
            self._known[what] = await read()
        found: T = self._known[what]
        return found

    async def _sample(self) -> Sample:
        return await self._once("sample", self._store.sample)

    async def _gates(self) -> Sequence[Gate]:
        gates = await self._once("gates", self._store.gates)
        return gates.as_set

    async def _oldest_due(self) -> dict[str, float]:
        """Return for how long the oldest due task of each handler has waited; behind a gate tasks wait on purpose."""
        closed = [gate for gate in await self._gates() if gate.closed(self.now)]
        held = {gate.handler for gate in closed if gate.collection is None}
        parts = {(gate.handler, gate.collection) for gate in closed if gate.handler not in held}
        waits = {name: load.oldest_due / SECOND for name, load in (await self._sample()).handlers.items() if name not in held}
        partly = {handler for handler, _ in parts} & waits.keys()
        return waits | await self._oldest_outside(partly, parts) if partly else waits

    async def _oldest_outside(self, handlers: Collection[str], parts: Collection[tuple[str, str | None]]) -> dict[str, float]:
        """Return for how long the oldest due task of handlers has waited, leaving out some collections of theirs."""
        counts = await self._once("counts", self._store.counts)
        found = dict.fromkeys(handlers, 0.0)
        for lane in counts.lanes:
            if lane.handler in found and lane.oldest_due_at is not None and (lane.handler, lane.collection) not in parts:
                found[lane.handler] = max(found[lane.handler], (counts.now - lane.oldest_due_at) / SECOND)
        return found

    # ---- series ----

    async def _buckets(self, within: float) -> tuple[Step, Buckets]:
        since = self.now - round(within * SECOND)
        step = chosen_step(since, self.now)

        async def read() -> Buckets:
            return (await self._store.series(step, bucket_of(since, step), self.now + SET_BACK)).buckets

        return step, await self._once(f"series {within}", read)

    async def _summed(self, within: float) -> dict[str, Counted]:
        """Return what was counted of each handler within so many seconds."""
        step, buckets = await self._buckets(within)
        since = bucket_of(self.now - round(within * SECOND), step)
        found: dict[str, Counted] = {}
        for (at, handler), counted in buckets.items():
            if at < since:
                continue
            into = found.setdefault(handler, {})
            for name in (figures.ATTEMPTS, figures.LATENESS, figures.TASKS_FAILED, figures.WORKERS_LOST):
                for part, number in counted.get(name, {}).items():
                    parts = into.setdefault(name, {})
                    parts[part] = parts.get(part, 0) + number
        return found

    async def _counts(self, within: float) -> dict[str, Counts]:
        found = {}
        for handler, counted in (await self._summed(within)).items():
            attempts = counted.get(figures.ATTEMPTS, {})
            if handler != ALL and attempts:
                found[handler] = Counts(sum(attempts.values()), sum(attempts.get(outcome, 0) for outcome in _FAILED))
        return found

    async def _starts(self, window: float) -> dict[str, tuple[Distribution, Distribution]]:
        whole, last = await self._summed(window), await self._summed(max(window / Slo.SHORT, STEPS[0]))
        return {
            handler: (_lateness(counted), _lateness(last.get(handler, {})))
            for handler, counted in whole.items()
            if handler != ALL and counted.get(figures.LATENESS)
        }

    async def _workers_lost(self, within: float) -> int:
        counted = (await self._summed(within)).get(ALL, {})
        return sum(counted.get(figures.WORKERS_LOST, {}).values())

    # ---- tasks ----

    async def _in_a_row(self, pattern: str, wanted: int) -> dict[str, tuple[int, str]]:
        """Return how many of the last tasks of handlers failed, up to the first that did not, of those that had failures lately."""
        recent = await self._summed(RECENT_FAILURES / SECOND)
        found = {}
        for handler, counted in recent.items():
            if handler == ALL or not counted.get(figures.TASKS_FAILED) or not fits((pattern,), handler) or handler.startswith(OWN):
                continue
            seen = (sum(counted.get(figures.ATTEMPTS, {}).values()), sum(counted[figures.TASKS_FAILED].values()))
            streak = self._memory.streak(handler, wanted, seen, self.now)
            if streak is None:
                streak = self._memory.keep_streak(handler, wanted, seen, self.now, await self._streak(handler, wanted))
            if streak[0]:
                found[handler] = streak
        return found

    async def _streak(self, handler: str, wanted: int) -> tuple[int, str]:
        query = Query(handler=handler, states=(State.SUCCEEDED, State.FAILED), limit=wanted, brief=True)
        ended = (await self._store.page(query)).items
        failed = 0
        for task in ended:
            if task.state is not State.FAILED:
                break
            failed += 1
        return failed, _why(ended[0]) if failed else ""

    async def _running(self, longer_than: float) -> dict[str, LongestRun]:
        found: dict[str, LongestRun] = {}
        async for task in self._pages(Query(state=State.RUNNING, limit=500, brief=True), MOST_RUNNING_READ):
            if task.started_at is None:
                continue
            seconds = (self.now - task.started_at) / SECOND
            if seconds <= longer_than:
                continue
            longest = found.get(task.handler, LongestRun("", 0.0, 0))
            task_id, most = (task.id, seconds) if seconds > longest.seconds else (longest.task, longest.seconds)
            found[task.handler] = LongestRun(task_id, most, longest.tasks + 1)
        return found

    async def _pages(self, query: Query, most: int) -> AsyncIterator[TaskRecord]:
        looked = 0
        while looked < most:
            page = await self._store.page(query)
            for task in page.items:
                yield task
            looked += len(page.items)
            if page.next is None:
                return
            query = msgspec.structs.replace(query, cursor=page.next)

    # ---- schedules ----

    async def _schedules(self) -> list[ScheduleRecord]:
        async def read() -> list[ScheduleRecord]:
            found: list[ScheduleRecord] = []
            after = ""
            while page := await self._store.list_schedules(ScheduleFilter(after=after)):
                found.extend(page)
                after = page[-1].name
            return found

        return await self._once("schedules", read)

    async def _missed(self, condition: Missed) -> dict[str, MissedRuns]:
        since = self.now - round(to_seconds(condition.within) * SECOND)
        found = {}
        for record in await self._schedules():
            if not record.state.missed or not fits((condition.schedule,), record.name):
                continue
            skips = [
                each for each in await self._store.skips(record.name, MOST_SKIPS) if each.reason is SkipReason.MISSED and each.at >= since
            ]
            if skips:
                found[record.name] = MissedRuns(sum(each.count for each in skips), max(each.until_at for each in skips))
        return found

    async def _overdue(self, condition: Deadline) -> dict[str, Overdue]:
        calendars: Mapping[str, DayCalendar] = await self._once("calendars", self._store.calendars)
        found = {}
        for record in await self._schedules():
            if not fits((condition.schedule,), record.name) or record.state.paused is not None:
                continue
            before, by = deadline_around(condition, self.now)
            planned = _planned_between(record, calendars, before, by)
            if planned is None or record.created_at > by:
                continue
            done = Query(schedule=record.name, state=State.SUCCEEDED, finished_after=before, limit=1, brief=True)
            if (await self._store.page(done)).items:
                continue
            last = (await self._store.page(Query(schedule=record.name, submitted_after=before, limit=1, brief=True))).items
            found[record.name] = Overdue(by=by, planned_at=planned, state=last[0].state.value if last else "")
        return found


def deadline_around(condition: Deadline, now: Instant) -> tuple[Instant, Instant]:
    """Return the last deadline up to now and the one before it. They are local times of a day: a day may have 23 or 25 hours."""
    zone, at = zone_named(condition.tz), clock_time("by", condition.by)

    def on(day: date) -> Instant:
        return to_instant(datetime.combine(day, at, zone))

    today = to_datetime(now).astimezone(zone).date()
    day = today if on(today) <= now else today - timedelta(days=1)
    return on(day - timedelta(days=1)), on(day)


def _planned_between(record: ScheduleRecord, calendars: Mapping[str, DayCalendar], after: Instant, until: Instant) -> Instant | None:
    """Return the last occurrence that was planned within a span; None if there was none, or it cannot be planned any more."""
    spec = record.spec
    try:
        plan = plan_of(spec.rule, calendars=calendars, within=spec.calendars, start_at=spec.start_at, end_at=spec.end_at)
    except InvalidValue:
        return None
    return plan.last(max(after, record.created_at), until)


def _lateness(counted: Counted) -> Distribution:
    parts = {FigureKey(figures.LATENESS, "", part): number for part, number in counted.get(figures.LATENESS, {}).items()}
    return distributions(parts, figures.LATENESS).get("", Distribution(((None, 0),), 0.0))


def _why(task: TaskRecord) -> str:
    return "" if task.error is None else f"{task.error.type}: {task.error.message}"[:300]


class Memory:
    """What an evaluator keeps from one look to the next: hundreds of handlers that failed once are not looked up every five seconds."""

    def __init__(self) -> None:
        self.certificates = Certificates()
        self._streaks: dict[tuple[str, int], tuple[tuple[int, int], Instant, tuple[int, str]]] = {}

    def streak(self, handler: str, wanted: int, seen: tuple[int, int], now: Instant) -> tuple[int, str] | None:
        """Return how many of a handler's last tasks failed, unless what was counted of it has changed since, or it is long ago."""
        known, at, streak = self._streaks.get((handler, wanted), ((-1, -1), now, (0, "")))
        return streak if known == seen and 0 <= now - at < STREAKS_EVERY else None

    def keep_streak(self, handler: str, wanted: int, seen: tuple[int, int], now: Instant, streak: tuple[int, str]) -> tuple[int, str]:
        if len(self._streaks) >= MOST_STREAKS:
            self._streaks.clear()
        self._streaks[handler, wanted] = seen, now, streak
        return streak


class Certificates:
    """When the certificates of HTTP handlers' servers end, by their last attempts. Read again every ten minutes.

    What was seen is stored: it is known when those tasks are gone, and to other evaluators.
    """

    def __init__(self) -> None:
        self._read_at: dict[str, Instant] = {}
        self._found: dict[str, dict[str, Instant]] = {}

    async def read(self, store: AlertFactsStore, pattern: str, now: Instant) -> dict[str, Instant]:
        if not 0 <= now - self._read_at.get(pattern, -CERTIFICATES_EVERY) < CERTIFICATES_EVERY:
            declared = {each.name for each in await store.declarations() if each.isolation == "http"}
            names = {name for name in declared if fits((pattern,), name)}
            self._found[pattern] = await self._remember(store, names, declared, await self._look(store, names))
            self._read_at[pattern] = now
        return self._found[pattern]

    async def _remember(
        self, store: AlertFactsStore, names: Collection[str], declared: Collection[str], seen: Mapping[str, Instant]
    ) -> dict[str, Instant]:
        """Return what is known of handlers: what was seen now, or else before. If somebody else stores at the same time, that will do."""
        stored = {each.name: each for each in await certificates_of(store)}
        changes = [
            change(DocumentKind.CERTIFICATE, name, stored.get(name), ends)
            for name, ends in seen.items()
            if name not in stored or stored[name].value != ends
        ]
        changes += [change(DocumentKind.CERTIFICATE, name, each, None) for name, each in stored.items() if name not in declared]
        if changes:
            await store.change_alert_documents(changes)
        return {name: each.value for name, each in stored.items() if name in names} | dict(seen)

    async def _look(self, store: AlertFactsStore, names: Collection[str]) -> dict[str, Instant]:
        found = {}
        for name in names:
            ends = await self._last(store, name, _ENDED)
            if ends is None:  # a server that is away tells no certificate, and that is no end of an alert
                ends = await self._last(store, name, (State.SUCCEEDED,))
            if ends is not None:
                found[name] = ends
        return found

    async def _last(self, store: AlertFactsStore, name: str, states: tuple[State, ...]) -> Instant | None:
        """Return what the last task of a handler that ended so was told, or when it was refused because the certificate had ended."""
        for task in (await store.page(Query(handler=name, states=states, limit=1, brief=True))).items:
            if task.error is not None and task.error.type == "TlsFailed" and "certificate has expired" in task.error.message:
                return task.finished_at
            for attempt in reversed(await store.attempts(task.id)):
                ends = _certificate_of(attempt.detail)
                if ends is not None:
                    return ends
        return None


def _certificate_of(detail: bytes | None) -> Instant | None:
    if detail is None:
        return None
    try:
        text = msgspec.json.decode(detail, type=_Ended).certificate_expires
        return None if text is None else to_instant(datetime.fromisoformat(text))
    except (msgspec.MsgspecError, ValueError, InvalidValue):
        return None
