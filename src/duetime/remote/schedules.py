"""Schedules over HTTP."""

from __future__ import annotations

import builtins
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar, get_args
from zoneinfo import ZoneInfo

import msgspec
from msgspec import UNSET

from duetime.client.schedules.backfill import Backfill, Existing
from duetime.client.schedules.backfill import read as read_backfill
from duetime.client.schedules.declaring import SchedulePlan, refuse_twice
from duetime.client.schedules.forecasting import LONGEST, Ahead
from duetime.client.schedules.info import ScheduleInfo, SkipInfo
from duetime.client.schedules.reconciling import Refuse
from duetime.client.schedules.schedule import RULES, Schedule
from duetime.client.schedules.service import MOST_PREVIEWED, MOST_SKIPS, Schedules, Stored
from duetime.client.services import Program
from duetime.clock import to_instant
from duetime.errors import ChangedMeanwhile, Conflict, DuetimeError, InvalidValue
from duetime.model.forecast import MOST_OCCURRENCES
from duetime.model.query import MAX_PAGE
from duetime.model.rules import Calendar, Cron, Rule, Union, Window
from duetime.model.task import IfStored, Task, check_name, shown
from duetime.remote.address import needs_store, part
from duetime.remote.query import query_params
from duetime.remote.transport import Transport
from duetime.store.schedules import ScheduleFilter
from duetime.wire.fields import optional
from duetime.wire.forecast import ForecastView, forecast_of
from duetime.wire.rules import body_of
from duetime.wire.schedules import (
    BackfillBody,
    DifferenceList,
    NamedScheduleBody,
    PauseBody,
    PlannedList,
    PutScheduleBody,
    ReconcileBody,
    ResumeBody,
    RulePreviewBody,
    ScheduleList,
    ScheduleView,
    SkipList,
    TriggerBody,
    info_of,
    named_body,
    put_body,
)
from duetime.wire.tasks import RawTask, record_of

T = TypeVar("T")

PREVIEWED_AT_ONCE = 1_000
LONGEST_CHANGE = 300.0  # seconds that a backfill or thousands of declarations may take


