"""Operations: acts on all tasks that match, as they go on and as they ended; and starting one, with its effect told before."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from duetime.api.access import allow_filter
from duetime.api.operations import told
from duetime.client.operations import Asked, OperationInfo, fields_of, not_found
from duetime.errors import InvalidValue
from duetime.model.access import Scope
from duetime.model.operation import Canary, Verb
from duetime.model.query import Query
from duetime.model.query_text import read_query, write_query
from duetime.model.task import FINAL, LIVE, State
from duetime.web.page import Action, Done, Page, View
from duetime.web.pages.tasks import read_number
from duetime.web.visit import Visit
from duetime.web.words import number

MOST_COUNTED = 10_000
TYPED_ABOVE = 1_000  # so many tasks are acted on only if their number was typed
FIRST = 5


def _may_see(visit: Visit, operation: OperationInfo) -> bool:
    handler = operation.filter.get("handler")
    return not visit.caller.handlers if handler is None else visit.may_see(handler)


async def view(visit: Visit) -> View:
    page = await visit.app.client.operations.page(50, visit.query.get("cursor") or None)
    shown = [(each, _words(each)) for each in page.items if _may_see(visit, each)]
    facts = {
        "operations": shown,
        "next": None if page.next is None else visit.here(cursor=page.next),
        "may_operate": visit.may("operate"),
    }
    return View(title="Operations", facts=facts, every=1.0 if any(not each.ended for each, _ in shown) else 5.0)


def _words(operation: OperationInfo) -> str:
    return ", ".join(f"{name} {value}" for name, value in operation.filter.items()) or "all tasks"


# ---- starting one ----


def _asked(visit: Visit, fields: dict[str, str]) -> tuple[Verb, Query]:
    """Return the verb and which tasks it can act on at all: live ones are cancelled, those that ended without success are retried."""
    verb = fields.get("verb", "cancel")
    if verb not in ("cancel", "retry"):
        raise InvalidValue(f"the verb is cancel or retry, got {verb[:40]!r}")
    query = read_query(fields.get("q", ""), visit.now).by(visit.caller.submitted_by)
    allow_filter(visit.caller, Scope.OPERATE, query.handler)
    visit.hiding.check(query)
    possible = LIVE if verb == Verb.CANCEL else FINAL - {State.SUCCEEDED}
    wanted = tuple(state for state in query.wanted or tuple(State) if state in possible)
    if not query.wanted and verb == Verb.RETRY:
        wanted = (State.FAILED,)
    if not wanted:
        raise InvalidValue(f"there is nothing to {verb} in these states; {verb} is for {', '.join(sorted(possible))}")
    return Verb(verb), msgspec.structs.replace(query, state=None, states=wanted)


async def view_new(visit: Visit) -> View:
    verb, query = _asked(visit, dict(visit.query))
    count = await visit.app.client.count(query, MOST_COUNTED)
    first = await visit.app.client.record_page(msgspec.structs.replace(query, limit=FIRST, brief=True))
    facts = {
        "verb": verb.value,
        "q": visit.query.get("q", ""),
        "written": write_query(query),
        "count": count,
        "first": [visit.hiding.of(record) for record in first.items],
        "typed": count.count > TYPED_ABOVE,
    }
    return View(title=f"{verb.value.capitalize()} all that match", facts=facts, crumbs=(("/tasks", "Tasks"),), every=None)


async def start(visit: Visit) -> Done:
    verb, query = _asked(visit, dict(visit.form))
    count = await visit.app.client.count(query, MOST_COUNTED)
    if count.count > TYPED_ABOVE and visit.field("typed").replace(",", "") != str(count.count):
        raise InvalidValue(f"type {count.count} to {verb} more than {TYPED_ABOVE:,} tasks")
    rate = read_number(visit.field("rate"), "rate") if visit.field("rate") else None
    canary = Canary() if verb is Verb.RETRY and visit.field("canary") == "on" else None
    filters = ", ".join(f"{name} {value}" for name, value in sorted(fields_of(query).items()))
    async with visit.acting(f"tasks.{verb}", filters or "no filter") as act:
        asked = Asked(verb=verb, query=query, rate=None if rate is None else float(rate), canary=canary)
        begun = await visit.app.client.operations.start(asked, made_by=visit.caller.name)
        act.detail = told(begun)
    more = "or more " if count.more else ""
    return Done(said=f"Started: {verb} of {number(count.count)} {more}tasks. It goes on without this page.", to=visit.link("operations"))


# ---- actions on one ----


def _change(verb: str) -> Callable[[Visit], Awaitable[Done]]:
    async def change(visit: Visit) -> Done:
        id = visit.needed("operation")
        async with visit.acting(f"operations.{verb}", id) as act:
            found = await visit.app.client.operations.get(id)
            if not _may_see(visit, found):
                raise not_found(id)
            service = visit.app.client.operations
            changed = await {"stop": service.stop, "pause": service.pause, "resume": service.resume}[verb](id)
            act.detail = told(changed)
        return Done(said=f"The operation is {changed.state.value}; {number(changed.matched)} tasks were acted on.")

    return change


PAGE = Page(
    path="/operations",
    template="operations.html",
    view=view,
    name="Operations",
    letter="p",
    icon="operations",
    more=True,
    actions={verb: Action(run=_change(verb)) for verb in ("stop", "pause", "resume")},
)
NEW = Page(path="/operations/new", template="operation_new.html", view=view_new, scope=Scope.OPERATE, actions={"start": Action(run=start)})
