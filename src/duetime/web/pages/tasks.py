"""The list of tasks: search, states with counts, and actions on what is selected."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from duetime.api import intake
from duetime.client.client import stored
from duetime.client.insight import Stats
from duetime.clock import to_datetime, to_seconds
from duetime.errors import DuetimeError, InvalidValue
from duetime.ids import is_id
from duetime.model.access import Scope
from duetime.model.query import OF_THE_PAGE, Query, fits_pattern
from duetime.model.query_text import read_query, write_query
from duetime.model.task import State, TaskRecord
from duetime.web.page import Action, Done, Page, View
from duetime.web.visit import Visit
from duetime.web.words import cut
from duetime.wire.tasks import NewTaskBody

SIZES = (25, 50, 100)
MOST_SELECTED = 100
UNITS = {"s": 1.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0}


FILTERS = [name for name in Query.__struct_fields__ if name not in OF_THE_PAGE]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A task in the list: never its whole payload."""

    task: TaskRecord
    payload: str
    error: str
    due_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


async def view(visit: Visit) -> View:
    text = visit.query.get("q", "")
    query, problem = Query(), ""
    try:
        query = read_query(text, visit.now).by(visit.caller.submitted_by)
        visit.hiding.check(query)
    except InvalidValue as error:
        problem = str(error)
    if visit.caller.handlers and query.handler is None:
        query = msgspec.structs.replace(query, handler=visit.caller.handlers[0])  # a list without a filter shows something too
    if query.handler is not None:
        visit.allow(Scope.READ, query.handler)
    size = int(visit.query.get("size", "50")) if visit.query.get("size", "50").isdecimal() else 50
    cursor = visit.query.get("cursor") or None
    query = msgspec.structs.replace(query, limit=size if size in SIZES else 50, cursor=cursor, brief=True)
    page = None if problem or query.nothing else await visit.app.client.record_page(query)
    stats = await visit.sight.see("stats", visit.app.insight.stats)
    shown = stats.value.part(visit.may_see)
    facts = {
        "q": text,
        "problem": problem,
        "rows": [] if page is None else [_row(visit.hiding.of(record)) for record in page.items],
        "looked": None if page is None else page.looked,
        "next": None if page is None or page.next is None else visit.here(cursor=page.next),
        "first": cursor is None,
        "states": _states(visit, shown, query),
        "handlers": _handlers(visit, shown, query),
        "chips": _chips(visit, query),
        "stats": stats,
        "total": sum(shown.states.values()),
        "may_operate": visit.may("operate", query.handler),
        "may_submit": visit.may("submit"),
        "names": [each.handler for each in shown.handlers],
        "sizes": SIZES,
        "size": query.limit,
    }
    return View(title="Tasks", facts=facts, every=2.0 if cursor is None else 5.0)


def _row(record: TaskRecord) -> Row:
    return Row(
        task=record,
        payload="" if record.payload == b"{}" else cut(record.payload.decode("utf-8", "replace"), 140),
        error=cut(str(record.error), 140) if record.error else "",
        due_at=to_datetime(record.due_at),
        started_at=None if record.started_at is None else to_datetime(record.started_at),
        finished_at=None if record.finished_at is None else to_datetime(record.finished_at),
    )


def _with(visit: Visit, query: Query, **changes: Any) -> str:
    return visit.link("tasks", q=write_query(msgspec.structs.replace(query, **changes)), size=visit.query.get("size"))


def _chips(visit: Visit, query: Query) -> list[tuple[str, str]]:
    """Return each part of the filter as text, and the address of the list without it."""
    usual = Query()
    given = [name for name in FILTERS if getattr(query, name) != getattr(usual, name)]
    return [(write_query(Query(**{name: getattr(query, name)})), _with(visit, query, **{name: getattr(usual, name)})) for name in given]


def _states(visit: Visit, stats: Stats, query: Query) -> list[tuple[str, int, str, bool]]:
    """Return each state with the number of tasks, of the chosen handlers if there are some: counted by the store as they change."""
    chosen = [each for each in stats.handlers if query.handler is None or fits_pattern(query.handler, each.handler)]
    counts: dict[State, int] = dict.fromkeys(State, 0)
    for each in chosen:
        counts[State.PENDING] += each.due + each.later + each.parked
        counts[State.BLOCKED] += each.blocked
        counts[State.RUNNING] += each.running
        for state, number in each.finals.items():
            counts[state] += number
    always = (State.PENDING, State.RUNNING, State.SUCCEEDED, State.FAILED, *query.wanted)
    return [
        (state.value, number, _with(visit, query, state=None, states=() if query.wanted == (state,) else (state,)), state in query.wanted)
        for state, number in counts.items()
        if number or state in always
    ]


