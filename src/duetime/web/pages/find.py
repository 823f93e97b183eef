"""What the palette finds: pages, handlers, schedules, workers, and a task by its id or key."""

from __future__ import annotations

import msgspec

from duetime.errors import InvalidValue
from duetime.ids import is_id
from duetime.model.query import Query, is_id_prefix
from duetime.store.schedules import ScheduleFilter
from duetime.web.page import Page, View
from duetime.web.visit import Visit

MOST = 12


class Hit(msgspec.Struct, frozen=True):
    """Something that was found: what it is called, what it is, and where."""

    name: str
    what: str
    address: str
    icon: str


async def view(visit: Visit) -> View:
    text = visit.query.get("q", "").strip()
    return View(title="Find", facts={"q": text, "hits": (await _hits(visit, text))[:MOST]}, every=None)


async def _hits(visit: Visit, text: str) -> list[Hit]:
    wanted = text.lower()
    pages = [
        *visit.menu,
        ("Calendar", visit.link("calendar"), "schedules"),
        ("Month", visit.link("calendar", "month"), "schedules"),
        ("Forecast", visit.link("forecast"), "schedules"),
    ]
    pages.append(("Settings", visit.link("settings"), "settings"))
    hits = [Hit(name, "page", address, icon) for name, address, icon in pages if wanted in name.lower()]
    if not text:
        return hits
    if is_id(text):
        hits.insert(0, Hit(text, "task", visit.link("tasks", text), "tasks"))
    elif is_id_prefix(text) and not visit.caller.handlers:
        page = await visit.app.client.page(Query(id_prefix=text, limit=5))
        hits += [Hit(task.id, f"task of {task.handler}", visit.link("tasks", task.id), "tasks") for task in page.items]
    handlers = (await visit.sight.see("handlers", visit.app.insight.handlers)).value
    names = [each.name for each in handlers if visit.may_see(each.name) and wanted in each.name.lower()]
    hits += [Hit(name, "handler", visit.link("handlers", name), "handlers") for name in names]
    try:
        schedules, _ = await visit.app.schedules.page(ScheduleFilter(limit=10, prefix=text))
    except InvalidValue:
        schedules = []
    hits += [
        Hit(each.name, "schedule", visit.link("schedules", each.name), "schedules") for each in schedules if visit.may_see(each.handler)
    ]
    workers = (await visit.sight.see("workers", visit.app.insight.workers)).value
    for worker in workers:
        if (wanted in worker.host.lower() or worker.id.startswith(wanted)) and worker.part(visit.may_see) is not None:
            hits.append(Hit(f"{worker.host}, process {worker.pid}", "worker", visit.link("workers", worker.id), "workers"))
    hits.append(Hit(f"Tasks with the key {text}", "search", visit.link("tasks", q=f'key:"{text}"'.replace("\n", " ")), "search"))
    return hits


PAGE = Page(path="/find", template="find.html", view=view)
