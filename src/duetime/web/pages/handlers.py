"""Handlers and their gates: how each is doing, what it may do, and closing it with its effect told before."""

from __future__ import annotations

from duetime.api.problems import Refusal
from duetime.web.page import Page, View
from duetime.web.pages import gating
from duetime.web.pages.overview import handler_rows
from duetime.web.visit import Visit
from duetime.wire.problem import NO_ROUTE


async def view(visit: Visit) -> View:
    rows = await handler_rows(visit)
    gates = [gate for gate in (await visit.sight.see("gates", visit.app.gates.list)).value if visit.may_see(gate.handler)]
    facts = {"rows": rows, "gates": gates, "may_operate": visit.may("operate")}
    return View(title="Handlers", facts=facts)


async def view_one(visit: Visit) -> View:
    name = visit.path["name"]
    row = next((row for row in await handler_rows(visit) if row.name == name), None)
    if row is None:  # the same answer whether it exists or may not be seen
        raise Refusal(NO_ROUTE, f"there is no handler {name[:200]!r}, or your token is not for it")
    info = next((each for each in (await visit.sight.see("handlers", visit.app.insight.handlers)).value if each.name == name), None)
    stats = (await visit.sight.see("stats", visit.app.insight.stats)).value
    counts = next((each for each in stats.handlers if each.handler == name), None)
    gates = [gate for gate in (await visit.sight.see("gates", visit.app.gates.list)).value if gate.handler == name]
    workers = [part for each in (await visit.sight.see("workers", visit.app.insight.workers)).value if (part := each.part(visit.may_see))]
    schedules = await visit.app.schedules.list(handler=name)
    facts = {
        "row": row,
        "info": info,
        "counts": counts,
        "gates": gates,
        "workers": [each for each in workers if name in each.slots],
        "schedules": schedules[:50],
        "may_operate": visit.may("operate", name),
        "may_submit": visit.may("submit", name),
    }
    return View(title=name, facts=facts, crumbs=(("/handlers", "Handlers"),))


PAGE = Page(path="/handlers", template="handlers.html", view=view, name="Handlers", letter="h", icon="handlers", actions=gating.ACTIONS)
ONE = Page(path="/handlers/{name}", template="handler.html", view=view_one, actions=gating.ACTIONS)
