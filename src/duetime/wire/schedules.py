"""Schedules in JSON, and their conversion to the library's types and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

import msgspec
from msgspec import UNSET, Meta, UnsetType, field

from duetime.client.schedules.declaring import Action, Difference, SchedulePlan
from duetime.client.schedules.info import PauseInfo, ScheduleHealth, ScheduleInfo, SkipInfo
from duetime.client.schedules.schedule import LONGEST, LONGEST_NOTE, Schedule
from duetime.clock import to_seconds
from duetime.model.query import MAX_PAGE
from duetime.model.retry import RetryPolicy
from duetime.model.schedule import DEFAULT_GRACE
from duetime.model.shapes import derive
from duetime.targets.occurrence import LastRunView
from duetime.wire.fields import MOST_ITEMS, Arguments, Instant, Lasting, Name, Priority, RetryNumbers, given_fields, optional
from duetime.wire.problem import pointing
from duetime.wire.rules import CalendarNames, RuleBody, RuleFields, body_of, read_body, rule_of

MOST_PREVIEWED = 1_000
Span = Annotated[float, Meta(ge=0, le=LONGEST)]
Note = Annotated[str, Meta(max_length=LONGEST_NOTE)]
Policy = Annotated[str, Meta(min_length=1, max_length=200)]


class ScheduleBody(RuleFields, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """What to run, and when: exactly one of `cron` (with `tz`), `every`, `at`, `after_end`, `window` and `rule`."""

    handler: Name
    payload: Arguments = field(default_factory=dict)
    calendars: CalendarNames = field(default_factory=list)
    start: Instant | UnsetType | None = UNSET
    end: Instant | UnsetType | None = UNSET
    count: Annotated[int, Meta(ge=1, le=2**31 - 1, description="Occurrences in all.")] | UnsetType | None = UNSET
    jitter: Span = 0.0
    missed: Annotated[str, Meta(min_length=1, max_length=200, examples=["all within 6h"])] = "latest"
    overlap: Annotated[str, Meta(min_length=1, max_length=200, examples=["queue one"])] | UnsetType | None = UNSET
    grace: Span = DEFAULT_GRACE
    pause_after: Annotated[int, Meta(ge=1, le=2**31 - 1, description="Failed runs in a row.")] | UnsetType | None = UNSET
    collection: Name | UnsetType | None = UNSET
    priority: Priority | UnsetType | None = UNSET
    timeout: Lasting | UnsetType | None = UNSET
    retry: RetryNumbers | UnsetType | None = UNSET
    expires: Annotated[float, Meta(gt=0, le=LONGEST, description="Seconds after the due time.")] | UnsetType | None = UNSET
    meta: Annotated[dict[str, str], Meta(description="A small map of texts that travels with the tasks.")] = field(default_factory=dict)
    note: Note = ""


class PutScheduleBody(ScheduleBody, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A schedule to store. Its rule is given by exactly one of `cron` (with `tz`), `every`, `at`, `after_end`, `window` and `rule`.

    `catch_up`: occurrences that were planned before now count as missed; otherwise they are not fired.
    """

    catch_up: bool = False
    allow_unknown: bool = False


