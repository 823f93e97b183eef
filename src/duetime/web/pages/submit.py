"""Submitting a task of a handler with a form made from its schema, or testing it: one task before others whose phases are followed."""

from __future__ import annotations

from typing import Any

import msgspec

from duetime.api import intake
from duetime.api.problems import Refusal
from duetime.client.client import stored
from duetime.client.insight import HandlerInfo
from duetime.errors import InvalidValue
from duetime.model.access import Scope
from duetime.model.task import NewTask
from duetime.model.test_run import as_test
from duetime.web.page import Action, Done, Page, View
from duetime.web.pages.tasks import read_duration, read_json, read_number
from duetime.web.schema_form import fields_of, read_payload
from duetime.web.visit import Visit
from duetime.wire.problem import NO_ROUTE
from duetime.wire.tasks import NewTaskBody


async def info_of(visit: Visit, name: str) -> HandlerInfo | None:
    """Return a declared handler. One that the person may not see is answered as one that does not exist."""
    found = (await visit.sight.see("handlers", visit.app.insight.handlers)).value
    info = next((each for each in found if each.name == name), None)
    return info if info is not None and visit.may_see(name) else None


async def view(visit: Visit) -> View:
    name = visit.path["name"]
    info = await info_of(visit, name)
    if info is None:
        raise Refusal(NO_ROUTE, f"there is no handler {name[:200]!r}, or your token is not for it")
    visit.allow(Scope.SUBMIT, name)
    facts = {"name": name, "info": info, "fields": fields_of(info.schema, visit.form), "written": visit.form, "test": "test" in visit.query}
    crumbs = (("/handlers", "Handlers"), (visit.link("handlers", name).partition("/ui")[2], name))
    return View(title=f"Submit {name}", facts=facts, crumbs=crumbs, every=None)


async def _payload(visit: Visit) -> dict[str, Any]:
    info = await info_of(visit, visit.path["name"])
    fields = [] if info is None else fields_of(info.schema)
    payload = read_payload(fields, visit.form)
    if visit.field("payload"):
        further = read_json(visit.field("payload"), "payload")
        if not isinstance(further, dict):
            raise InvalidValue("payload must be a JSON object")
        payload |= further
    return payload


async def submit(visit: Visit) -> Done:
    fields: dict[str, Any] = {"handler": visit.path["name"], "payload": await _payload(visit)}
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
    return await added(visit, intake.task_of(visit.app, body, visit.caller), "was submitted")


async def test(visit: Visit) -> Done:
    """Run one task as a test, as `duetime handlers test` does: before others, tried once."""
    body = NewTaskBody(handler=visit.path["name"], payload=await _payload(visit))
    return await added(visit, as_test(intake.task_of(visit.app, body, visit.caller)), "tests it: what happens is shown in its output")


async def added(visit: Visit, task: NewTask[Any], said: str) -> Done:
    task = await visit.app.client.admission.admit(task)
    found = stored(task, (await visit.app.client.add([task]))[0])
    return Done(said=f"Task {found.record.id} of {found.record.handler} {said}.", to=visit.link("tasks", found.record.id))


PAGE = Page(
    path="/handlers/{name}/submit",
    template="submit.html",
    view=view,
    scope=Scope.SUBMIT,
    actions={"submit": Action(run=submit, scope=Scope.SUBMIT), "test": Action(run=test, scope=Scope.SUBMIT)},
)
