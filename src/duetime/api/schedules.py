"""Schedules over HTTP."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager

import msgspec
from starlette.responses import Response

from duetime.api.access import refusal_of
from duetime.api.answers import answer
from duetime.api.call import Call
from duetime.api.problems import Refusal, problem_of
from duetime.api.route import Header, Route
from duetime.api.tasks import task_answer
from duetime.client.schedules.backfill import Backfill
from duetime.client.schedules.declaring import SchedulePlan
from duetime.client.schedules.info import ScheduleInfo
from duetime.client.schedules.schedule import Schedule
from duetime.client.schedules.service import Schedules
from duetime.clock import to_datetime, to_instant
from duetime.errors import DuetimeError, InvalidValue
from duetime.model.access import Scope
from duetime.model.task import Task, check_name
from duetime.remote.address import part
from duetime.runtime.slices import Slices, off_loop
from duetime.store.schedules import ScheduleFilter
from duetime.wire.fields import NoQuery, given
from duetime.wire.problem import BAD_REQUEST, INVALID, Fault, FieldError, pointing
from duetime.wire.rules import RuleFields, rule_of
from duetime.wire.schedules import (
    BackfillBody,
    CopyScheduleBody,
    DifferenceList,
    NamedScheduleBody,
    PauseBody,
    PlannedList,
    PreviewQuery,
    PutScheduleBody,
    ReconcileBody,
    ResumeBody,
    RulePreviewBody,
    ScheduleList,
    ScheduleQuery,
    ScheduleView,
    SkipList,
    SkipQuery,
    TriggerBody,
    difference_list,
    planned_list,
    schedule_of,
    view_of,
)

MOST_FAULTS = 100  # in one answer

_put = msgspec.json.Decoder(PutScheduleBody)
_pause = msgspec.json.Decoder(PauseBody)
_resume = msgspec.json.Decoder(ResumeBody)
_trigger = msgspec.json.Decoder(TriggerBody)
_copy = msgspec.json.Decoder(CopyScheduleBody)
_backfill = msgspec.json.Decoder(BackfillBody)
_reconcile = msgspec.json.Decoder(ReconcileBody)
_rule = msgspec.json.Decoder(RulePreviewBody)


def of_caller(call: Call, *, revision: int | None = None) -> Schedules:
    """Return the schedules as the caller may see and change them."""

    def refuse(handler: str) -> DuetimeError | None:
        return refusal_of(call.caller, call.needed, handler)

    if not call.caller.handlers:
        return call.app.schedules.on_behalf_of(call.caller.name, revision=revision)
    return call.app.schedules.on_behalf_of(call.caller.name, refuse, revision=revision)


# ---- reading ----


async def list_schedules(call: Call) -> Response:
    query = call.query(ScheduleQuery)
    handler = given(query.handler)
    if handler is not None:
        call.allow(handler)
    chosen = ScheduleFilter(
        handler=handler,
        paused=given(query.paused),
        prefix=given(query.prefix),
        declared=given(query.declared),
        after=given(query.cursor) or "",
        limit=query.limit,
    )
    infos, after = await of_caller(call).page(chosen)
    views, slices = [], Slices()
    for info in infos:
        await slices.pause()
        views.append(view_of(info))
    return answer(ScheduleList(views, after))


async def get(call: Call) -> Response:
    call.query(NoQuery)
    return _shown(await of_caller(call).get(_name(call)))


async def preview(call: Call) -> Response:
    query = call.query(PreviewQuery)
    return answer(planned_list(await of_caller(call).preview(_name(call), count=query.count, after=given(query.after))))


async def skips(call: Call) -> Response:
    query = call.query(SkipQuery)
    before = to_datetime(int(query.cursor)) if isinstance(query.cursor, str) else given(query.before)
    found = await of_caller(call).skips(_name(call), limit=query.limit, before=before)
    return answer(SkipList(found, str(to_instant(found[-1].planned_at)) if len(found) == query.limit else None))


async def preview_rule(call: Call) -> Response:
    call.query(NoQuery)
    body = await call.body(_rule)
    rule = await off_loop(rule_of, body)
    with pointing("", {"start": "start", "end": "end", "after": "after"}), _about_calendars(body):
        schedule = Schedule("preview", "preview", rule, calendars=body.calendars, start=given(body.start), end=given(body.end))
        return answer(planned_list(await call.app.schedules.preview(schedule, count=body.count, after=given(body.after))))


# ---- changing ----


async def put(call: Call) -> Response:
    call.query(NoQuery)
    body = await call.body(_put)
    name, seen = _name(call), _seen(call)
    async with call.acting("schedules.put", name) as act:
        with _about_calendars(body):
            stored = await of_caller(call).upsert(
                await off_loop(schedule_of, name, body), catch_up=body.catch_up, allow_unknown=body.allow_unknown, seen=seen
            )
        act.detail = f"{stored.info.handler}, {stored.info.description}"
    if not stored.created:
        return _shown(stored.info)
    return _shown(stored.info, 201, {"location": f"{call.prefix}/v1/schedules/{part(name)}"})


async def delete(call: Call) -> Response:
    call.query(NoQuery)
    await call.empty_body()
    name, seen = _name(call), _seen(call)
    if seen is not None and not seen:
        raise Refusal(BAD_REQUEST, "If-None-Match makes no sense for DELETE; leave it out, or use If-Match")
    async with call.acting("schedules.delete", name):
        await of_caller(call).delete(name, seen=seen)
    return Response(status_code=204)


async def pause(call: Call) -> Response:
    call.query(NoQuery)
    body = await call.optional_body(_pause, PauseBody())
    async with call.acting("schedules.pause", _name(call)) as act:
        info = await of_caller(call).pause(_name(call), note=body.note)
        act.detail = body.note
    return _shown(info)


async def resume(call: Call) -> Response:
    call.query(NoQuery)
    body = await call.optional_body(_resume, ResumeBody())
    async with call.acting("schedules.resume", _name(call)) as act:
        info = await of_caller(call).resume(_name(call), catch_up=body.catch_up)
        act.detail = "catching up" if body.catch_up else ""
    return _shown(info)


async def trigger(call: Call) -> Response:
    call.query(NoQuery)
    body = await call.optional_body(_trigger, TriggerBody())
    async with call.acting("schedules.trigger", _name(call)) as act:
        task = await of_caller(call).trigger(_name(call), payload=given(body.payload), overlap=body.overlap)
        act.detail = f"task {task.id}"
    call.shared.figures.note_submitted(1)
    return task_answer(task, 201, {"location": f"{call.prefix}/v1/tasks/{task.id}"})


async def copy(call: Call) -> Response:
    call.query(NoQuery)
    body = await call.body(_copy)
    with pointing("", {"to": "to"}):
        to = check_name(body.to, "to")
    async with call.acting("schedules.copy", _name(call)) as act:
        info = await of_caller(call).copy(_name(call), to)
        act.detail = f"to {to}"
    return _shown(info, 201, {"location": f"{call.prefix}/v1/schedules/{part(to)}"})


async def backfill(call: Call) -> Response:
    call.query(NoQuery)
    body = await call.body(_backfill)
    schedules, name = of_caller(call), _name(call)

    async def run() -> Backfill:
        return await schedules.backfill(
            name, body.start, body.end, existing=body.existing, concurrency=body.concurrency, dry_run=body.dry_run
        )

    if body.dry_run:
        return answer(await run())
    async with call.acting("schedules.backfill", name) as act:
        done = await run()
        act.detail = f"{body.start.isoformat()} to {body.end.isoformat()}: {len(done.tasks):,} tasks"
    call.shared.figures.note_submitted(len(done.tasks))
    return answer(done)


async def reconcile(call: Call) -> Response:
    """Declare or apply the schedules of a program; with `dry_run`, only return what would change."""
    call.query(NoQuery)
    body = await call.body(_reconcile)
    schedules = of_caller(call, revision=body.revision)
    declared = await _declared(schedules, body)
    if body.dry_run:
        found = await schedules.plan(declared, prefix=body.prefix)
        if not body.remove:
            found = SchedulePlan([each for each in found.differences if each.action != "remove"])
        return answer(difference_list(found, dry_run=True))
    action = "schedules.apply" if body.remove else "schedules.declare"
    subject = f"{len(declared):,} schedules of revision {body.revision}" + (f", prefix {body.prefix}" if body.prefix else "")
    async with call.acting(action, subject) as act:
        done = await (schedules.apply(declared, prefix=body.prefix) if body.remove else schedules.declare(declared))
        counts = Counter(each.action for each in done.differences)
        act.detail = ", ".join(f"{word} {number:,}" for word, number in sorted(counts.items())) or "nothing"
    return answer(difference_list(done, dry_run=False))


async def _declared(schedules: Schedules, body: ReconcileBody) -> list[Schedule]:
    """Read all schedules of a program, or refuse them with everything that is wrong."""
    declared, faults = await off_loop(_read_all, body)
    if not faults:
        for index, error in (await schedules.faults(declared)).items():
            told = problem_of(error, NamedScheduleBody.__struct_fields__)
            faults += [
                Fault(fault.detail, pointer=f"/schedules/{index}{fault.pointer or ''}")
                for fault in told.errors or [_calendar_fault(told.detail, body.schedules[index])]
            ]
    if faults:
        more = f" (and {len(faults) - 1:,} more)" if len(faults) > 1 else ""
        raise Refusal(INVALID, f"{faults[0].pointer}: {faults[0].detail}{more}; nothing was changed", faults=faults[:MOST_FAULTS])
    return declared


def _read_all(body: ReconcileBody) -> tuple[list[Schedule], list[Fault]]:
    declared: list[Schedule] = []
    faults: list[Fault] = []
    for index, each in enumerate(body.schedules):
        try:
            declared.append(schedule_of(each.name, each, f"/schedules/{index}"))
        except FieldError as misfit:
            faults.append(Fault(str(misfit), pointer=misfit.pointer))
    return declared, faults


# ---- parts ----


def _calendar_fault(detail: str, body: RuleFields) -> Fault:
    """Point at the field that names the unknown calendar: `calendars`, or `business` of the rule."""
    named = [name for name in getattr(body, "calendars", ()) if f"{name!r}" in detail]
    return Fault(detail, pointer="/calendars" if named else "/rule" if detail.startswith("calendar") else "")


def _name(call: Call) -> str:
    return check_name(call.path["name"], "name")


def _seen(call: Call) -> Collection[str] | None:
    """Return the tags of If-Match; an empty collection for `If-None-Match: *` (there must be no schedule); None without either."""
    match, none = call.header("if-match"), call.header("if-none-match")
    if match is not None and none is not None:
        raise Refusal(BAD_REQUEST, "give If-Match or If-None-Match, not both")
    if none is not None:
        if none.strip() != "*":
            detail = "If-None-Match must be * here: only if there is no schedule of that name"
            raise Refusal(INVALID, detail, faults=[Fault(detail, parameter="If-None-Match")])
        return ()
    return None if match is None else [each.strip().strip('"') for each in match.split(",")]


@contextmanager
def _about_calendars(body: RuleFields) -> Iterator[None]:
    try:
        yield
    except InvalidValue as error:
        if isinstance(error, FieldError) or not str(error).startswith("calendar"):
            raise
        fault = _calendar_fault(str(error), body)
        raise Refusal(INVALID, fault.detail, faults=[fault]) from None


def _shown(info: ScheduleInfo, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return answer(view_of(info), status, {"etag": f'"{info.tag}"', **(headers or {})})


_IF_MATCH = Header("If-Match", "Only if the schedule still has this ETag.")
_IF_NONE_MATCH = Header("If-None-Match", "`*`: only if there is no schedule of that name.")

ROUTES = (
    Route(
        name="list_schedules", method="GET", path="/v1/schedules", endpoint=list_schedules, scope=Scope.READ,
        summary="List schedules by name.", query=ScheduleQuery, answer=ScheduleList,
    ),
    Route(
        name="reconcile_schedules", method="PUT", path="/v1/schedules", endpoint=reconcile, scope=Scope.OPERATE,
        summary="Make the stored schedules those that a program declares, or tell what that would change.",
        body=ReconcileBody, answer=DifferenceList, problems=(404, 409),
    ),
    Route(
        name="get_schedule", method="GET", path="/v1/schedules/{name}", endpoint=get, scope=Scope.READ,
        summary="Return a schedule with its next and last run.", answer=ScheduleView, problems=(404,),
    ),
    Route(
        name="put_schedule", method="PUT", path="/v1/schedules/{name}", endpoint=put, scope=Scope.OPERATE,
        summary="Make a schedule, or change it. Nothing that was planned before now is fired, unless `catch_up` asks for it.",
        body=PutScheduleBody, answer=ScheduleView, also=(201,), problems=(404, 409, 412), headers=(_IF_MATCH, _IF_NONE_MATCH),
    ),
    Route(
        name="delete_schedule", method="DELETE", path="/v1/schedules/{name}", endpoint=delete, scope=Scope.OPERATE,
        summary="Remove a schedule; its tasks stay.", status=204, problems=(404, 409, 412), headers=(_IF_MATCH,),
    ),
    Route(
        name="pause_schedule", method="POST", path="/v1/schedules/{name}/pause", endpoint=pause, scope=Scope.OPERATE,
        summary="Let a schedule fire nothing until it is resumed.",
        body=PauseBody, optional_body=True, answer=ScheduleView, problems=(404, 409, 415),
    ),
    Route(
        name="resume_schedule", method="POST", path="/v1/schedules/{name}/resume", endpoint=resume, scope=Scope.OPERATE,
        summary="Let a paused schedule fire again.",
        body=ResumeBody, optional_body=True, answer=ScheduleView, problems=(404, 409, 415),
    ),
    Route(
        name="trigger_schedule", method="POST", path="/v1/schedules/{name}/trigger", endpoint=trigger, scope=Scope.OPERATE,
        summary="Run a schedule's handler now; the rule is not disturbed.",
        body=TriggerBody, optional_body=True, answer=Task, status=201, problems=(404, 409, 415),
    ),
    Route(
        name="copy_schedule", method="POST", path="/v1/schedules/{name}/copy", endpoint=copy, scope=Scope.OPERATE,
        summary="Store what a schedule is under another name.", body=CopyScheduleBody, answer=ScheduleView, status=201, problems=(404, 412),
    ),
    Route(
        name="backfill_schedule", method="POST", path="/v1/schedules/{name}/backfill", endpoint=backfill, scope=Scope.OPERATE,
        summary="Run occurrences of the past, at most 10,000.", body=BackfillBody, answer=Backfill, problems=(404, 409),
    ),
    Route(
        name="preview_schedule", method="GET", path="/v1/schedules/{name}/preview", endpoint=preview, scope=Scope.READ,
        summary="Return the next planned instants of a schedule.", query=PreviewQuery, answer=PlannedList, problems=(404,),
    ),
    Route(
        name="list_skips", method="GET", path="/v1/schedules/{name}/skips", endpoint=skips, scope=Scope.READ,
        summary="List the occurrences of a schedule that became no task, the latest planned first.",
        query=SkipQuery, answer=SkipList, problems=(404,),
    ),
    Route(
        name="preview_rule", method="POST", path="/v1/rules/preview", endpoint=preview_rule, scope=Scope.READ,
        summary="Return the next instants of a rule that is not stored.", body=RulePreviewBody, answer=PlannedList,
    ),
)  # fmt: skip
