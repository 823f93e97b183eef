"""Schedules of a store: the local form of `Schedules`."""

from __future__ import annotations

import builtins
import copy
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, get_args
from zoneinfo import ZoneInfo

from msgspec.structs import replace

from duetime.client.admission import Admission
from duetime.client.reading import without_payloads
from duetime.client.schedules import backfill as backfilling
from duetime.client.schedules.backfill import Backfill, Existing
from duetime.client.schedules.declaring import SchedulePlan, refuse_twice
from duetime.client.schedules.forecasting import Ahead, look_ahead
from duetime.client.schedules.info import ScheduleInfo, SkipInfo, plan_for, plan_or_none, schedule_info, skip_info, tag_of, warning_of
from duetime.client.schedules.reconciling import Reconciliation, Refuse
from duetime.client.schedules.schedule import LONGEST_NOTE, RULES, Schedule
from duetime.client.schedules.service import MOST_PREVIEWED, MOST_SKIPS, Schedules, Stored, refuse_nobody
from duetime.client.schedules.writes import Decide, Known, change, gates_and_calendars, write_of
from duetime.clock import Instant, monotonic, to_datetime, to_instant
from duetime.errors import (
    ChangedMeanwhile,
    Conflict,
    DuetimeError,
    InvalidPayload,
    InvalidValue,
    PayloadTooLarge,
    ScheduleNotFound,
    UnknownHandler,
)
from duetime.ids import new_id
from duetime.model import steering
from duetime.model.firing import Step, with_ends
from duetime.model.forecast import MOST_OCCURRENCES
from duetime.model.gate import Gates
from duetime.model.occurrences import ends_of
from duetime.model.policies import read_overlap
from duetime.model.query import MAX_PAGE_BYTES
from duetime.model.rules import DayCalendar, Every, Plan, Rule, plan_of
from duetime.model.schedule import ScheduleRecord, ScheduleSpec
from duetime.model.task import DEFAULT_PRIORITY, IfStored, NewTask, Task, check_name, shown
from duetime.runtime.slices import Slices, off_loop
from duetime.store import Store
from duetime.store.schedules import ScheduleFilter, ScheduleWrite
from duetime.targets.payload import OpenPayloads
from duetime.targets.spec import HandlerSpec

MOST_RUNS_SHOWN = 20  # the latest runs of a schedule that are read for showing it
LONGEST_PREVIEW = 5.0  # seconds of work