class RemoteSchedules(Schedules):
    """`app.schedules` over HTTP. Schedules of handlers that this program declares are checked here, all others by the server."""

    def __init__(self, transport: Transport, program: Program) -> None:
        self._transport = transport
        self._specs = program.specs
        self._opened = program.opened
        self._revision = program.revision
        self._declared = program.declared

    # ---- reading ----

    async def get(self, name: str) -> ScheduleInfo:
        return info_of(await self._ask(ScheduleView, "GET", _path(name)))

    async def page(self, chosen: ScheduleFilter) -> tuple[builtins.list[ScheduleInfo], str | None]:
        query = query_params(
            {
                "handler": chosen.handler,
                "paused": chosen.paused,
                "prefix": chosen.prefix or None,
                "declared": chosen.declared,
                "limit": chosen.limit,
                "cursor": chosen.after or None,
            }
        )
        page = await self._ask(ScheduleList, "GET", "/v1/schedules", query=query)
        return [info_of(each) for each in page.items], page.next

    async def preview(self, what: str | Rule | Schedule, *, count: int = 10, after: datetime | None = None) -> builtins.list[datetime]:
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST_PREVIEWED:
            raise InvalidValue(f"count must be 1 to {MOST_PREVIEWED:,}, got {count!r}")
        if after is not None:
            to_instant(after, "after")
        asked: Schedule | None = None
        if isinstance(what, str):
            rule = (await self.get(what)).rule
        elif isinstance(what, Schedule):
            assert not isinstance(what.rule, str)  # __post_init__ has parsed it
            rule, count, asked = what.rule, count if what.count is None else min(count, what.count), what
        elif isinstance(what, RULES):
            rule = what
        else:
            raise InvalidValue(f"preview takes the name of a schedule, a Schedule or a rule, got {type(what).__name__}")
        found: list[datetime] = []
        while len(found) < count:
            size = min(PREVIEWED_AT_ONCE, count - len(found))
            if isinstance(what, str):
                query = query_params({"count": size, "after": after})
                page = await self._ask(PlannedList, "GET", _path(what, "preview"), query=query)
            else:
                body = _preview_body(rule, size, after, asked)
                page = await self._ask(PlannedList, "POST", "/v1/rules/preview", body=body, again=True)
            found += [each.planned_at for each in page.items]
            if len(page.items) < size:
                break
            after = found[-1]
        zone = _zone(rule)
        return [each.astimezone(zone) for each in found]

    async def skips(self, name: str, *, limit: int = 100, before: datetime | None = None) -> builtins.list[SkipInfo]:
        if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MOST_SKIPS:
            raise InvalidValue(f"limit must be 1 to {MOST_SKIPS:,}, got {limit!r}")
        if before is not None:
            to_instant(before, "before")
        found: list[SkipInfo] = []
        cursor: str | None = None
        while True:
            query = query_params({"limit": min(MAX_PAGE, limit - len(found)), "before": None if cursor else before, "cursor": cursor})
            page = await self._ask(SkipList, "GET", _path(name, "skips"), query=query)
            found += page.items
            cursor = page.next
            if cursor is None or len(found) >= limit:
                return found

    async def forecast(self, *, days: float = 7.0, limit: int = MOST_OCCURRENCES) -> Ahead:
        if not 0 < days <= LONGEST:
            raise InvalidValue(f"days must be more than 0 and at most {LONGEST:g}, got {days:g}; for example 7")
        return forecast_of(await self._ask(ForecastView, "GET", "/v1/forecast", query=query_params({"days": days}), wait=LONGEST_CHANGE))

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
        body = self._put_body(schedule, catch_up=catch_up, allow_unknown=allow_unknown)
        new = if_exists != "replace" and seen is None
        headers = {"if-none-match": "*"} if new else _conditions(seen)
        await self._opened()
        try:
            answer = await self._transport.send(
                "PUT", _path(schedule.name), data=msgspec.json.encode(body), headers=headers, again=not headers
            )
        except ChangedMeanwhile:
            if not new:
                raise
            if if_exists == "keep":
                return Stored(await self.get(schedule.name), created=False)
            raise Conflict(
                f'there is a schedule {schedule.name!r} already; use if_exists="replace" to change it or "keep" to leave it'
            ) from None
        return Stored(info_of(self._transport.read(ScheduleView, answer)), created=answer.status == 201)

    async def delete(self, name: str, *, seen: Collection[str] | None = None) -> None:
        await self._opened()
        await self._transport.send("DELETE", _path(name), headers=_conditions(seen))

    async def pause(self, name: str, *, note: str = "") -> ScheduleInfo:
        return info_of(await self._ask(ScheduleView, "POST", _path(name, "pause"), body=PauseBody(note=note)))

    async def resume(self, name: str, *, catch_up: bool = False) -> ScheduleInfo:
        return info_of(await self._ask(ScheduleView, "POST", _path(name, "resume"), body=ResumeBody(catch_up=catch_up)))

    async def trigger(self, name: str, *, payload: Mapping[str, Any] | None = None, overlap: str = "allow") -> Task[Any]:
        body = TriggerBody(payload=UNSET if payload is None else dict(payload), overlap=overlap)
        return shown(record_of(await self._ask(RawTask, "POST", _path(name, "trigger"), body=body)))

    async def backfill(
        self, name: str, start: datetime, end: datetime, *, existing: Existing = "skip", concurrency: int = 1, dry_run: bool = False
    ) -> Backfill:
        read_backfill(start, end, existing, concurrency)
        body = BackfillBody(start=start, end=end, existing=existing, concurrency=concurrency, dry_run=dry_run)
        return await self._ask(Backfill, "POST", _path(name, "backfill"), body=body, again=dry_run, wait=LONGEST_CHANGE)

    # ---- as code ----

    async def plan(self, schedules: Sequence[Schedule] | None = None, *, prefix: str = "") -> SchedulePlan:
        return await self._reconciled(schedules, remove=True, prefix=prefix, dry_run=True)

    async def _reconcile(self, schedules: Sequence[Schedule] | None, *, remove: bool, prefix: str) -> SchedulePlan:
        return await self._reconciled(schedules, remove=remove, prefix=prefix, dry_run=False)

    async def _reconciled(self, schedules: Sequence[Schedule] | None, *, remove: bool, prefix: str, dry_run: bool) -> SchedulePlan:
        declared = self._declared() if schedules is None else schedules
        if not declared and not remove:
            return SchedulePlan([])
        refuse_twice([each.name for each in declared])
        body = ReconcileBody(
            schedules=[self._named_body(each) for each in declared], prefix=prefix, remove=remove, revision=self._revision, dry_run=dry_run
        )
        # declaring the same again changes nothing
        done = await self._ask(DifferenceList, "PUT", "/v1/schedules", body=body, again=True, wait=LONGEST_CHANGE)
        return SchedulePlan(done.items)

    # ---- what serves a server ----

    def on_behalf_of(self, user: str, refuse: Refuse | None = None, *, revision: int | None = None) -> Schedules:
        raise needs_store("acting for others", self._transport.url)

    async def faults(self, schedules: Sequence[Schedule]) -> dict[int, DuetimeError]:
        raise needs_store("looking for faults beforehand", self._transport.url)

    # ---- parts ----

    async def _ask(self, kind: type[T], method: str, path: str, **options: Any) -> T:
        await self._opened()
        return await self._transport.ask(kind, method, path, **options)

    def _put_body(self, schedule: Schedule, *, catch_up: bool, allow_unknown: bool) -> PutScheduleBody:
        handler, payload, priority = self._decided(schedule)
        return put_body(schedule, handler=handler, payload=payload, priority=priority, catch_up=catch_up, allow_unknown=allow_unknown)

    def _named_body(self, schedule: Schedule) -> NamedScheduleBody:
        handler, payload, priority = self._decided(schedule)
        return named_body(schedule, handler=handler, payload=payload, priority=priority)

    def _decided(self, schedule: Schedule) -> tuple[str, dict[str, Any], int | None]:
        """Return handler, payload and priority, checked if this program declares the handler."""
        if not isinstance(schedule, Schedule):
            raise InvalidValue(
                f'expected a Schedule, for example Schedule("sweep", handler=sweep, rule=Every(60)), got {type(schedule).__name__}'
            )
        own = self._specs.get(schedule.handler_name)
        if own is None:
            return schedule.handler_name, dict(schedule.payload), schedule.priority
        payload = msgspec.json.decode(own.payloads.bind((), dict(schedule.payload)), type=dict[str, Any])
        return own.name, payload, own.priority if schedule.priority is None else schedule.priority


def _preview_body(rule: Rule, count: int, after: datetime | None, schedule: Schedule | None) -> RulePreviewBody:
    return RulePreviewBody(
        rule=body_of(rule),
        count=count,
        after=optional(after),
        calendars=[] if schedule is None else list(schedule.calendars),
        start=UNSET if schedule is None else optional(schedule.start),
        end=UNSET if schedule is None else optional(schedule.end),
    )


def _path(name: str, verb: str = "") -> str:
    return f"/v1/schedules/{part(check_name(name, 'the name of a schedule'))}{'/' if verb else ''}{verb}"


def _conditions(seen: Collection[str] | None) -> dict[str, str]:
    """Return the headers If-Match and If-None-Match for the expected tags."""
    if seen is None:
        return {}
    return {"if-match": ", ".join("*" if tag == "*" else f'"{tag}"' for tag in seen)} if seen else {"if-none-match": "*"}


def _zone(rule: Rule) -> ZoneInfo:
    """Return the time zone in which a rule's instants are shown."""
    parts = rule.parts if isinstance(rule, Union) else (rule,)
    return ZoneInfo(next((part.tz for part in parts if isinstance(part, Cron | Calendar | Window)), "UTC"))