def _handlers(visit: Visit, stats: Stats, query: Query) -> list[tuple[str, int, str, bool]]:
    busiest = sorted(stats.handlers, key=lambda each: (-(each.due + each.running), each.handler))[:30]
    return [
        (
            each.handler,
            each.due + each.running,
            _with(visit, query, handler=None if query.handler == each.handler else each.handler),
            query.handler == each.handler,
        )
        for each in busiest
    ]


# ---- actions ----


def _selected(visit: Visit) -> list[str]:
    ids = [name.removeprefix("task:") for name in visit.form if name.startswith("task:")]
    if not ids:
        raise InvalidValue("no task is selected; tick some first")
    if len(ids) > MOST_SELECTED or not all(is_id(id) for id in ids):
        raise InvalidValue(f"at most {MOST_SELECTED} tasks can be selected, got {len(ids)}")
    return ids


async def _seen(visit: Visit, ids: list[str]) -> list[str]:
    """Return those of the tasks that the person may see and act on."""
    records = await visit.app.client.records(ids)
    return [record.id for record in records if record is not None and visit.may("operate", record.handler)]


async def cancel(visit: Visit) -> Done:
    ids = await _seen(visit, _selected(visit))
    async with visit.acting("tasks.cancel", f"{len(ids)} selected tasks") as act:
        verdicts = await visit.app.client.cancel_all(ids)
        counted = {verdict.value: verdicts.count(verdict) for verdict in verdicts}
        act.detail = ", ".join(f"{number} {verdict}" for verdict, number in counted.items())
    return Done(said=f"Of {len(ids)} tasks: {act.detail or 'nothing to cancel'}.")


async def retry(visit: Visit) -> Done:
    ids = await _seen(visit, _selected(visit))
    done, refused = 0, ""
    async with visit.acting("tasks.retry", f"{len(ids)} selected tasks") as act:
        for id in ids:
            try:
                await visit.app.client.retry(id)
                done += 1
            except DuetimeError as error:
                refused = str(error)
        act.detail = f"{done} retried"
    return Done(said=f"{done} of {len(ids)} run again.{f' {refused}' if refused else ''}", good=not refused)


async def submit(visit: Visit) -> Done:
    """Submit a task, as POST /v1/tasks would."""
    fields: dict[str, Any] = {"handler": visit.needed("handler"), "payload": read_json(visit.field("payload") or "{}", "payload")}
    for name in ("key", "collection"):
        if visit.field(name):
            fields[name] = visit.field(name)
    if visit.field("delay"):
        fields["delay"] = read_duration(visit.field("delay"))
    if visit.field("priority"):
        fields["priority"] = read_number(visit.field("priority"), "priority")
    try:
        body = msgspec.convert(fields, NewTaskBody)
    except msgspec.ValidationError as error:
        raise InvalidValue(str(error)) from None
    task = await visit.app.client.admission.admit(intake.task_of(visit.app, body, visit.caller))
    added = stored(task, (await visit.app.client.add([task]))[0])
    return Done(said=f"Task {added.record.id} of {added.record.handler} was submitted.", to=visit.link("tasks", added.record.id))


def read_json(text: str, what: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidValue(f"{what} is not JSON: {error}") from None


def read_number(text: str, what: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidValue(f"{what} must be a whole number, got {text[:80]!r}") from None


def read_duration(text: str) -> float:
    """Read `90`, `90s`, `15min`, `2 h` or `3d` as seconds."""
    digits = text.rstrip("abcdefghijklmnopqrstuvwxyz ")
    unit = text[len(digits) :].strip() or "s"
    try:
        return to_seconds(float(digits) * UNITS[{"m": "min"}.get(unit, unit)], "delay")
    except (ValueError, KeyError):
        raise InvalidValue(f"a duration is a number and s, min, h or d, such as 15min; got {text[:80]!r}") from None


PAGE = Page(
    path="/tasks",
    template="tasks.html",
    view=view,
    name="Tasks",
    letter="t",
    icon="tasks",
    actions={"cancel": Action(run=cancel), "retry": Action(run=retry), "submit": Action(run=submit, scope=Scope.SUBMIT)},
)