class LocalSchedules(Schedules):
    """Schedules of a store. Every change is a compare-and-set, safe in any number of processes."""

    def __init__(
        self,
        store: Store,
        *,
        user: str,
        admission: Admission,
        specs: Mapping[str, HandlerSpec],
        opened: Callable[[], Awaitable[None]],
        revision: int = 0,
        declared: Callable[[], Sequence[Schedule]] = list,
    ) -> None:
        self._store = store
        self._user = user
        self._admission = admission
        self._specs = specs
        self._opened = opened
        self._revision = revision
        self._declared = declared
        self._refuse: Refuse = refuse_nobody

    def on_behalf_of(self, user: str, refuse: Refuse = refuse_nobody, *, revision: int | None = None) -> LocalSchedules:
        other = copy.copy(self)
        other._user, other._refuse = user, refuse
        other._revision = self._revision if revision is None else revision
        return other

    # ---- reading ----

    async def get(self, name: str) -> ScheduleInfo:
        await self._opened()
        return await self._info(await self._record(name))

    async def page(self, chosen: ScheduleFilter) -> tuple[builtins.list[ScheduleInfo], str | None]:
        await self._opened()
        gates, calendars = await gates_and_calendars(self._store)
        found: list[ScheduleRecord] = []
        left = MAX_PAGE_BYTES
        rest = replace(chosen, limit=chosen.limit + 1)
        while some := await self._store.list_schedules(rest):
            for record in filter(self._may, some):
                left -= len(record.spec.payload)
                if len(found) == chosen.limit or (found and left < 0):
                    return await self._infos(found, calendars, gates), found[-1].name
                found.append(record)
            rest = replace(rest, after=some[-1].name)
        return await self._infos(found, calendars, gates), None

    async def preview(self, what: str | Rule | Schedule, *, count: int = 10, after: datetime | None = None) -> builtins.list[datetime]:
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST_PREVIEWED:
            raise InvalidValue(f"count must be 1 to {MOST_PREVIEWED:,}, got {count!r}")
        begin = None if after is None else to_instant(after, "after")
        await self._opened()
        ended_at = None
        calendars = await self._store.calendars()
        if isinstance(what, str):
            record = await self._record(what)
            make_plan, ended_at = partial(plan_for, record.spec, calendars), record.state.ended_at
            if record.spec.count is not None:
                count = max(0, min(count, record.spec.count - record.state.fired))
        elif isinstance(what, Schedule):
            spec = what.spec(handler=what.handler_name, payload=b"{}", priority=DEFAULT_PRIORITY)
            make_plan = partial(plan_for, spec, calendars)
            count = count if what.count is None else min(count, what.count)
        elif isinstance(what, RULES):
            make_plan = partial(plan_of, what, calendars=calendars)
        else:
            raise InvalidValue(f"preview takes the name of a schedule, a Schedule or a rule, got {type(what).__name__}")
        begin = self._store.now() if begin is None else begin
        return await off_loop(_planned, make_plan, begin, ended_at, count)

    async def skips(self, name: str, *, limit: int = 100, before: datetime | None = None) -> builtins.list[SkipInfo]:
        if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MOST_SKIPS:
            raise InvalidValue(f"limit must be 1 to {MOST_SKIPS:,}, got {limit!r}")
        until = None if before is None else to_instant(before, "before")
        await self._opened()
        if self._refuse is not refuse_nobody:
            await self._record(name)  # the handler of a deleted one is not known
        return [skip_info(skip) for skip in await self._store.skips(name, limit, until)]

    async def forecast(self, *, days: float = 7.0, limit: int = MOST_OCCURRENCES) -> Ahead:
        await self._opened()
        return await look_ahead(self._store, days=days, limit=limit, chosen=self._may)

    # ---- changing ----

    async def upsert(
        self,
        schedule: Schedule,
        *,
        if_exists: IfStored = "replace",
        catch_up: bool = False,
        allow_unknown: bool = False,
        seen: Collection[str] | None = None,
    ) -> Stored:
        if if_exists not in get_args(IfStored):
            raise InvalidValue(f"if_exists must be one of {', '.join(get_args(IfStored))}, got {if_exists!r}")
        await self._opened()
        spec = await self._spec(schedule, allow_unknown)
        created = False

        def decide(known: Known) -> ScheduleWrite | None:
            nonlocal created
            old = known.records[schedule.name]
            created = old is None
            if old is not None:
                self._check(old.spec.handler)
            _check_seen(old, schedule.name, seen)
            if old is not None and if_exists == "error":
                raise Conflict(f'there is a schedule {schedule.name!r} already; use if_exists="replace" to change it or "keep" to leave it')
            if old is not None and if_exists == "keep":
                return None
            return write_of(old, self._put(schedule.name, spec, known, catch_up=catch_up))

        info = await self._changed(schedule.name, decide)
        return Stored(info, created)

    async def delete(self, name: str, *, seen: Collection[str] | None = None) -> None:
        await self._opened()

        def decide(known: Known) -> ScheduleWrite:
            old = self._found(known, name)
            _check_seen(old, name, seen)
            return ScheduleWrite(name=name, expected=old.version, record=None)

        await change(self._store, check_name(name, "the name of a schedule"), decide)

    async def pause(self, name: str, *, note: str = "") -> ScheduleInfo:
        if not isinstance(note, str) or len(note) > LONGEST_NOTE:
            raise InvalidValue(f"note must be text of at most {LONGEST_NOTE:,} characters")

        def decide(old: ScheduleRecord, known: Known) -> Step:
            # a paused schedule has no next occurrence, so one that cannot be planned any more can still be paused
            plan = plan_or_none(old.spec, known.calendars) or plan_of(Every(3600))
            return steering.pause(old, plan, known.now, by=self._user, note=note)

        return await self._change_one(name, decide)

    async def resume(self, name: str, *, catch_up: bool = False) -> ScheduleInfo:

        def decide(old: ScheduleRecord, known: Known) -> Step:
            return steering.resume(old, plan_for(old.spec, known.calendars), known.now, by=self._user, catch_up=catch_up)

        return await self._change_one(name, decide)

    async def trigger(self, name: str, *, payload: Mapping[str, Any] | None = None, overlap: str = "allow") -> Task[Any]:
        policy = str(read_overlap(overlap))
        await self._opened()
        record = await self._record(name)
        own = None if payload is None else await self._payload(record.spec.handler, payload, allow_unknown=True)
        made: list[NewTask[object]] = []

        def decide(known: Known) -> ScheduleWrite | None:
            old = self._found(known, name)
            step = steering.trigger(old, known.facts(old), known.now, payload=own, overlap=policy, by=self._user)
            made[:] = step.tasks
            return write_of(old, step)

        await change(self._store, name, decide, with_runs=True)
        [task] = await self._store.get([made[0].id])
        assert task is not None
        return shown(task)

    # ---- as code ----

    async def plan(self, schedules: Sequence[Schedule] | None = None, *, prefix: str = "") -> SchedulePlan:
        await self._opened()
        return await self._reconciliation().plan(await self._specs_of(schedules), prefix=prefix)

    async def faults(self, schedules: Sequence[Schedule]) -> dict[int, DuetimeError]:
        await self._opened()
        calendars = await self._store.calendars()
        found: dict[int, DuetimeError] = {}
        slices = Slices()
        for index, schedule in enumerate(schedules):
            await slices.pause()
            try:
                plan_for(await self._spec(schedule, allow_unknown=False), calendars)
            except (InvalidValue, InvalidPayload, PayloadTooLarge, UnknownHandler) as error:
                found[index] = error
        return found

    async def backfill(
        self, name: str, start: datetime, end: datetime, *, existing: Existing = "skip", concurrency: int = 1, dry_run: bool = False
    ) -> Backfill:
        request = backfilling.read(start, end, existing, concurrency)
        await self._opened()
        record = await self._record(name)
        plan = plan_for(record.spec, await self._store.calendars())
        return await backfilling.run(self._store, record, plan, request, user=self._user, dry_run=dry_run)

    # ---- parts ----

    async def _reconcile(self, schedules: Sequence[Schedule] | None, *, remove: bool, prefix: str) -> SchedulePlan:
        declared = self._declared() if schedules is None else schedules
        if not declared and not remove:
            return SchedulePlan([])
        await self._opened()
        return await self._reconciliation().apply(await self._specs_of(declared), remove=remove, prefix=prefix)

    def _reconciliation(self) -> Reconciliation:
        return Reconciliation(self._store, self._revision, put=self._put, refuse=self._refuse)

    async def _specs_of(self, schedules: Sequence[Schedule] | None) -> dict[str, ScheduleSpec]:
        declared = self._declared() if schedules is None else schedules
        refuse_twice([schedule.name for schedule in declared])
        specs, slices = dict[str, ScheduleSpec](), Slices()
        for schedule in declared:
            await slices.pause()
            specs[schedule.name] = await self._spec(schedule, allow_unknown=False)
        return specs

    async def _spec(self, schedule: Schedule, allow_unknown: bool) -> ScheduleSpec:
        """Check a schedule against its handler, and return the spec to store."""
        if not isinstance(schedule, Schedule):
            raise InvalidValue(
                f'expected a Schedule, for example Schedule("sweep", handler=sweep, rule=Every(60)), got {type(schedule).__name__}'
            )
        name = schedule.handler_name
        own = self._specs.get(name)
        self._check(name if own is None else own.name)
        payload = await self._payload(name, schedule.payload, allow_unknown)
        handlers_own = self._admission.priority_of(name) if own is None else own.priority
        return schedule.spec(
            handler=name if own is None else own.name,
            payload=payload,
            priority=handlers_own if schedule.priority is None else schedule.priority,
        )

    async def _payload(self, handler: str, payload: Mapping[str, Any], allow_unknown: bool) -> bytes:
        """Check arguments against a handler's parameters, by its code or else its declaration, and return them as JSON."""
        own = self._specs.get(handler)
        if own is not None:
            return own.payloads.bind((), dict(payload))
        bound = OpenPayloads(handler).bind((), dict(payload))
        await self._admission.check([NewTask(id=new_id(), handler=handler, payload=bound)], allow_unknown=allow_unknown)
        return bound

    def _put(self, name: str, spec: ScheduleSpec, known: Known, *, catch_up: bool = False) -> Step:
        old = known.records[name]
        return steering.put(
            name,
            spec,
            plan_for(spec, known.calendars),
            known.now,
            id=new_id(),
            old=old,
            old_plan=None if old is None else plan_or_none(old.spec, known.calendars),
            by=self._user,
            declared=None if old is None else old.declared,
            catch_up=catch_up,
        )

    async def _record(self, name: str) -> ScheduleRecord:
        [record] = await self._store.schedules([check_name(name, "the name of a schedule")])
        if record is None or not self._may(record):
            raise not_found(name)
        return record

    def _found(self, known: Known, name: str) -> ScheduleRecord:
        record = known.records[name]
        if record is None or not self._may(record):
            raise not_found(name)
        return record

    def _check(self, handler: str) -> None:
        refusal = self._refuse(handler)
        if refusal is not None:
            raise refusal

    def _may(self, record: ScheduleRecord) -> bool:
        return self._refuse(record.spec.handler) is None

    async def _info(self, record: ScheduleRecord) -> ScheduleInfo:
        gates, calendars = await gates_and_calendars(self._store)
        [info] = await self._infos([record], calendars, gates)
        retry, now = await self._retry_of(record), self._store.now()
        return replace(info, warning=await off_loop(lambda: warning_of(record, calendars, retry, now)))

    async def _retry_of(self, record: ScheduleRecord) -> bytes | None:
        """Return the retry policy of a schedule's runs, its own or its handler's; None for a handler that nobody has declared."""
        if record.spec.retry is not None:
            return bytes(record.spec.retry)
        try:
            return (await self._admission.declaration(record.spec.handler)).retry
        except UnknownHandler:
            return None

    async def _infos(
        self, records: Sequence[ScheduleRecord], calendars: Mapping[str, DayCalendar], gates: Gates
    ) -> builtins.list[ScheduleInfo]:
        """Return schedules as people see them. Ended runs are looked up here, because firing notes them only at its next look."""
        ids = [run.task for record in records for run in record.state.runs[-MOST_RUNS_SHOWN:]]
        tasks = {task.id: task for task in await without_payloads(self._store, ids) if task is not None}
        now = self._store.now()
        present = [
            replace(record, state=with_ends(record.state, ends_of(record.state.runs[-MOST_RUNS_SHOWN:], tasks, now), now))
            if record.state.runs
            else record
            for record in records
        ]
        return await off_loop(lambda: [schedule_info(record, calendars, gates, now) for record in present])

    async def _changed(self, name: str, decide: Decide) -> ScheduleInfo:
        stored = await change(self._store, name, decide)
        assert stored is not None
        return await self._info(stored)

    async def _change_one(self, name: str, decide: Callable[[ScheduleRecord, Known], Step]) -> ScheduleInfo:
        check_name(name, "the name of a schedule")
        await self._opened()

        def decide_one(known: Known) -> ScheduleWrite | None:
            old = self._found(known, name)
            return write_of(old, decide(old, known))

        return await self._changed(name, decide_one)