class NamedScheduleBody(ScheduleBody, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A schedule that code declares, with exactly one of `cron` (with `tz`), `every`, `at`, `after_end`, `window` and `rule`."""

    name: Name


class ReconcileBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """All schedules that a program declares at its `revision`.

    An older revision never overwrites what a newer one has declared. `remove`: delete schedules with names of this `prefix` that code
    has declared earlier and no longer declares. `dry_run` changes nothing.
    """

    schedules: Annotated[list[NamedScheduleBody], Meta(max_length=MOST_ITEMS)]
    prefix: Annotated[str, Meta(max_length=200)] = ""
    remove: bool = False
    revision: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    dry_run: bool = False


class RulePreviewBody(RuleFields, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A rule to preview: exactly one of `cron` (with `tz`), `every`, `at`, `after_end`, `window` and `rule`."""

    calendars: CalendarNames = field(default_factory=list)
    start: Instant | UnsetType | None = UNSET
    end: Instant | UnsetType | None = UNSET
    count: Annotated[int, Meta(ge=1, le=MOST_PREVIEWED, description="How many instants.")] = 10
    after: Instant | UnsetType | None = UNSET


class PauseBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Why it is paused."""

    note: Note = ""


class ResumeBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """`catch_up`: occurrences during the pause count as missed."""

    catch_up: bool = False


class TriggerBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A payload that replaces the schedule's own, and what to do while a run has not ended."""

    payload: Arguments | UnsetType | None = UNSET
    overlap: Policy = "allow"


class CopyScheduleBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The name of the copy."""

    to: str


class BackfillBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Which planned instants to run, both ends included, and what to do with those that already have a task."""

    start: Instant
    end: Instant
    existing: Literal["skip", "failed", "all"] = "skip"
    concurrency: Annotated[int, Meta(ge=1, le=1_000)] = 1
    dry_run: bool = False


class ScheduleQuery(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Which schedules; all that are given must hold."""

    handler: Name | UnsetType = UNSET
    paused: bool | UnsetType = UNSET
    prefix: Annotated[str, Meta(min_length=1, max_length=200)] | UnsetType = UNSET
    declared: bool | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = 100
    cursor: Annotated[str, Meta(min_length=1, max_length=200, description="The `next` of the page before.")] | UnsetType = UNSET


class PreviewQuery(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """How many instants, and after which one; by default after now."""

    count: Annotated[int, Meta(ge=1, le=MOST_PREVIEWED)] = 10
    after: Instant | UnsetType = UNSET


class SkipQuery(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """How many skips, and planned before which instant."""

    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = 100
    before: Instant | UnsetType = UNSET
    cursor: Annotated[str, Meta(pattern=r"^[0-9]{1,18}$", description="The `next` of the page before.")] | UnsetType = UNSET


# ---- answers ----


class ScheduleView(msgspec.Struct, frozen=True, kw_only=True):
    """A stored schedule. `schedule` is the body that would create it again. Instants are in UTC; `zone` is that of the rule.

    `health` is ok, failing (the last run failed), paused, gated (a gate is closed), late (nobody fires), ended (nothing more is planned)
    or broken (`problem` says why). `fired` and `missed` count occurrences that became tasks and that did not.
    """

    name: str
    handler: str
    schedule: StoredSchedule
    description: str
    zone: str
    next_at: datetime | None
    health: ScheduleHealth
    problem: str
    warning: Annotated[str, Meta(description="Whether retries of a run may last into the next one; lists leave it out.")] = ""
    last: LastRunView | None
    paused: PauseInfo | None
    fired: int
    missed: int
    failures: int
    running: list[str]
    planned_at: datetime | None
    fired_at: datetime | None
    revision: int
    declared: int | None
    created_at: datetime
    changed_at: datetime
    changed_by: str
    tag: Annotated[str, Meta(description="The ETag, without its quotes.")]


class StoredSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """What runs, and when. Fields that are left out have the handler's values."""

    handler: str
    rule: RuleBody
    payload: dict[str, Any]
    calendars: list[str]
    start: datetime | None
    end: datetime | None
    count: int | None
    jitter: float
    missed: str
    overlap: str
    grace: float
    pause_after: int | None
    collection: str | None
    priority: int
    timeout: float | None
    retry: RetryNumbers | None
    expires: float | None
    meta: dict[str, str]
    note: str


class ScheduleList(msgspec.Struct, frozen=True):
    """Some schedules by name, and the cursor of the next page, null on the last."""

    items: list[ScheduleView]
    next: str | None


class PlannedAt(msgspec.Struct, frozen=True):
    """A planned instant, in UTC and in local time of the rule's zone."""

    planned_at: datetime
    local: datetime


class PlannedList(msgspec.Struct, frozen=True):
    """The next planned instants; fewer than requested if nothing more is planned."""

    items: list[PlannedAt]
    next: None = None


class SkipList(msgspec.Struct, frozen=True):
    """Skips, the latest planned first."""

    items: list[SkipInfo]
    next: str | None


class DifferenceList(msgspec.Struct, frozen=True):
    """What was done with each schedule, or would be: add, change, adopt, keep, older or remove; and the number of each."""

    items: list[Difference]
    counts: Mapping[Action, int]
    dry_run: bool
    next: None = None


# ---- from one to the other ----

_OWN = ("name", "catch_up", "allow_unknown", "retry", "cron", "tz", "every", "at", "after_end", "window", "rule")


def schedule_of(name: str, body: ScheduleBody, pointer: str = "") -> Schedule:
    """Make the schedule of a body that has the right types. Anything else that is wrong raises an error that points at its field."""
    rule = rule_of(body, pointer)
    options = given_fields(body, *_OWN)
    if isinstance(body.retry, RetryNumbers):
        with pointing(f"{pointer}/retry", {each: each for each in RetryNumbers.__struct_fields__}):
            options["retry"] = RetryPolicy(**given_fields(body.retry))
    with pointing(pointer, {each: each for each in body.__struct_fields__}):
        return Schedule(name, rule=rule, **options)


def put_body(
    schedule: Schedule, *, handler: str, payload: dict[str, Any], priority: int | None, catch_up: bool, allow_unknown: bool
) -> PutScheduleBody:
    """Return the body to put a schedule, with the values of its handler that the sender knows."""
    return PutScheduleBody(**_fields(schedule, handler, payload, priority), catch_up=catch_up, allow_unknown=allow_unknown)


def named_body(schedule: Schedule, *, handler: str, payload: dict[str, Any], priority: int | None) -> NamedScheduleBody:
    """Return the body of a schedule that code declares."""
    return NamedScheduleBody(**_fields(schedule, handler, payload, priority), name=schedule.name)


def _fields(schedule: Schedule, handler: str, payload: dict[str, Any], priority: int | None) -> dict[str, Any]:
    return {
        "handler": handler,
        "rule": schedule.rule if isinstance(schedule.rule, str) else body_of(schedule.rule),
        "payload": payload,
        "calendars": list(schedule.calendars),
        "start": optional(schedule.start),
        "end": optional(schedule.end),
        "count": optional(schedule.count),
        "jitter": to_seconds(schedule.jitter),
        "missed": schedule.missed,
        "overlap": optional(schedule.overlap),
        "grace": to_seconds(schedule.grace),
        "pause_after": optional(schedule.pause_after),
        "collection": optional(schedule.collection),
        "priority": optional(priority),
        "timeout": UNSET if schedule.timeout is None else to_seconds(schedule.timeout),
        "retry": UNSET if schedule.retry is None else _numbers(schedule.retry),
        "expires": UNSET if schedule.expires is None else to_seconds(schedule.expires),
        "meta": dict(schedule.meta),
        "note": schedule.note,
    }


def _numbers(retry: RetryPolicy) -> RetryNumbers:
    return msgspec.json.decode(retry.numbers(), type=RetryNumbers)


def _retry(numbers: RetryNumbers) -> RetryPolicy:
    return RetryPolicy().with_numbers(msgspec.json.encode(numbers))


def _utc(when: datetime) -> datetime:
    return when.astimezone(UTC)


_stored = derive(
    Schedule,
    StoredSchedule,
    {
        "payload": dict,
        "calendars": list,
        "jitter": to_seconds,
        "grace": to_seconds,
        "timeout": to_seconds,
        "expires": to_seconds,
        "meta": dict,
        "retry": _numbers,
    },
    given=("handler", "rule", "overlap", "priority"),
)
_view = derive(
    ScheduleInfo,
    ScheduleView,
    dict.fromkeys(("next_at", "planned_at", "fired_at", "created_at", "changed_at"), _utc),
    given=("schedule",),
)
_schedule = derive(StoredSchedule, Schedule, {"retry": _retry}, given=("name", "rule"))
_info = derive(ScheduleView, ScheduleInfo, given=("schedule", "rule", "next_at", "planned_at", "fired_at"))


def view_of(info: ScheduleInfo) -> ScheduleView:
    """Return a stored schedule as JSON shows it."""
    schedule = info.schedule
    return _view(info, _stored(schedule, info.handler, body_of(info.rule), schedule.overlap or "skip", schedule.priority or 0))


def info_of(view: ScheduleView) -> ScheduleInfo:
    """Return the schedule that a view shows, with instants in local time of the rule's zone."""
    zone, rule = ZoneInfo(view.zone), read_body(view.schedule.rule)
    instants = (_on(when, zone) for when in (view.next_at, view.planned_at, view.fired_at))
    return _info(view, _schedule(view.schedule, view.name, rule), rule, *instants)


def planned_list(instants: Sequence[datetime]) -> PlannedList:
    return PlannedList([PlannedAt(each.astimezone(UTC), each) for each in instants])


def difference_list(plan: SchedulePlan, *, dry_run: bool) -> DifferenceList:
    counts: dict[Action, int] = {}
    for each in plan.differences:
        counts[each.action] = counts.get(each.action, 0) + 1
    return DifferenceList(plan.differences, counts, dry_run)


def _on(when: datetime | None, zone: tzinfo) -> datetime | None:
    return None if when is None else when.astimezone(zone)