def _planned(make_plan: Callable[[], Plan], begin: Instant, ended_at: Instant | None, count: int) -> list[datetime]:
    """Return the next planned instants. It is called in a thread, which must not be kept for long by a rule that plans next to nothing."""
    plan = make_plan()
    zone, end = ZoneInfo(plan.zone), monotonic() + LONGEST_PREVIEW
    found: list[datetime] = []
    while len(found) < count:
        planned_at = plan.after(begin, ended_at)
        if planned_at is None:
            break
        found.append(to_datetime(planned_at).astimezone(zone))
        begin = planned_at
        if monotonic() > end:
            raise InvalidValue(
                f"count must be smaller for this rule: after {LONGEST_PREVIEW:g} seconds of work {len(found):,} of {count:,} instants were "
                "found; ask for fewer, or use fewer rules and calendars"
            )
    return found


def not_found(name: str) -> ScheduleNotFound:
    return ScheduleNotFound(f"there is no schedule {name!r} in this store; `app.schedules.list()` gives all")


def _check_seen(stored: ScheduleRecord | None, name: str, seen: Collection[str] | None) -> None:
    if seen is None:
        return
    if stored is None:
        if seen:
            raise ChangedMeanwhile(f"there is no schedule {name!r} any more; read what there is, and put it without a condition")
    elif not seen:
        raise ChangedMeanwhile(f"there is a schedule {name!r} already; read it, and put it with its tag")
    elif "*" not in seen and tag_of(stored) not in seen:
        raise ChangedMeanwhile(f"schedule {name!r} has been changed by {stored.changed_by or 'somebody'} since it was read; read it again")
